"""Commands that run beside an agent's own, in its sandbox: the kernel's end of the socket to the agent's init.

In: a command, what more it finds in its environment, and three streams. Out: a `Command`, whose end can be awaited and
which can be signalled. Nothing enters a sandbox from outside: its init starts what is named here (`guest_init.py`).
Never waits for the agent: what the socket does not take now is kept, up to a bound. What comes back is an agent's word.
"""

import asyncio
import errno
import json
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from agent_os.sandbox.spec import MAX_BYTES

_LARGEST = 4096  # bytes of an answer
_MOST_KEPT = 64  # questions that its init has not taken
_LONGEST_WHY = 200  # characters
_KILLED = 128 + 9  # as shells tell it


class End(NamedTuple):
    code: int | None  # its own, or 128+n if signal n ended it; None: its init does not say
    why: str = ""  # it could not be started, and that is why
    lost: bool = False  # the agent ended, and it with it


_LOST = End(_KILLED, lost=True)


class Command:
    """One that was asked for."""

    def __init__(self, commands: "Commands", number: int, ended: "asyncio.Future[End]") -> None:
        self._commands, self._number, self._ended = commands, number, ended
        self._sent: set[int] = set()

    async def wait(self) -> End:
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """To it and all of its process group, each signal once. What has ended is not hurt by that."""
        if number not in self._sent and not self._ended.done():
            self._sent.add(number)
            self._commands.post({"signal": self._number, "number": number})


class Commands:
    """Of one agent, as long as its process is there."""

    def __init__(self, line: socket.socket) -> None:
        """Takes the socket over."""
        self._line, self._loop = line, asyncio.get_running_loop()
        self._last = 0
        self._running: dict[int, asyncio.Future[End]] = {}
        self._kept: deque[tuple[bytes, list[int]]] = deque()
        line.setblocking(False)
        self._loop.add_reader(line, self._hear)

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None, streams: Sequence[int] = ()) -> Command:
        """Without streams it has none but /dev/null; those that are given stay the caller's. OSError: it cannot be
        asked for, because it is too long (E2BIG), or the agent takes no questions now (EAGAIN) or any more (EPIPE)."""
        if self._line.fileno() < 0:
            raise OSError(errno.EPIPE, "the agent has ended")
        if len(self._kept) >= _MOST_KEPT:
            raise OSError(errno.EAGAIN, "its init takes no questions")
        self._last += 1
        ended = self._running[self._last] = self._loop.create_future()
        try:
            self.post({"run": self._last, "argv": list(argv), "env": dict(env or {})}, streams)
        except OSError:
            del self._running[self._last]
            raise
        return Command(self, self._last, ended)

    def post(self, said: dict[str, Any], streams: Sequence[int] = ()) -> None:
        message = json.dumps(said).encode()
        if len(message) > MAX_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        if self._line.fileno() >= 0:
            self._kept.append((message, [os.dup(fd) for fd in streams]))
            self._send()

    def _send(self) -> None:
        while self._kept:
            message, fds = self._kept[0]
            try:
                socket.send_fds(self._line, [message], fds)
            except BlockingIOError:
                self._loop.add_writer(self._line, self._send)
                return
            except OSError as problem:
                self._not_sent(json.loads(message), problem)
            self._kept.popleft()
            _close(fds)
        self._loop.remove_writer(self._line)

    def _not_sent(self, said: dict[str, Any], problem: OSError) -> None:
        """Its init is gone, or too many descriptors are on their way."""
        gone = problem.errno in (errno.EPIPE, errno.ECONNRESET)
        self._over(said.get("run"), _LOST if gone else End(None, problem.strerror or str(problem)))

    def _hear(self) -> None:
        """One answer at a time: others have their turn in between."""
        try:
            message = self._line.recv(_LARGEST)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            said = _read(message)
            self._over(said.get("ended"), _end(said))
        else:
            self.close()

    def _over(self, number: Any, end: End) -> None:
        ended = self._running.pop(number, None) if type(number) is int else None
        if ended and not ended.done():
            ended.set_result(end)

    def close(self) -> None:
        """The agent has ended; so has whatever ran beside it."""
        if self._line.fileno() >= 0:
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
            self._line.close()
        while self._kept:
            _close(self._kept.popleft()[1])
        for number in list(self._running):
            self._over(number, _LOST)


def _read(message: bytes) -> dict[str, Any]:
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _end(said: Mapping[str, Any]) -> End:
    code, why = said.get("code"), said.get("why")
    known = type(code) is int and 0 <= code < 256
    return End(code if known else None, why[:_LONGEST_WHY] if isinstance(why, str) else "")


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
