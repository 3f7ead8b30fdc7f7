"""Signals: who may send what to whom, and what each does to a real process.

`send` returns only when it is true: frozen, gone, or handed to the agent. Masks defer what agents send each other; what
the operator or the kernel sends always holds, and its stop is a hold that no agent lifts. Every delivery is an entry of
the target's own, in the order in which it sees them; it carries what the sender carried when it sent.
"""

import asyncio
import signal as host
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAGAIN, EBUSY, EINVAL, EIO, EPERM, ESRCH
from agent_os.abi.signals import KERNEL_ONLY, AgentSignal, in_order, seen_by_agents
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import CLEAN, Label, joined, of_words
from agent_os.kernel.calls import Need
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Actor, Agent, Caller, Ended, Table

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

GRACE_SECONDS = 10.0
KERNEL = Actor("kernel")
_TO_HOST = {AgentSignal.SIGINT: host.SIGINT, AgentSignal.SIGTERM: host.SIGTERM}
_TO_VANISH = 5.0
MOST_WAITING = 256  # of the one signal that queues; each that comes writes the whole queue
_PENDING, STOPS, _ASKED = "pending", "stops", "asked"  # buckets: behind masks, who stands still, who is to end
HELD, STOPPED = b"held", b"stopped"


def known(number: int) -> AgentSignal:
    try:
        return AgentSignal(number)
    except ValueError:
        names = ", ".join(f"{one.name} {one.value}" for one in AgentSignal)
        raise EINVAL("signal.unknown", f"there is no signal {number}", hint=names) from None


