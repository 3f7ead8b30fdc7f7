"""Children: how many, how deep, with what of their parent's, and that they end with it and not before."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EDQUOT, EINVAL, EPERM, EPOLICY, ESRCH
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Effect, Exec, Grant, Spawn, Write
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.explaining import child
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.spawning import child_order
from agent_os.kernel.supervisor.admission import MOST_GENERATIONS, Ceiling, declared, read, require_place
from agent_os.kernel.table import Ended, Table
from agent_os.kernel.tooling import Tool
from agent_os.manifest.agency import Agency
from agent_os.manifest.model import AgentManifest
from faults.inprocess import acks, kernel_with_processes, started
from faults.processes import Processes, alive
from kernel.authority.ruled import ruled
from kernel.serving import serving
from peer import agent, greeted, until, with_kernel

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")

ENDED = Ended(ExitClass.REQUESTED, -1, "the test is done with it")
CRASHED = Ended(ExitClass.SIGNAL, -9, "it crashed")
MANIFEST = {"program": {"entry": "a.py"}}
MOST_CHILDREN = Agency.session().max_children or 0


@pytest.fixture
def table() -> Table:
    return Table(SqliteStore(None))


def test_a_family_is_only_so_wide_and_an_ended_child_makes_room(table: Table) -> None:
    parent = table.admit("parent", "native")
    children = [table.admit(f"c{number}", "native", parent=parent.id) for number in range(MOST_CHILDREN - 1)]
    require_place(table, parent.id, MOST_CHILDREN)
    children.append(table.admit("last", "native", parent=parent.id))
    with pytest.raises(EDQUOT, match="16 live children") as refused:
        require_place(table, parent.id, MOST_CHILDREN)
    assert refused.value.code == "children"
    children[0].exit = children[1].exit = ENDED
    children[1].lasting = True  # it lives again
    require_place(table, parent.id, MOST_CHILDREN)
    table.admit("more", "native", parent=parent.id)
    with pytest.raises(EDQUOT):
        require_place(table, parent.id, MOST_CHILDREN)
    require_place(table, parent.id, None)


def test_a_family_is_only_so_deep(table: Table) -> None:
    above = table.admit("g0", "native")
    for number in range(MOST_GENERATIONS):
        require_place(table, above.id, MOST_CHILDREN)
        above = table.admit(f"g{number + 1}", "native", parent=above.id)
    with pytest.raises(EDQUOT, match="generations") as refused:
        require_place(table, above.id, MOST_CHILDREN)
    assert refused.value.code == "limit"


def test_who_has_ended_gets_no_child(table: Table) -> None:
    parent = table.admit("parent", "native")
    parent.exit = CRASHED
    with pytest.raises(ESRCH):
        require_place(table, parent.id, MOST_CHILDREN)
    parent.lasting = True
    require_place(table, parent.id, MOST_CHILDREN)
    with pytest.raises(ESRCH):
        require_place(table, "default/nobody", MOST_CHILDREN)


def test_a_child_has_its_parents_time_and_nothing_of_what_happens_with_its_work(table: Table) -> None:
    parent = table.admit("parent", "native")
    parent.order = {"file": "/p/a.py", "cwd": "/p", "timeout": "30s", "limit": ["memory_mb=64"], "after": "commit"}
    order, _ = child_order(parent, read(MANIFEST, "default", "child"), Ceiling(whole=True))
    assert (order["timeout"], order["limit"]) == ("30s", ["memory_mb=64"])
    assert "after" not in order


def test_a_spawn_for_which_there_is_no_room_is_refused_and_that_is_recorded() -> None:
    async def test(kernel: Kernel) -> None:
        parent, peer = await greeted(kernel, "parent", caps=("agent:*:spawn",))
        parent.order = {"file": "/p/a.py", "cwd": "/p"}
        for number in range(MOST_CHILDREN):
            kernel.table.admit(f"c{number}", "native", parent=parent.id)
        with pytest.raises(EDQUOT, match="live children"):
            await peer.ask(Spawn(manifest=MANIFEST))
        (refusal,) = [entry for entry, _ in kernel.journal.scan(parent.id) if entry.kind == Kind.DECISION]
        assert refusal.code == EDQUOT.number

    with_kernel(test)


def test_children_end_with_their_parent_and_that_is_recorded() -> None:
    async def test(kernel: Kernel) -> None:
        parent, _ = await agent(kernel, "parent")
        child, _ = await agent(kernel, "child", parent=parent.id)
        grandchild, _ = await agent(kernel, "grandchild", parent=child.id)
        stranger, _ = await agent(kernel, "stranger")
        await kernel.end(parent, ENDED)
        assert child.exit
        assert grandchild.exit, "all of them are gone when the parent is reported to be"
        assert stranger.exit is None
        ends = [decode_any(body)["reason"] for e, body in kernel.journal.scan() if e.kind == Kind.EXIT and body]
        assert ends[1:] == ["its parent parent has ended", "its parent child has ended"]

    with_kernel(test)


def test_a_crash_that_a_parent_survives_leaves_its_children_alone() -> None:
    async def test(kernel: Kernel) -> None:
        async def begin(*_: Any, **__: Any) -> None:
            pass

        kernel.recovery.begin = begin  # type: ignore[method-assign]
        for lasting in (True, False):
            parent, _ = await agent(kernel, f"p-{lasting}".lower())
            child, _ = await agent(kernel, f"c-{lasting}".lower(), parent=parent.id)
            parent.order = {"durable": lasting}
            await kernel.left(parent, CRASHED)
            assert (child.exit is None) == lasting

    with_kernel(test)


@pytest.mark.integration
def test_real_children_outlive_a_restart_of_their_parent_and_no_more(tmp_path: Path) -> None:
    async def test(kernel: Kernel, processes: Processes) -> None:
        parent = await started(kernel, "counting", tmp_path)
        env = {"ACKS": str(tmp_path / "acks"), "SECONDS": "100"}
        await kernel.guests.start({"program": "sleeper", "env": env}, name="child", parent=parent.id)
        await until(lambda: {"count", "asleep"} <= acks(tmp_path).keys())
        first, child = processes.started
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: len(processes.started) == 3)
        await until(lambda: kernel.table.find("counting").state == "running")
        assert alive(child.pid), "the parent goes on, and so does its child"
        await kernel.end(kernel.table.find("counting"), ENDED)
        assert not alive(child.pid)
        await asyncio.sleep(0.3)
        assert len(processes.started) == 3, "nor is it started again"

    kernel_with_processes(test, tmp_path)


# With manifests, and real processes.

FAMILY = """
import asyncio
from agent_os import agent

