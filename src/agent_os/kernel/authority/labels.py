"""Labels: what an agent has taken in, as far as the kernel saw it pass.

A process is a black box, so what it emits carries everything it has read. A label says whether any of that was
untrusted, where it came from, and which classes of data are in it; two labels meet by `join`, which only ever adds. In:
labels of what is read, of parents, of mounts. Out: the label of an agent now, as words for journal entries and as bytes
for the store. What has no label is untrusted. Which call moves what, and where it may go, is said in `flows.py`.

Programs write in folders without asking, so no single file there has a label; the folder has one, of all that anybody
carried who could write in it. Whoever sees the folder carries that as well, from the moment that it is true.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from agent_os.drivers.store import Put
from agent_os.kernel.calls import Need

Integrity = Literal["trusted", "untrusted"]
PRIVATE = "private"  # built in: whatever lies in mounts, the workspace and memory
MANY = "many"
MOST_SOURCES = 32
LABELS = "labels"  # the bucket: agent → its label
FOLDERS = "labels.folders"  # the bucket: folder of the host → the label of what may lie there
_LONGEST_SOURCE = 128
_SOURCE, _CLASS = "from:", "class:"
_NONE: frozenset[str] = frozenset()


class Label(Struct, frozen=True):
    integrity: Integrity = "trusted"
    sources: frozenset[str] = _NONE  # at most 32, then only "many"
    classes: frozenset[str] = _NONE

    @property
    def untrusted(self) -> bool:
        return self.integrity == "untrusted"

    def join(self, other: "Label") -> "Label":
        """Untrusted wins, sets unite. Nothing new gives the very same object back: most calls bring nothing new."""
        if self.holds(other):
            return self
        if other.holds(self):
            return other
        integrity: Integrity = "untrusted" if self.untrusted or other.untrusted else "trusted"
        return Label(integrity, _bounded(self.sources | other.sources), self.classes | other.classes)

    def holds(self, other: "Label") -> bool:
        """Whether joining `other` would change nothing."""
        if other is CLEAN or other is self:
            return True
        known = other.sources <= self.sources or MANY in self.sources
        return known and other.classes <= self.classes and (self.untrusted or not other.untrusted)

    def words(self) -> list[str]:
        """As journal entries carry it. Never empty: an empty list is an entry without a label."""
        if self is CLEAN:
            return ["trusted"]
        sources = (f"{_SOURCE}{one}" for one in sorted(self.sources))
        return [self.integrity, *sources, *(f"{_CLASS}{one}" for one in sorted(self.classes))]


CLEAN = Label()
UNLABELLED = Label("untrusted", frozenset({"unlabelled"}))


def untrusted(source: str, *classes: str) -> Label:
    return Label("untrusted", frozenset({source[:_LONGEST_SOURCE]}), frozenset(classes))


def joined(labels: Iterable[Label]) -> Label:
    together = CLEAN
    for one in labels:
        together = together.join(one)
    return together


def of_words(words: Sequence[str]) -> Label:
    """The label that an entry carries. What cannot be read, or is not there, is untrusted."""
    if not words or words[0] not in ("trusted", "untrusted"):
        return UNLABELLED
    sources: set[str] = set()
    classes: set[str] = set()
    for word in words[1:]:
        if word.startswith(_SOURCE):
            sources.add(word.removeprefix(_SOURCE))
        elif word.startswith(_CLASS):
            classes.add(word.removeprefix(_CLASS))
        else:
            return UNLABELLED
    integrity: Integrity = "trusted" if words[0] == "trusted" else "untrusted"
    if integrity == "trusted" and not sources and not classes:
        return CLEAN
    return Label(integrity, _bounded(frozenset(sources)), frozenset(classes))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[str]).decode


def packed(label: Label) -> bytes:
    """As it lies in the store beside what it is the label of."""
    return _encode(label.words())


def unpacked(data: bytes | None) -> Label:
    if data is None:
        return UNLABELLED
    try:
        return of_words(_decode(data))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return UNLABELLED


def _bounded(sources: frozenset[str]) -> frozenset[str]:
    return frozenset({MANY}) if len(sources) > MOST_SOURCES or MANY in sources else sources


# Where data comes from.


class Covers(Protocol):
    """A capability as a rule names one."""

    def covers(self, need: Need) -> bool: ...

    def reaches(self, kind: str, action: str, folder: str) -> bool:
        """Whether it may be about something below there."""
        ...


class SourceRule(Protocol):
    """`[[source]]`: the operator's word for what comes from there, instead of the default."""

    @property
    def what(self) -> Sequence[Covers]: ...

    @property
    def integrity(self) -> Integrity: ...

    @property
    def classes(self) -> frozenset[str]: ...


def of_source(need: Need, rules: Sequence[SourceRule] = ()) -> Label:
    """The label of what a call with this need brings back, unless what is read carries its own."""
    for rule in rules:
        if any(one.covers(need) for one in rule.what):
            return Label(rule.integrity, _sources(rule, _named(need)), rule.classes)
    if need.kind in _TRUSTED_KINDS or any(_below(need.target, base) for base in _TRUSTED_PLACES):
        return CLEAN
    return untrusted(_named(need), *((PRIVATE,) if need.kind in _PRIVATE_KINDS else ()))


