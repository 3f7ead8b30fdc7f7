"""The agent loop: a model, its tools and a goal, turn by turn, until there is a result or a reason to stop.

In: a `Host` (what it needs of a context), `Terms`, a goal. Out: an `Outcome`. A turn: drain the inbox → compact if
needed → ask the model → no calls: finish, else run them → append the results in the order of the calls → tell. It has
no privilege, no clock and no randomness of its own: everything that it depends on is the answer of a call, so a run
that begins again on recorded answers takes the same way. What it carries is in one `State`, kept every 20 turns.

Cancelled from outside it leaves its last whole turn behind; the calls that were under way are the kernel's to settle.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agent_os.abi.errors import ECANCELED, EINTR, EINVAL, AgentOSError
from agent_os.abi.models import Message, ModelReply, TextBlock, ToolCall
from agent_os.userland import loop_feedback, loop_history
from agent_os.userland.loop_calls import Accept, Acting
from agent_os.userland.loop_compact import Hook
from agent_os.userland.loop_model import Asking
from agent_os.userland.loop_terms import Clock, Entry, Host, Outcome, OwnTool, State, Stop, Terms, count_bad
from agent_os.userland.schemas import schema_of

_LOW = 0.1  # of the budget: the last turn
_CUT_IN_A_ROW = 3
_INBOX = 16
_LONGEST_IN_HAND = 3600.0
_PLAIN_STATE = 128 << 10  # bytes; a longer one is packed
_LARGEST_STATE = 768 << 10  # bytes that a checkpoint can carry in one frame
_NO_ANSWER = {
    "refused": "the model refuses to answer",
    "filtered": "the provider's filter held the model's answer back",
}
_CUT = "Your answer was cut off at {} tokens. Go on, in smaller steps."
_LAST = (
    "The budget is nearly used up: this is your last turn, without tools. Hand over what you have, and what is open."
)


class Loop:
    """One run. `state` can be looked at between turns, and is enough to go on from."""

    def __init__(
        self,
        host: Host,
        terms: Terms,
        *,
        own: Iterable[OwnTool] = (),
        on_compact: Hook | None = None,
        state: State | None = None,
        wrap: Callable[[Any], Any] = lambda kept: kept,
        accept: Accept = lambda result: "",
    ) -> None:
        """`wrap`: what a checkpoint holds besides, of a program that is more than this run."""
        self._host, self._terms, self.state, self._wrap = host, terms, state, wrap
        self._clock = Clock(host, terms.wall_secs)
        self._asking = Asking(host, terms, self._clock, on_compact)
        self._acting = Acting(host, terms, self._clock, own, accept)

    async def run(self, goal: str = "", inputs: Mapping[str, Any] | None = None) -> Outcome:
        """To its end. With a state it goes on from there; goal and inputs are then the state's."""
        if self.state is None:
            self.state = await self._begun(goal or self._terms.goal, inputs or {})
        state = self.state
        try:
            while True:
                await self._turn(state)
        except Stop as stop:
            outcome = _outcome(state, stop)
        except (EINTR, ECANCELED) as problem:
            outcome = _outcome(state, Stop("cancelled", problem.reason))
        error = None if outcome.stop == "done" else f"{outcome.stop}: {outcome.why}"
        for request in state.requests:
            await self._host.reply(request, outcome.result, error=error)
        await self._host.event("agent.done", msgspec.to_builtins(outcome))
        return outcome

    async def _begun(self, goal: str, inputs: Mapping[str, Any]) -> State:
        if not goal:
            raise EINVAL("loop.goal", "there is no goal to work towards", hint='goal = "…" in [program], or give one')
        began = (await self._host.now()).timestamp()
        tools = self._acting.offered(await self._host.tools())
        entries = loop_history.beginning(self._terms, goal, inputs)
        return State(goal=goal, began_s=began, entries=entries, tools=tools, window=self._terms.window)

    async def _turn(self, state: State) -> None:
        await self._keep(state)
        if await self._clock.look(state) <= 0:
            raise Stop("deadline", f"its {round(self._terms.wall_secs, 1):g} seconds are over (program.loop.wall_secs)")
        if state.turn >= self._terms.turns:
            raise Stop("turns", f"its turns are over: {state.turn} (program.loop.turns)")
        await self._drain(state)
        left = await self._host.budget()
        if left.share < _LOW:
            await self._last_turn(state, f"less than a tenth is left of {left.resource or 'the budget'}")
        await self._asking.compact_if_needed(state)
        reply = await self._asking.think(state)
        state.turn += 1
        state.text = reply.text or state.text
        entry = loop_history.answered(reply, state.turn, state.entries)
        calls = loop_history.calls_of(entry)
        if calls and reply.stop != "length":
            state.cut_turns = 0
            if spent := await self._acting.act(state, entry, calls):
                await self._last_turn(state, spent)
        else:
            await self._settle(state, entry, calls, reply)
        await self._host.event("agent.turn", {"turn": state.turn, "calls": len(calls), "tool_calls": state.tool_calls})

    async def _keep(self, state: State) -> None:
        """A checkpoint every so many turns. What follows it here is what follows the beginning with its state."""
        await self._host.at_rest()
        every = self._terms.checkpoint_turns
        if not every or state.turn - state.kept_turn < every:
            return
        state.kept_turn = state.turn
        kept = self._wrap(kept_state(state))
        if len(msgspec.msgpack.encode(kept)) <= _LARGEST_STATE:  # beyond it, the one before is gone on from
            await self._host.checkpoint(f"turn-{state.turn}", kept)

    async def _drain(self, state: State) -> None:
        """Messages join as user turns. A request is held until there is a result to answer it with."""
        visible = min(_LONGEST_IN_HAND, self._clock.left_s + 60)
        came: list[Any] = await self._host.recv(wait=0.0, max=_INBOX, visible=visible)
        state.entries += [loop_history.joined(message, state.turn + 1) for message in came]
        state.requests += [message.id for message in came if message.is_request]
        if others := [message.id for message in came if not message.is_request]:
            await self._host.ack(*others)

    async def _last_turn(self, state: State, why: str) -> None:
        """Without tools: what exists is handed over. Always ends the run."""
        state.entries.append(loop_history.said("user", _LAST, turn=state.turn + 1))
        schema = self._terms.output_schema
        try:
            reply = await self._asking.ask(state, tool_choice="none", output_schema=schema)
        except loop_feedback.ABOVE:
            raise
        except AgentOSError as problem:
            raise Stop("budget", f"{why}; the last turn failed: {problem}") from problem
        state.turn += 1
        text = [block for block in reply.blocks if isinstance(block, TextBlock)]
        if text:
            state.entries.append(Entry(message=Message(role="assistant", blocks=list(text)), turn=state.turn))
        state.text = reply.text or state.text
        raise Stop("budget", why, reply.parsed if schema is not None else reply.text or None)

    async def _settle(self, state: State, entry: Entry, calls: Sequence[ToolCall], reply: ModelReply) -> None:
        """A reply without calls that could be run."""
        if reply.stop in ("refused", "filtered"):
            raise Stop("refused", _NO_ANSWER[reply.stop])
        if reply.stop == "cancelled":
            raise Stop("cancelled", "the model call was cancelled")
        if reply.stop == "context":
            raise Stop("failed", "the goal and the last turn alone fill the model's window")
        if reply.stop == "length":
            return self._cut_off(state, entry, calls)
        state.cut_turns = 0
        if entry.message.blocks:  # providers refuse an empty message
            state.entries.append(entry)
        if self._terms.output_schema is None:
            raise Stop("done", "", reply.text)
        await self._finish_by_text(state, reply.text)

    def _cut_off(self, state: State, entry: Entry, calls: Sequence[ToolCall]) -> None:
        """Nothing of it is run: the last call may be half of one, and the others may have meant to come with it."""
        state.cut_turns += 1
        said = _CUT.format(self._terms.max_output)
        if entry.message.blocks:
            state.entries.append(entry)
        if calls:
            fed = loop_feedback.told("bad", f"Not run: {said}")
            state.entries.append(loop_history.results([fed.block(call) for call in calls], state.turn))
        else:
            state.entries.append(loop_history.said("user", said, turn=state.turn))
        if state.cut_turns >= _CUT_IN_A_ROW:
            most = f"{self._terms.max_output} tokens (program.loop.max_output)"
            raise Stop("length", f"{state.cut_turns} answers in a row were cut off at {most}")

    async def _finish_by_text(self, state: State, text: str) -> None:
        """A model that writes the result as JSON has meant to finish."""
        try:
            value = json.loads(text)
        except ValueError:
            problem = "it is text"
        else:
            problem = (await self._acting.finish({"result": value})).text
        state.entries.append(loop_history.said("user", loop_feedback.nudge_finish(problem), turn=state.turn))
        count_bad(state, True)


