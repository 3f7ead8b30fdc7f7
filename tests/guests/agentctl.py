"""`agentctl` as a user starts it: a real process with a home, a state directory and a project of its own.

Every run is followed by a count of what it left behind; anything is a failure. The home holds a canary and is never
to be seen from inside. A guest that prints what `PEEK` names and it can see is judged by `Ran.seen`.
"""

import os
import pwd
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import leftovers
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.journal import Journal
from agent_os.kernel.workspace import Workspaces

AGENTCTL = [sys.executable, "-m", "agent_os.cli.main"]
SECONDS = 120
_PASSED_ON = ("PATH", "LANG", "PYTHONPATH", "AGENT_OS_IDLE_EXIT")

# What a guest runs to tell which of the paths in PEEK it can see, in three languages.
PEEK_SH = 'IFS=:; for p in $PEEK; do if [ -e "$p" ] || [ -L "$p" ]; then echo "SEEN $p"; fi; done; unset IFS; '
PEEK_PY = "import os; [print('SEEN', p) for p in os.environ['PEEK'].split(':') if os.path.lexists(p)]; "
PEEK_JS = "for (const p of process.env.PEEK.split(':')) if (require('fs').existsSync(p)) console.log('SEEN ' + p);"


@dataclass(frozen=True)
class Ran:
    """How one `agentctl run` ended."""

    code: int
    out: bytes
    err: str
    changes: dict[str, str]  # path: kind, of the workspace that was kept
    name: str | None  # of that workspace

    @property
    def lines(self) -> list[str]:
        """Standard output without what `seen` tells."""
        return [line for line in self.out.decode().splitlines() if not line.startswith("SEEN ")]

    @property
    def seen(self) -> set[str]:
        return {line.removeprefix("SEEN ") for line in self.out.decode().splitlines() if line.startswith("SEEN ")}


