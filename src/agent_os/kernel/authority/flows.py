"""Flows: what every syscall brings to its caller and where it carries the caller's data, and which of that may go on.

In: the label of whoever calls, what the call needs and does. Out: nothing (go on), questions for a person, or ELABEL.
Pure. `FLOWS` names the join of every syscall; one that is not in it does not pass the tests.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Literal, Protocol

from msgspec import Struct

from agent_os.abi.errors import ELABEL
from agent_os.abi.syscalls import BY_NAME, Effect
from agent_os.kernel.authority.capability import missing, together
from agent_os.kernel.authority.labels import (
    CLEAN,
    PRIVATE,
    UNLABELLED,
    Covers,
    Integrity,
    Label,
    SourceRule,
    joined,
    of_source,
)
from agent_os.kernel.calls import CONNECTION, Need

RULE_OF_TWO = "rule-of-two"


class Brings(Enum):
    """Whose label the answer, or what follows from it, carries to the caller."""

    NOTHING = "nothing"  # the kernel's own facts, or what the caller said itself
    ENTRY = "entry"  # that of what is read: kept with a stored entry, of its source for a file
    NAMES = "names"  # that of every entry which is told of, for a name can be a message
    SOURCE = "source"  # that of where the call went: a tool, a host
    AGENT = "agent"  # that of the agent it tells of: a child's result and its reasons, a sender's words
    NOTICES = "notices"  # of each notice when it comes
    PERSON = "person"  # an operator's word is trusted


class Stamps(Enum):
    """What takes over the caller's label."""

    NOTHING = "nothing"
    ENTRY = "entry"  # whatever is written
    AGENT = "agent"  # whoever receives it
    CHILD = "child"  # whoever it starts: never cleaner than its parent
    CHECKPOINT = "checkpoint"  # a state to go on from


class Flow(Struct, frozen=True):
    brings: Brings = Brings.NOTHING
    stamps: Stamps = Stamps.NOTHING
    leaves: bool = False  # data may go where the kernel does not see it any more


_LOOK = Flow(Brings.PERSON)  # a person looks, or tells the kernel something

