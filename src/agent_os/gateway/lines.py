"""uvicorn's HTTP connection, with an end: whoever asks nothing, or reads nothing, keeps no place.

Anybody on this machine can open connections to loopback, with a token or without. So there are only so many; a request
has to be there within some seconds, and what we answer must be read. When all places are taken, whoever has asked
nothing yet or still sends its body goes first, the oldest of them: nobody whose request is being served. How long a
body may take is the guard's to say.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from agent_os.gateway.settings import Limits
from agent_os.gateway.sockets import Socket

_TO_READ = 30.0  # seconds in which something of what we wrote must be read


class Line(H11Protocol):
    """`limits` are of the class that `lines` makes."""

    limits = Limits()

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._due: asyncio.TimerHandle | None = None  # a request should be there by then
        self._unread: asyncio.TimerHandle | None = None
        self.since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._mind()
        if len(self.connections) > self.limits.lines:
            (_least(cast("Iterable[Any]", self.connections), self) or self.transport).abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._mind()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        self._mind()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._mind()
        self.resume_writing()

    @property
    def rank(self) -> int | None:
        """How much would be lost with it. None: somebody waits for its answer."""
        if self.cycle is None or self.cycle.response_complete:
            return 0
        return 1 if self.cycle.more_body or self._unread else None

    def _mind(self) -> None:
        """Time passes for it between requests. One that became a WebSocket is not ours any more."""
        asking = self in self.connections and self.rank == 0
        if asking and self._due is None:
            self._due = self.loop.call_later(self.limits.ask_s, self.transport.abort)
        elif not asking and self._due:
            self._due.cancel()
            self._due = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look(self.transport.get_write_buffer_size())

    def _look(self, unread: int) -> None:
        self._unread = self.loop.call_later(_TO_READ, self._stuck, unread)

    def _stuck(self, before: int) -> None:
        """What is slow may be slow; what stands still goes."""
        if (unread := self.transport.get_write_buffer_size()) >= before:
            self.transport.abort()
        else:
            self._look(unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread:
            self._unread.cancel()
            self._unread = None


def _least(open_ones: Iterable[Any], newest: Line) -> asyncio.Transport | None:
    """Whose end costs least: the connection of somebody who has not asked, or of a WebSocket that was told to go."""
    found = [(one.rank, one.since, one.transport) for one in open_ones if isinstance(one, Line) and one is not newest]
    found += [(0, 0.0, one.transport) for one in open_ones if isinstance(one, Socket) and one.close_sent]
    return min((one for one in found if one[0] is not None), key=lambda one: one[:2], default=(0, 0.0, None))[2]


def lines(limits: Limits) -> type[Line]:
    """For uvicorn.Config, which makes one for each connection."""
    return type("Line", (Line,), {"limits": limits})
