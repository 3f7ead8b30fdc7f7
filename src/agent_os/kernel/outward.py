"""An agent's requests to the network, put to the gate: what stands between its proxy and its authority.

In: a request that the proxy understood, before anything is resolved; or a secret that is about to be used. Out: a
`Permission`, which its connection keeps until it ends, or the gate's error. While a person is asked, the request waits.
What a permission rests on may be taken back or expire at any time, and then the connection is over. Never dials, never
resolves.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAPPROVAL, EPERM, AgentOSError
from agent_os.drivers.store import Put
from agent_os.kernel.allowance import ENTRY
from agent_os.kernel.authority import charges
from agent_os.kernel.authority.flows import RULE_OF_TWO
from agent_os.kernel.authority.handles import Handle, Holdings
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.calls import CONNECTION, Act, Asked, Done, Door, Need
from agent_os.kernel.egress.addresses import Address, Grant
from agent_os.kernel.egress.asking import Wanted, covering, shown_headers
from agent_os.kernel.egress.naming import grants_of
from agent_os.kernel.egress.routes import Use
from agent_os.kernel.journal import Draft
from agent_os.kernel.passing import Passing, is_violation
from agent_os.kernel.table import Agent

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

SLICE, _PART = 1 << 20, 64  # bytes that are reserved at a time; of what is left, such a part
_LONGEST_SLEEP = 60.0  # seconds until the clock on the wall is looked at again: somebody may set it
_FORBIDDEN = ("policy.forbid", "a rule forbids it now")
_REVOKED = ("cap.revoked", "what it rests on was revoked")
_EXPIRED = ("cap.expired", "what it rests on has expired")
_TOO_LONG = ("cap.timeout", "the capability allows no request that takes longer")


class Outward:
    """Who decides about one agent's requests: `egress.asking.Asking`."""

    def __init__(
        self, kernel: "Kernel", agent: Agent, approved: Callable[[Sequence[Need]], Collection[str]] = lambda needs: ()
    ) -> None:
        """`approved`: rules to which a person said yes already, for what a request is a part of."""
        self._kernel, self._agent, self._approved = kernel, agent, approved
        self._refused: dict[str, EAPPROVAL] = {}  # a person is asked about tunnels to a host once, as long as it lives

    def grants(self, *, live: bool = True) -> Sequence[Grant]:
        held = self._agent.holdings
        return [
            grant
            for one in held.of_kind("http")
            if not (live and (one.revoked or one.expired(held.clock)))
            for grant in grants_of(one.capability)
        ]

    async def ask(self, wanted: Wanted) -> "Permission":
        def find(held: Holdings) -> list[Handle]:
            return covering(held, wanted, permission.addresses)

        if wanted.tunnel and (no := self._refused.get(wanted.name)):
            raise no
        hides = wanted.name if wanted.tunnel else ""
        door = Door(find, {"event": "connect refused", **wanted.shown}, hides)
        act = Act(Done, wanted.needs, facts=wanted.facts, door=door, approved=self._approved(wanted.needs))
        permission = Permission(self._kernel, self._agent, wanted, act)
        try:
            await permission.enter()
        except EAPPROVAL as error:
            if hides and error.detail.get("outcome") == "refused" and permission.was_asked(RULE_OF_TWO):
                self._refused[hides] = error
            raise
        if hides and permission.was_asked(RULE_OF_TWO):
            self._agent.named_hosts |= {hides}
        return permission

    async def use(self, use: Use) -> "Permission":
        """A secret, for a request to where its door leads: the door is authority enough for that host."""
        wanted = Wanted(
            use.host, use.port, use.method.lower(), use.path, use.written, headers=use.headers, body=use.body
        )
        need = Need("secret", "use", use.secret)

        def find(held: Holdings) -> list[Handle]:
            found = held.find((need,))
            return [found] if found else []

        door = Door(find, {"event": "secret refused", "secret": use.secret, **wanted.shown})
        act = Act(Done, [need, *wanted.needs], facts={"port": use.port, "scheme": "https"}, door=door)
        act.approved = self._approved(wanted.needs)
        permission = Permission(self._kernel, self._agent, wanted, act)
        await permission.enter()
        return permission


