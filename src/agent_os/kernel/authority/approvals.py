"""Approvals: calls that wait for a person, each a row in the store that outlives everybody who waits.

A row is written before anybody sees it, and every answer before anybody acts on it. An approval is for one digest and
one act; the entry of that act carries the row's last change, so that either both are on disk or neither. In: questions
of the gate, answers of people, ends of agents. Out: who may go on, who is refused and why. Waits for nothing: whoever
waits leaves a function, which is called when there is an answer on the record.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EAGAIN, EAPPROVAL, ENOENT, AgentOSError
from agent_os.drivers.store import Put
from agent_os.kernel.authority.answers import (
    NEXT,
    Approval,
    Names,
    Person,
    Standing,
    State,
    is_within,
    may_still,
    moved,
    names_of,
    outcome,
    require_may_decide,
    require_offered,
    require_pending,
    standing_of,
)
from agent_os.kernel.authority.questions import HOLDS, SCHEMA, Ask, Redact, arguments
from agent_os.kernel.journal.draft import Draft

APPROVALS, STANDING, _NUMBER = "approvals", "standing", "approval"
MOST_PENDING = 32  # of one agent: half of the calls that it may have under way, so that others go on
_KEPT_NS = 24 * 3600 * 10**9  # how long an answer can still be looked up
_STEP = 6
_STAND = ("session", "always")


class Met(Struct, frozen=True):
    """What the gate finds for a call. If it goes on, `rows` go with the entry that makes its act certain."""

    go: bool
    approval: str


class Writes(Protocol):
    """The journal."""

    @property
    def next_seq(self) -> int: ...

    def put(
        self, draft: Draft, *, sync: bool, puts: Sequence[Put] = (), done: Callable[[], None] | None = None
    ) -> int: ...


Wake = Callable[[AgentOSError | None], None]  # None: pass the gate again; an error: that is the answer
Notify = Callable[[Approval], None]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Approval).decode
_decode_standing = msgspec.msgpack.Decoder(Standing).decode


class Approvals:
    def __init__(
        self,
        journal: Writes,
        *,
        notify: Notify = lambda approval: None,
        wall_ns: Callable[[], int] = time.time_ns,
        mono: Callable[[], float] = time.monotonic,
        names: Names = names_of,
        redact: Redact = str,
        anybody: bool = True,
    ) -> None:
        """`anybody`: whether there is a door at which a person can answer. Without one, to ask is to deny."""
        self._journal, self._notify, self._names, self.redact = journal, notify, names, redact
        self._wall_ns, self._mono, self.anybody = wall_ns, mono, anybody
        self._all: dict[str, Approval] = {}
        self._latest: dict[str, str] = {}  # digest → approval
        self._due: dict[str, float] = {}  # by the clock that nobody sets
        self._writing: set[str] = set()  # changed, and not yet on disk
        self._unseen: set[str] = set()  # new, and not yet on disk
        self._waiting: dict[str, list[Wake]] = {}
        self._watching: dict[str, list[Callable[[], None]]] = {}
        self._standing: dict[str, Standing] = {}
        self._last = 0

    def load(
        self, rows: Iterable[tuple[str, bytes]], standing: Iterable[tuple[str, bytes]] = (), last: bytes | None = None
    ) -> None:
        """What the store holds of an earlier kernel. The calls come again by themselves, and find their questions."""
        self._last = int(last or 0)
        for one in sorted((_decode(data) for _, data in rows), key=_number):  # the newest of a digest counts
            self._all[one.id] = one
            self._latest[one.digest] = one.id
            self._last = max(self._last, _number(one))
            self._due[one.id] = self._mono() + (_due_ns(one) - self._wall_ns()) / 1e9
        for _, data in standing:
            stands = _decode_standing(data)
            self._standing[stands.id] = stands

    # The gate's side.

    def meet(self, ask: Ask) -> Met:
        """May it go on, or what does it wait for? EAPPROVAL: it was refused, or there is nobody to ask."""
        if stands := self.stands(ask):
            self._standing[stands.id] = replace(stands, uses=stands.uses + 1)
            one = self._all.get(stands.id)
            return self._use(one) if one and one.state is State.APPROVED else Met(True, stands.id)
        found = self._all.get(self._latest.get(ask.digest(), ""))
        if found and found.state is State.PENDING:
            if self._is_due(found.id):
                self._move(found, State.EXPIRED)
            elif ask.rules <= set(found.rules):
                return Met(False, found.id)
            else:
                self._move(found, State.CANCELLED, note="another rule asks as well")
        elif found and found.state is State.APPROVED:
            still = may_still(ask, found.decided_by, found.scope, self._names)
            if still and not self._is_due(found.id) and ask.rules <= set(found.rules):
                return Met(False, found.id) if found.id in self._writing else self._use(found)
            note = "a rule asks that it was not approved for, or in another way, or it came too late"
            self._move(found, State.VOID, note=note)
        elif found and found.state is State.REFUSED and not self._is_due(found.id):
            raise outcome(found)  # a person has said no; asking again and again is not a way round
        return Met(False, self._ask(ask).id)

    def stands(self, ask: Ask) -> Standing | None:
        """The standing answer to it."""
        found = (one for one in self._standing.values() if is_within(ask, one))
        return next((one for one in found if may_still(ask, one.by, one.scope, self._names)), None)

    def _use(self, found: Approval) -> Met:
        """The one act. In memory at once, so that nobody else takes it; on disk with the entry of the act."""
        used = self._all[found.id] = replace(found, state=moved(found, State.USED))
        return Met(True, used.id)

    def rows(self, approval: str) -> list[Put]:
        """As the store must hold what an act rests on. Read when the act is recorded: what was taken back since does
        not come back."""
        stands, one = self._standing.get(approval), self._all.get(approval)
        found = [Put(STANDING, approval, _encode(stands))] if stands else []
        return [*found, _row(one)] if one and one.state is State.USED else found

    def _ask(self, ask: Ask) -> Approval:
        if not self.anybody:
            reason = f"a person must agree ({ask.questions[0].reason}), and nobody can be asked here"
            raise EAPPROVAL("approval.nobody", reason, retryable=False, outcome="refused")
        waiting = sum(one.agent == ask.asker.agent and one.state is State.PENDING for one in self._all.values())
        if waiting >= MOST_PENDING:
            raise EAGAIN("approval.many", f"{waiting} of your calls wait for a person already", retry_after_ms=60_000)
        now = self._wall_ns()
        self._last += 1
        shown = arguments(ask.args, self.redact)
        one = Approval(
            id=f"q-{self._last}",
            digest=ask.digest(),
            agent=ask.asker.agent,
            program=ask.asker.program,
            guest=ask.asker.guest,
            op=ask.op,
            wants=ask.wants,
            args=shown,
            origins=dict.fromkeys(cast("dict[str, Any]", shown), ask.label.words()) if isinstance(shown, dict) else {},
            capability=ask.capability,
            classes=sorted(ask.label.classes),
            rules=sorted(ask.rules),
            reasons=[question.reason for question in ask.questions],
            approvers=ask.approvers,
            scopes=ask.scopes,
            created_seq=self._journal.next_seq,
            created_ns=now,
            deadline_ns=now + int(ask.deadline_s * 1e9),
            handle=ask.handle,
            holds=list(ask.facts.get(HOLDS, ())),
            schema=ask.facts.get(SCHEMA),
        )
        self._all[one.id] = one
        self._latest[one.digest] = one.id
        self._due[one.id] = self._mono() + ask.deadline_s
        self._unseen.add(one.id)
        try:
            self._write(one, [Put("table", _NUMBER, b"%d" % self._last)], label=ask.label.words())
        except AgentOSError:
            del self._all[one.id], self._latest[one.digest], self._due[one.id]
            self._unseen.discard(one.id)
            raise
        return one

    def wait(self, approval: str, wake: Wake) -> None:
        """`wake` is called once, when there is an answer on disk: for what `meet` told to wait, there is none yet."""
        self._waiting.setdefault(approval, []).append(wake)

    def leave(self, approval: str, wake: Wake, why: str = "") -> None:
        """Whoever waited is gone. With a reason, the last one takes the question with it; without, it stays: the same
        call may come again, in its next life or with more time."""
        waiting = self._waiting.get(approval, [])
        if wake in waiting:
            waiting.remove(wake)
        one = self._all.get(approval)
        if why and one and not waiting:
            self._drop(one, why)

    def watch(self, approval: str, told: Callable[[], None]) -> Callable[[], None]:
        """`told` is called when there is an answer; whoever only watches keeps no question open. Gives what ends it."""
        watching = self._watching.setdefault(approval, [])
        watching.append(told)
        return lambda: watching.remove(told) if told in watching else None

    # People's side.

    def decide(
        self,
        approval: str,
        person: Person,
        *,
        approve: bool,
        digest: str,
        scope: str = "once",
        note: str = "",
        via: str = "control",
        value: Any = None,
    ) -> Approval:
        """An answer. It counts when it is on disk; the first one that comes is the answer."""
        one = self.find(approval)
        if one.state is State.PENDING and self._is_due(one.id):
            one = self._move(one, State.EXPIRED)
        require_may_decide(one, person, self._names)
        require_pending(one, digest)
        if approve:
            require_offered(one, scope)
        state = State.APPROVED if approve else State.REFUSED
        return self._move(one, state, by=person.id, via=via, scope=scope if approve else "", note=note, value=value)

    def find(self, approval: str, *, waits: bool = False) -> Approval:
        """`waits`: for the call that asks. It hears of a question that is not on disk yet, since its own refusal is
        written, and so told, after that."""
        one = self._all.get(approval)
        if one is None or (one.id in self._unseen and not waits):
            raise ENOENT("approval.unknown", f"there is no approval {approval!r}", hint="agentctl approvals lists them")
        return one

    def pending(self) -> list[Approval]:
        """What a person can decide about, the oldest first."""
        return [one for one in self.every() if one.state is State.PENDING and not self._is_due(one.id)]

    def every(self) -> list[Approval]:
        seen = (one for one in self._all.values() if one.id not in self._unseen)
        return sorted(seen, key=lambda one: int(one.id[2:]))

    def standing(self) -> list[Standing]:
        return list(self._standing.values())

    def take_back(self, approval: str, by: str) -> Standing:
        """End a standing answer. From now on it is asked again."""
        stands = self._standing.get(approval)
        if stands is None:
            raise ENOENT("approval.standing", f"{approval} is no standing approval", hint="agentctl cap ls")
        draft = Draft(by, Kind.REVOKE, body=frames.encode_body({"approval": approval, "capability": stands.capability}))
        self._journal.put(draft, sync=True, puts=[Put(STANDING, approval, None)])
        if approval in self._all:
            self._drop(self._all[approval], "it was taken back")
        return self._standing.pop(approval)

    # What the world does.

    def agent_ended(self, agent: str) -> None:
        """For good. What it waited for is moot, and what was its for this session is over."""
        for one in [one for one in self._all.values() if one.agent == agent]:
            self._drop(one, "the agent ended")
        for stands in [one for one in self._standing.values() if one.agent == agent and one.scope == "session"]:
            del self._standing[stands.id]
            draft = Draft(agent, Kind.REVOKE, body=frames.encode_body({"approval": stands.id, "why": "agent ended"}))
            self._journal.put(draft, sync=True, puts=[Put(STANDING, stands.id, None)])

    def revoked(self, handles: Iterable[int]) -> None:
        """Capabilities are gone: so are the calls that relied on them."""
        gone = set(handles)
        for one in [one for one in self._all.values() if one.handle in gone]:
            self._drop(one, "the capability was revoked")

    def look_again(self) -> None:
        """The policy changed: every call that waits passes the gate again. A question that nobody has any more ends."""
        for approval, waiting in list(self._waiting.items()):
            one = self._all.get(approval)
            if not waiting or one is None or one.state is not State.PENDING:
                continue
            self._waiting[approval] = []
            for wake in waiting:
                wake(None)
            if not self._waiting.get(approval):
                self._drop(self._all[approval], "the policy forbids it now, or nobody asks any more")

    def tick(self) -> None:
        """Time passes. An answer that did not come is a no, and is never called a person's."""
        now = self._wall_ns()
        for one in list(self._all.values()):
            if one.state is State.PENDING and self._is_due(one.id):
                self._move(one, State.EXPIRED)
            elif one.state is State.APPROVED and self._is_due(one.id) and one.id not in self._writing:
                self._move(one, State.VOID, note="nobody used it in time")
            elif one.state not in NEXT and now - max(one.decided_ns, one.deadline_ns) > _KEPT_NS:
                self._forget(one)

    def next_due(self) -> float | None:
        """When to `tick` again, by the monotonic clock."""
        return min((self._due[one.id] for one in self._all.values() if one.state in NEXT), default=None)

    # Changes.

    def _drop(self, one: Approval, why: str) -> None:
        if one.state is State.PENDING:
            self._move(one, State.CANCELLED, note=why)
        elif one.state is State.APPROVED:
            self._move(one, State.VOID, note=why)

    def _move(self, one: Approval, state: State, **facts: Any) -> Approval:
        by = facts.pop("by", "")
        after = replace(one, state=moved(one, state), decided_ns=self._wall_ns(), decided_by=by, **facts)
        puts = list[Put]()
        if state is State.APPROVED and after.scope in _STAND:
            puts.append(Put(STANDING, one.id, _encode(standing_of(after))))
        elif one.scope == "session" and one.id in self._writing:  # over before it began
            puts.append(Put(STANDING, one.id, None))
        self._all[one.id] = after
        if state is State.APPROVED:
            self._due[one.id] = self._mono() + (_due_ns(after) - after.decided_ns) / 1e9
        try:
            self._write(after, puts)
        except AgentOSError:
            self._all[one.id] = one
            raise
        return after

    def _write(self, one: Approval, puts: Sequence[Put], label: Sequence[str] = ()) -> None:
        body = _encode(one if one.state is State.PENDING else _news(one))
        draft = Draft(one.decided_by or one.agent, Kind.APPROVAL, op=one.op, step=_STEP, rule=",".join(one.rules))
        draft.body, draft.label, draft.handle = body, list(label), one.handle
        draft.verdict = _VERDICTS.get(one.state, Verdict.REFUSE)
        self._writing.add(one.id)
        try:
            self._journal.put(draft, sync=True, puts=[_row(one), *puts], done=lambda: self._written(one))
        except AgentOSError:
            self._writing.discard(one.id)
            raise

    def _written(self, one: Approval) -> None:
        """It is on disk: from here on it is true for everybody."""
        self._unseen.discard(one.id)
        newest = self._all.get(one.id) is one
        if one.state is State.APPROVED and one.scope in _STAND and (newest or one.scope == "always"):
            self._standing[one.id] = standing_of(one)
        if not newest:  # it went on meanwhile; that will be told
            return
        self._writing.discard(one.id)
        self._notify(one)
        if one.state is not State.PENDING:
            answer = None if one.state is State.APPROVED else outcome(one)
            for wake in self._waiting.pop(one.id, ()):
                wake(answer)
            for told in self._watching.pop(one.id, ()):
                told()

    def _forget(self, one: Approval) -> None:
        del self._all[one.id], self._due[one.id]
        self._waiting.pop(one.id, None)
        if self._latest.get(one.digest) == one.id:
            del self._latest[one.digest]
        draft = Draft("kernel", Kind.APPROVAL, body=_encode({"forgotten": one.id}))
        self._journal.put(draft, sync=False, puts=[Put(APPROVALS, one.id, None)])

    def _is_due(self, approval: str) -> bool:
        return self._mono() >= self._due[approval]


_VERDICTS = {State.PENDING: Verdict.ASK, State.APPROVED: Verdict.ALLOW}


def _due_ns(one: Approval) -> int:
    """By when it is answered; what was approved may be taken up for as long again."""
    return one.deadline_ns - one.created_ns + one.decided_ns if one.state is State.APPROVED else one.deadline_ns


def _number(one: Approval) -> int:
    return int(one.id[2:])


def _row(one: Approval) -> Put:
    return Put(APPROVALS, one.id, _encode(one))


def _news(one: Approval) -> dict[str, Any]:
    names = ("id", "digest", "agent", "state", "decided_by", "via", "scope", "note", "value")
    return {name: getattr(one, name) for name in names}
