"""Supervision: how soon an end is noticed and made good, how starts are spread out, what a thousand agents cost.

Real parts throughout: a kernel in this process with a home of its own, agents in their sandboxes. Two figures need no
process: the order of a fleet, and how 200 agents that crash together come back (virtual time; the real back-off and the
real decision). What is compared is taken in turn in the same run.
"""

import asyncio
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from benchmarks import agents
from benchmarks.measure import Report, Series, Work, in_turn, timed

from agent_os.abi.states import ExitClass
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.boot import boot
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.running import Run
from agent_os.kernel.supervisor.backoff import nominal, waited
from agent_os.kernel.supervisor.decide import Act, Child, Exited, Supervisor, decide
from agent_os.kernel.supervisor.graph import Graph, Needs
from agent_os.kernel.supervisor.terms import OVER, ROOT, Backoff, Jitter, Terms
from agent_os.kernel.table import Ended
from agent_os.manifest.model import AgentManifest

FLEET, EACH_NEEDS = 1000, 3
CRASHED, CRASHES = 200, 9
DEATHS, WAIT_MS = 40, 20
SHORT, SHORT_LONG = 1000, 10_000
IDLE, IDLE_LONG, IDLE_SECONDS = 200, 1000, 30.0
SETTLE, SETTLE_LONG = 30.0, 300.0  # seconds until what follows from the starts is over, and idle agents are left alone
DECLARED = 1500
SLEEPS = ["/bin/sleep", "100000"]
NATIVE = """from agent_os import agent

@agent
async def main(ctx):
    await ctx.now()
    await ctx.sleep(100_000)
"""
PLAIN_END = "end of a plain process, to heard of by its pidfd"
SPAWN, START = "plain spawn of a command, to ready", "start of a declared native agent, to ready"
AGAIN, NATIVE_AGAIN = (f"death of {what} to ready again, without the wait" for what in ("a command", "a native agent"))


async def run(report: Report, long: bool) -> None:
    await order(report)
    flatness(report)
    await ends(report)
    await declaring(report)
    await short_lives(report, SHORT_LONG if long else SHORT)
    await idle(report, *((IDLE_LONG, SETTLE_LONG) if long else (IDLE, SETTLE)))


# Without a process.


async def order(report: Report) -> None:
    chance = random.Random(6)
    fleet = {
        f"default/n{n}": Needs(requires=tuple(f"n{chance.randrange(n)}" for _ in range(EACH_NEEDS)) if n else ())
        for n in range(FLEET)
    }
    bare = {one: tuple(f"default/{name}" for name in needs.requires) for one, needs in fleet.items()}
    whole, sort = f"order of {FLEET:,} agents, checked", "bare topological sort (standard library)"
    work = {whole: timed(lambda: Graph(fleet)), sort: timed(lambda: tuple(TopologicalSorter(bare).static_order()))}
    series = {name: report.add(one) for name, one in (await in_turn(work, 50)).items()}
    ratio = report.ratio("order / bare sort", series[whole], series[sort])
    report.goal(f"order of {FLEET:,} agents with {EACH_NEEDS} dependencies each", series[whole].p50, "≤", 10, "ms")
    report.goal("order / bare sort", ratio, "≤", 5, "×")


def flatness(report: Report) -> None:
    none, equal = (worst_bucket(jitter) for jitter in ("none", "equal"))
    label = f"{CRASHED} crash together: most starts in 100 ms, later"
    report.figure(f"{label}, no jitter", none, "")
    report.figure(label, equal, "")
    report.goal("how much flatter than without jitter", none / equal, "≥", 3, "×")


def worst_bucket(jitter: Jitter) -> int:
    """Everybody dies at 0 and again as soon as it lives, until it is given up. Nobody holds anybody up."""
    chance, buckets = random.Random(8), Counter[int]()
    terms = Terms(max_restarts=CRASHES, backoff=Backoff(jitter=jitter))
    for number in range(CRASHED):
        now, consecutive = 0.0, 0
        while True:
            child, exited = Child(f"a{number}", 1, terms, consecutive), Exited(1, ExitClass.ERROR, 1, 0.0)
            decision = decide(child, exited, Supervisor(ROOT), now)
            if decision.act is not Act.RESTART:
                break
            consecutive = decision.consecutive
            now += waited(terms.backoff, decision.delay_ms, chance.random()) / 1000
            buckets[int(now * 10)] += 1
    return max(count for bucket, count in buckets.items() if bucket >= 10)


# With a kernel.