def _portion(kernel: "Kernel", agent: str, handles: Sequence[Handle]) -> int:
    """Bytes to reserve now: where they are limited a small part of what is left, for there are others. At least one, so
    that nothing begins where nothing is left."""
    left = kernel.budgets.room(agent, "bytes")
    if (room := charges.room(handles, "bytes")) is not None:
        left = min(left, room)
    return max(1, min(SLICE, left // _PART))


class Permission:
    """That one request may be made: `egress.attempt.Leave`. And, once it is dialled, what its handles have opened."""

    lasting = False

    def __init__(self, kernel: "Kernel", agent: Agent, wanted: Wanted, act: Act) -> None:
        assert act.door
        self._kernel, self._agent, self._wanted, self._act, self._door = kernel, agent, wanted, act, act.door
        self._find = self._door.find
        self._door.find = self._found
        self._door.leads = wanted.leads()
        self._body = wanted.body
        self._door.stream = self._door.sends = self._body is not None  # a stream: see `_complete`
        self._shown = {name: value for name, value in self._door.told.items() if name != "event"}  # to a person
        self._passing: Passing | None = None
        self._answered: asyncio.Future[None] | None = None
        self.addresses: tuple[Address, ...] = ()
        self.most = 0  # bytes
        self._carries = CLEAN  # its agent, when this was last looked at
        self._told = asyncio.Event()  # that it was refused
        self.cut: tuple[str, str] | None = None
        self._visit: asyncio.Task[Any] | None = None
        self._began = 0.0
        self._largest: int | None = None  # bytes
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    @property
    def passing(self) -> Passing:
        assert self._passing
        return self._passing

    @property
    def handles(self) -> list[Handle]:
        return [one for one in self.passing.handles if one]

    @property
    def tls_only(self) -> bool:
        """What names an endpoint of the host itself says nothing of what is spoken there."""
        limits = [one.capability.constraints for one in self.handles if one.capability.kind == "http"]
        return any("http" not in one.get("scheme", ()) for one in limits if "loopback" not in one)

    def was_asked(self, rule: str) -> bool:
        return any(one.rule == rule for one in self.passing.marks.questions)

    # The gate.

    async def enter(self) -> None:
        """Through the gate: allowed when this returns. Cancelled, it is as if it had never been asked."""
        await self._complete()
        gate, agent = self._kernel.gate, self._agent
        self._answered = asyncio.get_running_loop().create_future()
        if self._passing is None:
            self._passing = gate.admit(agent, self._act, CONNECTION, self._answer, request=self._shown)
        else:
            gate.once_more(self._passing)
        try:
            await self._answered
        except AgentOSError as error:
            if is_violation(error):
                with suppress(asyncio.CancelledError):  # its network is closed: the record says refused all the same
                    await agent.gone.wait()  # it was the last thing that it did: nobody is told what to do better
                raise
            await asyncio.sleep(agent.allowance.spend(2 * ENTRY))  # it was written, and nobody may fill the disk
            raise
        except asyncio.CancelledError:
            gate.cancel(self._passing)
            self.drop()
            raise
        self.most = int(self._act.cost["bytes"])
        self._carries = self.passing.marks.label

    def _answer(self, body: Raw, error: AgentOSError | None) -> None:
        if error:
            self._told.set()
        if self._answered is None or self._answered.done():
            return
        if error:
            self._answered.set_exception(error)
        else:
            self._answered.set_result(None)

    def _found(self, held: Holdings) -> Sequence[Handle]:
        handles = self._find(held)
        self._act.cost = {"bytes": _portion(self._kernel, self._agent.id, handles)}
        return handles

    async def _complete(self) -> None:
        """A person agrees to what is sent as well: where one is asked, it is read before. What is too large for that
        stays a stream, and the gate refuses it."""
        if self._wanted.tunnel or not self._would_ask():
            return
        if headers := shown_headers(self._wanted.headers):
            self._shown["headers"] = headers
        if self._body:
            read, self._body = self._body, None
            if (body := await read()) is not None:
                self._door.stream = False
                self._shown["body"] = body

    def _would_ask(self) -> bool:
        """As things are now. What is read in between is shown as well; the gate itself decides."""
        policy, label = self._policy, self._kernel.authority.labels.of(self._agent.id)
        if label is CLEAN and policy.silent and not policy.sinks:  # most requests
            return False
        passing, steps = self._dry(), self._kernel.gate.steps
        try:
            passing.handles = self._find(self._agent.holdings)
            for check in (steps.policy.check, steps.labels.check, steps.approval.check):
                check(passing)
        except EAPPROVAL:
            return True
        except AgentOSError:  # refused before anybody is asked: the gate says so
            pass
        return False

    @property
    def _policy(self) -> Policy:
        return self._kernel.authority.policies.of(self._agent.id)

    def _dry(self) -> Passing:
        """The same once more, for a look without consequences."""
        asked = Asked(CONNECTION, b"\xc0", request=self._shown)
        passing = Passing(self._agent, asked, lambda body, error: None, self._act)
        passing.marks.dry = True
        return passing

    async def located(self, addresses: Iterable[Address]) -> None:
        """An address may need a handle of its own, and have rules of its own."""
        self.addresses = tuple(addresses)
        self._door.leads = self._wanted.leads(self.addresses)
        try:
            same = list(self._find(self._agent.holdings)) == self.handles
        except AgentOSError:
            same = False
        policy = self._policy
        if not same or not policy.silent or policy.sinks:
            self._shown["addresses"] = [str(one) for one in self.addresses]
            await self.enter()

    def confirm(self) -> None:
        self._kernel.gate.confirm(self.passing)

    async def refused(self) -> None:
        await self._told.wait()

    # While it lasts.

    def opened(self, visit: "asyncio.Task[Any] | None") -> None:
        self._visit, self._began = visit, asyncio.get_running_loop().time()
        self._largest = min(self._limits("max_size"), default=None)
        for handle in self.handles:
            handle.opened.add(self)
        self._watch()

    def _watch(self) -> None:
        """Ends with the first of its handles that expires, or has allowed it so much time and no more."""
        loop, wall = asyncio.get_running_loop(), self._agent.holdings.clock.wall()
        taken = loop.time() - self._began
        ends = [(one.expiry / 1000 - wall, _EXPIRED) for one in self.handles if one.expiry is not None]
        ends += [(most / 1000 - taken, _TOO_LONG) for most in self._limits("timeout")]
        if not ends:
            return
        left, why = min(ends)
        if left <= 0:
            self._end(why)
        else:
            self._timer = loop.call_later(min(left, _LONGEST_SLEEP), self._watch)

    def _limits(self, name: str) -> list[int]:
        found = (one.capability.constraints.get(name) for one in self.handles)
        return [one for one in found if one is not None]

    def moved(self, size: int) -> None:
        """So many bytes with the next. EPERM, EBUDGET: there may be no more."""
        self._weigh_again()
        if self._largest is not None and size > self._largest:
            raise EPERM("cap.size", f"the capability allows a request to move {self._largest:,} bytes")
        if size > self.most:
            more = max(size - self.most, _portion(self._kernel, self._agent.id, self.handles))
            self._grow({"bytes": more})
            self.most += more

    def _weigh_again(self) -> None:
        """What its agent has taken in since may leave through it: what would be asked about now goes no further."""
        if self._kernel.authority.labels.of(self._agent.id) is self._carries:
            return
        passing = self._dry()
        self._kernel.gate.steps.labels.check(passing)
        self._carries = passing.marks.label
        known = {one.rule for one in self.passing.marks.questions}
        for one in passing.marks.questions:
            if one.rule not in known:
                reason = f"a person would be asked now, because of what it has read since: {one.reason}"
                raise EPERM("label.changed", reason)

    def _grow(self, more: dict[str, int]) -> None:
        """Written before it is used, where it is limited: a kernel that is killed has lost none of it. It is waited for
        on the spot; that is seldom, and needs no disk."""
        budget, passing = self._kernel.gate.steps.budget, self.passing
        budget.grow(passing, more)
        if budget.is_limited(passing, "bytes"):
            draft = Draft(self._agent.id, Kind.BUDGET, self._agent.incarnation, ref=passing.intent, cost={"held": more})
            self._kernel.journal.put_now(draft, sync=False, puts=budget.rows(passing))

    @property
    def needs(self) -> Sequence[Need]:
        return self._act.needs

    @property
    def leads(self) -> Sequence[Need]:
        return self._door.leads

    @property
    def hides(self) -> str:
        return self._door.hides

    @property
    def facts(self) -> Mapping[str, Any]:
        return self._act.facts

    async def close(self) -> None:
        """What it rests on was revoked, or a rule forbids it now: nothing passes any more when this returns."""
        if self._visit and not self._over:
            self._end(_REVOKED if any(one.revoked for one in self.handles) else _FORBIDDEN)
            await asyncio.wait([self._visit])

    def _end(self, cut: tuple[str, str]) -> None:
        if self._visit and not self._over:
            self.cut = cut
            self._visit.cancel()

    # The record.

    def sign(self, draft: Draft) -> None:
        """Why it was permitted, for an entry beside those of the connection."""
        self._kernel.gate.sign(self.passing, draft)

    def begin(self, draft: Draft) -> Sequence[Put]:
        return self._kernel.gate.tell(self.passing, draft)

    def began(self, seq: int) -> None:
        self.passing.intent = seq
        self._kernel.gate.steps.budget.began(self.passing)

    def end(self, draft: Draft, size: int) -> Sequence[Put]:
        self.drop()
        return self._kernel.gate.told(self.passing, draft, {"bytes": size} if self.passing.intent else None)

    def drop(self) -> None:
        self._over = True
        if self._timer:
            self._timer.cancel()
        for handle in self.handles:
            handle.opened.discard(self)
        if not self.passing.intent:
            self._kernel.gate.steps.budget.release(self.passing)
