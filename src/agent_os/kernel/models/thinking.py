"""SYS_THINK: one native model call, from the first token to a reply that holds what was asked of it.

In: a plan that the gate allowed, and the request. Out: a `Done` with a `ModelReply`, streamed where that was asked for.
The reply holds no secret of the operator, whatever the provider echoes, and where a schema was asked for, a value that
fits it: after one repair, or not at all (ETYPE with the text).
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUDGET, ETYPE, AgentOSError
from agent_os.abi.models import (
    Block,
    BlockDone,
    Finished,
    Message,
    ModelEvent,
    ModelReply,
    ModelRequest,
    OpaqueBlock,
    Started,
    TextBlock,
    TextDelta,
    ToolCall,
    ToolDelta,
    Usage,
)
from agent_os.kernel.authority.redaction import Needles, Redactor
from agent_os.kernel.calls import Act, Asked, Done, leave_of
from agent_os.kernel.journal import Draft
from agent_os.kernel.models.backlog import Backlog
from agent_os.kernel.models.calling import Calling, Plan
from agent_os.kernel.models.estimate import BYTES_PER_TOKEN, raw_estimate
from agent_os.kernel.models.provider import Collector, LimitsSeen, value_in
from agent_os.kernel.tools.schema import Schema

if TYPE_CHECKING:
    from agent_os.kernel.models.gateway import Gateway
    from agent_os.kernel.table import Agent

_OVER = 512  # tokens, by our own count, that an answer may have beyond twice what was allowed
_OF_EVENT = 64  # bytes around what an event says
_RAW = 16 << 10  # characters of an answer that does not fit, for whoever asked
_REPAIR = "Your answer does not hold what was asked for: {}. Answer again, with the JSON value alone."


class Thinking:
    def __init__(self, gateway: "Gateway", agent: "Agent", asked: Asked, plan: Plan, act: Act) -> None:
        self._gateway, self._agent, self._asked, self._plan, self._act = gateway, agent, asked, plan, act
        self._calling = Calling(gateway, agent, plan, act)
        self._calling.waits = asked.request.waits
        self._request = msgspec.structs.replace(
            asked.request, model=plan.named.model, max_output=plan.max_output, deadline_ms=None, waits=True
        )
        self._began = asyncio.get_running_loop().time()
        self._first: float | None = None
        self._cuts: list[tuple[int, int]] = []  # of a stream: index of the block, characters of the piece
        self._hidden = _Hidden(Needles(()))

    async def run(self) -> Done:
        with self._gateway.under_way(self._agent.id):
            await self._gateway.open_safe()
            reply = await self._calling.each(self._attempt)
            if self._asked.request.output_schema is not None and reply.stop in ("end", "stop_sequence"):
                reply = await self._fitting(reply)
        reply = self._signed(reply)
        value = {"reply": reply, "cuts": self._cuts} if self._asked.request.stream else reply
        puts = self._gateway.remembered(self._agent, self._asked.request, self._plan, reply)
        return Done(value, puts=puts, spent=self._calling.spent)

    def _signed(self, reply: ModelReply) -> ModelReply:
        """What really happened."""
        calling, loop = self._calling, asyncio.get_running_loop()
        return msgspec.structs.replace(
            reply,
            usage=calling.total,
            cost_microusd=calling.cost,
            price_table=self._plan.rates.version if self._plan.rates else "",
            model=self._hidden.text(reply.model) or self._plan.named.model,
            provider=self._plan.named.provider.name,
            window=self._plan.info.context,
            attempts=calling.attempts,
            queued_ms=round(calling.queued * 1000),
            first_token_ms=round(((self._first or loop.time()) - self._began) * 1000),
            total_ms=round((loop.time() - self._began) * 1000),
            scripted=reply.scripted or self._plan.info.scripted,
            clamped=self._plan.clamped,
        )

    # One attempt.

    async def _attempt(self, key: str | None) -> ModelReply:
        self._hidden = _Hidden(self._gateway.needles())
        self._calling.sent()
        backlog = Backlog(self._asked.stream.send) if self._asked.stream is not None else None
        try:
            reply = await self._answered(key, backlog)
            if backlog is not None:
                await backlog.end()
            return reply
        finally:
            if backlog is not None:
                await backlog.close()

    async def _answered(self, key: str | None, backlog: Backlog[ModelEvent] | None) -> ModelReply:
        """The reply, when the provider is done with it: the key is free for others, whoever has yet to read it."""
        collector, written = Collector(), 0
        async with aclosing(self._plan.provider.stream(self._request, key)) as events:
            async for event in events:
                if isinstance(event, LimitsSeen):
                    self._calling.began(event.samples)
                    continue
                written += _size(event)
                collector.take(event)
                if collector.began and self._first is None:
                    self._first = asyncio.get_running_loop().time()
                self._calling.used(_so_far(collector.usage, written))
                await self._pass_on(event, backlog)
                if written > BYTES_PER_TOKEN * (2 * self._request.max_output + _OVER):
                    collector.take(Finished(stop="length", usage=_so_far(collector.usage, written)))
                    break
        self._calling.finished(collector.usage)
        reply = collector.reply()
        reply.blocks = [self._hidden.block(block) for block in reply.blocks]
        return reply

    async def _pass_on(self, event: ModelEvent, backlog: Backlog[ModelEvent] | None) -> None:
        """To whoever wants to see it come. What is shown is masked as it comes."""
        request = self._asked.request
        if not request.stream or request.output_schema is not None:
            return
        for one in self._hidden.event(event):
            if isinstance(one, BlockDone) and len(frames.encode_body(one)) > frames.PART:
                continue  # the reply has it, however long it is
            if isinstance(one, TextDelta):
                self._cuts.append((one.index, len(one.text)))
            if backlog is not None:
                self._calling.delivered = True
                leave_of(self._act).confirm()
                await backlog.put(one, _OF_EVENT + _size(one))

    # A value that fits.

    async def _fitting(self, reply: ModelReply) -> ModelReply:
        schema = Schema(self._asked.request.output_schema, foreign=True)
        try:
            reply.parsed = _checked(schema, reply.text)
        except _Unfit as problem:
            second = await self._repaired(reply, str(problem))
            try:
                second.parsed = _checked(schema, second.text)
            except _Unfit as still:
                reason = f"the model's answer does not hold what was asked for, twice: {still}"
                raise ETYPE("output", reason, ran=True, text=second.text[:_RAW]) from None
            return second
        return reply

    async def _repaired(self, reply: ModelReply, why: str) -> ModelReply:
        said = Message(role="assistant", blocks=list(reply.blocks))
        asked = Message(role="user", blocks=[TextBlock(text=_REPAIR.format(why))])
        again: ModelRequest = msgspec.structs.replace(self._request, messages=[*self._request.messages, said, asked])
        self._afford(again, reply, why)
        self._request = again
        return await self._calling.each(self._attempt)

    def _afford(self, request: ModelRequest, reply: ModelReply, why: str) -> None:
        """The repair is paid from the same budget: it may not cost more than there is left."""
        plan, gateway = self._plan, self._gateway
        prompt = gateway.estimates.estimate(plan.named.full, raw_estimate(request))
        more: dict[str, int] = {"tokens": prompt + request.max_output}
        if plan.rates is not None:
            more["cost"] = plan.rates.most(prompt, request.max_output)
        try:
            leave_of(self._act).grow(more)
        except EBUDGET as problem:
            reason = f"the model's answer does not hold what was asked for: {why}; for another {problem.reason}"
            raise ETYPE("output", reason, ran=True, text=reply.text[:_RAW]) from None


class _Unfit(Exception):
    """Why a text does not hold the value that was asked for."""


def _checked(schema: Schema, text: str) -> Any:
    try:
        value = value_in(text)
        schema.require(value, "the answer", ran=True)
    except ValueError as problem:
        raise _Unfit(str(problem)) from None
    except AgentOSError as problem:
        raise _Unfit(problem.reason) from None
    return value


def _size(event: ModelEvent) -> int:
    if isinstance(event, TextDelta):
        return len(event.text.encode(errors="surrogatepass"))
    return len(event.args) + len(event.name) if isinstance(event, ToolDelta) else 0


def _so_far(usage: Usage, written: int) -> Usage:
    """What was seen counts, whatever was told by now."""
    if not usage.estimated and usage.output:
        return usage
    output = max(usage.output, -(-written // BYTES_PER_TOKEN))
    return msgspec.structs.replace(usage, output=output, estimated=True)


class _Hidden:
    """Takes the operator's secrets out of what a provider says."""

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._masks: dict[int, Redactor] = {}

    def event(self, event: ModelEvent) -> list[ModelEvent]:
        if not self._needles:
            return [event]
        if isinstance(event, TextDelta):
            mask = self._masks.setdefault(event.index, Redactor(self._needles))
            text = mask.feed(event.text.encode(errors="surrogatepass")).decode(errors="replace")
            return [TextDelta(index=event.index, text=text)] if text else []
        if isinstance(event, ToolDelta):  # a name and pieces of JSON: whole in its block
            return []
        if isinstance(event, BlockDone):
            mask = self._masks.pop(event.index, None)
            rest = mask.end().decode(errors="replace") if mask else ""
            whole = BlockDone(index=event.index, block=self.block(event.block))
            return [TextDelta(index=event.index, text=rest), whole] if rest else [whole]
        if isinstance(event, Started):
            return [Started(model=self.text(event.model), request_id=self.text(event.request_id))]
        return (
            [msgspec.structs.replace(event, model=self.text(event.model))] if isinstance(event, Finished) else [event]
        )

    def block(self, block: Block) -> Block:
        if not self._needles:
            return block
        if isinstance(block, TextBlock):
            return msgspec.structs.replace(block, text=self._needles.mask_text(block.text))
        if isinstance(block, ToolCall):
            texts = {name: self._value(getattr(block, name)) for name in ("id", "name", "args", "args_error", "raw")}
            return msgspec.structs.replace(block, **texts, extra=self._needles.mask(block.extra))
        if isinstance(block, OpaqueBlock):  # not ours to change, but for this
            return msgspec.structs.replace(block, data=self._needles.mask(block.data))
        return block

    def text(self, text: str) -> str:
        return self._needles.mask_text(text) if self._needles else text

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._needles.mask_text(value)
        if isinstance(value, Mapping):
            pairs = cast("Mapping[Any, Any]", value)
            return {self._value(key): self._value(one) for key, one in pairs.items()}
        if isinstance(value, list):
            return [self._value(one) for one in cast("list[Any]", value)]
        return value


def suspected(agent: str, plan: Plan, reported: int) -> Draft:
    """The provider has probably cut the prompt off without a word."""
    facts = {"event": "model.truncation_suspected", "model": plan.named.full}
    body = frames.encode_body({**facts, "reported": reported, "estimated": plan.prompt})
    return Draft(agent, Kind.CHANGE, body=body)
