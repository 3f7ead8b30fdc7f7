"""The kernel: calls beside an echo of frames on the same wire, group commit beside one synced commit per call, syncs
and disk per effect, fairness, idle connections, replay, the gate, and agent-os-kernel (`benchmarks/get-others`).

The kernel runs in a process of its own on a real home; this process is all its agents. What is compared is sampled in
turn. CPU per call and sync counts do not depend on neighbours; rates do, so they are ratios.
"""

import json
import multiprocessing
import random
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX, socket, socketpair

from benchmarks.journal import FAST_SYNC, PlainSqlite
from benchmarks.kernel_load import NOW, READ, ROOT, WORK, WRITE, Side, drive, lone
from benchmarks.measure import Report, Series

from agent_os.abi import frames
from agent_os.abi.frames import Call, Hello
from agent_os.kernel.calls import Asked
from agent_os.space import KernelSpace

ROUNDS, SECONDS = 5, 0.6
AGENTS, BATCH = 64, 16
LONE = 200  # calls
PLAIN = 50  # commits in one sample of the anchor
IDLE = 10_000
TURNS, TURN_BYTES = 1000, (200, 6000)  # of a growing history: questions and answers
REPLAYED = 1000
PEER = ROOT / ".cache" / "others" / "agent-os-kernel" / "bin" / "python"


async def run(report: Report, long: bool) -> None:
    with folder() as home:
        throughput(report, home)
    with folder() as home:
        syncs(report, home)
    with folder() as home:
        history(report, home)
    with folder() as home:
        fairness(report, home)
    with folder() as home:
        idle_connections(report, home)
    with folder() as home:
        replay(report, home)
    await gate(report)
    with folder() as home:
        peer(report, home)


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="agent-os-bench-"))
    (path / "work").mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Rate(Series):
    """Calls per second of one subject, and what a call cost the measured process."""

    def __init__(self, name: str, side: Side, frame: bytes, socks: Sequence[socket] = (), batch: int = 1) -> None:
        super().__init__(name, "/s")
        self._side, self._frame, self._socks, self._batch = side, frame, socks or side.socks, batch
        self.cpu, self.loop, self.syncs = (Series(f"{name}, {what}", "") for what in ("CPU", "loop", "syncs"))

    def sample(self) -> None:
        before = self._side.ask()
        rate = drive(self._socks, self._frame, SECONDS, self._batch)
        after, calls = self._side.ask(), rate * SECONDS
        self.samples.append(rate)
        self.cpu.samples.append((after["cpu"] - before["cpu"]) / calls * 1e6)
        self.loop.samples.append((after["loop"] - before["loop"]) / calls * 1e6)
        self.syncs.samples.append((after.get("syncs", 0) - before.get("syncs", 0)) / calls)

    def tell(self, report: Report) -> None:
        report.add(self)
        report.figure(f"{self.name}: CPU per call", self.cpu.p50, "µs")
        report.figure(f"{self.name}: of it on the loop's thread", self.loop.p50, "µs")
        report.figure(f"{self.name}: syncs per call", self.syncs.p50, "")


def throughput(report: Report, home: Path) -> None:
    echo, kernel, plain = Side("echo", agents=AGENTS), Side("kernel", home, AGENTS), PlainSqlite(home / "plain.db")
    drive(kernel.socks, WRITE, SECONDS)  # there is something to read, and everything is warm
    bare = Rate("frame echo, 64 agents", echo, NOW)
    pure = Rate("pure call (now), D1, 64 agents", kernel, NOW)
    read = Rate("read, D1, 64 agents", kernel, READ)
    write = Rate("store write, D2, 64 agents", kernel, WRITE)
    single = Rate("pure call, one agent", kernel, NOW, kernel.socks[:1])
    batched = Rate(f"pure call, one agent, batches of {BATCH}", kernel, NOW, kernel.socks[:1], BATCH)
    crowd = Rate(f"pure call, 64 agents, batches of {BATCH}", kernel, NOW, batch=BATCH)
    commits = Series("plain SQLite, one synced commit per call", "/s")
    queue = Series("round trip to a task over asyncio.Queue", "µs")
    for _ in range(ROUNDS):
        for subject in (bare, pure, read, write, single, batched, crowd):
            subject.sample()
        began = time.perf_counter()
        for _ in range(PLAIN):
            plain.commit()
        commits.samples.append(PLAIN / (time.perf_counter() - began))
        queue.samples.append(echo.ask("queue")["queue_us"])
    for subject in (bare, pure, read, write, single, batched, crowd):
        subject.tell(report)
    report.add(commits)
    report.add(queue)
    alone = report.add(Series("bare round trip of a lone caller", "µs", lone(echo.socks[0], [NOW] * 2000)))
    trip = report.add(Series("bare round trip, 64 agents asking", "µs", [1e6 / rate for rate in bare.samples]))
    report.note(f"a lone caller's {alone.p50:.0f} µs are two wake-ups of a process; asyncio.Queue has none")
    report.goal("bare round trip, 64 agents asking, to asyncio.Queue", trip.p50 / queue.p50, "≤", 2.5, "×")
    report.goal(
        "pure call through the gate, D1, to frame echo", report.ratio("pure / echo", pure, bare), "≥", 0.35, "×"
    )
    report.ratio("CPU of a pure call / of an echo", pure.cpu, bare.cpu)
    if 1e6 / commits.p50 < FAST_SYNC:
        report.note(
            f"a synced commit takes {1e6 / commits.p50:.0f} µs here: what bounds D2 is CPU per call, not the disk"
        )
    report.goal("syncs per D2 call, 64 agents, where plain commits have 1", write.syncs.p50, "≤", 1 / 20, "")
    faster = report.ratio("D2 / plain commits", write, commits)
    report.goal("D2 calls, 64 agents, to one synced commit per call", faster, "≥", 20, "×")
    faster = report.ratio("batched / unbatched, one agent", batched, single)
    report.ratio("batched / unbatched, 64 agents", crowd, pure)
    report.goal(f"batch of {BATCH} to unbatched, one agent", faster, "≥", 3, "×")
    echo.close()
    kernel.close()
    plain.close()


