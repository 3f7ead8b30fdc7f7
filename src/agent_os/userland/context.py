"""`Context`: what an author's function holds, and its only way to anything outside its own process.

Every method that waits is one syscall (`list` is one a page), made under the agent's own authority, recorded, and
answered from the record when the program is run again after a crash. Errors are the family of `abi.errors`. Time,
randomness and waiting come from here and not from the standard library, which would give something else the second
time.
"""

import asyncio
import datetime
import sys
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Literal, Unpack, cast

import msgspec

from agent_os.abi import syscalls
from agent_os.abi.errors import EAPPROVAL, EBUSY, EINVAL
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_NAME
from agent_os.abi.tools import ToolInfo, ToolResult, ToolSpec
from agent_os.userland.agent import Agent
from agent_os.userland.loop_terms import Answer, Host, Left, Outcome, OwnTool
from agent_os.userland.messages import Messages
from agent_os.userland.results import (
    Content,
    Elevated,
    Ended,
    Goal,
    Item,
    Made,
    Masked,
    Monitored,
    Opened,
    Page,
    Shared,
    Spawned,
    Stat,
    Time,
    Watching,
    Written,
    read_as,
)
from agent_os.userland.session import Interrupted as Interrupted
from agent_os.userland.session import Options, end_all
from agent_os.userland.thinking import Models
from agent_os.userland.tools import Value
from agent_os.userland.watches import Watch
from agent_os.userland.wire import Asked, Chunks

# Work, for an author: people who are asked and told, what is left to spend, and the agent loop inside a program.
# Every method that waits is one syscall, but `loop`, which is as many as it takes. What a person said, or that
# nobody did, is an `Answer` and never an exception: all four are ways in which a question ends.

_MOST_FACT = 2000  # characters of a text in an event: the record of the call itself has all of it
_ENDS = ("refused", "expired", "cancelled")


class Working(Messages, Models):
    """`Context` as far as it is about the work itself."""

    async def ask(self, question: str, *, schema: dict[str, Any] | None = None, timeout_s: float = 900) -> Answer:
        """Ask whoever runs this agent: `agentctl answer` is how they reply. Waits, also over crashes and restarts.
        `schema`: of the value; without one it is text."""
        request = syscalls.Ask(question=question, schema=schema, timeout_ms=max(1, round(timeout_s * 1000)))
        try:
            return Answer(state="value", value=(await self.syscall(request))["value"])
        except EAPPROVAL as problem:
            outcome = str(problem.detail.get("outcome", ""))
            if outcome not in _ENDS:
                raise
            return Answer(state=cast(Any, outcome), reason=problem.reason)

    async def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """`agent.WORD` for whoever follows this agent; long texts are cut."""
        await self.syscall(syscalls.Event(kind=kind, facts=cast("dict[str, Any]", _short(facts))))

    async def progress(self, text: str, *, done: float | None = None) -> None:
        """How far it is. `done`: from 0 to 1."""
        if done is not None and not 0 <= done <= 1:
            raise EINVAL("progress", "done is a part of the whole, from 0 to 1")
        await self.event("agent.progress", {"text": text, **({} if done is None else {"done": done})})

    async def budget(self) -> Left:
        """Of the budget that is tightest, its own or of somebody above."""
        return read_as(Left, await self.syscall(syscalls.Left()))

    async def loop(
        self,
        goal: str,
        *,
        model: str = "",
        tools: Iterable[str | OwnTool] = (),
        output: Any = None,
        inputs: Mapping[str, Any] | None = None,
        **bounds: Any,
    ) -> Outcome:
        """A model works towards a goal with these tools, until it has a result or a reason to stop. `output`: the type
        of the result. `bounds`: `turns`, `tool_calls`, `wall_secs`, `max_output`, `fallback`, `instructions`."""
        from agent_os.userland.loop import work  # programs without it start sooner

        named = model or self.usual_model
        if not named:
            hint = 'ctx.loop(goal, model="provider/name"), or @agent(model="provider/name")'
            raise EINVAL("loop.model", "no model is named", hint=hint)
        return await work(cast(Host, self), goal, model=named, tools=tools, output=output, inputs=inputs, **bounds)


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MOST_FACT:
        return f"{value[:_MOST_FACT]}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        return {str(key): _short(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        few = cast("list[Any]", value)[:64]
        return [_short(one) for one in few]
    return value