FLOWS: Mapping[int, Flow] = {
    BY_NAME[name].number: flow
    for name, flow in {
        "SYS_READ": Flow(Brings.ENTRY),
        "SYS_WRITE": Flow(Brings.ENTRY, Stamps.ENTRY, leaves=True),  # versions and sizes tell of what was there
        "SYS_OPEN": Flow(Brings.ENTRY),  # that it is there
        "SYS_CLOSE": Flow(),
        "SYS_EXEC": Flow(Brings.SOURCE, leaves=True),
        "SYS_SIGNAL": Flow(Brings.AGENT, Stamps.AGENT),  # its value; and whether it was delivered
        "SYS_CHECKPOLICY": Flow(),
        "SYS_EXIT": Flow(stamps=Stamps.AGENT),  # its result, for whoever waits
        "SYS_SPAWN": Flow(Brings.NOTHING, Stamps.CHILD),
        "SYS_WAIT": Flow(Brings.AGENT),
        "SYS_SEND": Flow(Brings.AGENT, Stamps.AGENT),  # a mailbox that is full tells of whose it is
        "SYS_RECV": Flow(Brings.AGENT),  # of everybody whose message is among them
        "SYS_ACK": Flow(),
        "SYS_SUBSCRIBE": Flow(),
        "SYS_PUBLISH": Flow(Brings.AGENT, Stamps.AGENT),  # that it is refused tells of who subscribed
        "SYS_REQUEST": Flow(Brings.AGENT, Stamps.AGENT),
        "SYS_REPLY": Flow(Brings.NOTHING, Stamps.AGENT),
        "SYS_PIPE": Flow(Brings.AGENT, Stamps.AGENT),  # of its last stage, and of one that fails
        "SYS_THINK": Flow(leaves=True),  # the reply is made of what the caller said, and carries the same
        "SYS_SHARE": Flow(Brings.NOTHING, Stamps.AGENT),
        "SYS_LIST": Flow(Brings.NAMES),
        "SYS_STAT": Flow(Brings.ENTRY),
        "SYS_REMOVE": Flow(Brings.ENTRY, Stamps.ENTRY, leaves=True),
        "SYS_WATCH": Flow(Brings.NOTICES),
        "SYS_CHECKPOINT": Flow(Brings.NOTHING, Stamps.CHECKPOINT),
        "SYS_SLEEP": Flow(),
        "SYS_NOW": Flow(),
        "SYS_RANDOM": Flow(),
        "SYS_APPROVE_WAIT": Flow(Brings.PERSON),
        "SYS_SIGMASK": Flow(),
        "SYS_LINK": Flow(Brings.NOTICES),
        "SYS_MONITOR": Flow(Brings.NOTICES),
        "SYS_TRAP": Flow(),
        "SYS_TAKE": Flow(Brings.PERSON),  # an operator's goal is trusted
        "SYS_FINISH": Flow(stamps=Stamps.AGENT),  # its result, for whoever waits
        "SYS_ELEVATE": Flow(Brings.PERSON),
        "SYS_ASK": Flow(Brings.PERSON),
        "SYS_EVENT": Flow(),
        "SYS_LEFT": Flow(),
        "SYS_TOOLS": Flow(Brings.SOURCE),  # descriptions are their authors' words
        "SYS_REGISTER": Flow(stamps=Stamps.CHILD),  # whoever calls it
        "SYS_READY": Flow(),
        "SYS_ALIVE": Flow(),
        "OP_RUN": Flow(Brings.PERSON, Stamps.CHILD),  # an operator's goal is trusted
        "OP_EXEC": Flow(Brings.PERSON, Stamps.AGENT),
        "OP_SIGNAL": Flow(Brings.PERSON, Stamps.AGENT),
        "OP_SUBMIT": Flow(Brings.PERSON, Stamps.AGENT),  # whoever takes it up
        "OP_POST": Flow(Brings.PERSON, Stamps.AGENT),
        "OP_MEMORY": Flow(Brings.PERSON, Stamps.ENTRY),  # an operator's word is trusted
        "OP_RESOLVE": Flow(Brings.PERSON, Stamps.AGENT),  # a result in an operator's words
        **dict.fromkeys(
            (
                *("OP_STATUS", "OP_LIST", "OP_INSPECT", "OP_HOLD", "OP_SNAPSHOT", "OP_WAIT", "OP_DOWN", "OP_EVENTS"),
                *("OP_HEAD", "OP_PROVE", "OP_CONSISTENCY", "OP_EXPORT", "OP_CHECKPOINT", "OP_REPLAY", "OP_BACKUP"),
                *("OP_LOGS", "OP_RELEASE", "OP_PANIC", "OP_LEAVE", "OP_WORK", "OP_APPROVALS", "OP_DECIDE"),
                *(
                    "OP_BUDGETS",
                    "OP_LIMIT",
                    "OP_COST",
                    "OP_SECRETS",
                    "OP_CAPABILITIES",
                    "OP_GRANT",
                    "OP_REVOKE",
                    "OP_EXPLAIN",
                ),
                *("OP_RULES", "OP_APPLY_RULES", "OP_APPLY", "OP_DELETE", "OP_START", "OP_STOP", "OP_RESTART"),
                *("OP_DECLARED", "OP_HISTORY", "OP_REACH", "OP_HEALTH"),
                *("OP_PRIORITIZE", "OP_QUEUE", "OP_GOAL", "OP_WITHDRAW", "OP_LINKS"),
                *("OP_MODELS", "OP_BUS", "OP_DEAD", "OP_LISTEN", "OP_TOPICS"),
                *("OP_TOOLS", "OP_CALL", "OP_MCP", "OP_CLIENTS"),
                *("OP_TOKENS", "OP_SESSION", "OP_WHOAMI"),
                *("OP_METRICS", "OP_GATEWAY", "OP_DOCTOR"),
            ),
            _LOOK,
        ),
    }.items()
}


# What is no syscall: a connection brings what its host sends, and takes anything out.
_DOORS: Mapping[int, Flow] = {CONNECTION: Flow(Brings.SOURCE, leaves=True)}


STAYS = frozenset(op for op, flow in FLOWS.items() if not flow.leaves)  # calls that take data nowhere


def brought(op: int, needs: Sequence[Need], rules: "FlowRules", carried: Label | None = None) -> Label:
    """The label of what this call brought its caller. `carried`: that of what was read or of whoever is told of, where
    the kernel keeps one; without it, a file is its mount's, and anything else is untrusted."""
    flow = FLOWS.get(op) or _DOORS.get(op)
    if flow is None:
        return UNLABELLED
    if flow.brings in (Brings.NOTHING, Brings.NOTICES, Brings.PERSON):
        return CLEAN
    if carried is not None:
        return carried
    if flow.brings is Brings.AGENT:
        return UNLABELLED
    return joined(of_source(need, rules.sources) for need in needs) if needs else UNLABELLED


# Where data may go.


class ClassRule(Protocol):
    """`[[class]]`: the only sinks that may see data of this class. Said in several layers, each binds."""

    @property
    def name(self) -> str: ...

    @property
    def readers(self) -> Sequence[Covers]: ...


class SinkRule(Protocol):
    """`[[sink]]`: what a sink takes. `integrity` trusted: nothing untrusted; `classes`: no others, None for any."""

    @property
    def what(self) -> Sequence[Covers]: ...

    @property
    def integrity(self) -> Integrity: ...

    @property
    def classes(self) -> frozenset[str] | None: ...

    @property
    def otherwise(self) -> Literal["deny", "ask"]: ...

    @property
    def where(self) -> object: ...


class FlowRules(Struct, frozen=True):
    """The tables of the policies in force that speak of labels."""

    classes: Sequence[ClassRule] = ()
    sources: Sequence[SourceRule] = ()
    sinks: Sequence[SinkRule] = ()


