"""Entries of the record as calls that rules decide about: each once, with all that the record knows of it."""

from typing import Any

import pytest

from agent_os.cli.calls import calls_of, is_lost

Told = dict[str, Any]


def told(kind: str, body: Told, **more: Any) -> list[Any]:
    entry = {"seq": 7, "agent": "default/a", "kind": kind, "body": body, **more}
    found = calls_of(entry)
    assert all((one["seq"], one["agent"], one["role"]) == (7, "a", "worker") for one in found)
    return [(f"{one['kind']}:{one['target']}:{one['action']}", one.get("facts")) for one in found]


@pytest.mark.parametrize(
    ("op", "request_", "calls"),
    [
        ("SYS_READ", {"path": "/work/x"}, ["file:/work/x:read"]),
        ("SYS_LIST", {"path": "/work"}, ["file:/work:read"]),
        ("SYS_STAT", {"path": "/workshop"}, ["mem:/workshop:read"]),
        ("SYS_WRITE", {"path": "/mem/working/x"}, ["mem:/mem/working/x:write"]),
        ("SYS_WRITE", {"path": None, "handle": 3}, []),
        ("SYS_REMOVE", {"path": "/work/x"}, ["file:/work/x:delete"]),
        ("SYS_OPEN", {"path": "/work/x", "flags": "rw"}, ["file:/work/x:read", "file:/work/x:write"]),
        ("SYS_SHARE", {"path": "/mem/x", "rights": "r"}, ["mem:/mem/x:share", "mem:/mem/x:read"]),
        ("SYS_SIGNAL", {"agent": "default/b"}, ["agent:b:signal"]),
        ("SYS_SPAWN", {"manifest": {"name": "b"}}, ["agent:b:spawn"]),
        ("SYS_SPAWN", {"manifest": {}}, ["agent:*:spawn"]),
        ("SYS_NOW", {}, []),
    ],
)
def test_a_syscall_is_told_by_what_it_needed(op: str, request_: Told, calls: list[str]) -> None:
    assert told("result", {"request": request_}, op=op) == [(one, None) for one in calls]


def test_a_tool_is_told_with_its_arguments() -> None:
    body = {"request": {"tool": "pay", "params": {"amount": 5, "raw": b"x"}}}
    assert told("intent", body, op="SYS_EXEC") == [("tool:pay:call", {"args": {"amount": 5, "raw": "x"}})]


def test_a_call_is_told_once_by_the_first_entry_of_it() -> None:
    body = {"request": {"path": "/work/x"}}
    assert told("intent", body, op="SYS_WRITE") == [("file:/work/x:write", None)]
    assert told("outcome", body, op="SYS_WRITE", ref=6) == []
    assert told("outcome", body, op="SYS_WRITE"), "it had no intent"
    assert told("exit", {"code": 0}) == []


CONNECT = {"event": "connect", "host": "a.test", "port": 443, "protocol": "connect", "verdict": "allow"}


@pytest.mark.parametrize(
    ("kind", "body", "calls"),
    [
        ("connect", {**CONNECT, "done": False, "code": "net.allow"}, []),
        ("connect", {**CONNECT, "done": True, "code": "net.allow"}, [("http:a.test/**:request", 443, "https")]),
        ("connect", {**CONNECT, "done": True, "code": "cap.revoked"}, [("http:a.test/**:request", 443, "https")]),
        (
            "connect",
            {**CONNECT, "done": True, "code": "net.host", "verdict": "deny", "protocol": "http", "port": 80},
            [("http:a.test/**:request", 80, "http")],
        ),
        ("connect", {**CONNECT, "done": True, "code": "policy.forbid", "verdict": "deny"}, []),
        (
            "decision",
            {"event": "connect refused", "host": "a.test", "port": 80, "method": "POST", "path": "/v1?q"},
            [("http:a.test/v1:post", 80, "http")],
        ),
        (
            "decision",
            {"event": "connect refused", "host": "a.test", "port": 443, "tunnel": True},
            [("http:a.test/**:request", 443, "https")],
        ),
        ("connect", {**CONNECT, "done": True, "code": "net.malformed", "verdict": "deny", "host": ""}, []),
    ],
)
def test_a_connection_is_told_once_as_far_as_it_is_known(kind: str, body: Told, calls: list[Any]) -> None:
    assert told(kind, body) == [(call, {"port": port, "scheme": scheme}) for call, port, scheme in calls]


def test_what_nobody_can_tell_any_more_is_counted() -> None:
    entry = {"seq": 7, "agent": "default/a", "kind": "result", "op": "SYS_READ", "body": {"erased": True}}
    assert is_lost(entry)
    assert calls_of(entry) == []
    assert not is_lost({**entry, "op": "SYS_NOW"})
    assert not is_lost({**entry, "body": {"request": {"path": "/x"}}})
