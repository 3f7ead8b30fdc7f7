"""Which patterns match a target, found by hashing along its segments.

Owns one tree per kind and action. Goes in, once: patterns, each with whom it is about and something to hang on it. Then
targets, with all that the caller goes by. Comes out: what hangs on every pattern that matches. A literal segment is one
look-up. Segments with a star lie by the lengths of their fixed beginning and end, so a thousand of one shape are one
look-up too. What stands before a middle `**` is walked forwards, what stands after it backwards from the end. No
regular expressions, and nothing is made per call but the result.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from agent_os.kernel.authority.patterns import Pattern, split

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("below", "deep", "globs", "here", "literal", "tails", "unusual")

    def __init__(self) -> None:
        self.literal: dict[str, _Node[T]] = {}
        self.globs: dict[tuple[int, int], dict[tuple[str, str], _Node[T]]] = {}  # by the lengths of both ends
        self.here: dict[str, list[T]] = {}  # of patterns that end here, by whom they are about
        self.below: dict[str, list[T]] = {}  # of subtrees, strictly below
        self.tails: _Node[T] | None = None  # after a middle `**`, from the end of the target backwards
        self.deep: _Node[T] | None = None  # after a middle `**` with a subtree at its end: may begin anywhere from here
        self.unusual = False  # one of the two is there

    def child(self, segment: str, wild: bool) -> "_Node[T]":
        if not wild:
            return self.literal.setdefault(segment, _Node())
        begin, _, end = segment.partition("*")
        return self.globs.setdefault((len(begin), len(end)), {}).setdefault((begin, end), _Node())


class Trie(Generic[T]):
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._root: _Node[T] = _Node()
        self._hosts: dict[str, _Node[T]] = {}  # of http: the paths below each exact host
        self._domains: dict[str, _Node[T]] = {}  # below each name that all names under it are meant by

    def add(self, pattern: Pattern, subject: str, thing: T, *, base: bool = False) -> None:
        """`base`: what a subtree hangs from is meant as well."""
        node = self._start(pattern.host)
        parts = list(zip(pattern.segments, pattern.wild, strict=True))
        gap = pattern.middle
        if gap is None:
            node = _descend(node, parts)
        else:
            node = _descend(node, parts[:gap])
            node.unusual = True
            if pattern.subtree:
                node.deep = node.deep or _Node()
                node = _descend(node.deep, parts[gap:])
            else:
                node.tails = node.tails or _Node()
                node = _descend(node.tails, parts[gap:][::-1])
        if pattern.subtree:
            node.below.setdefault(subject, []).append(thing)
        if not pattern.subtree or base or (self._kind == "http" and not parts):
            node.here.setdefault(subject, []).append(thing)

    def _start(self, host: str) -> _Node[T]:
        if self._kind != "http" or host == "*":
            return self._root
        if host.startswith("*."):
            return self._domains.setdefault(host[2:], _Node())
        return self._hosts.setdefault(host, _Node())

    def find(self, target: str, subjects: Sequence[str]) -> list[T]:
        """What hangs on every pattern that matches and is about one of these; some of it perhaps twice."""
        host, parts = split(self._kind, target)
        found: list[T] = []
        _collect(self._root, parts, 0, subjects, found)
        if host:
            if node := self._hosts.get(host):
                _collect(node, parts, 0, subjects, found)
            if self._domains:
                at = host.find(".")
                while at >= 0:
                    if node := self._domains.get(host[at + 1 :]):
                        _collect(node, parts, 0, subjects, found)
                    at = host.find(".", at + 1)
        return found


def _descend(node: _Node[T], parts: Sequence[tuple[str, bool]]) -> _Node[T]:
    for segment, wild in parts:
        node = node.child(segment, wild)
    return node


def _collect(node: _Node[T], parts: Sequence[str], at: int, subjects: Sequence[str], found: list[T]) -> None:
    """Along one branch in a loop, into others by recursion: most targets have one."""
    count = len(parts)
    while True:
        if node.unusual:
            if node.tails:
                _backwards(node.tails, parts, len(parts), at, subjects, found)
            if node.deep:
                for begin in range(at, count):
                    _collect(node.deep, parts, begin, subjects, found)
        if at == count:
            if node.here:
                _take(node.here, subjects, found)
            return
        if node.below:
            _take(node.below, subjects, found)
        part = parts[at]
        at += 1
        child = node.literal.get(part)
        if node.globs:
            size = len(part)
            for (begin, end), table in node.globs.items():
                if size >= begin + end and (other := table.get((part[:begin], part[size - end :]))):
                    _collect(other, parts, at, subjects, found)
        if child is None:
            return
        node = child


def _backwards(
    node: _Node[T], parts: Sequence[str], at: int, least: int, subjects: Sequence[str], found: list[T]
) -> None:
    """From the last segment towards `least`, up to where the beginning of the pattern has used them."""
    while True:
        if node.here:
            _take(node.here, subjects, found)
        if at == least:
            return
        at -= 1
        part = parts[at]
        child = node.literal.get(part)
        if node.globs:
            size = len(part)
            for (begin, end), table in node.globs.items():
                if size >= begin + end and (other := table.get((part[:begin], part[size - end :]))):
                    _backwards(other, parts, at, least, subjects, found)
        if child is None:
            return
        node = child


def _take(hung: dict[str, list[T]], subjects: Sequence[str], found: list[T]) -> None:
    for subject in subjects:
        if subject in hung:
            found += hung[subject]
