"""What a guest will see, decided before anything is made: an operator's order and the host's facts in, a spec out.

Reads the file system; starts, mounts and records nothing.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from agent_os.abi.errors import EINVAL
from agent_os.kernel import guest
from agent_os.kernel.egress import Grant, models, routes
from agent_os.kernel.egress.addresses import Address
from agent_os.kernel.egress.models import UNTOLD, Told
from agent_os.kernel.egress.routes import Route
from agent_os.kernel.hiding import Covered, at_host
from agent_os.kernel.vfs.paths import below
from agent_os.kernel.workspace import Workspace
from agent_os.kernel.workspace.sources import check_source, hidden_places, masks
from agent_os.sandbox.spec import GUEST_LIMITS, PROXY_PORT, Bind, Cover, Level, Limits, SpawnSpec
from agent_os.sandbox.spec import Workspace as WorkspaceSpec

Mode = Literal["overlay", "bind", "tmpfs"]
_MOST_NAMED = 5  # covered files
_NO_SCRIPT = re.compile(r"-[A-Za-z]*[cm]")  # -c, -Ic, -lc, -m: what follows is no file


class Order(Struct, frozen=True):
    argv: tuple[str, ...]
    cwd: Path
    project: Path | None  # None: an empty workspace in memory
    mode: Mode = "overlay"
    mounts: tuple[guest.Mount, ...] = ()
    net: tuple[Grant, ...] = ()
    routes: tuple[Route, ...] = ()  # doors that bring a key
    models: Told = UNTOLD  # the door to models
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits = GUEST_LIMITS
    min_level: Level = "S2"
    origin: Workspace | None = None  # the state its overlay begins with
    snapshot: str | None = None  # what to call the state it ends with
    tty: tuple[int, int] | None = None  # rows and columns of a terminal of its own, in place of the streams
    socket: bool = False  # it speaks to the kernel, on descriptor 3
    shown: tuple[Path, ...] = ()  # more of the host that it needs, read-only
    again: bool = False  # it has run before: if its workspace is there, it goes on with that
    program: guest.Program | None = None  # what it will run, once that has been looked up: see `complete`
    covers: tuple[Covered, ...] = ()  # what rules forbid it to see, to write, to remove

    @property
    def own(self) -> tuple[guest.Mount, ...]:
        """What its program needs of the host besides."""
        prefixes = self.program.prefixes if self.program else ()
        needed = [path for path in self.shown if not any(path.is_relative_to(prefix) for prefix in prefixes)]
        return tuple(guest.Mount(path, str(path), rw=False) for path in (*prefixes, *needed))

    @property
    def masks(self) -> list[str]:
        """Inside: what rules forbid it to see."""
        return [one.path for one in self.covers if one.how == "hide"]

    @property
    def writable(self) -> list[str]:
        """Inside: where what it writes is at once on the host."""
        work = [str(self.project)] if self.project and self.mode == "bind" else []
        return [*(mount.at for mount in self.mounts if mount.rw), *work]

    @property
    def written(self) -> list[Path]:
        """The same, as the host calls it."""
        work = [self.project] if self.project and self.mode == "bind" else []
        return [*(mount.source for mount in self.mounts if mount.rw), *work]

    @property
    def routed(self) -> tuple[str, ...]:
        """Hosts that a door leads to, so that no connection of the guest's own may."""
        return (*(route.host for route in self.routes), *self.models.hosts)


class Host(Struct, frozen=True):
    """What a run needs to know of the machine it is on."""

    state: Path
    home: Path
    env: Mapping[str, str]


def check_mount(mount: guest.Mount, host: Host) -> guest.Mount:
    """The same rule as for workspaces, but a single file may be mounted, too."""
    try:
        check_source(mount.source, state=host.state, home=host.home, writable=mount.rw)
    except EINVAL as error:
        if error.code != "workspace.not_a_directory":
            raise
    return mount


def loopback_doors(grants: Sequence[Grant]) -> list[tuple[Address, int]]:
    """Granted endpoints of this machine's loopback. Each appears on the guest's own loopback under the same port, since
    programs rightly do not ask a proxy for 127.0.0.1."""
    doors = {grant.port: grant.network.network_address for grant in grants if grant.network and grant.is_loopback}
    return [(address, port) for port, address in doors.items() if port and port != PROXY_PORT]


def title(argv: Sequence[str]) -> str:
    """What to call a run: the program, or the script that an interpreter was asked to run."""
    words = [word for word in argv if not word.startswith("-")]
    inline = any(map(_NO_SCRIPT.fullmatch, takewhile(lambda word: word.startswith("-"), argv[1:])))
    if len(words) > 1 and guest.INTERPRETERS.match(Path(words[0]).name) and not inline:
        return words[1]
    return words[0] if words else ""


