"""Attempts to take more than one's share, with a half in the kernel: memory, disk, processors, output, time.

Each has its control in the same test: without the bound, the same program gets what it wants.
"""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agents
import leftovers
from agent_os.kernel.tools import run_tool
from agent_os.sandbox import hierarchies
from agent_os.sandbox.spawner import Launcher
from agent_os.sandbox.spec import GUEST_LIMITS, Limits, Workspace
from guests.agentctl import Machine
from hostile import report

pytestmark = pytest.mark.hostile
MB = 1 << 20
EAT = "b = bytearray(); [b.extend(bytes(1 << 20)) for _ in range({})]; print('ate', len(b) >> 20, flush=True)"
SPAWN_SECONDS = 5.0  # for one tool, however busy other agents are


def _note(number: str, name: str) -> None:
    """Only reached where every assertion held: the control worked, the attempt did not."""
    report.OWN.append((number, name, "works", "held"))


def _python() -> str:
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else os.path.realpath(sys.executable)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_88_a_guest_cannot_eat_more_memory_than_its_limit() -> None:
    """Many processes, each small: only what caps the agent as a whole can stop them."""
    if "memory" not in hierarchies.detect().controllers:
        pytest.skip("cgroup: no memory controller that we may use, and a guest has no other bound on memory")
    eat = f"import os, time; pids = [os.fork() for _ in range(3)]; {EAT.format(60)}; time.sleep(2 if pids[0] else 1)"

    async def eaten(launcher: Launcher, memory_mb: int) -> tuple[str, bool]:
        limits = replace(GUEST_LIMITS, memory_mb=memory_mb)
        spec = agents.spec_of("guest", [_python(), "-Ic", eat], limits=limits)
        async with agents.started(launcher, spec) as (process, output):
            text = await asyncio.to_thread(agents.read_all, output)
            await process.wait()
            return text, process.ran_out_of_memory()

    async def both(launcher: Launcher) -> tuple[tuple[str, bool], tuple[str, bool]]:
        return await eaten(launcher, 2048), await eaten(launcher, 128)

    control, held = agents.drive(both)
    assert control == ("ate 60\n" * 8, False)
    assert held[0].count("ate 60") < 8
    assert held[1]
    _note("88b", "memory beyond a guest's cap, by many small processes")


@pytest.mark.parametrize(
    ("number", "what", "code"),
    [
        ("89d", "blocks", "open(f'x{n}', 'wb').write(bytes(1 << 20))"),
        ("90c", "directories", "os.mkdir(f'x{n}')"),
        ("90d", "empty files", "open(f'x{n}', 'w').close()"),
    ],
    ids=["blocks", "directories", "empty files"],
)
def test_89_90_a_workspace_does_not_outgrow_its_disk_limit(machine: Machine, number: str, what: str, code: str) -> None:
    times = {"blocks": 40, "directories": 8_000, "empty files": 20_000}[what]
    fill = f"import os, time\nfor n in range({times}): {code}\nprint('done', flush=True); time.sleep(20)"
    ran = machine.run(_python(), "-Ic", fill, flags=["--discard", "--timeout", "10s", "--limit", "disk_mb=16"])
    assert "outgrew its disk limit" in ran.err
    outside = machine.top / "outside"
    outside.mkdir()
    done = subprocess.run(
        [_python(), "-Ic", fill.replace("time.sleep(20)", "")], cwd=outside, capture_output=True, text=True
    )
    assert done.stdout == "done\n"
    _note(number, f"a workspace filled with {what} beyond its disk limit")


def test_89_sparse_files_cost_the_kernel_no_more_than_their_author(machine: Machine) -> None:
    make = "import os\nfor n in range(4): os.truncate(os.open(f's{n}', os.O_CREAT | os.O_RDWR), 8000 << 20)"
    began = time.monotonic()
    ran = machine.run(_python(), "-Ic", make, flags=["--discard"])
    assert ran.code == 0
    assert time.monotonic() - began < 10
    _note("89e", "sparse files that the kernel would read for hours")


