"""Other names of files: those that lead through a link, as far as rules can tell them from the first name.

In: where the files of a run come from and what rules call them, the patterns of those rules, and the links that were
found there. Out: pairs; all that lies below `real` is also called `name/…`. Whoever covers what is there needs links to
folders only; whoever judges what is to be written needs those to files as well, and those to what is not there yet.
Reads links; changes nothing.

Links can be a maze whose names are without number. But all that a pattern knows of a folder's name is how many of its
segments that name has used up. So a folder is entered once for each such state, however many names lead there, and not
at all by a name that no pattern can tell from the folder's own.
"""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.patterns import Pattern
from agent_os.kernel.vfs.paths import below, composed, join
from agent_os.kernel.workspace.protected import is_protected, ways

MOST = 10_000  # aliases of one run
_MOST_LOOKED = 1_000_000  # names of links on the way to those
_MOST_LINKS = 40  # on the way to one folder, as in Linux
State = frozenset[tuple[int, int]]  # which pattern, and how many of its segments are used up
_NOWHERE: State = frozenset()


class Place(NamedTuple):
    source: Path
    at: str  # where it is mounted
    names: tuple[str, ...]  # everything that rules may call it


class Alias(NamedTuple):
    name: str  # as a rule may call it
    real: str  # inside


class Telling(Protocol):
    """What makes one name of a folder different from another."""

    def state(self, name: str) -> State: ...

    def lasting(self, names: Iterable[str]) -> State: ...


class Track:
    """How far along their way patterns are at a name: what could still match below it. `whole`: or it itself."""

    def __init__(self, patterns: Iterable[Pattern], *, whole: bool = False) -> None:
        known = dict.fromkeys(patterns)
        # Where case makes no difference, a rule makes none either.
        self._patterns = [(one, False) for one in known] + [(one.folded(), True) for one in known]
        self._ends = [None if one.subtree or whole else len(one.segments) for one, _ in self._patterns]
        self._start: State = frozenset((number, 0) for number in range(len(self._patterns)))
        self._known: dict[tuple[State, str], State] = {}  # many folders have entries of the same name

    def state(self, name: str) -> State:
        state = self._start
        for segment in filter(None, name.split("/")):
            known = self._known.get((state, segment))
            if known is None:
                known = self._known[state, segment] = self._step(state, composed(segment))
            state = known
        return state

    def _step(self, state: State, segment: str) -> State:
        folded, after = segment.casefold(), set[tuple[int, int]]()
        for number, at in state:
            pattern, folds = self._patterns[number]
            for used in pattern.after(at, folded if folds else segment):
                if used != self._ends[number]:  # below that it matches nothing
                    after.add((number, used))
        return frozenset(after)

    def lasting(self, names: Iterable[str]) -> State:
        """What stays true of everything below these, whatever it is called: it lies in a gap, or in a subtree."""
        whole = _NOWHERE.union(*map(self.state, names))
        return frozenset((number, at) for number, at in whole if at in self._patterns[number][0].after(at, ""))


class Tools:
    """As `Track`, for what tools execute or read as configuration. What they find by a name is below it."""

    def state(self, name: str) -> State:
        return frozenset((0, way) for way in ways(name))

    def lasting(self, names: Iterable[str]) -> State:
        return _NOWHERE


