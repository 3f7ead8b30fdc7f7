"""What agents ask and tell people: questions are answered with values, over crashes; results are held to a schema."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAPPROVAL, ECONFLICT, EINVAL, EMSGSIZE, ETYPE
from agent_os.abi.syscalls import Approvals, Ask, Body, Decide, Event, Exec, Left
from agent_os.kernel.authority.answers import Approval
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Actor
from kernel.serving import Caller, serving
from peer import greeted, until, with_kernel

PERSON = Actor("local:1000")
NUMBER = {"type": "integer", "minimum": 0}


async def asked(kernel: Kernel) -> Approval:
    await until(lambda: bool(kernel.approvals.pending()))
    (one,) = kernel.approvals.pending()
    return one


def test_a_person_answers_with_a_value_of_the_type_that_was_asked_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            answer = asyncio.create_task(Caller(kernel, "a").syscall(Ask(question="How many?", schema=NUMBER)))
            await asked(kernel)
            (row,) = (await client.call(Approvals()))["approvals"]
            assert (row["wants"], row["args"]["question"], row["schema"]) == ("an answer", "How many?", NUMBER)
            assert row["scopes"] == ["once"], "no answer stands for another question"
            decide = Decide(approval=row["id"], outcome="approve", digest=row["digest"])
            for wrong in (None, "many", -1):
                with pytest.raises(ETYPE):
                    await client.call(_with(decide, wrong))
            assert not answer.done()
            await client.call(_with(decide, 7))
            assert (await answer)["value"] == 7
            with pytest.raises(ECONFLICT):
                await client.call(_with(decide, 8))

    asyncio.run(test())


def _with(decide: Decide, value: Any) -> Decide:
    return Decide(approval=decide.approval, outcome=decide.outcome, digest=decide.digest, value=value)


def test_without_a_schema_the_answer_is_text_and_a_yes_to_anything_else_takes_no_value(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            answer = asyncio.create_task(Caller(kernel, "a").syscall(Ask(question="Where?")))
            one = await asked(kernel)
            decide = Decide(approval=one.id, outcome="approve", digest=one.digest)
            with pytest.raises(ETYPE):
                await client.call(_with(decide, 7))
            await client.call(_with(decide, "Berlin"))
            assert (await answer)["value"] == "Berlin"

    asyncio.run(test())


def test_a_refusal_an_expiry_and_a_value_are_told_apart() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel, "a")
        answer = asyncio.create_task(peer.ask(Ask(question="May I?")))
        one = await asked(kernel)
        kernel.approvals.decide(one.id, PERSON, approve=False, digest=one.digest, note="not today")
        with pytest.raises(EAPPROVAL) as refused:
            await answer
        assert refused.value.detail["outcome"] == "refused"
        assert "not today" in refused.value.reason
        with pytest.raises(EAPPROVAL) as expired:
            await peer.ask(Ask(question="Anybody there?", timeout_ms=1))
        assert expired.value.detail["outcome"] == "expired"

    with_kernel(test)


def test_a_question_outlives_the_kernel_and_its_answer_whoever_asked(tmp_path: Path) -> None:
    """kill -9 between question and answer, and between answer and taking it up: the same call finds both."""

    async def before() -> None:
        async with serving(tmp_path / "home") as (kernel, _):
            lost = asyncio.create_task(Caller(kernel, "a").syscall(Ask(question="Where?")))
            await asked(kernel)
            lost.cancel()

    async def between() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            one = await asked(kernel)
            await client.call(Decide(approval=one.id, outcome="approve", digest=one.digest, value="here"))

    async def after() -> None:
        async with serving(tmp_path / "home") as (kernel, _):
            agent = Caller(kernel, "a")
            assert (await agent.syscall(Ask(question="Where?")))["value"] == "here"
            again = asyncio.create_task(agent.syscall(Ask(question="Where?")))
            assert (await asked(kernel)).id == "q-2", "an answer is for one question"
            again.cancel()

    for part in (before, between, after):
        asyncio.run(part())


@pytest.mark.parametrize(
    "wrong",
    [
        Ask(question=" "),
        Ask(question="q" * 4001),
        Ask(question="q", timeout_ms=0),
        Ask(question="q", schema={"type": "no-such-type"}),
        Event(kind="kernel.boot"),
        Event(kind="agent."),
        Event(kind="agent.Turn"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Body) -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel, "a")
        with pytest.raises(EINVAL):
            await peer.ask(wrong)
        assert not kernel.approvals.every()

    with_kernel(test)


def test_events_are_in_the_record_and_bounded() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel, "a")
        await peer.ask(Event(kind="agent.progress", facts={"text": "half", "done": 0.5}))
        with pytest.raises(EMSGSIZE):
            await peer.ask(Event(kind="agent.progress", facts={"text": "x" * 40_000}))
        kind, told = next(
            (entry.kind, decode_any(body)[1])
            for entry, body in kernel.journal.scan("default/a")
            if entry.op == 41 and body
        )
        assert (kind, told["kind"]) == (Kind.RESULT, "agent.progress")
        assert told["facts"] == {"text": "half", "done": 0.5}

    with_kernel(test)


def test_what_is_left_is_that_of_the_tightest_budget_above() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel, "a")
        assert await peer.ask(Left()) == {"share": 1.0, "resource": "", "left": []}
        kernel.budgets.limit("operator", {"tokens": 100})
        kernel.budgets.limit("default/a", {"cost": 1000, "calls": 0})
        assert (await peer.ask(Left()))["resource"] == "calls"
        kernel.budgets.limit("default/a", {"calls": None})
        left = await peer.ask(Left())
        assert (left["share"], left["resource"], len(left["left"])) == (1.0, "", 2)

    with_kernel(test)


def test_a_result_is_held_to_what_the_manifest_promised_and_costs_no_tool_call() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel, "a")
        finish = Exec(tool="agent.finish", params={"result": 7})
        kernel.budgets.limit("default/a", {"calls": 0})
        assert await peer.ask(finish) == {"finished": True}
        whole = await peer.ask(Exec(tool="agent.finish", params={"result": 7}, whole=True))
        assert (whole["value"], whole["tool"]) == ({"finished": True}, "agent.finish@1.0.0")
        agent.order["model"], agent.order["input"] = "p/m", {"terms": {"output_schema": {"type": "string"}}}
        with pytest.raises(ETYPE) as wrong:
            await peer.ask(finish)
        assert (wrong.value.detail["pointer"], wrong.value.detail["ran"]) == ("/result", False)
        await peer.ask(Exec(tool="agent.finish", params={"result": "seven"}))
        with pytest.raises(ETYPE):
            await peer.ask(Exec(tool="agent.finish", params={"result": "seven", "more": 1}))

    with_kernel(test)
