"""What operators ask of approvals and budgets, over a real control socket, on a real journal."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAPPROVAL, ECONFLICT, EINVAL, ENOENT, ESRCH, AgentOSError
from agent_os.client.wire import Client
from agent_os.kernel import asking
from agent_os.kernel.authority.approvals import APPROVALS, STANDING, Approvals
from agent_os.kernel.authority.budget import Ledger, rebuilt
from agent_os.kernel.authority.labels import untrusted
from agent_os.kernel.authority.questions import Ask, Asker, Question
from agent_os.kernel.calls import Asked, Done, Need
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import body
from agent_os.kernel.table import Agent
from kernel.serving import Caller, serving, until

ME = f"local:{os.getuid()}"


@asynccontextmanager
async def asked_kernel(home: Path) -> AsyncGenerator[tuple[Any, Client]]:
    """A kernel with approvals and budgets on it, taken up from its store and journal."""
    async with serving(home) as (kernel, client):
        whole = cast("Any", kernel)
        whole.approvals = Approvals(kernel.journal)
        store = kernel.store
        whole.approvals.load(store.items(APPROVALS), store.items(STANDING), store.get("table", "approval"))
        whole.budgets = rebuilt(entry for entry, _ in kernel.journal.scan())
        kernel.operations = {**kernel.operations, **asking.PREPARE}
        yield whole, client


def question(agent: str = "default/deployer", amount: int = 5) -> Ask:
    label = untrusted("http:evil.com", "private")
    needs = (Need("tool", "call", "deploy"),)
    return Ask(Asker(agent, "p"), 5, needs, {"to": "prod", "n": amount}, label, [Question("careful", "it is prod")])


def intent(agent: str, cost: dict[str, Any] | None = None) -> Draft:
    """Of a tool that nobody can verify: a restart parks it."""
    asked = frames.encode_body({"tool": "deploy", "params": {}, "key": "k"})
    return Draft(agent, Kind.INTENT, 1, 5, "o", cost=cost or {}, body=body(asked, frames.NIL, None))


async def put(kernel: Any, ask: Ask | None = None) -> tuple[dict[str, Any], list[AgentOSError | None]]:
    heard: list[AgentOSError | None] = []
    met = kernel.approvals.meet(ask or question())
    kernel.approvals.wait(met.approval, heard.append)
    await until(lambda: any(one.id == met.approval for one in kernel.approvals.every()))
    return asking.told(kernel.approvals.find(met.approval)), heard


def test_a_question_is_listed_answered_and_on_the_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with asked_kernel(tmp_path) as (kernel, client):
            assert await client.call(abi.Approvals()) == {"approvals": []}
            shown, heard = await put(kernel)
            (listed,) = (await client.call(abi.Approvals()))["approvals"]
            assert listed["id"] == "q-1"
            assert listed["agent"] == "deployer"
            assert listed["wants"] == "tool.call deploy"
            assert listed["args"] == {"to": "prod", "n": 5}
            assert listed["origins"]["to"] == ["untrusted", "from:http:evil.com", "class:private"]
            assert 890 < listed["left"] <= 900
            decided = await client.call(
                abi.Decide(approval="q-1", outcome="approve", digest=shown["digest"], reason="fine")
            )
            assert (decided["state"], decided["decided_by"], decided["note"]) == ("approved", ME, "fine")
            assert heard == [None]
            told = [entry for entry, _ in kernel.journal.scan() if entry.kind == Kind.APPROVAL]
            assert [entry.agent for entry in told] == ["default/deployer", ME]
            with pytest.raises(ECONFLICT, match=r"was approved by .* already"):
                await client.call(abi.Decide(approval="q-1", outcome="deny", digest=shown["digest"]))
            assert await client.call(abi.Approvals()) == {"approvals": []}
            every = (await client.call(abi.Approvals(all=True, agent="deployer")))["approvals"]
            assert [one["state"] for one in every] == ["approved"]
            assert await client.call(abi.Approvals(all=True, agent="other")) == {"approvals": []}

    asyncio.run(main())


def test_what_is_wrong_with_an_answer_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with asked_kernel(tmp_path) as (kernel, client):
            shown, heard = await put(kernel)
            with pytest.raises(ECONFLICT, match="something else"):
                await client.call(abi.Decide(approval="q-1", outcome="approve", digest="0" * 64))
            with pytest.raises(ENOENT):
                await client.call(abi.Decide(approval="q-9", outcome="approve", digest=shown["digest"]))
            assert heard == []
            await client.call(abi.Decide(approval="q-1", outcome="deny", digest=shown["digest"], reason="no"))
            assert isinstance(heard[0], EAPPROVAL)
            assert heard[0].detail["outcome"] == "refused"

    asyncio.run(main())


def test_a_question_outlives_its_kernel_and_is_answered_in_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with asked_kernel(tmp_path) as (kernel, _):
            shown, lost = await put(kernel)
        async with asked_kernel(tmp_path) as (kernel, client):
            assert [one["id"] for one in (await client.call(abi.Approvals()))["approvals"]] == ["q-1"]
            _, heard = await put(kernel)
            await client.call(abi.Decide(approval="q-1", outcome="approve", digest=shown["digest"]))
            assert (lost, heard) == ([], [None])
            met = kernel.approvals.meet(question())
            assert met.go
            await kernel.journal.record(intent("default/deployer"), puts=kernel.approvals.rows(met.approval))
        async with asked_kernel(tmp_path) as (kernel, _):
            assert not kernel.approvals.meet(question()).go

    asyncio.run(main())


async def waited(kernel: Kernel, agent: Agent, request: str, wait_ms: int) -> Any:
    asked = Asked(30, b"", request=abi.ApproveWait(request=request, wait_ms=wait_ms))
    deed = asking.approve_wait(cast("Any", kernel), agent, asked).do()
    assert not isinstance(deed, Done)
    return (await deed).value


def test_an_agent_waits_for_a_decision_of_its_own_and_of_nobody_elses(tmp_path: Path) -> None:
    async def main() -> None:
        async with asked_kernel(tmp_path) as (kernel, client):
            mine, other = Caller(kernel, "deployer").agent, Caller(kernel, "other").agent
            shown, _ = await put(kernel)
            assert (await waited(kernel, mine, "q-1", 0))["decision"] == "pending"
            assert (await waited(kernel, mine, "q-1", 10))["decision"] == "pending"
            for agent, name in ((other, "q-1"), (mine, "q-2")):
                with pytest.raises(ENOENT, match="you have no approval"):
                    await waited(kernel, agent, name, 0)
            waiting = asyncio.create_task(waited(kernel, mine, "q-1", 60_000))
            await client.call(abi.Decide(approval="q-1", outcome="deny", digest=shown["digest"]))
            told = await waiting
            assert (told["decision"], told["by"]) == ("refused", ME)
            assert told["at"] > 0

    asyncio.run(main())


def test_limits_are_set_by_a_person_kept_in_the_journal_and_bind_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with asked_kernel(tmp_path) as (kernel, client):
            await Caller(kernel, "spender").write("/mem/working/x", "y")
            set_to = await client.call(abi.Limit(agent="spender", limits={"cost": 500_000, "calls": 10}, reason="try"))
            assert set_to["account"] == "spender"
            raised = await client.call(abi.Limit(agent="spender", limits={"calls": 5}, more=True))
            assert {one["resource"]: one["limit"] for one in raised["uses"]} == {"cost": 500_000, "calls": 15}
            held = kernel.budgets.reserve("default/spender", {"cost": 400_000})
            seq = await kernel.journal.record(intent("default/spender", held.cost))
            kernel.budgets.began(held, seq)
        async with asked_kernel(tmp_path) as (kernel, client):
            chain = (await client.call(abi.Budgets(agent="spender")))["accounts"]
            assert [one["account"] for one in chain] == ["spender", "operator"]
            assert chain[0]["uses"][0] == {"resource": "cost", "spent": 0, "held": 400_000, "limit": 500_000}
            everybody = (await client.call(abi.Budgets()))["accounts"]
            assert {one["account"] for one in everybody} == {"spender", "operator"}
            with pytest.raises(ESRCH):
                await client.call(abi.Limit(agent="nobody", limits={"cost": 1}))
            with pytest.raises(EINVAL, match="no budget counts"):
                await client.call(abi.Limit(agent="spender", limits={"gold": 1}))
            with pytest.raises(EINVAL):
                await client.call(abi.Limit(agent="spender", limits={"cost": -1}))
            await client.call(abi.Limit(agent="operator", limits={"cost": 1_000_000}))

    asyncio.run(main())


def test_cost_is_added_up_from_the_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with asked_kernel(tmp_path) as (kernel, client):
            assert (await client.call(abi.Cost()))["rows"] == []
            ledger: Ledger = kernel.budgets
            for name, cost, model in (("a", 5, "m1"), ("a", 6, "m2"), ("b", 7, "m1")):
                settled = ledger.settle(ledger.reserve(f"default/{name}", {"cost": cost}), {"cost": cost}, model=model)
                await kernel.journal.record(Draft(f"default/{name}", Kind.RESULT, cost=settled.cost))
            told = await client.call(abi.Cost())
            assert told["rows"] == [{"agent": "a", "spent": {"cost": 11}}, {"agent": "b", "spent": {"cost": 7}}]
            assert told["total"] == {"cost": 18}
            by_model = await client.call(abi.Cost(by=["model", "agent"]))
            assert [(row["model"], row["agent"]) for row in by_model["rows"]] == [("m1", "a"), ("m1", "b"), ("m2", "a")]
            assert (await client.call(abi.Cost(since_ns=1 << 62)))["rows"] == []

    asyncio.run(main())