class Inside:
    """The files of a run as it will see them, before it does."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = sorted(reversed(places), key=lambda place: len(place.at), reverse=True)

    def _holding(self, path: str) -> Iterator[tuple[Place, str]]:
        """The innermost mount that holds a path; several, if they lie over each other."""
        at = None
        for place in self._places:
            rest = below(place.at, path)
            if rest is not None and at in (None, place.at):
                at = place.at
                yield place, rest

    def hosts(self, path: str) -> list[str]:
        return [os.path.join(place.source, rest) if rest else str(place.source) for place, rest in self._holding(path)]

    def names(self, path: str) -> list[str]:
        return [join(name, rest) for place, rest in self._holding(path) for name in place.names]

    def is_folder(self, path: str) -> bool:
        return any(map(os.path.isdir, self.hosts(path))) or any(below(path, place.at) for place in self._places)

    def leads(self, link: str) -> set[str]:
        """Where a link leads: inside, and as the operator sees it, where the run has that as well."""
        found = {self._follow(link)}
        for real in map(os.path.realpath, self.hosts(link)):
            for place in self._places:
                rest = below(os.path.realpath(place.source), real)
                if rest is not None:
                    found.add(join(place.at, rest))
        return {one for one in found if one}

    def _follow(self, path: str) -> str | None:
        """None: nowhere."""
        todo, done, links = path.split("/")[::-1], "", 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                done = done.rpartition("/")[0]
                continue
            target = self._read(f"{done}/{name}")
            if target is None:
                done = f"{done}/{name}"
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            done = "" if target.startswith("/") else done
            todo += target.split("/")[::-1]
        return done or "/"

    def _read(self, path: str) -> str | None:
        for host in self.hosts(path):
            with suppress(OSError):
                return os.readlink(host)
        return None


def aliases(places: Sequence[Place], patterns: Iterable[Pattern], links: Iterable[str]) -> list[Alias]:
    """Of folders. `links`: where they are, inside. EINVAL: they lead in more ways than anybody could look at."""
    return _aliases(places, Track(patterns), links, only_folders=True)


def _aliases(places: Sequence[Place], track: Telling, links: Iterable[str], *, only_folders: bool) -> list[Alias]:
    inside, links = Inside(places), sorted(links)
    found: list[Alias] = []
    known: set[tuple[str, State]] = set()
    if not links:
        return found
    everywhere = frozenset[tuple[int, int]].intersection(*(track.lasting(place.names) for place in places))
    leads: dict[str, list[str]] = {}
    todo = [(link, name) for link in links for name in inside.names(link)]
    looked = 0
    while todo:
        link, name = todo.pop()
        state = track.state(name)
        if state <= everywhere:
            continue
        if link not in leads:
            leads[link] = [real for real in inside.leads(link) if not only_folders or inside.is_folder(real)]
        for real in leads[link]:
            own = _NOWHERE.union(*map(track.state, inside.names(real)))
            if state <= own or (real, state) in known:
                continue
            known.add((real, state))
            found.append(Alias(name, real))
            more = [(link, join(name, below(real, link) or "")) for link in _within(links, real)]
            todo += more
            looked += len(more)
            if len(found) > MOST or looked > _MOST_LOOKED:
                reason = f"links lead in more than {MOST:,} ways to what rules are about ({name}, …)"
                raise EINVAL("policy.links", reason, hint="let the rules name the folders that the links lead to")
    return found


def _within(links: Sequence[str], folder: str) -> Iterator[str]:
    stem = f"{folder.rstrip('/')}/"
    for at in range(bisect_left(links, stem), len(links)):
        if not links[at].startswith(stem):
            return
        yield links[at]


class OtherNames:
    """What rules may call the entries of a project, and which links would give them further names."""

    def __init__(self, project: Path, patterns: Sequence[Pattern]) -> None:
        self._place = Place(project, str(project), ("/work", str(project)))
        self._patterns, self._track = patterns, Track(patterns)

    @cached_property
    def _links(self) -> list[str]:
        return sorted(_links(str(self._place.source)))

    @cached_property
    def _aliases(self) -> list[Alias]:
        """That a rule may be about."""
        track = Track(self._patterns, whole=True)
        return _aliases([self._place], track, self._links, only_folders=False) if self._patterns else []

    @cached_property
    def _of_tools(self) -> list[Alias]:
        """That a tool may look for, relative to the project."""
        return _aliases([self._place._replace(names=("/",))], Tools(), self._links, only_folders=False)

    def of(self, path: str) -> list[str]:
        """Of an entry, there or yet to come, by its path in the project."""
        names = [join(name, path) for name in self._place.names]
        return list(map(composed, [*names, *self._through(self._aliases, path)]))

    def is_protected(self, path: str) -> bool:
        """Whether a link gives it a name that tools execute or read as configuration."""
        return any(map(is_protected, self._through(self._of_tools, path)))

    def _through(self, found: Sequence[Alias], path: str) -> Iterator[str]:
        inside = join(self._place.at, path)
        for alias in found:
            if (rest := below(alias.real, inside)) is not None:
                yield join(alias.name, rest)

    def would_gain(self, link: str) -> bool:
        """Whether a link at that path could make something else of the project bear a name that a rule is about. What
        is true of every folder there tells nothing of this one."""
        here = _NOWHERE.union(*(self._track.state(join(name, link)) for name in self._place.names))
        return not here <= self._track.lasting(self._place.names)


def _links(top: str) -> Iterator[str]:
    todo = [top]
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for one in entries:
                if one.is_symlink():
                    yield one.path
                elif one.is_dir(follow_symlinks=False):
                    todo.append(one.path)
