"""From paths to a policy: reads the files of all layers and puts them together.

The only part that touches the disk. A file that is named and cannot be read is an error, like one that cannot be
understood: nothing is skipped. A project's file is a stranger's: it is read beneath the project's directory, through no
link, and only a regular file of a bounded size.
"""

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import EINVAL
from agent_os.kernel import beneath
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.problems import Problem, Where, refuse
from agent_os.kernel.authority.policy.rules import MOST_BYTES, Layer, Mode, PolicyFile

if TYPE_CHECKING:
    from agent_os.kernel.authority.policy.security import Tools

ORGANISATION = Path("/etc/agent-os/policy.toml")
OPERATOR = "policy.toml"  # in the kernel's home
ROLES = ("root", "supervisor", "service", "worker", "user")
PROJECT_FILES = (".agents/security.md", ".agents/policy.toml")


class Place(Struct, frozen=True):
    layer: Layer
    path: Path
    shown: str = ""  # how errors and records call it; the path itself unless given


class Text(NamedTuple):
    """A file of a project, as it was read; or what a manifest says, as a file would."""

    name: str  # as in PROJECT_FILES; of a manifest whatever else
    data: bytes
    tried: bool = False  # its rules are recorded and not enforced, in the one run that an operator said so of


def common(home: Path | None, organisation: Path = ORGANISATION) -> list[Place]:
    """The files that hold for everybody, those that there are, from the top."""
    usual = [Place(Layer.ORGANISATION, organisation)]
    if home:
        usual.append(Place(Layer.OPERATOR, home / OPERATOR))
    return [place for place in usual if _is_there(place.path)]


def _is_there(path: Path) -> bool:
    """Or may be: what cannot be looked at is read, and that says why it cannot."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def texts_of(project: Path) -> list[Text]:
    """What a project says of itself. Beneath its directory: no link, not even a folder's, is followed."""
    found: list[Text] = []
    problems: list[Problem] = []
    with beneath.closing(beneath.open_root(project)) as root:
        for name in PROJECT_FILES:
            try:
                found.append(Text(name, beneath.read_beneath(root, name, MOST_BYTES + 1)))
            except FileNotFoundError:
                continue
            except OSError as error:
                links = "it lies behind a link, which is not followed"
                unlike = {errno.ELOOP: links, errno.EXDEV: links, errno.EINVAL: "it is a link, or no file at all"}
                why = unlike.get(error.errno or 0, f"it cannot be read: {error.strerror}")
                problems.append(Problem(Where(str(project / name), 0), why))
    if problems:
        refuse(problems)
    return found


def of_project(texts: Sequence[Text], project: str, tools: "Tools | None" = None) -> tuple[PolicyFile, ...]:
    """EINVAL `policy.invalid`: the problems of all of them. What is no file of the project is its agent's manifest."""
    files: list[PolicyFile] = []
    problems: list[Problem] = []
    for text in texts:
        own = text.name in PROJECT_FILES
        layer, file = (Layer.PROJECT, f"{project}/{text.name}") if own else (Layer.MANIFEST, text.name)
        try:
            found = parse(text.data, file, layer, tools)
        except EINVAL as error:
            problems += problems_of(error)
        else:
            files.append(replace(found, mode=Mode.SHADOW, tried=True) if text.tried else found)
    if problems:
        refuse(problems)
    return tuple(files)


def load(places: Iterable[Place], tools: "Tools | None" = None, base: Policy | None = None) -> Policy:
    """EINVAL `policy.invalid`: the problems of all files together."""
    files: list[PolicyFile] = []
    problems: list[Problem] = []
    for place in places:
        try:
            files.append(parse(contents(place), place.shown or str(place.path), place.layer, tools))
        except EINVAL as error:
            problems += problems_of(error)
    if problems:
        refuse(problems)
    return Policy(files, base)


def parse(data: bytes, file: str, layer: Layer, tools: "Tools | None" = None) -> PolicyFile:
    """A rule file, or what a project says in Markdown or YAML."""
    if not file.endswith((".md", ".yaml", ".yml")):
        from agent_os.kernel.authority.policy.reading import read  # most kernels have no rules

        return read(data, file, layer, roles=ROLES)
    if layer is not Layer.PROJECT:
        refuse([Problem(Where(file, 0), "this format is a project's; other layers are written in TOML")])
    from agent_os.kernel.authority.policy.security import read_security

    return read_security(data, file, tools or {})


def operators(data: bytes, target: Path) -> list[PolicyFile]:
    """The operator's file as `data` would make it; none where there is no data."""
    return [parse(data, str(target), Layer.OPERATOR)] if data else []


def contents(place: Place) -> bytes:
    shown = place.shown or str(place.path)
    stranger = os.O_NOFOLLOW if place.layer >= Layer.PROJECT else 0
    try:
        # Not blocking: whoever opens a pipe waits for its other end.
        fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | stranger)
    except OSError as error:
        refuse([Problem(Where(shown, 0), f"cannot be read: {error.strerror}")])
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        refuse([Problem(Where(shown, 0), "is not a regular file")])
    with os.fdopen(fd, "rb") as file:
        return file.read(MOST_BYTES + 1)


def problems_of(error: EINVAL) -> list[Problem]:
    """What `refuse` put together, apart again."""
    listed = error.detail.get("problems")
    if not isinstance(listed, list):
        return [Problem(Where("policy", 0), error.reason)]
    return [Problem(Where(one["file"], one["line"]), one["what"]) for one in listed]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
