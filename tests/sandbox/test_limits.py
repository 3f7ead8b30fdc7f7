"""Limits that hold on every host, and who is said to enforce which."""

import asyncio
import signal

import pytest

import agents
from agent_os.sandbox import cgroup, limits
from agent_os.sandbox.spawner import Launcher
from agent_os.sandbox.spec import GUEST_LIMITS, Limits


def test_every_limit_that_is_set_names_its_enforcer() -> None:
    for given in (Limits(), GUEST_LIMITS, Limits(cpu_s=1, wall_s=2.0, cpu_pct=10, weight=25)):
        wanted = {name for name, value in given._asdict().items() if value is not None}
        assert set(limits.enforcers(given)) == wanted


@pytest.mark.integration
def test_an_enforcer_is_named_for_what_it_really_holds() -> None:
    given = Limits(memory_mb=64, cpu_pct=10, weight=300)
    group = cgroup.Group.create("test-enforcers")
    try:
        assert limits.enforcers(given, group)["memory_mb"].startswith("nothing")  # nothing was written yet
        group.apply(given)
        said = limits.enforcers(given, group)
    finally:
        group.remove()
    for limit, controller in (("memory_mb", "memory"), ("pids", "pids"), ("cpu_pct", "cpu"), ("weight", "cpu")):
        assert ("cgroup v" in said[limit]) == (controller in group.applied)
    assert limits.enforcers(given, cgroup.Group.create("none", column="rlimits")) == limits.enforcers(given)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("given", "code", "expected"),
    [
        (Limits(as_mb=512), "try: bytearray(1 << 30)\nexcept MemoryError: print('held')", "held"),
        (Limits(nofile=64), "import os\ntry:\n while 1: os.dup(0)\nexcept OSError as e: print(e.errno)", "24"),
        (
            Limits(fsize_mb=1),
            "import signal\nsignal.signal(25, signal.SIG_IGN)\n"
            "try: open('/work/f','wb').write(bytes(2 << 20))\nexcept OSError as e: print(e.errno)",
            "27",
        ),
        (
            Limits(tmp_mb=1),
            "import errno\ntry: open('/tmp/f','wb').write(bytes(2 << 20))\n"
            "except OSError as e: print(errno.errorcode[e.errno])",
            "ENOSPC",
        ),
        (
            Limits(pids=8),
            "import os, signal\nn = 0\ntry:\n while 1:\n  pid = os.fork()\n  if not pid: signal.pause()\n  n += 1\n"
            "except BlockingIOError: print(n < 8)",
            "True",
        ),
    ],
)
def test_a_limit_holds(given: Limits, code: str, expected: str) -> None:
    ran = agents.drive(lambda box: agents.run(box, agents.spec_of("native", ["-c", code], limits=given)))
    assert ran.output.strip() == expected


@pytest.mark.integration
def test_cpu_seconds_end_an_agent() -> None:
    spec = agents.spec_of("tool", ["sh", "-c", "while :; do :; done"], limits=Limits(cpu_s=1))
    assert agents.drive(lambda box: agents.run(box, spec)).code == 128 + signal.SIGKILL


@pytest.mark.integration
def test_the_process_limit_is_per_agent() -> None:
    """One agent at its limit takes nothing from another, although in user mode both have one host uid."""
    fill = "import os, signal, sys\ntry:\n while 1:\n  if not os.fork(): signal.pause()\nexcept OSError: pass\n"

    async def body(launcher: Launcher) -> str:
        full = agents.spec_of(
            "native", ["-c", fill + "print('full', flush=True); signal.pause()"], limits=Limits(pids=16)
        )
        async with agents.started(launcher, full) as (_, output):
            assert await asyncio.to_thread(agents.read_line, output) == "full\n"
            return (await agents.run(launcher, agents.spec_of("guest", ["sh", "-c", "true; echo $(echo free)"]))).output

    assert agents.drive(body) == "free\n"
