"""Where a program's installation lies, read from the file system and from nothing else.

Owns the knowledge of layouts (venv, pyenv, uv, nvm, conda, JDK, node packages, `/opt`) and the list of places that are
never shown to a guest whatever a layout claims. Paths go in, paths come out; nothing is executed, mounted or changed.
The files read here (`pyvenv.cfg`, first lines of scripts) may come from a hostile repository: they can only name
something that really looks like an installation, and `Private` has the last word.
"""

import mmap
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from agent_os.kernel.workspace.protected import CREDENTIALS

# Part of every sandbox's template root, at these very paths.
SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives")))

_SHEBANG_MAX = 256  # the kernel reads no more of the line (BINPRM_BUF_SIZE)
_LINKS_MAX = 40  # the kernel follows no more links in one path (MAXSYMLINKS)
_CONFIG_MAX = 64 * 1024


def within(path: Path, places: Sequence[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def real(path: Path) -> Path:
    return Path(os.path.realpath(path))


# Never, neither itself nor anything below.
_NEVER_BELOW = tuple(map(Path, ("/proc", "/sys", "/dev", "/run", "/boot", "/etc")))
_SECRET_DIRECTORIES = frozenset(
    (".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".password-store", ".mozilla", ".terraform.d", "keyrings")
)
# Never whole; a single installation below one may be shown.
_NEVER_WHOLE = frozenset(
    map(Path, ("/", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/usr", "/usr/local", "/var"))
) | frozenset(map(Path, ("/var/cache", "/var/lib", "/var/log", "/var/opt", "/var/spool", "/var/tmp")))
_PERSONAL = frozenset((".local", ".config", ".cache"))
_PERSONAL_SHARED = frozenset(("bin", "lib", "share", "state"))  # of ~/.local: all applications side by side
# A directory with one of these at its top is more than an installation: somebody works or lives there.
_LIVED_IN = _SECRET_DIRECTORIES | {".netrc", ".git-credentials", ".pypirc", ".pgpass", ".env", ".envrc"}


class Private:
    """What no guest is shown: the home, all that holds it, and where credentials lie. `more` adds to the last."""

    def __init__(self, home: Path, more: Sequence[Path] = ()) -> None:
        secrets = [*(home / name for name in CREDENTIALS), home / ".local/state/agent-os", *more]
        self._secrets = (*secrets, *map(real, secrets))
        self._never_around = (home, real(home), *self._secrets)

    def refuses_directory(self, path: Path) -> bool:
        forms = {path, real(path)}
        return self.refuses_file(path) or any(self._too_wide(form) for form in forms) or _lived_in(path)

    def refuses_file(self, path: Path) -> bool:
        forms = {path, real(path)}
        return any(
            within(form, (*_NEVER_BELOW, *self._secrets)) or _SECRET_DIRECTORIES & set(form.parts) for form in forms
        )

    def _too_wide(self, path: Path) -> bool:
        return (
            any(place.is_relative_to(path) for place in self._never_around)
            or path in _NEVER_WHOLE
            or path.parent == Path("/home")  # somebody else's home
            or path.name in _PERSONAL
            or (path.parent.name == ".local" and path.name in _PERSONAL_SHARED)
        )


def _lived_in(directory: Path) -> bool:
    try:
        names = set(os.listdir(directory))
    except OSError:
        return True  # what cannot be looked at is not handed out
    return bool(names & _LIVED_IN) or (".git" in names and not is_pyenv(directory))


def hops(path: Path) -> Iterator[Path]:
    """The path, then the path after each link on the way is replaced, to the real one. Ends quietly on a loop.

    Every stage has to exist inside too, or the way to the program breaks there; so the stages are what callers place.
    """
    yield path
    for _ in range(_LINKS_MAX):
        following = _replace_first_link(path)
        if following is None:
            return
        path = following
        if ".." not in path.parts:
            yield path


def _replace_first_link(path: Path) -> Path | None:
    seen = Path("/")
    parts = path.parts[1:]
    for index, part in enumerate(parts):
        if part == "..":
            seen = seen.parent  # right, because `seen` holds no link
            continue
        try:
            target = os.readlink(seen / part)
        except OSError:
            seen /= part
            continue
        return _tidy(seen / target).joinpath(*parts[index + 1 :])
    return seen if seen != path else None


def _tidy(path: Path) -> Path:
    """Collapse the leading `..` of a relative link: its directory is known to hold no link."""
    plain = os.path.normpath(path)
    return Path(plain) if os.path.realpath(path) == os.path.realpath(plain) else path


class Home(Struct, frozen=True):
    """Where a file is at home: `root` may be shown whole; `refused` looked like its installation but may not."""

    root: Path | None
    refused: Path | None


def installation(path: Path, private: Private) -> Home:
    """The self-contained installation this file belongs to. After a refusal only something narrower will do."""
    refused: Path | None = None
    for root in candidates(path):
        if refused is not None and refused.is_relative_to(root):
            continue
        if not private.refuses_directory(root):
            return Home(root, refused)
        refused = refused or root
    return Home(None, refused)


def candidates(path: Path) -> Iterator[Path]:
    """What looks like the installation of this file, likeliest first, whether or not it may be shown."""
    for tree in (Path("/nix/store"), Path("/home/linuxbrew/.linuxbrew")):
        if path.is_relative_to(tree):
            yield tree  # its parts name each other by absolute path
    for root in path.parents:
        part = path.relative_to(root).parts[0]
        as_prefix = part in ("bin", "sbin", "condabin", "lib", "lib64", "libexec") and _is_prefix(root)
        if as_prefix or (part in ("shims", "bin", "libexec") and is_pyenv(root)):
            yield root
    yield from (parent for parent in reversed(path.parents) if parent.name == "node_modules")
    if path.is_relative_to("/opt") and len(path.parts) > 3:
        yield Path(*path.parts[:3])


def is_pyenv(root: Path) -> bool:
    return _exists(root / "libexec" / "pyenv")


def is_venv(root: Path) -> bool:
    return _exists(root / "pyvenv.cfg")


def _is_prefix(root: Path) -> bool:
    if any(_exists(root / marker) for marker in ("pyvenv.cfg", "conda-meta", "lib/node_modules")):
        return True
    try:
        return any(root.glob("lib/python[0-9]*/os.py")) or (root / "lib" / "modules").is_file()  # a JDK's image
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def venv_pythons(root: Path) -> list[Path]:
    """The interpreters a venv starts: its own link and the one in the `home` of its configuration."""
    bins = [root / "bin"]
    match = re.search(r"^\s*home\s*=\s*(/.*?)\s*$", _head(root / "pyvenv.cfg", _CONFIG_MAX), re.MULTILINE)
    if match:
        bins.append(Path(match[1]))
    firsts = (next((b / n for n in ("python3", "python") if _exists(b / n)), None) for b in bins)
    return [python for python in firsts if python is not None and ".." not in python.parts]


class Shebang(Struct, frozen=True):
    interpreter: str  # as written
    command: str | None  # what `env` is asked to find on PATH, if the interpreter is `env`


def shebang(path: Path) -> Shebang | None:
    text = _head(path, 4 * _SHEBANG_MAX)
    if not text.startswith("#!"):
        return None
    first, _, rest = text.partition("\n")
    words = first[2:_SHEBANG_MAX].strip(" \t").split(None, 1) if "\r" not in first else [first[2:].strip(" \t\n")]
    if not words:
        return None
    # pip and uv write this second line when the interpreter's path is too long or has spaces in it.
    long_form = re.match(r"""'''exec' (?:"([^"$]+)"|([^"$\s]+)) """, rest)
    if long_form:
        return Shebang(long_form[1] or long_form[2], None)
    command = _env_command(words[1]) if Path(words[0]).name == "env" and len(words) > 1 else None
    return Shebang(words[0], command)


def _env_command(arguments: str) -> str | None:
    """The command in `env [-S] [-i] [-u NAME] [NAME=VALUE…] COMMAND …`."""
    if arguments.startswith(("-S", "--split-string", "-vS")):
        arguments = re.sub(r"^(-v?S|--split-string)[ =]?", "", arguments)
    elif " " in arguments.strip():
        return None  # without -S the kernel passes all of it as one word, which `env` will not find
    try:
        words = iter(shlex.split(arguments))
    except ValueError:
        return None
    for word in words:
        if word in ("-u", "--unset", "-C", "--chdir"):
            next(words, None)
        elif not word.startswith("-") and "=" not in word:
            return word
    return None


def origin_libraries(path: Path) -> Path | None:
    """The library directory a relocatable ELF program names relative to itself, if it is one and is there.

    The run path is found by its bytes: reading the dynamic section would tell no more than that the text is there.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            if image[:4] != b"\x7fELF":
                return None
            named = {"$ORIGIN/../lib": path.parent.parent / "lib", "$ORIGIN/lib": path.parent / "lib"}
            libraries = [place for text, place in named.items() if image.find(text.encode()) >= 0]
        return next((place for place in libraries if any(place.glob("*.so*"))), None)
    except (OSError, ValueError):  # unreadable, or empty and therefore not mappable
        return None


def _head(path: Path, size: int) -> str:
    """The beginning of a file as text, empty if it cannot be read: an execute-only program has no readable head."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hold us
    except OSError:
        return ""
    try:
        return os.fsdecode(os.read(descriptor, size))
    except OSError:  # a directory, or a pipe with nothing in it
        return ""
    finally:
        os.close(descriptor)
