"""What an agent holds from its first moment, and which mounts that allows in each of its lives.

In: an order as it was written, and the authority above it: an operator's word, or what its parent holds. Out: handles,
with what the store must keep of them, and the order with only those mounts that a handle stands for. What is mounted is
held: whoever takes the handle back takes the mount back, and with it the process.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import EINVAL, EPERM
from agent_os.drivers.store import Put
from agent_os.kernel import guest, plan
from agent_os.kernel.authority.authority import Authority
from agent_os.kernel.authority.capability import ACTIONS, Capability
from agent_os.kernel.authority.handles import Holdings
from agent_os.kernel.authority.labels import Folder, is_declared
from agent_os.kernel.authority.labels import of_mount as label_of
from agent_os.kernel.authority.patterns import Flaw, compiled
from agent_os.kernel.authority.policy.rules import SourceRule
from agent_os.kernel.opened import Mounted
from agent_os.kernel.table import MOST_GENERATIONS, Agent, Ended, as_file
from agent_os.kernel.workspace import Workspace

MOUNT = "mount"  # where such a handle comes from
_READ, _WORK = frozenset({"read"}), "/work"
_FAMILY = {"depth": MOST_GENERATIONS}  # whoever descends from it sees what it sees
End = Callable[[Agent, Ended], Awaitable[object]]


class Life(Struct, frozen=True):
    """One life of an agent: what it is to see, and the handles which that rests on."""

    order: plan.Order
    mounted: list[Mounted]


def endow(
    authority: Authority,
    agent: Agent,
    caps: Sequence[Capability],
    wanted: plan.Order,
    limits: Mapping[str, int] | None = None,
) -> list[Put]:
    """What it holds, carries and may spend. A child's is part of its parent's, so that it is charged to the parent and
    goes with it; EPERM names what is not. A mount that the parent does not hold is not handed on."""
    puts = authority.anew(agent.id)
    held = agent.holdings = authority.holdings(agent.id)
    parent = authority.holdings(agent.parent) if agent.parent else None
    for one in caps:
        if parent:
            parent.delegate(one, held, origin="spawn")
        else:
            held.grant(one, "operator")
    for one in (work(), *map(of_mount, wanted.mounts)):
        if parent:
            _hand_on(parent, held, one)
        else:
            held.grant(one, MOUNT)
    return [*puts, *authority.begin(agent.id, agent.parent, limits=limits)]


def surround(authority: Authority, agent: Agent, wanted: plan.Order) -> list[Put]:
    """What it will see without asking, it carries from here on; and what it carries may be where it writes."""
    sources = authority.policies.of(agent.id).sources
    named = [mount for mount in wanted.own if _is_named(mount.at, sources)]  # of a program, what a rule is about
    seen = [(mount.at, str(mount.source), mount.rw) for mount in (*wanted.mounts, *named)]
    own = list[Folder]()
    if wanted.project:
        seen.append((_WORK, str(wanted.project), wanted.mode == "bind"))
        if wanted.mode == "overlay":
            # One that lived before goes on with what it wrote then, also where its manifest gives it a new beginning.
            own.append(Folder(_layer(as_file(agent.id)), reads=wanted.again, writes=True))
    if wanted.origin:
        own.append(Folder(_layer(wanted.origin.agent), reads=True, writes=False))
    folders = [Folder(os.path.realpath(source), not is_declared(at, sources), rw) for at, source, rw in seen]
    return authority.labels.surround(agent.id, [*folders, *own], (label_of(at, sources) for at, _, _ in seen))


def _is_named(at: str, sources: Sequence[SourceRule]) -> bool:
    return is_declared(at, sources) or any(one.reaches("file", "read", at) for rule in sources for one in rule.what)


async def commit(authority: Authority, workspace: Workspace) -> None:
    """Its changes are about to be written to its project, with all that whoever made them carried."""
    await authority.carry_over(_layer(workspace.agent), os.path.realpath(workspace.project))


def _layer(name: str) -> str:
    """The folder of what an agent writes over its project, as labels know it."""
    return f"workspace:{name}"


def _hand_on(parent: Holdings, held: Holdings, wanted: Capability) -> None:
    for some in (wanted, wanted.only(_READ)):
        plain = Capability(some.kind, some.target, some.actions)  # how deep it goes is inherited
        try:
            parent.delegate(plain, held, origin=MOUNT)
        except EPERM:
            continue
        return


def begin(agent: Agent, wanted: plan.Order, end: End) -> Life:
    """The mounts that it still holds, for this life. From here on revoking one of them ends it."""
    held, mounted = agent.holdings, list[Mounted]()

    def holds(capability: Capability) -> bool:
        handle = held.holding(Capability(capability.kind, capability.target, capability.actions, {"depth": 0}))
        if handle:
            mounted.append(Mounted(handle, agent, end))
        return handle is not None

    if not holds(work()):
        wanted = replace(wanted, project=None, mode="tmpfs", origin=None, snapshot=None)
    mounts: list[guest.Mount] = []
    for mount in wanted.mounts:
        if holds(of_mount(mount)):
            mounts.append(mount)
        elif mount.rw and holds(of_mount(replace(mount, rw=False))):
            mounts.append(replace(mount, rw=False))
    return Life(replace(wanted, mounts=tuple(mounts)), mounted)


def work() -> Capability:
    """What whoever has a workspace holds of it, and hands on."""
    return Capability("file", compiled("file", f"{_WORK}/**"), ACTIONS["file"], _FAMILY)


def of_mount(mount: guest.Mount) -> Capability:
    """A directory's is all below it; stars in its name are letters."""
    path = mount.at.rstrip("/")
    stars = frozenset(at for at, char in enumerate(path) if char == "*")
    try:
        target = compiled("file", f"{path}/**" if mount.source.is_dir() else path, literal=stars)
    except Flaw as flaw:
        reason = f"{mount.at!r} cannot be named by a capability: {flaw.why}"
        raise EINVAL("mount.name", reason, hint="--mount SRC:DST shows it under another name") from None
    return Capability("file", target, ACTIONS["file"] if mount.rw else _READ, _FAMILY)
