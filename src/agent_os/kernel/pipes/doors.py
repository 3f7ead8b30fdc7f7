"""SYS_PIPE: one agent after the other, each a request through the gate, and a check by the kernel in between.

In: stages, the types that the pipe uses, an input. Out: what the last stage gave, or the error of the stage that ended
it; then no later stage has seen anything. What a stage gives has the type that whoever built the pipe says it returns,
and must fit that; what the stage itself says of it counts nothing. Every stage's outcome is on the record together with
what it was cleared as, so a crash repeats no finished stage.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, EIO, EPOLICY, ETIMEDOUT, ETYPE, AgentOSError
from agent_os.abi.syscalls import BY_REQUEST, Effect
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import CLEAN, Label, joined, of_words
from agent_os.kernel.authority.policy import rules
from agent_os.kernel.authority.policy.layers import strictest
from agent_os.kernel.bus.broker import Change
from agent_os.kernel.bus.doors import ERROR, addressed, asking, is_counted, require_readable
from agent_os.kernel.bus.message import LARGEST, LONGEST_MS, Message, Outgoing
from agent_os.kernel.calls import Act, Asked, Done, Need, Way, leave_of
from agent_os.kernel.journal import Draft
from agent_os.kernel.pipes.running import Progress
from agent_os.kernel.pipes.schemas import canonical, require_fit
from agent_os.kernel.pipes.types import Type
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Agent, bare

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

MOST_STAGES = 32
MOST_TYPES = 64  # that one pipe declares
Allowed = frozenset[str] | None  # None: any that is registered


class _Stage(Struct, kw_only=True, forbid_unknown_fields=True):
    """As it is written."""

    agent: str
    returns: str = ""
    checks: list[list[str] | None] = []


class Stop(Struct, frozen=True):
    """A stage, understood."""

    agent: str  # its id
    returns: str
    checks: tuple[Allowed, ...]


def _pipe(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Pipe", asked.request)
    if not 1 <= request.deadline_ms <= LONGEST_MS:
        raise EINVAL("body", f"SYS_PIPE: 1 to {LONGEST_MS} ms - at `$.deadline_ms`")
    require_readable(request.input)
    if len(request.types) > MOST_TYPES:
        raise EINVAL("body", f"SYS_PIPE: at most {MOST_TYPES} types - at `$.types`")
    types = kernel.bus.types.check(agent.namespace, request.types, agent.id)
    stops, needs = _understood(kernel, agent, request.stages, types)
    place = f"{agent.first_aseq}/{asked.pos}" if asked.pos else ""
    run = _Run(kernel, agent, stops, types, request, place)
    act = Act(run.run, needs, Way.STORE, Effect.IDEMPOTENT, label=lambda: run.heard)
    act.answered = run.forget
    act.facts = {"size": len(memoryview(request.input))}
    if is_counted(kernel, agent):
        act.cost, act.lost = {"messages": len(stops)}, {"messages": 0}
        run.sent = lambda count: setattr(act, "lost", {"messages": count})
    run.confirm = lambda: leave_of(act).confirm()
    return act


def _understood(
    kernel: "Kernel", agent: Agent, written: Sequence[Any], types: dict[str, Type]
) -> tuple[list[Stop], list[Need]]:
    if not 1 <= len(written) <= MOST_STAGES:
        raise EINVAL("body", f"SYS_PIPE has 1 to {MOST_STAGES} stages - at `$.stages`")
    try:
        stages = msgspec.convert(written, list[_Stage])
    except msgspec.ValidationError as problem:
        raise EINVAL("body", f"SYS_PIPE: {problem} (of `$.stages`)") from None
    stops: list[Stop] = []
    needs: list[Need] = []
    for number, one in enumerate(stages):
        for name in (one.returns, *(name for check in one.checks for name in check or ())):
            if name and name not in types and not kernel.bus.types.knows(agent.namespace, name):
                raise ETYPE("type.unknown", f"there is no type {name!r}", stage=number, type=name)
        to, more = addressed(kernel, agent, one.agent, "normal")
        checks = tuple(None if check is None else frozenset(check) for check in one.checks)
        stops.append(Stop(to, one.returns, checks))
        needs += [need for need in more if need not in needs]
    return stops, needs


class _Run:
    """One pipe under way."""

    def __init__(
        self,
        kernel: "Kernel",
        caller: Agent,
        stops: Sequence[Stop],
        types: dict[str, Type],
        request: "abi.Pipe",
        place: str,
    ) -> None:
        self._kernel, self._bus, self._caller, self._stops = kernel, kernel.bus, caller, stops
        self._types, self._request, self._place = types, request, place
        self._taken: Sequence[Put] = ()  # off the bus, with a response that no check let through
        self.heard: Label = CLEAN  # what an error tells of
        self.sent: Callable[[int], None] = lambda count: None
        self.confirm: Callable[[], None] = lambda: None

    async def run(self) -> Done:
        """Cancelled, it has come as far as it has come: what is finished is kept for the same place."""
        caller, pipes = self._caller, self._bus.pipes
        at = pipes.find(caller.id, self._place) or Progress(payload=self._request.input, labels=CLEAN.words())
        if at.failed:
            self.heard = of_words(at.labels)
            raise frames.to_error(at.failed)
        registered = self._bus.types.register(caller.namespace, self._types, caller.id)
        if registered:
            names = {name: one.digest for name, one in self._types.items()}
            self._bus.put(caller.id, caller.incarnation, Kind.ACCEPT, {"types": names}, Change(None, registered))
        end = self._bus.now.mono + self._request.deadline_ms / 1000
        while at.stage < len(self._stops):
            number = at.stage
            try:
                at = await self._stage(number, at, end)
            except AgentOSError as error:
                self._failed(number, error)
                raise
        label = of_words(at.labels)
        return Done({"output": at.payload, "type": at.type}, puts=pipes.forget(caller.id, self._place), label=label)

    async def _stage(self, number: int, at: Progress, end: float) -> Progress:
        stop, caller, bus = self._stops[number], self._caller, self._bus
        self.confirm()  # what the caller holds and its rules, as they are by now
        if at.sender:
            _require_allowed(self._kernel, at.sender, stop.agent)
        bus.receiver(stop.agent)
        left = round((end - bus.now.mono) * 1000)
        if left < 1:
            raise ETIMEDOUT("pipe.deadline", f"no time is left for {bare(stop.agent)}", retryable=False)
        label = joined([self._kernel.authority.labels.of(caller.id), of_words(at.labels)])
        draft = Outgoing(stop.agent, caller.id, False, at.payload, "request", at.type, labels=label.words())
        draft.isolation, draft.ttl_ms, draft.deadline_ms, draft.via = caller.isolation, left, left, "pipe"
        self.heard = self._kernel.authority.labels.of(stop.agent)
        place = f"{self._place}#{number}" if self._place else ""
        with self._kernel.models.lends(caller, [stop.agent]):
            answer = await asking(self._kernel, caller, draft, place, lambda: self.sent(number + 1))
        self.heard = joined([of_words(answer.value.labels), self._kernel.authority.labels.of(stop.agent)])
        try:
            cleared, crossed = self._cleared(number, answer.value)
        except AgentOSError:
            self._taken = answer.puts
            raise
        puts = [*answer.puts, *bus.pipes.keep(caller.id, self._place, cleared)]
        self._record(number, {"type": cleared.type, "crossed": crossed}, puts)
        return cleared

    def _record(self, number: int, facts: dict[str, Any], puts: Sequence[Put]) -> None:
        caller, stop = self._caller, self._stops[number]
        told = {"pipe": self._place, "stage": number, "agent": bare(stop.agent), **facts}
        self._bus.put(caller.id, caller.incarnation, Kind.ACCEPT, told, Change(None, list(puts)))

    def _failed(self, number: int, error: AgentOSError) -> None:
        """The record has it before the caller: asked again at the same place, it is not tried again."""
        error.detail.update(stage=number, agent=bare(self._stops[number].agent))
        error.retryable = False  # stages before it have acted
        if self._kernel.journal.failed:
            return
        ended = Progress(number, labels=self.heard.words(), failed=list(frames.facts(error)))
        puts = [*self._taken, *self._bus.pipes.keep(self._caller.id, self._place, ended)]
        self._record(number, {"failed": error.code}, puts)

    def forget(self) -> None:
        """The caller's record tells how it ended."""
        caller = self._caller
        if puts := self._bus.pipes.forget(caller.id, self._place):
            facts = frames.encode_body({"event": "pipe", "over": self._place})
            self._kernel.journal.put(Draft("kernel", Kind.STATE, body=facts), sync=False, puts=puts)

    # What lies between two stages.

    def _cleared(self, number: int, answer: Message) -> tuple[Progress, bool]:
        """What a stage gave, as the next may have it. ETYPE, EPOLICY, EAGAIN: nobody may."""
        stop = self._stops[number]
        if answer.schema == ERROR:
            raise EIO("pipe.stage", _why(stop, answer))
        if len(memoryview(answer.payload)) > LARGEST:
            raise ETYPE("pipe.size", "it gave more than a message carries")
        if answer.schema and answer.schema != stop.returns:
            what = repr(stop.returns) if stop.returns else "without a type"
            raise ETYPE("pipe.forged", f"{bare(stop.agent)} calls it something else, and it is {what}")
        label, crossed = of_words(answer.labels), False
        if not stop.returns:
            if stop.checks:
                reason = f"nobody said what {bare(stop.agent)} returns, so no check lets it through"
                raise ETYPE("pipe.untyped", reason, hint="give its function a return annotation, or Stage(…, returns=)")
            return Progress(number + 1, answer.payload, label.words(), "", stop.agent), False
        kind = self._types.get(stop.returns) or self._bus.types.find(self._caller.namespace, stop.returns)
        value = decode_any(answer.payload)
        require_fit(kind.name, kind.schema, value)
        for allowed in stop.checks:
            if allowed is not None and kind.name not in allowed:
                names = ", ".join(sorted(allowed)) or "nothing"
                raise ETYPE("pipe.refused", f"{kind.name} may not pass here: {names} may")
        if stop.checks and label is not CLEAN:
            there = self._kernel.table.parties
            next_one = self._stops[number + 1].agent if number + 1 < len(self._stops) else self._caller.id
            border = self._kernel.authority.border
            crossed = border.crosses(there(stop.agent), there(next_one), kind.name, kind.schema, value)
        carried = CLEAN if crossed else label
        return Progress(number + 1, canonical(value), carried.words(), kind.name, stop.agent), crossed


