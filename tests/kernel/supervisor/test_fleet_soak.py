"""Many real agents and random kills: every restart within policy, nobody lost, and in the end all as declared.

30 agents for 10 s; with AGENT_OS_SOAK 200 for 60 s. Kernels killed, and budgets: `faults/test_crowd_killed.py`.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import EBUSY
from agent_os.abi.syscalls import Restart, Stop
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.supervisor.terms import State
from kernel.serving import until
from kernel.supervisor.declared import World, health, in_world
from leftovers import adopt_orphans, becomes_true, processes

pytestmark = pytest.mark.integration
SOAK = bool(os.environ.get("AGENT_OS_SOAK"))
AGENTS, SECONDS = (200, 60.0) if SOAK else (30, 10.0)
STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")
POLICIES = ("on_failure", "always", "never")
MOST = 4  # restarts in a row


def declare(world: World, rng: random.Random) -> list[str]:
    names = [f"a{number}" for number in range(AGENTS)]
    for name in names:
        world.manifest(name, health(restart_policy=rng.choice(POLICIES), max_restarts=MOST, stable_secs=0.5))
    for number, strategy in enumerate(STRATEGIES):
        below = names[number * 4 : number * 4 + 4]
        group = f"[supervision]\nstrategy = '{strategy}'\nintensity = 1000\nchildren = {below}\n"
        world.manifest(f"boss{number}", health(max_restarts=MOST) + group, role="supervisor")
    return names


async def strike_for_a_while(world: World, names: list[str], rng: random.Random) -> set[str]:
    """Who was stopped by hand meanwhile."""
    stopped, end = set[str](), time.monotonic() + SECONDS
    restarts: list[asyncio.Task[None]] = []
    while time.monotonic() < end:
        name = rng.choice(names)
        alive = {one.name: one for one in world.kernel.table.alive() if one.running}
        match rng.random():
            case chance if chance < 0.9 and name in alive:
                world.strike(name, rng.choice((signal.SIGKILL, signal.SIGSEGV)))
            case chance if chance < 0.91:
                await world.call(Stop(agent=name, force=rng.random() < 0.5))
                stopped.add(name)
            case chance if chance < 0.97 and name in alive and name not in stopped:
                restarts.append(asyncio.create_task(_restarted(world, name)))
        await asyncio.sleep(rng.uniform(0.0, 0.1))
    await asyncio.gather(*restarts)
    return stopped


async def _restarted(world: World, name: str) -> None:
    with suppress(EBUSY):  # it failed, was stopped, or its supervisor went meanwhile
        await world.call(Restart(agent=name))


def as_declared(world: World, names: list[str]) -> bool:
    """Whoever is wanted and was not given up lives and is ready; nobody else does."""
    records = [world.record(name) for name in names]
    alive = world.alive()
    return all(
        (one.id.partition("/")[2] in alive) == (one.state is State.ACTIVE)
        and (not one.to_revive or (one.state is State.ACTIVE and world.kernel.fleet.is_ready(one.id)))
        for one in records
    )


def test_many_agents_under_random_kills_end_as_declared(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        rng = random.Random(int(os.environ.get("SEED", "1")))
        names = declare(world, rng)
        await world.apply()
        await until(lambda: as_declared(world, names))
        stopped = await strike_for_a_while(world, names, rng)
        await until(lambda: as_declared(world, names))
        await until(lambda: world.kernel.store.size() == world.kernel.journal.next_seq - 1)
        assert world.kernel.fleet.kept.records.keys() >= {f"default/{name}" for name in names}, "somebody was lost"
        assert len({one.pid for one in world.kernel.table.alive()}) == len(world.alive())
        for name in names:
            record = world.record(name)
            assert record.consecutive <= MOST + 1, record
            assert name not in stopped or record.state is not State.ACTIVE, record
        entries = [(entry, body) for entry, body in world.kernel.journal.scan() if entry.agent != "kernel"]
        assert overlapping([entry for entry, _ in entries]) == []
        assert out_of_policy(entries) == []
        lives = Counter(entry.agent for entry, _ in entries if entry.kind == Kind.SPAWN)
        print(f"{sum(lives.values())} lives of {len(lives)} agents, {len(stopped)} stopped")
        assert sum(lives.values()) > AGENTS, "nothing was struck, so nothing was shown"

    adopt_orphans()
    before = processes()
    in_world(tmp_path, test, seconds=120 + 4 * SECONDS)
    assert becomes_true(lambda: processes().keys() <= before.keys(), 20), processes()


def overlapping(entries: list[Entry]) -> list[Entry]:
    alive, found = set[str](), list[Entry]()
    for entry in entries:
        if entry.kind == Kind.SPAWN:
            found += [entry] if entry.agent in alive else []
            alive.add(entry.agent)
        elif entry.kind == Kind.EXIT:
            alive.discard(entry.agent)
    return found


def out_of_policy(entries: list[tuple[Entry, bytes | None]]) -> list[object]:
    """Decisions that no policy allows: never restarted, and not more often in a row than allowed."""
    wrong: list[object] = []
    for entry, body in entries:
        if entry.kind != Kind.EXIT or body is None:
            continue
        told = decode_any(body)
        child, act = told["decided_on"]["child"], told["decision"]["act"]
        if act == "restart" and (child["terms"]["policy"] == "never" or told["decision"]["consecutive"] > MOST):
            wrong.append(told)
    return wrong
