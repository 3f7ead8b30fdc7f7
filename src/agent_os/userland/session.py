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
from typing import Any, Self, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Struct

from agent_os.abi import syscalls
from agent_os.abi.errors import EINTR, AgentOSError
from agent_os.abi.frames import Welcome
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_REQUEST, Body, Effect
from agent_os.userland.arrivals import Arrivals
from agent_os.userland.places import Place, Places
from agent_os.userland.results import Change, Made, Watching, read_as
from agent_os.userland.signals import Delivered, Handler, Signals
from agent_os.userland.watches import Watches
from agent_os.userland.wire import Asked, Wire

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
