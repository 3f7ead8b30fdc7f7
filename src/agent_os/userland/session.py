"""One agent's conversation with its kernel: the program as a task, its calls in their places, signals, checkpoints.

`Context` adds the author's methods; here is what they rest on. A call of the program goes out between signal handlers,
carries its place and what had been handled before it, and can be interrupted while it waits.
"""

import asyncio
import inspect
import random
import socket
import sys
import traceback
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Struct

from agent_os.abi import syscalls
from agent_os.abi.errors import EINTR, EINVAL, AgentOSError
from agent_os.abi.frames import Welcome
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_REQUEST, Body, Effect
from agent_os.userland.places import Place, Places
from agent_os.userland.results import Change, Made, Watching, read_as
from agent_os.userland.watches import Watches
from agent_os.userland.wire import Asked, Wire

# Signals inside an agent: the author's handlers, one at a time, between calls, and what happens without one. The
# kernel pushes a signal; it was recorded before. A handler runs in a task of its own with a place of its own (`s3`
# is the third signal). While it runs, calls that the program wants to make wait, so a handler sees the program
# between two calls and never in the midst of one; a call already under way goes on. That also means: a handler must
# not wait for the program. SIGKILL, SIGSTOP and their like never come here, the kernel acts on the process itself.

Handler = Callable[["Delivered"], Awaitable[None] | None]


@dataclass(frozen=True)
class Delivered:
    """A signal, or a notice, as a handler gets it."""

    what: AgentSignal | str
    value: Any = None
    sender: str = ""


class Signals:
    """`default` acts where there is no handler, or where it failed; it is a plain function, and quick."""

    def __init__(self, places: Places, default: Callable[[Delivered, Place], Awaitable[None] | None]) -> None:
        self._places, self._default = places, default
        self._handlers: dict[AgentSignal | str, Handler] = {}
        self._waiting: deque[tuple[Delivered, Place]] = deque()
        self._count = 0
        self._current: asyncio.Task[None] | None = None
        self._idle: list[asyncio.Future[None]] = []

    def on(self, what: AgentSignal | str, handler: Handler | None) -> None:
        if isinstance(what, AgentSignal) and not what.maskable:
            raise EINVAL("signal.unmaskable", f"nobody can handle {what.name}: it acts on the process itself")
        if handler is None:
            self._handlers.pop(what, None)
        else:
            self._handlers[what] = handler

    @property
    def busy(self) -> bool:
        return self._current is not None

    async def idle(self) -> None:
        """Until no handler runs."""
        while self._current is not None:
            done = asyncio.get_running_loop().create_future()
            self._idle.append(done)
            await done

    def deliver(self, delivered: Delivered) -> None:
        """One arrived. With a handler it waits for its turn; SIGINT and SIGTERM without one act at once, SIGINT on the
        handler that runs, if one does."""
        self._count += 1
        place = Place(f"s{self._count}", handler=True)
        if delivered.what in self._handlers or delivered.what is AgentSignal.SIGUSR1:
            self._waiting.append((delivered, place))
            self._next()
        elif delivered.what is AgentSignal.SIGINT and self._current:
            self._current.cancel()
        elif delivered.what in (AgentSignal.SIGINT, AgentSignal.SIGTERM):
            self._default(delivered, place)

    def begin_again(self) -> None:
        """A checkpoint with a state: places are counted from here."""
        self._count = 0

    def _next(self) -> None:
        if self._current is None and self._waiting:
            delivered, place = self._waiting.popleft()
            self._current = self._places.start(self._run(delivered, place), place)
            self._current.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._current = None
        if not task.cancelled() and (problem := task.exception()):
            traceback.print_exception(problem)
        self._next()
        if self._current is None:
            idle, self._idle = self._idle, []
            for one in idle:
                if not one.done():
                    one.set_result(None)

    async def _run(self, delivered: Delivered, place: Place) -> None:
        if handler := self._handlers.get(delivered.what):
            try:
                await _settle(handler(delivered))
                return
            except Exception:  # the author's code; told, and what would have happened without it happens
                name = delivered.what.name if isinstance(delivered.what, AgentSignal) else delivered.what
                print(f"the handler of {name} failed; its default action follows", file=sys.stderr)
                traceback.print_exc()
        if isinstance(delivered.what, AgentSignal):
            await _settle(self._default(delivered, place))


