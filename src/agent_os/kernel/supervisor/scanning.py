"""The operator's manifests, as the kernel finds them when it boots: every one that can be is declared.

In: a folder. Out: what is declared from it is what lies there, and a list of what is wrong. A broken manifest is left
out, with whoever requires it, supervises it or is supervised by it; the rest is applied as one. An agent that an
earlier kernel declared from a file that is broken now is held: it is neither forgotten nor started by what it said
before. A folder that is not there says nothing.
"""

import asyncio
import dataclasses
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EINVAL
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor.specs import Spec
from agent_os.kernel.workspace.protected import within

if TYPE_CHECKING:
    from agent_os.kernel.supervisor.fleet import Fleet
    from agent_os.manifest.problems import Problem

_BOOT = "boot"
_SUFFIXES = (".agent.toml", ".agent.json")
# Of a text that may be broken anywhere: what it calls itself, and its children.
_NAME = re.compile(r"""^[ \t{]*"?name"?\s*[=:]\s*["']([^"']+)""", re.MULTILINE)
_CHILDREN = re.compile(r'children"?\s*[=:]\s*\[([^\]]*)')
_WORD = re.compile(r"""["']([^"']+)["']""")
log = logging.getLogger("agent_os.fleet")


class Folder:
    """Whose manifests are declared at boot."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self.place: Path | None = None
        self.left_out: list[str] = []  # what is wrong with manifests, one line each
        self.held: dict[str, str] = {}  # id → why it is not to start, whatever is wanted

    async def scan(self) -> None:
        """Declare what lies there, as far as it can be. Before anybody is started."""
        if self.place:
            self.left_out += await _scan(self._fleet, self.place)

    def hold(self, held: Mapping[str, str]) -> None:
        """None of these starts, until somebody declares it again."""
        self.held |= held
        self._fleet.declared()

    def let_go(self, specs: Iterable[Spec]) -> None:
        """These were declared, and nothing is wrong with them any more."""
        specs = list(specs)
        files = tuple(f"{one.file}:" for one in specs if one.file)
        self.left_out = [line for line in self.left_out if not line.startswith(files)]
        if found := self.held.keys() & {one.id for one in specs}:
            for one in found:
                del self.held[one]
            self._fleet.declared()

    def require_elsewhere(self, written: Iterable[Path]) -> None:
        """EINVAL: an agent that writes to the folder of manifests would say what runs at the next boot, with what
        rights."""
        folder = os.path.realpath(self.place) if self.place else None
        for place in map(os.path.realpath, written):
            if folder and (within(folder, place) or within(place, folder)):
                reason = f"{place} holds manifests that are declared at boot, and agents do not write these"
                raise EINVAL("workspace.refused", reason, hint='workspace = "overlay", or a folder of its own')


async def _scan(fleet: "Fleet", folder: Path) -> list[str]:
    """What is wrong, one line each; also on the record."""
    from agent_os.manifest.problems import ManifestError, Problem

    folder = Path(os.path.realpath(folder))  # as it is called by whoever is declared from it
    found = await asyncio.to_thread(_texts, folder)
    if found is None:
        return []
    files, problems = found
    broken, gone = {one.file for one in problems}, set[str]()
    while files:
        try:
            await fleet.apply_files(files, by=_BOOT)
            break
        except ManifestError as error:
            flaws = error.problems
        bad = {one.file for one in flaws} & files.keys() or set(files)
        texts = {file: files.pop(file) for file in bad}
        for file, child in _orphans(texts, files):
            flaws.append(Problem(child, 0, "", f"its supervisor, {file}, is left out"))
            texts[child] = files.pop(child)
        broken |= texts.keys()
        gone |= {match[1] for text in texts.values() if (match := _NAME.search(text))}
        problems += (_cause(one, gone) for one in flaws)
    told = [str(one) for one in dict.fromkeys(problems)]
    fleet.folder.hold(
        {
            one: "its manifest is broken"
            for one, spec in fleet.kept.specs.items()
            if not broken.isdisjoint((spec.file, spec.base))
        }
    )
    told += await _forget(fleet, folder)
    for line in told:
        log.warning("left out: %s", line)
    if told:
        body = frames.encode_body({"event": "scan", "folder": str(folder), "problems": told})
        await fleet.kernel.journal.record(Draft("kernel", Kind.CHANGE, body=body), sync=True)
    return told


def _texts(folder: Path) -> "tuple[dict[str, str], list[Problem]] | None":
    """The text of every manifest by its path, and those that cannot be read, or that somebody else may have written."""
    from agent_os.manifest.problems import Problem

    files: dict[str, str] = {}
    problems: list[Problem] = []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return None
    except OSError as error:
        return {}, [Problem(str(folder), 0, "", f"cannot be read: {error.strerror}")]
    if why := _foreign(folder.stat()):
        return {}, [Problem(str(folder), 0, "", why, f"chmod go-w {folder}")]
    for file in (folder / name for name in names if name.endswith(_SUFFIXES)):
        try:
            files[str(file)] = _text(file)
        except (OSError, ValueError) as error:
            problems.append(Problem(ascii(str(file))[1:-1], 0, "", getattr(error, "strerror", None) or str(error)))
    return files, problems


def _text(file: Path) -> str:
    """ValueError: why it is not taken."""
    from agent_os.manifest.reading import MOST_BYTES

    info = file.stat()
    why = _foreign(info)
    if not stat.S_ISREG(info.st_mode) or info.st_size > MOST_BYTES:
        why = f"is no file of at most {MOST_BYTES >> 10} KiB"
    if not str(file).isprintable():
        why = "has a name that is no plain text"
    if why:
        raise ValueError(why)
    return file.read_text(encoding="utf-8-sig")


def _foreign(info: os.stat_result) -> str:
    """Why it is not the operator's word: whoever else can write there would say what runs with what rights."""
    if info.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {info.st_uid}, and not to you"
    if info.st_mode & 0o002 or (info.st_mode & 0o020 and info.st_gid != os.getegid()):
        return "can be written by others"
    return ""


def _orphans(broken: dict[str, str], files: dict[str, str]) -> list[tuple[str, str]]:
    """(broken file, file of a child) of everybody whose supervisor cannot be: below root it would hold more."""
    named = {match[1]: file for file, text in files.items() if (match := _NAME.search(text))}
    found: list[tuple[str, str]] = []
    line = list(broken.items())
    for file, text in line:
        words = [word for listed in _CHILDREN.findall(text) for word in _WORD.findall(listed)]
        for name in words:
            if child := named.pop(name.rpartition("/")[2], None):
                found.append((file, child))
                line.append((child, files[child]))
    return found


def _cause(problem: "Problem", gone: set[str]) -> "Problem":
    """Whom it misses may be there, and left out."""
    name = problem.message.removeprefix("there is no agent ")
    return dataclasses.replace(problem, message=f"{name} is left out", hint="") if name in gone else problem


async def _forget(fleet: "Fleet", folder: Path) -> list[str]:
    """Whoever was declared from a file of this folder that is gone. What others need stays, and is told."""
    kept = [(one, spec.file) for one, spec in fleet.kept.specs.items() if spec.file and spec.base == str(folder)]
    gone = [one for one, file in kept if not await asyncio.to_thread(os.path.lexists, file)]
    if not gone:
        return []
    try:
        await fleet.delete(gone, _BOOT)
    except EBUSY as error:
        return [f"{folder}: a manifest is gone, and {error.reason}"]
    return []
