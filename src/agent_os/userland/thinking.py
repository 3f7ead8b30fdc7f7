"""Models, for an author: one call, its reply, and the same as it comes.

Every call is one syscall, recorded, and answered from the record when the program runs again: no model is asked twice.
A stream gives the same pieces again, cut where they were cut before.
"""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast

import msgspec

from agent_os.abi import syscalls
from agent_os.abi.errors import EINVAL, EPROTO, ETYPE
from agent_os.abi.models import (
    MODEL_VARIABLE,
    BlockDone,
    Finished,
    Message,
    ModelEvent,
    ModelReply,
    ModelRequest,
    Started,
    TextBlock,
    TextDelta,
    ToolSchema,
)
from agent_os.userland.results import read_as
from agent_os.userland.schemas import schema_of
from agent_os.userland.session import Session
from agent_os.userland.wire import Asked

Prompt = str | Iterable[Message]


class _Streamed(msgspec.Struct):
    reply: ModelReply
    cuts: list[tuple[int, int]] = []


class Models(Session):
    """`Context` as far as it is about models."""

    @property
    def usual_model(self) -> str:
        """What the manifest or the operator names (`--model`), else what `@agent(model=…)` says."""
        return os.environ.get(MODEL_VARIABLE) or str(self.declared.get("model", ""))

    async def think(self, request: ModelRequest, **options: Any) -> ModelReply:
        """One model call, exactly as it is written."""
        return read_as(ModelReply, await self.syscall(_asked(request, stream=False), **options))

    async def model(
        self,
        prompt: Prompt,
        *,
        model: str = "",
        output: Any = None,
        tools: Iterable[ToolSchema] = (),
        system: str = "",
        **fields: Any,
    ) -> ModelReply:
        """One model call. `output`: the type of the value that is wanted, in `reply.parsed`; a dict is a JSON Schema.
        `fields`: `max_output`, `temperature`, `stop`, `seed`, `tool_choice`, `cache`, `deadline_ms`."""
        typed = output is not None and not isinstance(output, Mapping)
        schema = schema_of(output) if typed else cast("dict[str, Any] | None", output)
        reply = await self.think(self._request(prompt, model, system, tools, output_schema=schema, **fields))
        if typed and reply.parsed is not None:
            try:
                reply.parsed = msgspec.convert(reply.parsed, output)
            except msgspec.ValidationError as problem:
                raise ETYPE("output", f"the model's answer is no {output!r}: {problem}", text=reply.text) from None
        return reply

    async def model_stream(
        self, prompt: Prompt, *, model: str = "", tools: Iterable[ToolSchema] = (), system: str = "", **fields: Any
    ) -> AsyncIterator[ModelEvent | ModelReply]:
        """The answer as it comes: events of `abi.models`, and at last the reply. To leave early, close it: the call is
        cancelled, and what has come is paid."""
        request = _asked(self._request(prompt, model, system, tools, **fields), stream=True)
        began = False
        async with aclosing(cast("Any", self._parts(request))) as parts:
            async for part in parts:
                if isinstance(part, Mapping) and "reply" in part:
                    whole = read_as(_Streamed, part)
                    for event in () if began else _again(whole):
                        yield event
                    yield whole.reply
                else:
                    began = True
                    yield _event(part)

    async def _parts(self, request: syscalls.Think) -> AsyncIterator[Any]:
        if not hasattr(self._wire, "stream"):  # in one process there is nothing to stream over
            yield await self.syscall(request)
            return
        place = self._places.current()
        await self._turn(place)
        mine: list[Asked] = []
        noting = self._noting(request, place, mine)
        parts = self._wire.stream(request, pos=self._places.pos(place), began=noting, last=True)
        try:
            async with aclosing(cast("Any", parts)) as opened:
                async for part in opened:
                    yield part
        finally:
            for asked in mine:
                self._waiting.pop(asked, None)

    def _request(
        self, prompt: Prompt, model: str, system: str, tools: Iterable[ToolSchema], **fields: Any
    ) -> ModelRequest:
        named = model or self.usual_model
        if not named:
            hint = 'ctx.model(prompt, model="provider/name"), or @agent(model="provider/name")'
            raise EINVAL("model.name", "no model is named", hint=hint)
        said = [_said("user", prompt)] if isinstance(prompt, str) else list(prompt)
        messages = [_said("system", system), *said] if system else said
        return ModelRequest(model=named, messages=messages, tools=list(tools), **fields)


def _event(part: Any) -> ModelEvent:
    try:
        return msgspec.convert(part, ModelEvent)
    except msgspec.ValidationError as problem:
        raise EPROTO("answer", f"the kernel's answer is no event of a model: {problem}") from problem


def _said(role: Any, text: str) -> Message:
    return Message(role=role, blocks=[TextBlock(text=text)])


def _asked(request: ModelRequest, *, stream: bool) -> syscalls.Think:
    fields: dict[str, Any] = {name: getattr(request, name) for name in request.__struct_fields__}
    fields["stream"] = stream
    return syscalls.Think(**fields)


def _again(whole: _Streamed) -> list[ModelEvent]:
    """The events of a reply that is known already, in the pieces in which it came."""
    reply, events = whole.reply, list[ModelEvent]()
    events.append(Started(model=reply.model))
    cuts = list(whole.cuts)
    for index, block in enumerate(reply.blocks):
        if isinstance(block, TextBlock):
            at = 0
            while cuts and at < len(block.text):
                _, length = cuts.pop(0)
                events.append(TextDelta(index=index, text=block.text[at : at + length]))
                at += length
            if at < len(block.text):
                events.append(TextDelta(index=index, text=block.text[at:]))
        events.append(BlockDone(index=index, block=block))
    events.append(Finished(stop=reply.stop, usage=reply.usage, model=reply.model, scripted=reply.scripted))
    return events
