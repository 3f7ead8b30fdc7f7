"""What the record holds of one entry of an agent's memory, so that it can be erased.

In: the journal, whose memory and which path. Out: the entries whose bodies have its content in them (what was written
and what was read, by its owner, by those it was lent to, by operators), the hashes of contents that lie apart, and who
wrote those entries. Looks at every entry once, in a thread; changes nothing. What somebody carried on from there into a
message, a prompt or another entry is found by `left` where it is the same bytes, and is not erased.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from agent_os.abi.doors import Memory
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import AgentOSError
from agent_os.abi.syscalls import BY_NAME, BY_REQUEST
from agent_os.kernel.journal import Journal
from agent_os.kernel.memories import WRITTEN, at_owner
from agent_os.kernel.recorded import Recorded, decode_any
from agent_os.kernel.table import qualified
from agent_os.kernel.vfs import paths
from agent_os.kernel.vfs.paths import normalise

LEAST = 8  # bytes of a content that is looked for elsewhere: fewer are anywhere
_READ, _WRITE, _OPEN, _EXEC, _SHARE = (
    BY_NAME[name].number for name in ("SYS_READ", "SYS_WRITE", "SYS_OPEN", "SYS_EXEC", "SYS_SHARE")
)
_MEMORY = BY_REQUEST[Memory].number


class Traces(Struct):
    seqs: list[int] = field(default_factory=list[int])
    digests: set[bytes] = field(default_factory=set[bytes])
    agents: set[str] = field(default_factory=set[str])  # whose record they are


def traces(journal: Journal, owner: str, path: str) -> Traces:
    """In the order of the journal: a share comes before what was read by it, and a file is open before it is read."""
    return _Search(owner, path).all_of(journal)


class _Search:
    def __init__(self, owner: str, path: str) -> None:
        self._owner, self._path = owner, path
        self._found = Traces()
        self._lent: dict[tuple[str, str], str] = {}  # to whom and under which name → what
        self._named: dict[str, Callable[[str], str | None]] = {}  # by borrower: what its paths are at the owner's
        self._open: dict[tuple[str, int], str] = {}  # by agent and handle

    def all_of(self, journal: Journal) -> Traces:
        for entry, body in journal.scan():
            if body is None or not entry.body:
                continue
            try:
                holds = self._holds(entry, body)
            except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, AgentOSError):
                continue  # no call, or of a release that kept it otherwise
            if holds:
                self._found.seqs.append(entry.seq)
                self._found.agents.add(entry.agent)
        return self._found

    def _holds(self, entry: Entry, body: bytes) -> bool:
        if entry.op == _MEMORY:
            return self._operators(body)
        if entry.agent != self._owner and entry.agent not in self._named:
            return False
        if entry.kind == Kind.CHANGE:
            return self._told(decode_any(body))
        if entry.op not in (_READ, _WRITE, _OPEN, _EXEC, _SHARE):
            return False
        kept = Recorded.of(body)
        asked: Any = decode_any(kept.request)
        if entry.op == _SHARE:
            self._lend(asked)
            return False
        if entry.op == _OPEN:
            opened: Any = decode_any(kept.value)
            self._open[entry.agent, opened["handle"]] = asked["path"]
            return False
        if entry.op == _EXEC:
            asked = asked.get("params", {})
        target = asked.get("path") or self._open.get((entry.agent, asked.get("handle")))
        return isinstance(target, str) and self._is_it(entry.agent, target) and self._noted(asked)

    def _is_it(self, agent: str, target: str) -> bool:
        whole = normalise(target, agent)
        return (whole if agent == self._owner else self._named[agent](whole)) == self._path

    def _noted(self, said: Mapping[str, Any]) -> bool:
        if isinstance(digest := said.get("digest"), bytes):
            self._found.digests.add(digest)
        return True

    def _told(self, said: Any) -> bool:
        """Of the owner, about what an operator did."""
        if said.get("event") != WRITTEN:
            return False
        if said.get("do") == "share":
            self._lend(said)
        return said.get("do") == "write" and said.get("path") == self._path and self._noted(said)

    def _operators(self, body: bytes) -> bool:
        """What an operator asked for: as it was announced, and as it was answered."""
        told: Any = decode_any(body)
        said: Any = decode_any(Recorded.of(body).request) if isinstance(told, list) else told["request"]
        if said.get("do") != "write" or qualified(said["agent"]) != self._owner:
            return False
        return normalise(said["path"], self._owner) == self._path and self._noted(said)

    def _lend(self, said: Any) -> None:
        to = qualified(said["to"])
        self._lent[to, paths.split(said["path"])[1]] = said["path"]
        self._named[to] = at_owner(self._owner, to, self._lent)


def left(journal: Journal, contents: Iterable[bytes]) -> list[tuple[int, str]]:
    """Entries that still hold one of these contents, with whose they are."""
    wanted = [one for one in set(contents) if len(one) >= LEAST]
    each = ((entry, body) for entry, body in journal.scan() if wanted and body)
    return [(entry.seq, entry.agent) for entry, body in each if any(one in body for one in wanted)]
