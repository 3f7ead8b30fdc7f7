"""Commands beside an agent's own: run by its init, in its confinement, and ended with their time."""

import asyncio
import os
import signal
from typing import Any

import pytest

import agents
from agent_os.sandbox.beside import Command, End
from agent_os.sandbox.spawner import Launcher, Process
from agent_os.sandbox.spec import Limits, SpecError, decode, encode

pytestmark = pytest.mark.integration


def start(process: Process, *argv: str) -> Command:
    assert process.commands
    return process.commands.start(argv)


async def ran(process: Process, *argv: str) -> End:
    async with asyncio.timeout(20):
        return await start(process, *argv).wait()


def asked(script: str) -> Any:
    return agents.spec_of("guest", ["/bin/sh", "-c", script], beside=True)


def test_the_init_runs_what_the_kernel_names_where_the_agent_is() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, asked("touch /tmp/mine; echo up; sleep 600")) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            assert await ran(process, "test", "-e", "/tmp/mine") == End(0)
            assert await ran(process, "test", "-e", "/tmp/other") == End(1)
            assert await ran(process, "/no/such") == End(125, "No such file or directory")
            same = "grep -q 'NoNewPrivs:.1' /proc/self/status && grep -q 'Seccomp:.2' /proc/self/status"
            same += ' && grep -q "CapEff:.0*$" /proc/self/status && test "$(id -u)" = 1000'
            assert await ran(process, "sh", "-c", same) == End(0)

    agents.drive(body)


def test_what_runs_beside_it_holds_nothing_of_the_kernel_s() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, asked("echo up; sleep 600")) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            only = (
                "import os; fds = os.listdir('/proc/self/fd'); there = [os.readlink(f'/proc/self/fd/{n}') for n in fds"
            )
            only += " if os.path.exists(f'/proc/self/fd/{n}')]; raise SystemExit(there != ['/dev/null'] * 3)"
            assert await ran(process, "python3", "-c", only) == End(0)

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
        spec = agents.spec_of("guest", ["python3", "-c", look], beside=True, exec_memfd=True)
        ran = await agents.run(launcher, spec)
        assert ran.output == "True 0 0\n"

    agents.drive(body)


def test_what_takes_too_long_is_ended_with_all_it_started() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, asked("echo up; sleep 600")) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            long = start(process, "sh", "-c", "sleep 700 & sleep 700")
            both, none = (
                "test $(grep -l '[7]00' /proc/[0-9]*/cmdline | wc -l) -ge 2",
                "! grep -q '[7]00' /proc/[0-9]*/cmdline",
            )
            async with asyncio.timeout(60):
                while await ran(process, "sh", "-c", both) != End(0):
                    pass
                long.signal(signal.SIGKILL)
                assert await long.wait() == End(128 + signal.SIGKILL)
                while await ran(process, "sh", "-c", none) != End(0):
                    pass

    agents.drive(body)


def test_the_end_of_the_agent_is_told_though_something_runs_beside_it() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, asked("until [ -e /tmp/go ]; do sleep 0.02; done; exit 5")) as (
            process,
            _,
        ):
            assert await ran(process, "sh", "-c", "sleep 600 &") == End(0)
            last = start(process, "sh", "-c", "touch /tmp/go; sleep 600")
            assert (await process.wait()).code == 5
            async with asyncio.timeout(20):
                assert (await last.wait()).lost

    agents.drive(body)


async def output_of(process: Process, *argv: str, said: bytes = b"", **env: str) -> tuple[End, bytes]:
    """Of a command with pipes for its streams; what it writes to both, together."""
    assert process.commands
    (their_input, feed), (reading, theirs) = os.pipe(), os.pipe()
    command = process.commands.start(argv, env, (their_input, theirs, theirs))
    os.close(their_input)
    os.close(theirs)
    os.write(feed, said)
    os.close(feed)
    try:
        text = await asyncio.to_thread(agents.read_all, reading)
        async with asyncio.timeout(20):
            return await command.wait(), text.encode()
    finally:
        os.close(reading)


