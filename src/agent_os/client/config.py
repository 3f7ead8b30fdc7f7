"""Settings: what a variable of the environment says, else a file, else the default.

In: `AGENT_OS_*`, the project's `agent-os.toml`, the user's and the machine's `config.toml`. Out: values, each with
where it comes from. A file that cannot be understood is an error, never an empty one. A project is a stranger's: its
file may only make something stricter. Makes and writes nothing.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agent_os.abi.errors import EACCES, EINVAL

PROJECT = "agent-os.toml"
_MACHINE = Path("/etc/agent-os/config.toml")
_LARGEST = 64 << 10  # bytes of a file
LEVELS = ("S0", "S1", "S2", "S3", "S4")


class Key(NamedTuple):
    variable: str
    about: str
    read: Callable[[Any], Any]  # the value, or ValueError that says what it takes
    default: str  # as people are told
    strictest: bool = False  # of two values the greater is stricter, so a project may give one


class Setting(NamedTuple):
    key: str
    value: Any  # None: the default, which depends
    origin: str  # environment, project, user, machine, default
    where: str = ""  # a variable, or file:line

    @property
    def shown(self) -> str:
        return KEYS[self.key].default if self.value is None else str(self.value)


class File(NamedTuple):
    origin: str
    path: Path


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("takes a path")
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise ValueError("takes a path that begins with / or ~")
    return str(path)


def _port(value: Any) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 65535:
        raise ValueError("takes a number from 0 to 65535")
    return number


def _seconds(value: Any) -> int:
    said = re.fullmatch(r"(\d{1,6})([smh]?)", str(value).strip())
    if not said or isinstance(value, bool):
        raise ValueError("takes seconds, or a time such as 10m")
    return int(said[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[said[2]]


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        found = [word for word in words if isinstance(value, str) and word.lower() == value.lower()]
        if not found:
            raise ValueError(f"takes one of {', '.join(words)}")
        return found[0]

    return read


_HOME = "$XDG_STATE_HOME/agent-os"
_SOCKET = "$XDG_RUNTIME_DIR/agent-os/kernel.sock, or run/ of a home that was chosen"
_AGENTS = "$XDG_CONFIG_HOME/agent-os/agents"
KEYS = {
    "home": Key("AGENT_OS_HOME", "the directory of a kernel's state", _path, _HOME),
    "socket": Key("AGENT_OS_SOCKET", "where a kernel listens", _path, _SOCKET),
    "agents": Key("AGENT_OS_AGENTS", "manifests that a kernel declares when it boots", _path, _AGENTS),
    "min_isolation": Key("AGENT_OS_MIN_ISOLATION", "nothing starts below it", _one_of(*LEVELS), "S2", strictest=True),
    "port": Key("AGENT_OS_PORT", "of the dashboard and the HTTP API", _port, "7700, or the next that is free"),
    "idle_exit": Key(
        "AGENT_OS_IDLE_EXIT", "how long a kernel stays after its last agent, without `up`", _seconds, "10m"
    ),
    "log": Key("AGENT_OS_LOG", "how much a kernel writes to its log", _one_of("info", "debug"), "info"),
}


def files() -> list[File]:
    """The places that are looked at, what counts most first."""
    return [File("project", Path.cwd() / PROJECT), File("user", user_file()), File("machine", _MACHINE)]


def user_file() -> Path:
    return user_folder() / "config.toml"


def user_folder() -> Path:
    """Where the user's own files are. A relative one would be the project's, so it does not count, as XDG has it."""
    xdg = Path(os.environ.get("XDG_CONFIG_HOME") or "")
    return (xdg if xdg.is_absolute() else Path.home() / ".config") / "agent-os"


def setting(key: str, *, project: bool = False) -> Setting:
    """One of them. Without `project` that file is not looked at: it says nothing about where a kernel is."""
    if (given := from_environment(key)) is not None:
        return given
    for file in files():
        if (file.origin != "project" or project) and (found := read(file).get(key)):
            return found
    return Setting(key, None, "default")


def everything() -> list[Setting]:
    """All keys, as they hold here; every file is read, and what is wrong with one is raised."""
    layers = [read(file) for file in files()]
    return [_first(key, layers) for key in KEYS]


def _first(key: str, layers: list[dict[str, Setting]]) -> Setting:
    found = (layer[key] for layer in layers if key in layer)
    return from_environment(key) or next(found, Setting(key, None, "default"))


def from_environment(key: str) -> Setting | None:
    name = KEYS[key].variable
    text = os.environ.get(name)
    if not text:
        return None
    if key in ("home", "socket", "agents"):  # relative ones are of the current directory, as in any shell
        text = str(Path(text).absolute())
    return Setting(key, _valid(key, text, f"${name}"), "environment", f"${name}")


def read(file: File) -> dict[str, Setting]:
    """What a file says; nothing if it is not there."""
    text = text_of(file)
    if text is None:
        return {}
    found = parsed(text, str(file.path), file.origin)
    if file.origin == "project":
        for one in found.values():
            _require_narrower(one)
    return found


def parsed(text: str, path: str, origin: str) -> dict[str, Setting]:
    import tomllib

    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise EINVAL("config.syntax", f"{path} is no TOML: {problem}", hint='such as: min_isolation = "S3"') from None
    lines = dict(_lines(text))
    return {key: _of_file(key, value, f"{path}:{lines.get(key, 1)}", origin) for key, value in table.items()}


def _of_file(key: str, value: Any, where: str, origin: str) -> Setting:
    if key not in KEYS:
        raise EINVAL("config.key", f"{where}: there is no key {key!r}{_near(key)}", hint=f"there is {', '.join(KEYS)}")
    return Setting(key, _valid(key, value, where), origin, where)


def _valid(key: str, value: Any, where: str) -> Any:
    try:
        return KEYS[key].read(value)
    except ValueError as problem:
        hint = f"the default is {KEYS[key].default}"
        raise EINVAL("config.value", f"{where}: {key} {problem}, not {value!r}", hint=hint) from None


def _require_narrower(one: Setting) -> None:
    """A repository that somebody cloned must not choose the kernel it is run by, or a lower wall around itself."""
    if not KEYS[one.key].strictest:
        allowed = ", ".join(key for key, about in KEYS.items() if about.strictest)
        reason = f"{one.where}: a project's file may not say {one.key}"
        raise EINVAL("config.project", reason, hint=f"it may say {allowed}; agentctl config set {one.key} is yours")
    above = next((found for file in files()[1:] if (found := read(file).get(one.key))), None)
    least = above.value if above else KEYS[one.key].default
    if one.value < least:
        whose = above.where if above else "the default"
        reason = f"{one.where}: {one.key} {one.value} is less strict than {least} of {whose}"
        raise EINVAL("config.widens", reason, hint="a project's file may only make it stricter")


def text_of(file: File) -> str | None:
    """None: it is not there. Never waits: a pipe in the place of a project's file would hold up every command there.
    What others than its reader can write is refused; not a project's, from which nothing is taken on trust, nor one
    that ships with us, which is as good as this program."""
    try:
        with open(os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
            info = os.fstat(opened.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > _LARGEST:
                raise EINVAL("config.syntax", f"{file.path} is no plain file of at most {_LARGEST} bytes")
            text = opened.read(_LARGEST).decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise EACCES("config.unreadable", f"{file.path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise EINVAL("config.syntax", f"{file.path} is no text in UTF-8") from None
    if file.origin not in ("project", "shipped") and (info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022):
        reason = f"{file.path} cannot be trusted: others can write it"
        raise EACCES("config.foreign", reason, hint=f"chmod go-w {file.path}")
    return text


def _lines(text: str) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(text.splitlines(), 1):
        if key := re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line):
            yield key[1], number


def _near(key: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, KEYS, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def for_kernel(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a kernel that is started: with what files say of it, but no project's."""
    wanted = ((KEYS[key].variable, setting(key)) for key in ("min_isolation", "log"))
    return {**environment, **{name: str(found.value) for name, found in wanted if found.value is not None}}


def changed(text: str, key: str, value: str) -> str:
    """A file's text with another value for a key; everything else, and every comment, as it was."""
    said = value if key == "port" else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    line, lines = f"{key} = {said}", text.splitlines()
    for number, old in enumerate(lines):
        if re.match(rf"\s*{key}\s*=", old):
            lines[number] = line
            break
    else:
        lines.append(line)
    return "\n".join(lines) + "\n"
