"""All agents of manifests under watch: begun with each life, told to the fleet, written down.

In: processes that were started, and the hooks at the places where the kernel sees an agent act. Out: to the fleet that
an agent is ready, is not, or has to end for a deadline; to the agent and whoever follows it, what it should know; all
of it in the journal first. An agent without a manifest is not watched. Decides nothing: see `watch`.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import ESRCH, AgentOSError
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.kernel import members
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor import watched
from agent_os.kernel.supervisor.health import HEALTHY, UNKNOWN, Health, Seen
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.terms import State
from agent_os.kernel.supervisor.watch import Check, Watch
from agent_os.kernel.supervisor.watched import Watched
from agent_os.kernel.table import Agent, Ended

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.plan import Order
    from agent_os.kernel.process import Guest
    from agent_os.kernel.running import Run
    from agent_os.sandbox.beside import End
    from agent_os.sandbox.spawner import Process


# Looks into a running agent: whether a command succeeds beside it, and whether anything listens on a port of it.
# In: the agent's process, a command or a port, and how long it may take. Out: whether, and if not, why in a
# sentence. The command runs in the agent's own confinement, started by its init; what comes back from there is an
# agent's word. A port is not connected to: a server that takes one connection would be kept busy by us.

_LISTENS = "0A"


class Prober:
    """Of one process."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    async def succeeds(self, argv: Sequence[str], seconds: float) -> Seen:
        """Out of time or cancelled, it is ended."""
        if self._process.commands is None:
            return Seen(False, "it cannot be asked")
        try:
            command = self._process.commands.start(argv)
        except OSError as problem:
            return Seen(False, f"it cannot be asked any more: {problem.strerror}")
        try:
            async with asyncio.timeout(seconds):
                return _result(argv[0], await command.wait())
        except TimeoutError:
            return Seen(False, f"{argv[0]} took longer than {seconds:g} s")
        finally:
            command.signal(signal.SIGKILL)

    def listens(self, port: int) -> Seen:
        """As its own network sees it."""
        init = None if self._process.exited.done() else members.pid_of(self._process.pidfd)
        if init is None:
            return Seen(False, "it has ended")
        for table in ("tcp", "tcp6"):
            if port in _listening(f"/proc/{init}/net/{table}"):
                return Seen(True)
        return Seen(False, f"nothing listens on its port {port}")


def _result(command: str, end: "End") -> Seen:
    if end.code == 0:
        return Seen(True)
    if end.lost:
        return Seen(False, "it has ended")
    if end.why:
        return Seen(False, f"{command} could not be started: {end.why}")
    return Seen(False, f"{command} ended {'in a way that it does not tell' if end.code is None else end.code}")


def _listening(path: str) -> set[int]:
    """Ports. The lines are Linux's own, and an agent can make many of them."""
    found: set[int] = set()
    try:
        with open(path) as lines:
            next(lines, None)
            for line in lines:
                _, local, _, state, *_ = line.split(maxsplit=4)
                if state == _LISTENS:
                    found.add(int(local.rpartition(":")[2], 16))
    except (OSError, ValueError):
        return found
    return found


_PART, _WHOLE = 4, 5
_QUIET, _WARNED, _TOLD = range(3)


# Use of resources against their limits: what an agent is told before and when nothing is left. In: figures that the
# kernel measured, never an agent's own. Out: one `resource_warning` at four fifths, one `exceeded` at the limit,
# naming resource, value and limit; again only after use has been below four fifths. Refuses nothing: the gate, the
# ledger and the host do.


class Notice(Struct, frozen=True):
    what: Literal["resource_warning", "exceeded"]
    resource: str
    value: int
    limit: int


class Usage:
    """Of one agent id. A resource that is not among the limits, or whose limit is None, has none."""

    def __init__(self, limits: Mapping[str, int | None]) -> None:
        self._limits = dict(limits)
        self._levels: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def uses(self) -> list[tuple[str, int, int | None]]:
        """Each resource with its last figure and its limit."""
        return [(resource, value, self._limits.get(resource)) for resource, value in self._last.items()]

    def note(self, resource: str, value: int) -> Notice | None:
        """The present figure. Whoever leaps past both marks is told of the second only."""
        limit, self._last[resource] = self._limits.get(resource), value
        before = self._levels.get(resource, _QUIET)
        now = _level(value, limit)
        if now == _QUIET or now > before:
            self._levels[resource] = now
        if limit is None or now <= before:
            return None
        return Notice("exceeded" if now == _TOLD else "resource_warning", resource, value, limit)


def _level(value: int, limit: int | None) -> int:
    """Of a limit of zero nothing can be used, so nothing used is no news."""
    if limit is None or value <= 0:
        return _QUIET
    if value >= limit:
        return _TOLD
    return _WARNED if value * _WHOLE >= limit * _PART else _QUIET


