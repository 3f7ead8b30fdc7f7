"""Workspaces: where an agent's writes go until somebody decides about them.

Owns `<state>/work/<name>/`: `meta.json`, `upper/` (the agent's layer), `work/` (overlayfs' own), `lock` (held while the
agent runs), `intent.json` (while and after a commit), `base` (copy mode). In: a project directory that
`sources` accepted. Out: a `Workspace` with `diff`, `commit`, `discard`. Never mounts anything: the sandbox does.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import asdict, replace

from agent_os.abi.errors import EACCES, EBUSY, ECONFLICT, EEXIST, EINVAL, EIO, ENOENT, ENOSPC
from agent_os.kernel import beneath
from agent_os.kernel.workspace import changes, protected, snapshot
from agent_os.kernel.workspace.changes import Change, CopyBase
from agent_os.kernel.workspace.landing import Intent, Landing, Report, select, write_json

MODES = ("overlay", "copy", "bind", "tmpfs")
_KEPT = ("overlay", "copy")  # modes that leave something to decide about
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}(?:~[a-z0-9][a-z0-9_.-]{0,62})?")  # ~: the / of an agent's
_ABANDONED_NS = 60 * 10**9  # a workspace this old is held by its agent, or by nobody
_CLOCK_REALTIME_COARSE = 5  # the clock that stamps files; not named by the standard library


class Meta(Struct, frozen=True):
    name: str
    project: str
    mode: str
    created: int  # ns, taken before the mount: a project entry changed later is a conflict
    inode: int  # of the project directory
    uid: int  # its owner
    gid: int
    agent_uid: int | None  # root mode: the host uid the layer belongs to
    copied: int = 0  # ns; copy mode: when the copy was finished
    made: int = 0  # ns; one that began as another is younger than the project it was `created` for
    snapshot: bool = False  # kept under a name of its own, even when there is nothing in it
    agent: str = ""  # whose writes these are, where that is not its name

    @property
    def born(self) -> int:
        return self.made or self.created


def new_name(command: str) -> str:
    """A name for a workspace of this command, such as `fix-3f2a`."""
    return next(new_names(command))


def new_names(command: str) -> Iterator[str]:
    """One after the other, longer and longer, for whoever finds that the first are taken."""
    words = command.split()
    stem = Path(words[0]).stem.lower() if words else ""
    slug = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:24].strip("-") or "agent"
    for tries in count():
        yield f"{slug}-{secrets.token_hex(2 + tries // 4)}"


class Workspaces:
    """All workspaces of one state directory."""

    def __init__(self, state: Path) -> None:
        self.root = state / "work"

    def create(self, project: Path, *, name: str, mode: str, agent_uid: int | None) -> "Workspace":
        """A new workspace over a project that `check_source` accepted. It exists whole, or not at all."""
        if mode not in MODES:
            raise EINVAL("workspace.mode", f"{mode!r} is no workspace mode", hint=f"one of {', '.join(MODES)}")

        def fill(home: int) -> Meta:
            with beneath.closing(beneath.open_root(project)) as lower:
                return _fill(home, lower, project, name, mode, agent_uid)

        return self._build(project, name, agent_uid, fill)

    def copy(self, origin: "Workspace", *, name: str, agent_uid: int | None, keep: bool = False) -> "Workspace":
        """A new workspace that begins as another is now; `keep` makes it a snapshot. The caller sees to it that the
        other one does not change meanwhile. What the project changes since *that* one began is a conflict here, too."""
        with origin.opened() as (origin_home, _, upper):
            facts = {"name": name, "agent_uid": agent_uid, "made": time.time_ns(), "snapshot": keep}
            facts["agent"] = origin.agent if keep else ""
            fill = partial(_fill_from, origin_home, upper, origin, agent_uid, facts)
            return self._build(origin.project, name, agent_uid, fill)

    def hand_over(self, origin: "Workspace", agent_uid: int | None) -> "Workspace":
        """The same workspace, for an agent that has another uid in this life: its old one is somebody else's by now.
        The caller holds it."""
        with origin.opened() as (origin_home, _, upper):
            fill = partial(_fill_from, origin_home, upper, origin, agent_uid, {"agent_uid": agent_uid})
            return self._build(origin.project, origin.name, agent_uid, fill, instead=True)

    def require_free(self, name: str) -> None:
        """Raises if there cannot be a new workspace of this name."""
        if not _NAME.fullmatch(name):
            raise EINVAL(
                "workspace.name",
                f"{changes.escape(name)!r} is no workspace name: lower case letters, digits and dashes, at most 64",
            )
        if (self.root / name).exists():
            raise _taken(name)

    def _build(
        self,
        project: Path,
        name: str,
        agent_uid: int | None,
        fill: Callable[[int], Meta],
        *,
        instead: bool = False,
    ) -> "Workspace":
        """`instead`: in the place of the one that has the name, which is gone then."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not instead:
            self.require_free(name)
        draft = f".new-{secrets.token_hex(6)}"
        with beneath.closing(beneath.open_root(self.root)) as root:
            self._sweep(root)
            # Root mode: the launcher's uid must pass through on its way to upper/ and work/; the parent stays closed.
            os.mkdir(draft, 0o700 if agent_uid is None else 0o711, dir_fd=root)
            try:
                with (
                    beneath.closing(beneath.open_directory(root, draft)) as home,
                    beneath.closing(_create_lock(home)),  # a concurrent sweep leaves this draft alone
                ):
                    write_json(home, "meta.json", asdict(fill(home)))
                    if instead:
                        beneath.exchange(root, draft, name)
                    else:
                        beneath.rename(root, draft, name, replace=False)  # it exists from here on
            except OSError as error:
                beneath.remove_tree(root, draft)
                raise _explained(error, project, name) from error
            except BaseException:
                beneath.remove_tree(root, draft)
                raise
            if instead:
                beneath.remove_tree(root, draft)
        return self.open(name)

    def _sweep(self, root: int) -> None:
        """Remove what a crash left half-made, half-removed, or without anything in it to decide about."""
        for left in os.listdir(root):
            if left.startswith((".gone-", ".new-")) and _abandoned(root, left):
                with suppress(FileNotFoundError):  # another sweep was here first
                    beneath.remove_tree(root, left)
        for workspace in self.list():
            old = time.time_ns() - workspace.meta.born > _ABANDONED_NS and not workspace.meta.snapshot
            if old and workspace.is_empty and not workspace.running:
                with suppress(EBUSY, ENOENT):
                    workspace.discard()

    def open(self, name: str) -> "Workspace":
        path = self.root / name
        if not _NAME.fullmatch(name) or not path.is_dir():
            known = [workspace.name for workspace in self.list()]
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "agentctl run -- CMD makes one"
            raise ENOENT("workspace.unknown", f"there is no workspace {changes.escape(name)}", hint=hint)
        return Workspace(path, _read_meta(path))

    def list(self) -> "list[Workspace]":
        """Oldest first. One that cannot be read is left out here and explained by `open`."""
        found: list[Workspace] = []
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if _NAME.fullmatch(path.name):
                with suppress(EIO):
                    found.append(Workspace(path, _read_meta(path)))
        return sorted(found, key=lambda workspace: (workspace.meta.born, workspace.name))

    def latest(self, directory: Path | None = None) -> "Workspace":
        """The newest workspace with something to decide about; with `directory`, of the project it is in."""
        here = os.path.realpath(directory) if directory is not None else None
        for workspace in reversed(self.list()):
            if workspace.meta.mode in _KEPT and (here is None or protected.within(here, workspace.meta.project)):
                return workspace
        where = f" for {changes.escape(here)}" if here else ""
        raise ENOENT("workspace.none", f"there is no workspace{where}", hint="agentctl run -- CMD makes one")


