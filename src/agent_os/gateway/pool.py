"""Connections to the kernel: one for each token, shared by its requests, closed when idle or when the token dies.

In: a token, as it came. Out: a client whose HELLO carried it; so the kernel verifies every token, and what a connection
may ask is what its token may. A request without a token has no connection. Bounded: whoever comes when all are busy is
told to come again, and tokens that are not known yet are only tried so often. Whoever was in before has a turn of its
own: a crowd of strangers' tokens takes none of it.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from hashlib import sha256

from agent_os.abi.errors import EAGAIN, EPERM, AgentOSError
from agent_os.client.wire import Client
from agent_os.gateway.bucket import Bucket
from agent_os.gateway.settings import Limits

Connect = Callable[[str], AbstractAsyncContextManager[Client]]
UNKNOWN = ("token", "session", "code", "ticket")  # first words of codes that mean: who are you?
_FULL_MS = 1000
_MOST_KNOWN = 4096  # words that were good, by their hash


class _Held:
    """One connection, open or opening."""

    def __init__(self) -> None:
        self.users = 0
        self.used = time.monotonic()
        self.enough = asyncio.Event()
        self.opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.opened.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.task: asyncio.Task[None] | None = None


class Pool:
    def __init__(self, connect: Connect, limits: Limits) -> None:
        self._connect, self._limits = connect, limits
        self._held: dict[str, _Held] = {}
        self._openings, self._returns = Bucket(limits.rate, limits.burst), Bucket(limits.rate, limits.burst)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    async def start(self) -> None:
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        tasks = [held.task for held in self._held.values() if held.task]
        for held in self._held.values():
            held.enough.set()
        if self._sweeping:
            self._sweeping.cancel()
            tasks.append(self._sweeping)
        await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def using(self, token: str) -> AsyncGenerator[Client]:
        """The token's connection. It stays open for whoever comes next."""
        held = self._held.get(token) or self._open(token)
        if held.opened.done() and not held.opened.exception() and held.opened.result().lost:
            self._forget(token, held)  # the kernel has just ended it
            held = self._open(token)
        held.users += 1
        try:
            with _refusals(shown_out=True):
                yield await asyncio.shield(held.opened)
        finally:
            held.users -= 1
            held.used = time.monotonic()

    async def check(self, token: str) -> None:
        """EPERM: it is good no more. The kernel closes the connection of a token that ends."""
        async with self.using(token):
            pass

    @asynccontextmanager
    async def once(self, token: str) -> AsyncGenerator[Client]:
        """A connection of one's own: for a code or a ticket, which its HELLO uses up."""
        self._admit(token)
        opening = self._connect(token)
        with _refusals():
            client = await opening.__aenter__()
        try:
            yield client
        finally:
            await opening.__aexit__(None, None, None)

    def _open(self, token: str) -> _Held:
        self._admit(token)
        if len(self._held) >= self._limits.connections:
            self._make_room()
        held = self._held[token] = _Held()
        held.task = asyncio.create_task(self._hold(token, held))
        return held

    def vouch(self, word: str) -> None:
        """The kernel gave it out, or took it: it is no guess."""
        self._known[_digest(word)] = None
        self._known.move_to_end(_digest(word))
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _admit(self, word: str) -> None:
        if wait := (self._returns if _digest(word) in self._known else self._openings).take():
            reason = "too many new connections at once"
            raise EAGAIN("gateway.openings", reason, hint="try again in a moment", retry_after_ms=int(wait * 1000) + 1)

    def _make_room(self) -> None:
        idle = [(held.used, token) for token, held in self._held.items() if not held.users]
        if not idle:
            reason = f"{len(self._held)} tokens are in use at once, which is as many as there may be"
            raise EAGAIN("gateway.full", reason, hint="try again in a moment", retry_after_ms=_FULL_MS)
        self._held.pop(min(idle)[1]).enough.set()

    async def _hold(self, token: str, held: _Held) -> None:
        """Has the connection open until it is enough, or the kernel ends it: the token may be gone."""
        try:
            with _refusals():
                async with self._connect(token) as client:
                    self.vouch(token)
                    held.opened.set_result(client)
                    await _first(client.closed(), held.enough.wait())
                    self._forget(token, held)  # whoever comes now gets a new one
                    while held.users and not client.lost:
                        await _first(client.closed(), asyncio.sleep(0.1))
        except AgentOSError as error:
            if isinstance(error, EPERM):
                self._known.pop(_digest(token), None)
            if not held.opened.done():
                held.opened.set_exception(error)
        finally:
            self._forget(token, held)
            held.opened.cancel()

    def _forget(self, token: str, held: _Held) -> None:
        if self._held.get(token) is held:
            del self._held[token]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._limits.idle_s / 4)
            before = time.monotonic() - self._limits.idle_s
            for held in self._held.values():
                if not held.users and held.used < before:
                    held.enough.set()


def _digest(word: str) -> bytes:
    return sha256(word.encode()).digest()


class _refusals:
    """The kernel's no to a token is 401, whatever word it had for it. `shown_out`: of a connection that is open only
    the word with which it ended is one."""

    def __init__(self, *, shown_out: bool = False) -> None:
        self._shown_out = shown_out

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        meant = isinstance(error, EPERM) and (not self._shown_out or error.code == "daemon.refused")
        if isinstance(error, EPERM) and meant and error.code.partition(".")[0] not in UNKNOWN:
            code, _, reason = error.reason.partition(": ")  # as a BYE tells it
            known = code.partition(".")[0] in UNKNOWN
            hint = error.hint or "agentctl token add makes a token, agentctl ui opens the dashboard"
            raise EPERM(code if known else "token.refused", reason if known else error.reason, hint=hint) from None


async def _first(*waiting: "asyncio.Future[object] | object") -> None:
    tasks = [asyncio.ensure_future(one) for one in waiting]  # type: ignore[arg-type]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
