"""Journal entries in words: one line a person reads, one object a program reads.

In: entries as the kernel tells them, with bodies. Out: strings. What agents wrote into them is made harmless.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from agent_os.abi.signals import AgentSignal
from agent_os.cli.output import paint, plain, shortened, width

Entry = dict[str, Any]
_LONGEST = 72  # characters of what an entry is about
_NAMED = ("path", "tool", "agent", "to", "name", "file")  # what a call is about is one of these


def when(entry: Entry) -> datetime:
    return datetime.fromisoformat(entry["time"])


def line(entry: Entry) -> str:
    """`10482  12:03:12.120  triage-7f  REFUSED SYS_WRITE /work/x  EPERM cap.missing: …`"""
    told = f"{entry['seq']:>7}  {clock(when(entry))}  {_padded(name_of(entry), 16)}  {_padded(_word(entry), 10)}  "
    rest = "  ".join(part for part in (deed(entry), _problem(entry)) if part)
    if refused(entry):
        return told + paint(rest, "red")
    return (told + rest).rstrip()


def refused(entry: Entry) -> bool:
    return entry.get("verdict") in ("refuse", "forbid")


def name_of(entry: Entry) -> str:
    return plain(entry["agent"].removeprefix("default/"))


def deed(entry: Entry) -> str:
    """What was done, and to what."""
    words = (str(entry.get("op", "")), plain(shortened(_subject(entry), _LONGEST)))
    return " ".join(word for word in words if word)


def _word(entry: Entry) -> str:
    return "REFUSED" if refused(entry) else str(entry["kind"])


def _problem(entry: Entry) -> str:
    if "code" not in entry:
        return ""
    error = _map(_map(entry.get("body")).get("error"))
    more = f" {error['code']}: {error['reason']}" if error else ""
    return plain(f"{entry['code']}{more}")


def _subject(entry: Entry) -> str:
    body = _map(entry.get("body"))
    about = _map(body.get("request")) if "request" in body else body
    special = _SPECIAL.get(entry["kind"])
    if special and (said := special(body)):
        return said
    return next((_text(about[name]) for name in _NAMED if about.get(name)), "")


def _of_signal(body: Mapping[str, Any]) -> str:
    if "signal" not in body:
        return _of_event(body)
    number = body["signal"]
    name = AgentSignal(number).name if number in list(AgentSignal) else str(number)
    return f"{name} from {body.get('sender', '?')}"


def _of_event(body: Mapping[str, Any]) -> str:
    event = str(body.get("event", ""))
    if argv := body.get("argv"):
        command = " ".join(map(_text, argv))
        return f"exec {command}" if event == "exec" else command
    if event == "exec ended":
        return f"{event} {body.get('code', body.get('error', ''))}"
    where = f"{body['host']}:{body.get('port', '')}" if body.get("host") else str(body.get("level", ""))
    return f"{event} {where}".strip()


def _of_exit(body: Mapping[str, Any]) -> str:
    return ", ".join(str(word) for word in (body.get("class"), body.get("code"), body.get("reason")) if word != "")


def _of_boot(body: Mapping[str, Any]) -> str:
    return f"process {body['pid']}" if "pid" in body else str(body.get("panic", ""))


def _of_notice(body: Mapping[str, Any]) -> str:
    return f"{body.get('type', '')} {body.get('path', body.get('agent', ''))}".strip()


def _of_resolve(body: Mapping[str, Any]) -> str:
    return f"{body.get('verdict', '')} says {body.get('by', '')}"


def _of_park(body: Mapping[str, Any]) -> str:
    return f"the outcome of entry {body.get('intent', '?')}, {body.get('op', '?')}, is unknown"


def _of_grant(body: Mapping[str, Any]) -> str:
    return f"c-{body.get('handle', '?')} {body.get('capability', '')} by {body.get('by', '?')}"


def _of_revoke(body: Mapping[str, Any]) -> str:
    if "approval" in body:
        return f"{body['approval']} {body.get('capability', body.get('why', ''))}".strip()
    taken = " ".join(f"c-{number}" for number in body.get("handles", ()))
    return f"{taken} by {body.get('by', '?')}" + (", for the future only" if body.get("future_only") else "")


def _of_approval(body: Mapping[str, Any]) -> str:
    state = body.get("state", "")
    told = "a person is asked" if state == "pending" else state if state else "forgotten"
    by = f" by {body['decided_by']}" if body.get("decided_by") else ""
    return f"{body.get('id', body.get('forgotten', '?'))}: {told}{by}"


_SPECIAL: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "approval": _of_approval,
    "signal": _of_signal,
    "spawn": _of_event,
    "state": _of_event,
    "connect": _of_event,
    "change": _of_event,
    "exit": _of_exit,
    "boot": _of_boot,
    "halt": _of_boot,
    "deliver": _of_notice,
    "resolve": _of_resolve,
    "park": _of_park,
    "grant": _of_grant,
    "revoke": _of_revoke,
}


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def clock(moment: datetime) -> str:
    """The time of day, here; the date as well if that is not today's."""
    here = moment.astimezone()
    form = "%H:%M:%S" if here.date() == datetime.now(UTC).astimezone().date() else "%Y-%m-%d %H:%M:%S"
    return f"{here.strftime(form)}.{here.microsecond // 1000:03}"


def _padded(text: str, columns: int) -> str:
    return text + " " * max(0, columns - width(text))
