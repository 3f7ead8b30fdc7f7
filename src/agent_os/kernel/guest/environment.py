"""The environment a guest gets, and the meaning of `--env`, `--mount` and `--timeout`.

Host facts and the operator's words go in, plain values come out; bad words are refused with a right form.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.kernel.guest import prefixes
from agent_os.kernel.guest.program import Program

_PROXY = "127.0.0.1:3128"
_OWN_LOOPBACK = "127.0.0.1,localhost"

_LOCALE = re.compile(r"LANG|LANGUAGE|TZ|TERM|LC_[A-Z]+")
_PLAIN = re.compile(r"[\w.,:;@/+=<>-]{1,128}", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def environment(
    *,
    host_env: Mapping[str, str],
    extra: Mapping[str, str],
    path: str,
    proxy: bool,
    workspace: str,
    program: Program | None = None,
) -> dict[str, str]:
    """All of a guest's environment. Of the host's own only locale, time zone and terminal type pass: the rest of it
    is where keys and tokens are kept. `extra` is the operator's word and wins over everything."""
    return {
        "PATH": path,
        "HOME": "/home/agent",
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "PWD": workspace,
        "TMPDIR": "/tmp",
        "AGENT_OS": "1",
        **{k: v for k, v in host_env.items() if _LOCALE.fullmatch(k) and _PLAIN.fullmatch(v)},
        **_git(),
        **(proxied() if proxy else {}),
        **(_toolchain(host_env, program.roots) if program else {}),
        **extra,
    }


def _git() -> dict[str, str]:
    """An identity, and trust in the workspace whoever owns it: in root mode its files belong to a user who is not
    mapped inside, and git would refuse to touch them. What git guards against there (running a stranger's hooks) is
    what the sandbox is for. The identity is told twice: git itself goes by the variables, and programs that ask git
    for its settings (aider) write one into the project's `.git/config` if they find none."""
    name, email = "agent", "agent@agent-os.invalid"
    who = {f"GIT_{role}_NAME": name for role in ("AUTHOR", "COMMITTER")}
    where = {f"GIT_{role}_EMAIL": email for role in ("AUTHOR", "COMMITTER")}
    settings = {"safe.directory": "*", "user.name": name, "user.email": email}
    told = {"GIT_CONFIG_COUNT": str(len(settings))}
    for index, (key, value) in enumerate(settings.items()):
        told |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    return who | where | told


def proxied() -> dict[str, str]:
    """The way out, as the programs of all languages are told of it."""
    host, _, port = _PROXY.partition(":")
    variables = {name: f"http://{_PROXY}" for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")}
    variables["NO_PROXY"] = _OWN_LOOPBACK
    java = [f"-D{scheme}.proxyHost={host} -D{scheme}.proxyPort={port}" for scheme in ("http", "https")]
    java.append(f"-Dhttp.nonProxyHosts={_OWN_LOOPBACK.replace(',', '|')}")
    return {
        **variables,
        **{name.lower(): value for name, value in variables.items()},
        "NODE_USE_ENV_PROXY": "1",
        "JAVA_TOOL_OPTIONS": " ".join(java),
    }


def _toolchain(host_env: Mapping[str, str], roots: Sequence[Path]) -> dict[str, str]:
    """What activating an environment set on the host, for the environments this program really comes from."""
    shown = set(map(str, roots))
    kept = {name: host_env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if host_env.get(name) in shown}
    for root in roots:
        if prefixes.is_pyenv(root):
            kept["PYENV_ROOT"] = str(root)
            if _PLAIN.fullmatch(host_env.get("PYENV_VERSION", "")):
                kept["PYENV_VERSION"] = host_env["PYENV_VERSION"]
    return kept


# The flags


def parse_env(items: Sequence[str], host_env: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE`, or `NAME` to take the value from here. The last one of a name counts."""
    values: dict[str, str] = {}
    for item in items:
        name, given, value = item.partition("=")
        if not _NAME.fullmatch(name):
            raise EINVAL(
                "env.malformed", f"--env {item!r}: {name!r} is no name of a variable.", hint="--env NAME=VALUE"
            )
        if not given:
            if name not in host_env:
                raise EINVAL("env.unset", f"--env {name}: {name} is not set here.", hint=f"--env {name}=VALUE")
            value = host_env[name]
        if "\0" in value:
            raise EINVAL("env.malformed", f"--env {name}: the value contains a NUL byte.", hint="--env NAME=VALUE")
        values[name] = value
    return values


class Mount(Struct, frozen=True):
    source: Path  # the real path, free of links
    at: str
    rw: bool


_OWN_TREES = re.compile(r"/(proc|dev|sys|usr|etc|bin|sbin|lib[^/]*)(/|$)")
_OWN_PLACES = frozenset(("/", "/tmp", "/work", "/home", "/home/agent"))


def expand(path: str, home: Path) -> str:
    """`~` is the operator's home, whoever's this process has."""
    return f"{home}{path[1:]}" if path == "~" or path.startswith("~/") else os.path.expanduser(path)


def parse_mount(text: str, *, cwd: Path, home: Path | None = None) -> Mount:
    """`[rw:]SRC[:DST]`. Whether the source may be shown at all is the workspace's rule, not decided here."""
    rw = text.startswith("rw:")
    parts = (text[3:] if rw else text).split(":")
    if len(parts) > 2 or not all(parts) or re.search(r"[\x00-\x1f\x7f]", text):
        raise EINVAL("mount.malformed", f"--mount {text!r} is not [rw:]SRC[:DST].", hint="--mount rw:./data:/data")
    written = os.path.normpath(cwd / expand(parts[0], home or Path.home()))
    try:
        source = Path(written).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = f"--mount {text!r}: {written} is not there or not readable."
        raise ENOENT("mount.unknown", reason, hint=f"ls -ld {written}") from error
    return Mount(source, _destination(text, parts[1] if len(parts) == 2 else written), rw)


def _destination(text: str, at: str) -> str:
    if not at.startswith("/") or ".." in at.split("/"):
        raise EINVAL(
            "mount.malformed",
            f"--mount {text!r}: {at!r} must be an absolute path without '..'.",
            hint="--mount SRC:/data",
        )
    at = "/" + os.path.normpath(at).lstrip("/")
    if at in _OWN_PLACES or _OWN_TREES.match(at):
        raise EINVAL(
            "mount.refused",
            f"--mount {text!r}: {at} is the sandbox's own; choose another place.",
            hint="--mount SRC:/data",
        )
    return at


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Seconds of `90`, `10s`, `1.5m`, `1h`, `2d`; more than nothing and finite."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd]?)", text.strip(), re.ASCII)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise EINVAL("duration.malformed", f"{text!r} is no length of time above zero.", hint="10s, 5m, 1h or 90")
    return seconds
