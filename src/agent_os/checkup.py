"""The doctor's look at what is installed and kept: modes, port, versions, packages, record, clock, keys of models.

A part of the composition root. In: the home and the control socket of a kernel, which need not run. Out: checks, each
with its cause and the narrow fix. Reads; writes one scratch database, and removes it. Only `mend` changes something: a
mode, to a narrower one, of a file that is ours.
"""

# apsw's types name a class that the standard library has only since 3.12.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import importlib.metadata
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import agent_os
from agent_os.abi.doors import Gateway
from agent_os.abi.errors import EHOSTUNREACH, AgentOSError
from agent_os.abi.heads import Note, parse_note, parse_verifier_key, split_notes
from agent_os.abi.syscalls import Models, Status
from agent_os.abi.tree import WIDTH
from agent_os.client import place
from agent_os.client.config import setting
from agent_os.client.sources import open_source
from agent_os.client.start import prepared
from agent_os.client.wire import connect
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.first_token import FILE as TOKEN
from agent_os.kernel import doctor as kernel_doctor
from agent_os.kernel import plan
from agent_os.kernel.journal import Journal
from agent_os.kernel.journal.heads import ANCHOR, KEY, NEWEST, PUBLIC, read_mark
from agent_os.kernel.orders import minimum_level as minimum_level
from agent_os.sandbox import probe
from agent_os.sandbox.probe import Check

JOURNAL = "journal.db"
_TO_ANSWER = 10.0  # seconds
_SKEW_S = 60.0
_OLDEST = 1_735_689_600  # 2025: before that nobody had this program
_OLDEST_SQLITE = (3, 50, 0)
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", re.MULTILINE)
_LISTENS = "0A"  # as /proc/net/tcp says it
_KEY_VARIABLES = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
Facts = dict[str, Any]


class Mend(NamedTuple):
    """What `agentctl doctor --fix` does: exactly what is printed."""

    mode: int
    path: Path

    def __str__(self) -> str:
        return f"chmod {self.mode:o} {self.path}"


class Found(NamedTuple):
    check: Check
    mends: tuple[Mend, ...] = ()


# Modes.


def modes(home: Path, where: Path) -> list[Found]:
    """Of the home, the socket and its directory, the operator's token and the key of the journal."""
    return [
        _mode("state", [(home, 0o700)], f"{home} is yours alone", absent=f"{home} is not there yet"),
        _socket(home, where),
        _mode("token", [(home / TOKEN, 0o600)], f"only you can read {TOKEN}", absent="no operator.token"),
        _mode("keys", [(home / KEY, 0o600)], "only you can read the key of the journal", absent="no key yet"),
    ]


def _socket(home: Path, where: Path) -> Found:
    """The directory is ours to close if we made it: in the home, or called after us."""
    own = where.parent.is_relative_to(home) or where.parent.name == "agent-os"
    wanted = [(where.parent, 0o700), (where, 0o600)] if own else [(where, 0o600)]
    found = _mode("socket", wanted, f"only you can use {where}", absent="no kernel listens")
    if own or found.check.status != "ok" or not where.exists():
        return found
    above = where.parent.stat()
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        cause = f"others can put a socket of theirs in the place of {where}"
        return Found(Check("socket", "fail", cause, "AGENT_OS_SOCKET=PATH in a directory that only you can write"))
    return found


def _mode(name: str, wanted: Sequence[tuple[Path, int]], well: str, *, absent: str) -> Found:
    wrong: list[str] = []
    mends: list[Mend] = []
    there = False
    for path, mode in wanted:
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as problem:
            wrong.append(f"{path} cannot be looked at: {problem.strerror}")
            continue
        there, bits = True, stat.S_IMODE(found.st_mode)
        if path.is_symlink() and not stat.S_ISDIR(found.st_mode):
            wrong.append(f"{path} is a link")
        elif found.st_uid != os.geteuid():
            wrong.append(f"{path} belongs to uid {found.st_uid}, not to you")
        elif bits & 0o077:
            wrong.append(f"{path} is open to others ({bits:o})")
            mends.append(Mend(mode, path))
    if wrong:
        fix = " && ".join(map(str, mends)) or "somebody else's: AGENT_OS_HOME=DIR chooses another place"
        return Found(Check(name, "fail", "; ".join(wrong), fix), tuple(mends))
    return Found(Check(name, "ok", well if there else absent))