def test_a_command_has_the_streams_that_came_with_it_and_nothing_else() -> None:
    look = "import os; print(sorted(os.listdir('/proc/self/fd'))[:4], os.readlink('/proc/self/fd/1')[:5])"

    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, asked("echo up; sleep 600")) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            assert await output_of(process, "cat", said=b"in and out") == (End(0), b"in and out")
            assert await output_of(process, "sh", "-c", "echo err >&2; exit 9") == (End(9), b"err\n")
            end, seen = await output_of(process, "python3", "-c", look)  # the fourth is the list that it is reading
            assert (end, seen) == (End(0), b"['0', '1', '2', '3'] pipe:\n")

    agents.drive(body)


def test_a_command_finds_what_the_agent_finds_in_its_environment_but_for_the_kernel_s_socket() -> None:
    async def body(launcher: Launcher) -> None:
        spec = agents.spec_of(
            "guest", ["/bin/sh", "-c", "echo up; sleep 600"], beside=True, env={"AGENT_OS_FD": "3", "MINE": "yes"}
        )
        async with agents.started(launcher, spec) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            told = "echo ${MINE-none} ${AGENT_OS_FD-none} ${MORE-none}"
            assert await output_of(process, "sh", "-c", told, MORE="more") == (End(0), b"yes none more\n")

    agents.drive(body)


def test_a_word_that_no_command_can_have_does_not_end_the_agent() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, asked("echo up; sleep 600")) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            assert await ran(process, "echo", "a\0b") == End(125, "embedded null byte")
            assert await ran(process, "true") == End(0)

    agents.drive(body)


def test_what_the_agent_does_to_its_init_keeps_no_command_from_running() -> None:
    """Signals of all kinds, as many as it can send: pid 1 of a namespace is not stopped from within."""
    flood = (
        "import os, signal\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    for number in (signal.SIGIO, signal.SIGCHLD, signal.SIGSTOP, signal.SIGKILL, signal.SIGSEGV):\n"
        "        os.kill(1, number)\n"
    )

    async def body(launcher: Launcher) -> None:
        spec = agents.spec_of("guest", ["python3", "-c", flood], beside=True)
        async with agents.started(launcher, spec) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            for _ in range(5):
                assert await ran(process, "true") == End(0)
            assert not process.exited.done()

    agents.drive(body)


def test_a_command_for_which_the_agent_leaves_no_room_is_told_and_runs_when_there_is_some() -> None:
    full = (
        "import os, signal\n"
        "children = []\n"
        "mine = os.getpid()\n"
        "def leave(*_):\n"
        "    gone, children[:] = children[:], []\n"
        "    if os.getpid() != mine or not gone: return\n"  # all of its group hears it, and may hear it twice
        "    for one in gone: os.kill(one, 9)\n"
        "    for one in gone: os.waitpid(one, 0)\n"
        "    os.write(1, b'room\\n')\n"  # print refuses while it is still about the line before
        "signal.signal(signal.SIGUSR1, leave)\n"
        "while True:\n"
        "    try: pid = os.fork()\n"
        "    except OSError: break\n"
        "    while not pid: signal.pause()\n"
        "    children.append(pid)\n"
        "print('full', flush=True)\n"
        "while True: signal.pause()\n"
    )

    async def body(launcher: Launcher) -> None:
        limits = Limits(memory_mb=None, as_mb=None, pids=40, fsize_mb=None)
        spec = agents.spec_of("guest", ["python3", "-c", full], beside=True, limits=limits)
        async with agents.started(launcher, spec) as (process, output):
            assert await asyncio.to_thread(agents.read_line, output) == "full\n"
            assert await ran(process, "true") == End(125, "Resource temporarily unavailable")
            process.signal(signal.SIGUSR1)
            assert await asyncio.to_thread(agents.read_line, output) == "room\n"
            assert await ran(process, "true") == End(0)

    agents.drive(body)


