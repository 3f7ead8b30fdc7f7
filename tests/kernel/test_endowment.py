"""What an agent holds from its first moment: its mounts, its parent's share, and nothing of who had its name before."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_os.abi.errors import EACCES, EINVAL, EPERM
from agent_os.abi.states import ExitClass
from agent_os.kernel import endowment
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.calls import Need
from agent_os.kernel.guest import Mount
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.plan import Order
from agent_os.kernel.supervisor.admission import MOST_GENERATIONS
from agent_os.kernel.table import Agent, Ended
from peer import with_kernel

ORDER = Order(("true",), Path("/"), Path("/"))


def order(*mounts: Mount) -> Order:
    return replace(ORDER, mounts=mounts)


def endowed(kernel: Kernel, name: str, wanted: Order, *caps: str, parent: Agent | None = None) -> Agent:
    agent = kernel.table.admit(name, "native", parent=parent.id if parent else None)
    endowment.endow(kernel.authority, agent, [parse(text) for text in caps], wanted)
    return agent


def texts(agent: Agent) -> list[str]:
    return [str(one.capability) for one in agent.holdings if not one.starting]


async def never(agent: Agent, ended: Ended) -> None:
    raise AssertionError("nobody revoked anything")


def test_what_is_mounted_is_held_and_no_more_than_that(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def test(kernel: Kernel) -> None:
        mounts = (
            Mount(tmp_path, "/data", rw=False),
            Mount(tmp_path, "/out", rw=True),
            Mount(tmp_path / "file", "/f", False),
        )
        agent = endowed(kernel, "a", order(*mounts), "tool:pay:call")
        assert texts(agent) == [
            "tool:pay:call",
            "file:/work/**:delete,read,write{depth:8}",
            "file:/data/**:read{depth:8}",
            "file:/out/**:delete,read,write{depth:8}",
            "file:/f:read{depth:8}",
        ]
        with pytest.raises(EPERM):
            agent.holdings.find([Need("file", "write", "/data/x")])
        life = endowment.begin(agent, order(*mounts), never)
        assert life.order == order(*mounts)
        assert [len(one.opened) for one in agent.holdings if not one.starting] == [0, 1, 1, 1, 1]
        for one in life.mounted:
            one.ended()
        assert not any(one.opened for one in agent.holdings)

    with_kernel(test)


def test_a_star_in_the_name_of_a_mount_is_a_letter(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        agent = endowed(kernel, "a", order(Mount(tmp_path, "/da*a", rw=False)))
        agent.holdings.find([Need("file", "read", "/da*a/x")])
        with pytest.raises(EPERM):
            agent.holdings.find([Need("file", "read", "/data/x")])
        with pytest.raises(EINVAL, match="control") as caught:
            endowed(kernel, "b", order(Mount(tmp_path, "/da\nta", rw=False)))
        assert "another name" in caught.value.hint

    with_kernel(test)


def test_a_life_after_a_mount_was_revoked_is_without_it(tmp_path: Path) -> None:
    killed: list[Any] = []

    async def end(agent: Agent, ended: Ended) -> None:
        killed.append((agent.name, ended.exit_class))

    async def test(kernel: Kernel) -> None:
        wanted = order(Mount(tmp_path, "/data", rw=True), Mount(tmp_path, "/more", rw=False))
        agent = endowed(kernel, "a", wanted)
        endowment.begin(agent, wanted, end)
        data = next(one for one in agent.holdings if str(one.capability).startswith("file:/data"))
        await kernel.authority.revoke([data], "local:0")
        assert killed == [("a", ExitClass.SIGNAL)]
        assert [mount.at for mount in endowment.begin(agent, wanted, end).order.mounts] == ["/more"]
        await kernel.authority.grant(agent.id, parse("file:/data/**:read"), "local:0")
        mounts = endowment.begin(agent, wanted, end).order.mounts
        assert [(mount.at, mount.rw) for mount in mounts] == [("/data", False), ("/more", False)]
        work = next(one for one in agent.holdings if str(one.capability).startswith("file:/work"))
        await kernel.authority.revoke([work], "local:0", future_only=True)
        assert len(killed) == 1, "it was asked not to"
        life = endowment.begin(agent, wanted, end)
        assert (life.order.project, life.order.mode) == (None, "tmpfs")

    with_kernel(test)


def test_a_family_of_the_greatest_depth_sees_the_same_and_loses_it_together(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        wanted = order(Mount(tmp_path, "/data", rw=True))
        family = [endowed(kernel, "g0", wanted)]
        for number in range(1, MOST_GENERATIONS + 1):
            family.append(endowed(kernel, f"g{number}", wanted, parent=family[-1]))
        for one in family:
            assert endowment.begin(one, wanted, never).order == wanted
            for handle in one.holdings:
                handle.opened.clear()
        data = next(one for one in family[0].holdings if str(one.capability).startswith("file:/data"))
        gone = await kernel.authority.revoke([data], "local:0")
        assert {one.holder for one in gone.handles} == {one.id for one in family}
        with pytest.raises(EACCES):
            family[-1].holdings.find([Need("file", "read", "/data/x")])

    with_kernel(test)


def test_a_child_gets_no_mount_that_its_parent_no_longer_holds(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        wanted = order(Mount(tmp_path, "/data", rw=True))
        parent = endowed(kernel, "parent", wanted)
        data = next(one for one in parent.holdings if str(one.capability).startswith("file:/data"))
        await kernel.authority.revoke([data], "local:0")
        child = endowed(kernel, "child", wanted, parent=parent)
        assert texts(child) == ["file:/work/**:delete,read,write{depth:7}"]
        assert endowment.begin(child, wanted, never).order.mounts == ()
        with pytest.raises(EPERM) as caught:
            endowed(kernel, "greedy", wanted, "tool:pay:call", parent=parent)
        assert caught.value.detail["row"] == "kind"

    with_kernel(test)


def test_what_a_child_gets_is_proved_action_by_action_from_one_handle_each() -> None:
    async def test(kernel: Kernel) -> None:
        parent = endowed(kernel, "parent", order(), "mem:/mem/semantic/**:read", "mem:/mem/semantic/**:write{count:2}")
        child = endowed(kernel, "child", order(), "mem:/mem/semantic/a/**:read,write", parent=parent)
        mem = [one for one in child.holdings if one.capability.kind == "mem" and not one.starting]
        assert [str(one.capability) for one in mem] == [
            "mem:/mem/semantic/a/**:read{depth:2}",
            "mem:/mem/semantic/a/**:write{count:2,depth:2}",
        ]
        assert [one.parent.holder if one.parent else "" for one in mem] == [parent.id, parent.id]
        for wider in ("mem:/mem/semantic/**:delete", "mem:/mem/**:read", "mem:/mem/semantic/**:write{count:3}"):
            with pytest.raises(EPERM) as caught:
                endowed(kernel, f"w{len(wider)}", order(), wider, parent=parent)
            assert caught.value.code == "cap.missing", wider
        kernel.authority.end(parent.id)
        assert all(one.revoked for one in mem)

    with_kernel(test)


def test_a_name_that_somebody_had_before_brings_nothing_along() -> None:
    async def test(kernel: Kernel) -> None:
        before = endowed(kernel, "a", order(), "tool:pay:call")
        kernel.table.forget(before)  # gone without a word, as when a program ends that embeds a kernel
        after = endowed(kernel, "a", order())
        assert texts(after) == ["file:/work/**:delete,read,write{depth:8}"]
        assert after.holdings is kernel.authority.holdings(after.id)
        assert all(one.revoked for one in before.holdings.every())

    with_kernel(test)


def test_what_it_may_spend_is_said_with_it() -> None:
    async def test(kernel: Kernel) -> None:
        agent = kernel.table.admit("a", "native")
        endowment.endow(kernel.authority, agent, [], order(), {"cost": 500_000})
        assert kernel.budgets.account(agent.id).limits == {"cost": 500_000}

    with_kernel(test)
