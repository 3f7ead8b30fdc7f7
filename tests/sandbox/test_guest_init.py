"""Commands beside an agent's own: run by its init, in its confinement, and ended with their time."""

import asyncio
import json
import os
import signal
from typing import Any

import pytest

import agents
from agent_os.sandbox.spawner import Launcher, Process
from agent_os.sandbox.spec import SpecError, decode, encode

pytestmark = pytest.mark.integration


async def ask(process: Process, **said: Any) -> dict[str, Any]:
    assert process.probes
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(process.probes, json.dumps(said).encode())
    async with asyncio.timeout(20):
        return json.loads(await loop.sock_recv(process.probes, 4096))


def probed(script: str) -> Any:
    return agents.spec_of("guest", ["/bin/sh", "-c", script], probes=True)


def test_the_init_runs_what_the_kernel_names_where_the_agent_is() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, probed("touch /tmp/mine; echo up; sleep 600")) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            assert await ask(process, run=1, argv=["test", "-e", "/tmp/mine"]) == {"ended": 1, "code": 0}
            assert await ask(process, run=2, argv=["test", "-e", "/tmp/other"]) == {"ended": 2, "code": 1}
            assert (await ask(process, run=3, argv=["/no/such"]))["code"] == 125
            same = "grep -q 'NoNewPrivs:.1' /proc/self/status && grep -q 'Seccomp:.2' /proc/self/status"
            same += ' && grep -q "CapEff:.0*$" /proc/self/status && test "$(id -u)" = 1000'
            assert await ask(process, run=4, argv=["sh", "-c", same]) == {"ended": 4, "code": 0}

    agents.drive(body)


def test_what_runs_beside_it_holds_nothing_of_the_kernel_s() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, probed("echo up; sleep 600")) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            only = (
                "import os; fds = os.listdir('/proc/self/fd'); there = [os.readlink(f'/proc/self/fd/{n}') for n in fds"
            )
            only += " if os.path.exists(f'/proc/self/fd/{n}')]; raise SystemExit(there != ['/dev/null'] * 3)"
            assert await ask(process, run=1, argv=["python3", "-c", only]) == {"ended": 1, "code": 0}

    agents.drive(body)


def test_the_agent_cannot_reach_for_what_its_init_is_asked_by() -> None:
    look = (
        "import ctypes, os\n"
        "call = ctypes.CDLL(None, use_errno=True).syscall\n"
        "def taken(pid):\n"
        "    try: fd = os.pidfd_open(pid)\n"
        "    except OSError: return 0\n"
        "    return sum(call(438, fd, number, 0) >= 0 for number in range(16))\n"
        "def seen(pid):\n"
        "    try: return len(os.listdir(f'/proc/{pid}/fd'))\n"
        "    except OSError: return 0\n"
        "print(seen(os.getpid()) > 0, seen(1), taken(1), flush=True)\n"
    )

    async def body(launcher: Launcher) -> None:
        spec = agents.spec_of("guest", ["python3", "-c", look], probes=True, exec_memfd=True)
        ran = await agents.run(launcher, spec)
        assert ran.output == "True 0 0\n"

    agents.drive(body)


def test_what_takes_too_long_is_ended_with_all_it_started() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, probed("echo up; sleep 600")) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            assert process.probes
            long = {"run": 7, "argv": ["sh", "-c", "sleep 600 & sleep 600"]}
            await asyncio.get_running_loop().sock_sendall(process.probes, json.dumps(long).encode())
            assert await ask(process, end=7) == {"ended": 7, "code": 128 + signal.SIGKILL}

    agents.drive(body)


def test_the_end_of_the_agent_is_told_though_something_runs_beside_it() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, probed("until [ -e /tmp/go ]; do sleep 0.02; done; exit 5")) as (
            process,
            _,
        ):
            assert await ask(process, run=1, argv=["sh", "-c", "sleep 600 &"]) == {"ended": 1, "code": 0}
            assert process.probes
            last = {"run": 2, "argv": ["sh", "-c", "touch /tmp/go; sleep 600"]}
            await asyncio.get_running_loop().sock_sendall(process.probes, json.dumps(last).encode())
            assert (await process.wait()).code == 5
            assert process.probes.recv(10) == b""

    agents.drive(body)


def test_an_abort_reaches_the_command_and_may_leave_its_mark() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, probed("trap 'exit 66' ABRT; echo up; while :; do sleep 0.05; done")) as (
            process,
            output,
        ):
            await asyncio.to_thread(agents.read_line, output)
            process.signal(signal.SIGABRT)
            assert (await process.wait()).code == 66

    agents.drive(body)


def test_a_warm_agent_has_no_init_to_ask() -> None:
    spec = agents.spec_of("native", ["-c", "pass"], probes=True)
    with pytest.raises(SpecError, match="warm"):
        decode(encode(spec))


def test_closing_a_process_gives_its_socket_back() -> None:
    async def body(launcher: Launcher) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            async with agents.started(launcher, probed("exit 0")) as (process, _):
                await process.wait()
        assert len(os.listdir("/proc/self/fd")) == before

    agents.drive(body)