STREAM_FROM = 64 * 1024  # what is longer travels in pieces
_PIECE = 32 * 1024  # of text, characters
Data = bytes | str
Items = list[Item]  # these are named here, because inside the class `list` is a method
Results = list[Any]
Tools = list[ToolInfo]


class Handle:
    """An entry that is open. Closed by `async with`, or by hand."""

    def __init__(self, ctx: "Context", number: int) -> None:
        self._ctx, self.number = ctx, number

    async def read(self, *, offset: int = 0, length: int | None = None, **options: Unpack[Options]) -> Any:
        request = syscalls.Read(handle=self.number, offset=offset, length=length)
        return _content(await self._ctx.syscall(request, **options)).data

    async def write(
        self, data: Data, *, mode: Literal["replace", "append"] = "replace", **options: Unpack[Options]
    ) -> Written:
        request = syscalls.Write(handle=self.number, data=data, mode=mode)
        return read_as(Written, await self._ctx.syscall(request, **options))

    async def close(self) -> None:
        await self._ctx.close(self)

    async def __aenter__(self) -> "Handle":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Context(Working):
    """What the kernel answers to this agent."""

    # Files and memory

    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        version: int | None = None,
        text: bool = False,
        **options: Unpack[Options],
    ) -> Any:
        """What is stored there: text that was written is text, bytes are bytes. `text`: of a workspace file."""
        request = syscalls.Read(path=path, offset=offset, length=length, version=version, text=text)
        return _content(await self.syscall(request, **options)).data

    async def content(self, path: str, **options: Unpack[Options]) -> Content:
        """What is stored there with its version, for a later write with `if_version`."""
        return _content(await self.syscall(syscalls.Read(path=path), **options))

    async def write(
        self,
        path: str,
        data: Data | AsyncIterable[Data],
        *,
        mode: Literal["replace", "append", "create"] = "replace",
        if_version: int | None = None,
        **options: Unpack[Options],
    ) -> Written:
        """All of it or nothing. Long data, and what an asynchronous iterator yields, is streamed and appears at the
        end. `if_version=0`: only if there is nothing yet; another number: only if nobody wrote since."""
        whole = isinstance(data, bytes | str)
        if whole and len(data) <= STREAM_FROM:
            request = syscalls.Write(path=path, data=data, mode=mode, if_version=if_version)
            return read_as(Written, await self.syscall(request, **options))
        request = syscalls.Write(path=path, mode=mode, if_version=if_version, stream=True)
        pieces = _pieces(data) if whole else _cut(data)
        return read_as(Written, await self.syscall(request, send=pieces, **options))

    async def append(self, path: str, data: Data | AsyncIterable[Data], **options: Unpack[Options]) -> Written:
        return await self.write(path, data, mode="append", **options)

    async def list(self, path: str, **options: Unpack[Options]) -> Items:
        """A whole directory, in order."""
        found: list[Item] = []
        while True:
            after = found[-1].name if found else ""
            page = read_as(Page, await self.syscall(syscalls.List(path=path, after=after), **options))
            found += page.entries
            if not page.more or not page.entries:
                return found

    async def stat(self, path: str, **options: Unpack[Options]) -> Stat:
        return read_as(Stat, await self.syscall(syscalls.Stat(path=path), **options))

    async def remove(self, path: str, *, if_version: int | None = None, **options: Unpack[Options]) -> None:
        await self.syscall(syscalls.Remove(path=path, if_version=if_version), **options)

    async def open(self, path: str, flags: Literal["r", "w", "rw"] = "r", **options: Unpack[Options]) -> Handle:
        answer = await self.syscall(syscalls.Open(path=path, flags=flags), **options)
        return Handle(self, read_as(Opened, answer).handle)

    async def close(self, handle: Handle) -> None:
        await self.syscall(syscalls.Close(handle=handle.number))

    async def watch(
        self, path: str, *, recursive: bool = True, since: int | None = None, **options: Unpack[Options]
    ) -> Watch:
        """Changes below a path: `async for change in watch`, until `close`."""
        answer = await self.syscall(syscalls.Watch(path=path, recursive=recursive, since=since), **options)
        number = read_as(Watching, answer).watch

        async def end() -> None:
            await self.syscall(syscalls.Watch(path=path, recursive=recursive, end=True))

        return self._watches.open(number, end)

    async def share(
        self,
        path: str,
        to: str,
        *,
        rights: Literal["r", "rw"] = "r",
        ttl: float | None = None,
        end: bool = False,
        **options: Unpack[Options],
    ) -> str:
        """Let another agent see an entry; the path at which it does. `end`: take it back."""
        seconds = None if ttl is None else max(1, round(ttl))
        answer = await self.syscall(syscalls.Share(path=path, to=to, rights=rights, ttl_s=seconds, end=end), **options)
        return "" if answer is None else read_as(Shared, answer).path

    # Tools and other agents

    async def call(self, tool: str, /, **params: Any) -> Any:
        """Run a tool: `name`, or `name@^1.2`. A map that it gives can also be read by attributes. What it streamed
        comes as a list, unless it has a result besides."""
        answer = await self.syscall(syscalls.Exec(tool=tool, params=params))
        if isinstance(answer, Chunks):
            return list(cast(list[Any], answer)) if answer.last is None else answer.last
        return Value(cast("dict[str, Any]", answer)) if isinstance(answer, dict) else answer

    async def exec(
        self,
        tool: str,
        params: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> ToolResult:
        """`call` with options, and with all that is known of the result: what was cut, and where all of it lies."""
        request = syscalls.Exec(tool=tool, params=dict(params or {}), whole=True)
        return read_as(ToolResult, await self.syscall(request, **options))

    async def tools(self, query: str = "", *, tag: str = "", **options: Unpack[Options]) -> Tools:
        """What this agent may call, by name."""
        answer = await self.syscall(syscalls.Tools(query=query, tag=tag), **options)
        return [read_as(ToolInfo, one) for one in answer["tools"]]

    async def register(self, tool: Mapping[str, Any] | ToolSpec, code: str, **options: Unpack[Options]) -> str:
        """A tool for this agent and its children; its name with its version. Each call is a run of `code`, which finds
        the parameters as JSON on its standard input and prints its result as JSON."""
        spec = msgspec.to_builtins(tool) if isinstance(tool, ToolSpec) else dict(tool)
        answer = await self.syscall(syscalls.Register(spec=spec, code=code), **options)
        return f"{answer['name']}@{answer['version']}"

    async def stream(self, tool: str, /, **params: Any) -> AsyncIterator[Any]:
        """The parts of a tool's result as they come. To leave early, close it: `async with aclosing(ctx.stream(…))`."""
        place = self._places.current()
        await self._turn(place)
        mine: list[Asked] = []
        request = syscalls.Exec(tool=tool, params=params)
        parts = self._wire.stream(request, pos=self._places.pos(place), began=self._noting(request, place, mine))
        try:
            async with aclosing(cast("Any", parts)) as opened:
                async for part in opened:
                    yield part
        finally:
            for asked in mine:
                self._waiting.pop(asked, None)

    async def spawn(
        self,
        program: str | Mapping[str, Any] | Agent[..., Any],
        input: Any = None,
        *,
        caps: Iterable[str] = (),
        **options: Unpack[Options],
    ) -> Spawned:
        """Start a child: a manifest, `FILE.py:NAME`, or an `@agent` of this program."""
        if isinstance(program, Agent):
            manifest = program.manifest()
        elif isinstance(program, str):
            manifest: dict[str, Any] = {"program": {"runtime": "python", "entry": program}}
        else:
            manifest = dict(program)
        answer = await self.syscall(syscalls.Spawn(manifest=manifest, input=input, caps=list(caps)), **options)
        spawned = read_as(Spawned, answer)
        return msgspec.structs.replace(spawned, returns=program.returns) if isinstance(program, Agent) else spawned

    def __or__(self, other: Any) -> Any:
        """A pipeline that begins with whatever answers requests to this context."""
        from agent_os.userland.pipes import joined

        return joined(self, other)

    async def wait(self, agent: str | Spawned | None = None, **options: Unpack[Options]) -> Ended:
        """Until a child has ended; without a name, any."""
        name = agent.agent if isinstance(agent, Spawned) else agent
        return read_as(Ended, await self.syscall(syscalls.Wait(agent=name), **options))

    async def signal(
        self, agent: str | Spawned, signal: AgentSignal, value: Any = None, **options: Unpack[Options]
    ) -> None:
        """Returns when it is true: stopped when it stands still, killed when nothing of it is left."""
        await self.syscall(syscalls.Signal(agent=_named(agent), signal=signal, value=value), **options)

    async def link(self, agent: str | Spawned, **options: Unpack[Options]) -> None:
        """End together: whichever of the two ends abnormally takes the other along. See `trap_exit`."""
        await self.syscall(syscalls.Link(agent=_named(agent)), **options)

    async def unlink(self, agent: str | Spawned, **options: Unpack[Options]) -> None:
        await self.syscall(syscalls.Link(agent=_named(agent), end=True), **options)

    async def trap_exit(self, on: bool = True) -> None:
        """The end of a linked agent is a notice from now on: `ctx.on("link_exit", handler)`."""
        await self.syscall(syscalls.Trap(on=on))

    async def monitor(self, agent: str | Spawned, **options: Unpack[Options]) -> int:
        """Be told once when it ends, at once if it has: `ctx.on("monitor_down", handler)`; this number is its `ref`."""
        return read_as(Monitored, await self.syscall(syscalls.Monitor(agent=_named(agent)), **options)).ref

    async def request_elevation(
        self, requested: str | Iterable[str], reason: str, *, seconds: float = 900, **options: Unpack[Options]
    ) -> Elevated:
        """Ask a person for capabilities beyond those held, for a time. Waits for the answer; EAPPROVAL: it was no."""
        caps = [requested] if isinstance(requested, str) else list(requested)
        request = syscalls.Elevate(caps=caps, reason=reason, ttl_ms=round(seconds * 1000))
        return read_as(Elevated, await self.syscall(request, **options))

    async def demonitor(self, ref: int) -> None:
        await self.syscall(syscalls.Monitor(ref=ref, end=True))

    async def goal(self, *, timeout: float | None = None) -> Goal | None:
        """The next goal that somebody submitted for this agent; None if none came in time. Say `finish` when it is
        done: until then it counts as worked on, and after a crash it is there again."""
        answer = await self.syscall(syscalls.Take(wait_ms=None if timeout is None else max(0, round(timeout * 1000))))
        return None if answer is None else read_as(Goal, answer)

    async def finish(self, goal: str | Goal, result: Any = None, *, failure: str | None = None) -> None:
        """A goal is done, or with `failure` given up."""
        name = goal.id if isinstance(goal, Goal) else goal
        await self.syscall(syscalls.Finish(goal=name, result=result, failure=failure))

    # What would be different the second time

    async def now(self) -> datetime.datetime:
        """The time, with its zone (UTC)."""
        time = read_as(Time, await self.syscall(syscalls.Now()))
        return datetime.datetime.fromtimestamp(time.wall_ns / 1e9, datetime.UTC)

    async def random(self, n: int = 16) -> bytes:
        """Random bytes. The module `random` is seeded by the kernel and may be used as ever."""
        answer = await self.syscall(syscalls.Random(n=n))
        return read_as(bytes, answer["bytes"] if isinstance(answer, dict) else answer)

    async def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=await self.random(16), version=4)

    async def sleep(self, seconds: float = 0.0, *, until: datetime.datetime | None = None) -> None:
        """The time left survives a restart."""
        if until is not None and until.tzinfo is None:
            raise EINVAL("sleep.zone", "a time without a zone means another moment on another machine")
        if until is not None:
            await self.syscall(syscalls.Sleep(until_ns=round(until.timestamp() * 1e9)))
        else:
            await self.syscall(syscalls.Sleep(ms=max(0, round(seconds * 1000))))

    async def gather(self, *work: Awaitable[Any], return_exceptions: bool = False) -> Results:
        """All at once, results in order. If one fails, the others are cancelled and have ended when this raises."""
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            return list(await asyncio.gather(*tasks, return_exceptions=return_exceptions))
        finally:
            await end_all(tasks)

    async def checkpoint(self, name: str, state: Any = None, *, work: bool = True, **options: Unpack[Options]) -> str:
        """Keep this moment. With a state, a later run starts here with `ctx.state`, so what this program does next must
        be what it does at its beginning with that state; only the main task can, and while it is alone."""
        if state is not None and not (self._places.current() is self._places.main and self._places.alone()):
            reason = "a checkpoint with a state needs the main task to be alone: tasks that run cannot be kept"
            raise EBUSY("checkpoint.tasks", reason, hint="await the other tasks first, or leave the state out")
        answer = await self.syscall(syscalls.Checkpoint(name=name, state=state, work=work), **options)
        made = read_as(Made, answer).checkpoint
        if state is not None:
            await self._begin_again(made)
        return made

    # Signals, and the rest

    async def mask(self, *signals: AgentSignal) -> set[AgentSignal]:
        """Defer what other agents send; what is masked now."""
        return _mask(await self.syscall(syscalls.Sigmask(block=list(signals))))

    async def unmask(self, *signals: AgentSignal) -> set[AgentSignal]:
        return _mask(await self.syscall(syscalls.Sigmask(unblock=list(signals))))

    async def ready(self) -> None:
        """Say that this agent can serve. Without this its first call says so; `@agent(says_ready=True)` waits for
        it."""
        await self.syscall(syscalls.Ready())

    async def alive(self) -> None:
        """A sign of life in the midst of long work: any call is one to the watchdog of its manifest."""
        await self.syscall(syscalls.Alive())

    async def check(self, name: str, **body: Any) -> dict[str, Any]:
        """Ask whether a call would pass, without making it: `check("SYS_WRITE", path=…)`."""
        if name not in BY_NAME:
            raise EINVAL("op", f"there is no syscall {name!r}", hint="SYS_READ, SYS_WRITE, …")
        return await self.syscall(syscalls.CheckPolicy(op=BY_NAME[name].number, body=body))

    def log(self, *parts: object) -> None:
        """A line for people, on stderr; not again in a replay."""
        if not self.replaying:
            print(*parts, file=sys.stderr, flush=True)


def _named(agent: str | Spawned) -> str:
    return agent.agent if isinstance(agent, Spawned) else agent


def _mask(answer: Any) -> set[AgentSignal]:
    return {AgentSignal(number) for number in read_as(Masked, answer).mask}


def _content(answer: Any) -> Content:
    """A streamed entry: a map with version and size, then pieces of the entry's own type."""
    if not isinstance(answer, Chunks):
        return read_as(Content, answer)
    pieces = cast(list[Any], answer)
    head: dict[str, Any] = pieces.pop(0) if pieces and isinstance(pieces[0], dict) else answer.last or {}
    data = "".join(pieces) if pieces and isinstance(pieces[0], str) else b"".join(pieces)
    return read_as(Content, {"size": len(data), **head, "data": data})


async def _pieces(data: Data) -> AsyncIterator[Data]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


async def _cut(source: AsyncIterable[Data]) -> AsyncIterator[Data]:
    """Pieces that fit into the credit, whatever the author's were."""
    async for data in source:
        async for piece in _pieces(data):
            yield piece
