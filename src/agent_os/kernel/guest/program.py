"""What a guest, any unmodified command, needs to see of the host.

Owns the way from a command line to a `Program`: what to run, which host paths to bind read-only, its PATH. Reads the
file system and never runs, mounts or changes anything; how installations are laid out is `prefixes`' business.
"""

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field

from agent_os.abi.errors import EACCES, EINVAL, ENOENT
from agent_os.kernel.guest import prefixes
from agent_os.kernel.guest.prefixes import SYSTEM, Private, within

_DEFAULT_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_NESTING_MAX = 5  # scripts whose interpreter is a script: the Linux kernel's own limit

_BUILTINS = frozenset(
    "alias bg cd eval exec exit export fg jobs popd pushd set shopt source ulimit umask unset".split()
)
_SHELL_SYNTAX = re.compile(r"[|&;<>$`*?\n]")
INTERPRETERS = re.compile(r"(python|pypy|node|ruby|perl|php|bash|sh|dash|zsh)[\d.]*$")


class Program(Struct, frozen=True):
    argv: tuple[str, ...]  # the first word is an absolute path that exists inside
    prefixes: tuple[Path, ...]  # directories and single files, each to be bound read-only at this very path
    path: str
    notes: tuple[str, ...] = ()  # for the operator: what the guest will miss, and how to give it
    roots: tuple[Path, ...] = ()  # installations the program belongs to, those already visible included


def resolve(
    argv: Sequence[str],
    *,
    cwd: Path,
    path: str,
    home: Path,
    visible: Sequence[Path],
    private: Sequence[Path] = (),
) -> Program:
    """Find the command as execvp would and work out what it needs. `private` names more places never to show."""
    if not argv or not argv[0]:
        raise EINVAL("command.missing", "No command was given.", hint="agentctl run -- python my_agent.py")
    if any("\0" in word for word in argv):
        raise EINVAL("command.malformed", "The command line contains a NUL byte; no program can be given one.")
    search = _Search(cwd, path, tuple(map(Path, visible)) + SYSTEM, Private(home, private))
    start = search.program(argv)
    bound = _outermost(search.directories | search.files, search.visible)
    notes = [*search.notes, *_script_outside(argv, cwd, [*search.visible, *bound])]
    return Program(
        argv=(str(start), *argv[1:]),
        prefixes=bound,
        path=search.guest_path(bound),
        notes=tuple(dict.fromkeys(notes)),
        roots=tuple(search.roots),
    )