@dataclass
class Machine:
    """A user's machine in small: `home` with a canary in it, `project` in the home, `state` apart."""

    top: Path
    home: Path = field(init=False)
    project: Path = field(init=False)
    state: Path = field(init=False)
    env: dict[str, str] = field(init=False)
    canary: str = field(init=False)

    def __post_init__(self) -> None:
        self.top = Path(os.path.realpath(self.top))
        self.home, self.state = self.top / "home", self.top / "state"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        self.state.mkdir(mode=0o700)
        self.canary = f"CANARY-{secrets.token_hex(8)}"
        (self.home / ".ssh").mkdir()
        for name in ("diary.txt", ".ssh/id_ed25519", ".bash_history"):
            (self.home / name).write_text(self.canary)
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self.env = kept | {"HOME": str(self.home), "AGENT_OS_HOME": str(self.state)}
        leftovers.adopt_orphans()

    def private_paths(self) -> list[str]:
        """Everything in this home and in the real one of whoever runs the tests."""
        homes = {self.home}
        try:
            homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir).resolve())
        except KeyError:  # a uid without an account has no home of its own
            homes.add(Path(os.environ["HOME"]).resolve())
        # the directory of the tests may lie in the real home; on the way to the project it has to exist inside
        inside = [path for home in homes if home.is_dir() and os.access(home, os.R_OK) for path in home.iterdir()]
        return sorted(str(path) for path in inside if not self.project.is_relative_to(path))

    def environment(self, **more: str) -> dict[str, str]:
        return self.env | {"PEEK": ":".join(self.private_paths())} | more

    def command(self, *words: str | Path, flags: Sequence[str | Path] = ()) -> list[str]:
        return [*AGENTCTL, "run", "--env", "PEEK", *map(str, flags), "--", *map(str, words)]

    def start(self, *words: str | Path, flags: Sequence[str | Path] = (), **options: Any) -> subprocess.Popen[bytes]:
        """A run in the background, with pipes for whatever `options` do not say otherwise."""
        pipe = subprocess.PIPE
        given = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "env": self.environment()} | options
        return subprocess.Popen(self.command(*words, flags=flags), cwd=given.pop("cwd", self.project), **given)

    def run(
        self,
        *words: str | Path,
        flags: Sequence[str | Path] = (),
        stdin: bytes | None = None,
        before: Sequence[str | Path] = (),
        cwd: Path | None = None,
        **env: str,
    ) -> Ran:
        """Run to the end, check that nothing is left and that nothing private came out. `before` wraps agentctl."""
        command = [*map(str, before), *self.command(*words, flags=flags)]
        return self.finished(command, stdin, cwd or self.project, self.environment(**env))

    def agentctl(self, *words: str | Path, **env: str) -> Ran:
        """Any command line at all, as written."""
        return self.finished([*AGENTCTL, *map(str, words)], None, self.project, self.environment(**env))

    def finished(self, command: list[str], stdin: bytes | None, cwd: Path, env: dict[str, str]) -> Ran:
        known = {workspace.name for workspace in Workspaces(self.state).list()}
        others = set(leftovers.processes())
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=env) as process:
            try:
                out, err = process.communicate(stdin, timeout=SECONDS)
            except BaseException:
                process.kill()
                raise
        self.nothing_is_left(others)
        assert self.canary.encode() not in out + err, "the guest saw what lies in the home"
        new = [workspace for workspace in Workspaces(self.state).list() if workspace.name not in known]
        assert len(new) <= 1
        changes = {change.path: change.kind for workspace in new for change in workspace.diff()}
        return Ran(process.returncode, out, err.decode(), changes, new[0].name if new else None)

    @property
    def kernel(self) -> int:
        """The process id of the kernel that has this home, or had it last; 0 if there was none."""
        try:
            return int((self.state / "lock").read_text())
        except (OSError, ValueError):
            return 0

    def nothing_is_left(self, others: set[int]) -> None:
        """`others` are the processes that lived before. How soon the rest is gone, `make bench ARGS=ending` says."""
        gone = leftovers.becomes_true(lambda: not set(leftovers.processes()) - others)
        assert gone, {pid: text for pid, text in leftovers.processes().items() if pid not in others}
        assert leftovers.cgroups(self.kernel) == []
        assert leftovers.mounts(self.top) == []
        if self.state.is_dir() and os.access(self.state, os.R_OK):
            assert leftovers.files(self.state) == []

    def records(self, event: str) -> list[dict[str, Any]]:
        """What the journal keeps of one event, in order."""
        store = SqliteStore(self.state / "journal.db", read_only=True)
        try:
            bodies = [body for _, body in Journal.open(store, home=self.state, read_only=True).scan() if body]
        finally:
            store.close()
        told = [msgspec.msgpack.decode(body) for body in bodies]
        return [facts for facts in told if isinstance(facts, dict) and facts.get("event") == event]

    def agents(self) -> list[str]:
        """The names of those that run now."""
        done = subprocess.run([*AGENTCTL, "ps", "-o", "name"], env=self.env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    def workspaces(self) -> list[str]:
        return [workspace.name for workspace in Workspaces(self.state).list()]


def program(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def copy_of_python(to: Path) -> Path:
    """A real interpreter moved elsewhere: program, shared library and standard library, without what is large."""
    base = Path(os.path.realpath(sys.base_prefix))
    version = f"python3.{sys.version_info.minor}"
    (to / "bin").mkdir(parents=True)
    shutil.copy2(os.path.realpath(base / "bin" / version), to / "bin" / version)
    for name in ("python3", "python"):
        (to / "bin" / name).symlink_to(version)
    unwanted = shutil.ignore_patterns(
        "test", "tests", "__pycache__", "site-packages", "dist-packages", "config-*", "*.a"
    )
    shutil.copytree(base / "lib" / version, to / "lib" / version, ignore=unwanted)
    for library in (base / "lib").glob(f"libpython3.{sys.version_info.minor}*.so*"):
        shutil.copy2(library, to / "lib")
    return to
