"""One function, one order, every door: what the gate lets through, refuses and records."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EACCES, EINVAL, EIO, ENOENT, EPERM, EPOLICY, ETIMEDOUT, AgentOSError
from agent_os.abi.syscalls import CheckPolicy, Effect, Exec, Now, Read, Write
from agent_os.drivers.store import Put
from agent_os.kernel.calls import GO, PARK, Act, Asked, Done, Way
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.passing import Passing
from agent_os.kernel.recorded import Recorded, digest
from agent_os.kernel.table import Agent, Caller
from agent_os.kernel.tooling import Tool, Verified
from peer import greeted, until, with_kernel

LEDGER = ("tool:ledger:call",)


class Ledger:
    """An outside world that counts what was done to it."""

    def __init__(self, effect: Effect = Effect.OPAQUE) -> None:
        self.done: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        verify = self._verify if effect is Effect.VERIFIABLE else None
        self.tool = Tool("ledger", self._run, effect, verify)

    async def _run(self, key: str, params: Any) -> Any:
        await self.gate.wait()
        self.done.append(key)
        return {"count": len(self.done)}

    async def _verify(self, key: str, params: Any) -> Verified:
        return Verified("done" if key in self.done else "not_done")


def entries(kernel: Kernel, agent: Agent) -> list[tuple[str, int, int]]:
    return [(Kind(one.kind).name, one.op, one.code) for one, _ in kernel.journal.scan(agent.id, 1)]


def test_an_effect_is_recorded_before_it_happens_and_after() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        ledger.gate.clear()
        asking = asyncio.create_task(peer.ask(Exec(tool="ledger")))
        while not (now := entries(kernel, agent)):
            await asyncio.sleep(0.005)
        assert now == [("INTENT", 5, 0)]
        assert not ledger.done
        ledger.gate.set()
        assert await asking == {"count": 1}
        assert entries(kernel, agent) == [("INTENT", 5, 0), ("OUTCOME", 5, 0)]
        intent, outcome = (entry for entry, _ in kernel.journal.scan(agent.id, 1))
        assert outcome.ref == intent.seq

    with_kernel(test)


def test_what_lies_in_the_store_is_one_entry_and_a_pure_call_too() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        await peer.ask(Write(path="/mem/working/x", data="y"))
        await peer.ask(Now())
        assert entries(kernel, agent) == [("OUTCOME", 2, 0), ("RESULT", 28, 0)]

    with_kernel(test)


def test_a_refusal_names_what_is_missing_and_is_on_the_record() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        with pytest.raises(EPERM) as caught:
            await peer.ask(Read(path="/mem/episodic/x"))
        assert caught.value.code == "cap.missing"
        assert caught.value.detail["missing"] == "mem:/mem/episodic/x:read"
        entry, body = next(iter(kernel.journal.scan(agent.id, 1)))
        assert (entry.kind, entry.step, entry.verdict, entry.code) == (Kind.DECISION, 2, Verdict.REFUSE, 1)
        error = Recorded.of(body).error
        assert error is not None
        assert error.reason == caught.value.reason

    with_kernel(test)


def test_a_tool_is_not_there_without_the_capability_to_call_it() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel)
        with pytest.raises(EPERM, match="tool:ledger:call"):
            await peer.ask(Exec(tool="ledger"))
        assert not ledger.done

    with_kernel(test)


def fail() -> object:
    raise RuntimeError("broken")


def refuse() -> object:
    raise EPOLICY("rule", "forbidden by a rule")


STEPS = ["policy", "labels", "budget", "approval"]


def replaced(kernel: Kernel, step: str, check: Callable[[Passing], object]) -> None:
    setattr(getattr(kernel.gate.steps, step), "check", check)  # noqa: B010 (it is replaced on purpose)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", [fail, refuse, lambda: None, lambda: True, lambda: "go on", asyncio.Event])
def test_a_step_that_breaks_or_mumbles_lets_nothing_through(step: str, fault: Callable[[], object]) -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        replaced(kernel, step, lambda passing: fault())
        with pytest.raises((EIO, EPOLICY)):
            await peer.ask(Exec(tool="ledger"))
        assert not ledger.done
        assert [kind for kind, _, _ in entries(kernel, agent)] == ["DECISION"]
        assert kernel.budgets.account(agent.id).used("calls") == 0

    with_kernel(test)


@pytest.mark.parametrize("part", ["identity", "capability"])
def test_a_look_at_the_caller_that_breaks_lets_nothing_through(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 1 and 2, which are the gate's own."""

    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        with monkeypatch.context() as broken:
            place = (kernel.gate, "_prepare") if part == "identity" else (kernel.gate.weighing, "hold")
            broken.setattr(*place, lambda *about: fail())
            with pytest.raises(EIO):
                await peer.ask(Exec(tool="ledger"))
        assert not ledger.done
        assert [kind for kind, _, _ in entries(kernel, agent)] == ["DECISION"]
        assert await peer.ask(Exec(tool="ledger")) == {"count": 1}, "the control"

    with_kernel(test)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", [fail, refuse, lambda: None])
