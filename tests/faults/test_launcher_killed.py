"""Row 2 of the fault table, the zygote: kill -9 of the launcher, of its holder or its starter, at every step of a spawn
and at random instants, while agents start, run and end; the kernel lives.

Agents that ran go on where they were, whoever was being started is started, nothing ran twice, no process is left, and
an end is told when it is true: a build that tells it when the launcher's socket closes does not pass.
"""

import asyncio
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import agents
import leftovers
from agent_os.abi.errors import EISOLATION
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.kernel import members, recovery
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.lives import Lives
from agent_os.kernel.running import Run
from agent_os.kernel.table import Agent, Ended
from agent_os.sandbox import spawner
from agent_os.sandbox.spawner import Exit, Launcher
from faults.ledger import ONCE, Ledger
from faults.machine import Machine
from faults.processes import alive
from faults.world import SOAK
from kernel.serving import serving
from peer import until

pytestmark = pytest.mark.integration

STRIKES = 150 if SOAK else 6
IN_A_ROW = 3  # strikes until every agent runs again: somebody whose launcher always dies is told so in the end
LASTING = 2  # agents that live through all of it
PARTS = ("starter", "holder", "launcher")


class Nursery:
    """A kernel in this process, its real launcher, and agents in their sandboxes."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self.kernel, self.machine = kernel, machine
        self.struck: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()  # states of agents at the moment of a strike
        self.early: list[str] = []  # agents whose end was told while they lived

    async def start(self, name: str, **env: object) -> Agent:
        order = self.machine.order() | {"name": name}
        order["env"] = [*order["env"], *(f"{key}={value}" for key, value in env.items())]
        return await self.kernel.guests.start(order)

    def runs(self, name: str) -> bool:
        return any(one.name == name and one.life is Incarnation.RUNNING and one.line for one in self.kernel.table)

    async def launcher(self) -> Launcher:
        assert self.kernel.guests._starting  # pyright: ignore[reportPrivateUsage]
        return await self.kernel.guests._starting  # pyright: ignore[reportPrivateUsage]

    def pids(self, launcher: Launcher) -> dict[str, int]:
        """Of the starter, its child the holder, and the holder's child the launcher; as far as they are there yet."""
        found: dict[str, int] = {}
        pid = launcher._starter.pid  # pyright: ignore[reportPrivateUsage]
        for part in PARTS:
            found[part] = pid
            children = _children(pid)
            if not children:
                break
            pid = children[0]
        return found

    async def strike(self, part: str) -> None:
        """Returns when the part is dead by our hand."""
        launcher = await self.launcher()
        pid = self.pids(launcher).get(part)
        if pid is None or not alive(pid):
            return
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            self.seen.update(one.life.value for one in self.kernel.table)
            await until(lambda: not alive(pid), f"the end of the {part}")
            self.struck[part] += 1
        finally:
            os.close(pidfd)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def with_nursery(top: Path, test: Callable[[Nursery], Awaitable[None]], **env: Any) -> Nursery:
    machine = Machine(top, "effects", **env)
    ledger = Ledger(machine.home / "ledger")
    usual = Lives.left
    made: list[Nursery] = []

    async def checked(self: Lives, agent: Agent, ended: Ended) -> None:
        if isinstance(agent.running, Run) and alive(_init_of(agent)):
            made[0].early.append(agent.name)
        await usual(self, agent, ended)

    async def main() -> None:
        async with serving(machine.home) as (kernel, _):
            for tool in ledger.tools():
                kernel.tools.register(tool)
            made.append(Nursery(kernel, machine))
            async with asyncio.timeout(3600 if SOAK else 120):
                await test(made[0])

    Lives.left = checked
    try:
        asyncio.run(main())
    finally:
        Lives.left = usual
    assert leftovers.becomes_true(lambda: not machine.processes()), machine.processes()
    assert leftovers.cgroups(os.getpid()) == []
    return made[0]


_inits: dict[Agent, int] = {}
_usual_run_init = Run.__init__


