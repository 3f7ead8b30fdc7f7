"""Requests of programs that speak a provider's dialect themselves: sent as they are, answers handed on byte for byte.

In: the path of such a request, its body, and the bytes of its answer as they come. Out: the answer, its usage, how it
ended, and, where the kernel itself asked for the usage of a Chat Completions stream, the same bytes without the event
that the program did not ask for. Nothing here ends a call: an answer that cannot be read is handed on, and counted by
what was seen of it.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from agent_os.abi.models import Finished, ModelEvent, ModelRequest, Usage
from agent_os.drivers.models import ModelFault, Passed, anthropic, chat, responses
from agent_os.drivers.models.names import Names
from agent_os.drivers.models.speaking import Reading, Tally
from agent_os.drivers.models.sse import LARGEST_EVENT, Event, Reader, TooLong
from agent_os.drivers.models.values import count, decoded, items, mapping, text
from agent_os.drivers.models.wire import Answer, Wire

_LARGEST = 32 << 20  # bytes of a whole answer that is read for its usage
_DIALECTS = {
    "/v1/messages": anthropic.Messages(),
    "/v1/chat/completions": chat.Chat(),
    "/v1/responses": responses.Responses(),
}
_ABOUT = ("usage", "stop_reason", "status", "choices")
_ANYBODY = ModelRequest(model="", messages=[])
_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")


async def forward(
    wire: Wire, path: str, base: str, headers: Mapping[str, str], body: bytes, key: str | None, hide_usage: bool
) -> "Unread":
    """`base`: the part of the path that the end point's own address has already."""
    answer = await wire.send("POST", path.removeprefix(base), headers, body, key=key)
    return Unread(path.partition("?")[0], answer, hide_usage)


class Unread:
    """One answer under way: `drivers.models.Forwarded`."""

    def __init__(self, path: str, answer: Answer, hide_usage: bool) -> None:
        stream = answer.headers.get("content-type", "").lower().startswith("text/event-stream")
        self.status: int = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._answer, self._meter = answer, Meter(path, stream=stream)
        self._cleaned = WithoutUsage() if hide_usage and stream else None
        self._over = False

    async def chunk(self) -> bytes | None:
        while not self._over:
            data = await self._answer.chunk()
            if data is not None:
                self._meter.take(data)
                data = self._cleaned.take(data) if self._cleaned else data
            else:
                self._over = True
                data = self._cleaned.end() if self._cleaned else b""
            if data:
                return data
        return None

    def used(self) -> Usage:
        return self._meter.used()

    def result(self) -> Passed:
        return self._meter.result()

    async def close(self) -> None:
        await self._answer.close()


