"""SYS_SPAWN: what an agent may ask for as its child, turned into an order that can be carried out.

In: a manifest as an agent hands it in. Out: an `Act` whose deed starts the child, or the first refusal of admission. A
child runs in its parent's own project, with its parent's view of the machine: never more paths, hosts, environment or
time than the parent was given, and nothing of what the operator said should happen with the parent's work. Its parent
is whoever called: nothing that is said can name another one.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EEXIST, EINVAL, EIO, EISOLATION, EPERM
from agent_os.abi.syscalls import Effect, Spawn
from agent_os.abi.text import native
from agent_os.drivers.store import Put
from agent_os.kernel import endowment, guest, orders
from agent_os.kernel.authority import capability, charges
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.calls import Act, Done, Need, Way, leave_of
from agent_os.kernel.journal import Draft
from agent_os.kernel.passing import revoked
from agent_os.kernel.supervisor import admission, orders_of, watched
from agent_os.kernel.supervisor.admission import Above, Admitted, Ceiling, Clamped
from agent_os.kernel.supervisor.specs import Spec
from agent_os.kernel.table import Agent, bare
from agent_os.kernel.workspace import new_names
from agent_os.manifest.model import AgentManifest
from agent_os.manifest.roles import AgentPriority
from agent_os.manifest.sections import Section
from agent_os.manifest.settling import runtime
from agent_os.manifest.terms import terms
from agent_os.sandbox.spec import LEVELS

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

_KEEPS = ("cwd", "environment", "workspace", "mounts", "net", "env", "timeout", "limit", "min_isolation", "python")
# Of who is declared, not spawned.
_UNHEARD = (
    *(("dependencies",), ("interface",), ("health", "on_failure"), ("supervision", "children")),
    *(("program", "working_dir"), ("program", "output_schema"), ("budget", "on_exhausted")),
    *(("lifecycle", key) for key in ("activation", "schedule", "timezone", "hooks")),
)
# Of who does not say its role.
_UNSUPERVISED = (("health",), ("lifecycle",), ("supervision",), ("resources", "priority"), ("budget", "per"))
_PRIORITIES = tuple(AgentPriority)  # the least first
WALLS = 11  # the last step
MOST_PARTS, MOST_TEXT = 300, 32 << 10  # of a manifest: everybody else waits while it is understood
_RANK = {"tmpfs": 0, "overlay": 1, "bind": 2}


def prepare(kernel: "Kernel", parent: Agent, request: Spawn, cap: int | None = None) -> Act:
    """A child: it sees what its parent sees, and what it may do is part of what its parent holds. The steps that come
    before the policy are taken here, the others are the gate's."""
    asked = understood(kernel, parent, request, cap)
    said = _said(asked.manifest, request.input)

    async def do() -> Done:
        now = admission.above(parent)  # what its parent may give, others may have changed meanwhile
        admitted = admission.admit(now, asked.manifest, asked.extra)
        _require_held(parent, asked.extra)
        _require_place(kernel, now, asked.manifest)
        with kernel.table.claimed(asked.manifest.id, parent.id):  # from here on it counts, whoever comes meanwhile
            by = parent.holdings.find(asked.needs, cap)

            def place() -> None:
                """What it rests on or is to hold may be gone by now, and so may its parent. Its place is claimed."""
                admission.require_there(kernel.table, parent.id)
                admission.admit(admission.above(parent), asked.manifest, asked.extra)
                _require_held(parent, admitted.capabilities)
                if by and by.revoked:
                    raise revoked()
                if by:
                    charges.require_life(by)
                leave_of(act).confirm()

            admitted.clamped[:0] = asked.clamped
            spawned = {**asked.order, **admitted.words(), "spawned": by.id if by else 0}
            start = Start(kernel, parent, admitted, spawned, said, place, leave_of(act).confirm)
            child = await (_begin(start) if asked.complete else _start(start))
            _note(start, child)
        return Done({"agent": child.name, "level": child.isolation})

    act = Act(do, asked.needs, Way.EFFECT, Effect.VERIFIABLE, can_stop=False)
    return act


class Understood(NamedTuple):
    """A child that may be, as far as the policy has no say in it."""

    manifest: AgentManifest
    needs: list[Need]
    order: dict[str, Any]
    clamped: list[Clamped]
    extra: list[Capability]  # asked for beside the manifest
    complete: bool  # it says its role, so all of it counts: it is supervised. Else it is a program, run like its parent