class Workspace(Struct, frozen=True):
    """One kept workspace. The sandbox mounts `upper` and `work`; after the run only they and the project count."""

    path: Path
    meta: Meta

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def agent(self) -> str:
        """The name of the agent whose writes these are."""
        return self.meta.agent or self.name

    @property
    def project(self) -> Path:
        return Path(self.meta.project)

    @property
    def upper(self) -> Path:
        return self.path / "upper"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @contextmanager
    def hold(self, *, shared: bool = False) -> Generator[None]:
        """While the agent, a commit or a discard runs, or, shared, while it is copied. EBUSY when somebody else holds
        it; ends with the process."""
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise ENOENT("workspace.unknown", f"the workspace {self.name} is gone") from None
        with beneath.closing(fd):
            try:
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EBUSY(
                    "workspace.running",
                    f"the agent of {self.name} is still running",
                    hint=f"wait for its end, or: agentctl kill {self.name}",
                ) from None
            yield

    @property
    def is_empty(self) -> bool:
        """Nothing was ever written to it. Says nothing of a copy, which starts out full."""
        return self.meta.mode == "overlay" and not any(self.upper.iterdir())

    @property
    def running(self) -> bool:
        with beneath.closing(beneath.open_root(self.path.parent)) as root:
            return _locked(root, self.path.name)

    def wrote(self, path: str) -> bool:
        """Whether the layer has an entry of its own at this path, links not followed."""
        with beneath.closing(beneath.open_root(self.upper)) as upper:
            info = beneath.stat_beneath(upper, path)
        return info is not None and not stat.S_ISCHR(info.st_mode)

    def diff(self) -> list[Change]:
        """What the agent changed and the project does not have yet. May be called while the agent runs."""
        with self.opened() as (home, lower, upper):
            return self._diff(Intent(home), lower, upper)

    def _diff(self, intent: Intent, lower: int, upper: int) -> list[Change]:
        base = _read_base(self) if self.meta.mode == "copy" else None
        return [change for change in changes.compare(lower, upper, base=base) if not intent.landed(change)]

    def patch(self, change: Change) -> str:
        """A unified diff of one text file, safe to print."""
        with self.opened() as (_, lower, upper):
            return changes.patch(lower, upper, change)

    def commit(
        self,
        *,
        allow_protected: bool = False,
        paths: Iterable[str] | None = None,
        dry_run: bool = False,
        expect: str | None = None,
        progress: Callable[[Change], None] | None = None,
        judge: Callable[[Change], Change] = lambda change: change,
    ) -> Report:
        """Write the changes to the project; the workspace stays until `discard`. `judge` marks what rules refuse.

        `expect` is the `digest` of the diff a person approved: anything else is refused. An entry that conflicts or is
        refused stops nobody but itself and what depends on it. After a crash, call it again: it resumes.
        """
        with self.hold(), self.opened() as (home, lower, upper):
            intent = Intent(home)
            found = self._diff(intent, lower, upper)
            if expect is not None and digest(found) != expect:
                raise ECONFLICT(
                    "workspace.changed", f"{self.name} is not what was shown", hint=f"agentctl diff {self.name}"
                )
            found = [judge(change) for change in found]
            landing = Landing(lower, upper, intent, self.meta.created, progress, Report(dry_run=dry_run))
            landing.plan(found, wanted=select(found, paths), allow_protected=allow_protected)
            if dry_run:
                landing.report.committed = [step.change for step in landing.steps]
                return landing.report
            return landing.land()

    def discard(self) -> None:
        """Remove the workspace and all in it. The project was never touched, so this is the rollback too."""
        with self.hold(), beneath.closing(beneath.open_root(self.path.parent)) as root:
            gone = f".gone-{secrets.token_hex(6)}"
            beneath.rename(root, self.path.name, gone)  # nobody sees half of it
            beneath.remove_tree(root, gone)

    def keep_as(self, name: str) -> "Workspace":
        """Make it a snapshot: kept under this name until it is committed or discarded."""
        Workspaces(self.path.parent.parent).require_free(name)
        with self.hold(), beneath.closing(beneath.open_root(self.path.parent)) as root:
            beneath.rename(root, self.path.name, name, replace=False)
            meta = replace(self.meta, name=name, snapshot=True, agent=self.agent)
            with beneath.closing(beneath.open_directory(root, name)) as home:
                write_json(home, "meta.json", asdict(meta))
        return Workspace(self.path.parent / name, meta)

    @contextmanager
    def opened(self) -> Generator[tuple[int, int, int]]:
        """The workspace's own directory, the project, and the agent's layer."""
        if self.meta.mode not in _KEPT:
            raise EINVAL(
                "workspace.mode", f"{self.name} is a {self.meta.mode} workspace: it keeps no changes to decide about"
            )
        try:
            lower = beneath.open_root(self.project)
        except OSError as error:
            raise _explained(error, self.project, self.name) from error
        with beneath.closing(lower):
            if os.fstat(lower).st_ino != self.meta.inode:
                raise ECONFLICT(
                    "workspace.changed", f"{self.project} is no longer the directory {self.name} was made for"
                )
            with (
                beneath.closing(beneath.open_root(self.path)) as home,
                beneath.closing(beneath.open_directory(home, "upper")) as upper,
            ):
                yield home, lower, upper


