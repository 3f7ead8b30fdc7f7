"""Several manifests as one fleet: read together, and checked against each other.

In: files and directories. Out: what could be read, and every problem of every file, with its place: two agents of one
id, names that nobody has, circles of waiting. Nothing of it is applied here. What starts in which wave is the
supervisor's question; this only says, without a kernel, whether the answer can exist.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from agent_os.manifest.checks import Found
from agent_os.manifest.model import AgentManifest
from agent_os.manifest.names import PARTS, resolved
from agent_os.manifest.problems import ManifestError, Problem, nearest
from agent_os.manifest.reading import SUFFIX, Read, from_json, from_toml, load

_SUFFIXES = (SUFFIX, ".agent.json")
_WAITS = ("requires", "binds_to", "after")


@dataclass
class Fleet:
    read: dict[str, Read] = field(default_factory=dict[str, Read])  # by id
    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[Problem] = field(default_factory=list[Problem])
    by_file: dict[str, Read] = field(default_factory=dict[str, Read])

    @property
    def manifests(self) -> list[AgentManifest]:
        return [one.manifest for one in self.read.values()]

    def settle(self) -> list[AgentManifest]:
        """All of it, or one error with all that is wrong: a broken fleet is not half applied."""
        if self.problems:
            raise ManifestError(sorted(self.problems))
        return self.manifests


def read_fleet(paths: Sequence[str | os.PathLike[str]], *, known: Sequence[str] = (), whole: bool = True) -> Fleet:
    """`known`: ids that are there already. `whole`: whoever is neither known nor here does not exist."""
    fleet = Fleet()
    _collect(fleet, ((str(file), partial(load, file)) for file in _files(paths, fleet)))
    return _checked(fleet, known, whole=whole)


def read_texts(files: Mapping[str, str], *, known: Sequence[str] = ()) -> Fleet:
    """The same from what somebody else has read, by file."""
    fleet = Fleet()
    _collect(fleet, ((file, partial(_of_text, text, file)) for file, text in files.items()))
    return _checked(fleet, known, whole=True)


def _of_text(text: str, file: str) -> Read:
    return (from_json if file.endswith(".json") else from_toml)(text, file)


def _collect(fleet: Fleet, sources: Iterable[tuple[str, Callable[[], Read]]]) -> None:
    for file, reading in sources:
        try:
            read = reading()
        except ManifestError as error:
            fleet.problems += error.problems
            continue
        fleet.warnings += read.warnings
        fleet.by_file[file] = read
        first = fleet.read.setdefault(read.manifest.id, read)
        if first is not read:
            other = first.located(Found(("name",), "")).file
            fleet.problems.append(read.located(Found(("name",), f"{read.manifest.id} is in {other} already")))


def _checked(fleet: Fleet, known: Sequence[str], *, whole: bool) -> Fleet:
    if whole:
        _check_names(fleet, {*fleet.read, *PARTS, *known})
    fleet.problems += _circles(fleet.read)
    return fleet


def _files(paths: Sequence[str | os.PathLike[str]], fleet: Fleet) -> Iterator[Path]:
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        found = sorted(one for one in path.iterdir() if one.name.endswith(_SUFFIXES))
        if not found:
            fleet.problems.append(Problem(str(path), 0, "", f"holds no manifest, which is called NAME{SUFFIX}"))
        yield from found


def _check_names(fleet: Fleet, known: set[str]) -> None:
    for read in fleet.read.values():
        for key, number, name in _named(read.manifest):
            if resolved(name, read.manifest.namespace, known):
                continue
            hint = nearest(name, {one.partition("/")[2] for one in known} | known)
            problem = read.located(Found((*key, number), f"there is no agent {name}", hint))
            must = key[-1] in ("requires", "binds_to", "children")
            (fleet.problems if must else fleet.warnings).append(problem)


def _named(manifest: AgentManifest) -> Iterator[tuple[tuple[str, ...], int, str]]:
    for table, key in (*(("dependencies", key) for key in (*_WAITS, "wants")), ("supervision", "children")):
        for number, name in enumerate(getattr(getattr(manifest, table), key)):
            yield (table, key), number, name
    for number, name in enumerate(manifest.health.on_failure):
        yield ("health", "on_failure"), number, name


def _circles(read: Mapping[str, Read]) -> Iterator[Problem]:
    """Each circle once, told at one of its members. What waits for a circle is none."""
    waits = {id: set(_waits_for(one.manifest, read)) for id, one in read.items()}
    while True:
        try:
            TopologicalSorter(waits).prepare()
            return
        except CycleError as error:
            # Each in this list is waited for by the next; a person asks the other way round.
            members: list[str] = error.args[1][:0:-1]
            first = members.index(min(members))
            circle = [*members[first:], *members[:first]]
            told = " waits for ".join([*circle, circle[0]])
            yield read[circle[0]].located(Found(("dependencies",), f"a circle: {told}", "take one of these out"))
            waits = {id: others - set(members) for id, others in waits.items() if id not in members}


def _waits_for(manifest: AgentManifest, read: Mapping[str, Read]) -> Iterator[str]:
    for key in _WAITS:
        for name in getattr(manifest.dependencies, key):
            if other := resolved(name, manifest.namespace, read):
                yield other