def test_93_agents_on_every_processor_do_not_starve_the_kernel() -> None:
    spin = "import os, sys; [os.fork() for _ in range(4)]; print('spins', flush=True)\nwhile True: pass"

    async def measured(launcher: Launcher) -> list[float]:
        seconds: list[float] = []
        for _ in range(15):
            began = time.monotonic()
            assert (await run_tool(launcher, f"t-{secrets.token_hex(4)}", ["/bin/true"])).code == 0
            seconds.append(time.monotonic() - began)
        return sorted(seconds)

    async def both(launcher: Launcher) -> tuple[list[float], list[float]]:
        idle = await measured(launcher)
        spec = agents.spec_of("guest", [_python(), "-Ic", spin], limits=GUEST_LIMITS)
        async with agents.started(launcher, spec) as (_, output):
            for _ in range(16):
                await asyncio.to_thread(agents.read_line, output)
            return idle, await measured(launcher)

    idle, busy = agents.drive(both)
    assert busy[-1] < SPAWN_SECONDS
    assert busy[len(busy) // 2] > idle[0]  # the control: the load is felt
    _note("93", f"16 spinning processes; the slowest of 15 spawns took {busy[-1] * 1000:.0f} ms")


def test_94_a_flood_on_stdout_is_cut_and_marked() -> None:
    async def flood(launcher: Launcher) -> tuple[Any, int]:
        before = _peak(os.getpid())
        words = ["head", "-c", str(1024 * MB), "/dev/zero"]
        result = await run_tool(launcher, f"t-{secrets.token_hex(4)}", words)
        return result, _peak(os.getpid()) - before

    result, grown = agents.drive(flood)
    assert result.code == 0
    assert result.stdout.truncated
    assert len(result.stdout.data) == MB
    assert grown < 32
    naive = f"import subprocess; subprocess.run(['head', '-c', '{256 * MB}', '/dev/zero'], capture_output=True)\n"
    naive += "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    control = subprocess.run([_python(), "-Ic", naive], capture_output=True, text=True)
    assert int(control.stdout) > 256  # the control: who keeps everything grows by it
    _note("94", f"1 GB on a tool's stdout: the kernel grew by {grown} MB")


@pytest.mark.parametrize("reader", ["fast", "slow"])
def test_94_agentctl_does_not_grow_with_its_guests_output(machine: Machine, reader: str) -> None:
    size = 512 * MB if reader == "fast" else 64 * MB
    flags = ["-q"] if reader == "fast" else ["-q", "--timeout", "3s"]
    running = machine.start("head", "-c", str(size), "/dev/zero", flags=flags)
    assert running.stdout is not None
    peak = 0
    if reader == "fast":
        while running.stdout.read1(1 << 20):  # type: ignore[attr-defined]
            peak = max(peak, _peak(running.pid))
    else:
        assert leftovers.becomes_true(lambda: running.poll() is not None or _full(running.stdout.fileno()), 20)  # type: ignore[union-attr]
        peak = _peak(running.pid)
        running.stdout.close()
    running.communicate(timeout=60)
    assert 0 < peak < 128
    _note("94b", f"agentctl with a {reader} reader of a flood: at most {peak} MB")


def _full(pipe: int) -> bool:
    """Whether a pipe that nobody reads has taken all it can."""
    import array
    import fcntl

    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, 0x541B, waiting)  # FIONREAD
    return waiting[0] >= 60000


def _peak(pid: int) -> int:
    """The most memory a process ever had, in MB; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")), 0)


@pytest.mark.parametrize("trick", ["sleep", "deaf", "stopped", "daemon"])
def test_96_nobody_sleeps_past_the_wall(trick: str) -> None:
    tricks = {
        "sleep": "exec sleep 60",
        "deaf": "trap '' TERM INT HUP ALRM; while :; do sleep 60; done",
        "stopped": "kill -STOP $$; sleep 60",
        "daemon": "setsid sh -c 'trap \"\" TERM; sleep 60' </dev/null >/dev/null 2>&1 & exec sleep 60",
    }
    known = set(leftovers.processes())

    async def late(launcher: Launcher) -> tuple[Any, float]:
        began = time.monotonic()
        limits = Limits(wall_s=0.5)
        result = await run_tool(launcher, f"t-{secrets.token_hex(4)}", ["sh", "-c", tricks[trick]], limits=limits)
        return result, time.monotonic() - began

    result, seconds = agents.drive(late)
    assert result.timed_out
    assert result.code == 124
    assert seconds < 3
    assert leftovers.becomes_true(lambda: not set(leftovers.processes()) - known, 1.0)
    _note("96", f"past the wall clock: {trick}")


def test_96_a_guest_does_not_outlive_its_timeout(machine: Machine) -> None:
    began = time.monotonic()
    ran = machine.run("sh", "-c", "trap '' TERM INT HUP; sleep 60; sleep 60", flags=["-q", "--timeout", "1s"])
    assert ran.code == 124
    assert time.monotonic() - began < 8
    _note("96b", "a guest past its --timeout")


def test_a_tmpfs_workspace_is_bounded_in_size_and_entries() -> None:
    """89, 90: what an agent without a project gets."""
    fill = (
        "head -c 40M /dev/zero >/work/x || echo full; rm -f /work/x; for n in $(seq 200); do touch /work/$n || break; "
    )
    fill += "done; echo $n entries"

    async def filled(launcher: Launcher) -> agents.Ran:
        workspace = Workspace("tmpfs", "/work", size_mb=16, inodes=100)
        return await agents.run(launcher, agents.spec_of("tool", ["bash", "-c", fill], workspace=workspace))

    ran = agents.drive(filled)
    assert "full" in ran.output.splitlines()
    assert int(ran.output.splitlines()[-1].split()[0]) < 150
    _note("89f", "a workspace in memory beyond its size and entries")


NESTED = "for _ in range(1500): os.mkdir('d'); os.chdir('d')\nos.chdir('/work')"
UNREADABLE = "os.mkdir('d'); os.chmod('d', 0o300); os.chdir('d')"


@pytest.mark.parametrize(
    ("number", "trick", "before"),
    [
        ("89g", "below a very deep directory", NESTED),
        ("89i", "in a directory that cannot be read", UNREADABLE),
    ],
    ids=["deep", "unreadable"],
)
def test_89_what_fills_the_disk_cannot_hide(machine: Machine, number: str, trick: str, before: str) -> None:
    """Recorded, not promised: files that were deleted and are still open (docs/threat-model.md)."""
    fill = f"import os, time\n{before}\nheld = []\nfor n in range(60):\n"
    fill += " held.append(open(f'x{n}', 'wb', 0)); held[-1].write(os.urandom(1 << 20))\n"
    fill += "print('done', flush=True); time.sleep(20)"
    ran = machine.run(_python(), "-Ic", fill, flags=["--discard", "--timeout", "8s", "--limit", "disk_mb=16"])
    assert "outgrew its disk limit" in ran.err
    _note(number, f"60 MB {trick} with a disk limit of 16 MB")


WATCHES = """
import ctypes, time
libc, count = ctypes.CDLL(None), 0
while libc.inotify_init() >= 0:
    count += 1