def _sources(rule: SourceRule, name: str) -> frozenset[str]:
    return frozenset({name}) if rule.integrity == "untrusted" else _NONE


# A model says what its prompt made it say, and the prompt is the caller's own. A secret never comes to who uses it.
_TRUSTED_KINDS = frozenset({"llm", "secret"})
_TRUSTED_PLACES = ("/policy", "/proc/self")  # the operator's own text; what the kernel knows of the reader itself
_PRIVATE_KINDS = frozenset({"file", "mem"})


def of_mount(path: str, rules: Sequence[SourceRule] = ()) -> Label:
    """What a program may read of a mount without asking, so all of it is taken as read when it starts: also what only
    a part of it is. A rule behind one about the whole mount says nothing."""
    need, parts = Need("file", "read", path), CLEAN
    for rule in rules:
        if any(one.covers(need) for one in rule.what):
            break
        if any(one.reaches("file", "read", path) for one in rule.what):
            parts = parts.join(Label(rule.integrity, _sources(rule, _named(need)), rule.classes))
    return of_source(need, rules).join(parts)


def is_declared(path: str, rules: Sequence[SourceRule]) -> bool:
    """Whether the operator has said what all of a mount is."""
    return any(one.covers(Need("file", "read", path)) for rule in rules for one in rule.what)


def _named(need: Need) -> str:
    """One name for a whole mount, host or tool: a label holds few, and files are many."""
    if need.kind in ("file", "mem"):
        depth = 3 if need.target.startswith("/mem/") else 2
        return f"{need.kind}:{'/'.join(need.target.split('/')[:depth])}"
    return f"{need.kind}:{need.target.partition('/')[0] if need.kind == 'http' else need.target}"


def _below(path: str, base: str) -> bool:
    return path == base or path.startswith(f"{base}/")


# Who carries what now.


class Folder(Struct, frozen=True):
    """What an agent has of a folder of the host, without asking anybody."""

    path: str
    reads: bool  # not where the operator said what lies there: that is its label then
    writes: bool


class Labels:
    """The label of every agent that lives. It belongs to the id, not to the process: only a new life begins anew."""

    def __init__(self, stored: Iterable[tuple[str, bytes]] = (), folders: Iterable[tuple[str, bytes]] = ()) -> None:
        self._of = {agent: unpacked(data) for agent, data in stored}
        self._folders = {path: unpacked(data) for path, data in folders}
        self._sees: dict[str, Sequence[Folder]] = {}

    def of(self, agent: str) -> Label:
        """An agent that nobody has labelled is untrusted, like anything else without a label."""
        return self._of.get(agent, UNLABELLED)

    def begin(self, agent: str, inherited: Label, mounts: Iterable[Label] = ()) -> list[Put]:
        """A life begins: with its parent's label (the operator's is clean) and that of all it can read at once."""
        self._of[agent] = inherited.join(joined(mounts))
        return [Put(LABELS, agent, packed(self._of[agent]))]

    def take_in(self, agent: str, label: Label) -> list[Put]:
        """Something reached the agent. What the store must hold with the entry that tells of it; mostly nothing."""
        before = self.of(agent)
        now = before.join(label)
        if now is before:
            return []
        self._of[agent] = now
        return [Put(LABELS, agent, packed(now)), *self._spread(agent)]

    def surround(self, agent: str, folders: Sequence[Folder], mounts: Iterable[Label] = ()) -> list[Put]:
        """From now on it sees these: what they hold, it carries, and what it carries, they may hold."""
        self._sees[agent] = folders
        left = (label for path, label in self._folders.items() if any(_is_shown(path, one) for one in folders))
        return [*self.take_in(agent, joined([*left, *mounts])), *self._spread(agent)]

    def _spread(self, agent: str) -> list[Put]:
        """Until nobody learns anything new, which is soon: labels only grow."""
        puts: list[Put] = []
        for folder in self._sees.get(agent, ()):
            if folder.writes:
                puts += self.left(folder.path, self.of(agent))
        return puts

    def left(self, path: str, label: Label) -> list[Put]:
        """Somebody who carried that may have written there."""
        before = self._folders.get(path, CLEAN)
        if before.holds(label):
            return []
        self._folders[path] = before.join(label)
        puts = [Put(FOLDERS, path, packed(self._folders[path]))]
        for other, folders in list(self._sees.items()):
            if any(_is_shown(path, one) for one in folders):
                puts += self.take_in(other, label)
        return puts

    def of_folder(self, path: str) -> Label:
        """What anybody left there."""
        return self._folders.get(path, CLEAN)

    def written_by(self, path: str) -> str | None:
        """Somebody who can write what lies there just now, without asking anybody."""
        for agent, folders in self._sees.items():
            if any(one.writes and _below(path, one.path) for one in folders):
                return agent
        return None

    def forget(self, agent: str) -> list[Put]:
        self._of.pop(agent, None)
        self._sees.pop(agent, None)
        return [Put(LABELS, agent, None)]

    def __iter__(self) -> Iterator[tuple[str, Label]]:
        return iter(self._of.items())


def _is_shown(path: str, folder: Folder) -> bool:
    return folder.reads and (_below(path, folder.path) or _below(folder.path, path))