class Signals:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._table: Table = kernel.table
        self._journal: Journal = kernel.journal
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self.sent: dict[AgentSignal, int] = {}  # delivered or masked, since the kernel began

    def needs(self, sender: Caller, target: Agent, signal: AgentSignal) -> list[Need]:
        """What a sender must hold. Ancestors need nothing; two signals are the kernel's alone."""
        if sender.operator or sender is KERNEL:
            return []
        if signal in KERNEL_ONLY:
            raise EPERM("signal.kernel", f"{signal.name} is sent by the kernel only")
        if target is sender or self._table.descends(target, sender.id):
            return []
        return [Need("agent", "signal", target.name)]

    async def send(self, sender: Caller, target: Agent, signal: AgentSignal, value: Any = None) -> bool:
        """Whether it was delivered; False: it is masked and waits."""
        if target.exit:
            raise ESRCH("agent.ended", f"{target.name} has ended")
        if signal is AgentSignal.SIGSTOP and target.watch and not target.watch.up:
            hint = "agentctl stop ends it all the same"
            raise EBUSY("state", f"{target.name} is still starting, and cannot be held before it is ready", hint=hint)
        self.sent[signal] = self.sent.get(signal, 0) + 1
        if isinstance(sender, Agent) and signal in target.mask:
            await self._defer(target, signal, value, sender)
            if signal is AgentSignal.SIGTERM:
                self._begin_grace(target)
            return False
        await self._deliver(sender.id, target, signal, value, self._label(sender), by_agent=isinstance(sender, Agent))
        return True

    def _label(self, sender: Caller) -> Label:
        """The kernel's and a person's word is clean."""
        return self._kernel.authority.labels.of(sender.id) if isinstance(sender, Agent) else CLEAN

    def waiting(self, target: Agent) -> Label:
        """What tells of signals behind the mask tells of those who sent them."""
        return joined(of_words(said[2]) for queue in target.pending.values() for said in queue)

    async def unmask(self, target: Agent, signals: set[AgentSignal]) -> None:
        """What waited behind the mask is delivered now, in order."""
        target.mask -= signals
        for signal in in_order(signals & target.pending.keys()):
            waiting = target.pending.pop(signal)
            while waiting:
                value, sender, label = waiting.pop(0)
                puts = [_pending(target.id, signal, waiting)]
                await self._deliver(sender, target, signal, value, of_words(label), puts)

    async def _defer(self, target: Agent, signal: AgentSignal, value: Any, sender: Agent) -> None:
        """It waits behind the mask, over restarts. One per number, the last value counts; SIGCHLD queues."""
        waiting = target.pending.setdefault(signal, [])
        if signal is not AgentSignal.SIGCHLD:
            waiting.clear()
        elif len(waiting) >= MOST_WAITING:
            reason = f"{MOST_WAITING} {signal.name} wait behind the mask of {target.name}"
            raise EAGAIN("signal.queue", reason, retry_after_ms=1000)
        label = self._label(sender).words()  # it may be another's, or gone, when this is delivered
        waiting.append((value, sender.id, label))
        said = {"signal": int(signal), "value": value, "sender": sender.id, "masked": True}
        draft = Draft(target.id, Kind.ACCEPT, target.incarnation, body=frames.encode_body(said))
        puts = [_pending(target.id, signal, waiting), *_asked(target, signal)]
        await self._journal.record(draft, sync=True, puts=puts)

    def restore(self, target: Agent) -> None:
        """What waited for an agent when its last life ended. Asked to end, it has the whole grace again: it is taken
        through its record first, and hears the signal there."""
        if self._kernel.store.get(_ASKED, target.id) is not None:
            self._begin_grace(target)
        for key, value in self._kernel.store.items(_PENDING, f"{target.id}\0"):
            target.pending[AgentSignal(int(key.rpartition("\0")[2]))] = [
                (said[0], said[1], said[2] if len(said) > 2 else []) for said in decode_any(value)
            ]

    def unasked(self, agent_id: str) -> Put:
        """Nobody wants its next life to end."""
        return Put(_ASKED, agent_id, None)

    def buried(self, agent_id: str) -> list[Put]:
        waiting = [Put(_PENDING, key, None) for key, _ in self._kernel.store.items(_PENDING, f"{agent_id}\0")]
        return [Put(STOPS, agent_id, None), Put(_ASKED, agent_id, None), *waiting]

    async def _deliver(
        self,
        sender: str,
        target: Agent,
        signal: AgentSignal,
        value: Any,
        label: Label,
        puts: Sequence[Put] = (),
        *,
        by_agent: bool = True,
    ) -> None:
        said = {"signal": int(signal), "value": value, "sender": sender}
        draft = Draft(target.id, Kind.SIGNAL, target.incarnation, body=frames.encode_body(said), label=label.words())
        if target.kind == "native" and seen_by_agents(signal):
            await self._kernel.until_live(target)
            puts = [*puts, *_asked(target, signal), *self._join(target, signal, label)]
            await self._kernel.record_then(draft, lambda: self._push(target, signal, said), puts)
        else:
            puts = [*puts, *self._join(target, signal, label)]
            await self._journal.record(draft, sync=True, puts=[*puts, *_stands(target, signal, by_agent)])
            await self._act(sender, target, signal, value, by_agent)
        if signal is AgentSignal.SIGTERM:
            self._begin_grace(target)

    def _join(self, target: Agent, signal: AgentSignal, label: Label) -> list[Put]:
        """What only happens to an agent, it does not learn."""
        return self._kernel.authority.labels.take_in(target.id, label) if seen_by_agents(signal) else []

    async def _act(self, sender: str, target: Agent, signal: AgentSignal, value: Any, by_agent: bool) -> None:
        """What happens to it without its doing."""
        match signal:
            case AgentSignal.SIGSTOP:
                await self._stop(target, hold=not by_agent)
            case AgentSignal.SIGCONT:
                await self._go_on(target, lift=not by_agent)
            case AgentSignal.SIGKILL:
                await self._kernel.end(target, Ended(ExitClass.REQUESTED, -1, f"killed by {sender}"))
            case AgentSignal.SIGPOLICY | AgentSignal.SIGTRUST:
                await self._kernel.quarantine(target, f"{signal.name}: {value}")
            case AgentSignal.SIGUSR1 if target.kind == "guest":
                await self._kernel.checkpoints.take(target, f"signal-{target.pid}", None)
            case _:
                self._to_process(target, signal)

    def _push(self, target: Agent, signal: AgentSignal, said: dict[str, Any]) -> None:
        if target.line:
            target.delivered += 1
            target.line.push("signal", said)
        else:
            self._to_process(target, signal)

    def _to_process(self, target: Agent, signal: AgentSignal) -> None:
        if target.running and signal in _TO_HOST:
            target.running.host_signal(_TO_HOST[signal])

    async def _stop(self, target: Agent, *, hold: bool) -> None:
        target.held, target.stopped = target.held or hold, target.stopped or not hold
        await self._kernel.until_started(target)
        if target.life is Incarnation.RUNNING:
            if target.running:
                await target.running.freeze()
            target.clock.stop()
            self._kernel.bus.freeze(target.id)
            self._kernel.models.stop(target.id)
            target.become(Incarnation.SUSPENDED)

    async def _go_on(self, target: Agent, *, lift: bool) -> None:
        target.stopped = False
        target.held = target.held and not lift
        if target.life is Incarnation.SUSPENDED and not target.held:
            if target.asleep:
                await self._kernel.recovery.go_on(target)
                return
            if target.running:
                await target.running.thaw()
            target.clock.go_on()
            self._kernel.bus.thaw(target.id)
            self._kernel.models.go_on(target.id)
            target.become(Incarnation.RUNNING)

    def _begin_grace(self, target: Agent) -> None:
        """Asked to end; after a while it is made to, masked or not, whichever life of it that is."""

        seconds = self._kernel.fleet.grace(target.id)

        def end() -> None:
            self._graces.pop(target.id, None)
            if newest := self._table.living(target.id):
                reason = f"did not end within {seconds:g} s of SIGTERM"
                self._kernel.start(self._kernel.end(newest, Ended(ExitClass.REQUESTED, -1, reason)))

        if target.id not in self._graces:
            self._graces[target.id] = asyncio.get_running_loop().call_later(seconds, end)

    def forget(self, target: Agent) -> bool:
        """It is gone; whether it had been asked to end, however it then did."""
        timer = self._graces.pop(target.id, None)
        if timer:
            timer.cancel()
        return timer is not None


async def gone(running: Any) -> int:
    """Kill and wait. Not gone after a while is an error, and never reported as dead."""
    try:
        async with asyncio.timeout(_TO_VANISH):
            return await running.destroy()
    except TimeoutError:
        raise EIO("kill.survived", f"something of it is still there after {_TO_VANISH:.0f} s") from None


def _pending(agent_id: str, signal: AgentSignal, waiting: list[Any]) -> Put:
    return Put(_PENDING, f"{agent_id}\0{signal:02}", frames.encode_body(waiting) if waiting else None)


def _asked(target: Agent, signal: AgentSignal) -> list[Put]:
    return [Put(_ASKED, target.id, b"1")] if signal is AgentSignal.SIGTERM else []


def _stands(target: Agent, signal: AgentSignal, by_agent: bool) -> list[Put]:
    """What of a stop a restart must find."""
    held, stopped = target.held, target.stopped
    if signal is AgentSignal.SIGSTOP:
        held, stopped = held or not by_agent, stopped or by_agent
    elif signal is AgentSignal.SIGCONT:
        held, stopped = held and by_agent, False
    else:
        return []
    words = [word for word, true in ((HELD, held), (STOPPED, stopped)) if true]
    return [Put(STOPS, target.id, b" ".join(words) or None)]
