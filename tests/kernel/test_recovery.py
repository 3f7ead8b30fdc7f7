"""After a crash: what was under way is settled by its class, step by step on the record, and never guessed."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EHOSTUNREACH, EIO, ENOENT, EPOLICY
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Effect, Exit, Remove, Write
from agent_os.drivers.store import Put
from agent_os.kernel import recovery
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.handles import Clock
from agent_os.kernel.authority.policy.loading import Text
from agent_os.kernel.authority.ruling import KEPT
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.passing import QUARANTINE
from agent_os.kernel.recorded import Recorded, body, decode_any
from agent_os.kernel.recovery import FIRST_PAUSE, STABLE, pause
from agent_os.kernel.signals import KERNEL
from agent_os.kernel.table import Ended
from agent_os.kernel.tooling import Tool, Verified
from faults.inprocess import acks, kernel_with_processes, started
from faults.processes import Processes
from kernel.authority.ruled import HEAD, rule, ruled
from peer import greeted, until, with_kernel

pytestmark = pytest.mark.uid_free("the kernel decides the same for every user")

AGENT = "default/gone"


def intent(kernel: Kernel, effect: Effect, tool: str = "tool", op: int = 5) -> int:
    """An effect of an agent that has no process yet, begun by a kernel that is no more."""
    record = {"tool": tool, "params": {}, "key": "k"}
    draft = Draft(AGENT, Kind.INTENT, 1, op, effect, pos="0:1", body=body(b"\x80", frames.NIL, None, record))
    draft.handle = kernel.authority.holdings(AGENT).grant(parse("tool:*:call"), "operator").id
    draft.rule = "approval:q-1"
    return kernel.journal.put_now(draft)


def register(
    kernel: Kernel,
    effect: Effect,
    run: Callable[[], Any] = lambda: "ran",
    verify: Callable[[], Verified] | None = None,
) -> list[str]:
    """A tool, and what it was called with."""
    ran: list[str] = []

    async def running(key: str, params: Any) -> Any:
        ran.append(key)
        return run()

    async def verifying(key: str, params: Any) -> Verified:
        assert verify
        return verify()

    kernel.tools.register(Tool("tool", running, effect, verifying if verify else None))
    return ran


def outcome(kernel: Kernel, seq: int) -> Recorded | None:
    found = [kept for entry, kept in kernel.journal.scan() if entry.kind == Kind.OUTCOME and entry.ref == seq]
    assert len(found) <= 1
    return Recorded.of(found[0]) if found else None


def fail(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("effect", "sees", "runs", "value"),
    [
        (Effect.IDEMPOTENT, None, True, "ran"),
        (Effect.VERIFIABLE, Verified("done", "seen"), False, "seen"),
        (Effect.VERIFIABLE, Verified("not_done"), True, "ran"),
    ],
)
def test_what_can_be_told_is_settled_by_its_class(
    effect: Effect, sees: Verified | None, runs: bool, value: str
) -> None:
    async def test(kernel: Kernel) -> None:
        ran = register(kernel, effect, verify=(lambda: sees) if sees else None)
        seq = intent(kernel, effect)
        await kernel.recovery.at_boot()
        assert ran == (["k"] if runs else [])
        settled = outcome(kernel, seq)
        assert settled
        assert decode_any(settled.value) == value
        assert kernel.journal.open_intents() == []
        await kernel.recovery.at_boot()
        assert ran == (["k"] if runs else []), "what is settled is not settled again"

    with_kernel(test)


@pytest.mark.parametrize(
    ("effect", "verify"),
    [
        (Effect.OPAQUE, None),
        (Effect.VERIFIABLE, lambda: Verified("unsure")),
        (Effect.VERIFIABLE, lambda: fail(EHOSTUNREACH("down", "the other side is not there"))),
        (Effect.VERIFIABLE, lambda: fail(RuntimeError("a bug of the tool's"))),
    ],
)
def test_what_cannot_be_told_is_parked_once_and_never_guessed(effect: Effect, verify: Any) -> None:
    async def test(kernel: Kernel) -> None:
        ran = register(kernel, effect, verify=verify)
        seq = intent(kernel, effect)
        await kernel.recovery.at_boot()
        await kernel.recovery.at_boot()
        assert ran == []
        assert outcome(kernel, seq) is None
        assert kernel.recovery.parked() == [(seq, AGENT)]
        assert [entry.kind for entry, _ in kernel.journal.scan()].count(Kind.PARK) == 1

    with_kernel(test)


def test_a_tool_that_is_no_longer_there_leaves_its_effect_unknown() -> None:
    async def test(kernel: Kernel) -> None:
        seq = intent(kernel, Effect.IDEMPOTENT, "nowhere")
        await kernel.recovery.at_boot()
        assert kernel.recovery.parked() == [(seq, AGENT)]

    with_kernel(test)


@pytest.mark.parametrize("problem", [EIO("driver", "it failed"), RuntimeError("a bug")])
def test_a_tool_that_fails_when_it_runs_again_does_not_keep_the_kernel_from_booting(problem: Exception) -> None:
    async def test(kernel: Kernel) -> None:
        register(kernel, Effect.IDEMPOTENT, run=lambda: fail(problem))
        seq = intent(kernel, Effect.IDEMPOTENT)
        await kernel.recovery.at_boot()
        settled = outcome(kernel, seq)
        assert settled
        assert isinstance(settled.error, EIO)

    with_kernel(test)


@pytest.mark.parametrize("verdict", ["done", "fail", "not_done"])
def test_a_person_says_what_became_of_it(verdict: str) -> None:
    async def test(kernel: Kernel) -> None:
        ran = register(kernel, Effect.OPAQUE)
        seq = intent(kernel, Effect.OPAQUE)
        await kernel.recovery.at_boot()
        await kernel.recovery.resolve(seq, verdict, "as I saw", "local:0")
        settled = outcome(kernel, seq)
        assert settled
        value = None if settled.error else decode_any(settled.value)
        assert (value, ran) == {"done": ("as I saw", []), "fail": (None, []), "not_done": ("ran", ["k"])}[verdict]
        assert kernel.recovery.parked() == []
        assert kernel.journal.open_intents() == []
        with pytest.raises(ENOENT):
            await kernel.recovery.resolve(seq, verdict, None, "local:0")

    with_kernel(test)


def test_two_who_say_it_did_not_happen_make_it_happen_once() -> None:
    async def test(kernel: Kernel) -> None:
        ran = register(kernel, Effect.OPAQUE)
        seq = intent(kernel, Effect.OPAQUE)
        await kernel.recovery.at_boot()
        said = [kernel.recovery.resolve(seq, "not_done", None, who) for who in ("local:1", "local:2")]
        results = await asyncio.gather(*said, return_exceptions=True)
        assert sorted(map(type, results), key=str) == sorted([type(None), ENOENT], key=str)
        assert ran == ["k"]

    with_kernel(test)


def test_it_stays_parked_until_its_outcome_is_on_the_record() -> None:
    """A crash while the resolved effect runs asks the person again."""

    async def test(kernel: Kernel) -> None:
        async def run(key: str, params: Any) -> Any:
            assert kernel.recovery.parked() == [(seq, AGENT)]
            return "ran"

        kernel.tools.register(Tool("tool", run))
        seq = intent(kernel, Effect.OPAQUE)
        await kernel.recovery.at_boot()
        await kernel.recovery.resolve(seq, "not_done", None, "local:0")
        assert outcome(kernel, seq)

    with_kernel(test)


# What was allowed once is done again only if it could begin today.


def revoke(kernel: Kernel) -> None:
    kernel.authority.holdings(AGENT).revoke_all()


def expire(kernel: Kernel) -> None:
    kernel.authority.holdings(AGENT).clock = Clock(wall=lambda: 9e12)
    for handle in kernel.authority.holdings(AGENT):
        handle.expiry = 1


def narrow(kernel: Kernel) -> None:
    for handle in kernel.authority.holdings(AGENT):
        handle.capability = parse("tool:other:call")


def forbid(kernel: Kernel) -> None:
    ruled(kernel, rule("forbid", "tool:tool:call"))


def ask(kernel: Kernel) -> None:
    ruled(kernel, rule("ask", "tool:tool:call"))


def quarantine(kernel: Kernel) -> None:
    kernel.journal.put_now(Draft(AGENT, Kind.STATE), puts=[Put(QUARANTINE, AGENT, b"it did something")])


def forbid_by_project(kernel: Kernel) -> None:
    text = HEAD.format(mode="enforce") + rule("forbid", "tool:tool:call")
    kept = frames.encode_body([Text(".agents/policy.toml", text.encode())])
    kernel.journal.put_now(Draft(AGENT, Kind.STATE), puts=[Put(KEPT, AGENT, kept)])


def misunderstand_project(kernel: Kernel) -> None:
    kept = frames.encode_body([Text(".agents/policy.toml", b"no rules at all")])
    kernel.journal.put_now(Draft(AGENT, Kind.STATE), puts=[Put(KEPT, AGENT, kept)])


def forbid_to_parent(kernel: Kernel) -> None:
    kernel.journal.put_now(Draft(AGENT, Kind.STATE), puts=[Put("parents", AGENT, b"default/head")])
    ruled(kernel, rule("forbid", "tool:tool:call", agents='["head"]'))


def approve(kernel: Kernel, **other: Any) -> None:
    ask(kernel)
    about = {"id": "q-1", "agent": AGENT, "rules": ["operator:r"], "state": "used", "scope": "once", **other}
    texts = dict.fromkeys(("digest", "program", "wants", "capability"), "")
    empty = {key: list[str]() for key in ("classes", "reasons", "approvers", "scopes")}
    times = dict.fromkeys(("created_seq", "created_ns", "deadline_ns"), 1)
    one = {**texts, **empty, **times, "guest": False, "op": 5, "args": {}, "origins": {}, **about}
    kernel.approvals.load([("q-1", frames.encode_body(one))])


def approve_for_longer(kernel: Kernel) -> None:
    ask(kernel)
    about = {"id": "q-1", "agent": AGENT, "rules": ["operator:r"], "scope": "session", "by": "local:0", "since_ns": 1}
    stands = {**about, "program": "", "capability": "", "classes": []}
    kernel.approvals.load((), [("q-1", frames.encode_body(stands))])


REFUSALS: list[tuple[Callable[[Kernel], None], str]] = [
    (revoke, "cap.revoked"),
    (expire, "cap.expired"),
    (narrow, "cap.missing"),
    (forbid, "policy.forbid"),
    (ask, "approval.changed"),
    (quarantine, "quarantined"),
    (forbid_by_project, "policy.forbid"),
    (misunderstand_project, "policy.invalid"),
    (forbid_to_parent, "policy.forbid"),
    (partial(approve, rules=["project:r"]), "approval.changed"),
    (partial(approve, agent="default/other"), "approval.changed"),
    (partial(approve, state="void"), "approval.changed"),
    (partial(approve, scope="session"), "approval.changed"),  # it does not stand any more
    (approve, ""),
    (approve_for_longer, ""),
    (lambda kernel: None, ""),
]


@pytest.mark.parametrize(("meanwhile", "code"), REFUSALS)
@pytest.mark.parametrize("door", ["boot", "resolve"])
def test_nothing_is_done_again_that_would_be_refused_by_now(
    meanwhile: Callable[[Kernel], None], code: str, door: str
) -> None:
    async def test(kernel: Kernel) -> None:
        effect = Effect.IDEMPOTENT if door == "boot" else Effect.OPAQUE
        ran = register(kernel, effect)
        seq = intent(kernel, effect)
        meanwhile(kernel)
        await kernel.recovery.at_boot()
        if door == "resolve":
            await kernel.recovery.resolve(seq, "not_done", None, "local:0")
        settled = outcome(kernel, seq)
        assert settled
        assert (settled.error.code if settled.error else "") == code
        assert ran == ([] if code else ["k"])
        assert kernel.journal.open_intents() == []
        assert kernel.recovery.parked() == []

    with_kernel(test)


def test_a_refusal_to_do_it_again_names_the_rule_and_quarantines_nobody() -> None:
    async def test(kernel: Kernel) -> None:
        register(kernel, Effect.IDEMPOTENT)
        intent(kernel, Effect.IDEMPOTENT)
        forbid(kernel)
        await kernel.recovery.at_boot()
        *_, (last, kept) = kernel.journal.scan(AGENT)
        assert (last.kind, last.code, last.rule) == (Kind.OUTCOME, EPOLICY.number, "recovery,r")
        error = Recorded.of(kept).error
        assert error
        assert error.detail["violation"] == "refuse", "it was allowed when the agent began"
        assert kernel.store.get(QUARANTINE, AGENT) is None

    with_kernel(test)


@pytest.mark.parametrize("forbidden", [True, False])
@pytest.mark.parametrize("op", [2, 24])
def test_a_file_is_not_changed_again_by_what_a_rule_forbids_now(tmp_path: Path, forbidden: bool, op: int) -> None:
    async def test(kernel: Kernel) -> None:
        row, _ = await greeted(kernel, caps=("file:/work/**:*",))
        if op == 24:
            (tmp_path / "x").write_text("there")
        work = os.open(tmp_path, os.O_PATH)
        row.files.mount_directory("/work", work)
        os.close(work)
        request = Write(path="/work/x", data=b"new") if op == 2 else Remove(path="/work/x")
        act = (kernel.vfs.write if op == 2 else kernel.vfs.remove)(row.files, request)  # pyright: ignore[reportArgumentType]
        [handle] = [one for one in row.holdings if one.capability.kind == "file"]
        draft = Draft(row.id, Kind.INTENT, 1, op, act.effect, body=body(b"\x80", frames.NIL, None, act.record))
        draft.handle = handle.id
        kernel.journal.put_now(draft)
        ruled(kernel, rule("forbid", f"file:/work/{'x' if forbidden else 'y'}:write,delete"))
        kernel.recovery._last_before = kernel.journal.size  # pyright: ignore[reportPrivateUsage] (of an earlier kernel)
        await kernel.recovery.settle_before(row)
        assert (tmp_path / "x").exists() is ((op == 2) is not forbidden)
        assert kernel.journal.open_intents() == []

    with_kernel(test)


def test_a_write_of_an_agent_that_is_gone_is_parked() -> None:
    async def test(kernel: Kernel) -> None:
        seq = intent(kernel, Effect.VERIFIABLE, op=2)
        await kernel.recovery.at_boot()
        assert kernel.recovery.parked() == [(seq, AGENT)]

    with_kernel(test)


def stored(kernel: Kernel, name: str, **order: Any) -> None:
    """An agent that lived when the kernel ended."""
    facts = {"kind": "native", "program": "counting", **order}
    puts = [Put("agents", f"default/{name}", frames.encode_body(facts)), Put("incarnations", f"default/{name}", b"1")]
    puts.append(Put("parents", f"default/{name}", (order.get("parent") or "").encode()))
    kernel.journal.put_now(Draft(f"default/{name}", Kind.SPAWN, 1), puts=puts)


@pytest.mark.parametrize("order", [{"kind": "guest"}, {"durable": False}])
def test_who_does_not_live_again_is_lost_for_all_to_see(order: dict[str, Any]) -> None:
    async def test(kernel: Kernel) -> None:
        stored(kernel, "lost", **order)
        await kernel.recovery.at_boot()
        agent = kernel.table.find("lost")
        assert agent.exit
        assert agent.exit.exit_class is ExitClass.LOST
        assert (await kernel.wait_for(agent))["state"] == "failed"
        assert list(kernel.store.items("agents")) == []
        assert kernel.table.admit("lost", "native").first_aseq > 1, "the next of that name begins a life of its own"

    with_kernel(test)


def test_who_had_said_its_last_word_is_not_started_and_its_result_is_kept() -> None:
    async def test(kernel: Kernel) -> None:
        stored(kernel, "over")
        said = body(frames.encode_body(Exit(status=0, result={"answer": 42})), frames.NIL, None)
        kernel.journal.put_now(Draft("default/over", Kind.OUTCOME, 1, 8, pos="0:9", body=said))
        await kernel.recovery.at_boot()
        ended = await kernel.wait_for(kernel.table.find("over"))
        assert (ended["state"], ended["result"]) == ("completed", {"answer": 42})

    with_kernel(test)


def test_a_child_that_was_started_is_not_started_twice() -> None:
    async def test(kernel: Kernel) -> None:
        record = {"manifest": {"name": "child"}, "caps": []}
        draft = Draft("default/parent", Kind.INTENT, 1, 9, Effect.VERIFIABLE, pos="0:1")
        draft.body = body(frames.encode_body(record), frames.NIL, None)
        seqs = [kernel.journal.put_now(draft)]
        stored(kernel, "child", parent="default/parent", kind="guest")
        seqs.append(kernel.journal.put_now(draft))
        await kernel.recovery.at_boot()
        first, second = (outcome(kernel, seq) for seq in seqs)
        assert first
        assert decode_any(first.value)["agent"] == "child"
        assert second
        assert second.error
        assert second.error.retryable

    with_kernel(test)


@pytest.mark.integration
def test_what_is_left_of_a_sleep_survives_a_restart(tmp_path: Path) -> None:
    async def first(kernel: Kernel, processes: Processes) -> None:
        await started(kernel, "sleeper", tmp_path, SECONDS=5.0)
        await until(lambda: "asleep" in acks(tmp_path))
        await until(lambda: any(entry.kind == Kind.ACCEPT for entry, _ in kernel.journal.scan()))
        await asyncio.sleep(3.0)

    async def second(kernel: Kernel, processes: Processes) -> None:
        began = asyncio.get_running_loop().time()
        ended = await kernel.wait_for(kernel.table.find("sleeper"))
        assert ended["state"] == "completed", ended
        assert asyncio.get_running_loop().time() - began < 4.9, "it slept all of it again"
        assert ended["result"] >= 5.0, "it did not sleep long enough"

    kernel_with_processes(first, tmp_path, crash=True)
    kernel_with_processes(second, tmp_path)


@pytest.mark.integration
def test_a_sleep_cut_off_with_its_agent_is_slept_on_and_no_error(tmp_path: Path) -> None:
    async def test(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "sleeper", tmp_path, SECONDS=1.0)
        await until(lambda: "asleep" in acks(tmp_path))
        await until(lambda: any(entry.kind == Kind.ACCEPT for entry, _ in kernel.journal.scan()))
        await processes.started[0].destroy()
        ended = await kernel.wait_for(agent)
        assert ended["state"] == "completed", ended
        assert ended["result"] >= 1.0

    kernel_with_processes(test, tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize(("verdict", "count"), [("done", 1), ("not_done", 2), ("fail", 1)])
def test_an_agent_with_an_unknown_outcome_waits_for_a_person(tmp_path: Path, verdict: str, count: int) -> None:
    async def first(kernel: Kernel, processes: Processes) -> None:
        await started(kernel, "dies", tmp_path, KIND="opaque", AFTER=100, LASTS=100, QUIET=1)
        await until(lambda: kernel_with_processes.ledger.counts()["opaque:0"] == 1)

    async def second(kernel: Kernel, processes: Processes) -> None:
        agent = kernel.table.find("dies")
        [(seq, who)] = kernel.recovery.parked()
        assert who == agent.id
        await until(lambda: agent.state == "paused")
        assert agent.detail == "parked"
        resolving = asyncio.create_task(kernel.recovery.resolve(seq, verdict, {"token": "t"}, "test"))
        if verdict == "not_done":  # the operator is wrong, and gets what they asked for
            await until(lambda: kernel_with_processes.ledger.counts()["opaque:0"] == 2)
            resolving.cancel()
        else:
            await resolving
            ended = await kernel.wait_for(agent)
            assert ended["state"] == ("completed" if verdict == "done" else "failed"), ended
        assert kernel_with_processes.ledger.counts()["opaque:0"] == count

    kernel_with_processes(first, tmp_path, crash=True)
    kernel_with_processes(second, tmp_path)


@pytest.mark.parametrize(
    ("crashes", "least", "most"), [(1, 0.05, 0.1), (2, 0.1, 0.2), (9, 12.8, 25.6), (10, 15, 30), (10_000, 15, 30)]
)
def test_the_pause_doubles_with_each_crash_up_to_a_bound(crashes: int, least: float, most: float) -> None:
    assert pause(crashes, 0.0) == pytest.approx(least)
    assert pause(crashes, 1.0) == pytest.approx(most)


def test_a_long_life_makes_up_for_the_crashes_before_it() -> None:
    async def test(kernel: Kernel) -> None:
        agent = kernel.table.admit("a", "native")
        for _ in range(8):
            kernel.recovery.delay(agent)
        assert kernel.recovery.delay(agent) > FIRST_PAUSE * 64
        agent.clock._before = STABLE  # pyright: ignore[reportPrivateUsage]
        assert kernel.recovery.delay(agent) <= FIRST_PAUSE

    with_kernel(test)


@pytest.mark.integration
def test_an_agent_that_crashes_at_once_is_started_ever_more_slowly(tmp_path: Path) -> None:
    """Each life of it brings something new, so it is never given up."""

    async def test(kernel: Kernel, processes: Processes) -> None:
        await started(kernel, "dies_later", tmp_path)
        await until(lambda: len(processes.started) >= 4)
        before = len(processes.started)
        await until(lambda: kernel.table.find("dies-later").detail == "backoff")
        agent = kernel.table.find("dies-later")
        assert agent.state == "pending"
        await asyncio.sleep(0.5)
        assert len(processes.started) <= before + 2, "half a second was enough for ten"
        await kernel.end(kernel.table.find("dies-later"), Ended(ExitClass.REQUESTED, -1, "enough"))

    kernel_with_processes(test, tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize("how", ["kill", "hold"])
def test_who_waits_for_its_next_life_can_be_killed_and_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(recovery, "FIRST_PAUSE", 0.6)

    async def test(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "counting", tmp_path)
        await until(lambda: "count" in acks(tmp_path))
        waiting = asyncio.create_task(kernel.wait_for(agent))
        await processes.started[0].destroy()
        await until(lambda: kernel.table.find("counting").detail == "backoff")
        between = kernel.table.find("counting")
        sent = AgentSignal.SIGKILL if how == "kill" else AgentSignal.SIGSTOP
        await kernel.signals.send(KERNEL, between, sent)
        await asyncio.sleep(0.8)
        assert len(processes.started) == 1, "it was started all the same"
        if how == "kill":
            assert (await waiting)["state"] == "completed"
            assert list(kernel.store.items("agents")) == []
            return
        held = kernel.table.find("counting")
        assert held.state == "paused"
        await kernel.signals.send(KERNEL, held, AgentSignal.SIGCONT)
        await until(lambda: len(processes.started) == 2)
        await until(lambda: kernel.table.find("counting").state == "running")
        await kernel.signals.send(KERNEL, kernel.table.find("counting"), AgentSignal.SIGUSR2)
        assert (await waiting)["state"] == "completed"

    kernel_with_processes(test, tmp_path)


def test_a_child_whose_parent_is_no_more_is_not_started_again() -> None:
    async def test(kernel: Kernel) -> None:
        stored(kernel, "orphan", parent="default/nobody")
        await kernel.recovery.at_boot()
        orphan = kernel.table.find("orphan")
        assert orphan.exit
        assert "parent" in orphan.exit.reason
        assert list(kernel.store.items("agents")) == []

    with_kernel(test)


def test_parents_are_started_before_their_children() -> None:
    orders = {"a": {"parent": "b"}, "b": {"parent": "c"}, "c": {}, "d": {"parent": "gone"}, "e": {"parent": "e"}}
    first = recovery._parents_first(orders)  # pyright: ignore[reportPrivateUsage]
    assert first.index("c") < first.index("b") < first.index("a")
    assert set(first) == set(orders)
