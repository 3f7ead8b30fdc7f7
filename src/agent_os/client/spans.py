"""Spans: what belongs together in the record of agents, with its beginning and its end.

In: journal entries as OP_EVENTS tells them, in order. Out: spans of lives (`invoke_agent`), of model calls (`chat`), of
tools (`execute_tool`), of questions to a person and of every other call. Pure: no clock, no I/O. The same entries give
the same spans with the same ids, whoever makes them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, NamedTuple, cast

from agent_os.client import conventions as names
from agent_os.client.values import jsonable

Entry = dict[str, Any]
Sort = Literal["life", "chat", "tool", "approval", "call", "event"]
Lane = Literal["model", "tools", "policy", "messages", "files", "state"]
_MESSAGES = {"SYS_SEND", "SYS_RECV", "SYS_ACK", "SYS_SUBSCRIBE", "SYS_PUBLISH", "SYS_REQUEST", "SYS_REPLY", "SYS_PIPE"}
_FILES = {"SYS_READ", "SYS_WRITE", "SYS_OPEN", "SYS_CLOSE", "SYS_LIST", "SYS_STAT", "SYS_REMOVE", "SYS_WATCH"}
_ENDS = ("outcome", "result", "decision")
_LARGEST = 16 << 10  # characters of one text that is exported
_SORTS: dict[str, Sort] = {"SYS_THINK": "chat", "SYS_EXEC": "tool"}


@dataclass(eq=False)
class Span:
    """One thing, and how long it took where that is known. `entry` is the one that ended it, or the only one."""

    entry: Entry
    began: datetime
    sort: Sort
    ended: datetime | None = None
    open: bool = False
    seq: int = 0  # of the entry that began it
    incarnation: int = 0  # of its agent

    @property
    def seconds(self) -> float:
        return (self.ended - self.began).total_seconds() if self.ended else 0.0

    @property
    def agent(self) -> str:
        return str(self.entry["agent"])

    @property
    def refused(self) -> bool:
        return self.entry.get("verdict") in ("refuse", "forbid")

    @property
    def lane(self) -> Lane:
        op = str(self.entry.get("op", ""))
        if self.refused or self.sort == "approval":
            return "policy"
        if self.sort in ("chat", "tool"):
            return "model" if self.sort == "chat" else "tools"
        if op in _MESSAGES or self.entry["kind"] in ("deliver", "accept", "ack", "dead"):
            return "messages"
        return "files" if op in _FILES else "state"

    @property
    def subject(self) -> str:
        """What it was about: a model, a tool, what is wanted of a person."""
        body, request = _map(self.entry.get("body")), self._request
        match self.sort:
            case "life":
                return self.agent.removeprefix("default/")
            case "chat":
                return str(request.get("model") or _map(self.entry.get("cost")).get("model", ""))
            case "tool":
                return str(request.get("tool", "")).partition("@")[0]
            case "approval":
                return str(body.get("wants", ""))
            case _:
                return ""

    @property
    def usage(self) -> tuple[int, int]:
        """Tokens in and out."""
        used = _map(self._value.get("usage"))
        return int(used.get("input", 0)), int(used.get("output", 0))

    @property
    def dollars(self) -> float | None:
        """What it cost; None where no price is known."""
        spent = _map(_map(self.entry.get("cost")).get("spent"))
        return spent["cost"] / 1e6 if "cost" in spent else None

    @property
    def _left(self) -> dict[str, Any]:
        """Of what it spent and somebody limits, what was left right after it."""
        left = _map(_map(self.entry.get("cost")).get("left"))
        shown = {"cost_usd" if one == "cost" else one: amount for one, amount in left.items()}
        return {names.BUDGET_LEFT + one: amount / 1e6 if one == "cost_usd" else amount for one, amount in shown.items()}

    @property
    def rule(self) -> str:
        return str(self.entry.get("rule", ""))

    @property
    def _request(self) -> dict[str, Any]:
        return _map(_map(self.entry.get("body")).get("request"))

    @property
    def _value(self) -> dict[str, Any]:
        value = _map(_map(self.entry.get("body")).get("value"))
        return _map(value.get("reply")) or value

    def attributes(self, *, content: bool = False) -> dict[str, Any]:
        """As conventions name them. `content`: also what was said."""
        entry = self.entry
        found: dict[str, Any] = {
            names.AGENT: self.agent,
            names.AGENT_ID: self.agent,
            names.AGENT_NAME: self.agent.rpartition("/")[2],
            names.INCARNATION: self.incarnation,
            names.SEQUENCE: entry["seq"],
            names.CALL: entry.get("op"),
            names.DECISION: entry.get("verdict"),
            names.RULE: entry.get("rule"),
            names.CAPABILITY: f"c-{entry['handle']}" if entry.get("handle") else None,
            names.MODE: entry.get("mode"),
            names.ISOLATION: entry.get("isolation"),
            names.LABEL: entry.get("label"),
            names.ERROR_TYPE: entry.get("code"),
            **self._left,
        }
        match self.sort:
            case "life":
                found |= {names.OPERATION: names.INVOKE_AGENT, names.EXIT: _map(entry.get("body")).get("class")}
            case "chat":
                found |= self._of_model(content)
            case "tool":
                found |= self._of_tool(content)
            case "approval":
                found |= {names.APPROVAL: _map(entry.get("body")).get("id")}
            case _:
                pass
        return {name: value for name, value in found.items() if value not in (None, "", [], {})}

    def _of_model(self, content: bool) -> dict[str, Any]:
        value, request, full = self._value, self._request, self.subject
        taken, given = self.usage
        found = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: value.get("provider") or full.partition("/")[0],
            names.REQUEST_MODEL: full.partition("/")[2] or full,
            names.RESPONSE_MODEL: value.get("model"),
            names.MAX_TOKENS: request.get("max_output"),
            names.STREAM: request.get("stream"),
            names.FINISH_REASONS: [str(value["stop"])] if value.get("stop") else None,
            names.COST: self.dollars,
            names.QUEUED: value.get("queued_ms"),
        }
        if "usage" in value:
            found |= {names.INPUT_TOKENS: taken, names.OUTPUT_TOKENS: given}
            found[names.CACHED_TOKENS] = _map(value["usage"]).get("cached_read") or None
        if content and value.get("blocks"):
            found[names.OUTPUT_MESSAGES] = _text([{"role": "assistant", "parts": value["blocks"]}])
        return found

    def _of_tool(self, content: bool) -> dict[str, Any]:
        found: dict[str, Any] = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: self.subject}
        if content:
            found[names.TOOL_ARGUMENTS] = _text(self._request.get("params", {}))
            if "value" in self._value:
                found[names.TOOL_RESULT] = _text(self._value["value"])
        return found

    @property
    def name(self) -> str:
        """Of the span, where it is exported."""
        if self.sort == "life":
            return f"{names.INVOKE_AGENT} {self.subject}"
        if self.sort in ("chat", "tool"):
            word = names.CHAT if self.sort == "chat" else names.EXECUTE_TOOL
            return f"{word} {self.subject}".rstrip()
        if self.sort == "approval":
            return f"approval {self.subject}"
        return str(self.entry.get("op") or self.entry["kind"])


@dataclass
class Spans:
    """Of one agent, or of all. What is open stays here until its end comes."""

    lives: dict[tuple[str, int], Span] = field(default_factory=dict[tuple[str, int], Span])
    _intents: dict[int, Span] = field(default_factory=dict[int, Span])
    _waits: dict[tuple[str, str], Span] = field(default_factory=dict[tuple[str, str], Span])
    _asked: dict[str, Span] = field(default_factory=dict[str, Span])  # by the id of the approval
    _newest: dict[str, int] = field(default_factory=dict[str, int])  # incarnation; not every entry names it
    _beside: list[Span] = field(default_factory=list[Span])  # ended with an entry that is another's

    def add(self, entry: Entry) -> Span:
        """The span that this entry begins or, then known as a whole, ends."""
        now, kind = when(entry), str(entry["kind"])
        self._live(entry, now)
        if kind in _ENDS:
            waited = self._waits.pop((str(entry["agent"]), str(entry.get("pos", ""))), None)
            self._answered(entry, now)
            if span := self._intents.pop(int(entry.get("ref", 0)), None) or waited:
                span.entry, span.ended, span.open = entry, now, False
                return span
        if kind == "approval":
            return self._question(entry, now)
        span = self._begin(entry, now, _sort(entry), open=kind in ("intent", "accept"))
        if kind == "intent":
            self._intents[int(entry["seq"])] = span
        elif kind == "accept":
            self._waits[str(entry["agent"]), str(entry.get("pos", ""))] = span
        return span

    def ended(self, entry: Entry) -> list[Span]:
        """As `add`, for whoever wants what is over: each span once, when it is."""
        span = self.add(entry)
        found = [*self._beside, *([] if span.open else [span])]
        self._beside.clear()
        life = self.over(entry)
        return [*found, life] if life else found

    def _begin(self, entry: Entry, now: datetime, sort: Sort, *, open: bool) -> Span:
        incarnation = int(entry.get("inc") or self._newest.get(str(entry["agent"]), 0))
        return Span(entry, now, sort, open=open, seq=entry["seq"], incarnation=incarnation)

    def _live(self, entry: Entry, now: datetime) -> None:
        """The life that an entry belongs to begins with its spawn, or where the record was opened."""
        if not entry.get("inc") or ":" in str(entry["agent"]):
            return
        place = (str(entry["agent"]), int(entry["inc"]))
        if place not in self.lives:
            self._newest[place[0]] = place[1]
            self.lives[place] = Span(entry, now, "life", open=True, seq=entry["seq"], incarnation=place[1])

    def over(self, entry: Entry) -> Span | None:
        """The life that this entry ends; forgotten here, and all of it that was open with it."""
        if entry["kind"] != "exit":
            return None
        place = (str(entry["agent"]), int(entry.get("inc", 0)))
        life = self.lives.pop(place, None)
        self._newest.pop(place[0], None)
        if life:
            life.entry, life.ended, life.open = entry, when(entry), False
        self._intents = {seq: one for seq, one in self._intents.items() if (one.agent, one.incarnation) != place}
        self._waits = {key: one for key, one in self._waits.items() if one.agent != place[0]}
        self._asked = {key: one for key, one in self._asked.items() if one.agent != place[0]}
        return life

    def _question(self, entry: Entry, now: datetime) -> Span:
        body = _map(entry.get("body"))
        name, pending = str(body.get("id", "")), body.get("state") == "pending"
        asked = self._asked.get(name)
        if asked is None or pending:
            asked = self._begin(entry, now, "approval", open=pending)
            if pending:
                self._asked[name] = asked
            return asked
        del self._asked[name]
        asked.ended, asked.open = now, False
        return asked

    def _answered(self, entry: Entry, now: datetime) -> None:
        """A call that was asked about has come to its end: so has the question."""
        for name, asked in list(self._asked.items()):
            by_name = f"approval:{name}" in str(entry.get("rule", "")).split(",")
            if by_name or (entry["kind"] == "decision" and _same_call(entry, asked.entry)):
                asked.ended, asked.open = now, False
                del self._asked[name]
                self._beside.append(asked)


def when(entry: Entry) -> datetime:
    return datetime.fromisoformat(entry["time"])


def _sort(entry: Entry) -> Sort:
    if entry["kind"] in (*_ENDS, "intent", "accept"):
        return _SORTS.get(str(entry.get("op", "")), "call")
    return "event"


def _same_call(entry: Entry, asked: Entry) -> bool:
    said, wanted = _map(entry.get("body")), _map(asked.get("body"))
    same = (entry["agent"], entry.get("op")) == (asked["agent"], asked.get("op"))
    return same and entry.get("step") == asked.get("step") and said.get("request") == wanted.get("args")


# Exported.


class Exported(NamedTuple):
    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str  # empty: it went well


def worth_exporting(span: Span) -> bool:
    """A life, a model call, a tool, a question to a person, or a refusal: what somebody looks for."""
    return not span.open and (span.sort in ("life", "chat", "tool", "approval") or span.refused)


def exported(span: Span, log: str, *, content: bool = False) -> Exported:
    """`log`: which journal it is, so that ids of two kernels differ."""
    life = f"{log} {span.agent} {span.incarnation}"
    parent = _number(life, 8)
    own = parent if span.sort == "life" else _number(f"{life} {span.seq} {span.sort}", 8)
    start = _ns(span.began)
    end = max(_ns(span.ended), start) if span.ended else start
    error = str(span.entry.get("code", ""))
    if span.sort == "life" and _map(span.entry.get("body")).get("class") not in ("normal", "requested", None):
        error = error or str(_map(span.entry.get("body"))["class"])
    above = None if span.sort == "life" else parent
    return Exported(_number(life, 16), own, above, span.name, start, end, span.attributes(content=content), error)


def as_otlp(spans: Iterable[Exported], version: str) -> dict[str, Any]:
    """One request of OTLP in its JSON form, which needs no library."""
    shown = [
        {
            "traceId": f"{one.trace_id:032x}",
            "spanId": f"{one.span_id:016x}",
            **({} if one.parent_id is None else {"parentSpanId": f"{one.parent_id:016x}"}),
            "name": one.name,
            "kind": 1,
            "startTimeUnixNano": str(one.start_ns),
            "endTimeUnixNano": str(one.end_ns),
            "attributes": [{"key": key, "value": _any(value)} for key, value in one.attributes.items()],
            "status": {"code": 2, "message": one.error} if one.error else {},
        }
        for one in spans
    ]
    service = {"attributes": [{"key": "service.name", "value": _any("agent-os")}]}
    return {
        "resourceSpans": [
            {"resource": service, "scopeSpans": [{"scope": {"name": "agent_os", "version": version}, "spans": shown}]}
        ]
    }


def _any(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any(one) for one in cast("list[Any]", value)]}}
    return {"stringValue": str(value)}


def _ns(moment: datetime) -> int:
    """Exact to the microsecond, which a float of seconds is not."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def _number(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size], "big")


def _text(value: Any) -> str:
    return json.dumps(jsonable(value), ensure_ascii=False, default=str)[:_LARGEST]


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