def test_a_step_that_breaks_when_the_world_has_changed_lets_nothing_through(
    step: str, fault: Callable[[], object]
) -> None:
    """The second look, after the intent: at policy and labels only."""

    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)

        def changed(draft: Any, **how: Any) -> int:
            if draft.kind == Kind.INTENT:
                kernel.authority.policies.current.version += 1
                replaced(kernel, step, lambda passing: fault())
            return put(draft, **how)

        put = kernel.journal.put
        kernel.journal.put = changed  # pyright: ignore[reportAttributeAccessIssue]
        if step in ("policy", "labels"):
            with pytest.raises((EIO, EPOLICY)):
                await peer.ask(Exec(tool="ledger"))
            assert not ledger.done
            assert kernel.budgets.account(agent.id).used("calls") == 0
        else:
            await peer.ask(Exec(tool="ledger"))
            assert len(ledger.done) == 1

    with_kernel(test)


def test_an_approval_step_that_hangs_lets_nothing_through_and_a_deadline_still_counts() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        replaced(kernel, "approval", lambda passing: PARK)
        with pytest.raises(ENOENT):  # there is no question that it could wait for
            await peer.ask(Exec(tool="ledger"), deadline_ms=50)
        assert not ledger.done
        assert kernel.budgets.account(agent.id).used("calls") == 0

    with_kernel(test)


@pytest.mark.parametrize("part", ["release", "refused"])
def test_a_refusal_that_breaks_is_still_one(part: str) -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel, caps=LEDGER)
        step = kernel.gate.steps.budget if part == "release" else kernel.gate.steps.approval
        setattr(step, part, lambda *_, **__: fail())
        replaced(kernel, "labels", lambda passing: fail())
        with pytest.raises(EIO):
            await peer.ask(Exec(tool="ledger"))
        assert not ledger.done

    with_kernel(test)


def test_steps_that_say_go_on_do_let_it_through() -> None:
    """The control of the tests above."""

    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel, caps=LEDGER)
        for step in STEPS:
            replaced(kernel, step, lambda passing: GO)
        await peer.ask(Exec(tool="ledger"))
        assert len(ledger.done) == 1

    with_kernel(test)


@pytest.mark.parametrize(("about", "error"), [({"cost": {"usd": 1.0}}, "EINVAL"), ({"ask": "it is dear"}, "EAPPROVAL")])
def test_what_nobody_can_count_or_answer_is_refused(about: dict[str, Any], error: str) -> None:
    async def test(kernel: Kernel) -> None:
        kernel.approvals.anybody = False
        _, peer = await greeted(kernel)

        def prepare(caller: Caller, asked: Asked) -> Act:
            return Act(Done, **about)

        kernel.gate._prepare = prepare  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(AgentOSError) as caught:
            await peer.ask(Now())
        assert caught.value.name == error

    with_kernel(test)


def test_a_capability_revoked_while_the_intent_is_written_stops_the_effect() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        put = kernel.journal.put

        def revoking(draft: Any, **how: Any) -> int:
            if draft.kind == Kind.INTENT:
                agent.holdings.revoke_all()
            return put(draft, **how)

        kernel.journal.put = revoking  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(EACCES, match="revoked"):
            await peer.ask(Exec(tool="ledger"))
        assert not ledger.done
        assert [kind for kind, _, _ in entries(kernel, agent)] == ["INTENT", "OUTCOME"]

    with_kernel(test)


def test_the_same_key_and_body_give_the_recorded_outcome() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel, caps=LEDGER)
        call = Exec(tool="ledger", params={"n": 1})
        first = await peer.ask(call, key="k1")
        assert await peer.ask(call, key="k1") == first
        assert len(ledger.done) == 1
        with pytest.raises(EINVAL, match="another call"):
            await peer.ask(Exec(tool="ledger", params={"n": 2}), key="k1")
        assert len(ledger.done) == 1

    with_kernel(test)