async def work(
    host: Host,
    goal: str,
    *,
    model: str,
    inputs: Mapping[str, Any] | None = None,
    tools: Iterable[str | OwnTool] = (),
    output: Any = None,
    on_compact: Hook | None = None,
    **bounds: Any,
) -> Outcome:
    """A run inside an author's own program, for `Context.loop`. `tools`: names, patterns and functions; `output`: the
    type of the result; `bounds`: further words of `Terms`. It keeps no checkpoint: the program's state is its own."""
    named = list(tools)
    terms = Terms(
        model=model,
        tools=[one for one in named if isinstance(one, str)],
        output_schema=None if output is None else schema_of(output),
        checkpoint_turns=0,
        **bounds,
    )
    own = [one for one in named if not isinstance(one, str)]
    outcome = await Loop(host, terms, own=own, on_compact=on_compact, accept=_fitting(output)).run(goal, inputs)
    if output is not None and outcome.result is not None:
        outcome.result = msgspec.convert(outcome.result, output)
    return outcome


def _fitting(output: Any) -> Accept:
    """The kernel knows no types of an author's program."""

    def accept(result: Any) -> str:
        try:
            msgspec.convert(result, Any if output is None else output)
        except msgspec.ValidationError as problem:
            return str(problem)
        return ""

    return accept


def kept_state(state: State) -> Any:
    """As a checkpoint holds it: to be read by people, or packed where it is so long that it might not fit."""
    written = msgspec.msgpack.encode(state)
    if len(written) > _PLAIN_STATE:
        return zlib.compress(written)
    return msgspec.to_builtins(state, builtin_types=(bytes,))


def state_from(kept: Any) -> State:
    if isinstance(kept, bytes):
        return msgspec.msgpack.decode(zlib.decompress(kept), type=State)
    return msgspec.convert(kept, State)


def _outcome(state: State, stop: Stop) -> Outcome:
    return Outcome(
        stop=stop.reason,
        why=stop.why,
        result=stop.result,
        text=state.text,
        turns=state.turn,
        tool_calls=state.tool_calls,
        usage=state.usage,
        cost_microusd=state.cost_microusd,
        models=state.models,
        scripted=state.scripted,
    )
