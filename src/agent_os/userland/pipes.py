"""Typed pipes for an author: `researcher | PolicyCheckPipe(["ResearchResult"]) | writer`, then `execute`.

`|` only puts together; nothing is asked of anybody before `execute`, which is one SYS_PIPE. The kernel does the
checking. A stage is an agent that runs (its handle, its name, or a context in this process), which answers requests, or
an `@agent` function: then each `execute` starts one of its own, asks it once, and ends it.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from agent_os.abi import syscalls
from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.userland import schemas
from agent_os.userland.agent import DECLARED, Agent
from agent_os.userland.messages import in_words
from agent_os.userland.results import Spawned, read_as
from agent_os.userland.session import CURRENT, Session

STAGE = {"agent-os.pipe": "stage"}  # the input of whoever is started to answer once
Allowed = tuple[str, ...] | None


class PipeError(AgentOSError):
    """A pipe ended before its end. `stage` counts agents from 0; those after it have seen nothing."""

    def __init__(self, stage: int, error: AgentOSError) -> None:
        who = error.detail.get("agent", "")
        super().__init__(error.code, f"stage {stage} ({who}): {error.reason}", hint=error.hint)
        self.detail = dict(error.detail)
        self.stage, self.errno, self.severity, self.retryable = stage, error.name, error.severity, False

    @property
    def name(self) -> str:
        return self.errno


class _Joins:
    def __or__(self, other: Any) -> "Pipeline":
        return joined(self, other)


class PolicyCheckPipe(_Joins):
    """Between two agents: only these types pass, by name or as types. None: any that the kernel knows; []: none.
    EINVAL: there is no type of that name."""

    def __init__(self, allowed_types: Iterable[str | type] | None = None) -> None:
        if isinstance(allowed_types, str):
            raise EINVAL("pipe.types", "allowed_types is a list", hint=f"allowed_types=[{allowed_types!r}]")
        self.allowed: Allowed = None if allowed_types is None else tuple(_named(one) for one in allowed_types)

    def __repr__(self) -> str:
        return f"PolicyCheckPipe({None if self.allowed is None else list(self.allowed)})"


def _named(kind: Any) -> str:
    if isinstance(kind, str):
        _learn()
        schemas.find(kind)
        return kind
    schemas.register(kind)
    return schemas.name_of(kind)


def _learn() -> None:
    """What the `@agent` functions of this program return. Only now: an annotation may name what comes further down."""
    for one in DECLARED:
        with contextlib.suppress(EINVAL):  # not one that has a name
            if one.returns is not None:
                schemas.register(one.returns)


class Stage(_Joins):
    """An agent with what it returns said by hand: `Stage("collector", returns=Found)`."""

    def __init__(self, agent: Any, returns: Any = None) -> None:
        if isinstance(agent, Stage):
            agent, returns = agent.agent, returns or agent.returns
        if not isinstance(agent, str | Spawned | Agent | Session):
            hint = "an @agent function, what spawn gave, a context, or a name"
            raise TypeError(f"{agent!r} cannot be a stage of a pipe: {hint}")
        self.agent: str | Spawned | Agent[..., Any] | Session = agent
        said = getattr(cast("Any", agent), "returns", None) if isinstance(agent, Spawned | Agent) else None
        self.returns = returns if returns is not None else said
        self.type = _type(self.returns)

    def __repr__(self) -> str:
        agent = self.agent
        return agent.name if isinstance(agent, Agent) else getattr(agent, "agent", str(agent))


def _type(returns: Any) -> str:
    """The name of what a stage returns, known from here on; empty where that has none, and so passes no check."""
    if returns in (None, type(None), Any):
        return ""
    try:
        schemas.register(returns)
    except EINVAL as error:
        if error.code == "type.name":
            return ""
        raise
    return schemas.name_of(returns)


Part = Stage | PolicyCheckPipe


class Pipeline(_Joins):
    """Immutable; any grouping of the same parts is the same pipeline."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts: tuple[Part, ...]
        object.__setattr__(self, "parts", tuple(parts))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a pipeline does not change: `|` makes a new one")

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))

    def _stages(self) -> tuple[list[Stage], list[list[Allowed]], dict[str, Any]]:
        """The agents, the checks behind each, and the types of both."""
        stages: list[Stage] = []
        checks: list[list[Allowed]] = []
        names: set[str] = set()
        for part in self.parts:
            if isinstance(part, Stage):
                stages.append(part)
                checks.append([])
                names |= {part.type} - {""}
            elif not stages:
                raise EINVAL("pipe.first", "a check needs an agent before it: there is nothing yet that it could check")
            else:
                checks[-1].append(part.allowed)
                names.update(part.allowed or ())
        if not stages:
            raise EINVAL("pipe.empty", "there is no agent in this pipe")
        return stages, checks, {name: schemas.schema_of(schemas.find(name)) for name in sorted(names)}

    async def execute(self, value: Any = None, timeout: float = 30.0, *, ctx: Any = None) -> Any:
        """What the last agent gives, as its type if that is known. `ctx`: who asks, in a program that is no agent.
        PipeError says which stage ended it. May run several times at once."""
        caller: Any = ctx or CURRENT.get()
        if caller is None:
            raise EINVAL("pipe.caller", "nobody is there to run this pipe", hint="execute(value, ctx=CONTEXT)")
        stages, checks, types = self._stages()
        names: list[str] = []
        own: list[Spawned] = []
        try:
            for stage in stages:
                names.append(await _asked(caller, stage, own))
            written = [
                {"agent": name, "returns": stage.type, "checks": [None if one is None else list(one) for one in check]}
                for name, stage, check in zip(names, stages, checks, strict=True)
            ]
            request = syscalls.Pipe(
                stages=written, input=_raw(value), types=types, deadline_ms=max(1, round(timeout * 1000))
            )
            try:
                found = read_as(_Output, await caller.syscall(request))
            except AgentOSError as error:
                stage = error.detail.get("stage")
                raise (PipeError(stage, error) if isinstance(stage, int) else error) from None
        finally:
            for one in own:
                with contextlib.suppress(AgentOSError):  # it has ended by itself
                    await caller.signal(one, AgentSignal.SIGKILL)
        return msgspec.convert(found.output, stages[-1].returns) if found.type else found.output