class _Search(Struct):
    """One resolution under way: what was found so far."""

    cwd: Path
    path: str
    visible: tuple[Path, ...]
    private: Private
    directories: set[Path] = field(default_factory=set[Path])
    files: set[Path] = field(default_factory=set[Path])
    roots: dict[Path, None] = field(default_factory=dict[Path, None])  # in the order found
    stand_ins: dict[str, str] = field(default_factory=dict[str, str])  # PATH entry: where its command really is
    notes: list[str] = field(default_factory=list[str])

    def program(self, argv: Sequence[str]) -> Path:
        found = _locate(argv[0], self.cwd, self.path)
        if isinstance(found, _Missing):
            raise _not_runnable(argv, found, self.path)
        start = self._reach(found, movable=True)
        if start is None:
            raise EACCES(
                "command.private",
                f"{found} lies in a place that is never shown to an agent.",
                hint="copy the program into the workspace",
            )
        self._interpreter(found, _NESTING_MAX)
        return start

    def _interpreter(self, script: Path, depth: int) -> None:
        line = prefixes.shebang(script)
        if line is None or depth == 0:
            return
        self._run_by(script, str(self.cwd / line.interpreter), depth)  # the kernel searches no PATH for it
        if line.command is not None:
            self._run_by(script, line.command, depth)

    def _run_by(self, script: Path, name: str, depth: int) -> None:
        found = _locate(name, self.cwd, self.path)
        if isinstance(found, _Missing):
            ending = " (the line ends in a carriage return: a Windows text file)" if name.endswith("\r") else ""
            raise ENOENT(
                "command.interpreter",
                f"{script} is a script for {name.strip()!r}, which is not there or cannot run{ending}.",
                hint=f"head -1 {shlex.quote(str(script))}",
            )
        self._reach(found, movable="/" not in name)
        self._interpreter(found, depth - 1)

    def _reach(self, found: Path, *, movable: bool) -> Path | None:
        """Make one executable reachable inside and return the path it is reached by; None if it must stay hidden.

        Each stage of its chain of links either is inside anyway, or belongs to an installation that gets bound, or is
        a stray link. A stray link at the start is skipped if the caller can use another path (`movable`): bound as a
        file it would be no link any more, and Python and node find their libraries by following links. Elsewhere
        there is no choice, and it is bound as a file.
        """
        chain = list(prefixes.hops(found))
        inside = [self._is_inside(hop) for hop in chain]
        first = next((index for index, held in enumerate(inside) if held), None)
        for index, hop in enumerate(chain):
            if not inside[index] and index and inside[index - 1]:
                self._bind_file(hop)
        if first == 0:
            return found
        target = chain[-1] if first is None else chain[first]
        if movable and (target.name == found.name or self._in_found_root(target)):
            if (target.parent / found.name).exists():
                self.stand_ins.setdefault(str(found.parent), str(target.parent))
            return target if first is not None or self._bind_file(target) else None
        return found if self._bind_file(found) else None

    def _is_inside(self, hop: Path) -> bool:
        """Note the installation around one stage; true if the stage will exist inside."""
        if within(hop, SYSTEM):
            return True
        if within(hop, self.visible):
            root = next((root for root in prefixes.candidates(hop) if within(root, self.visible)), None)
        else:
            root = prefixes.installation(hop, self.private).root
            if root is None:
                return False
            self.directories.add(root)
        if root is not None and root not in self.roots:
            self.roots[root] = None
            self._venv_base(root)
        return True

    def _venv_base(self, root: Path) -> None:
        if prefixes.is_venv(root):
            for python in prefixes.venv_pythons(root):
                if os.access(python, os.X_OK):
                    self._reach(python, movable=False)

    def _in_found_root(self, path: Path) -> bool:
        return within(path, tuple(self.roots))

    def _bind_file(self, path: Path) -> bool:
        if self.private.refuses_file(path) or not os.access(path, os.X_OK) or not path.is_file():
            return False
        self.files.add(path)
        libraries = prefixes.origin_libraries(path)
        if libraries is not None and not self.private.refuses_directory(libraries):
            self.directories.add(libraries)
        self._tell_what_is_missing(path)
        return True

    def _tell_what_is_missing(self, path: Path) -> None:
        hidden = prefixes.installation(path, self.private).refused
        if hidden is not None:
            self.notes.append(
                f"{path} belongs to {hidden}, which holds more than an installation and stays hidden; the guest sees"
                f" this file alone. If it needs more: --mount DIRECTORY"
            )
        line = prefixes.shebang(path)
        if line and "python" in f"{line.interpreter} {line.command}" and path.parent.parent.name == ".local":
            self.notes.append(
                f"{path} looks installed by `pip install --user`; its packages below {path.parent.parent / 'lib'} are"
                f" not shown to the guest. Install it in a virtual environment, or with pipx or uv"
            )

    def guest_path(self, bound: Sequence[Path]) -> str:
        """The host's PATH in the host's order, cut to what exists inside, then the system's directories."""
        places = [*self.visible, *bound]
        parents = {entry.parent for entry in self.files}
        kept: dict[str, None] = {}
        for entry in self.path.split(":"):
            if not entry.startswith("/"):
                continue  # relative to wherever it is used: not the same place inside
            directory = Path(os.path.normpath(entry))
            if within(directory, places) or directory in parents:
                kept[str(directory)] = None
            if str(directory) in self.stand_ins:
                kept[self.stand_ins[str(directory)]] = None
        return ":".join([*kept, *(entry for entry in _DEFAULT_PATH if entry not in kept)])


