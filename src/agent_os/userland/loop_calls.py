"""The calls of one turn: which may go at once, who runs each, and what the model is told of it.

In: the model's calls. Out: the turn in the history, calls and results together, or `Stop`. Pure calls at the beginning
run at once; from the first other one on, one after the other. A name that nobody offered never leaves this process.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from agent_os.abi.errors import AgentOSError
from agent_os.abi.models import ToolCall
from agent_os.abi.tools import ToolInfo, ToolSpec
from agent_os.userland import loop_feedback, loop_history
from agent_os.userland.loop_feedback import Fed
from agent_os.userland.loop_terms import ASK, FINISH, Clock, Entry, Host, OwnTool, State, Stop, Terms, count_bad

_NOT_RUN = "Not run: the work ended before it."
Accept = Callable[[Any], str]
_LOOPS_OWN = (FINISH, ASK)  # count as no tool calls, so that a run at its limit can still hand over


class Acting:
    def __init__(self, host: Host, terms: Terms, clock: Clock, own: Iterable[OwnTool], accept: Accept) -> None:
        """`accept`: says what is wrong with a result, before the kernel is asked."""
        self._host, self._terms, self._clock, self._accept = host, terms, clock, accept
        self._own = {tool.spec.name: tool for tool in own}
        pinned = (pattern.partition("@") for pattern in terms.tools)
        self._versions = {
            name: f"{name}@{versions}" for name, at, versions in pinned if at
        }  # as the kernel resolves it

    def offered(self, registry: Iterable[ToolInfo]) -> list[ToolInfo]:
        """What the model may be told of: the program's own, and of the registry what the terms name."""
        wanted = [one for one in registry if one.name not in _LOOPS_OWN and _is_among(one.name, self._terms.tools)]
        found = {one.name: one for one in (*wanted, *(_info(tool.spec) for tool in self._own.values()))}
        return [found[name] for name in sorted(found)]

    async def act(self, state: State, entry: Entry, calls: Sequence[ToolCall]) -> str:
        """Runs them and adds the turn to the history, whatever happens: calls and results are never apart. A sentence:
        the budget is used up, and one last turn is due."""
        fed: dict[str, Fed] = {}
        stop: Stop | None = None
        try:
            await self._run(state, calls, fed)
        except Stop as reason:
            stop = reason
        digests = {call.id: loop_feedback.digest(call, fed[call.id]) for call in calls if call.id in fed}
        times = loop_feedback.circling(state, digests.values())
        blocks = [
            fed.get(call.id, loop_feedback.told("failed", _NOT_RUN)).block(call, _warning(state, digests, call))
            for call in calls
        ]
        blobs = {one: each.blob for one, each in fed.items() if each.blob}
        state.entries += [entry, loop_history.results(blocks, state.turn, blobs)]
        if stop:
            raise stop
        count_bad(state, all(one.kind == "bad" for one in fed.values()))
        if times >= loop_feedback.STOPPED:
            names = {call.name for call in calls if state.repeats.get(digests.get(call.id, "")) == times}
            raise Stop("stuck", f"{' and '.join(sorted(names))} gave the same {times} times, and nothing else was new")
        if ended := [one.text for one in fed.values() if one.kind == "cancelled"]:
            raise Stop("cancelled", ended[0])
        return next((one.text for one in fed.values() if one.kind == "budget"), "")

    async def finish(self, params: Mapping[str, Any]) -> Fed:
        """The kernel holds the result to its schema. Good: that was the end."""
        if wrong := self._accept(params.get("result")):
            return loop_feedback.told("bad", f"Not run: {wrong}")
        try:
            await self._host.exec(FINISH, params, deadline=self._clock.left_s)
        except AgentOSError as problem:
            return loop_feedback.of_error(problem)
        raise Stop("done", "", params.get("result"))

    async def _run(self, state: State, calls: Sequence[ToolCall], fed: dict[str, Fed]) -> None:
        effects = {tool.name: tool.effect for tool in state.tools}
        first = next((n for n, call in enumerate(calls) if effects.get(call.name) != "pure"), len(calls))
        together = calls[: min(first, self._terms.tool_calls - state.tool_calls)]
        state.tool_calls += len(together)
        answers = await self._host.gather(*(self._call(state, call) for call in together))
        fed.update(zip((call.id for call in together), answers, strict=True))
        for call in calls[len(together) :]:
            if any(one.kind in ("budget", "cancelled") for one in fed.values()):
                return
            if call.name not in _LOOPS_OWN:
                if state.tool_calls >= self._terms.tool_calls:
                    raise Stop("tool_calls", f"its {state.tool_calls} tool calls are made (program.loop.tool_calls)")
                state.tool_calls += 1
            await self._clock.look(state)
            fed[call.id] = await self._call(state, call)

    async def _call(self, state: State, call: ToolCall) -> Fed:
        """One call. Its failure is an answer too; what is raised ends the run."""
        fed = await self._answer(state, call)
        facts: dict[str, Any] = {"turn": state.turn, "tool": call.name, "outcome": fed.kind, "size": len(fed.text)}
        why = {} if fed.kind == "good" else {"why": fed.text.partition("\n")[0]}
        await self._host.event("agent.tool", {**facts, **why})
        return fed

    async def _answer(self, state: State, call: ToolCall) -> Fed:
        names = [tool.name for tool in state.tools]
        if call.name == FINISH and self._terms.output_schema is not None:
            return loop_feedback.no_arguments(call) if call.args_error else await self.finish(call.args)
        if call.name == ASK and _is_among(ASK, self._terms.tools):
            return loop_feedback.no_arguments(call) if call.args_error else await self._ask(state, call)
        if call.name not in names:
            return loop_feedback.unknown(call.name, names)
        if call.args_error:
            return loop_feedback.no_arguments(call)
        try:
            if own := self._own.get(call.name):
                return loop_feedback.of_result(await own.run(call.args, self._host))
            return loop_feedback.of_result(
                await self._host.exec(
                    self._versions.get(call.name, call.name), call.args, deadline=max(0.001, self._clock.left_s)
                )
            )
        except AgentOSError as problem:
            return loop_feedback.of_error(problem)
        except Exception as problem:  # the author's function; the model may know another way
            if call.name not in self._own:
                raise
            return loop_feedback.of_exception(problem)

    async def _ask(self, state: State, call: ToolCall) -> Fed:
        """A person is asked. The time that takes is not the run's."""
        question = call.args.get("question")
        if not isinstance(question, str) or set(call.args) != {"question"}:
            return loop_feedback.told("bad", f"Not run: {ASK} takes a question, which is text, and nothing else.")
        await self._host.event("agent.waiting", {"turn": state.turn, "question": question})
        before = self._clock.left_s
        try:
            answer = await self._host.ask(question)
        except AgentOSError as problem:
            return loop_feedback.of_error(problem)
        state.began_s += before - await self._clock.look(state)
        self._clock.left_s = before
        return loop_feedback.of_answer(answer)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    """A pattern may say which versions: `http.fetch@^1.2`."""
    return any(fnmatchcase(name, pattern.partition("@")[0]) for pattern in patterns)


def _info(spec: ToolSpec) -> ToolInfo:
    return ToolInfo(
        name=spec.name,
        version=spec.version,
        description=spec.description,
        effect=spec.effect,
        input_schema=spec.input_schema,
    )


def _warning(state: State, digests: Mapping[str, str], call: ToolCall) -> str:
    times = state.repeats.get(digests.get(call.id, ""), 0)
    return loop_feedback.again(times) if times >= loop_feedback.TOLD else ""