class _Output(Struct, frozen=True):
    output: Any = None
    type: str = ""


def joined(one: Any, other: Any) -> Pipeline:
    return Pipeline([*_parts(one), *_parts(other)])


def _parts(one: Any) -> Sequence[Part]:
    if isinstance(one, Pipeline):
        return one.parts
    return [one] if isinstance(one, PolicyCheckPipe | Stage) else [Stage(one)]


async def _asked(caller: Any, stage: Stage, own: list[Spawned]) -> str:
    """The name of whoever is asked. One of our own is started, under a name that no other run of this pipe has."""
    agent = stage.agent
    if isinstance(agent, str):
        return agent
    if isinstance(agent, Spawned):
        return agent.agent
    if isinstance(agent, Session):
        return agent.agent
    mark = (await caller.random(4)).hex()
    spawned = await caller.spawn({**agent.manifest(), "name": f"{agent.name}-{mark}"}, STAGE, caps=agent.caps)
    own.append(spawned)
    return spawned.agent


async def as_stage(ctx: Any, program: Agent[..., Any]) -> None:
    """The life of an `@agent` function in a pipe: one request, one response."""
    (message,) = await ctx.recv()
    try:
        result = await program.function(ctx, **program.bind(message.payload))
        await message.reply(msgspec.to_builtins(result))
    except Exception as problem:
        await message.reply(error=in_words(problem))
        raise


def _raw(value: Any) -> Raw:
    try:
        return Raw(msgspec.msgpack.encode(msgspec.to_builtins(value)))
    except (TypeError, ValueError, RecursionError) as problem:
        raise EINVAL("pipe.input", f"this cannot be sent: {problem}") from None