SAMPLE_SECS = 2.0  # between two looks at what agents use, at least
SAMPLE_SHARE = 0.005  # of the time, at most
_AT_A_TIME = 0.001  # seconds of looking, before others have their turn
_LONGEST_WHY = 200  # characters of an agent's own word
_MB, _NO_LIMIT = 1 << 20, 1 << 40
_PING, _SAYS_READY = "ping", "ready"  # what an agent announces with HELLO
_UNWELL = (State.BACKOFF, State.FAILED, State.QUARANTINED)
log = logging.getLogger("agent_os.health")


class Watching:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._watches: dict[Watch, tuple[Guest, Usage]] = {}
        self._living: dict[str, Watch] = {}  # by id
        self._pings: dict[str, asyncio.Future[Seen]] = {}  # by id, of those that were asked and have not answered
        self._sampling: asyncio.Task[Any] | None = None

    # Each life.

    def shaped(self, agent: Agent, wanted: "Order") -> "Order":
        """What its manifest wants of its process, beside the order: a share of the machine. Whom an agent spawned has
        the same share: more would be a way to have more oneself."""
        terms = next(filter(None, map(self._terms, self._line(agent))), None)
        if terms is None:
            return wanted
        return replace(wanted, limits=wanted.limits._replace(weight=terms.weight))

    def _line(self, agent: Agent) -> Iterator[str]:
        """It, its parent, and so on."""
        above: Agent | None = agent
        while above:
            yield above.id
            above = self._kernel.table.row(above.parent)

    def begin(self, agent: Agent, run: "Run") -> None:
        """Its process runs: from now on it is watched, and starting until it is ready."""
        terms = self._terms(agent.id)
        if terms is None:
            agent.become(Incarnation.RUNNING)
            return

        guest = run.guest
        watch = agent.watch = Watch(agent, terms, self, _check(terms, Prober(guest.process)))
        limits = guest.order.limits
        sizes = {"memory": limits.memory_mb, "disk": limits.disk_mb, "tmp": limits.tmp_mb}
        usage = Usage({"tasks": limits.pids, **{name: size and size * _MB for name, size in sizes.items()}})
        self._watches[watch], self._living[agent.id] = (guest, usage), watch
        agent.clock.changed = lambda awake: watch.release() if awake else watch.hold()
        guest.measured = partial(self._used, watch)
        run.hear(watch.hear)
        watch.begin()
        if self._sampling is None or self._sampling.done():
            self._sampling = self._kernel.start(self._sample())

    def end(self, agent: Agent) -> None:
        """Its process is gone."""
        if agent.watch:
            agent.watch.end()
            self._watches.pop(agent.watch, None)
            if self._living.get(agent.id) is agent.watch:
                del self._living[agent.id]
        if asked := self._pings.pop(agent.id, None):
            asked.cancel()

    def greeted(self, agent: Agent, features: Sequence[str]) -> None:
        """It said HELLO. One that begins from a state may be past the point at which it said that it is ready."""
        if agent.watch:
            resumes = self._kernel.checkpoints.newest_with_state(agent) is not None
            agent.watch.explicit = _SAYS_READY in features and not resumes
            if _PING in features:
                agent.watch.can_be_asked(partial(self._ping, agent))

    def _terms(self, agent_id: str) -> Watched | None:
        spec = self._kernel.fleet.spec(agent_id)
        return watched.of(spec.manifest) if spec else None

    async def _ping(self, agent: Agent) -> Seen:
        asked = self._pings[agent.id] = asyncio.get_running_loop().create_future()
        self._kernel.notice(agent, {"type": "ping"}, CLEAN)
        return await asked

    def alive(self, agent: Agent, ok: bool, why: str) -> None:
        """It said that it is, perhaps because it was asked."""
        asked = self._pings.pop(agent.id, None)
        if asked and not asked.done():
            asked.set_result(Seen(ok, why[:_LONGEST_WHY] or ("" if ok else "it says that it is not well")))

    # What a watch tells.

    def ready(self, watch: Watch) -> None:
        agent = watch.agent
        if agent.life is Incarnation.STARTING:
            agent.become(Incarnation.RUNNING)
        took = round((watch.ready_at or watch.began) - watch.began, 3)
        facts = {"event": "up", "by": watch.watched.ready.way, "seconds": took}
        self._note(watch, facts, then=self._kernel.fleet.ready)

    def back(self, watch: Watch) -> None:
        self._kernel.fleet.ready(watch.agent)

    def unready(self, watch: Watch, why: str) -> None:
        self._kernel.fleet.unready(watch.agent, why)

    def repeats(self, watch: Watch, why: str) -> None:
        self._note(watch, {"event": "repeats", "why": why})
        self._tell(watch.agent, {"type": "repeats", "tool": watch.progress.tool, "count": watch.progress.count}, why)

    def abort(self, watch: Watch, why: str) -> None:
        agent = watch.agent
        agent.fate = agent.fate or Ended(ExitClass.WATCHDOG, -1, why)
        self._note(watch, {"event": "deadline", "class": str(ExitClass.WATCHDOG), "why": why})
        if agent.running:
            agent.running.host_signal(signal.SIGABRT)

    def strike(self, watch: Watch, exit_class: ExitClass, why: str) -> None:
        self._note(watch, {"event": "deadline", "class": str(exit_class), "why": why})
        self._kernel.start(self._struck(watch.agent, exit_class, why))

    async def _struck(self, agent: Agent, exit_class: ExitClass, why: str) -> None:
        with suppress(ESRCH):  # it has just ended by itself
            await self._kernel.fleet.strike(agent, exit_class, why)

    def _note(self, watch: Watch, facts: dict[str, Any], then: Callable[[Agent], object] | None = None) -> None:
        """On the record, and then to the fleet, if there is still anybody to tell of."""
        agent = watch.agent

        def done() -> None:
            if then and not agent.exit and not watch.over:
                then(agent)

        draft = Draft(agent.id, Kind.STATE, agent.incarnation, body=frames.encode_body(facts))
        try:
            self._kernel.journal.put(draft, sync=False, done=done)
        except AgentOSError as error:  # the journal has failed: everybody is held
            log.error("the health of %s is not recorded: %s", agent.name, error)

    def _tell(self, agent: Agent, notice: dict[str, Any], text: str) -> None:
        with suppress(AgentOSError):  # the journal has failed
            self._kernel.notice(agent, notice, CLEAN)
        self._kernel.guests.notice(agent, text)

    # What they use.

    async def _sample(self) -> None:
        """The more there are, the more seldom: looking takes a small part of the time at most."""
        while self._watches:
            took, began = 0.0, time.perf_counter()
            for watch, (guest, _) in list(self._watches.items()):
                group = guest.process.group
                if group and not watch.over:
                    near = (guest.order.limits.memory_mb or _NO_LIMIT) * _MB // 2
                    for resource, value in (("memory", group.memory_used(near)), ("tasks", group.tasks_used())):
                        if value is not None:
                            self._used(watch, resource, value)
                if time.perf_counter() - began > _AT_A_TIME:
                    took += time.perf_counter() - began
                    await asyncio.sleep(0)
                    began = time.perf_counter()
            took += time.perf_counter() - began
            await asyncio.sleep(max(SAMPLE_SECS, took / SAMPLE_SHARE))

    def _used(self, watch: Watch, resource: str, value: int) -> None:
        found = self._watches.get(watch)
        notice = found[1].note(resource, value) if found else None
        if notice is None:
            return
        facts = {"resource": notice.resource, "value": notice.value, "limit": notice.limit}
        self._note(watch, {"event": notice.what, **facts})
        text = f"{notice.what.replace('_', ' ')}: {resource} {value} of {notice.limit}"
        self._tell(watch.agent, {"type": notice.what, **facts}, text)

    # For whoever looks.

    def of(self, agent_id: str) -> Watch | None:
        """Of one that lives."""
        return self._living.get(agent_id)

    def facts(self, agent_id: str) -> dict[str, Any]:
        """What is known of one that lives."""
        watch = self.of(agent_id)
        if watch is None:
            return {}
        way = watch.watched.ready.way
        return {
            "ready": watch.ready,
            "waiting": watch.waiting,
            "startup": way,
            "checks": [*([way] if watch.watched.asks else ()), *(["ping"] if watch.ping else ())],
            "repeats": watch.progress.count,
            "uses": [list(use) for use in self._watches[watch][1].uses()],
        }

    def health(self, record: Record) -> Health | None:
        """None: nobody expects it to be there."""
        if record.state is State.ACTIVE:
            watch, spec = self.of(record.id), self._kernel.fleet.spec(record.id)
            nothing = spec is None or not spec.runtime  # that could be unwell: root, or a supervisor without a program
            return watch.health if watch else HEALTHY if nothing else UNKNOWN
        if record.state in _UNWELL:
            return Health("unhealthy", str(record) if record.state is State.FAILED else f"{record.state}, {record.why}")
        return UNKNOWN if record.state in (State.PENDING, State.BLOCKED) else None


def _check(terms: Watched, prober: "Prober") -> Check | None:
    match terms.ready.way:
        case "exec":
            return partial(prober.succeeds, terms.ready.argv, terms.settings.timeout_secs)
        case "port":
            return partial(_in_thread, prober.listens, terms.ready.port)
        case _:
            return None


async def _in_thread(look: Callable[[int], Seen], port: int) -> Seen:
    """An agent can make Linux's list of its sockets long."""
    return await asyncio.to_thread(look, port)


@contextmanager
def waiting(agent: Agent) -> Generator[None]:
    """It waits for a person, and no time passes for it."""
    watch = agent.watch
    if watch:
        watch.wait()
    try:
        yield
    finally:
        if watch:
            watch.go_on()