def test_two_calls_with_one_key_at_once_act_once() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel, caps=LEDGER)
        ledger.gate.clear()
        body = frames.body(Exec(tool="ledger"))
        peer.say(frames.Call(1, 5, body, key="k"), frames.Call(2, 5, body, key="k"))
        ledger.gate.set()
        heard = [await peer.hear(), await peer.hear()]
        assert {one.id for one in heard if isinstance(one, frames.Reply)} == {1, 2}
        assert len(ledger.done) == 1

    with_kernel(test)


def test_another_call_with_a_key_that_is_under_way_is_refused() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel, caps=LEDGER)
        ledger.gate.clear()
        bodies = [frames.body(Exec(tool="ledger", params={"n": n})) for n in (1, 2)]
        peer.say(frames.Call(1, 5, bodies[0], key="k"), frames.Call(2, 5, bodies[1], key="k"))
        refused = await peer.hear()
        assert isinstance(refused, frames.Error)
        assert (refused.id, refused.code) == (2, EINVAL.number)
        ledger.gate.set()
        assert isinstance(await peer.hear(), frames.Reply)
        assert len(ledger.done) == 1

    with_kernel(test)


def test_a_repeated_outcome_is_on_the_record_like_any_answer() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        for _ in range(2):
            await peer.ask(Exec(tool="ledger"), key="k")
        assert [kind for kind, _, _ in entries(kernel, agent)] == ["INTENT", "OUTCOME", "RESULT"]
        assert agent.delivered == 2

    with_kernel(test)


def test_a_key_does_not_bring_back_what_is_not_allowed_today() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        await peer.ask(Exec(tool="ledger"), key="k")
        agent.holdings.revoke_all()
        with pytest.raises(EACCES, match="revoked"):
            await peer.ask(Exec(tool="ledger"), key="k")

    with_kernel(test)


def test_an_effect_that_takes_too_long_is_not_called_retryable() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        ledger.gate.clear()
        with pytest.raises(ETIMEDOUT) as caught:
            await peer.ask(Exec(tool="ledger"), deadline_ms=50)
        assert not caught.value.retryable
        assert [kind for kind, _, _ in entries(kernel, agent)] == ["INTENT", "OUTCOME"]

    with_kernel(test)


def test_asking_beforehand_says_the_same_and_does_nothing() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, able = await greeted(kernel, "able", caps=LEDGER)
        _, unable = await greeted(kernel, "unable")
        asked = CheckPolicy(op=5, body={"tool": "ledger"})
        assert (await able.ask(asked))["verdict"] == "allow"
        refused = await unable.ask(asked)
        assert (refused["verdict"], refused["step"], refused["missing"]) == ("refuse", 2, "tool:ledger:call")
        assert not ledger.done

    with_kernel(test)


def test_a_quarantined_agent_is_refused_everything() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        agent.quarantined = True
        with pytest.raises(EPERM, match="quarantined"):
            await peer.ask(Now())

    with_kernel(test)


def test_an_unknown_tool_says_which_there_are() -> None:
    async def test(kernel: Kernel) -> None:
        kernel.tools.register(Ledger().tool)
        _, peer = await greeted(kernel, caps=("tool:*:call",))
        with pytest.raises(ENOENT) as caught:
            await peer.ask(Exec(tool="leger"))
        assert "ledger" in caught.value.hint

    with_kernel(test)


def test_a_bug_in_a_handler_is_an_error_of_that_call_only() -> None:
    async def test(kernel: Kernel) -> None:
        async def broken(key: str, params: Any) -> Any:
            raise ZeroDivisionError

        kernel.tools.register(Tool("broken", broken))
        agent, peer = await greeted(kernel, caps=("tool:*:call",))
        with pytest.raises(EIO, match="ZeroDivisionError"):
            await peer.ask(Exec(tool="broken"))
        assert await peer.ask(Now())
        assert entries(kernel, agent)[:2] == [("INTENT", 5, 0), ("OUTCOME", 5, 5)]

    with_kernel(test)


