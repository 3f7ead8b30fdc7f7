"""Asking the model for a turn: the request, waiting, other models, and a history that fits the window.

In: the state of a run. Out: a reply, or `Stop` with the reason why there is none. The kernel retries what is worth
retrying; here is only what it cannot know: which other model would do, and what of the history can go.
"""

import inspect
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from agent_os.abi.errors import (
    EAGAIN,
    EBUDGET,
    EHOSTUNREACH,
    EINVAL,
    EIO,
    EMSGSIZE,
    ETIMEDOUT,
    AgentOSError,
)
from agent_os.abi.models import ModelReply, ModelRequest, ToolSchema, Usage
from agent_os.userland import loop_compact, loop_history
from agent_os.userland.loop_compact import Hook
from agent_os.userland.loop_feedback import ABOVE
from agent_os.userland.loop_terms import ASK, Clock, Entry, Host, State, Stop, Terms

_FULL, _TARGET = 0.8, 0.5  # of the window: where compaction begins, and where it wants to be
_MOST_WAITS = 5  # in a row, for a model that is busy
_SLOW = 0.3  # how much one reply moves the ratio of tokens to bytes
_LEAST, _MOST = 0.5, 4.0  # of that ratio; a server that drops the beginning of a prompt reports less than was sent
_SUMMARY_TOKENS = 1024


