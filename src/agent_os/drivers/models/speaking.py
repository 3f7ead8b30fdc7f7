"""One call, whatever the dialect: send the request, judge the answer, read its events until the last.

In: a wire, a dialect and a request. Out: the events of `ModelProvider.stream`. A dialect is pure: it makes bodies and
reads events, and knows nothing of sockets. What was read of a stream that breaks or is cancelled is estimated from what
was written, so that a bill is never understated.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from agent_os.abi.errors import EINVAL
from agent_os.abi.models import Finished, ModelEvent, ModelRequest, Started, TextDelta, ToolDelta, Usage
from agent_os.drivers.models import Cancel, LimitSample, LimitsSeen, ModelFault, ProviderEvent
from agent_os.drivers.models.faults import garbled, lost, request_id
from agent_os.drivers.models.names import Names
from agent_os.drivers.models.sse import Event, Reader, TooLong
from agent_os.drivers.models.wire import Answer, Cancelled, Endpoint, Watch, Wire

Blobs = Callable[[str], bytes | None]
Judge = Callable[[int, Mapping[str, str], bytes], ModelFault]
Measure = Callable[[Mapping[str, str]], list[LimitSample]]

LARGEST_REPLY = 64 << 20  # bytes of a stream, of which text is the smaller part
_BYTES_PER_TOKEN = 3
_OVER = 512  # tokens, by our own count, that reasoning may have beyond twice what was allowed
_STREAM = "text/event-stream"


class Reading(Protocol):
    """The events of one stream, read one by one."""

    usage: Usage  # as far as the provider has said it
    done: bool  # the last event was read
    unseen: int  # bytes of output that are no delta: reasoning

    def take(self, event: Event) -> Iterable[ModelEvent]:
        """Raises ModelFault for an error inside the stream, ValueError for what is no event of this dialect."""
        ...

    def finish(self) -> Iterable[ModelEvent]:
        """At the end: what is still open, then Finished. Raises ValueError if the reply is not whole."""
        ...


class Dialect(Protocol):
    @property
    def path(self) -> str: ...

    def headers(self, key: str | None) -> dict[str, str]: ...

    def body(self, request: ModelRequest, names: Names, blobs: Blobs) -> dict[str, Any]: ...

    def reading(self, request: ModelRequest, names: Names) -> Reading: ...


async def converse(
    wire: Wire,
    dialect: Dialect,
    request: ModelRequest,
    key: str | None,
    cancel: Cancel | None,
    *,
    blobs: Blobs,
    judge: Judge,
    measure: Measure,
) -> AsyncGenerator[ProviderEvent, None]:
    names = Names.of(request)
    content = encoded(dialect.body(request, names, blobs), wire.endpoint)
    headers = {"content-type": "application/json", "accept": _STREAM, **dialect.headers(key)}
    reading, tally = dialect.reading(request, names), Tally()
    answer: Answer | None = None
    watch = Watch(cancel)
    try:
        answer = await watch.wait(wire.send("POST", dialect.path, headers, content, key=key))
        if answer.status != 200 or not answer.headers.get("content-type", "").lower().startswith(_STREAM):
            raise await _refused(answer, watch, judge)
        yield LimitsSeen(measure(answer.headers))
        yield Started(model=request.model, request_id=request_id(answer.headers))
        async with aclosing(_events(answer, reading, watch, wire.endpoint, request.max_output)) as events:
            async for event in events:
                tally.count(event)
                yield event
        await answer.spend()
        for event in _finished(reading):
            yield tally.billed(event, reading)
    except _Endless:
        yield Finished(stop="length", usage=tally.cut(reading), model=request.model)
    except Cancelled:
        yield Finished(stop="cancelled", usage=tally.cut(reading), model=request.model)
    except ModelFault as fault:
        if reading.usage.input or tally.written or reading.unseen:
            fault.usage = tally.cut(reading)
        raise
    finally:
        watch.close()
        if answer is not None:
            await answer.close()


async def _refused(answer: Answer, watch: Watch, judge: Judge) -> ModelFault:
    body = await watch.wait(answer.body())
    if answer.status != 200:
        return judge(answer.status, answer.headers, body)
    if (fault := judge(200, answer.headers, body)).error.code != "garbled":
        return fault  # some servers tell of errors under a good status
    kind = answer.headers.get("content-type", "nothing")[:100]
    return garbled(f"it is {kind} and not a stream of events", body)


class _Endless(Exception):
    """More comes than any answer has: whoever holds it all would be full before it ends."""


async def _events(
    answer: Answer, reading: Reading, watch: Watch, endpoint: Endpoint, max_output: int
) -> AsyncGenerator[ModelEvent, None]:
    reader, size = Reader(), 0
    until = asyncio.get_running_loop().time() + endpoint.longest_s
    while not reading.done and (chunk := await watch.wait(answer.chunk())) is not None:
        try:
            for event in reader.feed(chunk):
                for said in _taken(reading, event, answer):
                    yield said
        except TooLong as error:
            raise garbled(str(error), answer.masked(chunk)) from error
        size += len(chunk)
        if size > LARGEST_REPLY or reading.unseen > _BYTES_PER_TOKEN * (2 * max_output + _OVER):
            raise _Endless
        if asyncio.get_running_loop().time() > until:
            raise lost(f"its reply takes longer than {endpoint.longest_s:g} s", sent=True)
    if not reading.done and (last := reader.end()) is not None:
        for said in _taken(reading, last, answer):
            yield said


def _taken(reading: Reading, event: Event, answer: Answer) -> Iterator[ModelEvent]:
    if reading.done:
        return
    try:
        yield from reading.take(event)
    except ValueError as error:
        raise garbled(str(error), answer.masked(event.data)) from error


def _finished(reading: Reading) -> list[ModelEvent]:
    try:
        return list(reading.finish())
    except ValueError as error:
        raise lost(f"its reply broke off: {error}", sent=True) from error


def encoded(body: dict[str, Any], endpoint: Endpoint) -> bytes:
    """With the operator's own fields, which never replace what the request says."""
    try:
        return msgspec.json.encode({**endpoint.extra, **body})
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise unsound(f"it cannot be written as JSON: {error}") from error


def unsound(why: str) -> ModelFault:
    """A request that is not sent at all."""
    return ModelFault(EINVAL("request", f"the request is not sound: {why}"), sent=False)


class Tally:
    """Output as far as it was seen, for a stream that does not end well."""

    def __init__(self) -> None:
        self.written = 0

    def count(self, event: ModelEvent) -> None:
        if isinstance(event, TextDelta):
            self.written += len(event.text.encode())
        elif isinstance(event, ToolDelta):
            self.written += len(event.args) + len(event.name)

    def billed(self, event: ModelEvent, reading: Reading) -> ModelEvent:
        """A provider that says nothing of the output it wrote is counted by what was seen of it."""
        if not isinstance(event, Finished) or event.usage.output or not (self.written or reading.unseen):
            return event
        output = self.cut(reading).output
        return msgspec.structs.replace(event, usage=msgspec.structs.replace(event.usage, output=output, estimated=True))

    def cut(self, reading: Reading) -> Usage:
        output = max(reading.usage.output, -(-(self.written + reading.unseen) // _BYTES_PER_TOKEN))
        return msgspec.structs.replace(reading.usage, output=output, estimated=True)
