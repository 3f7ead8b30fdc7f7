"""The only way out of an agent's network namespace: an HTTP, CONNECT and SOCKS5 proxy on the agent's own listener.

Owns every connection made for an agent. In: the listening socket of its namespace (which *is* the agent's identity)
and whoever decides for it (`asking`). Out: bytes to addresses that were checked, and records: a connection is decided,
recorded, then dialled. Never touches the agent's files or processes, shares nothing with another agent's proxy,
resolves no name that was not granted, and dials no name at all, only a checked address.

The order of one request: parse strictly (`visit`) → canonical host → is it named at all → gate → resolve → check every
address → record → look once more → dial → let the bytes pass (`visit`; `socks` for what
h11 does not read).
"""

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import ip_address

from msgspec.structs import replace

from agent_os.abi.errors import EPERM, AgentOSError
from agent_os.kernel.egress.addresses import (
    Address,
    Decision,
    Grant,
    canonical_host,
    decide,
    decide_addresses,
    decide_routed,
    endpoint,
)
from agent_os.kernel.egress.asking import Asking, Granted, Wanted, stopped
from agent_os.kernel.egress.attempt import Attempt, Leave, Limits, Record, Stop, explain
from agent_os.kernel.egress.visit import CHUNK, Doors, Visit

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

ADDRESSES = 8  # of one name that are tried
FIRST_TRY_SECONDS = 3.0  # for an address while others are left to try