class Asking:
    def __init__(self, host: Host, terms: Terms, clock: Clock, on_compact: Hook | None) -> None:
        self._host, self._terms, self._clock, self._on_compact = host, terms, clock, on_compact
        self._schemas: list[ToolSchema] | None = None

    async def think(self, state: State) -> ModelReply:
        """Whatever it takes: waiting, another model, once a shorter history."""
        waits, shortened = 0, False
        while True:
            try:
                reply = await self.ask(state)
                if reply.stop != "context" or shortened:
                    return reply
                state.window = state.window or self._size(state, state.entries)
            except EAGAIN as busy:
                waits += 1
                await self._wait(busy, waits)
                continue
            except EHOSTUNREACH as gone:
                if state.model >= len(self._terms.fallback):
                    raise Stop("failed", f"no model can be reached: {_told(gone)}") from gone
                state.model, state.window = state.model + 1, self._terms.window
                continue
            except EMSGSIZE as long:
                if shortened:
                    raise Stop("failed", f"even the shortest history is too long: {long.reason}") from long
                state.window = _number(long, "limit", "window") or state.window or self._size(state, state.entries)
                if tokens := _number(long, "tokens", "size", "asked"):
                    state.ratio = max(state.ratio, tokens / max(1, self._rough(state, state.entries)))
            except ABOVE:
                raise
            except AgentOSError as problem:
                raise _end(problem) from problem
            shortened = True
            await self._compact(state)

    async def ask(self, state: State, **more: Any) -> ModelReply:
        """One call, with everything that was said."""
        terms = self._terms
        request = ModelRequest(
            model=[terms.model, *terms.fallback][state.model],
            messages=loop_history.messages(state.entries),
            tools=self._offered(state),
            max_output=terms.max_output,
            deadline_ms=self._deadline_ms(),
            waits=state.model >= len(terms.fallback),
            **more,
        )
        reply = await self._host.think(request)
        await self._count(state, reply)
        state.window = state.window or reply.window or 0
        if reply.usage.input and not reply.usage.estimated:
            seen = reply.usage.input / max(1, self._rough(state, state.entries))
            state.ratio += _SLOW * (min(_MOST, max(_LEAST, seen)) - state.ratio)
        return reply

    async def compact_if_needed(self, state: State) -> None:
        if state.window and self._size(state, state.entries) > self._most(state.window):
            await self._compact(state)

    async def _compact(self, state: State) -> None:
        target = min(round(state.window * _TARGET), self._most(state.window))
        before, turns = self._size(state, state.entries), len(state.entries)
        if self._on_compact:
            made = self._on_compact(list(state.entries), target)
            entries = await made if inspect.isawaitable(made) else made
            if flaw := loop_compact.flaw(state.entries, entries):
                raise EINVAL("loop.compact", f"on_compact gave a history that cannot be used: {flaw}")
        else:

            async def summarise(text: str) -> str:
                return await self._summary(state, text, target)

            entries = await loop_compact.compact(state.entries, target, lambda some: self._size(state, some), summarise)
        state.entries = entries
        facts = {"before": before, "after": self._size(state, entries), "messages": [turns, len(entries)]}
        await self._host.event("agent.compacted", {"turn": state.turn, "window": state.window, **facts})

    async def _summary(self, state: State, text: str, target: int) -> str:
        """One call, of a size that fits whatever the history has grown to."""
        request = ModelRequest(
            model=[self._terms.model, *self._terms.fallback][state.model],
            messages=[
                loop_history.said("system", loop_compact.ASKED).message,
                loop_history.said("user", _ends(text, round(target * 2 / state.ratio))).message,
            ],
            max_output=min(self._terms.max_output, _SUMMARY_TOKENS, max(64, target // 4)),
            deadline_ms=self._deadline_ms(),
        )
        reply = await self._host.think(request)
        await self._count(state, reply)
        return reply.text

    def _offered(self, state: State) -> list[ToolSchema]:
        """In one order, always: a provider's cache knows a prompt by its beginning."""
        if self._schemas is None:
            self._schemas = loop_history.schemas(state.tools)
            if self._terms.output_schema is not None:
                self._schemas.append(loop_history.finish_tool(self._terms))
            if any(fnmatchcase(ASK, pattern) for pattern in self._terms.tools):
                self._schemas.append(loop_history.ask_tool())
        return self._schemas

    async def _count(self, state: State, reply: ModelReply) -> None:
        """Every reply is paid for, a summary as well."""
        keys = ("input", "cached_read", "cache_write", "output", "reasoning")
        added = {key: getattr(state.usage, key) + getattr(reply.usage, key) for key in keys}
        state.usage = Usage(**added, estimated=state.usage.estimated or reply.usage.estimated)
        so_far, cost = state.cost_microusd, reply.cost_microusd
        state.cost_microusd = None if so_far is None or cost is None else so_far + cost
        if (name := f"{reply.provider}/{reply.model}".strip("/")) not in state.models:
            state.models.append(name)
        state.scripted = state.scripted or reply.scripted
        facts = {"model": name, "stop": reply.stop, "scripted": reply.scripted, "cost_microusd": reply.cost_microusd}
        usage = msgspec.to_builtins(reply.usage)
        await self._host.event("agent.model", {"turn": state.turn + 1, **facts, "usage": usage})

    async def _wait(self, busy: EAGAIN, waits: int) -> None:
        pause = (busy.retry_after_ms or 1000) / 1000
        if waits > _MOST_WAITS or pause >= self._clock.left_s:
            raise Stop("failed", f"the model is busy: {busy.reason}") from busy
        await self._host.sleep(pause)
        self._clock.left_s -= pause

    def _deadline_ms(self) -> int:
        return max(1, round(self._clock.left_s * 1000))

    def _most(self, window: int) -> int:
        """Tokens of a prompt that leaves room for an answer."""
        return max(window // 4, min(round(window * _FULL), window - self._terms.max_output))

    def _size(self, state: State, entries: Sequence[Entry]) -> int:
        return round(self._rough(state, entries) * state.ratio)

    def _rough(self, state: State, entries: Sequence[Entry]) -> int:
        return loop_history.estimate(entries, self._offered(state))


def _end(problem: AgentOSError) -> Stop:
    if isinstance(problem, EBUDGET):
        return Stop("budget", _told(problem))
    if isinstance(problem, ETIMEDOUT) or (isinstance(problem, EIO) and problem.code == "timeout"):
        return Stop("deadline", problem.reason)
    return Stop("failed", f"the model call failed: {_told(problem)}")


def _told(problem: AgentOSError) -> str:
    """With what a person can do about it."""
    return f"{problem.reason}; try: {problem.hint}" if problem.hint else problem.reason


def _number(error: AgentOSError, *keys: str) -> int:
    found = [error.detail[key] for key in keys if isinstance(error.detail.get(key), int)]
    return max(0, int(str(found[0]))) if found else 0


def _ends(text: str, characters: int) -> str:
    """A long text by its two ends."""
    half = max(200, characters // 2)
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