class Yard:
    """A kernel, and a folder that agents are declared in."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel, self.fleet, self._folder = kernel, kernel.fleet, folder
        (folder / "native.py").write_text(NATIVE)

    async def declare(self, *names: str, native: bool = False, **sections: Any) -> None:
        program: dict[str, Any] = {"entry": "native.py:main"} if native else {"argv": SLEEPS}
        trees = [{"name": name, "role": "worker", "program": program, **sections} for name in names]
        await self.fleet.apply([AgentManifest.from_dict(tree) for tree in trees], base=str(self._folder), by="bench")

    def files(self, count: int) -> dict[str, str]:
        text = 'name = "m{}"\nrole = "worker"\n[program]\nargv = ["/bin/true"]\n[lifecycle]\nactivation = "manual"\n'
        return {str(self._folder / f"m{number}.agent.toml"): text.format(number) for number in range(count)}

    async def ready(self, name: str, incarnation: int = 1) -> None:
        agent_id = f"default/{name}"

        def there() -> bool:
            record = self.fleet.record(agent_id)
            if record and record.state in OVER:
                raise SystemExit(f"{agent_id} is {record}: the figure would be a lie")
            return record is not None and record.incarnation >= incarnation and self.fleet.is_ready(agent_id)

        await self.fleet.until(there)

    def running(self, name: str) -> Run:
        running = self.kernel.table.find(name).running
        assert isinstance(running, Run)
        return running


@asynccontextmanager
async def yard() -> AsyncIterator[Yard]:
    with tempfile.TemporaryDirectory(prefix="agent-os-bench-") as top:
        os.chmod(top, 0o755)
        home, folder = Path(top, "home"), Path(top, "project")
        home.mkdir(mode=0o700)
        folder.mkdir()
        store = SqliteStore(home / "journal.db")
        kernel = await boot(store=store, home=home, env=dict(os.environ))
        try:
            yield Yard(kernel, folder)
        finally:
            await kernel.guests.close()
            await kernel.close()
            store.close()


async def ends(report: Report) -> None:
    """Killed by the host: when the kernel hears of it, when it has decided, when the next life is ready."""
    heard, decided = Series("end of an agent, to heard of", "ms"), Series("end of an agent, to decided", "ms")
    async with yard() as here:
        backoff = {"base_ms": WAIT_MS, "cap_ms": WAIT_MS, "jitter": "none"}
        health = {"max_restarts": 10_000, "backoff": backoff}
        await here.declare("command", health=health)
        await here.declare("native", native=True, health=health)
        await here.declare("other", native=True, lifecycle={"activation": "manual"})
        subjects: dict[str, Work] = {
            PLAIN_END: plain_end,
            SPAWN: lambda: plain_spawn(here),
            AGAIN: lambda: struck(here, "command", heard, decided),
            START: lambda: declared_start(here, "other"),
            NATIVE_AGAIN: lambda: struck(here, "native", heard, decided),
        }
        series = {name: report.add(one) for name, one in (await in_turn(subjects, DEATHS)).items()}
    report.add(heard)
    report.add(decided)
    report.goal(f"{heard.name}, p50", heard.p50, "≤", 10, "ms")
    report.goal(f"{heard.name}, p95", heard.p95, "≤", 100, "ms")
    command = report.ratio("death to ready / plain spawn, command", series[AGAIN], series[SPAWN])
    native = report.ratio("death to ready / start, native", series[NATIVE_AGAIN], series[START])
    report.goal("death to ready without the wait / plain spawn, command", command, "≤", 2, "×")
    report.goal("death to ready without the wait / start, native", native, "≤", 2, "×")


async def struck(here: Yard, name: str, heard: Series, decided: Series) -> float:
    """From SIGKILL to the next life's READY, without the wait before it."""
    await here.ready(name)
    running, record = here.running(name), here.fleet.record(f"default/{name}")
    assert record
    began = time.perf_counter()
    running.guest.process.exited.add_done_callback(lambda _: heard.samples.append(ms_since(began)))
    running.host_signal(9)
    await here.fleet.until(lambda: here.fleet.record(record.id) != record)
    decided.samples.append(ms_since(began))
    spec, now = here.fleet.spec(record.id), here.fleet.record(record.id)
    assert spec
    assert now
    await here.ready(name, record.incarnation + 1)
    return ms_since(began) - nominal(spec.terms.backoff, now.consecutive)


async def plain_spawn(here: Yard) -> float:
    """What `agentctl run` does, without a manifest."""
    began = time.perf_counter()
    agent = await here.kernel.guests.start({"argv": SLEEPS, "cwd": "/", "workspace": "tmpfs"})
    took = ms_since(began)
    await here.kernel.end(agent, Ended(ExitClass.REQUESTED, -1, "measured"))
    return took