def syncs(report: Report, home: Path) -> None:
    """Counted, not timed. A head is anchored each second, and that is a sync of its own: goals have a little room."""
    kernel = Side("kernel", home, AGENTS, work=str(home / "work"))
    per_call: dict[str, float] = {}
    for name, frame, most in (("outside effect", WORK, 2), ("store", WRITE, 1), ("pure", NOW, 0)):
        before = kernel.ask()["syncs"]
        took = lone(kernel.socks[0], [frame] * LONE)
        heads = sum(took) / 1e6 / LONE  # about one a second
        per_call[name] = (kernel.ask()["syncs"] - before) / LONE
        report.add(Series(f"lone call, {name}", "µs", took))
        report.goal(f"syncs per lone call, {name}", per_call[name], "≤", most + heads + 0.02, "")
    crowd = Rate("outside effect, 64 agents", kernel, WORK)
    for _ in range(ROUNDS):
        crowd.sample()
    crowd.tell(report)
    report.goal("syncs per effect, 64 agents, to lone", crowd.syncs.p50 / per_call["outside effect"], "≤", 0.1, "×")
    kernel.close()


def history(report: Report, home: Path) -> None:
    """An agent's history grows by a piece each turn. Everything counts: content, records, tree, heads."""
    kernel = Side("kernel", home)
    lone(kernel.socks[0], [NOW])
    kernel.close()
    empty, kernel = used(home), Side("kernel", home)
    chance = random.Random(1)
    pieces = [chance.randbytes(chance.randint(*TURN_BYTES)) for _ in range(TURNS)]
    bodies = ({"path": "/mem/working/history", "data": piece, "mode": "append"} for piece in pieces)
    lone(kernel.socks[0], (frames.encode(Call(1, 2, frames.body(body))) for body in bodies))
    kernel.close()
    grown, unique = used(home) - empty, sum(map(len, pieces))
    report.figure(f"disk per turn of {unique // TURNS} B on average", grown / TURNS, "B")
    report.goal("disk for a growing history, to its unique bytes", grown / unique, "≤", 1.5, "×")


def used(home: Path) -> int:
    return sum(file.stat().st_size for file in home.rglob("*") if file.is_file())


def fairness(report: Report, home: Path) -> None:
    """One agent has 64 calls open at all times; another asks one after the other."""
    kernel = Side("kernel", home, 2)
    quiet, noisy = kernel.socks
    alone = Series("quiet agent alone, p99 of each round", "µs")
    beside = Series("quiet agent beside a flooding one, p99 of each round", "µs")
    halves = [Series("quiet agent alone, p50", "µs"), Series("quiet agent beside a flooding one, p50", "µs")]
    context = multiprocessing.get_context("fork")
    for _ in range(ROUNDS):
        took = lone(quiet, [NOW] * LONE * 2)
        alone.samples.append(p99(took))
        halves[0].samples += took
        flood = context.Process(target=drive, args=([noisy], NOW, 3.0, AGENTS))
        flood.start()
        time.sleep(0.2)  # the flood has begun; nothing can be asked to know it
        took = lone(quiet, [NOW] * LONE * 2)
        beside.samples.append(p99(took))
        halves[1].samples += took
        flood.join()
    for series in (alone, beside, *halves):
        report.add(series)
    report.ratio("quiet agent beside / alone, p50", halves[1], halves[0])  # p99 is the scheduler's on a busy machine
    report.goal("quiet agent's p99 beside a flooding one, to alone", beside.p50 / alone.p50, "≤", 2, "×")
    kernel.close()


def p99(samples: Sequence[float]) -> float:
    return statistics.quantiles(samples, n=100)[98]


