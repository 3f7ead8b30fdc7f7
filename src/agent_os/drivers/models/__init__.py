"""The interface of a model provider: one streamed call, what its errors mean, and what its headers say of its limits.

In: a `ModelRequest`, the key, and a `Cancel` that whoever waits may set. Out: `LimitsSeen` once, then the events of
abi/models, the last of them `Finished`; or one `ModelFault`. A provider knows nothing of agents, budgets, queues and
retries, and keeps no key.

Cancelled by `Cancel`, a stream ends with `Finished(stop="cancelled")` and the usage known so far; cancelled as a task
or closed, it ends at once. In both cases the connection is closed.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct, field

from agent_os.abi.errors import AgentOSError
from agent_os.abi.models import ModelEvent, ModelRequest, Stop, Usage

Bucket = Literal["requests", "tokens", "input_tokens", "output_tokens"]
Feature = Literal["tools", "images", "structured", "seed", "stop"]
Again = Literal["no", "once", "yes"]

KEPT = 2048  # bytes of an answer that could not be read, for the journal


class ModelInfo(Struct, frozen=True):
    model: str
    context: int | None = None  # tokens; None: not known
    features: frozenset[Feature] = frozenset()
    local: bool = False  # on this machine: not a reader of what it is told
    free: bool = False  # costs nothing per token
    scripted: bool = False


class LimitSample(NamedTuple):
    """What a provider says of one of its limits. None: it did not say."""

    bucket: Bucket
    limit: int | None = None  # always above 0
    remaining: int | None = None  # 0 is a valid answer
    reset_s: float | None = None  # from now until it is full again


class LimitsSeen(Struct, frozen=True):
    """The first event of an accepted call. For the queue, never for the agent."""

    samples: Sequence[LimitSample]


ProviderEvent = ModelEvent | LimitsSeen


class ModelFault(Exception):
    """Why a call gave no reply. `error` is what the caller gets; the rest is for whoever decides what to do next."""

    def __init__(
        self,
        error: AgentOSError,
        again: Again = "no",
        *,
        status: int | None = None,
        sent: bool = True,
        breaks: bool = False,
        raw: bytes = b"",
        samples: Sequence[LimitSample] = (),
        usage: Usage | None = None,
    ) -> None:
        super().__init__(str(error))
        self.error = error  # EAGAIN and EHOSTUNREACH carry `retry_after_ms` where the provider said one
        self.again: Again = again
        self.status = status  # of HTTP; None: there was no answer
        self.sent = sent  # False: nothing left this machine, so nothing can have been charged
        self.breaks = breaks  # counts for the circuit breaker
        self.raw = raw[:KEPT]  # of an answer that could not be read
        self.samples = samples
        self.usage = usage  # what was used before it broke, where that is known


class Cancel(Struct):
    """Set once by whoever waits for a call. Listeners are told in the same turn of the loop."""

    done: bool = False
    _listeners: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def set(self) -> None:
        if not self.done:
            self.done = True
            for listener in list(self._listeners):
                listener()

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)


class ModelProvider(Protocol):
    def info(self, model: str) -> ModelInfo: ...

    def stream(
        self, req: ModelRequest, key: str | None, cancel: Cancel | None = None
    ) -> AsyncGenerator[ProviderEvent, None]:
        """The only call. `req.model` is the name that the provider knows, without `provider/`. Raises ModelFault."""
        ...

    def fault(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelFault:
        """What an answer that is no reply means. Names of headers are lower case."""
        ...

    def limits(self, headers: Mapping[str, str]) -> list[LimitSample]: ...

    async def models(self, key: str | None) -> list[str]:
        """The names it knows. Raises ModelFault."""
        ...

    async def close(self) -> None: ...


class Passed(Struct, frozen=True):
    """What an answer came to that was handed on unread."""

    usage: Usage
    stop: Stop | None = None  # None: it did not come to an end that was understood
    fault: ModelFault | None = None  # told inside the answer


class Forwarded(Protocol):
    """An answer as it comes, byte for byte, whatever its status."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    async def chunk(self) -> bytes | None:
        """None: that was all. Raises ModelFault where the connection is lost."""
        ...

    def used(self) -> Usage:
        """So far: asked with every piece."""
        ...

    def result(self) -> Passed:
        """When it is over."""
        ...

    async def close(self) -> None: ...


class Forwarding(Protocol):
    """A provider that also takes requests in its own dialect, for programs that speak it themselves."""

    @property
    def paths(self) -> frozenset[str]:
        """Which: `/v1/messages`, `/v1/chat/completions`, …"""
        ...

    async def forward(
        self, path: str, headers: Mapping[str, str], body: bytes, key: str | None, *, hide_usage: bool = False
    ) -> Forwarded:
        """Cancelled, nothing is left open. Raises ModelFault where there is no answer at all."""
        ...
