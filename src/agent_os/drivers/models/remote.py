"""A provider behind HTTP, whatever it speaks: what `Anthropic`, `OpenAI` and `Ollama` have in common.

In: an end point, and the dialect that the provider picks for a request. Out: the `ModelProvider` interface. Keys pass
through and are not kept.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from agent_os.abi.errors import EIO, AgentOSError
from agent_os.abi.models import ModelRequest
from agent_os.drivers.models import Cancel, Forwarded, LimitSample, ModelFault, ModelInfo, ProviderEvent
from agent_os.drivers.models.faults import fault_of, garbled
from agent_os.drivers.models.limits import Limits, retry_after_ms
from agent_os.drivers.models.speaking import Blobs, Dialect, converse
from agent_os.drivers.models.values import decoded, items, mapping, text
from agent_os.drivers.models.wire import Endpoint, Wire

_LARGEST_LIST = 4 << 20  # bytes of a list of models
_LIST_S = 5.0
_NAMED = 20  # models in an error


class Remote(ABC):
    """Base of the providers. Theirs are `name`, `listing`, `paths`, `info`, `dialect` and `credentials`."""

    name = ""
    listing = "/models"
    paths: frozenset[str] = frozenset()  # that programs which speak its dialect themselves may use
    below = ""  # of those, what the end point's address has already

    def __init__(
        self, endpoint: Endpoint, *, blobs: Blobs = lambda _: None, now: Callable[[], float] = time.time
    ) -> None:
        self.endpoint = endpoint
        self.ignored = 0  # values of headers that were no use
        self.wire = Wire(endpoint)
        self._blobs = blobs
        self._now = now

    @abstractmethod
    def info(self, model: str) -> ModelInfo: ...

    @abstractmethod
    def dialect(self, request: ModelRequest) -> Dialect: ...

    @abstractmethod
    def credentials(self, key: str | None) -> dict[str, str]: ...

    async def stream(
        self, req: ModelRequest, key: str | None, cancel: Cancel | None = None
    ) -> AsyncGenerator[ProviderEvent, None]:
        self._require_key(key)
        talk = converse(
            self.wire, self.dialect(req), req, key, cancel, blobs=self._blobs, judge=self.fault, measure=self.limits
        )
        try:
            async with aclosing(talk) as events:
                async for event in events:
                    yield event
        except ModelFault as fault:
            if fault.error.code == "model":
                await self._name_models(fault.error, req.model, key)
            raise

    def _require_key(self, key: str | None) -> None:
        if key is None and not self.endpoint.is_local:
            host = self.endpoint.host
            hint = f"agentctl secrets set {self.name} < FILE && agentctl secrets bind {self.name} --host {host}"
            raise ModelFault(EIO("auth", f"no key is set for {host}", hint=hint), sent=False)

    async def forward(
        self, path: str, headers: Mapping[str, str], body: bytes, key: str | None, *, hide_usage: bool = False
    ) -> Forwarded:
        from agent_os.drivers.models.passing import forward  # which knows the dialects, and they know us

        self._require_key(key)
        usual, own = self.credentials(None), self.credentials(key)
        keyed = {name: value for name, value in own.items() if name not in usual}
        return await forward(self.wire, path, self.below, {**usual, **headers, **keyed}, body, key, hide_usage)

    async def _name_models(self, error: AgentOSError, asked: str, key: str | None) -> None:
        """So that whoever asked for a model that is not there sees which are."""
        try:
            known = await self.models(key)
        except ModelFault:
            return  # the error that is being told is the one that matters
        near = sorted(known, key=lambda name: (-_alike(name, asked), name))
        more = f" and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
        error.reason += f"; it has {', '.join(near[:_NAMED])}{more}" if near else "; it has none"
        error.detail["known"] = near[:_NAMED]

    def fault(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelFault:
        wait = retry_after_ms(headers, self._now())
        return fault_of(status, body, retry_after_ms=wait, samples=self.limits(headers))

    def limits(self, headers: Mapping[str, str]) -> list[LimitSample]:
        limits = Limits(headers, self._now())
        self.ignored += limits.ignored
        return limits.samples

    async def models(self, key: str | None) -> list[str]:
        return await self.listed(self.wire, key)

    async def listed(self, wire: Wire, key: str | None) -> list[str]:
        answer = await wire.send("GET", self.listing, self.credentials(key), key=key, idle_s=_LIST_S)
        try:
            body = await answer.body(_LARGEST_LIST)
            if answer.status != 200:
                raise self.fault(answer.status, answer.headers, body)
            if (listed := decoded(body)) is None:
                raise garbled("it is no list of models", body)
        finally:
            await answer.close()
        rows = [mapping(row) for row in items(listed.get("data") or listed.get("models"))]
        return sorted(name for row in rows if (name := text(row.get("id")) or text(row.get("name"))))

    async def close(self) -> None:
        await self.wire.close()


def _alike(name: str, asked: str) -> int:
    """How far two names begin alike."""
    same = 0
    while same < min(len(name), len(asked)) and name[same] == asked[same]:
        same += 1
    return same
