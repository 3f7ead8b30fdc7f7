"""An approval as a record: the question, its states, and who may answer it for how long.

Data and pure rules. The states are a table; whatever is not in it does not happen. `approvals.py` keeps the records,
writes them down and tells whoever waits.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from agent_os.abi.errors import EAPPROVAL, ECONFLICT, EINVAL, EPERM
from agent_os.abi.syscalls import BY_NUMBER
from agent_os.kernel.authority.questions import Ask

_LONGEST = 48  # characters of what is wanted, on a line
Names = Callable[[str], frozenset[str]]


class State(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    USED = "used"
    VOID = "void"


# All moves that there are; a state without any is final.
NEXT: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.APPROVED, State.REFUSED, State.EXPIRED, State.CANCELLED}),
    State.APPROVED: frozenset({State.USED, State.VOID}),
}


class Approval(Struct, frozen=True):
    id: str
    digest: str
    agent: str
    program: str  # what the agent was started from, as a digest
    guest: bool
    op: int
    wants: str  # in a few words
    args: Any  # redacted, long ones by their hash
    origins: dict[str, list[str]]  # per argument: its label
    capability: str
    classes: list[str]
    rules: list[str]
    reasons: list[str]
    approvers: list[list[str]]  # one of each must be who decides; none: any operator
    scopes: list[str]  # offered
    created_seq: int
    created_ns: int
    deadline_ns: int  # wall clock
    handle: int = 0  # what the call relies on
    state: State = State.PENDING
    decided_by: str = ""
    decided_ns: int = 0
    via: str = ""
    scope: str = ""
    note: str = ""  # of whoever decided
    holds: list[str] = []  # of an agent that asks for more than it holds
    schema: Any = None  # of a question: what its answer must fit
    value: Any = None  # that whoever decided gave

    @property
    def syscall(self) -> str:
        return BY_NUMBER[self.op].name if self.op in BY_NUMBER else str(self.op)


class Standing(Struct, frozen=True):
    """An answer for more than one act: like calls of the same agent are not asked about again."""

    id: str  # of the approval
    agent: str
    program: str  # `always`: of this very program; empty: until the agent ends
    capability: str
    rules: list[str]
    classes: list[str]
    scope: str
    by: str
    since_ns: int
    uses: int = 0


class Person(Protocol):
    """Whoever is at a door. Agents are not operators, whatever their uid."""

    @property
    def id(self) -> str: ...

    @property
    def operator(self) -> bool: ...


def names_of(person: str) -> frozenset[str]:
    """What rules may call somebody: `local:1000`, and `user:anna` if that is anna's uid."""
    import pwd  # Linux; embedding programs have no doors

    kind, _, uid = person.partition(":")
    try:
        known = {f"user:{pwd.getpwuid(int(uid)).pw_name}"} if kind == "local" else set[str]()
    except (KeyError, ValueError):
        known = set[str]()
    return frozenset({person, *known})


def require_may_decide(one: Approval, person: Person, names: Names) -> None:
    """Operators, and of those only whom every rule that asks has named, as long as it is open."""
    if not person.operator:
        raise EPERM("approval.agent", "no agent decides about approvals, its own or another's")
    known = names(person.id)
    for group in one.approvers if one.state is State.PENDING else ():
        if not known & set(group):
            reason = f"{one.id} is for {', '.join(group)} to decide, not for {person.id}"
            raise EPERM("approval.approver", reason, hint=f"ask {' or '.join(group)} to run agentctl approve {one.id}")


def require_pending(one: Approval, digest: str) -> None:
    """It is open, and it is the question that was shown."""
    if one.state is State.EXPIRED:
        raise EAPPROVAL("approval.expired", f"{one.id} has expired, which is a no", retryable=False, outcome="expired")
    if one.state is not State.PENDING:
        by = f" by {one.decided_by}" if one.decided_by else ""
        word, since = _WORDS.get(one.state, (one.state, ""))
        raise ECONFLICT("approval.decided", f"{one.id} was {word}{by} already{since}", outcome=str(one.state))
    if digest != one.digest:
        hint = "agentctl approvals shows what it asks"
        raise ECONFLICT("approval.changed", f"{one.id} asks something else than you were shown", hint=hint)


def require_offered(one: Approval, scope: str) -> None:
    if scope in one.scopes:
        return
    reason = f"{one.id} cannot be approved for {scope!r}"
    if scope == "always" and one.guest:
        reason += ": what a guest runs can change without anybody seeing it"
    raise EINVAL("approval.scope", reason, hint=f"there is {', '.join(one.scopes)}")


_WORDS = {
    State.REFUSED: ("denied", ""),
    State.USED: ("approved", ", and used"),
    State.VOID: ("approved", ", and is void"),
}
_SAID = {
    State.REFUSED: "a person refused it",
    State.EXPIRED: "nobody answered in time",
    State.CANCELLED: "it was cancelled",
    State.VOID: "its approval is void",
    State.USED: "its approval was used by another call",
}


def outcome(one: Approval) -> EAPPROVAL:
    """The answer of a call that may not go on. An expiry is never told as a person's refusal."""
    word = one.state if one.state in (State.REFUSED, State.EXPIRED) else State.CANCELLED
    note = f": {one.note}" if one.note else ""
    return EAPPROVAL(
        f"approval.{word}",
        f"{one.id}: {_SAID[one.state]}{note}",
        retryable=False,
        outcome=str(word),
        approval=one.id,
        by=one.decided_by,
    )


def news(one: Approval) -> str:
    """What whoever looks on while an agent runs must know of a question; nothing, where they know it."""
    if one.state is State.PENDING:
        verb = "answer" if one.syscall == "SYS_ASK" else "approve"
        return f"waits for you: {one.wants[:_LONGEST]}   agentctl {verb} {one.id}"
    return f"{one.id} expired: {_SAID[one.state]}" if one.state is State.EXPIRED else ""


def moved(one: Approval, state: State) -> State:
    if state not in NEXT.get(one.state, ()):
        raise ECONFLICT("approval.state", f"{one.id} is {one.state} and cannot become {state}")
    return state


def is_within(ask: Ask, stands: Standing) -> bool:
    """A standing answer covers the very same authority, asked for by no other rule, with no further class of data."""
    same = stands.agent == ask.asker.agent and stands.program in ("", ask.asker.program)
    wider = ask.rules <= set(stands.rules) and ask.label.classes <= set(stands.classes)
    return same and wider and stands.capability == ask.capability and bool(ask.capability)


def may_still(ask: Ask, by: str, scope: str, names: Names) -> bool:
    """Whether such an answer could be given to it by them: a rule may have become stricter since they did."""
    return scope in ask.scopes and all(names(by) & set(group) for group in ask.approvers)


def standing_of(one: Approval) -> Standing:
    program = one.program if one.scope == "always" else ""
    facts = (one.capability, one.rules, one.classes, one.scope, one.decided_by, one.decided_ns)
    return Standing(one.id, one.agent, program, *facts)


def still_waiting(one: Approval) -> EAPPROVAL:
    """The call has no more time. The question stays; the same call later takes up its answer."""
    reason = f"nobody has answered {one.id} yet; the same call takes up the answer when there is one"
    return EAPPROVAL("approval.waiting", reason, outcome="waiting", approval=one.id)
