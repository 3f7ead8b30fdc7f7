"""What operators ask of capabilities, over the control socket of a kernel in this process."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EACCES, EINVAL, ENOENT, EPERM, ESRCH
from agent_os.abi.syscalls import Capabilities, Decide, Exec, Explain, Grant, Now, Revoke, Write
from agent_os.client.wire import Client
from agent_os.kernel.authority.questions import Ask, Asker, Question
from agent_os.kernel.calls import Need
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tooling import Tool
from kernel.serving import Caller, serving, until

Test = Callable[[Kernel, Client], Awaitable[None]]
pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]


def served(tmp_path: Path, test: Test) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await test(kernel, client)

    asyncio.run(main())


async def pays(key: str, params: Any) -> Any:
    return "paid"


def test_what_is_granted_holds_and_is_shown_and_can_be_taken_back(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        caller = Caller(kernel, "a")
        with pytest.raises(EPERM):
            await caller.write("/mem/semantic/x", "y")
        row = await client.call(Grant(agent="a", capability="mem:/mem/semantic/**:write", ttl_ms=60_000, uses=2))
        assert row["agent"] == "a"
        assert 50 < row["left_s"] <= 60
        assert row["limits"] == {"count": 2}
        await caller.write("/mem/semantic/x", "y")
        shown = (await client.call(Capabilities(agent="a")))["capabilities"]
        (own,) = [one for one in shown if one["origin"] == "operator"]
        assert own["used"]["count"] == 1
        told = await client.call(Revoke(handles=[row["handle"]]))
        assert told["revoked"] == [row["handle"]]
        with pytest.raises(EACCES):
            await caller.write("/mem/semantic/x", "y")
        with pytest.raises(ENOENT):
            await client.call(Revoke(handles=[row["handle"]]))

    served(tmp_path, test)


@pytest.mark.parametrize(
    ("request_", "error", "code"),
    [
        (Grant(agent="nobody", capability="tool:x:call"), ESRCH, "agent.unknown"),
        (Grant(agent="a", capability="tool:x:dance"), EINVAL, "cap.malformed"),
        (Grant(agent="a", capability="tool:x:call{colour:red}"), EINVAL, "cap.malformed"),
        (Grant(agent="a", capability="tool:x:call", ttl_ms=0), EINVAL, "cap.ttl"),
        (Grant(agent="a", capability="tool:x:call", uses=0), EINVAL, "cap.uses"),
        (Revoke(handles=[]), EINVAL, "cap.handle"),
        (Revoke(handles=["x"]), EINVAL, "cap.handle"),
        (Revoke(handles=["c-99999999"]), ENOENT, "cap.unknown"),
        (Revoke(handles=["q-9"]), EINVAL, "approval.standing"),
        (Explain(), EINVAL, "body"),
        (Explain(seq=99999), ENOENT, "entry.none"),
        (Explain(seq=1), EINVAL, "entry.kind"),
        (Explain(agent="a", capability="file:/work/**:read"), EINVAL, "cap.pattern"),
        (Explain(agent="a", capability="http:api.example.com/v1/**:get"), EINVAL, "cap.pattern"),
        (Explain(agent="nobody", capability="tool:x:call"), ESRCH, "agent.unknown"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    tmp_path: Path, request_: Any, error: type[Exception], code: str
) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        caller = Caller(kernel, "a")
        before = [one.id for one in caller.agent.holdings]
        with pytest.raises(error) as caught:
            await client.call(request_)
        assert caught.value.code == code  # type: ignore[attr-defined]
        assert [one.id for one in caller.agent.holdings] == before

    served(tmp_path, test)


def test_what_every_agent_holds_is_taken_away_by_rules_only(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        caller = Caller(kernel, "a")
        start = next(one for one in caller.agent.holdings if one.starting)
        with pytest.raises(EINVAL, match="only a rule") as caught:
            await client.call(Revoke(handles=[f"c-{start.id}"]))
        assert "forbid" in caught.value.hint
        await caller.write("/mem/working/x", "y")

    served(tmp_path, test)


def test_a_revocation_of_several_is_all_or_nothing(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        caller = Caller(kernel, "a")
        row = await client.call(Grant(agent="a", capability="mem:/mem/semantic/**:write"))
        with pytest.raises(ENOENT):
            await client.call(Revoke(handles=[row["handle"], "c-99999999"]))
        await caller.write("/mem/semantic/x", "y")

    served(tmp_path, test)


def test_the_tree_shows_what_is_above_and_below(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        top, middle, leaf = (Caller(kernel, name) for name in ("top", "middle", "leaf"))
        await client.call(Grant(agent="top", capability="tool:*:call"))
        await client.call(Grant(agent="top", capability="mem:/mem/semantic/**:read"))
        top.agent.holdings.delegate("tool:pay:call", middle.agent.holdings)
        middle.agent.holdings.delegate("tool:pay:call{count:3}", leaf.agent.holdings)
        rows = (await client.call(Capabilities(agent="middle", tree=True)))["capabilities"]
        own = {row["agent"]: row for row in rows if row["origin"] != "start"}
        assert list(own) == ["top", "middle", "leaf"]
        assert own["middle"]["parent"] == own["top"]["handle"]
        assert own["leaf"]["from"] == "middle"
        told = await client.call(Revoke(handles=[own["top"]["handle"]]))
        assert len(told["revoked"]) == 3

    served(tmp_path, test)


def test_standing_approvals_are_shown_and_taken_back(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        asker, question = Asker("default/a", "p"), [Question("careful", "why not")]
        needs = (Need("tool", "call", "pay"),)
        from agent_os.kernel.authority.labels import CLEAN

        ask = Ask(asker, 5, needs, {"tool": "pay"}, CLEAN, question)
        kernel.approvals.meet(ask)
        await until(lambda: bool(kernel.approvals.pending()))
        (one,) = kernel.approvals.pending()
        await client.call(Decide(approval=one.id, outcome="approve", digest=one.digest, scope="always"))
        await until(lambda: bool(kernel.approvals.standing()))
        (row,) = (await client.call(Capabilities()))["standing"]
        assert (row["handle"], row["agent"], row["scope"], row["uses"]) == (one.id, "a", "always", 0)
        assert row["by"].startswith("local:")
        assert row["capability"] == "tool:pay:call"
        assert (await client.call(Revoke(handles=[one.id])))["revoked"] == [one.id]
        assert not kernel.approvals.standing()

    served(tmp_path, test)


def test_may_it_is_answered_as_the_gate_would(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        kernel.tools.register(Tool("pay", pays))
        caller = Caller(kernel, "a")
        told = await client.call(Explain(agent="a", capability="tool:pay:call"))
        assert (told["verdict"], told["code"]) == ("refuse", "EPERM")
        assert told["missing"] == ["tool:pay:call"]
        assert told["because"] == "it holds no capability that covers tool:pay:call"
        assert told["allow"] == ["agentctl cap grant a tool:pay:call --ttl 10m"]
        answers = [(step["name"], step["answer"]) for step in told["steps"]]
        assert answers[:3] == [("identify", "go on"), ("capability", "refuse"), ("policy", "not reached")]
        await client.call(Grant(agent="a", capability=told["missing"][0]))
        told = await client.call(Explain(agent="a", capability="tool:pay:call"))
        assert told["verdict"] == "allow"
        assert {step["answer"] for step in told["steps"]} == {"go on"}
        assert await caller.syscall(Exec(tool="pay")) == "paid"

    served(tmp_path, test)


def test_conditions_are_part_of_the_question_and_of_the_answer(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        Caller(kernel, "a")
        await client.call(Grant(agent="a", capability="tool:pay:call{arg.n:1..5}"))
        assert (await client.call(Explain(agent="a", capability="tool:pay:call{arg.n:5}")))["verdict"] == "allow"
        told = await client.call(Explain(agent="a", capability="tool:pay:call{arg.n:6}"))
        assert told["verdict"] == "refuse"
        assert told["missing"] == ["tool:pay:call{arg.n:6}"], "and no more than that"
        await client.call(Grant(agent="a", capability=told["missing"][0]))
        assert (await client.call(Explain(agent="a", capability="tool:pay:call{arg.n:6}")))["verdict"] == "allow"
        assert (await client.call(Explain(agent="a", capability="tool:pay:call{arg.n:7}")))["verdict"] == "refuse"
        told = await client.call(Explain(agent="a", capability="http:api.example.com/v1/x:get,post"))
        assert told["missing"] == ["http:api.example.com/v1/x:get", "http:api.example.com/v1/x:post"]

    served(tmp_path, test)


def test_what_is_not_there_is_not_promised(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        kernel.furnish(Caller(kernel, "a").agent)
        held = "file:/etc/passwd:read"
        await client.call(Grant(agent="a", capability=held))
        told = await client.call(Explain(agent="a", capability=held))
        assert (told["verdict"], told["detail_code"]) == ("refuse", "vfs.mount")

    served(tmp_path, test)


def test_a_host_alone_is_its_first_page(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        Caller(kernel, "a")
        told = await client.call(Explain(agent="a", capability="http:api.example.com:get"))
        assert told["what"] == "http:api.example.com/:get"

    served(tmp_path, test)


def test_asking_changes_nothing(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        caller = Caller(kernel, "a")
        await client.call(Grant(agent="a", capability="mem:/mem/semantic/**:write{count:1}"))
        for _ in range(3):
            told = await client.call(Explain(agent="a", capability="mem:/mem/semantic/x:write"))
            assert told["verdict"] == "allow"
        await caller.write("/mem/semantic/x", "y")
        told = await client.call(Explain(agent="a", capability="mem:/mem/semantic/x:write"))
        assert (told["verdict"], told["code"]) == ("refuse", "EBUDGET")
        assert not kernel.approvals.every()

    served(tmp_path, test)


def test_an_entry_is_explained_refused_or_allowed(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        caller = Caller(kernel, "a")
        with pytest.raises(EPERM):
            await caller.write("/mem/semantic/x", "y")
        told = await client.call(Explain(seq=kernel.journal.size))
        assert (told["verdict"], told["what"]) == ("refuse", "SYS_WRITE /mem/semantic/x")
        assert told["allow"] == ["agentctl cap grant a mem:/mem/semantic/x:write --ttl 10m"]
        assert [step["answer"] for step in told["steps"]] == ["go on", "refuse", *["not reached"] * 4]
        await caller.syscall(Write(path="/mem/working/x", data="y"))
        told = await client.call(Explain(seq=kernel.journal.size))
        assert (told["verdict"], told["capability"]) == ("allow", "mem:/mem/working/**:delete,read,write")
        assert {step["answer"] for step in told["steps"]} == {"go on"}
        await caller.syscall(Now())
        assert (await client.call(Explain(seq=kernel.journal.size)))["handle"] == ""

    served(tmp_path, test)