def idle_connections(report: Report, home: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < IDLE + 1000:
        report.skip(f"{IDLE:,} idle connections", f"this user may open {most} files")
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    path = str(home / "door")
    crowded, empty = Side("kernel", home, AGENTS, socket=path), Side("kernel", home / "work", AGENTS)
    drive(crowded.socks, NOW, SECONDS)
    before = crowded.ask()["private"]
    idle = [greeted(path) for _ in range(IDLE)]
    report.figure("memory per idle connection", (crowded.ask()["private"] - before) / IDLE, "B")
    full = Rate(f"pure call, 64 agents, {IDLE:,} idle beside", crowded, NOW)
    bare = Rate("pure call, 64 agents, nobody beside", empty, NOW)
    report.goal("memory per idle connection", (crowded.ask()["private"] - before) / IDLE, "≤", 2048, "B")
    for _ in range(ROUNDS):
        full.sample()
        bare.sample()
    for subject in (full, bare):
        subject.tell(report)
    report.goal(f"calls with {IDLE:,} idle beside, to none", report.ratio("idle / none", full, bare), "≥", 0.9, "×")
    for sock in idle:
        sock.close()
    crowded.close()
    empty.close()


def greeted(path: str) -> socket:
    sock = socket(AF_UNIX)
    sock.connect(path)
    sock.sendall(frames.encode(Hello(frames.ABI_MIN, frames.ABI_MAX)))
    sock.recv(1 << 16)
    return sock


def replay(report: Report, home: Path) -> None:
    """The same program twice: it made its calls, was killed with its kernel, and makes them again."""
    made, again = Series("store writes, made", "ms"), Series("store writes, replayed", "ms")
    for turn in range(ROUNDS):
        place = home / str(turn)
        place.mkdir()
        for series in (made, again):
            began = time.perf_counter()
            kernel = Side("kernel", place)  # a boot counts on both sides: the second one reads the record
            lone(kernel.socks[0], placed_writes())
            series.samples.append((time.perf_counter() - began) * 1000)
            kernel.kill()
    report.add(made)
    report.add(again)
    share = report.ratio(f"replay of {REPLAYED} calls / making them", again, made)
    report.goal(f"replay of {REPLAYED} calls, to making them (D2)", share, "≤", 0.5, "×")


def placed_writes() -> Iterator[bytes]:
    for number in range(1, REPLAYED + 1):
        body = frames.body({"path": f"/mem/working/{number % 50}", "data": "y" * 100})
        yield frames.encode(Call(number, 2, body, pos=f"0/{number}"))


async def gate(report: Report) -> None:
    """Identify, capability, policy, labels, budget, approval of a read, beside bytes to a socket and back."""
    async with KernelSpace() as space:
        context = space.create_agent_context("bench")
        await context.write("/mem/working/x", "y" * 100)
        kernel = space._kernel  # pyright: ignore[reportPrivateUsage]
        agent = kernel.table.find("bench")
        asked = Asked(1, frames.encode_body({"path": "/mem/working/x"}))
        here, there = socketpair()
        steps, trip = Series("gate steps 1–6, a read", "µs"), Series("socketpair round trip", "µs")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in range(2000):
                kernel.gate.dry(agent, asked)
            between = time.perf_counter()
            for _ in range(2000):
                here.send(NOW)
                there.send(there.recv(1 << 16))
                here.recv(1 << 16)
            steps.samples.append((between - began) / 2000 * 1e6)
            trip.samples.append((time.perf_counter() - between) / 2000 * 1e6)
        here.close()
        there.close()
    report.add(steps)
    report.add(trip)
    report.goal(
        "gate steps 1–6, to a socketpair round trip", report.ratio("gate / socketpair", steps, trip), "≤", 3, "×"
    )


def peer(report: Report, home: Path) -> None:
    """Theirs are method calls in one process that nobody waits a disk for; ours cross to another process and are
    committed, and a write is synced, before the answer."""
    if not PEER.exists():
        report.skip("agent-os-kernel", "not installed; benchmarks/get-others installs it")
        return
    program = [str(PEER), str(Path(__file__).with_name("other_kernel.py"))]
    with subprocess.Popen(program, stdin=-1, stdout=-1, stderr=-1, text=True) as other:
        assert other.stdin
        assert other.stdout
        kernel = Side("kernel", home)
        lone(kernel.socks[0], [WRITE] * 20)
        series = {name: Series(name, "µs") for name in ("read", "write")}
        ours = {name: Series(f"ours, {name}, another process", "µs") for name in series}
        theirs = {name: Series(f"agent-os-kernel, ctx.{name}, in process", "µs") for name in series}
        for _ in range(ROUNDS):
            other.stdin.write("\n")
            other.stdin.flush()
            line = other.stdout.readline()
            if not line:
                report.skip("agent-os-kernel", other.communicate()[1].strip().splitlines()[-1])
                break
            for name, frame in (("read", READ), ("write", WRITE)):
                theirs[name].samples.append(json.loads(line)[name])
                ours[name].samples.append(statistics.median(lone(kernel.socks[0], [frame] * LONE)))
        else:
            for name in series:
                report.ratio(f"{name}: ours / agent-os-kernel", report.add(ours[name]), report.add(theirs[name]))
        kernel.close()
