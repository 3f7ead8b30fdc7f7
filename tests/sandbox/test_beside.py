"""The kernel's end of the socket to an agent's init: what it asks, and what it makes of whatever is answered.

The other end is this test's here, so that it can say what an init of ours never would.
"""

import array
import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_os.sandbox.beside import Commands, End
from agent_os.sandbox.spec import MAX_BYTES

Work = Callable[[Commands, socket.socket], Awaitable[None]]


@asynccontextmanager
async def line() -> AsyncGenerator[tuple[Commands, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    commands = Commands(ours)
    with theirs:
        try:
            yield commands, theirs
        finally:
            commands.close()


def run(work: Work) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), line() as (commands, theirs):
            await work(commands, theirs)

    asyncio.run(main())


def heard(theirs: socket.socket) -> dict[str, Any]:
    return json.loads(theirs.recv(MAX_BYTES))


def say(theirs: socket.socket, said: object) -> None:
    theirs.send(said if isinstance(said, bytes) else json.dumps(said).encode())


def test_a_command_is_asked_for_signalled_and_told_by_its_own_number() -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        first, second = commands.start(["ls", "-l"], {"A": "b"}), commands.start(["cat"])
        assert heard(theirs) == {"run": 1, "argv": ["ls", "-l"], "env": {"A": "b"}}
        assert heard(theirs) == {"run": 2, "argv": ["cat"], "env": {}}
        second.signal(signal.SIGTERM)
        assert heard(theirs) == {"signal": 2, "number": signal.SIGTERM}
        say(theirs, {"ended": 2, "code": 143})
        assert await second.wait() == End(143)
        say(theirs, {"ended": 1, "code": 0})
        assert await first.wait() == End(0)

    run(work)


def test_a_signal_goes_once_and_none_to_what_has_ended() -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        one = commands.start(["sleep"])
        for _ in range(1000):
            one.signal(signal.SIGTERM)
        one.signal(signal.SIGKILL)
        assert [heard(theirs).get("number") for _ in range(3)] == [None, signal.SIGTERM, signal.SIGKILL]
        other = commands.start(["true"])
        heard(theirs)
        say(theirs, {"ended": 2, "code": 0})
        await other.wait()
        other.signal(signal.SIGKILL)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)

    run(work)


LIES: list[object] = [
    b"\xff\xfe no text",
    b"[" * 4000,
    b"7",
    {},
    {"ended": 2, "code": 0},
    {"ended": "1", "code": 0},
    {"ended": True, "code": 0},
    {"ended": [1], "code": 0},
    {"ended": 1.0, "code": 0},
    {"spawned": 1},
]


@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_what_is_no_answer_ends_nothing(lie: object) -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        one = commands.start(["ls"])
        say(theirs, lie)
        say(theirs, {"ended": 1, "code": 3})  # heard after that
        assert await one.wait() == End(3)

    run(work)


@pytest.mark.parametrize("code", [None, "0", 256, -1, 1 << 70, True, 0.5, [0]])
def test_a_code_that_is_none_is_not_taken_for_one(code: object) -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        one = commands.start(["ls"])
        say(theirs, {"ended": 1, "code": code})
        assert await one.wait() == End(None)

    run(work)


def test_a_reason_is_cut_and_must_be_text() -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        long, odd = commands.start(["ls"]), commands.start(["ls"])
        say(theirs, {"ended": 1, "code": 125, "why": "x" * 3000})
        say(theirs, {"ended": 2, "code": 125, "why": {"x": 1}})
        assert await long.wait() == End(125, "x" * 200)
        assert await odd.wait() == End(125)

    run(work)


def test_descriptors_that_come_with_an_answer_are_not_taken() -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        before = len(os.listdir("/proc/self/fd"))
        one = commands.start(["ls"])
        reading, writing = os.pipe()
        socket.send_fds(theirs, [b'{"ended": 1, "code": 0}'], [reading, writing])
        os.close(reading)
        os.close(writing)
        assert await one.wait() == End(0)
        assert len(os.listdir("/proc/self/fd")) == before

    run(work)


def test_an_init_that_takes_no_questions_holds_nobody_and_gets_a_bounded_number_of_them() -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        started = 0
        with contextlib.suppress(BlockingIOError):  # EAGAIN: it takes no questions
            while started < 1000:
                commands.start(["ls", "x" * 10_000])
                started += 1
        assert 0 < started < 1000
        for number in range(1, started + 1):  # and when it takes them, they are all there, in order
            assert (await asyncio.to_thread(heard, theirs))["run"] == number
        commands.start(["ls"])
        assert (await asyncio.to_thread(heard, theirs))["run"] == started + 1

    run(work)


def test_streams_are_lent_also_where_the_question_has_to_wait() -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(40):
            commands.start(["ls", "x" * 10_000])
        reading, writing = os.pipe()
        commands.start(["cat"], streams=(reading, writing, writing))
        os.close(reading)
        os.close(writing)
        for _ in range(40):
            await asyncio.to_thread(heard, theirs)
        message, ancillary, _, _ = await asyncio.to_thread(theirs.recvmsg, MAX_BYTES, socket.CMSG_SPACE(12))
        assert json.loads(message)["argv"] == ["cat"]
        came = array.array("i", b"".join(data for _, _, data in ancillary)).tolist()
        os.write(came[1], b"through")
        assert os.read(came[0], 10) == b"through"
        for fd in came:
            os.close(fd)
        assert len(os.listdir("/proc/self/fd")) == before

    run(work)


def test_the_end_of_an_init_is_the_end_of_all_it_ran() -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        two = [commands.start(["ls"]), commands.start(["ls"])]
        theirs.close()
        assert [await one.wait() for one in two] == [End(137, lost=True)] * 2
        two[0].signal(signal.SIGKILL)
        with pytest.raises(BrokenPipeError):
            commands.start(["ls"])

    run(work)


def test_a_question_whose_streams_linux_does_not_take_is_told_and_the_next_one_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Descriptors on their way are counted for a whole user, which without root is also the agents'."""

    async def work(commands: Commands, theirs: socket.socket) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patched:
            patched.setattr(socket, "send_fds", too_many)
            one = commands.start(["ls"], streams=(0, 1, 2))
            assert await one.wait() == End(None, os.strerror(errno.ETOOMANYREFS))
        assert len(os.listdir("/proc/self/fd")) == before
        commands.start(["ls"])
        assert heard(theirs)["run"] == 2

    def too_many(*_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    run(work)


def test_what_is_too_long_is_refused_and_harms_nobody() -> None:
    async def work(commands: Commands, theirs: socket.socket) -> None:
        one = commands.start(["ls"])
        with pytest.raises(OSError, match="too long"):
            commands.start(["ls", "x" * MAX_BYTES])
        heard(theirs)
        say(theirs, {"ended": 1, "code": 0})
        assert await one.wait() == End(0)

    run(work)
