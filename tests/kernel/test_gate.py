"""One function, one order, every door: what the gate lets through, refuses and records."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EINVAL, EIO, ENOENT, EPERM, EPOLICY, ETIMEDOUT, AgentOSError
from agent_os.abi.syscalls import CheckPolicy, Effect, Exec, Now, Read, Write
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.gate import GO, Passing
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import Recorded
from agent_os.kernel.table import Agent, Caller
from agent_os.kernel.tooling import Tool, Verified
from peer import greeted, with_kernel

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


@pytest.mark.parametrize("step", ["policy", "labels", "budget", "approval"])
@pytest.mark.parametrize("fault", [fail, refuse, lambda: None, lambda: True, lambda: "go on"])
def test_a_step_that_breaks_or_mumbles_lets_nothing_through(step: str, fault: Callable[[], object]) -> None:
    class Broken:
        def check(self, passing: Passing) -> object:
            return fault()

    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        setattr(kernel.gate, step, Broken())
        with pytest.raises((EIO, EPOLICY)):
            await peer.ask(Exec(tool="ledger"))
        assert not ledger.done
        assert [kind for kind, _, _ in entries(kernel, agent)] == ["DECISION"]

    with_kernel(test)


def test_steps_that_say_go_on_do_let_it_through() -> None:
    """The control of the test above."""

    class Fine:
        def check(self, passing: Passing) -> object:
            return GO

    async def test(kernel: Kernel) -> None:
        ledger = Ledger()
        kernel.tools.register(ledger.tool)
        _, peer = await greeted(kernel, caps=LEDGER)
        kernel.gate.policy = kernel.gate.labels = kernel.gate.budget = kernel.gate.approval = Fine()
        await peer.ask(Exec(tool="ledger"))
        assert len(ledger.done) == 1

    with_kernel(test)


@pytest.mark.parametrize(
    ("about", "error"), [({"cost": {"usd": 1.0}}, "EBUDGET"), ({"ask": "it is dear"}, "EAPPROVAL")]
)
def test_what_needs_a_step_that_is_absent_is_refused(about: dict[str, Any], error: str) -> None:
    async def test(kernel: Kernel) -> None:
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
        with pytest.raises(EPERM, match="revoked"):
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
        with pytest.raises(EPERM):
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


def test_replies_leave_in_the_order_of_their_commits() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        peer.say(*(frames.Call(n, 28) for n in range(60)))
        heard = [await peer.hear() for _ in range(60)]
        assert [one.id for one in heard if isinstance(one, frames.Reply)] == list(range(60))

    with_kernel(test)