@agent
async def boss(ctx, tries: list, together: bool = False):
    async def one(number, manifest):
        try:
            print(number, "spawned", (await ctx.spawn(manifest)).agent, flush=True)
        except Exception as refused:
            print(number, "refused", refused.name, refused.code, refused.detail.get("step"), flush=True)
    if together:
        await asyncio.gather(*(one(number, manifest) for number, manifest in enumerate(tries)))
    else:
        for number, manifest in enumerate(tries):
            await one(number, manifest)
    print("done", flush=True)
    await ctx.sleep(600)

@agent
async def linger(ctx):
    print("here", flush=True)
    await ctx.sleep(600)
"""
CHILD = {"role": "worker", "program": {"entry": "family.py:linger"}}


class Family:
    """A kernel, a project, and a boss of a manifest that spawns whatever it is told to."""

    def __init__(self, top: Path) -> None:
        self.home, self.project = top / "home", top / "project"
        self.project.mkdir()
        (self.project / "family.py").write_text(FAMILY)
        os.chmod(top, 0o755)
        self.kernel: Kernel

    def __call__(self, body: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            async with serving(self.home) as (self.kernel, _):
                await body()

        asyncio.run(run())

    async def boss(
        self, tries: list[Any], *, manifest: dict[str, Any], name: str = "boss", together: bool = False, caps: str = ""
    ) -> list[list[str]]:
        """What became of each try."""
        read = AgentManifest.from_dict({"name": name.rpartition("/")[2], **manifest, "program": {"entry": "family.py"}})
        known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        order = {"cwd": str(self.project), "environment": known, "file": str(self.project / "family.py")}
        order |= {"function": "boss", "python": sys.executable, **declared(read)}
        granted = ["agent:*:spawn{depth:8}", *caps.split()]
        await self.kernel.guests.start(order, name=name, caps=granted, input={"tries": tries, "together": together})
        log = self.home / "logs" / f"{name.replace('/', '~')}.log"
        await until(lambda: log.exists() and "done\n" in log.read_text())
        return sorted(line.split()[1:] for line in log.read_text().splitlines() if line != "done")

    def told(self, event: str) -> list[dict[str, Any]]:
        found = [decode_any(kept) for entry, kept in self.kernel.journal.scan() if entry.kind == Kind.CHANGE and kept]
        return [one for one in found if one.get("event") == event]


@pytest.fixture
def family(tmp_path: Path) -> Family:
    return Family(tmp_path)


def service(most: int = 4, **ceiling: Any) -> dict[str, Any]:
    agency = {"max_children": most, "allowed_roles": ["worker"], "capability_ceiling": ceiling}
    return {"role": "service", "agency": agency}


@pytest.mark.integration
def test_ten_children_spawned_at_once_against_five_places_are_five(family: Family) -> None:
    async def test() -> None:
        tries = [{"name": f"c{number}", **CHILD} for number in range(10)]
        said = await family.boss(tries, manifest=service(5), together=True)
        assert [one[0] for one in said].count("spawned") == 5
        assert said.count(["refused", "EDQUOT", "children", "5"]) == 5
        rows = family.kernel.table.children("default/boss")
        assert {(row.role, row.parent) for row in rows} == {("worker", "default/boss")}
        assert len(rows) == 5
        assert [one["child"] for one in family.told("agency.child")] == ["added"] * 5
        await family.kernel.end(rows[0], ENDED)
        (gone,) = [decode_any(kept) for e, kept in family.kernel.journal.scan(rows[0].id) if e.kind == Kind.EXIT]
        assert (gone["agency"]["child"], gone["agency"]["count"]) == ("removed", 4)

    family(test)


@pytest.mark.integration
def test_one_id_is_one_agent_also_for_two_who_come_at_the_same_moment(family: Family) -> None:
    """N-11."""

    async def test() -> None:
        said = await family.boss([{"name": "twin", **CHILD}] * 3, manifest=service(), together=True)
        assert said == [["refused", "EEXIST", "id", "5"]] * 2 + [["spawned", "twin"]]
        assert len([row for row in family.kernel.table if row.id == "default/twin"]) == 1

    family(test)


@pytest.mark.integration
def test_nothing_that_is_said_makes_somebody_elses_child(family: Family) -> None:
    """N-04, S-42: whoever calls is the parent, and what names another one is refused or means something else."""

    async def test() -> None:
        await family.boss([], manifest=service(), name="victim")
        tries = [
            {"name": "a", **CHILD, "parent": "victim"},
            {"name": "b", **CHILD, "agent": {"parent": "victim"}},
            {"name": "c", **CHILD, "supervision": {"parent": "victim"}},
            {"name": "victim", **CHILD},
            {"name": "d", **CHILD, "labels": {"parent": "default/victim"}},
            {"name": "e", **CHILD, "namespace": "system"},
        ]
        said = await family.boss(tries, manifest=service())
        assert [one for one in said if one[0] == "spawned"] == [["spawned", "d"]]
        assert family.kernel.table.find("d").parent == "default/boss"
        assert not family.kernel.table.children("default/victim")

    family(test)


@pytest.mark.integration
def test_what_a_child_gets_is_what_the_ceiling_allows_and_each_adaptation_is_on_the_record(family: Family) -> None:
    """S-41, with a real process."""

    async def test() -> None:
        tries = [
            {"name": "a", **CHILD, "tools": ["pay"]},
            {"name": "b", **CHILD, "tools": ["*"], "resources": {"max_memory_mb": 64}},
            {"name": "c", "role": "service", "program": CHILD["program"]},
            {"name": "d", "program": {"model": "acme/large"}},
            {"name": "e", **CHILD, "toolz": ["*"]},
            {"name": "f", **CHILD, "health": {"on_failure": ["boss"]}},
        ]
        said = await family.boss(tries, manifest=service(tools=["search"]), caps="tool:search:call tool:pay:call")
        assert said == [
            *[["refused", "EACCES", "ceiling", "7"]] * 2,
            ["refused", "EACCES", "role", "4"],
            *[["refused", "EINVAL", "manifest", "2"]] * 2,
            ["spawned", "b"],
        ]
        child = family.kernel.table.find("b")
        held = [str(one.capability) for one in child.holdings if one.origin == "spawn"]
        assert held == ["tool:search:call{depth:2}"]
        (clamped,) = family.told("spawn.clamped")
        assert (clamped["key"], clamped["got"]) == ("tools", ["tool:search:call"])
        limits = [one for one in child.order["limit"] if one.startswith("memory")]
        assert limits == ["memory_mb=64"]
        refusals = [entry for entry, _ in family.kernel.journal.scan("default/boss") if entry.kind == Kind.DECISION]
        assert len(refusals) == 5, "every refusal is on the record"

    family(test)


@pytest.mark.integration
def test_a_restarted_child_has_what_its_parent_still_has(family: Family) -> None:
    """S-48, and S-40 on the way: what is taken from the parent is gone below it, over restarts."""

    async def test() -> None:
        kernel = family.kernel
        child = {"name": "c", **CHILD, "tools": ["search", "pay"]}
        agency = {"max_children": 2, "allowed_roles": ["worker"], "capability_ceiling": {"tools": ["*"]}}
        manifest = {"role": "service", "agency": agency}
        said = await family.boss([child], manifest=manifest, caps="tool:search:call tool:pay:call")
        assert said == [["spawned", "c"]]
        before = kernel.table.find("c")
        log = family.home / "logs/c.log"
        await until(lambda: log.exists() and "here\n" in log.read_text())
        pay = [one for one in kernel.table.find("boss").holdings if str(one.capability) == "tool:pay:call"]
        await kernel.authority.revoke(pay, "local:0")
        assert before.running
        before.running.host_signal(signal.SIGKILL)
        await until(
            lambda: any(row.id == before.id and row.incarnation > 1 and row.state == "running" for row in kernel.table)
        )
        after = kernel.table.find("c")
        assert (after.incarnation, after.parent, after.role) == (2, "default/boss", "worker")
        assert [str(one.capability) for one in after.holdings if one.origin == "spawn"] == ["tool:search:call{depth:2}"]

    family(test)


@pytest.mark.integration
def test_a_family_of_another_namespace_has_files_of_its_own(family: Family) -> None:
    async def test() -> None:
        kernel = family.kernel
        await family.boss([], manifest=service(), name="linger")
        manifest = {**service(), "namespace": "lab"}
        said = await family.boss([{"name": "linger", **CHILD}, CHILD], manifest=manifest, name="lab/boss")
        (named, generated) = sorted(one[1] for one in said)[::-1]
        assert (named, generated[:11]) == ("lab/linger", "lab/family-")
        assert kernel.table.find("lab/linger").parent == "lab/boss"
        assert kernel.table.find("linger").parent is None
        assert {"linger.log", "lab~boss.log", "lab~linger.log"} <= set(os.listdir(family.home / "logs"))
        assert {"lab~boss", "lab~linger", "linger"} <= set(os.listdir(family.home / "work"))
        spawned = [e.agent for e, kept in kernel.journal.scan() if e.kind == Kind.SPAWN]
        assert {"default/linger", "lab/linger", "lab/boss"} <= set(spawned)
        assert not any("~" in agent for agent in spawned)

    family(test)


DENIED = """
from agent_os import agent