def understood(kernel: "Kernel", parent: Agent, request: Spawn, cap: int | None = None) -> Understood:
    """Steps 1 to 7, in their order. Changes nothing."""
    admission.require_running(parent)
    name, manifest = _read(kernel, parent, request.manifest)
    needs = [Need("agent", "spawn", name or "*")]
    admission.require_grant(parent, name or "*", cap)
    who = admission.above(parent)
    admission.require_role(who.agency, manifest)
    _require_place(kernel, who, manifest)
    if len(request.caps) > MOST_PARTS:
        raise EINVAL("body", f"SYS_SPAWN: at most {MOST_PARTS} capabilities - at `$.caps`")
    extra = [capability.parse(text) for text in request.caps]
    _require_held(parent, extra)
    admission.admit(who, manifest, extra)
    complete = _says_its_role(request.manifest)
    order, clamped = child_order(parent, manifest, who.ceiling, complete=complete)
    manifest = _no_more_urgent(parent, manifest, clamped)
    return Understood(manifest, needs, order, clamped, extra, complete)


def require_walls(kernel: "Kernel", parent: Agent, asked: Understood) -> None:
    """Step 11, before anything is made: its workspace and mounts can be, and the walls are as high as it wants them.
    They are what its parent has got here."""
    written = orders.read(asked.order)
    orders.parse(written, orders.host_of(written, kernel.guests.home))
    least = orders.minimum_level(written.min_isolation)
    if parent.isolation in LEVELS and LEVELS.index(parent.isolation) < LEVELS.index(least):
        reason = f"it wants {least}, and this machine gives {parent.isolation}"
        raise EISOLATION("level", reason, hint=f'min_level = "{parent.isolation}"', step=WALLS)


def _require_held(parent: Agent, wanted: Sequence[Capability]) -> None:
    for one in wanted:
        parent.holdings.prove(one)


class Start(NamedTuple):
    """A child that is to be: all that was found out about it."""

    kernel: "Kernel"
    parent: Agent
    admitted: Admitted
    order: dict[str, Any]
    said: Any  # to it, when it begins
    place: Callable[[], None]
    confirm: Callable[[], None]


async def _begin(start: Start) -> Agent:
    """As a member of the fleet: its record tells of it from its first entry on."""
    manifest, order = start.admitted.manifest, {**start.order, "caps": _caps(start), "input": start.said}
    spec = Spec.of(manifest, native(start.parent.order["cwd"]), spawned=True)

    async def make(puts: Sequence[Put]) -> Agent:
        return await _start(start, [*puts, orders_of.endowed(spec, {**order, "parent": start.parent.id})])

    return await start.kernel.fleet.spawned.begin(spec, start.parent.id, make)


async def _start(start: Start, puts: Sequence[Put] = ()) -> Agent:
    return await start.kernel.guests.start(
        start.order,
        name=bare(start.admitted.manifest.id),
        parent=start.parent.id,
        caps=_caps(start),
        input=start.said,
        puts=puts,
        place=start.place,
        confirm=start.confirm,
    )


def _caps(start: Start) -> list[str]:
    return [one.canonical for one in start.admitted.capabilities]


def _note(start: Start, child: Agent) -> None:
    kernel, parent, admitted = start.kernel, start.parent, start.admitted
    clamped = ({"event": "spawn.clamped", **one._asdict()} for one in admitted.clamped)
    count = kernel.table.family(parent.id)
    added = {"event": "agency.child", "parent": parent.id, "child": "added", "pid": child.pid, "count": count}
    with suppress(EIO):  # a journal that failed has told everybody; the child is there
        for facts in (*clamped, added):
            draft = Draft(child.id, Kind.CHANGE, child.incarnation, body=frames.encode_body(facts))
            kernel.journal.put(draft, sync=False)


def _read(kernel: "Kernel", parent: Agent, written: Mapping[str, Any]) -> tuple[str | None, AgentManifest]:
    """The name that was asked for, and the manifest. What is left out of it is as usual for a child."""
    parts, text = _measured(written)
    if parts > MOST_PARTS or text > MOST_TEXT:
        most = f"{MOST_PARTS} keys and elements" if parts > MOST_PARTS else f"{MOST_TEXT} characters"
        reason = f"a manifest that is spawned has at most {most}"
        raise EINVAL("manifest", reason, hint="name folders and patterns", step=admission.MANIFEST)
    tree = {key: value for key, value in written.items() if key != "caps"}  # those come beside it
    fallback = kernel.table.unused(new_names(_title(tree.get("program"))), parent.namespace)
    manifest = admission.read(tree, parent.namespace, fallback)
    return (None if manifest.name == fallback else bare(manifest.id)), manifest


def _measured(tree: Any) -> tuple[int, int]:
    """How many keys and elements it has, and how many characters they have; counted no further than matters."""
    parts, text, line = 0, 0, [tree]
    while line and parts <= MOST_PARTS:
        one: Any = line.pop()
        if isinstance(one, str | bytes):
            text += len(one)
        elif isinstance(one, Mapping | list):
            inner = cast("list[Any]", list(one.values() if isinstance(one, Mapping) else one))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            parts += len(inner)
            line += inner[:MOST_PARTS]
            line += list(cast("Mapping[Any, Any]", one))[:MOST_PARTS] if isinstance(one, Mapping) else ()
    return parts, text


