"""Recorded calls as rules see them: a line for each authority that one needed, which `agentctl policy diff` reads.

In: entries as the kernel tells them, with bodies. Out: objects with seq, agent, role, kind, action, target and facts.
Pure. A call is told once, by the first entry that knows what it was: its intent, its result or its refusal.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from agent_os.cli.entries import Entry
from agent_os.client.values import jsonable

_ROLE = "worker"
_TOLD = ("result", "decision", "intent", "outcome")
_ACTIONS: Mapping[str, tuple[str, ...]] = {
    **{name: ("read",) for name in ("SYS_READ", "SYS_LIST", "SYS_STAT", "SYS_WATCH")},
    **{"SYS_WRITE": ("write",), "SYS_REMOVE": ("delete",)},
}
_FLAGS = {"r": ("read",), "w": ("write",), "rw": ("read", "write")}
_OTHERS = ("SYS_OPEN", "SYS_SHARE", "SYS_EXEC", "SYS_SIGNAL", "SYS_SPAWN")
_TLS_PORT = 443
Map = Mapping[str, Any]
Need = tuple[str, str, str]  # kind, action, target


def calls_of(entry: Entry) -> list[dict[str, Any]]:
    """Nothing where it is about no authority, or its call is told by another entry."""
    about = {"seq": entry["seq"], "agent": entry["agent"].removeprefix("default/"), "role": _ROLE}
    body = _map(entry.get("body"))
    if entry["kind"] == "connect" or body.get("event") in ("connect refused", "secret refused"):
        needs, facts = list(_of_connection(entry["kind"], body)), _facts(body)
    elif entry["kind"] in _TOLD and not entry.get("ref"):
        request = _map(body.get("request"))
        needs = list(_of_syscall(str(entry.get("op", "")), request))
        facts = {"args": jsonable(request.get("params", {}))} if entry.get("op") == "SYS_EXEC" else {}
    else:
        return []
    more = {"facts": facts} if facts else {}
    return [{**about, "kind": kind, "action": action, "target": target, **more} for kind, action, target in needs]


def is_lost(entry: Entry) -> bool:
    """Whether this was such a call, and nobody can say any more what it was about: erased, or too large to be told."""
    told = entry["kind"] in _TOLD and not entry.get("ref") and entry.get("op") in (*_ACTIONS, *_OTHERS)
    return told and "request" not in _map(entry.get("body"))


def _of_syscall(op: str, request: Map) -> Iterator[Need]:
    path = request.get("path")
    if isinstance(path, str):  # by a handle: that was asked about when it was opened
        actions = _ACTIONS.get(op, ())
        if op in ("SYS_OPEN", "SYS_SHARE"):
            given = _FLAGS.get(str(request.get("flags") or request.get("rights") or "r"), ())
            actions = given if op == "SYS_OPEN" else ("share",) if request.get("end") else ("share", *given)
        kind = "file" if f"{path}/".startswith("/work/") else "mem"
        yield from ((kind, action, path) for action in actions)
    elif op == "SYS_EXEC":
        yield "tool", "call", str(request.get("tool", ""))
    elif op == "SYS_SIGNAL":
        yield "agent", "signal", str(request.get("agent", "")).removeprefix("default/")
    elif op == "SYS_SPAWN":
        yield "agent", "spawn", str(_map(request.get("manifest")).get("name") or "*")


def _of_connection(kind: str, body: Map) -> Iterator[Need]:
    """What the gate refused is told with its method and path. Of any other the record has the host alone, so it counts
    as all that it could have been: action `request`."""
    if not body.get("host") or (kind == "connect" and not _is_own(body)):
        return
    if body.get("secret"):
        yield "secret", "use", str(body["secret"])
    if method := body.get("method"):
        yield "http", str(method).lower(), f"{body['host']}{str(body.get('path') or '/').partition('?')[0]}"
    else:
        yield "http", "request", f"{body['host']}/**"


def _is_own(body: Map) -> bool:
    """Its last entry; and not where the gate has written one of its own about the same refusal."""
    by_the_gate = body.get("verdict") != "allow" and not str(body.get("code", "")).startswith("net.")
    return bool(body.get("done")) and not by_the_gate


def _facts(body: Map) -> dict[str, Any]:
    port = body.get("port")
    if body.get("protocol") == "http" or (body.get("method") and "secret" not in body):
        return {"port": port, "scheme": "http"}
    return {"port": port, "scheme": "https"} if port == _TLS_PORT else {"port": port}


def _map(value: Any) -> Map:
    return cast("Map", value) if isinstance(value, dict) else {}
