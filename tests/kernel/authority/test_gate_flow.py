"""Policy, labels, budgets and approvals behind the real gate, journal and socket: ask, wait, go on once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import (
    EACCES,
    EAGAIN,
    EAPPROVAL,
    EBUDGET,
    ECANCELED,
    ECONFLICT,
    EPERM,
    EPOLICY,
    AgentOSError,
)
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import BY_REQUEST, ApproveWait, Body, CheckPolicy, Decide, Exec, Now
from agent_os.kernel import asking
from agent_os.kernel.authority.answers import State
from agent_os.kernel.authority.budget import rebuilt
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Layer
from agent_os.kernel.calls import Asked, Need
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Actor, Agent
from agent_os.kernel.tooling import Tool
from kernel.authority.ruled import HEAD, rule, ruled
from kernel.test_gate import LEDGER, Ledger
from peer import Peer, greeted, running, until, with_kernel

ANNA, BERT = Actor("local:0"), Actor("local:1")
ASK = rule("ask", "tool:ledger:call", id="careful")


def answer(kernel: Kernel, name: str = "q-1", *, approve: bool = True, by: Actor = ANNA, scope: str = "once") -> None:
    one = kernel.approvals.find(name)
    kernel.approvals.decide(name, by, approve=approve, digest=one.digest, scope=scope)


async def at_door(kernel: Kernel, person: Actor, request: Body) -> Any:
    """What an operator asks, through the gate like any call of theirs."""
    kernel.operations = asking.PREPARE
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def told(value: Any, error: AgentOSError | None) -> None:
        if error:
            answered.set_exception(error)
        else:
            answered.set_result(value)

    kernel.enter(person, Asked(BY_REQUEST[type(request)].number, frames.encode_body(request)), told)
    return await answered


async def waiting(kernel: Kernel, peer: Peer, call: Body | None = None, **options: Any) -> "asyncio.Task[Any]":
    """A call that waits for a person."""
    before = len(kernel.approvals.pending())
    task = asyncio.create_task(peer.ask(call or Exec(tool="ledger", params={"n": 1}), **options))
    await until(lambda: len(kernel.approvals.pending()) > before or task.done(), "asked")
    return task


async def world(kernel: Kernel, *rules: str, caps: tuple[str, ...] = LEDGER) -> tuple[Ledger, Agent, Peer]:
    made = Ledger()
    kernel.tools.register(made.tool)
    agent, peer = await greeted(kernel, caps=caps)
    ruled(kernel, *(rules or (ASK,)))
    return made, agent, peer


def test_a_call_waits_for_a_person_others_go_on_and_it_acts_once() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        assert not made.done
        assert kernel.budgets.account(agent.id).used("calls") == 0
        _, other = await greeted(kernel, "b")
        await other.ask(Now())
        assert not asking.done()
        answer(kernel)
        assert await asking == {"count": 1}
        assert kernel.approvals.find("q-1").state is State.USED
        entries = [entry for entry, _ in kernel.journal.scan(agent.id, 1)]
        assert [Kind(one.kind).name for one in entries] == ["APPROVAL", "INTENT", "OUTCOME"]
        assert entries[1].rule == "careful,approval:q-1"
        assert entries[1].cost == {"on": ["default/a", "operator"], "held": {"calls": 1}}
        assert entries[2].cost == {"spent": {"calls": 1}}
        assert entries[2].label == ["untrusted", "from:tool:ledger"]
        assert rebuilt(entry for entry, _ in kernel.journal.scan()).state() == kernel.budgets.state()
        second = await waiting(kernel, peer)
        answer(kernel, "q-2", approve=False)
        with pytest.raises(EAPPROVAL, match="refused"):
            await second
        assert len(made.done) == 1

    with_kernel(test)


def test_the_very_agent_that_waits_goes_on_with_other_calls() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel)
        peer.say(frames.Call(1, 5, frames.body(Exec(tool="ledger"))), frames.Call(2, 28))
        heard = await peer.hear()
        assert isinstance(heard, frames.Reply)
        assert heard.id == 2
        await until(lambda: bool(kernel.approvals.pending()))
        assert agent.state == "running"
        assert not made.done

    with_kernel(test)


def test_a_deadline_gives_the_call_back_and_the_same_call_takes_the_answer_up() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel)
        with pytest.raises(EAPPROVAL) as caught:
            await peer.ask(Exec(tool="ledger"), deadline_ms=200)
        assert caught.value.detail["approval"] == "q-1"
        answer(kernel)
        await peer.ask(Now())
        assert not made.done
        assert await peer.ask(Exec(tool="ledger")) == {"count": 1}

    with_kernel(test)


def test_a_question_survives_the_kernel_and_the_effect_happens_once(tmp_path: Path) -> None:
    async def main() -> None:
        made = Ledger()
        async with running(tmp_path) as kernel:
            kernel.tools.register(made.tool)
            _, peer = await greeted(kernel, caps=LEDGER)
            ruled(kernel, ASK)
            asking = await waiting(kernel, peer, Exec(tool="ledger"), pos="1")
            asking.cancel()
        async with running(tmp_path) as kernel:
            kernel.tools.register(made.tool)
            assert [one.id for one in kernel.approvals.pending()] == ["q-1"]
            _, peer = await greeted(kernel, caps=LEDGER)
            ruled(kernel, ASK)
            answer(kernel)
            await peer.ask(Now())
            assert await peer.ask(Exec(tool="ledger")) == {"count": 1}
        assert len(made.done) == 1

    asyncio.run(main())


def test_after_a_reload_that_asks_nothing_the_call_goes_on() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel)
        kernel.budgets.open(agent.id, None, {"calls": 1})
        asking = await waiting(kernel, peer)
        ruled(kernel)
        await asking
        assert kernel.approvals.find("q-1").state is State.CANCELLED
        with pytest.raises(EBUDGET):
            await peer.ask(Exec(tool="ledger"))
        assert len(made.done) == 1

    with_kernel(test)


def test_the_clock_goes_on_over_a_restart_and_answers_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as kernel:
            made, _, peer = await world(kernel, rule("ask", "tool:ledger:call", deadline='"1s"'))
            (await waiting(kernel, peer)).cancel()
        async with running(tmp_path) as kernel:
            await until(lambda: kernel.approvals.find("q-1").state is State.EXPIRED)
        assert not made.done

    asyncio.run(main())


# The races of a person's answer: nothing happens without a valid one, nothing twice.


def test_an_answer_that_comes_too_late_is_none() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel, rule("ask", "tool:ledger:call", deadline='"1s"'))
        asking = await waiting(kernel, peer)
        with pytest.raises(EAPPROVAL, match="nobody answered in time") as caught:
            await asking
        assert caught.value.detail["outcome"] == "expired"
        with pytest.raises(EAPPROVAL, match="expired"):
            answer(kernel)
        await peer.ask(Now())
        assert not made.done

    with_kernel(test)


def test_an_answer_counts_once_from_however_many_doors_it_comes() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        digest = kernel.approvals.find("q-1").digest
        yes, no = (Decide(approval="q-1", outcome=word, digest=digest) for word in ("approve", "deny"))
        doors = [at_door(kernel, ANNA, yes), at_door(kernel, BERT, yes), at_door(kernel, BERT, no)]
        said = await asyncio.gather(*doors, return_exceptions=True)
        assert [type(one) for one in said[1:]] == [ECONFLICT, ECONFLICT]
        assert not isinstance(said[0], BaseException)
        assert await asking == {"count": 1}
        with pytest.raises(ECONFLICT, match="already, and used"):
            await at_door(kernel, ANNA, yes)
        again = await waiting(kernel, peer)  # the same act once more is a new question
        assert not again.done()
        assert len(made.done) == 1

    with_kernel(test)


def test_what_was_approved_is_not_good_for_other_arguments() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel)
        with pytest.raises(EAPPROVAL):
            await peer.ask(Exec(tool="ledger", params={"amount": 1}), deadline_ms=100)
        shown = kernel.approvals.find("q-1").digest
        answer(kernel)
        other = await waiting(kernel, peer, Exec(tool="ledger", params={"amount": 1000}))
        assert not made.done
        with pytest.raises(ECONFLICT, match="something else"):  # what was shown for the one does not answer the other
            kernel.approvals.decide("q-2", ANNA, approve=True, digest=shown)
        answer(kernel, "q-2", approve=False)
        with pytest.raises(EAPPROVAL):
            await other
        assert not made.done

    with_kernel(test)


def test_after_a_revocation_an_approval_is_worth_nothing() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        found = agent.holdings.find([Need("tool", "call", "ledger")])
        assert found
        await kernel.authority.revoke([found], "local:0")
        with pytest.raises(EAPPROVAL, match="revoked") as caught:
            await asking
        assert caught.value.detail["outcome"] == "cancelled"
        with pytest.raises(ECONFLICT):
            answer(kernel)
        assert not made.done

    with_kernel(test)


def test_a_revocation_between_the_answer_and_the_act_stops_it() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        answer(kernel)
        agent.holdings.revoke_all()  # before the answer is on disk
        with pytest.raises(EACCES, match="revoked"):
            await asking
        assert not made.done
        assert kernel.approvals.find("q-1").state in (State.APPROVED, State.VOID)

    with_kernel(test)


def test_after_a_reload_that_forbids_no_answer_helps() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        ruled(kernel, rule("forbid", "tool:ledger:call", id="never"), mode="enforce")
        with pytest.raises(EPOLICY, match="never"):
            await asking
        with pytest.raises(ECONFLICT):
            answer(kernel)
        assert not made.done
        assert kernel.budgets.account(agent.id).used("calls") == 0

    with_kernel(test)


def test_a_rule_that_came_while_somebody_answered_asks_anew() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        answer(kernel)
        ruled(kernel, ASK, rule("ask", "tool:*:call", id="also"))
        await until(lambda: [one.id for one in kernel.approvals.pending()] == ["q-2"])
        assert not made.done
        answer(kernel, "q-2")
        assert await asking == {"count": 1}
        assert kernel.approvals.find("q-1").state is State.VOID

    with_kernel(test)


def test_what_was_agreed_to_for_a_projects_rule_answers_no_other_layers_rule_of_that_id() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel, ASK)
        theirs = HEAD.format(mode="strict") + rule("ask", "tool:ledger:call", id="payments")
        kernel.authority.policies.add(agent.id, [read(theirs.encode(), ".agents/policy.toml", Layer.PROJECT)])
        ruled(kernel)
        asking = await waiting(kernel, peer)
        assert kernel.approvals.find("q-1").rules == ["project:payments"]
        answer(kernel, scope="session")
        await asking
        ruled(kernel, rule("ask", "tool:ledger:call", id="payments", approvers='["user:nobody-here"]'))
        asking = await waiting(kernel, peer)
        assert kernel.approvals.find("q-2").rules == ["operator:payments", "project:payments"]
        with pytest.raises(EPERM, match="user:nobody-here"):
            answer(kernel, "q-2")
        assert len(made.done) == 1
        asking.cancel()

    with_kernel(test)


@pytest.mark.parametrize("stricter", [{"approvers": '["user:nobody-here"]'}, {"scopes": '["once"]'}])
def test_what_stands_does_not_answer_a_rule_that_became_stricter(stricter: dict[str, str]) -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        answer(kernel, scope="session")
        await asking
        await peer.ask(Exec(tool="ledger", params={"n": 1}))
        ruled(kernel, rule("ask", "tool:ledger:call", id="careful", **stricter))
        asking = await waiting(kernel, peer)
        assert (len(kernel.approvals.pending()), len(made.done)) == (1, 2)
        asking.cancel()

    with_kernel(test)


def test_an_answer_to_a_rule_that_named_others_meanwhile_is_void_and_they_are_asked() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        ruled(kernel, rule("ask", "tool:ledger:call", id="careful", approvers='["user:nobody-here"]'))
        answer(kernel)
        await until(lambda: kernel.approvals.find("q-1").state is State.VOID and bool(list(kernel.approvals.pending())))
        assert [one.approvers for one in kernel.approvals.pending()] == [[["user:nobody-here"]]]
        assert not made.done
        asking.cancel()

    with_kernel(test)


def test_a_rule_that_came_while_the_intent_was_written_stops_the_act_and_costs_nothing() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel, rule("allow", "tool:ledger:call"))
        put = kernel.journal.put

        def changed(draft: Any, **how: Any) -> int:
            if draft.kind == Kind.INTENT:
                ruled(kernel, ASK)
            return put(draft, **how)

        kernel.journal.put = changed  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(EAPPROVAL, match="must be asked now"):
            await peer.ask(Exec(tool="ledger"))
        assert not made.done
        assert kernel.budgets.account(agent.id).used("calls") == 0
        entries = [entry for entry, _ in kernel.journal.scan()]
        assert rebuilt(entries).state() == kernel.budgets.state()

    with_kernel(test)


def test_a_person_must_be_one_that_every_rule_named() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel, rule("ask", "tool:ledger:call", approvers='["user:root"]'))
        asking = await waiting(kernel, peer)
        with pytest.raises(EPERM, match="user:root"):
            answer(kernel, by=BERT)
        with pytest.raises(EPERM, match="no agent decides"):
            answer(kernel, by=agent)  # pyright: ignore[reportArgumentType]
        assert not made.done
        answer(kernel, by=ANNA)
        assert await asking == {"count": 1}

    with_kernel(test)


def test_two_equal_calls_are_one_question_and_one_act() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel)
        call = frames.body(Exec(tool="ledger"))
        peer.say(frames.Call(1, 5, call), frames.Call(2, 5, call))
        await until(lambda: bool(kernel.approvals.pending()))
        await asyncio.sleep(0.05)
        assert [one.id for one in kernel.approvals.pending()] == ["q-1"]
        answer(kernel)
        heard = await peer.hear()
        assert isinstance(heard, frames.Reply)
        await until(lambda: [one.id for one in kernel.approvals.pending()] == ["q-2"])  # the other asks for itself
        assert len(made.done) == 1

    with_kernel(test)


def test_who_gives_up_takes_the_question_along() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel)
        peer.say(frames.Call(1, 5, frames.body(Exec(tool="ledger"))))
        await until(lambda: bool(kernel.approvals.pending()))
        peer.say(frames.Cancel(1))
        heard = await peer.hear()
        assert isinstance(heard, frames.Error)
        assert heard.code == ECANCELED.number
        await until(lambda: kernel.approvals.find("q-1").state is State.CANCELLED)
        assert not made.done

    with_kernel(test)


def test_a_caller_that_is_gone_does_not_act_by_itself_when_the_answer_comes() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel)
        (await waiting(kernel, peer)).cancel()
        await peer.leave()
        await until(lambda: agent.line is None)
        answer(kernel)
        await until(lambda: kernel.approvals.find("q-1").state is State.APPROVED)
        await kernel.journal.record(Draft("kernel", Kind.STATE))
        assert not made.done

    with_kernel(test)


def test_no_question_shows_a_secret(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as kernel:
            _, _, peer = await world(kernel)
            kernel.safe.add("KEY", b"hunter2-hunter2-hunter2")
            await waiting(kernel, peer, Exec(tool="ledger", params={"note": "it is hunter2-hunter2-hunter2!"}))
            shown = kernel.approvals.find("q-1")
            assert "hunter2" not in str(shown.args)
            assert "it is " in str(shown.args)  # all else is there

    asyncio.run(main())


# Standing answers.


def test_an_answer_for_the_session_is_not_asked_again_until_it_is_taken_back() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel)
        asking = await waiting(kernel, peer)
        answer(kernel, scope="session")
        await asking
        for n in range(3):
            await peer.ask(Exec(tool="ledger", params={"n": n}))
        assert [one.uses for one in kernel.approvals.standing()] == [4]
        assert (await peer.ask(CheckPolicy(op=5, body={"tool": "ledger"})))["verdict"] == "allow"
        kernel.approvals.take_back("q-1", ANNA.id)
        assert (await peer.ask(CheckPolicy(op=5, body={"tool": "ledger"})))["verdict"] == "ask"
        again = await waiting(kernel, peer)
        assert len(made.done) == 4
        assert not again.done()
        rules = [entry.rule for entry, _ in kernel.journal.scan(agent.id) if entry.kind == Kind.INTENT]
        assert rules == ["careful,approval:q-1"] * 4

    with_kernel(test)


def test_what_was_taken_back_while_a_call_was_under_way_stays_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as kernel:
            made, _, peer = await world(kernel)
            asking = await waiting(kernel, peer)
            answer(kernel, scope="session")
            await asking
            made.gate.clear()
            slow = asyncio.create_task(peer.ask(Exec(tool="ledger", params={"slow": 1})))
            await until(lambda: [one.uses for one in kernel.approvals.standing()] == [2])
            kernel.approvals.take_back("q-1", ANNA.id)
            made.gate.set()
            await slow
            assert not list(kernel.store.items("standing"))
        async with running(tmp_path) as kernel:
            assert not kernel.approvals.standing()

    asyncio.run(main())


def test_an_agent_can_wait_for_the_answer_to_its_own_question() -> None:
    async def test(kernel: Kernel) -> None:
        _, _, peer = await world(kernel)
        with pytest.raises(EAPPROVAL):
            await peer.ask(Exec(tool="ledger"), deadline_ms=1000)
        asking = asyncio.create_task(peer.ask(ApproveWait(request="q-1", wait_ms=60_000)))
        await asyncio.sleep(0.05)
        answer(kernel, approve=False)
        assert (await asking)["decision"] == "refused"

    with_kernel(test)


# Rates and limits of a call that waits.


def test_a_call_that_waited_counts_once_for_a_rate() -> None:
    async def test(kernel: Kernel) -> None:
        caps = ("tool:ledger:call{rate:1/h}",)
        made, _, peer = await world(kernel, rule("ask", "tool:ledger:call", rate='"1/hour"'), caps=caps)
        asking = await waiting(kernel, peer)
        answer(kernel)
        assert await asking == {"count": 1}
        with pytest.raises(EAGAIN):
            await peer.ask(Exec(tool="ledger", params={"n": 2}))
        assert len(made.done) == 1

    with_kernel(test)


def test_a_capability_for_one_use_is_not_used_by_waiting() -> None:
    async def test(kernel: Kernel) -> None:
        made, _, peer = await world(kernel, caps=("tool:ledger:call{count:1}",))
        asking = await waiting(kernel, peer)
        answer(kernel, approve=False)
        with pytest.raises(EAPPROVAL):
            await asking
        ruled(kernel)
        assert await peer.ask(Exec(tool="ledger")) == {"count": 1}
        with pytest.raises(EBUDGET):
            await peer.ask(Exec(tool="ledger"))
        assert len(made.done) == 1

    with_kernel(test)


# Violations.

NEVER = rule("forbid", "tool:other:call", id="never")


def test_a_violation_is_a_quarantine_as_soon_as_it_is_a_refusal() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel, NEVER, caps=("tool:*:call",))
        kernel.tools.register(Tool("other", made.tool.run))
        with pytest.raises(EPOLICY, match="never"):
            await peer.ask(Exec(tool="other"))
        assert b"never" in (kernel.store.get("quarantine", agent.id) or b"")
        await agent.gone.wait()
        assert agent.exit
        assert agent.exit.exit_class == ExitClass.POLICY
        assert not made.done
        assert not list(kernel.store.items("handles"))

    with_kernel(test)


def test_what_else_the_violator_had_under_way_does_not_happen() -> None:
    """Its other call was allowed, and its intent is being written when the violation is seen."""

    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel, NEVER, caps=("tool:*:call",))
        kernel.tools.register(Tool("other", made.tool.run))
        put = kernel.journal.put

        def slow(draft: Any, **how: Any) -> int:
            if draft.kind == Kind.INTENT:
                agent.quarantined = True
            return put(draft, **how)

        kernel.journal.put = slow  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(EPERM, match="quarantined"):
            await peer.ask(Exec(tool="ledger"))
        assert not made.done
        assert kernel.budgets.account(agent.id).used("calls") == 0

    with_kernel(test)


def test_who_waits_for_an_answer_and_violates_a_rule_never_acts() -> None:
    async def test(kernel: Kernel) -> None:
        made, agent, peer = await world(kernel, ASK, NEVER, caps=("tool:*:call",))
        kernel.tools.register(Tool("other", made.tool.run))
        peer.say(frames.Call(1, 5, frames.body(Exec(tool="ledger"))))
        await until(lambda: bool(kernel.approvals.pending()))
        peer.say(frames.Call(2, 5, frames.body(Exec(tool="other"))))
        await agent.gone.wait()
        with pytest.raises(ECONFLICT):
            answer(kernel)
        assert kernel.approvals.find("q-1").state is State.CANCELLED
        assert not made.done

    with_kernel(test)