@pytest.fixture(autouse=True)
def followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pid 1 of each agent on this host is noted while it is there to be asked."""

    def noted(self: Run, agent: Agent, *parts: Any) -> None:
        _usual_run_init(self, agent, *parts)
        _inits[agent] = members.pid_of(self.guest.process.pidfd) or 0

    monkeypatch.setattr(Run, "__init__", noted)
    monkeypatch.setattr(recovery, "LONGEST_PAUSE", 0.2)  # the pauses between many lives would be all of the time


def _init_of(agent: Agent) -> int:
    return _inits[agent]


def not_once(ledger: Ledger) -> list[str]:
    return [name for name, n in ledger.counts().items() if name.partition(":")[0] in ONCE and n != 1]


@pytest.mark.parametrize("part", PARTS)
def test_an_agent_goes_on_when_its_launcher_is_killed_and_the_next_one_starts(tmp_path: Path, part: str) -> None:
    async def test(nursery: Nursery) -> None:
        agent = await nursery.start("w")
        await until(lambda: len(nursery.machine.acks()) > 12, "some work")
        await nursery.strike(part)
        ended = await nursery.kernel.wait_for(agent)
        assert (ended["state"], agent.exit and agent.exit.exit_class) == ("completed", ExitClass.LOST), ended
        assert ended["result"] == {"mem": "0\n1\n2\n3\n4\n5\n6\n7\n", "work": "0\n1\n2\n3\n4\n5\n6\n7\n"}
        other = await nursery.start("other", STEPS=1, ACKS=nursery.machine.notes / "others")
        assert (await nursery.kernel.wait_for(other))["state"] == "completed"

    nursery = with_nursery(tmp_path, test, STEPS=8)
    assert nursery.struck == {part: 1}
    assert nursery.early == []
    counts = nursery.machine.ledger.counts()
    assert counts["opaque:0"] == 2, "one of each agent"
    assert {counts[f"{kind}:{n}"] for kind in ONCE for n in range(1, 8)} == {1}


STEPS = {  # where in a spawn, and before what of it
    "before the launcher is asked": "_request",
    "before its child is ready": "_read_status",
}
if spawner.is_host_root():
    STEPS["before its directories are shown"] = "_tree"  # only root's launcher shows them by its starter


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("part", PARTS if SOAK else ("launcher",))
def test_an_agent_is_started_though_the_launcher_is_killed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, part: str
) -> None:
    async def test(nursery: Nursery) -> None:
        before = await nursery.start("before", STEPS=1)
        await nursery.kernel.wait_for(before)
        owner: Any = spawner if STEPS[step] == "_read_status" else Launcher
        usual = getattr(owner, STEPS[step])

        async def struck(*args: Any, **options: Any) -> Any:
            if not nursery.struck:
                await nursery.strike(part)
            return await usual(*args, **options)

        monkeypatch.setattr(owner, STEPS[step], struck)
        agent = await nursery.start("w", ACKS=nursery.machine.notes / "others")
        ended = await nursery.kernel.wait_for(agent)
        assert ended["state"] == "completed", ended

    nursery = with_nursery(tmp_path, test, STEPS=2)
    assert nursery.struck == {part: 1}
    assert nursery.machine.ledger.counts()["opaque:1"] == 1


def test_a_launcher_that_dies_every_time_is_named_and_the_next_spawn_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Launcher._request  # pyright: ignore[reportPrivateUsage]

    async def test(nursery: Nursery) -> None:
        async def struck(*args: Any, **options: Any) -> Any:
            await nursery.strike("launcher")
            return await usual(*args, **options)

        monkeypatch.setattr(Launcher, "_request", struck)
        with pytest.raises(EISOLATION, match="launcher"):
            await nursery.start("w")
        monkeypatch.setattr(Launcher, "_request", usual)
        agent = await nursery.start("w")
        assert (await nursery.kernel.wait_for(agent))["state"] == "completed"

    nursery = with_nursery(tmp_path, test, STEPS=1)
    assert nursery.struck == {"launcher": spawner._TRIES}  # pyright: ignore[reportPrivateUsage]
    assert not_once(nursery.machine.ledger) == []


def test_launchers_killed_at_any_instant_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """Some agents live long, others come and go; a part of the launcher is struck down again and again."""
    rng = random.Random(int(os.environ.get("SEED", "1")))
    short: list[dict[str, Any]] = []
    refused: list[str] = []

    async def comes_and_goes(nursery: Nursery, done: asyncio.Event) -> None:
        number = 0
        while not done.is_set():
            number += 1
            try:
                agent = await nursery.start(f"s{number}", STEPS=1, ACKS=nursery.machine.notes / f"s{number}")
            except EISOLATION as error:
                refused.append(error.reason)
                continue
            short.append(await nursery.kernel.wait_for(agent))

    async def strikes(nursery: Nursery) -> None:
        while nursery.struck.total() < STRIKES:
            await asyncio.sleep(rng.uniform(0, 0.8))
            await nursery.strike(rng.choice(PARTS))
            if nursery.struck.total() % IN_A_ROW == 0:
                await until(lambda: all(nursery.runs(f"w{n}") for n in range(LASTING)), "agents that run")

    async def test(nursery: Nursery) -> None:
        done = asyncio.Event()
        lasting = [await nursery.start(f"w{n}", ACKS=nursery.machine.notes / f"w{n}") for n in range(LASTING)]
        coming = asyncio.create_task(comes_and_goes(nursery, done))
        await strikes(nursery)
        done.set()
        await coming
        for agent in lasting:
            ended = await nursery.kernel.wait_for(agent)
            assert ended["state"] == "completed", ended

    nursery = with_nursery(tmp_path, test, STEPS=STRIKES * 4)
    print(f"{nursery.struck} while agents were {nursery.seen}; {len(short)} came and went")
    assert nursery.struck.total() == STRIKES
    assert nursery.early == []
    assert {one["state"] for one in short} == {"completed"}, short
    assert all("launcher" in reason for reason in refused), refused
    if SOAK:
        assert {Incarnation.STARTING.value, Incarnation.RUNNING.value} <= set(nursery.seen)


def tells_at_once(self: Launcher, usual: Any) -> None:
    """Broken on purpose: an agent is said to be gone when its launcher's socket closes."""
    usual(self)
    for waiting in self._exits.values():  # pyright: ignore[reportPrivateUsage]
        if not waiting.done():
            waiting.set_result(Exit(signal.SIGKILL, {}, lost=True))


async def lived_when_it_was_lost(launcher: Launcher) -> bool:
    """The socket closes, as it does some time before Linux ends what the launcher had made; then the launcher dies.
    Whether the agent lived when its end was told."""
    holder = _children(launcher._starter.pid)[0]  # pyright: ignore[reportPrivateUsage]
    async with agents.started(launcher, agents.spec_of("guest", ["/bin/sleep", "600"])) as (process, _):
        init = members.pid_of(process.pidfd) or 0
        assert alive(init)
        launcher._requests.shutdown(socket.SHUT_RD)  # pyright: ignore[reportPrivateUsage]
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, os.kill, _children(holder)[0], signal.SIGKILL)
        ended = await process.wait()
        assert ended.lost
        return alive(init)


def test_an_agent_is_lost_when_it_is_gone_and_not_before() -> None:
    assert not agents.drive(lived_when_it_was_lost)


def test_a_build_that_tells_it_at_once_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Launcher._lost  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Launcher, "_lost", lambda self: tells_at_once(self, usual))
    assert agents.drive(lived_when_it_was_lost)