class Meter:
    """Reads along: `used` while it comes, `result` when it is over, also because the guest has gone away."""

    def __init__(self, path: str, *, stream: bool) -> None:
        self._path = path
        self._seen = 0
        self._body: list[bytes] = []
        self._events: Reader | None = Reader() if stream and path in _DIALECTS else None
        self._reading: Reading | None = None
        if path in _DIALECTS:
            self._reading = _DIALECTS[path].reading(_ANYBODY, Names([]))
        self._tally = Tally()
        self._fault: ModelFault | None = None
        self._blind = False  # something came that could not be read

    def take(self, chunk: bytes) -> None:
        self._seen += len(chunk)
        if self._events is None:
            if self._seen <= _LARGEST:
                self._body.append(chunk)
            return
        if self._blind:
            return
        try:
            for event in self._events.feed(chunk):
                self._read(event)
        except TooLong:
            self._blind = True

    def used(self) -> Usage:
        """So far, with every piece: nothing is read again. Of an answer that comes as a whole nothing is known yet."""
        if self._events is None or self._reading is None:
            return Usage(estimated=True)
        return self._tally.cut(self._reading)

    def result(self) -> Passed:
        """At the end, whatever it was."""
        if self._events is None or self._reading is None:
            return self._whole()
        try:
            last = [] if self._blind or self._fault else list(self._reading.finish())
        except ValueError:
            last = list[ModelEvent]()
        for said in last:
            if isinstance(event := self._tally.billed(said, self._reading), Finished):
                return Passed(event.usage, event.stop, self._fault)
        return Passed(self._tally.cut(self._reading), None, self._fault)

    def _read(self, event: Event) -> None:
        assert self._reading is not None
        if self._reading.done or self._fault is not None:
            return
        try:
            for said in self._reading.take(event):
                self._tally.count(said)
        except ModelFault as fault:
            self._fault = fault
        except ValueError:
            self._blind = True

    def _whole(self) -> Passed:
        body = _about(b"".join(self._body))
        said = mapping(body.get("usage"))
        match self._path:
            case "/v1/messages":
                usage = anthropic.usage_of(said) if said else None
                stop = anthropic.STOPS.get(text(body.get("stop_reason")))
            case "/v1/chat/completions":
                choice = mapping(next(iter(items(body.get("choices"))), None))
                usage, stop = chat.usage_of(said), chat.STOPS.get(text(choice.get("finish_reason")))
            case "/v1/responses":
                usage = responses.usage_of(said)
                stop = "end" if body.get("status") == "completed" else "length" if body.get("status") else None
            case "/v1/messages/count_tokens":  # costs nothing
                usage, stop = Usage(), "end"
            case _:
                prompt = count(said.get("prompt_tokens"))
                usage, stop = (None, None) if prompt is None else (Usage(input=prompt), "end")
        return Passed(usage or Usage(output=-(-self._seen // 3), estimated=True), stop)


def _about(body: bytes) -> dict[str, Any]:
    """What an answer says of itself. The rest, which may be megabytes of numbers, is passed over."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return {name: msgspec.json.decode(fields[name]) for name in _ABOUT if name in fields}
    except (msgspec.DecodeError, RecursionError):
        return {}


class WithoutUsage:
    """A Chat Completions stream as it would be if nobody had asked for usage: all bytes but one event's, and but the
    `usage` of the others, which is null and stays."""

    def __init__(self) -> None:
        self._held = b""

    def take(self, chunk: bytes) -> bytes:
        """What may go on now. An event that has not ended is held until it has."""
        looked = max(0, len(self._held) - 3)  # an end may lie across two chunks
        self._held += chunk
        passed = list[bytes]()
        begin = 0
        for end in _END_OF_EVENT.finditer(self._held, looked):
            event = self._held[begin : end.end()]
            begin = end.end()
            if not _only_usage(event):
                passed.append(event)
        self._held = self._held[begin:]
        if len(self._held) > LARGEST_EVENT:
            passed.append(self.end())  # it is no event, and not ours to keep
        return b"".join(passed)

    def end(self) -> bytes:
        left, self._held = self._held, b""
        return left


def _only_usage(raw: bytes) -> bool:
    if b'"usage"' not in raw:
        return False
    events = list(Reader().feed(raw))
    if len(events) != 1 or (said := decoded(events[0].data)) is None:
        return False
    return said.get("choices") == [] and bool(said.get("usage"))


def request_of(body: bytes) -> tuple[str, bool] | None:
    """The model that a body asks for, and whether it wants a stream. None: it is no request."""
    fields = decoded(body)
    if fields is None or not (model := text(fields.get("model"))):
        return None
    return model, fields.get("stream") is True


def asking_for_usage(body: bytes) -> bytes | None:
    """A Chat Completions body that asks for usage in its stream. None: it does so already, or is no stream."""
    fields = decoded(body)
    if fields is None or fields.get("stream") is not True:
        return None
    options = mapping(fields.get("stream_options"))
    if options.get("include_usage") is True:
        return None
    # Every other field keeps its own bytes.
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    raw["stream_options"] = msgspec.Raw(msgspec.json.encode({**options, "include_usage": True}))
    return msgspec.json.encode(raw)
