"""Children that are being started while the world changes: no more than there is room for, and under no old rule."""

import asyncio
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Spawn
from agent_os.kernel import programs
from agent_os.kernel.authority.handles import Handle
from agent_os.kernel.records import Records
from agent_os.kernel.signals import KERNEL
from agent_os.kernel.table import Agent
from agent_os.kernel.workspace import kept
from agent_os.manifest.agency import Agency
from kernel.serving import syscall, until
from kernel.test_governing_runs import HEAD, NO_ENV, Run

pytestmark = pytest.mark.integration
GIFT = "tool:pay:call"
MOST_CHILDREN = Agency.session().max_children or 0
NO_CHILDREN = f'{HEAD}[[rule]]\nid = "no-children"\neffect = "forbid"\nwhat = ["agent:*:spawn"]\n'
FAMILY = """
import os
from agent_os import agent

@agent
async def parent(ctx):
    await ctx.sleep(3600)

@agent
async def child(ctx):
    print("began, and saw", open(".env").read() if os.access(".env", os.R_OK) else "nothing", flush=True)
    await ctx.sleep(3600)
"""


class Family(Run):
    def __init__(self, top: Path) -> None:
        super().__init__(top)
        (self.project / "family.py").write_text(FAMILY)
        self.parent: Agent

    def __call__(self, body: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            file = str(self.project / "family.py")
            order = self.order(file=file, function="parent", python=sys.executable, caps=["agent:*:spawn", GIFT])
            self.parent = await self.kernel.guests.start(order, name="parent")
            await body()

        super().__call__(run)

    async def spawn(self, name: str | None = "child", caps: Sequence[str] = ()) -> Any:
        """The answer, or the code of the refusal. A child without a name is given one."""
        manifest = {"program": {"entry": "family.py:child"}} | ({"name": name} if name else {})
        try:
            return await syscall(self.kernel, self.parent, Spawn(manifest=manifest, caps=list(caps)))
        except AgentOSError as refused:
            return refused.code

    @property
    def said(self) -> str:
        log = self.home / "logs" / "child.log"
        return log.read_text() if log.exists() else ""


@pytest.fixture
def family(tmp_path: Path) -> Family:
    return Family(tmp_path)


class Held:
    """Whoever starts a child is held at one point of that until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
        self.there, self.go_on = threading.Event(), threading.Event()
        digest, before = programs.digest, Records.before

        def held_before_its_row(*args: Any) -> str:
            self.there.set()
            self.go_on.wait()
            return digest(*args)

        async def held_before_its_process(records: Records, agent: str, event: str, /, **facts: object) -> None:
            self.there.set()
            await asyncio.to_thread(self.go_on.wait)
            await before(records, agent, event, **facts)

        if where == "before its row":
            monkeypatch.setattr(programs, "digest", held_before_its_row)
        else:
            monkeypatch.setattr(Records, "before", held_before_its_process)


def test_of_spawns_that_came_together_only_as_many_start_as_there_is_room_for(family: Family) -> None:
    async def test() -> None:
        for number in range(MOST_CHILDREN - 2):
            family.kernel.table.admit(f"c{number}", "context", parent=family.parent.id)
        answers = await asyncio.gather(*(family.spawn(f"new{number}") for number in range(10)))
        assert [answer for answer in answers if isinstance(answer, str)] == ["children"] * 8
        alive = [one for one in family.kernel.table.children(family.parent.id) if not one.exit]
        assert len(alive) == MOST_CHILDREN

    family(test)


def test_nobody_is_called_like_whoever_speaks_where_no_agent_does(family: Family) -> None:
    async def test() -> None:
        assert [await family.spawn(name) for name in ("kernel", "host", "operator")] == ["agent.name"] * 3
        order = family.order(file=str(family.project / "family.py"), function="child", python=sys.executable)
        with pytest.raises(EINVAL, match="ours"):
            await family.kernel.guests.start(order, name="default/kernel")

    family(test)


@pytest.mark.parametrize("where", ["before its row", "before its process"])
@pytest.mark.parametrize("what", ["nothing", "a rule", "a revocation"])
def test_a_child_whose_start_is_overtaken_does_not_start(
    family: Family, monkeypatch: pytest.MonkeyPatch, where: str, what: str
) -> None:
    async def test() -> None:
        held, kernel = Held(monkeypatch, where), family.kernel
        spawning = asyncio.create_task(family.spawn())
        await until(held.there.is_set)
        version, change = kernel.authority.policies.version, None
        if what == "a rule":
            change = asyncio.create_task(kernel.governing.apply(NO_CHILDREN.encode(), "local:0"))
            await until(lambda: version != kernel.authority.policies.version)
        elif what == "a revocation":
            [handle] = [one for one in family.parent.holdings if one.capability.kind == "agent"]
            change = asyncio.create_task(kernel.authority.revoke([handle], "local:0"))
            await until(lambda: handle.revoked)
        held.go_on.set()
        answer = await spawning
        if change:
            await change
            assert answer in ("policy.forbid", "cap.revoked"), answer
            assert kernel.table.children(family.parent.id) == []
            assert not [body for _, body in family.entries("child", Kind.STATE) if body.get("event") == "spawned"]
        else:
            assert answer["agent"] == "child"
            await until(lambda: "began, and saw CANARY" in family.said)

    family(test)


def _gifts(agent: Agent) -> list[Handle]:
    return [one for one in agent.holdings if one.capability.kind == "tool"]


@pytest.mark.parametrize("revoked", [False, True])
def test_a_child_does_not_start_with_what_its_parent_has_no_more(
    family: Family, monkeypatch: pytest.MonkeyPatch, revoked: bool
) -> None:
    async def test() -> None:
        held, kernel = Held(monkeypatch, "before its row"), family.kernel
        spawning = asyncio.create_task(family.spawn(caps=[GIFT]))
        await until(held.there.is_set)
        if revoked:
            await kernel.authority.revoke(_gifts(family.parent), "local:0")
        held.go_on.set()
        answer = await spawning
        if revoked:
            assert isinstance(answer, str), answer
            assert kernel.table.children(family.parent.id) == []
        else:
            (child,) = kernel.table.children(family.parent.id)
            assert len(_gifts(child)) == 1

    family(test)


def test_a_child_that_is_being_started_when_a_rule_comes_does_not_see_what_that_forbids(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        held, policies = Held(monkeypatch, "before its process"), family.kernel.authority.policies
        spawning, version = asyncio.create_task(family.spawn()), policies.version
        await until(held.there.is_set)
        change = asyncio.create_task(family.kernel.governing.apply((HEAD + NO_ENV).encode(), "local:0"))
        await until(lambda: version != policies.version)
        held.go_on.set()
        assert (await spawning)["agent"] == "child"
        await change
        await until(lambda: "began" in family.said)
        assert "CANARY" not in family.said
        masks = [body["masks"] for _, body in family.entries("child", Kind.SPAWN)]
        assert [f"{family.project}/.env" in one for one in masks] == [False, True]

    family(test)


def test_a_name_that_is_given_is_never_that_of_an_ended_child(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent would wait for the one and be told of the other, and it would find what the other kept."""

    async def test() -> None:
        tails = iter(("aaaa", "aaaa", "bbbb"))
        drawn = SimpleNamespace(token_hex=lambda size: next(tails) if size == 2 else secrets.token_hex(size))
        monkeypatch.setattr(kept, "secrets", drawn)
        first = await family.spawn(None)
        child = family.kernel.table.find(first["agent"])
        await family.kernel.signals.send(KERNEL, child, AgentSignal.SIGKILL)
        await until(lambda: child.exit)
        second = await family.spawn(None)
        assert (first["agent"][-4:], second["agent"][-4:]) == ("aaaa", "bbbb")

    family(test)