def mend(one: Mend) -> None:
    """Only ever narrower, only of what is ours, and never of what a link leads to."""
    real = one.path.resolve() if one.path.is_dir() else one.path
    fd = os.open(real, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or stat.S_ISLNK(found.st_mode):
            raise PermissionError(1, "it is not ours", str(one.path))
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(found.st_mode) & one.mode)
    finally:
        os.close(fd)


# The kernel, if one runs.


async def running(where: Path) -> list[Check]:
    """Its version, its dashboard's port, and which models have keys."""
    models: Facts | None = None
    gateway: Facts | None = None
    kernel = Check("kernel", "ok", "none is running; agentctl run starts one")
    try:
        async with asyncio.timeout(_TO_ANSWER), connect(where) as client:
            kernel = version(await client.call(Status()))
            models = await client.call(Models(do="list"))
            gateway = (await client.call(Gateway(do="look")))["gateway"]
    except EHOSTUNREACH as problem:
        if problem.code != "daemon.down":
            kernel = Check("kernel", "fail", problem.reason, problem.hint)
    except AgentOSError as problem:
        kernel = Check("kernel", "fail", problem.reason, problem.hint)
    except TimeoutError:
        cause = f"the kernel at {where} does not answer within {_TO_ANSWER:.0f} s"
        kernel = Check("kernel", "fail", cause, "agentctl down; its log is logs/kernel.log of the home")
    wanted: int | None = setting("port").value
    return [kernel, port(wanted, gateway), model_keys(models)]


def version(facts: Facts) -> Check:
    ours, its = agent_os.__version__, facts["version"]
    if ours != its:
        cause = f"agentctl is {ours}, the running kernel (process {facts['pid']}) is {its}"
        return Check("kernel", "warn", cause, "agentctl down && agentctl up --detach")
    if facts["journal"] != "ok":
        return Check("kernel", "fail", f"it records nothing any more: {facts['journal']}", "agentctl down; free disk")
    return Check("kernel", "ok", f"{its}, the same as agentctl; process {facts['pid']}")


def port(wanted: int | None, gateway: Facts | None) -> Check:
    """Whether the dashboard has the port that people know, and who has it otherwise."""
    number = 7700 if wanted is None else wanted
    if gateway and gateway["url"].endswith(f":{number}"):
        return Check("port", "ok", f"the dashboard has {number}")
    who = holder(number) if number else None
    if gateway:
        return Check("port", "ok", f"the dashboard is at {gateway['url']}" + (f"; {who} has {number}" if who else ""))
    if who is None:
        return Check("port", "ok", f"{number} is free for the dashboard" if number else "the dashboard takes any")
    if wanted is None:
        return Check("port", "ok", f"{who} has {number}; the dashboard takes the next that is free, up to 7719")
    return Check(
        "port", "warn", f"{who} has {number}, which is set for the dashboard", "agentctl config set port NUMBER"
    )


def holder(number: int) -> str | None:
    """Who listens there: a process if it is ours to see, else the user. None: nobody."""
    found = next(iter(_listening(number)), None)
    if found is None:
        return None if _is_free(number) else "somebody"
    uid, inode = found
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if any(os.readlink(one) == f"socket:[{inode}]" for one in (entry / "fd").iterdir()):
                return f"process {entry.name} ({(entry / 'comm').read_text().strip()})"
    return f"a process of uid {uid}"