def digest(found: Iterable[Change]) -> str:
    """Names one exact diff: what was shown is what gets committed."""
    lines = "\0".join(f"{change.path}\0{change.signature}\0{change.sha256_old}" for change in found)
    return hashlib.sha256(os.fsencode(lines)).hexdigest()


def _fill(home: int, lower: int, project: Path, name: str, mode: str, agent_uid: int | None) -> Meta:
    """Everything in a new workspace but its meta.json."""
    created = time.time_ns()
    info = os.fstat(lower)
    copied = 0
    if mode in _KEPT:
        for part in ("upper", "work"):
            os.mkdir(part, 0o700, dir_fd=home)
        with beneath.closing(beneath.open_directory(home, "upper")) as upper:
            if mode == "copy":
                _write_base(home, snapshot.copy_project(lower, upper, agent_uid))
            # The root the agent sees takes its mode from here.
            os.fchmod(upper, stat.S_IMODE(info.st_mode) & changes.PERMISSIONS)
            snapshot.give(upper, agent_uid)
        with beneath.closing(beneath.open_directory(home, "work")) as work:
            snapshot.give(work, agent_uid)
        copied = _settled() if mode == "copy" else 0
    return Meta(
        name, os.path.realpath(project), mode, created, info.st_ino, info.st_uid, info.st_gid, agent_uid, copied
    )


