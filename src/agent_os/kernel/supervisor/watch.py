"""One incarnation under watch: whether it came up, is well, goes on, and keeps to its time.

In: its calls, its output, when it is held or waits for a person, what checks of it came to. Out: by `Ears`, READY, out
of service and back, a notice, and at a deadline its end; each once. Puts the pure parts (`health`, `watchdog`,
`progress`, `readiness`) on the loop's clock. Ends nobody itself and records nothing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import Raw

from agent_os.abi.errors import AgentOSError
from agent_os.abi.frames import UNREADABLE
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import BY_NAME
from agent_os.kernel.calls import Asked
from agent_os.kernel.supervisor.health import HEALTHY, Event, Health, Probes, Seen, worst
from agent_os.kernel.supervisor.readiness import LogWatch
from agent_os.kernel.supervisor.watchdog import ABORT_SECS, Countdown, Watchdog
from agent_os.kernel.supervisor.watched import Watched

if TYPE_CHECKING:
    from agent_os.kernel.table import Agent


# Progress: whether an agent goes on, or only repeats itself. In: each tool call of one incarnation as the gate sees
# it, so guests' too. Out: a notice at n equal calls in a row, the end of the incarnation (class probe, detail
# `loop`) at 2n, each once; its health meanwhile. What the calls answered does not matter: whoever must poll asks
# for a higher n. Keeps a digest of the last call, never its arguments.

DETAIL = "loop"  # of the exit
Found = Literal["repeats", "loop"]
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Progress:
    """`limit`: `max_repeat_calls`, None for off."""

    __slots__ = ("_last", "_limit", "count", "tool")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._last = b""
        self.tool = ""
        self.count = 0  # of the last call, in a row

    def call(self, tool: str, arguments: Any) -> Found | None:
        """A tool was called. Off, it costs nothing."""
        if self._limit is None:
            return None
        digest = _digest(tool, arguments)
        self.count = self.count + 1 if digest == self._last else 1
        self._last, self.tool = digest, tool
        if self.count == 2 * self._limit:
            return "loop"
        return "repeats" if self.count == self._limit else None

    @property
    def health(self) -> Health:
        if self._limit is None or self.count < self._limit:
            return HEALTHY
        return Health("unhealthy", f"it called {self.tool} with the same arguments {self.count} times in a row")


def _digest(tool: str, arguments: Any) -> bytes:
    """Equal for equal calls: the order of keys is nobody's intention."""
    try:
        data = _encode((tool, arguments))
    except (TypeError, ValueError, OverflowError):  # a guest's JSON may hold what our wire cannot
        data = repr((tool, arguments)).encode()
    return blake2b(data, digest_size=16).digest()


_EXEC, _EXIT, _WAITS = BY_NAME["SYS_EXEC"].number, BY_NAME["SYS_EXIT"].number, BY_NAME["SYS_APPROVE_WAIT"].number
_READY = BY_NAME["SYS_READY"].number
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks whether it has come up
_BITE = 512  # bytes of output that are looked at before others have their turn,
_TURN = 3.0  # which then is that much longer
log = logging.getLogger("agent_os.health")
_decode = msgspec.msgpack.Decoder().decode
Answer = Callable[[Raw, AgentOSError | None], None]
Check = Callable[[], Awaitable[Seen]]


class Ears(Protocol):
    """Who hears of one incarnation."""

    def ready(self, watch: "Watch") -> None: ...

    def back(self, watch: "Watch") -> None: ...

    def unready(self, watch: "Watch", why: str) -> None: ...

    def repeats(self, watch: "Watch", why: str) -> None: ...

    def abort(self, watch: "Watch", why: str) -> None:
        """It is about to be ended for its silence; it may leave a dump."""
        ...

    def strike(self, watch: "Watch", exit_class: ExitClass, why: str) -> None: ...