def _listening(number: int) -> Iterator[tuple[int, str]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == number:
                    yield int(words[7]), words[9]


def _is_free(number: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", number))
        except OSError:
            return False
        return True


def model_keys(models: Facts | None) -> Check:
    """By the names of providers and variables; a key itself is never looked at."""
    here = [name for name in _KEY_VARIABLES if os.environ.get(name)]
    said = f"; set in this environment: {', '.join(here)}" if here else ""
    if models is None:
        return Check("models", "ok", f"keys are in the safe of a kernel, and none is running{said}")
    have = [one["name"] for one in models["providers"] if one["keys"] and not one["missing"]]
    lack = [one["name"] for one in models["providers"] if one["missing"]]
    told = f"keys for {', '.join(have) or 'none'}; none for {', '.join(lack) or 'nobody'}"
    return Check("models", "ok", told + said, "agentctl secrets set NAME < FILE" if lack else "")


# What is kept.


def record(home: Path) -> list[Check]:
    """The end of the journal, the newest anchored head, the clock, and SQLite on this disk."""
    mark, note, problem = read_mark(home), None, ""
    try:
        note = newest_note(home)
    except (OSError, ValueError) as found:
        problem = str(found)
    size = 0
    try:
        size, journal = _journal(home, mark[0] if mark else 0)
    except AgentOSError as bad:
        journal = Check("journal", "fail", bad.reason, _LOST)
    except OSError as bad:
        journal = Check("journal", "fail", f"{home / JOURNAL}: {bad.strerror}", _LOST)
    return [journal, _anchor(home, note, problem, size), clock(note, time.time()), _sqlite(home)]


_LOST = "agentctl audit verify says what is wrong; agentctl restore FILE puts a backup back"


def _journal(home: Path, synced: int) -> tuple[int, Check]:
    path = home / JOURNAL
    if not path.exists():
        if synced:
            return 0, Check("journal", "fail", f"{path} is gone, and had {synced:,} entries", _LOST)
        return 0, Check("journal", "ok", "none yet")
    source = open_source(path)
    try:
        size = source.facts().size
        first = max(1, (size - 1) // WIDTH * WIDTH + 1)
        rows = sum(len(run) for run in source.runs(first, size)) if size else 0
    finally:
        source.close()
    if size < synced:
        cause = f"it ends at {size:,}, and {synced:,} entries were on disk: its end was lost"
        return size, Check("journal", "fail", cause, _LOST)
    if size and rows != size - first + 1:
        return size, Check("journal", "fail", f"of its last {size - first + 1} entries {rows} are there", _LOST)
    return size, Check("journal", "ok", f"{size:,} entries, whole at its end")


def newest_note(home: Path) -> Note | None:
    """The last head that was anchored. ValueError: what is there is none."""
    try:
        with (home / ANCHOR).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - NEWEST))
            notes = split_notes(file.read())
    except FileNotFoundError:
        return None
    return parse_note(notes[-1]) if notes else None


def _anchor(home: Path, note: Note | None, problem: str, size: int) -> Check:
    if problem:
        return Check("anchor", "fail", f"{home / ANCHOR} holds something else than signed heads: {problem}", _LOST)
    if note is None:
        missing = size > 0
        cause = f"{home / ANCHOR} is empty, and the journal is not" if missing else "no signed head yet"
        return Check("anchor", "fail" if missing else "ok", cause, _LOST if missing else "")
    if note.head.size > size:
        cause = f"a head of {note.head.size:,} entries was signed, and the journal has {size:,}: it was cut or put back"
        return Check("anchor", "fail", cause, _LOST)
    try:
        _, public = parse_verifier_key((home / PUBLIC).read_text())
        Ed25519PublicKey.from_public_bytes(public).verify(note.signatures[0].signature, note.text)
    except (OSError, ValueError, InvalidSignature):
        return Check("anchor", "fail", f"the newest head is not signed by {home / PUBLIC}", _LOST)
    return Check(
        "anchor", "ok", f"the newest head covers {note.head.size:,} entries and is signed by the journal's key"
    )


def clock(note: Note | None, now: float) -> Check:
    """Behind what was signed already, times on the record would run backwards."""
    set_it = "set the clock, by NTP"
    if now < _OLDEST:
        return Check("clock", "fail", f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}", set_it)
    ahead = note.head.wall_ns / 1e9 - now if note else 0.0
    if ahead > _SKEW_S:
        return Check("clock", "fail", f"the newest signed head is {ahead:,.0f} s in the future of this clock", set_it)
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now)))