def _fill_from(
    origin_home: int,
    origin_upper: int,
    origin: "Workspace",
    agent_uid: int | None,
    facts: dict[str, Any],
    home: int,
) -> Meta:
    """Everything in a workspace that begins as another, but its meta.json."""
    if (intent := Intent(origin_home)).steps:  # what it has committed is known to go with it
        intent.save_to(home)
    for part in ("upper", "work"):
        os.mkdir(part, 0o700, dir_fd=home)
    with beneath.closing(beneath.open_directory(home, "work")) as work:
        snapshot.give(work, agent_uid)
    with beneath.closing(beneath.open_directory(home, "upper")) as upper:
        copied = snapshot.copy_layer(origin_upper, upper, agent_uid)
        if origin.meta.mode != "copy":
            return replace(origin.meta, **facts)
        # A copy tells what its agent changed by the time of the change: that has to stay so.
        base = _read_base(origin)
        _write_base(home, sorted(base.paths))
        finished = _settled()
        looked = ((path, beneath.stat_beneath(origin_upper, path)) for path in copied)
        snapshot.stamp(upper, [path for path, info in looked if info and not base.holds(path, info)])
    return replace(origin.meta, copied=finished, **facts)


def _settled() -> int:
    """Now, once the clock that stamps files has passed it: whatever is written later bears a later time."""
    now = time.time_ns()
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= now:
        time.sleep(0.001)
    return now


def _write_base(home: int, paths: Iterable[str]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open("base", flags, 0o600, dir_fd=home), "wb") as file:
        file.writelines(os.fsencode(path) + b"\0" for path in paths)


def _read_base(workspace: Workspace) -> CopyBase:
    raw = (workspace.path / "base").read_bytes()
    return CopyBase(frozenset(os.fsdecode(path) for path in raw.split(b"\0") if path), workspace.meta.copied)


def _read_meta(path: Path) -> Meta:
    try:
        with beneath.closing(beneath.open_root(path)) as home:
            return Meta(**cast("dict[str, Any]", json.loads(beneath.read_beneath(home, "meta.json", 1 << 20))))
    except (OSError, ValueError, TypeError) as error:
        raise EIO(
            "workspace.damaged", f"the workspace {path.name} cannot be read: {error}", hint=f"rm -r {path}"
        ) from None


def _create_lock(home: int) -> int:
    fd = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=home)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def _abandoned(root: int, draft: str) -> bool:
    """Whether nobody works on it any more. One without a lock, or whose lock nobody holds, may have been made this very
    moment: the lock comes after the folder, and is taken after it is there."""
    try:
        made = os.stat(draft, dir_fd=root, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return False
    return time.time_ns() - made > _ABANDONED_NS and not _locked(root, draft)


def _locked(root: int, name: str) -> bool:
    try:
        fd = beneath.open_beneath(root, f"{name}/lock", os.O_RDONLY | os.O_NOFOLLOW, resolve=beneath.PHYSICAL)
    except OSError:
        return False
    with beneath.closing(fd):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _taken(name: str) -> EEXIST:
    hint = f"agentctl commit {name} or agentctl discard {name}, or take another name"
    return EEXIST("workspace.exists", f"there is already a workspace {name}", hint=hint)


def _explained(error: OSError, project: Path, name: str) -> Exception:
    """The family's error for a failed system call, saying which path."""
    where = project / error.filename if isinstance(error.filename, str) and error.filename != str(project) else project
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ENOSPC("workspace.space", f"no room for the workspace {name}", hint="make room in the state directory")
    if error.errno == errno.EEXIST:
        return _taken(name)
    if error.errno == errno.ENOENT:
        return ENOENT("workspace.missing", f"{changes.escape(str(where))} does not exist any more")
    if error.errno in (errno.EACCES, errno.EPERM):
        return EACCES("workspace.unreadable", f"{changes.escape(str(where))} cannot be read")
    return EIO("workspace.failed", f"{changes.escape(str(where))}: {error.strerror}")
