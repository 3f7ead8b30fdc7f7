"""What a viewer sees: how things are, not what was said.

In: an answer or a chunk on its way to somebody whose role is viewer. Out: the same with all that people, agents and
models wrote (arguments, bodies, payloads, goals, results, reasons) in place of which its size and SHA-256 stand. One
literal table says where in each answer such a thing lies; an operation that is not in it is not for viewers. The veil
hangs at the last moment before the wire, so that no way of answering passes it by.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from agent_os.abi import frames
from agent_os.abi.errors import EIO, AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import BY_NAME
from agent_os.kernel.calls import Answer, Asked, Stream
from agent_os.kernel.recorded import hashed

Hide = Callable[[Any], Any]
_decode = msgspec.msgpack.Decoder().decode
_DETAILS = {"replaying", "parked", "backoff", "quarantined", *map(str, ExitClass)}
_FIRST_WORD = re.compile(r"[A-Za-z_.]+")


def hidden(one: Any) -> Any:
    """As a map of `size` (bytes) and `sha256`: of a text or bytes as they are, of anything else in msgpack."""
    if one is None:
        return None
    data = one.encode(errors="surrogatepass") if isinstance(one, str) else one
    data = data if isinstance(data, bytes) else frames.encode_body(data)
    return hashed(data)


def text(one: Any) -> Any:
    """Text that stays text, because it is read in a line among others."""
    if not one:
        return one
    told = hidden(one)
    return f"(hidden: {told['size']} bytes, sha256 {told['sha256']})"


def _texts(some: Any) -> Any:
    return [text(one) for one in cast("list[Any]", some)] if isinstance(some, list) else text(some)


def _command(words: Any) -> Any:
    """A command line: its program; what that is told is hidden."""
    if not isinstance(words, list):
        return text(words)
    line = cast("list[Any]", words)
    return [*line[:1], text(" ".join(map(str, line[1:])))] if len(line) > 1 else line


def _sentence(one: Any) -> Any:
    """A word of ours with somebody's words behind it: ours."""
    found = _FIRST_WORD.match(one) if isinstance(one, str) else None
    return text(one) if found is None else one if found[0] == one else f"{found[0]} {text(one[found.end() :])}"


def _detail(one: Any) -> Any:
    """What refines a state, which is of a few words; but of one that ended it may be its own reason."""
    return one if one in _DETAILS else text(one)


_ROW: Mapping[str, Hide] = {"command": _command, "project": text, "detail": _detail}
_GOAL: Mapping[str, Hide] = {"goal": text, "result": hidden, "reason": text}

# Paths in the answer, `*` for each element of a list or map. Nothing: all of it is seen.
TABLE: Mapping[str, Mapping[str, Hide]] = {
    "OP_STATUS": {"left_out": _texts},
    "OP_LIST": {f"agents.*.{name}": hide for name, hide in _ROW.items()},
    "OP_INSPECT": {
        **_ROW,
        "order": hidden,
        "parked.*.body": hidden,
        "parked.*.key": text,
        **{f"goals.*.{name}": hide for name, hide in _GOAL.items()},
    },
    "OP_WAIT": {"result": hidden, "reason": text},
    "OP_EVENTS": {"*.body": hidden, "*.key": text},  # of each chunk
    "OP_HEAD": {},
    "OP_LEAVE": {},
    "OP_SESSION": {},
    "OP_WHOAMI": {},
    "OP_METRICS": {},
    "OP_GATEWAY": {},
    "OP_DOCTOR": {},
    "OP_CLIENTS": {"clients.*.project": text},
    "OP_MEMORY": {"data": hidden},
    "OP_APPROVALS": {
        "approvals.*.args": hidden,
        "approvals.*.wants": _sentence,
        "approvals.*.note": text,
        "approvals.*.value": hidden,
        "approvals.*.schema": hidden,
        "approvals.*.capability": text,
        "approvals.*.origins": hidden,
        "approvals.*.reasons": _texts,
        "approvals.*.holds": hidden,
    },
    "OP_BUDGETS": {},
    "OP_COST": {},
    "OP_CAPABILITIES": {"standing.*.capability": text},  # of an answer: what was asked about, as in the question
    "OP_MODELS": {},
    "OP_DECLARED": {
        "agents.*.why": text,
        "agents.*.health": _sentence,
        "agents.*.state": _sentence,
        "agents.*.manifest": hidden,
    },
    "OP_HISTORY": {"lives.*.reason": text, "lives.*.why": text},
    "OP_REACH": {"state": _sentence, "why": text},
    "OP_HEALTH": {"agents.*.health": _sentence},
    "OP_QUEUE": {
        f"{where}.*.{name}": hide for where in ("waiting", "working", "ended") for name, hide in _GOAL.items()
    },
    "OP_GOAL": _GOAL,
    "OP_LINKS": {},
    "OP_BUS": {},
    "OP_DEAD": {"letters.*.payload": hidden, "letters.*.detail": text, "letters.*.schema": text},
    "OP_TOPICS": {},
    "OP_TOOLS": {"tools.*.last_error": text},
    "OP_MCP": {"servers.*.where": text, "servers.*.problem": text},
}
_BY_NUMBER = {
    BY_NAME[name].number: [(path.split("."), hide) for path, hide in paths.items()]
    for name, paths in TABLE.items()
    if name in BY_NAME
}


def seen(op: int, told: Any) -> Any:
    """What a viewer is told in place of this."""
    if op not in _BY_NUMBER:
        raise EIO("view.none", "what a viewer may see of this is not known")
    for path, hide in _BY_NUMBER[op]:
        told = _under(told, path, hide)
    return told


def _under(told: Any, path: list[str], hide: Hide) -> Any:
    """In place: it was decoded for this."""
    if not path:
        return hide(told)
    step, rest = path[0], path[1:]
    if step == "*" and isinstance(told, list):
        return [_under(one, rest, hide) for one in cast("list[Any]", told)]
    if step == "*" and isinstance(told, dict):
        return {key: _under(one, rest, hide) for key, one in cast("dict[Any, Any]", told).items()}
    if isinstance(told, dict) and step in told:
        found = cast("dict[str, Any]", told)
        found[step] = _under(found[step], rest, hide)
        return found
    return cast("Any", told)


def veiled(asked: Asked, answer: Answer) -> Answer:
    """The answer to a viewer; what goes beside it is veiled as well."""
    if asked.stream:
        asked.stream = Veil(asked.stream, asked.op)

    def hiding(body: msgspec.Raw, error: AgentOSError | None) -> None:
        if error is None and bytes(body) != b"\xc0":
            try:
                body = frames.body(seen(asked.op, _decode(body)))
            except AgentOSError as problem:
                body, error = frames.NIL, problem
        answer(body, error)

    return hiding


class Veil:
    """Chunks to a viewer."""

    def __init__(self, stream: Stream, op: int) -> None:
        self._stream, self._op = stream, op

    async def send(self, value: Any) -> None:
        if isinstance(value, bytes | str):
            await self._stream.send(hidden(value))
        else:
            await self._stream.send(seen(self._op, _decode(frames.encode_body(value))))

    async def receive(self, *, credit: bool = True) -> Any:
        return await self._stream.receive(credit=credit)

    def give(self, count: int) -> None:
        self._stream.give(count)

    @property
    def last_size(self) -> int:
        return self._stream.last_size