class Egress:
    """One agent's proxy. `serve` runs until `close` or its own cancellation; both end every connection.

    `routed`: hosts that have a door of their own, and are not reached in any other way. `doors`: what is behind them.
    `asking`: who decides; without it the grants alone do.
    """

    def __init__(
        self,
        agent: str,
        grants: Sequence[Grant],
        record: Record,
        *,
        resolve: Resolver | None = None,
        limits: Limits | None = None,
        routed: Collection[str] = (),
        doors: Doors | None = None,
        asking: Asking | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._agent = agent
        self._asking = asking or Granted(grants)
        self._routed = frozenset(canonical_host(host) for host in routed)
        self._doors = doors
        self._record = record
        self._resolve = resolve or _SystemResolver(self.limits.lookups)
        self._numbers = itertools.count(1)
        self._acceptors: set[asyncio.Task[None]] = set()
        self._visits: set[asyncio.Task[None]] = set()

    def decide(self, host: str | Address, port: int, *, live: bool = True) -> Decision:
        """Whether anything names a canonical host and port at all. If so, the gate decides about the request."""
        rule = decide_routed if host in self._routed else decide
        return rule(self._asking.grants(live=live), host, port)

    def attempt(self) -> Attempt:
        """A request begins."""
        return Attempt(self._agent, next(self._numbers), self._record)

    async def serve(self, listener: socket.socket, door: tuple[Address, int] | None = None) -> None:
        """Serve the proxy on a listener; with `door`, whoever connects is put through to that one endpoint."""
        listener.setblocking(False)
        acceptor = asyncio.create_task(self._accept(listener, door))
        self._acceptors.add(acceptor)
        try:
            await asyncio.wait({acceptor})
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            self._acceptors.discard(acceptor)
            listener.close()
        if not acceptor.cancelled():
            acceptor.result()

    async def close(self) -> None:
        tasks = [*self._acceptors, *self._visits]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # each reports its own failure in `_left`

    async def _accept(self, listener: socket.socket, door: tuple[Address, int] | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):  # the listener was closed under us
                    return
                # Most likely out of descriptors. The agent's connections wait in the backlog meanwhile.
                self.attempt().end("net.internal", f"accept failed: {error}")
                await asyncio.sleep(1)
                continue
            if len(self._visits) >= self.limits.connections:
                self._turn_away(sock)
            else:
                caller = Visit(sock, self.limits, self.attempt, self.open, self.open_door, self._doors)
                visit = asyncio.create_task(caller.run_through(*door) if door else caller.run())
                self._visits.add(visit)
                visit.add_done_callback(self._left)
            # sock_accept does not yield when a connection is waiting already: a flood would hold the loop.
            await asyncio.sleep(0)

    def _turn_away(self, sock: socket.socket) -> None:
        with sock:
            reason = f"more than {self.limits.connections} connections at the same time"
            self.attempt().end("net.limit", reason)
            body = explain("", Stop("net.limit", reason))
            head = "HTTP/1.1 503 Agent OS: net.limit\r\nX-AgentOS: denied\r\nConnection: close\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            with contextlib.suppress(OSError):  # a courtesy: a client that cannot take it at once goes without
                sock.setblocking(False)
                sock.send(head.encode() + body)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(CHUNK)  # unread bytes would turn the close into a reset that eats the answer

    def _left(self, visit: asyncio.Task[None]) -> None:
        self._visits.discard(visit)
        error = None if visit.cancelled() else visit.exception()
        if error is not None:  # only a failing `record` gets here; nothing was dialled for what was not recorded
            context = {"message": f"egress of {self._agent}: record failed", "exception": error}
            visit.get_loop().call_exception_handler(context)

    async def open(self, attempt: Attempt, wanted: Wanted) -> socket.socket:
        """Gate, resolve, check, record, dial. The socket is connected; cancellation leaves none behind."""
        host, port = wanted.host, wanted.port
        decision = self.decide(host, port)
        if not decision.allowed and self.decide(host, port, live=False).allowed:
            await self._permit(attempt, wanted, decision)  # it was taken back, and the gate says so
        attempt.require(decision)
        if decision.addresses and isinstance(host, str):  # localhost: the endpoint that was named
            wanted = replace(wanted, host=decision.addresses[0])
        attempt.leave = await self._permit(attempt, replace(wanted, routed=host in self._routed), decision)
        return await self._open_decided(attempt, host, port, decision)

    async def _permit(self, attempt: Attempt, wanted: Wanted, decision: Decision) -> Leave | None:
        try:
            return await self._asking.ask(wanted)
        except AgentOSError as error:
            flag = decision.allow_flag or (f"--cap '{error.detail['missing']}'" if "missing" in error.detail else None)
            raise attempt.refuse(stopped(error, flag if isinstance(error, EPERM) else None)) from None

    async def open_door(self, attempt: Attempt, host: str | Address, port: int) -> socket.socket:
        """The same for what a door leads to: that it does is grant enough for the name, and for no private address."""
        grants = self._asking.grants()
        if isinstance(host, str):
            grants = (*grants, Grant(name=host, port=port))
        return await self._open_decided(attempt, host, port, decide(grants, host, port))

    async def _open_decided(
        self, attempt: Attempt, host: str | Address, port: int, decision: Decision
    ) -> socket.socket:
        attempt.require(decision)
        addresses, leave = decision.addresses, attempt.leave
        if isinstance(host, str) and not addresses:
            addresses = await self._lookup(host, port)
            decision = decide_addresses(self._asking.grants(), endpoint(host, port), addresses, port)
            attempt.require(decision)
        attempt.address = str(addresses[0])
        if leave:
            await self._heed(attempt, leave, lambda: leave.located(addresses))
        await attempt.allow(decision.reason)  # from here on the connection counts as decided and recorded
        if leave:
            await self._heed(attempt, leave, leave.confirm)  # which waits for nothing, unless it is refused
            leave.opened(asyncio.current_task())
        return await self._dial(attempt, addresses[:ADDRESSES], port)

    async def _heed(self, attempt: Attempt, leave: Leave, look: Callable[[], Awaitable[None] | None]) -> None:
        try:
            if waiting := look():
                await waiting
        except AgentOSError as error:
            await leave.refused()
            raise attempt.refuse(stopped(error)) from None

    async def _lookup(self, host: str, port: int) -> tuple[Address, ...]:
        try:
            async with asyncio.timeout(self.limits.dial_seconds):
                found = await self._resolve(host, port)
        except TimeoutError:
            raise Stop("net.resolve", f"{host} did not resolve within {self.limits.dial_seconds:g} s") from None
        except OSError as error:
            raise Stop("net.resolve", f"{host} does not resolve: {error.strerror or error}") from error
        if not found:
            raise Stop("net.resolve", f"{host} has no address")
        return tuple(dict.fromkeys(ip_address(text) for text in found))

    async def _dial(self, attempt: Attempt, addresses: Sequence[Address], port: int) -> socket.socket:
        deadline = time.monotonic() + self.limits.dial_seconds
        problem = ""
        for index, address in enumerate(addresses):
            left = max(deadline - time.monotonic(), 0.0)
            seconds = left if index == len(addresses) - 1 else min(left, FIRST_TRY_SECONDS)
            attempt.address = str(address)
            try:
                return await _connect(address, port, seconds)
            except OSError as error:  # TimeoutError is one
                problem = os.strerror(error.errno) if error.errno else f"no answer within {seconds:.0f} s"
        raise Stop("net.dial", f"{attempt.host}:{port} ({attempt.address}) cannot be reached: {problem}")


async def _connect(address: Address, port: int, seconds: float) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:  # cancellation included: the socket has no other owner yet
        sock.close()
        raise
    return sock


class _SystemResolver:
    """getaddrinfo on threads of its own. The loop's shared pool would let one agent's slow names stall the others'."""

    def __init__(self, lookups: int) -> None:
        self._free = asyncio.Semaphore(lookups)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def settle(found: list[str] | OSError) -> None:
            self._free.release()  # not before the thread ends, even if nobody waits any more: threads stay bounded
            if answer.done():
                return
            if isinstance(found, OSError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def work() -> None:
            try:
                found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
            except OSError as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                loop.call_soon_threadsafe(settle, found)

        # A daemon thread: a resolver that hangs must not hold up the exit of the process.
        threading.Thread(target=work, name=f"resolve {host}", daemon=True).start()
        return await answer