class Doubt(Struct, frozen=True):
    """Why a person must be asked."""

    rule: str
    reason: str


NO_RULES = FlowRules()
_READS_OUTSIDE = frozenset({"get", "head", "options"})
_OWN = ("/work", "/mem", "/state")  # takes all, stamps
_NEVER = ("/policy",)  # no label lets an agent write there, and nobody is asked
_CHANGES = frozenset({"write", "delete"})


def decide(
    label: Label,
    op: int,
    needs: Sequence[Need],
    effect: Effect,
    rules: FlowRules = NO_RULES,
    answered: Collection[str] = (),
    leads: Sequence[Need] = (),
    stays: bool = False,
) -> list[Doubt]:
    """Whether what the caller carries may go where this call takes it. `answered`: hosts that a person named for this
    very run. `leads`: other names of the same, which a sink may be told by. `stays`: it goes to something on this
    machine that reads for nobody else. A syscall without a flow goes nowhere."""
    flow = FLOWS.get(op) or _DOORS.get(op)
    if flow is None:
        raise ELABEL("label.flow", f"nobody has said what syscall {op} does with labels, so it is refused")
    doubts: list[Doubt] = []
    outward: list[Need] = []
    if not flow.leaves and not rules.sinks:
        return doubts
    for need in needs:
        if flow.leaves:
            _require_writable(need)
            if _is_sink(need) and not stays:
                _require_readers(label, need, rules.classes)
            if changes_outside(need, effect) and label.untrusted and label.classes and not _known(need, answered):
                outward.append(need)
        doubts += _tightened(label, need, rules.sinks)
    for need in leads:
        doubts += _tightened(label, need, rules.sinks)
    if outward:
        doubts.insert(0, Doubt(RULE_OF_TWO, _why(label, outward)))
    return list({one.rule: one for one in reversed(doubts)}.values())[::-1]  # a tunnel has a need for every method


def changes_outside(need: Need, effect: Effect) -> bool:
    """Whether it changes outside state or sends outward: where the rule of two asks."""
    if need.kind == "http" and need.action not in _READS_OUTSIDE:
        return True
    if need.kind in ("http", "tool"):
        return effect is not Effect.PURE
    return need.kind == "file" and need.action in _CHANGES and not _in(need.target, _OWN)


def _is_sink(need: Need) -> bool:
    """Whether data leaves the kernel's sight there. Another agent does not count: it takes the label over."""
    if need.kind == "file":
        return need.action in _CHANGES and not _in(need.target, _OWN)
    return need.kind in ("http", "tool", "llm")


def _require_writable(need: Need) -> None:
    if need.kind in ("file", "mem") and need.action in _CHANGES and _in(need.target, _NEVER):
        raise ELABEL("label.never", f"no agent changes {need.target}, whatever it carries", missing=missing(need))


def _require_readers(label: Label, need: Need, rules: Sequence[ClassRule]) -> None:
    """`private` may go wherever the agent holds a capability for, unless a rule says who reads it."""
    for name in sorted(label.classes):
        named = [rule for rule in rules if rule.name == name]
        if not named and name == PRIVATE:
            continue
        if not named or not all(_covered(need, rule.readers) for rule in named):
            why = "is not among its readers" if named else "is not, since no rule names its readers any more"
            raise ELABEL(
                "label.class",
                f"you carry data of class {name!r}, and {missing(need)} {why}",
                hint="an agent that has not read it can do this",
                classes=sorted(label.classes),
                sources=sorted(label.sources),
            )


def _tightened(label: Label, need: Need, sinks: Sequence[SinkRule]) -> list[Doubt]:
    doubts: list[Doubt] = []
    for rule in sinks:
        if not _covered(need, rule.what):
            continue
        excess = sorted(label.classes - rule.classes) if rule.classes is not None else []
        if not excess and not (rule.integrity == "trusted" and label.untrusted):
            continue
        what = f"data of class {excess[0]!r}" if excess else f"untrusted data{_from(label)}"
        reason = f"{missing(need)} takes no {what}, which you carry"
        if rule.otherwise == "deny":
            raise ELABEL("label.sink", reason, rule=f"sink {rule.where}", sources=sorted(label.sources))
        doubts.append(Doubt(f"sink {rule.where}", reason))
    return doubts


def _covered(need: Need, by: Sequence[Covers]) -> bool:
    return any(one.covers(need) for one in by)


def _known(need: Need, answered: Collection[str]) -> bool:
    return need.kind == "http" and need.target.partition("/")[0] in answered


def _why(label: Label, needs: Sequence[Need]) -> str:
    classes, what = ", ".join(sorted(label.classes)), ", ".join(map(missing, together(needs)))
    return f"it has read untrusted data{_from(label)}, carries {classes} data, and would act outside: {what}"


def _from(label: Label) -> str:
    """` from …`, or nothing where nobody said from where."""
    names = sorted(label.sources)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" from {', '.join(names[:3])}{more}" if names else ""


def _in(path: str, places: Sequence[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in places)
