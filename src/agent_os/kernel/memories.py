"""The past of an agent's memory, told by the record: who wrote what when, and what it was then.

In: the journal. Out: changes in order, and the content of a version that the store does not keep any more, as far as
the record has it: what came with a call, or a body by its hash. Read in threads, page by page; changes nothing.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.syscalls import BY_NAME
from agent_os.kernel.journal import Journal
from agent_os.kernel.recorded import Recorded, decode_any
from agent_os.kernel.vfs import paths

WRITTEN = "memory"  # the event of an operator's change, in an entry of the agent whose memory it is
_WRITE, _REMOVE, _SHARE = (BY_NAME[name].number for name in ("SYS_WRITE", "SYS_REMOVE", "SYS_SHARE"))
_CALLS = (_WRITE, _REMOVE, _SHARE)
_WORKING, _SHARED = "/mem/working", "/mem/shared"

Sort = Literal["written", "appended", "removed", "cleared"]


class Change(NamedTuple):
    seq: int
    at_ns: int
    path: str  # of the owner; the mount, where all of it was cleared
    sort: Sort
    version: int  # 0: the record does not say; one more than before
    size: int
    by: str


class State(NamedTuple):
    """An entry at some moment."""

    version: int
    size: int
    at_ns: int
    by: str
    pieces: tuple[int, ...]  # entries of the journal whose content, one after the other, is its content


def changes(journal: Journal, agent: str) -> Iterator[Change]:
    """All of them, in order: its own, those of whom it lent something for writing, and an operator's."""
    lent: dict[tuple[str, str], str] = {}  # to whom and under which name → what
    own = list(_of(journal, agent, lambda path: path if not _below(_SHARED, path) else None, lent))
    others: list[Iterator[Change]] = []
    for who in sorted({to for to, _ in lent}):
        others.append(_of(journal, who, at_owner(agent, who, lent), {}))
    yield from heapq.merge(own, *others)


def at_owner(owner: str, who: str, lent: dict[tuple[str, str], str]) -> Callable[[str], str | None]:
    """What a path of somebody is among the owner's, where it was lent that."""
    stem = f"{_SHARED}/{paths.owner_name(owner)}/"

    def named(path: str) -> str | None:
        if not path.startswith(stem):
            return None
        name, slash, rest = path.removeprefix(stem).partition("/")
        what = lent.get((who, name))
        return None if what is None else what + slash + rest

    return named


def _below(above: str, path: str) -> bool:
    return path == above or path.startswith(f"{above}/")


def _of(
    journal: Journal, agent: str, named: Callable[[str], str | None], lent: dict[tuple[str, str], str]
) -> Iterator[Change]:
    for entry, body in journal.scan(agent):
        if body is None or entry.code:
            continue
        try:
            if entry.kind == Kind.OUTCOME and entry.op in _CALLS:
                found = _called(entry, body, named, lent)
            elif entry.kind in (Kind.CHANGE, Kind.EXIT):
                found = _told(entry, decode_any(body), named, lent)
            else:
                continue
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError):
            continue  # of a release that kept it otherwise; `history` of what there is goes on
        if found:
            yield found


def _called(
    entry: Entry, body: bytes, named: Callable[[str], str | None], lent: dict[tuple[str, str], str]
) -> Change | None:
    kept = Recorded.of(body)
    asked: Any = decode_any(kept.request)
    if entry.op == _SHARE:
        _lend(asked, lent)
        return None
    path = named(asked["path"])
    if path is None or not path.startswith("/mem/"):
        return None
    if entry.op == _REMOVE:
        return Change(entry.seq, entry.wall_ns, path, "removed", 0, 0, entry.agent)
    value: Any = decode_any(kept.value)
    sort: Sort = "appended" if asked.get("mode") == "append" else "written"
    return Change(entry.seq, entry.wall_ns, path, sort, value["version"], value["size"], entry.agent)


def _told(
    entry: Entry, said: Any, named: Callable[[str], str | None], lent: dict[tuple[str, str], str]
) -> Change | None:
    if entry.kind == Kind.EXIT:
        cleared = said.get("forgets") and named(_WORKING)
        return Change(entry.seq, entry.wall_ns, _WORKING, "cleared", 0, 0, entry.agent) if cleared else None
    if said.get("event") != WRITTEN or (path := named(said["path"])) is None:
        return None
    if said["do"] == "share":
        _lend(said, lent)
        return None
    sort: Sort = (
        "removed" if said["do"] in ("remove", "erase") else "appended" if said["mode"] == "append" else "written"
    )
    return Change(entry.seq, entry.wall_ns, path, sort, said["version"], said["size"], said["by"])


def _lend(said: Any, lent: dict[tuple[str, str], str]) -> None:
    if "w" in said.get("rights", "r") and not said.get("end"):
        lent[said["to"], paths.split(said["path"])[1]] = said["path"]


class Past:
    """What there was, change by change."""

    def __init__(self) -> None:
        self.entries: dict[str, State] = {}
        self._last: dict[str, int] = {}  # version, also of what is removed

    def take(self, one: Change) -> Change:
        """The change, with its version where the record left that out."""
        before = self.entries.get(one.path)
        version = one.version or self._last.get(one.path, 0) + 1
        if one.sort == "cleared":
            for path in [path for path in self.entries if _below(one.path, path)]:
                del self.entries[path]
            return one
        if one.sort == "removed":
            self.entries.pop(one.path, None)
        else:
            pieces = (*before.pieces, one.seq) if before and one.sort == "appended" else (one.seq,)
            self.entries[one.path] = State(version, one.size, one.at_ns, one.by, pieces)
        self._last[one.path] = version
        return one._replace(version=version)


def past(journal: Journal, agent: str, *, seq: int | None = None, at_ns: int | None = None) -> dict[str, State]:
    """As it was after an entry of the journal, or at a moment of the wall clock."""
    found = Past()
    for one in changes(journal, agent):
        if (seq is not None and one.seq > seq) or (at_ns is not None and one.at_ns > at_ns):
            break
        found.take(one)
    return found.entries


def history(journal: Journal, agent: str, path: str) -> list[tuple[Change, State | None]]:
    """The changes of one path, oldest first, each with what there was then."""
    found, rows = Past(), list[tuple[Change, State | None]]()
    for one in changes(journal, agent):
        was = one.sort != "cleared" or path in found.entries
        told = found.take(one)
        if one.path == path or (one.sort == "cleared" and was and _below(one.path, path)):
            rows.append((told, found.entries.get(path)))
    return rows


def content(journal: Journal, blob: Callable[[bytes], bytes | None], state: State) -> tuple[bytes, bool] | None:
    """What the record has of it, and whether it is text. None: some of it is gone, or was never one body."""
    parts: list[bytes] = []
    text = False
    for seq in state.pieces:
        entry, body = journal.read(seq)
        if body is None:
            return None
        said: Any = decode_any(body) if entry.kind == Kind.CHANGE else decode_any(Recorded.of(body).request)
        data = said.get("data", b"")
        if digest := said.get("digest"):
            text, part = bool(said.get("text")), blob(digest)
        else:
            text, part = isinstance(data, str), data.encode() if isinstance(data, str) else data
        if part is None:
            return None
        parts.append(part)
    whole = b"".join(parts)
    return (whole, text) if len(whole) == state.size else None