def _title(program: Any) -> str:
    """What to call a child without a name: as its program is called, if that can be told before it is checked."""
    words = cast("Mapping[str, Any]", program if isinstance(program, Mapping) else {})
    argv: Any = words.get("argv")
    told = words.get("entry") or (argv[0] if isinstance(argv, list) and argv else "")  # pyright: ignore[reportUnknownVariableType]
    return told.partition(":")[0] if isinstance(told, str) else ""


def _require_place(kernel: "Kernel", who: Above, manifest: AgentManifest) -> None:
    if kernel.fleet.spec(manifest.id):
        reason = f"{bare(manifest.id)} is there, or is going to be"
        raise EEXIST("id", reason, hint="choose another name", step=admission.PLACE)
    admission.require_free(kernel.table, manifest.id, who.id)
    admission.require_place(kernel.table, who.id, who.agency.max_children, kernel.fleet.spawned.waiting(who.id))


# The order.


def child_order(
    parent: Agent, manifest: AgentManifest, ceiling: Ceiling, *, complete: bool = False
) -> tuple[dict[str, Any], list[Clamped]]:
    """The order, and what of the manifest was made to fit it. EINVAL names what is wrong, EPERM a file that is not the
    parent's to run. `complete`: it says its role, so what it leaves out is as a manifest has it; else as the parent."""
    if "file" not in parent.order and not (parent.outside and "cwd" in parent.order):
        hint = "declare both: agentctl apply"
        raise EPERM("spawn.guest", "only agents written for Agent OS can start others", hint=hint)
    _require_heard(manifest, complete=complete)
    order = {key: parent.order[key] for key in _KEEPS if key in parent.order}
    order |= _program(parent, manifest)
    order["mounts"] = list(_mounts(parent, manifest, ceiling))
    clamped: list[Clamped] = []
    if "sandbox" in manifest.given and "workspace" in manifest.sandbox.given:
        order["workspace"] = _workspace(parent, manifest.sandbox.workspace)
    if complete:
        like = orders_of.conditions(manifest)
        order["limit"] = list(_limits(parent, like["limit"], clamped))
        order["env"] = [*parent.order.get("env", ()), *like["env"]]
        order["budget"] = like["budget"]
        order["timeout"] = _timeout(parent, manifest.resources.max_runtime_secs)
        order["min_isolation"] = max(orders.minimum_level(one) for one in (like["min_isolation"], _level(parent)))
    return order, clamped


def _says_its_role(written: Mapping[str, Any]) -> bool:
    """A table may stand around the first keys."""
    around: Any = written.get("agent")
    keys = (*written, *(cast("Mapping[str, Any]", around) if isinstance(around, Mapping) else ()))
    return any(key.lower() == "role" for key in keys)


def _require_heard(manifest: AgentManifest, *, complete: bool) -> None:
    """EINVAL: it says something that nobody would do for it."""
    hint, reason = "leave it out, or declare the agent: agentctl apply", "is not supported yet for who is spawned"
    if not complete and any(_is_given(manifest, *key) for key in _UNSUPERVISED):
        hint, reason = 'say its role too, as in role = "worker"', "is for agents that are supervised"
    unheard = [key for key in (*_UNHEARD, *(() if complete else _UNSUPERVISED)) if _is_given(manifest, *key)]
    if unheard:
        key = ".".join(unheard[0])
        raise EINVAL("manifest", f"{key}: {reason}", hint=hint, key=key, step=admission.MANIFEST)
    if complete:
        try:
            watched.of(manifest)
        except EINVAL as error:
            raise EINVAL("manifest", error.reason, hint=error.hint, step=admission.MANIFEST) from None


def _no_more_urgent(parent: Agent, manifest: AgentManifest, clamped: list[Clamped]) -> AgentManifest:
    """Its share of the machine is no larger than its parent's: that would be a way to have more oneself."""
    above = admission.manifest_of(parent)
    most = _PRIORITIES.index(above.resources.priority if above else AgentPriority.NORMAL)
    wish = manifest.resources.priority
    if _PRIORITIES.index(wish) <= most:
        return manifest
    clamped.append(Clamped("resources.priority", wish.value, _PRIORITIES[most].value))
    fitting = copy(manifest)
    fitting.resources = copy(manifest.resources)
    fitting.resources.priority = _PRIORITIES[most]
    return fitting


def _is_given(section: Section, key: str, *more: str) -> bool:
    return key in section.given and (not more or _is_given(getattr(section, key), *more))