class Unspeakable:
    """A value that no record can hold."""


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT, Effect.OPAQUE])
@pytest.mark.parametrize("value", [Unspeakable(), "half a pair \udc80", 1 << 70])
def test_a_result_that_cannot_be_told_is_an_error_on_the_record(effect: Effect, value: object) -> None:
    async def test(kernel: Kernel) -> None:
        async def run(key: str, params: Any) -> Any:
            return value

        kernel.tools.register(Tool("odd", run, effect))
        agent, peer = await greeted(kernel, caps=("tool:*:call",))
        with pytest.raises(EIO) as caught:
            await peer.ask(Exec(tool="odd"), pos="0:1")
        assert caught.value.code == "internal.outcome"
        *_, (last, kept) = kernel.journal.scan(agent.id)
        assert (last.kind, last.op, last.code, last.pos) == (Kind.OUTCOME, 5, EIO.number, "0:1")
        assert Recorded.of(kept).digest == digest(frames.encode_body(Exec(tool="odd"))), "a replay can tell it is this"
        assert kernel.journal.open_intents() == []
        assert kernel.budgets.account(agent.id).used("calls") == 1, "it was done, and counts"
        assert await peer.ask(Now()), "the agent goes on"

    with_kernel(test)


@pytest.mark.parametrize("way", list(Way))
def test_a_call_that_cannot_be_written_down_is_refused_or_ended_and_never_lost(way: Way) -> None:
    async def test(kernel: Kernel) -> None:
        acted: list[str] = []

        def do() -> Done:
            acted.append("acted")
            return Done("it", puts=[Put("test", "there", b"yes")])

        kernel.gate._prepare = lambda caller, asked: Act(  # pyright: ignore[reportPrivateUsage]
            do, way=way, effect=Effect.OPAQUE, record=Unspeakable()
        )
        agent, peer = await greeted(kernel)
        with pytest.raises(EIO):
            await peer.ask(Now())
        [(entry, kept)] = kernel.journal.scan(agent.id)
        outside = way is Way.EFFECT
        assert acted == ([] if outside else ["acted"]), "what acts outside must be on the record first"
        assert (entry.kind, entry.step) == ((Kind.DECISION, 7) if outside else (Kind.OUTCOME, 0))
        assert entry.code == EIO.number
        assert Recorded.of(kept).error
        assert kernel.store.get("test", "there") == (None if outside else b"yes"), "memory and store say the same"

    with_kernel(test)


@pytest.mark.parametrize("broken", ["take_in", "settle"])
def test_a_step_that_breaks_after_the_deed_leaves_no_call_without_an_answer(broken: str) -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel, caps=LEDGER)
        step = kernel.gate.steps.labels if broken == "take_in" else kernel.gate.steps.budget
        setattr(step, broken, lambda *_, **__: fail())
        with pytest.raises(EIO) as caught:
            await peer.ask(Exec(tool="ledger"))
        assert caught.value.code == "internal.outcome"
        assert len(ledger.done) == 1

    with_kernel(test)


def test_when_the_journal_fails_nothing_happens_and_every_call_says_so() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel, caps=LEDGER)
        kernel.journal.failed = EIO("journal", "the disk is gone")
        for call in (Exec(tool="ledger"), Now(), Read(path="/etc/passwd")):
            with pytest.raises(EIO, match="the disk is gone"):
                await peer.ask(call)
        assert not ledger.done

    with_kernel(test)


def test_an_answer_does_not_leave_before_its_entry_is_committed() -> None:
    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        put, committed = kernel.journal.put, list[Callable[[], None]]()

        def slow(draft: Any, *, done: Callable[[], None] | None = None, **how: Any) -> int:
            if draft.kind == Kind.OUTCOME and done:
                committed.append(done)
                done = None
            return put(draft, done=done, **how)

        kernel.journal.put = slow  # pyright: ignore[reportAttributeAccessIssue]
        peer.say(frames.Call(1, 5, frames.body(Exec(tool="ledger"))))
        await until(lambda: ("OUTCOME", 5, 0) in entries(kernel, agent))
        peer.say(frames.Call(2, 28))
        answers = [await peer.hear()]
        for done in committed:
            done()
        answers.append(await peer.hear())
        assert [one.id for one in answers if isinstance(one, frames.Reply)] == [2, 1]

    with_kernel(test)


def test_replies_leave_in_the_order_of_their_commits() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        peer.say(*(frames.Call(n, 28) for n in range(60)))
        heard = [await peer.hear() for _ in range(60)]
        assert [one.id for one in heard if isinstance(one, frames.Reply)] == list(range(60))

    with_kernel(test)
