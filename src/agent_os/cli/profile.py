"""Profiles of known programs: what `agentctl run --profile NAME` stands for, as flags that are not typed.

In: a name. Out: a `Profile`, from the operator's own folder or from those that ship beside this module. A profile asks,
as its flags would, and gives nothing: the kernel weighs them as if they had been typed. A project is a stranger's and
is not looked at. What a file says and nobody understands is an error with its line, never left out.
"""

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
from click.shell_completion import CompletionItem

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.cli.naming import did_you_mean
from agent_os.client.config import File, text_of, user_folder

_SHIPPED = Path(__file__).parent / "profiles"
_SUFFIX = ".toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")  # no way out of the folder
_HOST = re.compile(r"(\*\.)?([a-z0-9_-]+\.)*[a-z][a-z0-9_-]*", re.IGNORECASE)  # no spelling of an address
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Profile(NamedTuple):
    """Its keys are the flags of `run`, with their values as they are typed."""

    about: str = ""
    mount: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    net: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    cap: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    limit: tuple[str, ...] = ()
    timeout: str = ""

    @property
    def flags(self) -> str:
        """What somebody would have typed; of variables only the names, since a value may be a secret."""
        return " ".join(f"--{key} {_shown(key, word)}" for key, word in self._words())

    def _words(self) -> Iterator[tuple[str, str]]:
        said = cast(Mapping[str, str | tuple[str, ...]], self._asdict())
        for key, value in said.items():
            if key != "about":
                yield from ((key, word) for word in ([value] if isinstance(value, str) else value) if word)


NOTHING = Profile()


def load(name: str) -> Profile:
    """The operator's own of that name, else the one that ships. ENOENT lists those that there are."""
    for file in _places(name) if _NAME.fullmatch(name) else ():
        if (text := text_of(file)) is not None:
            return read(text, str(file.path))
    known = names()
    hint = f"there is {', '.join(known)}; your own go to {user_folder() / 'profiles'}"
    raise ENOENT("profile.unknown", f"there is no profile {name!r}{did_you_mean(name, known)}", hint=hint)


def names() -> list[str]:
    """Those that ship, and the operator's own."""
    found = (file.stem for folder in _folders() if folder.is_dir() for file in folder.glob(f"*{_SUFFIX}"))
    return sorted({name for name in found if _NAME.fullmatch(name)})


def _folders() -> tuple[Path, Path]:
    return user_folder() / "profiles", _SHIPPED


def _places(name: str) -> list[File]:
    own, shipped = (folder / f"{name}{_SUFFIX}" for folder in _folders())
    return [File("user", own), File("shipped", shipped)]


def read(text: str, file: str) -> Profile:
    """EINVAL `profile.…`: file, line and key of the first thing that is wrong."""
    import tomllib

    from agent_os.manifest.lines import TooDeep, toml_lines

    try:
        lines, table = toml_lines(text), tomllib.loads(text)
    except (tomllib.TOMLDecodeError, TooDeep) as problem:
        hint = "such as: net = ['example.com']"
        raise EINVAL("profile.syntax", f"{file} is no TOML: {problem}", hint=hint) from None
    found: dict[str, Any] = {key: _value(key, value, lines, file) for key, value in table.items()}
    return Profile(**found)


def _value(key: str, value: Any, lines: Mapping[tuple[str | int, ...], int], file: str) -> str | tuple[str, ...]:
    where = f"{file}:{lines.get((key,), 1)}"
    if key not in Profile._fields:
        near, known = did_you_mean(key, Profile._fields), ", ".join(Profile._fields)
        raise EINVAL("profile.key", f"{where}: there is no key {key!r}{near}", hint=f"there is {known}")
    if isinstance(Profile._field_defaults[key], str):
        return _checked(key, _word(key, value, where, "a text"), where)
    if not isinstance(value, list):
        raise _wrong(key, value, where, "a list of texts")
    elements = enumerate(cast(list[Any], value))
    places = ((one, f"{file}:{lines.get((key, number), lines.get((key,), 1))}") for number, one in elements)
    return tuple(_checked(key, _word(key, one, at, "a list of texts"), at) for one, at in places)


def _word(key: str, value: Any, where: str, takes: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _wrong(key, value, where, takes)
    return value


def _wrong(key: str, value: Any, where: str, takes: str) -> EINVAL:
    hint = f"as --{key} does: agentctl run --help"
    return EINVAL("profile.value", f"{where}: {key} takes {takes}, not {value!r}", hint=hint)


def _checked(key: str, word: str, where: str) -> str:
    """What a file must not say although a person could type it: it is read in whatever directory somebody is in, and
    the host's own loopback is opened by a person's flag alone."""
    if key == "mount" and not word.removeprefix("rw:").startswith(("/", "~/")):
        raise _wrong(key, word, where, "paths that begin with / or ~/")
    if key == "env" and not _VARIABLE.fullmatch(word.partition("=")[0]):
        raise _wrong(key, word, where, "NAME=VALUE, or NAME to pass yours on")
    if (key == "net" and not _is_elsewhere(word)) or (key == "cap" and "loopback" in word):
        reason = f"{where}: {key} takes hosts elsewhere, not {word!r}; this machine's own ports are opened by hand"
        raise EINVAL("profile.loopback", reason, hint="agentctl run --profile NAME --net 127.0.0.1:PORT")
    return word


def _is_elsewhere(net: str) -> bool:
    """Proved: a name that is not this machine's, or an address that is written out in full and leads elsewhere."""
    host = net.strip("[]") if net.count(":") > 1 and not re.search(r"\]:\d+$", net) else net.rpartition(":")[0] or net
    if _HOST.fullmatch(host):
        return host.lower().rpartition(".")[2] != "localhost"
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return not (mapped.is_loopback or mapped.is_unspecified)


def _shown(key: str, word: str) -> str:
    return word.partition("=")[0] if key == "env" else word


class ProfileName(click.types.StringParamType):
    """The name of a profile, which a shell can complete."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]