async def declared_start(here: Yard, name: str) -> float:
    began = time.perf_counter()
    await here.fleet.start(f"default/{name}", "bench")
    took = ms_since(began)
    await here.fleet.stop(f"default/{name}", "bench", force=True)
    return took


async def plain_end() -> float:
    pid = agents.plain_spawn(*SLEEPS)
    handle, gone = os.pidfd_open(pid), asyncio.Event()
    asyncio.get_running_loop().add_reader(handle, gone.set)
    began = time.perf_counter()
    os.kill(pid, 9)
    await gone.wait()
    took = ms_since(began)
    asyncio.get_running_loop().remove_reader(handle)
    os.close(handle)
    os.waitpid(pid, 0)
    return took


def ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


async def declaring(report: Report) -> None:
    """Many manifests at once: others wait for the loop no longer than it stands still."""
    async with yard() as here:
        files, stall = here.files(DECLARED), Stall()
        began = time.perf_counter()
        async with stall:
            await here.fleet.apply_files(files, by="bench")
        report.figure(f"apply of {DECLARED:,} manifests", time.perf_counter() - began, "s")
        report.figure("longest that the loop stood still meanwhile", stall.longest * 1000, "ms")
        began = time.perf_counter()
        async with stall:
            await here.fleet.apply_files(files, by="bench")
        report.figure(f"the same {DECLARED:,} again, nothing changed", time.perf_counter() - began, "s")


class Stall:
    """How long the loop did not come round, at worst."""

    EVERY = 0.002

    def __init__(self) -> None:
        self.longest = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def __aexit__(self, *_: object) -> None:
        assert self._task
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(self.EVERY)
            self.longest = max(self.longest, time.perf_counter() - began - self.EVERY)


async def short_lives(report: Report, count: int) -> None:
    """One after the other, each in a sandbox of its own; what the kernel keeps of them must not grow."""
    early, late, memory = Series("spawn of a short agent, early", "ms"), Series("spawn, late", "ms"), list[float]()
    tenth = count // 10
    async with yard() as here:
        for number in range(count):
            began = time.perf_counter()
            agent = await here.kernel.guests.start({"argv": ["/bin/true"], "cwd": "/", "workspace": "tmpfs"})
            took = ms_since(began)
            await agent.gone.wait()
            if tenth // 2 <= number < tenth:
                early.samples.append(took)
            if number >= count - tenth:
                late.samples.append(took)
            if number + 1 in (tenth, count):
                memory.append(resident_mb())
    late.name = f"spawn of a short agent after {count - tenth:,}"
    for series in (early, late):
        report.add(series)
    first = report.figure(f"memory of the kernel after {tenth:,} short agents", memory[0], "MB")
    last = report.figure(f"memory of the kernel after {count:,}", memory[1], "MB")
    report.goal(
        f"memory after {count:,} / after {tenth:,}", report.ratio("memory, late / early", last, first), "≤", 1.1, "×"
    )
    report.goal("spawn p50, late / early", report.ratio("spawn, late / early", late, early), "≤", 1.2, "×")


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def idle(report: Report, count: int, settle: float) -> None:
    """Real agents that do nothing, half of them commands and half written for us, which are asked whether they are well
    every 30 s. Counted is the CPU time of the kernel's process, in which nothing else happens; what it takes without
    agents is said apart. The goal is for as many as it names: some of the looks take a fixed share of the time, however
    many there are. Where neighbours write to the same file system, agents are looked at more often: TMPDIR chooses
    another one."""
    async with yard() as here:
        report.figure("kernel without agents", await share_of_cpu(), "% cpu")
        names = [f"i{number}" for number in range(count)]
        health = {"start_timeout_secs": 600}
        began = time.perf_counter()
        await here.declare(*names[::2], health=health)
        await here.declare(*names[1::2], native=True, health=health)
        for name in names:
            await here.ready(name)
        report.figure(f"{count:,} declared agents, until all are ready", time.perf_counter() - began, "s")
        await asyncio.sleep(settle)
        share = await share_of_cpu()
    report.figure(f"supervision of {count:,} idle agents", share, "% cpu")
    if count == FLEET:
        report.goal(f"supervision of {FLEET:,} idle agents", share, "≤", 2, "% cpu")


async def share_of_cpu() -> float:
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    return 100 * (time.process_time() - cpu) / (time.perf_counter() - began)