print(count, flush=True)
time.sleep(20)
"""


def test_115_an_agent_does_not_take_all_of_the_operators_watches(machine: Machine) -> None:
    """Linux counts them for each user; without root an agent is the operator's user."""
    running = machine.start(_python(), "-Ic", WATCHES, flags=["-q"])
    assert running.stdout is not None
    taken = int(running.stdout.readline())
    probe = "import ctypes; print(ctypes.CDLL(None).inotify_init())"
    left = subprocess.run([_python(), "-Ic", probe], capture_output=True, text=True).stdout.strip()
    running.terminate()
    running.communicate(timeout=30)
    assert taken > 8  # the control: it took what it could get
    assert left != "-1"
    _note("115", f"all of the operator's inotify instances; {taken} were to be had")


IN_FLIGHT = """
import os, socket, time
null, held, sent = os.open("/dev/null", os.O_RDONLY), [], 0
try:
    while sent < 20000:
        one, other = socket.socketpair()
        held += [one, other]
        one.setblocking(False)
        try:
            while True:
                socket.send_fds(one, [b"x"], [null] * 200)
                sent += 200
        except BlockingIOError:
            pass
except OSError:
    pass
print(sent, flush=True)
time.sleep(20)
"""
QUEUED = """
import ctypes, os, signal, time
libc, sent = ctypes.CDLL(None), 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
while sent < 200000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN + 1, None) == 0:
    sent += 1
print(sent, flush=True)
time.sleep(20)
"""
TIMER = "import ctypes; t = ctypes.c_void_p(); print(ctypes.CDLL('librt.so.1').timer_create(1, None, ctypes.byref(t)))"


def test_116_descriptors_in_flight_do_not_stop_other_agents(machine: Machine) -> None:
    running = machine.start(_python(), "-Ic", IN_FLIGHT, flags=["-q"])
    assert running.stdout is not None
    sent = int(running.stdout.readline())
    command = machine.command("echo", "here", flags=["-q"])
    other = subprocess.run(command, env=machine.environment(), cwd=machine.project, capture_output=True)
    running.terminate()
    running.communicate(timeout=30)
    assert sent > 100  # the control: they are in flight
    assert other.stdout == b"here\n", other.stderr
    _note("116", f"{sent} descriptors in flight; another agent starts")


def test_117_queued_signals_do_not_use_up_the_operators(machine: Machine) -> None:
    running = machine.start(_python(), "-Ic", QUEUED, flags=["-q"])
    assert running.stdout is not None
    sent = int(running.stdout.readline())
    timer = subprocess.run([_python(), "-Ic", TIMER], capture_output=True, text=True).stdout.strip()
    running.terminate()
    running.communicate(timeout=30)
    assert sent > 100  # the control: they are queued
    assert timer == "0"
    _note("117", f"{sent} queued signals; the operator still has timers")