MEDDLES = (
    "import ctypes, os, signal, sys\n"
    "call = ctypes.CDLL(None, use_errno=True).syscall\n"
    "def other():\n"
    "    for name in os.listdir('/proc'):\n"
    "        if name.isdigit() and int(name) not in (1, os.getpid()):\n"
    "            if b'victim' in open(f'/proc/{name}/cmdline', 'rb').read(): return int(name)\n"
    "print('up', flush=True)\n"
    "while not (pid := other()): pass\n"
    "os.kill(pid, 0)\n"  # it sees it, and has its uid: what is refused is refused for another reason
    "attached = call(101, 16, pid, 0, 0) == 0\n"
    "read = call(310, pid, None, 0, None, 0, 0) == 0\n"
    "print('ptrace', attached, 'process_vm_readv', read, flush=True)\n"
    "os.kill(pid, signal.SIGTERM)\n"
    "signal.pause()\n"
)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of these system calls are those of x86_64")
def test_the_agent_can_end_a_command_beside_it_but_neither_trace_nor_read_it() -> None:
    async def body(launcher: Launcher) -> None:
        spec = agents.spec_of("guest", ["python3", "-c", MEDDLES], beside=True)
        async with agents.started(launcher, spec) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            assert await ran(process, "sh", "-c", "sleep 600; : victim") == End(128 + signal.SIGTERM)
            said = await asyncio.to_thread(agents.read_line, output)
            assert said == "ptrace False process_vm_readv False\n"

    agents.drive(body)


def test_one_that_joins_another_group_is_ended_all_the_same() -> None:
    """The group of the agent's own command; who stays in the group that it left is ended as well."""
    moves = (
        "import os, subprocess, time\n"
        "stays = subprocess.Popen(['sleep', '600'])\n"
        "os.setpgid(0, int(open('/tmp/group').read()))\n"
        "print('moved', os.getpgid(0) != os.getpid(), stays.pid, flush=True)\n"
        "time.sleep(600)\n"
    )

    async def body(launcher: Launcher) -> None:
        agent = "echo $$ > /tmp/group; echo up; sleep 600"
        async with agents.started(launcher, asked(agent)) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            assert process.commands
            reading, writing = os.pipe()
            command = process.commands.start(["python3", "-c", moves], {}, (writing, writing, writing))
            os.close(writing)
            moved, is_so, stays = (await asyncio.to_thread(agents.read_line, reading)).split()
            assert (moved, is_so) == ("moved", "True")
            command.signal(signal.SIGKILL)
            async with asyncio.timeout(20):
                assert await command.wait() == End(128 + signal.SIGKILL)
            await asyncio.to_thread(agents.read_all, reading)  # nobody has its streams any more
            os.close(reading)
            gone = f"while kill -0 {stays}; do sleep 0.01; done"  # it is dead, but its init may have to take note
            assert await ran(process, "sh", "-c", gone) == End(0)
            assert not process.exited.done()

    agents.drive(body)


def test_an_abort_reaches_the_command_and_may_leave_its_mark() -> None:
    async def body(launcher: Launcher) -> None:
        async with agents.started(launcher, asked("trap 'exit 66' ABRT; echo up; while :; do sleep 0.05; done")) as (
            process,
            output,
        ):
            await asyncio.to_thread(agents.read_line, output)
            process.signal(signal.SIGABRT)
            assert (await process.wait()).code == 66

    agents.drive(body)


def test_a_warm_agent_has_no_init_to_ask() -> None:
    spec = agents.spec_of("native", ["-c", "pass"], beside=True)
    with pytest.raises(SpecError, match="warm"):
        decode(encode(spec))


def test_closing_a_process_gives_its_socket_back() -> None:
    async def body(launcher: Launcher) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            async with agents.started(launcher, asked("exit 0")) as (process, _):
                await process.wait()
        assert len(os.listdir("/proc/self/fd")) == before

    agents.drive(body)