class Watch:
    def __init__(self, agent: "Agent", watched: Watched, ears: Ears, check: Check | None = None) -> None:
        """`check`: looks whether it can serve, where its manifest says how."""
        self.agent, self.watched, self._ears, self._check = agent, watched, ears, check
        self._settings, self.began = watched.settings, time.monotonic()
        self.ping: Check | None = None  # asks it whether it is well, once it said that it can be asked
        self.explicit = False  # it says itself when it is ready
        self._said = False  # READY, in a call of its record
        self._probes = Probes(agent.id, self._settings, self.began, ready=watched.asks)
        self._watchdog = Watchdog(watched.watchdog_secs)
        self._run = Countdown(watched.run_secs)
        self.progress = Progress(watched.max_repeats)
        self._logs = [LogWatch(watched.ready.regex) for _ in range(2)] if watched.ready.way == "log" else []
        self._waits = 0  # calls of it that wait for a person
        self._held = 0
        self._check_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.over = False
        self.ready_at: float | None = None

    def begin(self) -> None:
        """Its process runs."""
        self._run.start(self._now())
        if self.watched.ready.way == "immediate":
            self._came_up()
        elif self._check:
            self._start(self._until_up(self._check))
        self._arm()

    def end(self) -> None:
        """It is gone, or about to go: nothing is asked of it any more."""
        self.over = True
        if self._timer:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    # What is known of it.

    @property
    def up(self) -> bool:
        """READY has come."""
        return self.ready_at is not None

    @property
    def ready(self) -> bool:
        return self._probes.ready and not self.over

    @property
    def waiting(self) -> bool:
        """For a person."""
        return self._waits > 0

    @property
    def health(self) -> Health:
        return worst(self._probes.health, self.progress.health)

    # What it does.

    def call(self, asked: Asked, answer: Answer, *, replayed: bool) -> Answer:
        """A call came in; what to answer it with. Any of them is a sign of life, and the first of its program, other
        than its last, says that it came up. `replayed`: it is on its way through its record."""
        now = self._now()
        if not self.up and self._says_ready(asked):
            self._said = True
            if not replayed:  # else it can serve when it is through
                self._came_up()
        if not replayed and asked.op == _EXEC and self.watched.max_repeats is not None:
            self._count(asked)
        waits = asked.op == _WAITS
        if waits:
            self.wait()
        if self.watched.watchdog_secs is None and not waits:
            return answer
        self._watchdog.enter(now)

        def answered(body: Raw, error: AgentOSError | None) -> None:
            self._watchdog.leave(self._now())
            if waits:
                self.go_on()
            self._arm()
            answer(body, error)

        return answered

    def stir(self) -> None:
        """Something else that the kernel saw it do."""
        self._watchdog.ping(self._now())

    def _says_ready(self, asked: Asked) -> bool:
        if self.watched.ready.way != "notify":
            return False
        own = asked.op != _EXIT and not _of_runtime(asked.pos)
        return asked.op == _READY or (own and not self.explicit)

    def live(self) -> None:
        """It is through its record."""
        if self._said:
            self._came_up()

    def _count(self, asked: Asked) -> None:
        try:
            said = _decode(asked.raw)
            found = self.progress.call(str(said["tool"]), said.get("params"))
        except (*UNREADABLE, TypeError, KeyError, AttributeError):
            return  # no call: the gate will say so
        why = self.progress.health.why
        if found == "repeats":
            self._ears.repeats(self, why)
        elif found == "loop":
            self._strike(ExitClass.PROBE, f"{DETAIL}: {why}")

    async def hear(self, stream: int, data: bytes) -> None:
        """It wrote something. A little at a time: an unkind expression takes long for a little."""
        if self.up or not self._logs:
            return
        log = self._logs[stream % 2]
        for start in range(0, len(data), _BITE):
            began = self._now()
            if log.feed(data[start : start + _BITE]):
                self._came_up()
                return
            await asyncio.sleep(_TURN * (self._now() - began))

    # When no time passes for it.

    def hold(self) -> None:
        """It is suspended. Holds nest."""
        now = self._now()
        self._held += 1
        for clock in (self._probes, self._watchdog, self._run):
            clock.hold(now)

    def release(self) -> None:
        now = self._now()
        self._held = max(0, self._held - 1)
        for clock in (self._probes, self._watchdog, self._run):
            clock.release(now)
        self._arm()

    def wait(self) -> None:
        """It waits for a person, however long that takes."""
        self._waits += 1
        self.hold()

    def go_on(self) -> None:
        self._waits = max(0, self._waits - 1)
        self.release()

    # Time.

    def _now(self) -> float:
        return time.monotonic()

    def _arm(self) -> None:
        """Look again at the next moment at which there may be something to say. Calls come often and put a deadline
        off: a timer that is too early looks, and is set anew."""
        if self.over:
            return
        now = self._now()
        if self._check_at is None and self.up:
            self._check_at = self._probes.due(now)
        dues = (self._check_at if self.up else self._probes.due(now), self._watchdog.due, self._run.due)
        due = min((one for one in dues if one is not None), default=None)
        if due is None or (self._timer and self._timer_at <= due):
            return
        if self._timer:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - now), self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._now()
        if self._probes.look(now) is Event.START_TIMEOUT:
            self._strike(ExitClass.START_TIMEOUT, f"it was not ready within {self._settings.start_timeout_secs:g} s")
        if self._run.over(now):
            self._run.stop()
            self._strike(ExitClass.TIMEOUT, f"its {self.watched.run_secs:g} s were over")
        silent = f"it was silent for {self.watched.watchdog_secs or 0:g} s"
        match self._watchdog.look(now):
            case "abort":
                self._ears.abort(self, silent)
            case "kill":
                self._strike(ExitClass.WATCHDOG, f"{silent}, and {ABORT_SECS:g} s after SIGABRT")
            case None:
                pass
        if self._check_at is not None and now >= self._check_at:
            self._check_at = None
            if not self._tasks and not self._held:
                self._start(self._look_closely())
        self._arm()

    def _strike(self, exit_class: ExitClass, why: str) -> None:
        if not self.over:
            self.end()
            self._ears.strike(self, exit_class, why)

    # Checks.

    def _came_up(self) -> None:
        if self._probes.came_up() is None or self.over:
            return
        self.ready_at = self._now()
        self._watchdog.arm(self.ready_at)
        self._logs = []
        self._ears.ready(self)
        self._arm()

    def can_be_asked(self, ping: Check) -> None:
        """It announced that it answers when it is asked whether it is well."""
        self.ping = ping
        self._probes.probe()

    async def _until_up(self, check: Check) -> None:
        pause = _FIRST_PAUSE
        while not self.up:
            if not self._held and (await _bounded(check, self._settings.timeout_secs)).ok and not self._held:
                self._came_up()
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _look_closely(self) -> None:
        """Both kinds at once: neither waits for the other, and neither says anything about the other."""
        try:
            await asyncio.gather(self._readiness(), self._liveness())
        except AgentOSError as error:  # the journal has failed: it is we who could not ask
            log.error("%s could not be asked: %s", self.agent.name, error)

    async def _readiness(self) -> None:
        if self._check is None:
            return
        begun = self._probes.begin()
        seen = await _bounded(self._check, self._settings.timeout_secs)
        match self._probes.readiness(begun, seen.ok, seen.why):
            case Event.OUT:
                self._ears.unready(self, seen.why)
            case Event.BACK:
                self._ears.back(self)
            case _:
                pass

    async def _liveness(self) -> None:
        if self.ping is None:
            return
        begun = self._probes.begin()
        seen = await _bounded(self.ping, self._settings.timeout_secs)
        if self._probes.liveness(begun, seen.ok, seen.why) is Event.PROBE:
            self._strike(ExitClass.PROBE, seen.why)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _bounded(check: Check, seconds: float) -> Seen:
    """A check that takes too long has failed."""
    try:
        async with asyncio.timeout(seconds):
            return await check()
    except TimeoutError:
        return Seen(False, f"no answer within {seconds:g} s")


def _of_runtime(pos: str | None) -> bool:
    """Asked for by our own userland and not by the program."""
    return pos is not None and pos.rpartition("@")[2].startswith("r:")
