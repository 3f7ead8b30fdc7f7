"""One request of an agent to the network, as it is recorded and answered.

Owns the shape of a record (`Connection`), the bounds (`Limits`), and the rule that every request ends in exactly one
`done` record, whatever happens to it. In: what is learnt about a request. Out: records. Never touches a socket.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from agent_os.kernel.egress.addresses import Decision, printable

Protocol = Literal["http", "connect", "socks", "forward"]


@dataclass(frozen=True, slots=True)
class Limits:
    connections: int = 256
    header_bytes: int = 32 * 1024
    header_seconds: float = 10.0  # also for a TLS ClientHello
    idle_seconds: float = 60.0
    dial_seconds: float = 10.0  # for resolving, and again for connecting
    lookups: int = 8  # names resolved at the same time


@dataclass(frozen=True, slots=True)
class Connection:
    """One record. A refused connection has one, `done`; an allowed one has two with the same `id`: first the verdict,
    before anything is dialled (`done` is False), then the end. So the `done` ones are one per connection.
    """

    id: int  # rises with every connection of this agent
    done: bool
    time: float  # when the connection began, seconds since the epoch
    agent: str
    protocol: Protocol
    host: str  # canonical once known, else what the agent wrote, made printable; "" if it wrote none
    port: int
    verdict: Literal["allow", "deny"]
    code: str  # net.allow, or why it was refused or ended: net.host, net.port, net.address, net.malformed, net.sni, …
    reason: str
    allow_flag: str | None  # the flag that would allow a refused one
    address: str  # the address dialled
    bytes_up: int
    bytes_down: int
    seconds: float


# Takes a record. What is not `done` may return something to wait for: nothing is dialled before.
Record = Callable[[Connection], Awaitable[None] | None]


class Stop(Exception):
    """Ends one request: refused, failed or cut. Becomes its last record and, where still possible, its answer."""

    def __init__(self, code: str, reason: str, *, allow_flag: str | None = None, status: int | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.allow_flag = allow_flag
        self.status = status or _STATUS.get(code, 403)


_STATUS = {
    "net.door": 404,
    "net.internal": 500,
    "net.resolve": 502,
    "net.dial": 502,
    "net.broken": 502,
    "net.limit": 503,
}  # every other code is a refusal: 403


class Attempt:
    """What is known so far about one request, and the one place that writes its records."""

    def __init__(self, agent: str, number: int, record: Record) -> None:
        self._agent = agent
        self._number = number
        self._record = record
        self._time = time.time()
        self._start = time.monotonic()
        self._done = False
        self.protocol: Protocol = "http"
        self.host = ""
        self.port = 0
        self.verdict: Literal["allow", "deny"] = "deny"
        self.address = ""
        self.up = 0
        self.down = 0

    def require(self, decision: Decision) -> None:
        self.verdict = "allow" if decision.allowed else "deny"
        if not decision.allowed:
            raise Stop(decision.code, decision.reason, allow_flag=decision.allow_flag)

    async def allow(self, reason: str) -> None:
        """Recorded when this returns."""
        if waiting := self._write("net.allow", reason, None, done=False):
            await waiting

    def end(self, code: str, reason: str, allow_flag: str | None = None) -> None:
        if not self._done:
            self._done = True
            self._write(code, reason, allow_flag, done=True)

    def _write(self, code: str, reason: str, allow_flag: str | None, *, done: bool) -> Awaitable[None] | None:
        return self._record(
            Connection(
                id=self._number,
                done=done,
                time=self._time,
                agent=self._agent,
                protocol=self.protocol,
                host=self.host,
                port=self.port,
                verdict=self.verdict,
                code=code,
                reason=printable(reason, 400),
                allow_flag=allow_flag,
                address=self.address,
                bytes_up=self.up,
                bytes_down=self.down,
                seconds=time.monotonic() - self._start,
            )
        )


def explain(target: str, stop: Stop) -> bytes:
    lines = [f"Agent OS: {target}: {stop.reason} ({stop.code})" if target else f"Agent OS: {stop.reason} ({stop.code})"]
    if stop.allow_flag:
        lines.append(f"The operator can allow it: agentctl run {stop.allow_flag}")
    return ("\n".join(lines) + "\n").encode()