def _outermost(paths: Iterable[Path], visible: Sequence[Path]) -> tuple[Path, ...]:
    kept: list[Path] = []
    for path in sorted(paths, key=lambda p: (len(p.parts), p)):
        if not within(path, (*visible, *kept)):
            kept.append(path)
    return tuple(sorted(kept))


class _Missing(Struct, frozen=True):
    """Why a name leads to no program: the file that came nearest, if any, and what it is."""

    nearest: Path | None
    why: str  # absent | directory | mode | link


def _locate(name: str, cwd: Path, path: str) -> Path | _Missing:
    """Look a command up like execvp: with a slash as a path, otherwise along PATH, past what cannot be executed."""
    directories = [""] if "/" in name else path.split(":")
    nearest = _Missing(None, "absent")
    for directory in directories:
        candidate = cwd / directory / name
        if ".." in candidate.parts:
            candidate = prefixes.real(candidate.parent) / candidate.name
        why = _obstacle(candidate)
        if why is None:
            return candidate
        if nearest.why == "absent" and why != "absent" and not (why == "directory" and "/" not in name):
            nearest = _Missing(candidate, why)
    return nearest


def _obstacle(path: Path) -> str | None:
    try:
        if path.is_dir():
            return "directory"
        if not path.is_file():
            return "link" if path.is_symlink() else "absent"
    except OSError:
        return "mode"
    return None if os.access(path, os.X_OK) else "mode"


def _not_runnable(argv: Sequence[str], missing: _Missing, path: str) -> ENOENT | EACCES | EINVAL:
    name = argv[0]
    if missing.why == "directory":
        return EINVAL("command.directory", f"{name} is a directory, not a program.", hint="name a program in it")
    if missing.why == "mode":
        file = shlex.quote(str(missing.nearest))
        return EACCES("command.not_executable", f"{name} is not executable for you.", hint=f"chmod +x {file}")
    if missing.why == "link":
        return ENOENT("command.unknown", f"{missing.nearest} is a link that leads nowhere or in a circle.")
    if name in _BUILTINS or (len(argv) == 1 and _SHELL_SYNTAX.search(name)):
        line = name if len(argv) == 1 else shlex.join(argv)
        return ENOENT(
            "command.unknown",
            f"{name!r} is for a shell to understand; there is no program of that name.",
            hint=f"agentctl run -- bash -c {shlex.quote(line)}",
        )
    if len(argv) == 1 and " " in name:
        return ENOENT(
            "command.unknown",
            f"There is no program named {name!r}; give its words apart.",
            hint=f"agentctl run -- {name}",
        )
    where = "" if "/" in name else " on PATH"
    close = [] if "/" in name else difflib.get_close_matches(name, _commands(path), n=3, cutoff=0.75)
    hint = f"did you mean {' or '.join(close)}?" if close else "give the path of the program, or install it"
    return ENOENT("command.unknown", f"There is no program {name!r}{where}.", hint=hint)


def _commands(path: str) -> list[str]:
    names: set[str] = set()
    for directory in path.split(":"):
        try:
            names.update(os.listdir(directory or "."))
        except OSError:
            continue
    return sorted(names)


def _script_outside(argv: Sequence[str], cwd: Path, places: Sequence[Path]) -> list[str]:
    """Scripts are not bound in silence: the operator says what an agent may read."""
    if len(argv) < 2 or argv[1].startswith("-") or not INTERPRETERS.match(Path(argv[0]).name):
        return []
    script = prefixes.real(cwd / argv[1])
    if not script.is_file() or within(script, [*places, *map(prefixes.real, places)]):
        return []
    return [f"script {script} is outside the workspace; add --mount {shlex.quote(str(script.parent))}"]
