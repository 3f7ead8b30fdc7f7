"""One request of an agent to the network, as it is recorded and answered.

Owns the shape of a record (`Connection`), the bounds (`Limits`), and the rule that every request ends in exactly one
`done` record, whatever happens to it. In: what is learnt about a request. Out: records. Never touches a socket.
"""

import json
import time
import typing
from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from agent_os.abi.errors import AgentOSError
from agent_os.kernel.egress.addresses import Address, Decision, printable

if typing.TYPE_CHECKING:
    from agent_os.drivers.store import Put
    from agent_os.kernel.journal import Draft

Protocol = Literal["http", "connect", "socks", "forward", "route"]


class Leave(typing.Protocol):
    """That a request may be made, for as long as it lasts."""

    @property
    def tls_only(self) -> bool:
        """What it rests on is for TLS alone."""
        ...

    async def located(self, addresses: Iterable[Address]) -> None:
        """Where it leads is known now. It may be done there when this returns, perhaps after a person agreed. An error
        of the family: not there."""
        ...

    def confirm(self) -> None:
        """Everything was waited for; nothing is until it is dialled. An error of the family: not any more."""
        ...

    async def refused(self) -> None:
        """One of those two raised: that is on disk when this returns."""
        ...

    def opened(self, visit: "Task[Any] | None") -> None:
        """From here on it is ended when what it rests on is taken back."""
        ...

    def moved(self, size: int) -> None:
        """So many bytes have passed by now, both ways. An error of the family: no more."""
        ...

    @property
    def cut(self) -> tuple[str, str] | None:
        """Code and reason, where it was."""
        ...

    def begin(self, draft: "Draft") -> "Sequence[Put]":
        """Put what it rests on into its first entry, with what the store must hold then."""
        ...

    def began(self, seq: int) -> None:
        """The number of that entry, which is on its way."""
        ...

    def end(self, draft: "Draft", size: int) -> "Sequence[Put]":
        """The same for its last entry; so many bytes have passed."""
        ...


class Limits(Struct, frozen=True):
    connections: int = 256
    header_bytes: int = 32 * 1024
    header_seconds: float = 10.0  # also for a TLS ClientHello
    idle_seconds: float = 60.0
    route_seconds: float = 600.0  # the same behind a door: a model may think for minutes before its first word
    dial_seconds: float = 10.0  # for resolving, and again for connecting
    lookups: int = 8  # names resolved at the same time


class Connection(Struct, frozen=True):
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
    leave: Leave | None = None  # what it rests on; no part of the record


# Takes a record. What is not `done` may return something to wait for: nothing is dialled before.
Record = Callable[[Connection], Awaitable[None] | None]


class Stop(Exception):
    """Ends one request: refused, failed or cut. Becomes its last record and, where still possible, its answer, which
    is given `after` what has to be over by then."""

    def __init__(
        self,
        code: str,
        reason: str,
        *,
        allow_flag: str | None = None,
        status: int | None = None,
        after: Future[None] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.allow_flag = allow_flag
        self.status = status or _STATUS.get(code, 403)
        self.after = after
        self.retry_after_s = retry_after_s


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
        self.leave: Leave | None = None

    def require(self, decision: Decision) -> None:
        self.verdict = "allow" if decision.allowed else "deny"
        if not decision.allowed:
            raise Stop(decision.code, decision.reason, allow_flag=decision.allow_flag)

    def count(self, up: int = 0, down: int = 0) -> None:
        """Bytes that have passed. Stop if there may be no more."""
        self.up += up
        self.down += down
        if self.leave:
            try:
                self.leave.moved(self.up + self.down)
            except AgentOSError as error:
                raise Stop(error.code, error.reason) from None

    def refuse(self, stop: Stop) -> Stop:
        """The gate says no."""
        self.verdict = "deny"
        return stop

    def told(self) -> None:
        """The call that it was is on the record, so that it needs none of its own."""
        self._done = True

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
                leave=self.leave,
            )
        )


def explain(target: str, stop: Stop) -> bytes:
    lines = [f"Agent OS: {target}: {stop.reason} ({stop.code})" if target else f"Agent OS: {stop.reason} ({stop.code})"]
    if stop.allow_flag:
        lines.append(f"The operator can allow it: agentctl run {stop.allow_flag}")
    return ("\n".join(lines) + "\n").encode()


_KINDS = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def explain_as_api(stop: Stop) -> bytes:
    """For clients of model APIs, in the shape that theirs have in common, so that they show the reason."""
    kind = _KINDS.get(stop.status, "permission_error" if stop.status < 500 else "api_error")
    error = {"message": f"Agent OS: {stop.reason}", "type": kind, "code": stop.code, "param": None}
    return json.dumps({"type": "error", "error": error}).encode()


def advice_to_api(stop: Stop) -> list[tuple[str, str]]:
    """Headers by which those clients know whether it helps to ask again. By themselves they do after every 429 and
    everything above 499."""
    if stop.retry_after_s is None:
        return [("X-Should-Retry", "false")]
    return [("Retry-After", str(stop.retry_after_s))]
