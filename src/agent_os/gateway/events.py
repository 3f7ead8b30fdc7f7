"""What the record says as the events of the stream: which entry is told under which word, and whom it concerns.

In: entries as OP_EVENTS tells them. Out: events, in order, each with the place in the record after which a client goes
on. Pure: the same entry makes the same events today and in a replay, so that a client can put them together.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import msgspec

from agent_os.client.values import jsonable
from agent_os.gateway.cursors import Cursor

Entry = dict[str, Any]
KEPT = ("agent.state", "decision", "approval.new", "approval.done", "message", "cost")
PASSING = ("log", "metric")  # not in the record, so without a cursor
TYPES = (*KEPT, *PASSING)
LARGEST_BODY = 4 << 10  # bytes as JSON; a larger one is told by its size, and read at /audit/{seq}

_MESSAGES = {"SYS_SEND", "SYS_PUBLISH", "SYS_REQUEST", "SYS_REPLY", "OP_POST"}
_SPENT = ("cost", "tokens")


class Event(NamedTuple):
    type: str
    agent: str | None
    cursor: Cursor
    text: bytes  # the whole message, JSON


def _of_call(entry: Entry) -> str:
    """What somebody at a door asked is told by what it changed, which has an entry of its own. A look is no event: else
    whoever looks because of an event would make the next one."""
    if entry.get("verdict") in ("refuse", "forbid"):
        return "decision"
    if entry.get("op") in _MESSAGES:
        return "message"
    return "" if entry["kind"] == "result" and ":" in str(entry["agent"]) else "decision"


def _of_approval(entry: Entry) -> str:
    if "verdict" not in entry:  # an answer of long ago is forgotten
        return ""
    return "approval.new" if entry.get("verdict") == "ask" else "approval.done"


def _of_state(entry: Entry) -> str:
    return "message" if _map(entry.get("body")).get("event") == "bus" else "agent.state"


_TYPE: dict[str, str | Callable[[Entry], str]] = {
    **dict.fromkeys(("boot", "halt", "spawn", "exit", "signal", "checkpoint", "change", "park", "resolve"), KEPT[0]),
    "state": _of_state,
    **dict.fromkeys(("intent", "outcome", "result"), _of_call),
    **dict.fromkeys(("decision", "connect", "grant", "revoke"), "decision"),
    "approval": _of_approval,
    **dict.fromkeys(("accept", "deliver", "ack", "dead"), "message"),
    "budget": "cost",
}


def types_of(entry: Entry) -> list[str]:
    """The words for one entry, none for what only the audit is interested in. What was spent is told beside what it was
    spent on."""
    found = _TYPE.get(str(entry["kind"]), "")
    word = found if isinstance(found, str) else found(entry)
    if not word:
        return []
    spent = _map(entry.get("cost"))
    return [word, "cost"] if word != "cost" and any(spent.get(name) for name in _SPENT) else [word]


def whom(entry: Entry) -> str | None:
    """The agent it concerns: not always the one who acted, which for an answer is a person."""
    body = _map(entry.get("body"))
    said = body.get("agent")
    if entry["kind"] == "approval" and isinstance(said, str):
        return said
    actor = str(entry["agent"])
    if "/" in actor:
        return actor
    return said if isinstance(said, str) and "/" in said else None


def events_of(entry: Entry, log: str) -> list[Event]:
    """All of them but the last have a cursor in the middle of the entry."""
    words = types_of(entry)
    if not words:
        return []
    seq, agent, data = int(entry["seq"]), whom(entry), _shown(entry)
    made = list[Event]()
    for part, word in enumerate(words, 1):
        cursor = Cursor(log, seq, part if part < len(words) else 0)
        made.append(Event(word, agent, cursor, message(word, str(entry["time"]), data, agent, cursor)))
    return made


def after(cursor: Cursor, entry: Entry, log: str) -> list[Event]:
    """Those of one entry that a client at this cursor does not have yet."""
    if entry["seq"] < cursor.seq or (entry["seq"] == cursor.seq and not cursor.part):
        return []
    made = events_of(entry, log)
    return made[cursor.part :] if entry["seq"] == cursor.seq else made


def message(word: str, time: str, data: Any, agent: str | None = None, cursor: Cursor | None = None) -> bytes:
    said: dict[str, Any] = {"type": word, "cursor": str(cursor)} if cursor else {"type": word}
    return msgspec.json.encode({**said, "ts": time, "agent": agent, "data": data})


class Choice(NamedTuple):
    """What a client wants to hear of. Empty: of everything and everybody."""

    types: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()

    def takes(self, event: Event) -> bool:
        return (not self.types or event.type in self.types) and (not self.agents or event.agent in self.agents)


def ids(names: Iterable[str]) -> frozenset[str]:
    """Of agents as people call them: a bare name is in the default namespace."""
    return frozenset(name if "/" in name else f"default/{name}" for name in names)


def _shown(entry: Entry) -> Entry:
    told = cast("Entry", jsonable({name: value for name, value in entry.items() if name != "body"}))
    if "body" in entry:
        body = jsonable(entry["body"])
        size = len(msgspec.json.encode(body))
        told["body"] = body if size <= LARGEST_BODY else {"size": size}
    return told


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