def _program(parent: Agent, manifest: AgentManifest) -> dict[str, Any]:
    if runtime(manifest.program) == "exec":
        # Looked up inside: what an agent writes must not choose what of the host is shown for a program's sake.
        return {"argv": ["/usr/bin/env", "--", *manifest.program.argv]}
    if runtime(manifest.program) == "model":
        return orders_of.loop(manifest)
    file, _, function = manifest.program.entry.partition(":")
    return {"file": _host_file(parent, file), "function": function}


def _said(manifest: AgentManifest, given: Any) -> Any:
    """What it hears when it begins: a model's is told its terms by us, its goal or its inputs by its parent."""
    if runtime(manifest.program) != "model":
        return given
    said: dict[str, Any] = {"terms": terms(manifest), "inputs": dict(manifest.program.inputs)}
    if isinstance(given, str):
        return {**said, "goal": given}
    if given is not None and not isinstance(given, Mapping):
        raise EINVAL("body", "SYS_SPAWN: a model's input is its goal, which is text, or a map - at `$.input`")
    return {**said, "inputs": {**said["inputs"], **cast("Mapping[str, Any]", given or {})}}


def _host_file(parent: Agent, file: str) -> str:
    """Where the file is on the host. Inside, the project is at its own path, which is meant first: it may be below the
    host's /work. For syscalls it is also at /work."""
    project = os.path.normpath(native(parent.order["cwd"]))
    own = os.path.normpath(os.path.join(project, file))
    if not own.startswith(f"{project}/") and file.startswith("/work/"):
        own = os.path.normpath(f"{project}/{file.removeprefix('/work/')}")
    if not own.startswith(f"{project}/"):
        raise EPERM("spawn.file", f"{file} is not in your workspace", hint="name a file below /work")
    return own


def _mounts(parent: Agent, manifest: AgentManifest, ceiling: Ceiling) -> Iterator[Any]:
    """Its parent's, as far as the ceiling goes; or those of them that the manifest names, whole or not at all."""
    cwd, home = Path(native(parent.order["cwd"])), Path(native(parent.order.get("environment", {}).get("HOME", "/")))
    held = {text: guest.parse_mount(native(text), cwd=cwd, home=home) for text in parent.order.get("mounts", ())}
    for text, mount in held.items():
        if "mounts" not in manifest.given:
            for rw in (True, False) if mount.rw else (False,):
                if ceiling.whole or ceiling.allows(endowment.of_mount(replace(mount, rw=rw))):
                    yield text if rw == mount.rw else native(text).removeprefix("rw:")
                    break
    for number, wanted in enumerate(manifest.mounts):
        wide, source = wanted.rights == "rw", Path(os.path.realpath(cwd / wanted.source))
        same = [text for text, one in held.items() if (one.at, one.source) == (wanted.path, source)]
        one = guest.Mount(source, wanted.path, wide)
        if not same or (wide and not held[same[0]].rw) or not ceiling.allows(endowment.of_mount(one)):
            reason = f"mounts.{number}: {wanted.source} at {wanted.path} is not yours to give"
            hint = "leave mounts out: it sees yours, as far as your ceiling goes"
            raise EACCES("ceiling", reason, hint=hint, key=f"mounts.{number}", step=admission.CEILING)
        yield same[0] if wide else native(same[0]).removeprefix("rw:")


def _workspace(parent: Agent, mode: str) -> Any:
    """What is behind its /work: never more than behind its parent's."""
    own = native(parent.order.get("workspace") or "overlay:.")
    parents = own.partition(":")[0] if own.partition(":")[0] in _RANK else "overlay"
    if _RANK[mode] > _RANK[parents]:
        reason = f"a workspace of mode {mode} is more than your own, {parents}"
        raise EINVAL("workspace.refused", reason, hint=f'workspace = "{parents}"', step=WALLS)
    folder = own.removeprefix(f"{parents}:")
    return mode if mode == "tmpfs" else f"{mode}:{folder}"


def _limits(parent: Agent, wishes: Sequence[str], clamped: list[Clamped]) -> Iterator[str]:
    """Numbers take the smaller value. What only its parent limits holds for it as well."""
    written = [native(text) for text in parent.order.get("limit", ())]
    most = guest.parse_limits(written)._asdict()
    asked = {name: int(value) for name, _, value in (wish.partition("=") for wish in wishes)}
    for text in written:
        if text.partition("=")[0] not in asked:
            yield text
    for name, wish in asked.items():
        limit: int | None = most.get(name)
        if limit is not None and wish > limit:
            clamped.append(Clamped(f"resources.{name}", wish, limit))
            yield f"{name}={limit}"
        else:
            yield f"{name}={wish}"


def _timeout(parent: Agent, wish: float | None) -> str | None:
    own: str | None = parent.order.get("timeout")
    if wish is None or (own and guest.parse_duration(own) <= wish):
        return own
    return f"{wish:f}s"


def _level(parent: Agent) -> str | None:
    return parent.order.get("min_isolation")
