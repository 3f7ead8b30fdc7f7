"""Which files of a run's mounts a rule forbids: found before it starts, so that the sandbox can cover them.

A program opens files of a mounted folder without asking anybody, so what may not be read must not be there. In: where
the run's mounts come from and what they are called inside, and a question about one path. Out: the paths to cover, and
what was there when we looked. Reads directories; changes nothing. A file is covered under all its names: a second hard
link, the target of a link, what lies in a folder that a link leads to, and the same folder mounted twice lead to it as
well. A folder that we cannot look into is covered as a whole.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from msgspec import Struct

from agent_os.abi.errors import EBUSY, EINVAL
from agent_os.kernel.aliases import Alias, Inside, Place, Track, aliases
from agent_os.kernel.authority.patterns import Pattern
from agent_os.kernel.vfs.paths import below, composed, join

MOST = 1000  # masks of one run
_SHOWN = 3
_GONE = -1  # no file's inode: moved while we looked, so that no sandbox will find what it was to cover
_MOST_ROUNDS, _TICK_S = 50, 0.01
_NEW = ("\ue000", "\ue000/\ue000")  # what nobody has a rule for by name
Forbids = Callable[[str, bool], bool]  # a path inside, and whether case makes no difference there
How = Literal["hide", "freeze", "keep"]  # not to be read; not to be written; not to be removed
_Identity = tuple[int, int]


class Covered(NamedTuple):
    path: str  # inside
    how: How = "hide"
    host: str = ""
    device: int = 0
    inode: int = 0  # 0: what is there inside may be something else

    @property
    def fell_off(self) -> bool:
        """Somebody outside put another file in its place: what lay over the one before does not lie over that."""
        if not self.inode:
            return False
        known = _identity(self.host)
        return known is not None and known[:2] != (self.device, self.inode)


def at_host(inside: str, host: str, how: How = "hide") -> Covered:
    """With what is there now."""
    try:
        info = os.lstat(host)
    except (FileNotFoundError, NotADirectoryError):
        return Covered(inside, how, host, _GONE, _GONE)
    except OSError:  # a path longer than Linux takes
        return Covered(inside, how, host)
    return Covered(inside, how, host, info.st_dev, info.st_ino)


class _Part(Struct, frozen=True):
    """A place, or a folder in it, under the names that it is looked at by."""

    place: Place
    start: str  # relative to its source
    names: tuple[str, ...]


class _Entry(Struct, frozen=True):
    part: _Part
    inner: str  # relative to the source of its place; empty for the source itself
    link: bool
    folder: bool

    @property
    def path(self) -> str:
        source = self.part.place.source
        return os.path.join(source, self.inner) if self.inner else str(source)

    @property
    def inside(self) -> str:
        return join(self.part.place.at, self.inner)

    def called(self) -> list[str]:
        rest = below(self.part.start, self.inner) if self.part.start else self.inner
        return [composed(join(name, rest or "")) for name in self.part.names]


def covered(places: Sequence[Place], forbids: Forbids, patterns: Sequence[Pattern], how: How = "hide") -> list[Covered]:
    """What to cover. `patterns`: of the rules that forbid, for whomever. EINVAL: it is more than a sandbox can bear."""
    look, track = _Look(places, forbids, how), Track(patterns)
    for place in places:
        # Programs bring large folders along that most rules have nothing to say about.
        if not place.source.is_dir() or any(map(track.state, place.names)):
            look.through(_Part(place, "", place.names))
        else:
            look.left.append(place)
    look.through_what_links_lead_to()
    for alias in aliases(places, patterns, look.links):
        for part in _parts(places, alias):
            look.through(part)
    look.for_more_names()
    return _sorted(look.covered) if how == "keep" else _outermost(look.covered)


class _Look:
    def __init__(self, places: Sequence[Place], forbids: Forbids, how: How) -> None:
        self._places, self._forbids, self._inside = places, forbids, Inside(places)
        self._how: How = how
        self._twice = _overlap(places)
        self._same: set[_Identity] = set()  # what is covered and has further names, or may have
        self.covered: dict[str, Covered] = {}
        self.links: set[str] = set()  # that the run can see, inside
        self.left: list[Place] = []  # no rule can mean what is in them by its own name

    def through(self, part: _Part) -> None:
        top = _Entry(part, part.start, link=False, folder=True)
        if self._how == "freeze" and self._is_meant(top):  # or new files could be made in it
            self._cover(top)
        for entry, hidden in _walk(part, self._is_meant, whole=self._how != "keep"):
            if entry.link and not hidden:
                self.links.add(entry.inside)
            elif entry.link:
                self._follow(entry)
            elif hidden:
                if hidden != "above":
                    self._cover(entry)
                if (known := _identity(entry.path)) and (self._twice or (known[2] > 1 and not entry.folder)):
                    self._same.add(known[:2])

    def through_what_links_lead_to(self) -> None:
        """What lies there has the names of those links, and of links found there."""
        leads = (real for link in self.links if self.left for real in self._inside.leads(link))
        tops = [place.at for place in self.left]
        near = (any(below(at, real) is not None or below(real, at) is not None for at in tops) for real in leads)
        for place in self.left if any(near) else ():
            self.through(_Part(place, "", place.names))

    def for_more_names(self) -> None:
        for place in self._places if self._same else ():
            for entry, hidden in _walk(_Part(place, "", ()), lambda entry: entry.inside in self.covered):
                if not hidden and not entry.link and (known := _identity(entry.path)) and known[:2] in self._same:
                    self._cover(entry)

    def _is_meant(self, entry: _Entry) -> bool:
        names, whole = entry.called(), self._how == "freeze" and entry.folder
        if any(self._is_forbidden(name, False, whole) for name in names):
            return True
        top = str(entry.part.place.source)
        return any(self._is_forbidden(name, True, whole) for name in names) and _folds(entry.path, top)

    def _is_forbidden(self, name: str, folds: bool, whole: bool) -> bool:
        """`whole`: a folder is meant, too, if whatever may be made in it is."""
        return self._forbids(name, folds) or (whole and all(self._forbids(join(name, new), folds) for new in _NEW))

    def _follow(self, entry: _Entry) -> None:
        """A link cannot be covered; what it leads to can, where the agent sees that."""
        for real in self._inside.leads(entry.inside):
            self._same.update(known[:2] for known in map(_identity, self._inside.hosts(real)) if known)

    def _cover(self, entry: _Entry) -> None:
        overlaid = self._is_overlaid(entry)
        one = Covered(entry.inside, self._how) if overlaid else at_host(entry.inside, entry.path, self._how)
        self.covered[entry.inside] = one
        if len(self.covered) > MOST:
            shown = ", ".join(list(self.covered)[:_SHOWN])
            reason = f"rules forbid more than {MOST:,} files that this agent would see ({shown}, …)"
            raise EINVAL("policy.masks", reason, hint="a rule for their folder covers all in it at once: /work/DIR/**")

    def _is_overlaid(self, entry: _Entry) -> bool:
        """Whether the run may see something else there: another mount, or a layer over this one."""
        own, path = entry.part.place, entry.inside
        others = (place for place in self._places if place is not own and len(place.at) >= len(own.at))
        return any(below(place.at, path) is not None for place in others)


def _parts(places: Sequence[Place], alias: Alias) -> Iterator[_Part]:
    for place in places:
        if (rest := below(place.at, alias.real)) is not None:
            yield _Part(place, rest, (alias.name,))
        elif (inner := below(alias.real, place.at)) is not None:
            yield _Part(place, "", (join(alias.name, inner),))


def _folds(path: str, top: str) -> bool:
    """Whether case makes no difference there: another spelling leads to the same thing."""
    while len(path) > len(top):
        above, name = os.path.split(path)
        if (other := name.swapcase()) != name:
            with suppress(OSError):
                return os.path.samestat(os.lstat(os.path.join(above, other)), os.lstat(path))
            return False
        path = above
    return False


def _walk(part: _Part, hides: Callable[[_Entry], bool], whole: bool = True) -> Iterator[tuple[_Entry, str]]:
    """Every entry of a part, links not followed, and whether it is hidden: `itself`, with its folder (`above`), or
    not at all. A folder that cannot be looked into, because of its mode or of a path longer than Linux takes, comes
    once more, as `unseen`: whoever sees it may have other rights or stand nearer. Of a folder its own top is not asked
    about: it was ordered, and what is forbidden in it is covered one by one."""
    source = part.place.source
    if not os.path.isdir(source):
        only = _Entry(part, "", link=False, folder=False)
        yield only, "itself" if hides(only) else ""
        return
    folders = _Folders(str(source), part.start)
    for above, covered in folders.todo():
        try:
            found = folders.listed(above, covered)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as problem:
            if not above:
                reason = f"{source} cannot be searched for what rules forbid: {problem.strerror}"
                raise EINVAL("policy.unseen", reason, hint=f"ls -ld {source}") from None
            yield _Entry(part, above, link=False, folder=True), "above" if covered else "unseen"
            continue
        for name, link, folder, inode in found:
            inner = f"{above}/{name}" if above else name
            entry = _Entry(part, inner, link, folder)
            hidden = "above" if covered else "itself" if hides(entry) else ""
            yield entry, hidden
            if folder:
                folders.add(inner, inode, bool(hidden) and whole)


class _Folders:
    """Those still to be listed. What is renamed meanwhile might never be met: not yet there, and there no more. So
    a folder that has changed since it was listed is listed again, and what is new in it, too."""

    def __init__(self, source: str, start: str) -> None:
        self._source, self._todo = source, [(start, False)]
        self._met: set[tuple[str, int]] = set()
        self._listed: dict[str, tuple[bool, tuple[int, ...]]] = {}  # whether covered, and how it was

    def todo(self) -> Iterator[tuple[str, bool]]:
        for _ in range(_MOST_ROUNDS):
            while self._todo:
                yield self._todo.pop()
            changed = [inner for inner, (_, before) in self._listed.items() if self._stamp(inner) != before]
            if not changed:
                return
            self._todo = [(inner, self._listed.pop(inner)[0]) for inner in changed]
            time.sleep(_TICK_S)
        reason = f"folders in {self._source} are renamed again and again while we look for what rules forbid"
        raise EBUSY("policy.moving", reason, hint="try again when nobody writes there")

    def listed(self, inner: str, covered: bool) -> list[tuple[str, bool, bool, int]]:
        """Name, whether it is a link, whether a folder, inode."""
        before, now = self._stamp(inner), time.time()
        with os.scandir(os.path.join(self._source, inner)) as entries:
            found = [(one.name, one.is_symlink(), one.is_dir(follow_symlinks=False), one.inode()) for one in entries]
        # One more change within the same tick of the clock would not show.
        self._listed[inner] = covered, before if now - before[-1] / 1e9 > _TICK_S else ()
        return found

    def add(self, inner: str, inode: int, covered: bool) -> None:
        if (inner, inode) not in self._met:
            self._met.add((inner, inode))
            self._todo.append((inner, covered))

    def _stamp(self, inner: str) -> tuple[int, ...]:
        try:
            info = os.stat(os.path.join(self._source, inner), follow_symlinks=not inner)
        except OSError:
            return (0,)
        return info.st_dev, info.st_ino, info.st_mtime_ns


def _identity(path: str) -> tuple[int, int, int] | None:
    """Device, inode and number of names."""
    with suppress(OSError):
        info = os.lstat(path)
        return info.st_dev, info.st_ino, info.st_nlink
    return None


def _overlap(places: Sequence[Place]) -> bool:
    real = [f"{os.path.realpath(place.source)}/" for place in places]
    return any(one.startswith(other) for i, one in enumerate(real) for j, other in enumerate(real) if i != j)


def _sorted(covered: dict[str, Covered]) -> list[Covered]:
    return [covered[path] for path in sorted(covered)]


def _outermost(covered: dict[str, Covered]) -> list[Covered]:
    """What lies below a covered folder is covered with it."""
    return [one for one in _sorted(covered) if not any(above in covered for above in _above(one.path))]


def together(found: Sequence[Covered]) -> tuple[Covered, ...]:
    """Of all that is to be done to a path, the strictest; nothing is left to be done to what nobody can see."""
    hidden = {one.path for one in found if one.how == "hide"}
    frozen = {one.path for one in found if one.how == "freeze"}
    left = [one for one in found if one.how == "hide" or not ({one.path, *_above(one.path)} & hidden)]
    return tuple(one for one in left if one.how != "keep" or not ({one.path, *_above(one.path)} & frozen))


def uncovered(wanted: Sequence[Covered], done: Sequence[Covered]) -> list[str]:
    """Of all that is to be covered, what does not lie under such a cover, or a stricter one, that is there."""
    hidden = {one.path for one in done if one.how == "hide"}
    frozen = hidden | {one.path for one in done if one.how == "freeze"}
    kept = {one.path for one in done if one.how == "keep"}
    enough = {"hide": hidden, "freeze": frozen, "keep": frozen}
    left = (one for one in wanted if not ({one.path, *_above(one.path)} & enough[one.how]))
    return [one.path for one in left if one.how != "keep" or one.path not in kept]


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