class Plan(Struct, frozen=True):
    spec: SpawnSpec
    paths: dict[str, Path]  # the host paths behind its descriptors
    notes: tuple[str, ...]
    watched: tuple[Covered, ...] = ()  # covered where the host's own file is seen: whoever replaces that uncovers it


def complete(order: Order, host: Host) -> Order:
    """With its program looked up, so that rules can be asked about what that needs of the host as well."""
    own_place = [Path(mount.at) for mount in order.mounts if str(mount.source) == mount.at]
    program = guest.resolve(
        command(order),
        cwd=order.cwd,
        path=host.env.get("PATH", os.defpath),
        home=host.home,
        visible=[Path("/usr"), *([order.project] if order.project else []), *own_place],
        private=[host.state],
    )
    return replace(order, program=program)


def plan(order: Order, name: str, host: Host) -> Plan:
    order = order if order.program else complete(order, host)
    at, program = str(order.project) if order.project else "/work", order.program
    assert program
    shown = [*order.own, *order.mounts]
    paths = {f"bind{i}": mount.source for i, mount in enumerate(shown)}
    places = [(mount.source, mount.at) for mount in shown]
    if order.project:
        paths["lower"] = order.project
        places.append((order.project, at))
    inside = str(order.cwd) if order.project and order.cwd.is_relative_to(order.project) else at
    env = guest.environment(
        host_env=host.env,
        extra={**routes.environment(order.routes), **models.environment(order.models.dialects), **order.env},
        path=program.path,
        proxy=True,
        workspace=inside,
        program=program,
    )
    if order.socket:
        env["AGENT_OS_FD"] = "3"
    always = _always(places, host)
    spec = SpawnSpec(
        spawn_id=name,
        kind="native" if order.socket else "guest",
        isolation="exec",
        argv=list(program.argv),
        env=env,
        cwd=inside,
        net="proxy",
        tty=list(order.tty) if order.tty else None,
        forward=[port for _, port in loopback_doors(order.net)],
        workspace=WorkspaceSpec(order.mode, at, size_mb=order.limits.tmp_mb, inodes=65536),
        binds=[Bind(f"bind{i}", mount.at, rw=mount.rw) for i, mount in enumerate(shown)],
        masks=sorted(one.path for one in always),
        covers=[_cover(one, order) for one in order.covers],
        limits=order.limits,
        exec_memfd=True,  # JIT compilers of real programs need it
        min_level=order.min_level,
        beside=True,
    )
    seen = (one for one in (*always, *order.covers) if order.mode == "bind" or below(at, one.path) is None)
    return Plan(spec, paths, (*program.notes, *_covered(order.masks, at)), tuple(seen))


def _cover(one: Covered, order: Order) -> Cover:
    """What an overlay shows has a device of its own; of one that an earlier run wrote in, nothing is certain."""
    in_work = order.project is not None and below(str(order.project), one.path) is not None
    if in_work and order.mode == "overlay":
        return Cover(one.path, one.how, 0, 0 if order.again or order.origin else one.inode)
    return Cover(one.path, one.how, one.device, one.inode)


def _covered(masks: Sequence[str], at: str) -> Iterator[str]:
    """A covered file looks empty inside, and a program may not say so."""
    if masks:
        names = [path.removeprefix(f"{at}/") for path in masks[:_MOST_NAMED]]
        more = f" and {len(masks) - _MOST_NAMED} more" if len(masks) > _MOST_NAMED else ""
        yield f"covered by rules, and empty to it: {', '.join(names)}{more}   rules: agentctl policy show"


def _always(places: Sequence[tuple[Path, str]], host: Host) -> set[Covered]:
    """Credentials and our own state, whatever the rules say."""
    hidden = hidden_places(state=host.state, home=host.home)
    return {
        at_host(mask, os.path.normpath(os.path.join(os.path.realpath(source), os.path.relpath(mask, at))))
        for source, at in places
        for mask in masks(source, at, hidden)
    }


def command(order: Order) -> tuple[str, ...]:
    """A program that only the restored state has is looked up inside: what an earlier agent wrote must not choose what
    of the host is shown."""
    place = os.path.normpath(order.cwd / order.argv[0]) if order.argv else ""
    if not (order.origin and order.project and "/" in order.argv[0]) or os.path.lexists(place):
        return order.argv
    inside = Path(place).is_relative_to(order.project) and order.origin.wrote(os.path.relpath(place, order.project))
    return ("/usr/bin/env", "--", *order.argv) if inside else order.argv
