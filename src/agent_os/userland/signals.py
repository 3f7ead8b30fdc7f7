"""Signals inside an agent: the author's handlers, one at a time, between calls, and what happens without one.

The kernel pushes a signal; it was recorded before. A handler runs in a task of its own with a place of its own (`s3` is
the third signal). While it runs, calls that the program wants to make wait, so a handler sees the program between two
calls and never in the midst of one; a call already under way goes on. That also means: a handler must not wait for the
program. SIGKILL, SIGSTOP and their like never come here, the kernel acts on the process itself.
"""

import asyncio
import inspect
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agent_os.abi.errors import EINVAL
from agent_os.abi.signals import AgentSignal
from agent_os.userland.places import Place, Places

Handler = Callable[["Delivered"], Awaitable[None] | None]


@dataclass(frozen=True)
class Delivered:
    """A signal, or a notice, as a handler gets it."""

    what: AgentSignal | str
    value: Any = None
    sender: str = ""


class Signals:
    """`default` acts where there is no handler, or where it failed; it is a plain function, and quick."""

    def __init__(self, places: Places, default: Callable[[Delivered, Place], Awaitable[None] | None]) -> None:
        self._places, self._default = places, default
        self._handlers: dict[AgentSignal | str, Handler] = {}
        self._waiting: deque[tuple[Delivered, Place]] = deque()
        self._count = 0
        self._current: asyncio.Task[None] | None = None
        self._idle: list[asyncio.Future[None]] = []

    def on(self, what: AgentSignal | str, handler: Handler | None) -> None:
        if isinstance(what, AgentSignal) and not what.maskable:
            raise EINVAL("signal.unmaskable", f"nobody can handle {what.name}: it acts on the process itself")
        if handler is None:
            self._handlers.pop(what, None)
        else:
            self._handlers[what] = handler

    @property
    def busy(self) -> bool:
        return self._current is not None

    async def idle(self) -> None:
        """Until no handler runs."""
        while self._current is not None:
            done = asyncio.get_running_loop().create_future()
            self._idle.append(done)
            await done

    def deliver(self, delivered: Delivered) -> None:
        """One arrived. With a handler it waits for its turn; SIGINT and SIGTERM without one act at once, SIGINT on the
        handler that runs, if one does."""
        self._count += 1
        place = Place(f"s{self._count}", handler=True)
        if delivered.what in self._handlers or delivered.what is AgentSignal.SIGUSR1:
            self._waiting.append((delivered, place))
            self._next()
        elif delivered.what is AgentSignal.SIGINT and self._current:
            self._current.cancel()
        elif delivered.what in (AgentSignal.SIGINT, AgentSignal.SIGTERM):
            self._default(delivered, place)

    def begin_again(self) -> None:
        """A checkpoint with a state: places are counted from here."""
        self._count = 0

    def _next(self) -> None:
        if self._current is None and self._waiting:
            delivered, place = self._waiting.popleft()
            self._current = self._places.start(self._run(delivered, place), place)
            self._current.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._current = None
        if not task.cancelled() and (problem := task.exception()):
            traceback.print_exception(problem)
        self._next()
        if self._current is None:
            idle, self._idle = self._idle, []
            for one in idle:
                if not one.done():
                    one.set_result(None)

    async def _run(self, delivered: Delivered, place: Place) -> None:
        if handler := self._handlers.get(delivered.what):
            try:
                await _settle(handler(delivered))
                return
            except Exception:  # the author's code; told, and what would have happened without it happens
                name = delivered.what.name if isinstance(delivered.what, AgentSignal) else delivered.what
                print(f"the handler of {name} failed; its default action follows", file=sys.stderr)
                traceback.print_exc()
        if isinstance(delivered.what, AgentSignal):
            await _settle(self._default(delivered, place))


async def _settle(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result
