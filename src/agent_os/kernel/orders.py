"""An operator's order as it arrives on the wire, read and checked: a map in, a `plan.Order` and its `Host` out.

The words are those of `agentctl run`; paths are relative to the client's directory, and of its environment only what it
sent is known. Raises before anything is made. Decides nothing about how a guest is built: that is `plan`'s.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi.errors import EACCES, EINVAL
from agent_os.abi.text import native, portable
from agent_os.kernel import guest, plan
from agent_os.kernel.egress import parse_grant
from agent_os.kernel.workspace import Workspace, Workspaces
from agent_os.kernel.workspace.sources import check_source
from agent_os.sandbox.spec import LEVELS

DEFAULT_LEVEL = "S2"
After = Literal["keep", "commit", "discard"]
Text = Any  # str, or bytes where a name of the host is no UTF-8; `_text` sees to it


class Written(Struct, forbid_unknown_fields=True):
    """An order, as written."""

    argv: list[Text] = []
    cwd: Text = "/"
    environment: dict[str, Text] = {}  # of the client's own, what a plan may look at
    workspace: Text | None = None
    mounts: list[Text] = []
    net: list[str] = []
    secrets: list[str] = []  # names, or NAME=HOST: each becomes a door
    models: list[str] = []  # provider/name, provider/*, or an alias: what it may call
    caps: list[str] = []  # what it holds beside its mounts; a child's is part of its parent's
    budget: dict[str, int] = {}  # what it and all below it may spend, by resource
    env: list[Text] = []
    timeout: str | None = None
    limit: list[str] = []
    min_isolation: str | None = None
    origin: str | None = None
    snapshot: str | None = None
    tty: tuple[int, int] | None = None
    name: str | None = None
    after: After = "keep"
    allow_protected: bool = False
    shadow: bool = False  # what its project's rules would refuse is recorded, and happens
    file: Text | None = None  # an agent written for us: its file, the function, and its author's interpreter
    function: str = ""
    python: Text = ""
    model: str = ""  # of an agent that a manifest's model runs
    kind: str = ""  # from here on what the kernel adds, so that the same order can be carried out again
    parent: str | None = None
    spawned: int = 0  # the handle that its parent started it by
    roles: list[str] = []  # of an agent of a manifest: its own, and the base of a custom one
    manifest: str = ""  # as it was admitted, complete, in JSON: its agency and all else that lasts
    grant: tuple[str, str] = ("", "")  # which grant it was given, and of which grant of its supervisor that is a part
    clamped: list[dict[str, Any]] = []  # what of the manifest was made to fit those above
    input: Any = None


_decode = msgspec.msgpack.Decoder(Written).decode  # what came by the wire is of the wire's types


def read(order: Mapping[str, Any]) -> Written:
    try:
        return _decode(frames.encode_body(order))
    except msgspec.ValidationError as problem:
        raise EINVAL("order.malformed", f"this is no order: {problem}") from None


def host_of(written: Written, state: Path) -> plan.Host:
    env = {name: word(value) for name, value in written.environment.items()}
    home = env.get("HOME")
    return plan.Host(state, Path(home) if home and home.startswith("/") else Path.home(), env)


def parse(written: Written, here: plan.Host) -> plan.Order:
    """What the operator wrote, checked."""
    cwd = Path(word(written.cwd))
    if not cwd.is_absolute():
        raise EINVAL("order.malformed", "cwd is an absolute path")
    kept = Workspaces(here.state)
    text = None if written.workspace is None else word(written.workspace)
    state = kept.open(written.origin) if written.origin is not None else None
    mode, project = _restored(state, text, cwd, here) if state else _workspace(text, cwd, here)
    if written.snapshot is not None:
        _check_snapshot(written.snapshot, mode, kept)
    wall = guest.parse_duration(written.timeout) if written.timeout else None
    mounts = [guest.parse_mount(word(mount), cwd=cwd, home=here.home) for mount in written.mounts]
    return plan.Order(
        argv=tuple(map(word, written.argv)),
        cwd=cwd,
        project=project,
        mode=mode,
        mounts=tuple(plan.check_mount(mount, here) for mount in mounts),
        net=tuple(parse_grant(each) for each in written.net),
        env=guest.parse_env([word(each) for each in written.env], here.env),
        limits=guest.parse_limits(written.limit, wall),
        min_level=minimum_level(written.min_isolation),
        origin=state,
        snapshot=written.snapshot,
        tty=written.tty,
    )


def pinned(order: Mapping[str, Any], parsed: plan.Order) -> dict[str, Any]:
    """The order with the real places of what it shows of the host, so that whoever carries it out again shows the same:
    an agent that writes there can make a link to anywhere out of them."""
    work = f"{parsed.mode}:{parsed.project}" if parsed.project else parsed.mode
    return {**order, "workspace": portable(work), "mounts": list(map(named, parsed.mounts))}


def require_unmoved(order: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """EACCES: a place of an order that was pinned leads somewhere else `now`."""
    before = [order.get("workspace"), *order.get("mounts", ())]
    for was, leads in zip(before, [now["workspace"], *now["mounts"]], strict=True):
        if was != leads:
            reason = f"{native(was or '')} leads to {native(leads)} now: somebody has put a link there"
            raise EACCES("order.moved", reason, hint="put back what was there, or declare it anew")


def named(mount: guest.Mount) -> str | bytes:
    """As an order writes it. EINVAL: it has a letter that none can."""
    if ":" in str(mount.source):
        raise EINVAL("mount.name", f"{mount.source} cannot be mounted: no mount is written with ':'", hint="rename it")
    return portable(f"{'rw:' if mount.rw else ''}{mount.source}:{mount.at}")


def word(value: Any) -> str:
    """As Python holds what the wire brought."""
    if not isinstance(value, str | bytes):
        raise EINVAL("order.malformed", f"this is no order: {type(value).__name__} where a name or a word belongs")
    return native(value)


def _workspace(text: str | None, cwd: Path, here: plan.Host) -> tuple[plan.Mode, Path | None]:
    """`DIR` and `overlay:DIR` keep writes apart, `bind:DIR` writes through, `tmpfs` is empty and gone at the end."""
    if text == "tmpfs":
        return "tmpfs", None
    if text is not None and not text.removeprefix("bind:").removeprefix("overlay:"):
        raise EINVAL("workspace.malformed", "--workspace names no directory", hint="--workspace DIR, bind:DIR or tmpfs")
    mode: plan.Mode = "bind" if text and text.startswith("bind:") else "overlay"
    path = guest.expand(text.removeprefix(f"{mode}:") if text else ".", here.home)
    return mode, check_source(cwd / path, state=here.state, home=here.home, writable=mode == "bind")


def _restored(state: Workspace, text: str | None, cwd: Path, here: plan.Host) -> tuple[plan.Mode, Path | None]:
    """A state goes over the very project it was made over."""
    mode, project = _workspace(text or str(state.project), cwd, here)
    if mode != "overlay" or project != state.project:
        reason = f"{state.name} is a state of {state.project} and can go over nothing else"
        raise EINVAL("snapshot.project", reason, hint="leave --workspace out")
    return mode, project


def _check_snapshot(name: str, mode: plan.Mode, kept: Workspaces) -> None:
    if mode != "overlay":
        reason = f"a {mode} workspace leaves no state that could be kept"
        raise EINVAL("snapshot.nothing", reason, hint="--snapshot without --workspace bind: or tmpfs")
    kept.require_free(name)


def minimum_level(text: str | None = None) -> plan.Level:
    """The level below which nothing starts: the operator's word, else the kernel's own, else S2."""
    wanted = text or os.environ.get("AGENT_OS_MIN_ISOLATION") or DEFAULT_LEVEL
    for level in LEVELS:
        if level == wanted.upper():
            return level
    raise EINVAL("isolation.unknown", f"{wanted!r} is no isolation level", hint=f"one of {', '.join(LEVELS)}")
