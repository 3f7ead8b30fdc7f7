"""Which directories may be handed to an agent at all, and what is hidden inside them.

In: a path, the state directory, the operator's home. Out: the real path, the masks, or a refusal that names a folder
that would do. Looks at the disk and the user database; changes nothing. The lists themselves are in `protected`.
"""

import os
import pwd
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agent_os.abi.errors import EACCES, EINVAL, ENOENT
from agent_os.kernel.workspace import protected
from agent_os.kernel.workspace.protected import within

_LOGIN_UID = 1000


def check_source(path: Path, *, state: Path, home: Path, writable: bool = False) -> Path:
    """The real path of a directory that may be a workspace or mount source; else refused, naming one that would do.
    `writable`: what an agent writes there is there at once."""
    try:
        source = os.path.realpath(path, strict=True)
        info = os.stat(source)
    except FileNotFoundError:
        raise ENOENT("workspace.missing", f"{path} does not exist", hint="name an existing directory") from None
    except OSError as error:
        raise EACCES(
            "workspace.unreadable", f"{path} cannot be reached: {error.strerror}", hint=f"ls -ld {path}"
        ) from None
    real_state, real_home = os.path.realpath(state), os.path.realpath(home)
    homes = [real_home, *(_login_homes() if os.geteuid() == 0 else ())]
    reason = protected.refusal(source, state=real_state, homes=homes)
    if reason is None:
        above = [one for one in _all_homes(real_home) if within(source, one)]
        places = protected.credential_places(above, real_state)
        reason = next((f"{place} holds credentials" for place in places if within(source, place)), None)
    if writable:
        _require_no_code(source)
    if reason:
        would_do = _would_do(source, real_home, real_state, homes)
        raise EINVAL(
            "workspace.refused", f"{reason}; it cannot be handed to an agent", hint=f"use a folder such as {would_do}"
        )
    if not stat.S_ISDIR(info.st_mode):
        raise EINVAL("workspace.not_a_directory", f"{path} is not a directory", hint=f"use {os.path.dirname(source)}")
    if not os.access(source, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise EACCES("workspace.unreadable", f"{path} cannot be read", hint="ls -ld shows who may")
    return Path(source)


def _require_no_code(source: str) -> None:
    """Source or bytecode that an agent plants where we import from, the next kernel executes."""
    for place in filter(None, [*sys.path, os.path.dirname(sys.executable)]):
        code = os.path.realpath(place)
        if within(code, source) or within(source, code):
            reason = f"an agent may not write {source}: the kernel runs code from {code}"
            hint = "leave out bind: or rw:, then writes are kept apart; or install agentctl elsewhere"
            raise EINVAL("workspace.code", reason, hint=hint)


def hidden_places(*, state: Path, home: Path) -> list[str]:
    """The real paths of what no sandbox shows and is there: credentials of all accounts, and our own state."""
    places = protected.credential_places(_all_homes(os.path.realpath(home)), os.path.realpath(state))
    # Of some 900 a few are there, and to resolve one that is not takes a look at each of its parts.
    found = dict.fromkeys(os.path.realpath(place) for place in places if os.path.lexists(place))
    return [real for real in found if os.path.lexists(real)]


def masks(source: Path, at: str, hidden: Iterable[str]) -> list[str]:
    """Paths below `at`, where the sandbox mounts `source`, that must be hidden there.

    Real paths on both sides, so that a home or a credential folder that is a link elsewhere is found too.
    """
    top = os.path.realpath(source)
    below = (os.path.relpath(real, top) for real in hidden if within(real, top))
    found = {os.path.normpath(os.path.join(at, path)) for path in below}
    # A mask below another one has nothing left to hide.
    return sorted(path for path in found if not any(path != other and within(path, other) for other in found))


def _all_homes(own: str) -> list[str]:
    return list(dict.fromkeys([own, *(os.path.realpath(entry.pw_dir) for entry in pwd.getpwall())]))


def _login_homes() -> list[str]:
    """Homes of people, and root's: a service's home such as /var/www is a project like any other."""
    people = (entry for entry in pwd.getpwall() if entry.pw_uid == 0 or _LOGIN_UID <= entry.pw_uid < 65534)
    return [real for entry in people if (real := os.path.realpath(entry.pw_dir)) != "/"]


def _would_do(source: str, home: str, state: str, homes: list[str]) -> str:
    base = source if source in homes else home
    with suppress(OSError), os.scandir(base) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.name.isprintable() and protected.refusal(entry.path, state=state, homes=homes) is None:
                return entry.path
    return os.path.join(base, "project")