async def _settle(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result


# Messages that the kernel pushes, sorted by subscription, kept until they are asked for. In: what came over the
# wire, at most as many as there is credit for. Out: each in turn to whoever follows that subscription. Says nothing
# to the kernel.


class Arrivals:
    """A message may come before its subscription is known here: both come in one read."""

    def __init__(self) -> None:
        self._come: dict[str, deque[Any]] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._lost: AgentOSError | None = None

    def saw(self, sub: str, facts: Any) -> None:
        self._come.setdefault(sub, deque()).append(facts)
        self._stir(sub)

    async def next(self, sub: str) -> Any:
        """One follower at a time. The end of the connection is raised. Cancelled, nothing is taken."""
        while not self._come.get(sub):
            if self._lost:
                raise self._lost
            waiting = self._waiting[sub] = asyncio.get_running_loop().create_future()
            await waiting
        return self._come[sub].popleft()

    def forget(self, sub: str) -> None:
        self._come.pop(sub, None)

    def lost(self, error: AgentOSError) -> None:
        self._lost = error
        for sub in list(self._waiting):
            self._stir(sub)

    def _stir(self, sub: str) -> None:
        waiting = self._waiting.pop(sub, None)
        if waiting and not waiting.done():
            waiting.set_result(None)


_SEED_BYTES = 32
T = TypeVar("T")
Hook = Callable[[Any], Any]


class Options(TypedDict, total=False):
    """What every call takes besides its own arguments."""

    key: str  # idempotency: the same key and body give the recorded outcome
    deadline: float  # seconds from now
    cap: int  # the handle of the capability to use


class Interrupted(EINTR):
    """SIGINT came while a call was waiting. Retryable where the call could not have had an effect."""


class _Pushed(Struct):
    signal: int
    value: Any = None
    sender: str = ""


class _Notice(Struct):
    type: str


class _Arrived(Struct):
    sub: str


CURRENT: ContextVar["Session | None"] = ContextVar("agent_os_context", default=None)  # of the program that runs


class Session:
    """`Context` without the author's methods."""

    def __init__(self, wire: Wire, welcome: Welcome, places: Places, hook: Hook | None = None) -> None:
        self.agent, self.incarnation, self.replaying = welcome.agent, welcome.incarnation, welcome.replaying
        self.input: Any = msgspec.msgpack.decode(welcome.input)
        self.state: Any = msgspec.msgpack.decode(welcome.state)  # of the checkpoint this run begins from, else None
        self.declared: dict[str, Any] = {}  # further words of its `@agent`
        self.ending: AgentSignal | None = None  # what the program was told to end by
        self._wire, self._places, self._hook = wire, places, hook
        self._signals = Signals(places, self._by_default)
        self._watches = Watches()
        self.arrivals = Arrivals()
        self._waiting: dict[Asked, int] = {}  # calls of the program (not of handlers) → op
        self._wanted: deque[tuple[str, Place]] = deque()  # checkpoints asked for while the program was not at a call
        self._rests = False  # the program says itself when a checkpoint can have a state
        self._main: asyncio.Task[Any] | None = None
        wire.listen(self._pushed, self._lost)

    @classmethod
    async def connect(
        cls, sock: socket.socket, *, hook: Hook | None = None, check: Hook | None = None, says_ready: bool = False
    ) -> Self:
        """A context on a connected socket. Must be called before the program creates tasks."""
        announced = {"checkpoint": hook, "ping": check, "ready": says_ready}
        wire, welcome = await Wire.connect(sock, [feature for feature, there in announced.items() if there])
        places = Places(welcome.checkpoint)
        places.install(asyncio.get_running_loop())
        self = cls(wire, welcome, places, hook)
        if check:
            self.on("ping", lambda delivered: self._say_how_it_is(check))
        await self._seed()
        return self

    async def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run the program as the main task; when it ends, so does whatever it left running."""
        self._main = self._places.start(program, self._places.main)
        if self.ending:  # it was told before it began
            self._main.cancel()
        try:
            return await self._main
        finally:
            await end_all(task for task in asyncio.all_tasks() if task is not asyncio.current_task())

    async def leave(self, status: int, result: Any = None, failure: str | None = None) -> None:
        """SYS_EXIT, and the end of the connection. Raises EINVAL for a result that cannot travel, then unsaid."""
        self._wire.tell(
            syscalls.Exit(status=status, result=result, failure=failure), pos=self._places.pos(self._places.main)
        )
        await self._wire.close()

    async def at_rest(self) -> None:
        """Say that the program, begun anew with the state that `on_checkpoint` gives now, would go on just as it does
        from here. A checkpoint that somebody asked for is taken; else nothing happens. A program that never says so is
        taken to be at rest before each call of its main task."""
        self._rests = True
        if self._places.current() is self._places.main:
            await self._take_wanted()

    def on(self, what: AgentSignal | str, handler: Handler | None) -> None:
        """Handle a signal, or a kind of notice (`approval`), one at a time, between calls; `None`: no more. The value
        of SIGCHLD names the child, its state and the reason."""
        self._signals.on(what, handler)

    async def syscall(
        self, request: Body, *, send: AsyncIterable[Any] | None = None, **options: Unpack[Options]
    ) -> Any:
        """Any request of `abi.syscalls`. Everything above is this."""
        place = self._places.current()
        await self._turn(place)
        mine: list[Asked] = []
        deadline = options.get("deadline")
        try:
            return await self._wire.ask(
                request,
                cap=options.get("cap"),
                deadline_ms=None if deadline is None else max(0, round(deadline * 1000)),
                key=options.get("key"),
                pos=self._places.pos(place),
                send=send,
                began=self._noting(request, place, mine),
            )
        finally:
            for asked in mine:
                self._waiting.pop(asked, None)

    def _noting(self, request: Body, place: Place, mine: list[Asked]) -> Callable[[Asked], None]:
        """Remember a call of the program while it waits, so that SIGINT finds it."""

        def began(asked: Asked) -> None:
            if not place.handler:
                self._waiting[asked] = BY_REQUEST[type(request)].number
                mine.append(asked)

        return began

    async def _turn(self, place: Place) -> None:
        """Before a call of the program: handlers first, then a checkpoint that somebody asked for."""
        if place.handler:
            return
        while self._signals.busy:
            await self._signals.idle()
        if place is self._places.main and not self._rests:
            await self._take_wanted()

    async def _take_wanted(self) -> None:
        while self._wanted:
            await self._take_checkpoint(*self._wanted.popleft())

    def _pushed(self, what: str, body: Any) -> bool:
        """Whether it was a delivery, which a replay gives again; that a replay is over is none."""
        if what == "signal":
            pushed = read_as(_Pushed, body)
            if pushed.signal in list(AgentSignal):  # one of a later kernel means nothing to us
                self._signals.deliver(Delivered(AgentSignal(pushed.signal), pushed.value, pushed.sender))
        elif what == "notice":
            kind = read_as(_Notice, body).type
            if kind == "live":
                self.replaying = False
                return False
            self._noticed(kind, body)
        elif what == "message":
            self.arrivals.saw(read_as(_Arrived, body).sub, body)
        return True

    def _lost(self, error: AgentOSError) -> None:
        self._watches.lost(error)
        self.arrivals.lost(error)

    def _noticed(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "watch":
            self._watches.saw(read_as(Watching, body).watch, read_as(Change, body))
        elif kind == "gap":
            self._watches.gap(read_as(Change, body | {"kind": "gap"}))
        what = AgentSignal.SIGCHLD if kind == "child" else kind
        self._signals.deliver(Delivered(what, body, str(body.get("agent", ""))))

    def _by_default(self, delivered: Delivered, place: Place) -> Awaitable[None] | None:
        """What a signal does without a handler, or with one that failed."""
        if delivered.what is AgentSignal.SIGINT:
            self._interrupt()
        elif delivered.what is AgentSignal.SIGTERM:
            self.ending = AgentSignal.SIGTERM
            if self._main:
                self._main.cancel()
        elif delivered.what is AgentSignal.SIGUSR1:
            name = delivered.value if isinstance(delivered.value, str) else "sigusr1"
            if self._hook is None:
                return self._checkpoint_without_state(name)
            self._wanted.append((name, place))
        return None

    def _interrupt(self) -> None:
        for asked, op in self._waiting.items():
            if not asked.answer.done():
                call = syscalls.BY_NUMBER[op]
                reason = f"SIGINT came while {call.name} was waiting"
                pure = call.effect is Effect.PURE
                asked.answer.set_exception(Interrupted("interrupted", reason, retryable=pure, op=op))

    async def _checkpoint_without_state(self, name: str) -> None:
        await self.syscall(syscalls.Checkpoint(name=name))

    async def _take_checkpoint(self, name: str, place: Place) -> None:
        """The program is at rest. With other tasks of it alive it is not; then only what the kernel knows is kept."""
        state = await self._ask_hook() if self._places.alone() else None
        request = syscalls.Checkpoint(name=name, state=state)
        try:
            answer = await self._wire.ask(request, pos=self._places.pos(place))
        except AgentOSError as problem:  # the program did not ask for it, so it is not the one to hear of it
            print(f"no checkpoint {name!r}: {problem}", file=sys.stderr)
            return
        if state is not None:
            await self._begin_again(read_as(Made, answer).checkpoint)

    async def _ask_hook(self) -> Any:
        try:
            state = self._hook(self) if self._hook else None
            return await state if inspect.isawaitable(state) else state
        except Exception:  # the author's code; the checkpoint is taken without its state
            print("on_checkpoint failed; the checkpoint has no state", file=sys.stderr)
            traceback.print_exc()
            return None

    async def _say_how_it_is(self, check: Hook) -> None:
        """The kernel asked whether the agent is well."""
        try:
            said = check(self)
            said = await said if inspect.isawaitable(said) else said
            ok, why = (False, said) if isinstance(said, str) else (said is not False, "")
        except Exception as problem:  # the author's code; what it raised is what is wrong
            ok, why = False, "".join(traceback.format_exception_only(problem)).strip()
        await self.syscall(syscalls.Alive(ok=ok, why=why))

    async def _begin_again(self, checkpoint: str) -> None:
        self._places.begin_again(checkpoint)
        self._signals.begin_again()
        self._wire.delivered = 0
        await self._seed()

    async def _seed(self) -> None:
        """`random` in the author's code gives the same again in a replay."""
        request = syscalls.Random(n=_SEED_BYTES)
        answer = await self._wire.ask(request, pos=self._places.pos(self._places.runtime))
        random.seed(read_as(bytes, answer["bytes"] if isinstance(answer, dict) else answer))


async def end_all(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
