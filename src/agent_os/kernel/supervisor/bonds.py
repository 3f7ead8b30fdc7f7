"""Links and monitors on real agents: who may make them, what an exit sends, and what a life that goes on still has.

In: SYS_LINK, SYS_MONITOR and SYS_TRAP, and the word that somebody is gone. Out: notices `monitor_down` and `link_exit`,
and the end of whoever was linked. They belong to lives and lie in memory; a program that is taken through its record
has its monitors again when that is over, and hears at once of whoever ended meanwhile. Who belongs to whom is kept in
`links.py`.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field

from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import EACCES, EINVAL, EPERM, ESRCH
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import BY_NAME, BY_REQUEST, Effect
from agent_os.kernel.authority.labels import CLEAN, Label
from agent_os.kernel.authority.policy import rules
from agent_os.kernel.authority.ruling import weigh
from agent_os.kernel.calls import Act, Asked, Done, Need, Way
from agent_os.kernel.recorded import Recorded, decode_any
from agent_os.kernel.supervisor import exits
from agent_os.kernel.supervisor.links import LINKED, Departed, Down, LinkExit, Links
from agent_os.kernel.table import Actor, Agent, Ended, qualified

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

_LINK, _MONITOR, _TRAP = (BY_NAME[name].number for name in ("SYS_LINK", "SYS_MONITOR", "SYS_TRAP"))
_DOWN, _EXIT = "monitor_down", "link_exit"


class _Before(Struct):
    """What an agent had, as far as its record says."""

    monitors: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])  # ref → id, pid
    links: dict[str, None] = field(default_factory=dict[str, None])  # ids
    traps: bool = False


class Bonds:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self.links = Links()
        self._makers: set[tuple[str, str]] = set()  # who wanted the link, with whom
        self._before: dict[str, _Before] = {}

    # Made and ended.

    def needs(self, agent: Agent, target: Agent) -> list[Need]:
        """Whoever links may end the other, by ending itself."""
        return self._kernel.signals.needs(agent, target, AgentSignal.SIGTERM)

    def link(self, agent: Agent, target: Agent) -> None:
        if target.exit:
            raise ESRCH("agent.ended", f"{target.name} has ended")
        self.links.link(agent.id, target.id)
        self._makers.add((agent.id, target.id))

    def unlink(self, agent: Agent, other: str) -> None:
        self.links.unlink(agent.id, other)
        self._makers -= {(agent.id, other), (other, agent.id)}

    def monitor(self, agent: Agent, target: Agent, ref: int) -> Callable[[], None]:
        """What is to be done when its reference is on the record: tell it, if the target has ended."""
        ended = target.exit
        gone = departed(target, ended) if ended else None
        _, down = self.links.monitor(agent.id, target.id, gone, ref=ref)

        def tell() -> None:
            if down and ended:
                self._tell(down.to, {"type": _DOWN, "ref": ref, **_told(down.departed)}, ended.label)

        return tell

    # An exit.

    def farewell(self, agent: Agent, ended: Ended) -> Callable[[], None]:
        """Asked while it still holds what it held; what is returned is done when its exit is on the record. Then
        nothing of its links and monitors is left."""
        gone = departed(agent, ended)
        spared = {one for one in self.links.partners(agent.id) if not self._may_take_along(agent, one)}

        def send() -> None:
            sent = self.links.exited(gone)
            self._before.pop(agent.id, None)
            self._makers = {pair for pair in self._makers if agent.id not in pair}
            for one in () if self._kernel.halting else sent:
                if isinstance(one, LinkExit) or self._may_see(one.to, agent):
                    self._send(one, ended.label, spared)

        return send

    def _may_take_along(self, agent: Agent, partner: str) -> bool:
        """Whoever wanted the link ends with the other, always. Of the other it is true while it could be signalled: a
        capability that was taken back must not be outlived by what it made."""
        if (partner, agent.id) in self._makers:
            return True
        target = self._kernel.table.row(partner)
        return target is not None and not target.exit and self._may(agent, self.needs(agent, target))

    def _may_see(self, watcher: str, target: Agent) -> bool:
        """What was taken back or forbidden since tells nothing any more."""
        row = self._kernel.table.row(watcher)
        return row is not None and self._may(row, to_see(self._kernel, row, target))

    def _may(self, agent: Agent, needs: list[Need]) -> bool:
        """By what it holds, and by the rules of today. What a person agreed to when it began stays agreed to."""
        if not needs:
            return True
        try:
            agent.holdings.find(needs)
        except (EPERM, EACCES):
            return False
        policy = self._kernel.authority.policies.of(agent.id)
        return policy.silent or weigh(policy, agent, needs).effect is not rules.Effect.FORBID

    def _send(self, one: Down | LinkExit, label: Label, spared: set[str]) -> None:
        if isinstance(one, Down):
            self._tell(one.to, {"type": _DOWN, "ref": one.ref, **_told(one.departed)}, label)
        elif not one.fatal:
            self._tell(one.to, {"type": _EXIT, **_told(one.departed)}, label)
        elif one.to not in spared:
            self._kernel.start(self._take_along(one.to, one.departed))

    def _tell(self, agent_id: str, body: dict[str, Any], label: Label) -> None:
        with suppress(ESRCH):  # between two lives; its record tells it then
            self._kernel.notice(self._kernel.table.find_alive(agent_id, hint=False), body, label)

    async def _take_along(self, partner: str, gone: Departed) -> None:
        reason = f"{LINKED}: {gone.id.removeprefix('default/')} ended ({gone.exit_class})"
        with suppress(ESRCH):
            target = self._kernel.table.find_alive(partner, hint=False)
            await self._kernel.end(target, Ended(ExitClass.ERROR, -1, reason))

    # A life that goes on.

    def remember(self, agent: Agent, entry: Entry, kept: bytes | None) -> None:
        """One entry of the record of an agent that lives again, in order."""
        before = self._before.setdefault(agent.id, _Before())
        if entry.kind == Kind.EXIT:
            before.links.clear()  # its partners were told
        elif entry.kind == Kind.DELIVER and kept is not None:
            _delivered(before, decode_any(kept))
        elif entry.kind == Kind.OUTCOME and not entry.code and entry.op in (_LINK, _MONITOR, _TRAP):
            recorded = Recorded.of(kept)
            _called(before, agent, entry.op, decode_any(recorded.request), decode_any(recorded.value))

    def resume(self, agent: Agent) -> None:
        """Its record is behind it: it has what it believes it has, or hears that it has not."""
        before = self._before.pop(agent.id, None)
        if before is None:
            return
        self.links.trap_exit(agent.id, before.traps)
        for ref, (target, pid) in before.monitors.items():
            self._resume_monitor(agent, ref, target, pid)
        for partner in before.links:
            self._resume_link(agent, partner)

    def _resume_monitor(self, agent: Agent, ref: int, target: str, pid: int) -> None:
        row = self._kernel.table.row(target)
        if row and row.pid == pid and not row.exit:
            self.links.monitor(agent.id, target, ref=ref)
            return
        if row and not self._may_see(agent.id, row):
            return
        ended = row.exit if row and row.pid == pid else None
        gone = departed(row, ended) if row and ended else Departed(target, pid, ExitClass.LOST)
        label = ended.label if ended else CLEAN
        self._kernel.notice(agent, {"type": _DOWN, "ref": ref, **_told(gone)}, label)

    def _resume_link(self, agent: Agent, partner: str) -> None:
        row = self._kernel.table.row(partner)
        if row and not self._kernel.table.over(partner):
            self.links.link(agent.id, partner)
            self._makers.add((agent.id, partner))
            return
        ended = row.exit if row else None
        if ended and ended.normal:
            return
        gone = departed(row, ended) if row and ended else Departed(partner, 0, ExitClass.LOST)
        self._send(LinkExit(agent.id, gone, not self.links.traps(agent.id)), ended.label if ended else CLEAN, set())

    # For people.

    def listing(self, agent_id: str | None) -> dict[str, Any]:
        pids = {one.id: one.pid for one in self._kernel.table}

        def named(one: str) -> dict[str, Any]:
            return {"id": one, "pid": pids.get(one)}

        everybody = [one.id for one in self._kernel.table] if agent_id is None else [agent_id]
        links: dict[frozenset[str], tuple[str, str]] = {}
        for one in everybody:
            for other in self.links.partners(one):
                links.setdefault(frozenset((one, other)), (one, other))
        monitors = [one for one in self.links.monitors() if agent_id in (None, one.watcher, one.target)]
        return {
            "links": [{"one": named(one), "other": named(other)} for one, other in links.values()],
            "monitors": [
                {"ref": one.ref, "watcher": named(one.watcher), "target": named(one.target)} for one in monitors
            ],
            "traps": [one for one in everybody if self.links.traps(one)],
        }


def departed(agent: Agent, ended: Ended) -> Departed:
    return Departed(agent.id, agent.pid, ended.exit_class, ended.reason, ended.code)


def _told(gone: Departed) -> dict[str, Any]:
    reason = exits.reason(exits.Classed(gone.exit_class, gone.code), gone.detail)
    about = {"agent": gone.id, "pid": gone.pid, "reason": str(reason)}
    return {**about, "class": str(gone.exit_class), "detail": gone.detail}


def _delivered(before: _Before, body: dict[str, Any]) -> None:
    if body.get("type") == _DOWN:
        before.monitors.pop(body["ref"], None)
    elif body.get("type") == _EXIT:
        before.links.pop(body["agent"], None)


def _called(before: _Before, agent: Agent, op: int, request: dict[str, Any], answer: Any) -> None:
    ends = request.get("end", False)
    if op == _TRAP:
        before.traps = request.get("on", True)
    elif op == _LINK and ends:
        before.links.pop(qualified(request["agent"], strict=False, namespace=agent.namespace), None)
    elif op == _LINK:
        before.links[answer["agent"]] = None
    elif ends:
        before.monitors.pop(request["ref"], None)
    else:
        before.monitors[answer["ref"]] = (answer["agent"], answer["pid"])


# The calls.


def _stored(do: Callable[[], Done], needs: list[Need], answered: Callable[[], None] | None = None) -> Act:
    return Act(do, needs, Way.STORE, Effect.IDEMPOTENT, answered=answered)


def _link(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Link", asked.request)
    if request.end:

        def end() -> Done:
            kernel.bonds.unlink(agent, kernel.table.meant(request.agent, agent.namespace))
            return Done()

        return _stored(end, [])
    target = kernel.table.find_alive(request.agent, hint=False, namespace=agent.namespace)

    def do() -> Done:
        kernel.bonds.link(agent, target)
        return Done({"agent": target.id})

    return _stored(do, kernel.bonds.needs(agent, target))


def _monitor(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Monitor", asked.request)
    if request.end:

        def end() -> Done:
            kernel.bonds.links.demonitor(agent.id, request.ref)
            return Done()

        return _stored(end, [])
    if request.ref:
        raise EINVAL("body", "SYS_MONITOR gives a ref, and takes one only with end - at `$.ref`")
    target = kernel.table.find(request.agent, hint=False, namespace=agent.namespace)
    later: list[Callable[[], None]] = []

    def do() -> Done:
        ref = kernel.journal.next_seq  # the entry of this call: never the same twice, over all kernels
        later.append(kernel.bonds.monitor(agent, target, ref))
        return Done({"ref": ref, "agent": target.id, "pid": target.pid})

    def answered() -> None:
        for tell in later:
            tell()

    return _stored(do, to_see(kernel, agent, target), answered)


def to_see(kernel: "Kernel", agent: Agent, target: Agent) -> list[Need]:
    """How somebody ends is for its family, or whoever may look at it."""
    related = target.parent == agent.id or agent.parent == target.id or kernel.table.descends(target, agent.id)
    return [] if related or target is agent else [Need("agent", "inspect", target.name)]


def _trap(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Trap", asked.request)

    def do() -> Done:
        kernel.bonds.links.trap_exit(agent.id, request.on)
        return Done()

    return _stored(do, [])


def _links(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    name = cast("abi.Links", asked.request).agent
    agent_id = kernel.table.find(name).id if name else None
    return Act(lambda: Done(kernel.bonds.listing(agent_id)))


_BY_TYPE = {abi.Link: _link, abi.Monitor: _monitor, abi.Trap: _trap}
CALLS = {BY_REQUEST[kind].number: call for kind, call in _BY_TYPE.items()}
PREPARE = {BY_REQUEST[abi.Links].number: _links}
