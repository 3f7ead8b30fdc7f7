"""Names in an agent's tree: one spelling for each.

In: what an agent sent. Out: an absolute path without empty, `.` or `..` components, or EINVAL that says which rule it
broke. A name that is not in NFC is refused, not rewritten: rules and records must see the name that was meant. Pure
text: knows no mount and never looks at a file.
"""

import unicodedata

from agent_os.abi.errors import EINVAL, ENOENT

MAX_PATH = 4096  # bytes
MAX_NAME = 255  # bytes of one component
MAX_DEPTH = 32  # components
HOME_NAMESPACE = "default/"  # what a bare agent name stands for

_CONTROL = {"Cc", "Cs"}  # control characters, and surrogates, which are no UTF-8


def normalise(path: str, agent: str = "") -> str:
    """The one spelling of `path`. `/agent/<agent>/…` is the same as `/…`; any other id there is ENOENT."""
    _check(len(path) <= MAX_PATH, "path.long", f"a path has at most {MAX_PATH} bytes")  # before any work on it
    _check(path.startswith("/"), "path.relative", "a path starts with '/': there is no current directory")
    if not path.isprintable():  # which some harmless spaces are not either
        bad = next((char for char in path if unicodedata.category(char) in _CONTROL), None)
        _check(bad is None, "path.character", f"a path holds no control character (found {bad!r})")
    if not unicodedata.is_normalized("NFC", path):
        raise EINVAL("path.nfc", "a path is in NFC", hint=f"write {unicodedata.normalize('NFC', path)!r}")
    _check(len(path.encode()) <= MAX_PATH, "path.long", f"a path has at most {MAX_PATH} bytes")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    _check(".." not in parts, "path.dotdot", "'..' is not resolved here; name the entry from the root")
    _check(len(parts) <= MAX_DEPTH, "path.deep", f"a path has at most {MAX_DEPTH} components")
    for part in parts:
        _check(len(part.encode()) <= MAX_NAME, "path.name", f"a component has at most {MAX_NAME} bytes")
    return "/" + "/".join(_own(parts, agent))


def _own(parts: list[str], agent: str) -> list[str]:
    if not parts or parts[0] != "agent":
        return parts
    for spelling in (agent, agent.removeprefix(HOME_NAMESPACE)):
        names = spelling.split("/")
        if agent and parts[1 : 1 + len(names)] == names:
            return parts[1 + len(names) :]
    raise ENOENT("path.agent", "no such entry: below /agent there is only your own id")


def _check(good: bool, code: str, reason: str) -> None:
    if not good:
        raise EINVAL(code, reason)


def below(base: str, path: str) -> str | None:
    """`path` relative to `base`, "" for itself, None when it is not inside. Whole components only."""
    if path == base:
        return ""
    stem = base if base.endswith("/") else base + "/"
    return path[len(stem) :] if path.startswith(stem) else None


def join(base: str, name: str) -> str:
    if not name:
        return base or "/"
    return f"{base.rstrip('/')}/{name}"


def split(path: str) -> tuple[str, str]:
    """The directory and the last name of a relative path."""
    above, _, name = path.rpartition("/")
    return above, name


def speakable(name: str) -> bool:
    """Whether a name found on a disk can be said in a path at all."""
    try:
        return normalise("/" + name) == "/" + name
    except EINVAL:
        return False


def composed(path: str) -> str:
    """A path found on a disk, as rules spell it: in NFC."""
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def owner_name(agent: str) -> str:
    """How an agent is called in one component below /mem/shared. `~` occurs in no agent's name."""
    return agent.removeprefix(HOME_NAMESPACE).replace("/", "~")
