"""Authority put together for one kernel: policies, handles, labels, budgets, approvals, and what is kept of them.

Owns what agents hold over their lives: handles and labels belong to an agent's id, so a restart finds them as they
were. In: the journal, the store, the policy in force. Out: the parts that the gate's steps are made of. Never decides
about a call itself.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO, ENOENT
from agent_os.drivers.store import Put, Store
from agent_os.kernel.authority import budget, charges, handles
from agent_os.kernel.authority.answers import Approval
from agent_os.kernel.authority.approvals import APPROVALS, STANDING, Approvals
from agent_os.kernel.authority.budget import Alarm, Ledger
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.charges import Charge, Crossing
from agent_os.kernel.authority.declassify import Border, Crossings
from agent_os.kernel.authority.handles import HANDLES, Handle, Holdings, Revoked, kept
from agent_os.kernel.authority.labels import CLEAN, FOLDERS, LABELS, Label, Labels
from agent_os.kernel.authority.policy.layers import Current, Policy
from agent_os.kernel.authority.ruling import Policies
from agent_os.kernel.journal import Draft, Journal

_LEDGER, _NUMBER = "ledger", "handle"  # of the table
KEEP_EVERY = 10_000  # entries between two copies of the ledger: so many are counted again after a crash, at most
_TO_CLOSE = 10.0  # seconds for what a handle opened
log = logging.getLogger("agent_os.authority")
_decode: Callable[[bytes], dict[str, Any]] = msgspec.msgpack.Decoder(dict[str, Any]).decode


class Authority:
    def __init__(self, journal: Journal, store: Store, current: Current | None = None, *, anybody: bool = True) -> None:
        """`anybody`: whether there is a door at which a person can answer."""
        self._journal = journal
        self.policies = Policies(current or Current(Policy))
        self.labels = Labels(store.items(LABELS), store.items(FOLDERS))
        crossings = Crossings(lambda: self.policies.current.policy.declassify, time.monotonic)
        self.border = Border(self.labels, crossings)  # between agents that send each other messages
        self.budgets, self._kept_at = _ledger(journal, store)
        journal.after_group.append(self._keep_ledger)
        self.approvals = Approvals(journal, notify=self._asked, anybody=anybody)
        self.approvals.load(store.items(APPROVALS), store.items(STANDING), store.get("table", "approval"))
        self.told: Callable[[Approval], None] = lambda approval: None
        self._timer: asyncio.TimerHandle | None = None
        self._holdings: dict[str, Holdings] = {}
        self._alive: dict[str, Charge] = {}  # who was started by an agent, and counts as alive there
        # What of somebody's files and watches nothing covers any more is shut; for the entry that says so.
        self.shut: Callable[[Collection[str]], list[Put]] = lambda holders: []
        handles.last_number(int(store.get("table", _NUMBER) or 0))
        handles.restore((_decode(data) for _, data in store.items(HANDLES)), self._empty)
        for held in self._holdings.values():
            held.begin()

    # What agents hold.

    def holdings(self, agent: str) -> Holdings:
        """Everything that an agent holds, over all its lives until it ends for good."""
        if agent not in self._holdings:
            self._holdings[agent] = Holdings(agent)
        return self._holdings[agent]

    def _empty(self, agent: str) -> Holdings:
        return self._holdings.setdefault(agent, Holdings(agent, ()))

    def begin(
        self, agent: str, parent: str | None, mounts: Iterable[Label] = (), limits: Mapping[str, int] | None = None
    ) -> list[Put]:
        """A life begins that nothing is kept of: no cleaner than its parent, and charged to it. For its first entry."""
        inherited = self.labels.of(parent) if parent else CLEAN
        if cost := self.budgets.open(agent, parent, limits):
            # Not an entry of its own: the first of those tells that it was started.
            self._journal.put(Draft("kernel", Kind.BUDGET, cost=cost, body=frames.encode_body(cost)), sync=False)
        return [*self.labels.begin(agent, inherited, mounts), *self.kept(agent)]

    def live(self, agent: str, spawned: int) -> None:
        """It lives from now on, over restarts, under the capability that it was started by. EBUDGET: too many do."""
        if spawned and agent not in self._alive:
            with suppress(ENOENT):  # revoked: nobody counts by it any more
                self._alive[agent] = charges.live(self.find(spawned))

    def kept(self, agent: str) -> list[Put]:
        return [*(kept(one) for one in self.holdings(agent)), _numbered()]

    def anew(self, agent: str) -> list[Put]:
        """Whoever comes now only has the name of somebody before: nothing of what that one held is there any more."""
        held = self._holdings.pop(agent, None)
        if held is None:
            return []
        gone = held.revoke_all()
        return [handles.gone(one) for one in {*held.every(), *gone.handles}]

    def end(self, agent: str) -> list[Put]:
        """It has ended for good: all that it held is gone, and nobody is asked for it any more."""
        if alive := self._alive.pop(agent, None):
            alive.ended()
        puts = self.anew(agent)
        self.approvals.agent_ended(agent)
        return [*self.policies.forget(agent), *self.labels.forget(agent), *puts]

    async def carry_over(self, layer: str, folder: str) -> None:
        """What was written over a folder is about to be written to it: its label is there first."""
        if puts := self.labels.left(folder, label := self.labels.of_folder(layer)):
            told = frames.encode_body({"folder": folder, "from": layer})
            draft = Draft("kernel", Kind.LABEL, body=told, label=label.words())
            await self._journal.record(draft, sync=True, puts=puts)

    async def grant(self, agent: str, capability: Capability, by: str) -> Handle:
        """By an operator. It holds when this returns."""
        handle, draft = self._granted(agent, capability, by)
        try:
            await self._journal.record(draft, sync=True, puts=[kept(handle), _numbered()])
        except BaseException:  # what is not on record is not granted
            handles.revoke(handle)
            raise
        return handle

    def grant_now(self, agent: str, capability: Capability, by: str) -> Handle:
        """The same for a program that embeds us, which waits for the disk."""
        handle, draft = self._granted(agent, capability, by)
        try:
            self._journal.put_now(draft, sync=True, puts=[kept(handle), _numbered()])
        except BaseException:
            handles.revoke(handle)
            raise
        return handle

    def elevate(self, agent: str, capability: Capability) -> Handle:
        """What a person has agreed to when asked by the agent itself. On the record before the answer to that call."""
        handle, draft = self._granted(agent, capability, "approval", origin="elevation")
        self._journal.put(draft, sync=True, puts=[kept(handle), _numbered()])
        return handle

    def _granted(
        self, agent: str, capability: Capability, by: str, *, origin: str = "operator"
    ) -> tuple[Handle, Draft]:
        canonical = capability.canonical
        handle = self.holdings(agent).grant(capability, origin, seq=self._journal.next_seq)
        told = {"handle": handle.id, "capability": canonical, "by": by}
        draft = Draft(agent, Kind.GRANT, handle=handle.id, capability_digest=handle.digest)
        draft.body = frames.encode_body(told)
        return handle, draft

    def find(self, number: int) -> Handle:
        for one in self.everything():
            if one.id == number:
                return one
        raise ENOENT("cap.unknown", f"there is no capability c-{number}", hint="agentctl cap ls shows what there is")

    def everything(self) -> list[Handle]:
        """All that anybody holds, in the order in which it was given."""
        return sorted((one for held in self._holdings.values() for one in held), key=lambda handle: handle.id)

    async def revoke(self, roots: Sequence[Handle], by: str, *, future_only: bool = False) -> Revoked:
        """No check finds them from now on; what they opened is closed when this returns. `future_only`: a mount stays,
        since taking it back would kill the process. Cancelled, they stay revoked, and what was closing goes on."""
        gone = handles.revoke(*roots)
        numbers = [one.id for one in gone.handles]
        lasting = sum(one.lasting for _, one in gone.opened)  # what only an end of the process takes back
        told = {"handles": numbers, "by": by, "future_only": future_only, "lasting": lasting}
        puts = [*map(handles.gone, gone.handles), *self.shut({one.holder for one in gone.handles})]
        draft = Draft(roots[0].holder, Kind.REVOKE, handle=roots[0].id, body=frames.encode_body(told))
        await self._journal.record(draft, sync=True, puts=puts)
        self.approvals.revoked(numbers)
        await asyncio.shield(self.closed(gone, lasting=not future_only))
        return gone

    async def closed(self, gone: Revoked, *, lasting: bool = True) -> None:
        """What they opened has ended when this returns. EIO: something of it would not."""
        closing = [one.close() for one in {one for _, one in gone.opened} if lasting or not one.lasting]
        try:
            async with asyncio.timeout(_TO_CLOSE):
                problems = await asyncio.gather(*closing, return_exceptions=True)
        except TimeoutError:
            raise EIO("revoke.open", f"revoked, but something is not closed after {_TO_CLOSE:.0f} s") from None
        for problem in problems:
            if isinstance(problem, BaseException):
                log.error("what a capability opened was not closed", exc_info=problem)
                raise EIO("revoke.open", f"revoked, but something of it was not closed: {problem}")

    def strip(self, agent: str) -> tuple[Revoked, list[Put]]:
        """Nothing of what it holds is good for anything from now on, nor what was derived from that."""
        gone = self.holdings(agent).revoke_all()
        numbers = [one.id for one in gone.handles]
        self.approvals.revoked(numbers)
        return gone, [*map(handles.gone, gone.handles), *self.shut({one.holder for one in gone.handles})]

    # Time.

    def _asked(self, approval: Approval) -> None:
        self.told(approval)
        self.arm()

    def arm(self) -> None:
        """What nobody answers in time is answered by the clock."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if (due := self.approvals.next_due()) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.approvals.tick()
        self.arm()

    def alarm(self, alarm: Alarm) -> None:
        draft = Draft(alarm.account, Kind.BUDGET, cost=budget.warned(alarm))
        draft.body = frames.encode_body({"spent": alarm.spent, "limit": alarm.limit, "resource": alarm.resource})
        self._journal.put(draft, sync=False)

    def nearly(self, crossing: Crossing) -> None:
        """The same of a capability."""
        handle = crossing.handle
        draft = Draft(handle.holder, Kind.BUDGET, handle=handle.id, capability_digest=handle.digest)
        draft.body = frames.encode_body({"spent": crossing.used, "limit": crossing.limit, "resource": crossing.row})
        self._journal.put(draft, sync=False)

    def _keep_ledger(self) -> None:
        """Now and then, so that a kernel after a crash does not count from the beginning. Called on the loop between
        two calls, so everything that the ledger has counted is in an entry."""
        size = self._journal.size
        if size - self._kept_at < KEEP_EVERY:
            return
        self._kept_at = size
        draft = Draft("kernel", Kind.BUDGET, body=frames.encode_body({"event": "ledger kept", "counted": size}))
        with suppress(EIO):  # a journal that failed has told everybody
            self._journal.put(draft, sync=False, puts=[self._ledger_kept()])

    def _ledger_kept(self) -> Put:
        return Put("table", _LEDGER, self.budgets.packed(self._journal.next_seq - 1))

    def close(self) -> list[Put]:
        """For the last entry: the next kernel counts from here."""
        if self._timer:
            self._timer.cancel()
        return [self._ledger_kept()]


def _numbered() -> Put:
    return Put("table", _NUMBER, b"%d" % handles.last_number())


def _ledger(journal: Journal, store: Store) -> tuple[Ledger, int]:
    """As it was: from the last one kept, and every entry since. And how many entries that one had counted."""
    data = store.get("table", _LEDGER)
    ledger = Ledger.unpacked(data) if data else Ledger()
    kept_at = ledger.seq
    for entry, _ in journal.scan(first=ledger.seq + 1):
        ledger.apply(entry)
    ledger.cut_off()
    return ledger, kept_at
