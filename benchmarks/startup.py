"""How long commands take to start, beside `python -c pass` of the same interpreter: imports, and `agentctl` with and
without a running kernel.

All are taken in turn, with and without PYTHONDONTWRITEBYTECODE=1, each column in homes of its own. What the one column
compiles in the round that warms up, the other finds: neither shows a start without any bytecode.
"""

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks import others
from benchmarks.measure import Report, Series, Work, in_turn

from agent_os.daemon.process import LOCK

ROUNDS = 15
TO_LOCK, TO_END = 3.0, 30.0  # seconds
PROGRAMS = {"python": sys.executable, "agentctl": str(Path(sys.executable).parent / "agentctl")}
PREPARE = (
    "agentctl up --detach --no-ui",
    "agentctl run --name first -- touch made",
    "python -c 'from agent_os import KernelSpace; assert isinstance(KernelSpace, type)'",  # the import resolves it
)


class Subject(NamedTuple):
    command: str
    goal: float | None = None  # times the baseline
    home: str = "warm"  # has a kernel throughout; "cold" has none before a run, nor before `up`
    ends: bool = False  # its kernel is ended after it was measured

    @property
    def name(self) -> str:
        return f"{self.command}, {self.home}" if "run" in self.command else self.command


BASE = Subject("python -c pass")
BWRAP = Subject("bwrap --unshare-all --ro-bind / / true")
OURS = [
    Subject("python -P -m agent_os.daemon --help", goal=12),  # loads all of it, as the daemon does, and ends
    Subject("python -c 'from agent_os import KernelSpace'", goal=10),
    Subject("agentctl version", goal=3.5),
    Subject("agentctl ps", goal=6),
    Subject("agentctl status", goal=6),
    Subject("agentctl run -- true", goal=10),
    Subject("agentctl run -- true", goal=35, home="cold", ends=True),
    Subject("agentctl up --detach --no-ui", home="cold"),
    Subject("agentctl down", home="cold", ends=True),
    Subject("agentctl diff first"),
]


async def run(report: Report, long: bool, rounds: int = ROUNDS) -> None:
    subjects = [BASE, BWRAP, *OURS]
    if why := others.Other("bubblewrap", lambda argv: shlex.split(BWRAP.command), 1, Path.cwd()).why_not():
        report.skip(BWRAP.command, why)
        subjects.remove(BWRAP)
    with columns() as both:
        for column in both:
            for command in PREPARE:
                column.call(command, "warm")
        # One column right after the other, so that both meet the same load.
        works = {f"{one.name}, {column.name}": column.work(one) for one in subjects for column in both}
        series = await in_turn(works, rounds)
        for column in both:
            column.call("agentctl down", "warm")
    show(report, subjects, [column.name for column in both], series)


class Column:
    """One environment, with a project and homes of its own."""

    def __init__(self, name: str, root: Path, received: list[int], **variables: str) -> None:
        self.name, self.root, self._received = name, root, received
        (root / "project").mkdir(parents=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AGENT_OS_", "XDG_", "PYTHON"))}
        self._env = kept | {"HOME": str(root)} | variables

    def work(self, subject: Subject) -> Work:
        async def once() -> float:
            took = self.call(subject.command, subject.home)
            if subject.ends:
                end_kernel(self.root / subject.home)
            return took

        return once

    def call(self, command: str, home: str) -> float:
        """Milliseconds until the command has ended. Its session is its own, so that Ctrl-C reaches only us: an `up`
        that is ended half-way leaves a kernel that nobody can find yet."""
        program, *words = shlex.split(command)
        argv = [PROGRAMS.get(program, program), *words]
        env = self._env | {"AGENT_OS_HOME": str(self.root / home)}
        output, cwd = self.root / "output", self.root / "project"
        with output.open("wb") as out:  # no pipe: what the command leaves running could hold it open
            began = time.perf_counter()
            process = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
            try:
                code = process.wait()  # with a timeout Python would look only every 50 ms
            except KeyboardInterrupt:
                process.kill()
                process.wait()
                time.sleep(TO_LOCK)  # else the end of a kernel that it has just started would find no kernel yet
                raise
            took = (time.perf_counter() - began) * 1000
        if self._received:
            raise KeyboardInterrupt
        if code:
            raise SystemExit(f"{command} ended with {code}: {output.read_text(errors='replace').strip()}")
        return took


@contextmanager
def columns() -> Iterator[list[Column]]:
    """Both, and no kernel of theirs afterwards. A signal waits for the end of a command, a second one does not."""
    received: list[int] = []

    def receive(number: int, frame: object) -> None:
        received.append(number)
        if len(received) == 2:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with tempfile.TemporaryDirectory(prefix="agent-os-bench-") as scratch:
        both = [
            Column("plain", Path(scratch, "plain"), received),
            Column("DONTWRITEBYTECODE", Path(scratch, "without"), received, PYTHONDONTWRITEBYTECODE="1"),
        ]
        try:
            yield both
        finally:
            for number in before:
                signal.signal(number, signal.SIG_IGN)
            for home in (column.root / kind for column in both for kind in ("warm", "cold")):
                end_kernel(home)
            for number, handler in before.items():
                signal.signal(number, handler)


def is_held(home: Path) -> bool:
    """A kernel holds the lock of its home from before it has a socket until its process has ended."""
    with suppress(FileNotFoundError), (home / LOCK).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def end_kernel(home: Path) -> None:
    """Without `agentctl`, which may be what does not work."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if is_held(home):
            with suppress(SystemExit, ProcessLookupError, ValueError):
                os.kill(int((home / LOCK).read_text()), number)
                wait_for_end(home)


def wait_for_end(home: Path) -> None:
    deadline = time.monotonic() + TO_END
    while is_held(home):
        if time.monotonic() > deadline:
            raise SystemExit(f"the kernel of {home} has not ended after {TO_END:.0f} s")
        time.sleep(0.005)


def show(report: Report, subjects: list[Subject], names: list[str], series: dict[str, Series]) -> None:
    print(f"  {'':<46}" + "".join(f"{name:<25}" for name in names))
    print(f"  {'what':<44}" + f"{'ms':>8}{'times':>7}{'':<10}" * len(names) + "goal")
    for subject in subjects:
        line = f"  {subject.name:<44}"
        for name in names:
            one, verdict = report.add(series[f"{subject.name}, {name}"], quiet=True), ""
            times = report.ratio(f"{one.name} / {BASE.name}", one, series[f"{BASE.name}, {name}"], quiet=True)
            if subject.goal:
                verdict = "ok" if report.goal(one.name, times, "≤", subject.goal, "×", quiet=True).met else "missed"
            line += f"{one.p50:8.1f}{times:7.1f}  {verdict:<8}"
        print(line + (f"≤ {subject.goal:g}" if subject.goal else ""), flush=True)