def _why(stop: Stop, answer: Message) -> str:
    """What a stage says instead of a value is free text, and a check is there to let none through."""
    if stop.checks:
        return f"{bare(stop.agent)} could not do it; why is text, which no check lets through"
    return f"{bare(stop.agent)} says: {decode_any(answer.payload)}"


def _require_allowed(kernel: "Kernel", sender: str, receiver: str) -> None:
    """What one agent made goes to another, and neither of them has asked: the rules about the first must allow it.
    Rules that are missing or break allow nothing."""
    try:
        policy = kernel.authority.policies.of(sender)
        needs = [Need("ipc", "send", f"agent/{bare(receiver)}")]
        parties = kernel.table.parties(sender)
        decision = strictest([policy.decide_all(name, role, needs) for name, role in parties])
        allowed, rule = decision.effect is rules.Effect.ALLOW, decision.told
    except Exception as bug:  # whatever it is, nobody has said yes
        raise EPOLICY(
            "pipe.policy", f"the policy could not be asked: {type(bug).__name__}", violation="refuse"
        ) from bug
    if not allowed:
        who = f"the rule {rule!r}" if rule else "the policy"
        reason = f"{who} does not let {bare(sender)} send to {bare(receiver)}"
        raise EPOLICY("pipe.policy", reason, rule=rule, violation="refuse")


CALLS = {BY_REQUEST[abi.Pipe].number: _pipe}