@agent
async def boss(ctx):
    await tries(ctx, "boss")
    child = {"name": "c", "role": "worker", "program": {"entry": "denied.py:child"}, "tools": ["*"]}
    print("child", (await ctx.wait(await ctx.spawn(child))).result, flush=True)

@agent
async def child(ctx):
    return await tries(ctx, "c")

async def tries(ctx, name):
    for tool in ("search", "pay"):
        try:
            print(name, tool, await ctx.call(tool), flush=True)
        except Exception as refused:
            print(name, tool, refused.name, refused.code, refused.detail.get("rule"), flush=True)
    return "went on"
"""


@pytest.mark.integration
def test_what_a_manifest_denies_is_denied_to_its_agent_and_to_all_below(family: Family) -> None:
    """S-25 live: deny beats allow, whatever is held; a child is bound by it as well, and nobody dies of it."""

    async def test() -> None:
        kernel = family.kernel

        async def run(key: str, params: Any) -> dict[str, bool]:
            return {"ok": True}

        for name in ("search", "pay"):
            kernel.tools.register(Tool(name, run, Effect.PURE))
        (family.project / "denied.py").write_text(DENIED)
        agency = {"max_children": 2, "allowed_roles": ["worker"], "capability_ceiling": {"tools": ["*"]}}
        tree = {"name": "boss", "role": "service", "tools": ["*"], "tools_deny": ["p*"], "agency": agency}
        manifest = AgentManifest.from_dict({**tree, "program": {"entry": "denied.py:boss"}})
        known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        order = {"cwd": str(family.project), "environment": known, "file": str(family.project / "denied.py")}
        order |= {"function": "boss", "python": sys.executable, **declared(manifest)}
        agent = await kernel.guests.start(order, name="boss", caps=["agent:*:spawn", "tool:*:call"])
        await kernel.wait_for(agent)
        said = [(family.home / "logs" / f"{name}.log").read_text().splitlines() for name in ("boss", "c")]
        refused = "EPOLICY policy.forbid boss tools_deny"
        assert said[0] == ["boss search {'ok': True}", f"boss pay {refused}", "child went on"]
        assert said[1] == ["c search {'ok': True}", f"c pay {refused}"]

    family(test)


@pytest.mark.integration
def test_whether_a_child_may_be_is_said_without_making_it(family: Family) -> None:
    """`agentctl can` with a manifest: all eleven steps, and nothing happens."""

    async def test() -> None:
        kernel = family.kernel
        tries = [{"name": "a", **CHILD}]
        await family.boss(tries, manifest=service(2, tools=["search"]), caps="tool:search:call")
        boss = kernel.table.find("boss")

        def asked(**manifest: Any) -> tuple[str, list[str]]:
            told = child(kernel, boss, {"name": "b", **CHILD, **manifest})
            refused = [row["name"] for row in told["steps"] if row["answer"] in ("refuse", "ask")]
            assert len(told["steps"]) == 11
            return told["verdict"], [str(told.get("detail_code", "")), *refused]

        before = kernel.journal.size
        assert asked() == ("allow", [""])
        assert asked(tools=["search"], filesystem_access=["out"]) == ("refuse", ["ceiling", "ceiling"])
        assert asked(tools=["search"]) == ("allow", [""])
        assert asked(role="service") == ("refuse", ["role", "role"])
        assert asked(name="a") == ("refuse", ["id", "place"])
        assert asked(max_restart=3) == ("refuse", ["manifest", "manifest"])
        assert asked(program={"model": "acme/large"}) == ("refuse", ["ceiling", "ceiling"])
        assert asked(sandbox={"workspace": "bind"}) == ("refuse", ["workspace.refused", "sandbox"])
        ruled(kernel, '[[rule]]\nid = "no-b"\neffect = "forbid"\nwhat = ["agent:b:spawn"]\nagents = ["role:service"]\n')
        assert asked() == ("refuse", ["policy.forbid", "policy"])
        assert asked(name="c") == ("allow", [""])
        ruled(kernel, '[[rule]]\nid = "ask-b"\neffect = "ask"\nwhat = ["agent:b:spawn"]\nagents = ["boss"]\n')
        assert asked() == ("ask", ["approval.asks", "approval"])
        boss.isolation = "S1"
        assert asked(name="c") == ("refuse", ["level", "sandbox"])
        assert kernel.journal.size == before
        assert [row.name for row in kernel.table.children(boss.id)] == ["a"]

    family(test)


# Roles, as rules see them.


def test_a_rule_about_a_role_binds_who_has_it_and_all_below_it() -> None:
    async def test(kernel: Kernel) -> None:
        rule = '[[rule]]\nid = "no"\neffect = "forbid"\nviolation = "refuse"\nwhat = ["mem:/mem/working/x:write"]\n'
        ruled(kernel, rule + 'agents = ["role:service"]\n')

        async def may(name: str, *roles: str, parent: str | None = None) -> bool:
            row, peer = await greeted(kernel, name, parent=parent)
            row.order["roles"] = list(roles)
            try:
                await peer.ask(Write(path="/mem/working/x", data="1"))
            except EPOLICY as error:
                return error.detail["rule"] != "no"
            return True

        assert await may("plain")
        assert await may("w", "worker")
        assert not await may("s", "service")
        assert not await may("a", "custom(analytics)", "service"), "never more than its base"
        assert await may("b", "custom(analytics)", "worker")
        assert not await may("below", "worker", parent="default/s"), "nor does anybody below it do it for a service"
        assert await may("beside", "worker", parent="default/w")

    with_kernel(test)


def test_what_an_ended_parent_was_still_binds(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db", reserve=0)
    first = Table(store)
    boss = first.admit("boss", "native")
    boss.order["roles"] = ["custom(x)", "service"]
    child = first.admit("x", "native", parent=boss.id)
    child.order["roles"] = ["worker"]
    line = (("x", "worker"), ("boss", "custom(x)"), ("boss", "service"))
    assert child.parties == first.parties(child.id) == line
    store.append((), [put for one in (boss, child) for put in first.puts(one)], (), sync=True)
    assert Table(store).parties(child.id) == line, "in another kernel, where neither has a row"
    boss.order.clear()
    store.append((), first.puts(boss), (), sync=True)
    assert Table(store).parties(boss.id) == (("boss", ""),), "who comes after it with its name has its own"
    store.close()


@pytest.mark.integration
def test_a_command_that_an_agent_spawns_does_not_choose_what_of_the_host_is_shown(family: Family) -> None:
    """An operator's command brings its program's own folder along. Whoever is spawned sees what its parent sees."""

    async def test() -> None:
        tool = family.home.parent / "elsewhere/bin/tool"
        tool.parent.mkdir(parents=True)
        tool.write_text("#!/bin/sh\necho CANARY\n")
        tool.chmod(0o755)
        for folder in (tool.parent, tool.parent.parent):
            folder.chmod(0o755)
        known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        control = {"cwd": str(family.project), "environment": known, "argv": [str(tool)]}
        await family.kernel.wait_for(await family.kernel.guests.start(control, name="control"))
        tries = [
            {"name": "own", "program": {"argv": ["/bin/sh", "-c", "echo spawned; pwd"]}},
            {"name": "other", "program": {"argv": [str(tool)]}},
        ]
        said = await family.boss(tries, manifest=service())
        assert said == [["spawned", "other"], ["spawned", "own"]]
        logs = family.home / "logs"
        await until(lambda: all("has ended" in ended(family.kernel, name) for name in ("own", "other")))
        assert "CANARY" in (logs / "control.log").read_text(), "the control: a person may"
        assert (logs / "own.log").read_text().splitlines()[0] == "spawned"
        assert "CANARY" not in (logs / "other.log").read_text()
        assert "No such file" in (logs / "other.log").read_text()

    family(test)


def ended(kernel: Kernel, name: str) -> str:
    try:
        kernel.table.find_alive(name)
    except ESRCH as error:
        return error.reason
    return ""


def test_what_a_live_agent_holds_gets_narrower_at_once_and_wider_only_by_a_person() -> None:
    """S-40."""

    async def test(kernel: Kernel) -> None:
        async def run(key: str, params: Any) -> str:
            return "ran"

        for name in ("search", "pay"):
            kernel.tools.register(Tool(name, run, Effect.PURE))
        row, peer = await greeted(kernel, "a", caps=("tool:*:call",))
        below, child = await greeted(kernel, "b", parent=row.id)
        row.holdings.delegate("tool:pay:call", below.holdings)
        assert [await one.ask(Exec(tool="pay")) for one in (peer, child)] == ["ran", "ran"]
        await kernel.authority.revoke(row.holdings.outside([parse("tool:search:call")]), "local:0")
        for one in (peer, child):
            with pytest.raises(EACCES) as refused:
                await one.ask(Exec(tool="pay"))
            assert refused.value.code == "cap.revoked"
        with pytest.raises(EPERM) as forbidden:
            await peer.ask(Grant(agent="a", capability="tool:pay:call"))
        assert forbidden.value.code == "operator"
        await kernel.authority.grant(row.id, parse("tool:pay:call"), "local:0")
        assert await peer.ask(Exec(tool="pay")) == "ran"
        with pytest.raises(EACCES):
            await child.ask(Exec(tool="pay"))

    with_kernel(test)


@pytest.mark.parametrize(
    "more",
    [
        {f"k{number}": 1 for number in range(40_000)},
        {"tools": ["t"] * 40_000},
        {"filesystem_access": [[["/a"] * 40_000]]},
        {"mounts": [{"path": "/m", "source": "/x"}] * 10_000},
    ],
)
def test_a_manifest_of_any_size_holds_nobody_up(more: dict[str, Any]) -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel, caps=("agent:*:spawn",))
        row.order = {"file": "/p/a.py", "cwd": "/p"}
        began = asyncio.get_running_loop().time()
        with pytest.raises(EINVAL, match="at most 300"):
            await peer.ask(Spawn(manifest={**MANIFEST, **more}))
        with pytest.raises(EINVAL, match="at most 300"):
            await peer.ask(Spawn(manifest=MANIFEST, caps=["tool:x:call"] * 30_000))
        assert asyncio.get_running_loop().time() - began < 5

    with_kernel(test)


@pytest.mark.parametrize(
    "more",
    [
        {"lifecycle": {"activation": "on_schedule", "schedule": f"{'0-59/1,' * 120_000}0 * * * *"}},
        {"health": {"ready": f"exec:{'a ' * 400_000}"}},
        {"aB" * 400_000: 1},
    ],
)
def test_a_long_text_in_a_manifest_holds_nobody_up_either(more: dict[str, Any]) -> None:
    """Whoever may not spawn at all is told so only after its manifest was read."""

    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        row.order = {"file": "/p/a.py", "cwd": "/p"}
        with pytest.raises(EINVAL, match="at most 32768 characters"):
            await peer.ask(Spawn(manifest={**MANIFEST, **more}))

    with_kernel(test)