def _sqlite(home: Path) -> Check:
    """A database of ours, with a write-ahead file, on the disk where the journal is."""
    version = apsw.sqlite_lib_version()
    if tuple(map(int, version.split("."))) < _OLDEST_SQLITE:
        return Check("sqlite", "warn", f"SQLite {version} is older than what was tested", "pip install -U apsw")
    if not home.is_dir():
        return Check("sqlite", "ok", f"SQLite {version}")
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=home) as scratch:
            db = apsw.Connection(f"{scratch}/try.db")
            mode = db.pragma("journal_mode", "wal")
            db.execute("create table t (x)")
            db.execute("insert into t values (7)")
            kept = db.execute("select x from t").fetchall()
            db.close()
    except (apsw.Error, OSError) as problem:
        return Check(
            "sqlite", "fail", f"no database can be written in {home}: {problem}", "AGENT_OS_HOME=DIR elsewhere"
        )
    if mode != "wal" or kept != [(7,)]:
        cause = f"the file system of {home} cannot hold a write-ahead log (it is {mode})"
        return Check("sqlite", "fail", cause, "AGENT_OS_HOME=DIR on a local disk")
    return Check("sqlite", "ok", f"SQLite {version}, write-ahead log in {home}")


# What is installed.


def packages(lock: Path | None = None) -> Check:
    """In a checkout, the packages that its lock names; elsewhere, that those are there which we need."""
    lock = lock or Path(agent_os.__file__).parents[2] / "requirements.lock"
    if not lock.is_file():
        needed = [line for line in importlib.metadata.requires("agent-os") or [] if "extra ==" not in line]
        gone = [name for line in needed if _installed(name := re.split(r"[\s;<>=!~\[]", line)[0]) is None]
        if gone:
            return Check("lock", "fail", f"not installed: {', '.join(gone)}", "pip install --force-reinstall agent-os")
        return Check("lock", "ok", "all packages that are needed are there")
    pinned = dict(_PINNED.findall(lock.read_text(encoding="utf-8")))
    other = [
        f"{name} {found} (lock: {wanted})"
        for name, wanted in pinned.items()
        if (found := _installed(name)) is not None and found != wanted
    ]
    if other:
        return Check("lock", "warn", f"other versions than {lock} says: {', '.join(other)}", "make setup")
    return Check("lock", "ok", f"every package is of the version that {lock.name} says")


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


class Examined(NamedTuple):
    level: str  # of isolation, that this host reaches
    checks: list[Check]
    mends: list[Mend]  # what some of the fixes are, word by word


async def examine() -> Examined:
    """Everything the doctor looks at. A home that cannot be trusted is told, and nothing is tried in it."""
    home, where = place.home(), place.control_socket()
    found = modes(home, where)
    with suppress(AgentOSError):  # `modes` says what is wrong
        home = prepared(home)
    here = plan.Host(home, Path.home(), dict(os.environ))
    level, checks = await probe.examine()
    if level != "S0":
        journal = Journal.open(SqliteStore(None))  # what is tried here belongs on nobody's record
        checks += [await kernel_doctor.workspace(here, journal), await kernel_doctor.proxy()]
        await journal.close()
    checks += [one.check for one in found]
    if all(one.check.status == "ok" for one in found if one.check.name == "state"):
        checks += [*kernel_doctor.home(here, level), *record(home)]
    checks += [*kernel_doctor.installation(), packages(), *await running(where)]
    return Examined(level, checks, [mend for one in found for mend in one.mends])


def mended(mends: Sequence[Mend]) -> list[Check]:
    """What was printed is done; then those checks again."""
    for one in mends:
        mend(one)
    return [one.check for one in modes(place.home(), place.control_socket())]
