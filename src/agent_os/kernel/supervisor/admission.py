"""Whether somebody may have a child: the steps of supervision §3 that come before the policy, each with its own answer.

In: who wants it, as its agency and what it holds, and the manifest of the child. Out: `Admitted`, what the child holds
and may be, each adaptation listed; or the first refusal, with the number of its step. What is written out is granted
whole or refused; what is written as `"*"` or `"role"` adapts to what those above have. Starts and stores nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple, cast

from msgspec import Struct, field

from agent_os.abi.errors import EACCES, EBUSY, EDQUOT, EEXIST, EINVAL, ENOSYS, EPERM, ESRCH
from agent_os.abi.states import Incarnation
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.handles import Handle, Holdings
from agent_os.kernel.calls import Need
from agent_os.kernel.table import MOST_GENERATIONS, Agent, Table, bare
from agent_os.manifest import granting, writing
from agent_os.manifest.agency import Agency, base
from agent_os.manifest.capabilities import CapabilityCeiling
from agent_os.manifest.model import AgentManifest
from agent_os.manifest.roles import AgentRole
from agent_os.manifest.settling import runtime

RUNTIMES = ("python", "exec", "model")
CALLER, MANIFEST, GRANT, ROLE, PLACE, AGENCY, CEILING = range(1, 8)  # steps; from 8 on they are the gate's
_SPAWN = frozenset({"spawn"})


class Clamped(NamedTuple):
    """Something that was made to fit."""

    key: str  # of the manifest
    wanted: Any
    got: Any


class Ceiling(Struct, frozen=True):
    """What children may hold at most. `whole`: all that their parent holds."""

    capabilities: tuple[Capability, ...] = ()
    whole: bool = False

    def allows(self, one: Capability) -> bool:
        return self.whole or any(one.under(most) for most in self.capabilities)


class Above(Struct, frozen=True):
    """Who wants a child."""

    id: str
    agency: Agency
    holdings: Holdings
    ceiling: Ceiling


class Admitted(Struct):
    manifest: AgentManifest  # with an agency that fits
    capabilities: list[Capability] = field(default_factory=list[Capability])
    clamped: list[Clamped] = field(default_factory=list[Clamped])

    @property
    def roles(self) -> list[str]:
        return roles_of(self.manifest)

    def words(self) -> dict[str, Any]:
        """For the order: what of it lasts over restarts."""
        return {**declared(self.manifest), "clamped": [one._asdict() for one in self.clamped]}


def declared(manifest: AgentManifest) -> dict[str, Any]:
    """What an order says of the manifest behind it."""
    return {"roles": roles_of(manifest), "manifest": manifest.to_json()}


def roles_of(manifest: AgentManifest) -> list[str]:
    """The role, and with a custom one that of which it never has more."""
    own = [str(manifest.role)]
    return [*own, str(manifest.base_role)] if manifest.role.is_custom else own


def with_fewer_children(manifest: AgentManifest, most: int | None) -> AgentManifest:
    """The same, but for that number."""
    own, fewer = manifest.agency, copy(manifest)
    roles, ceiling = list(own.allowed_roles), own.capability_ceiling
    fewer.agency = Agency(max_children=most, allowed_roles=roles, capability_ceiling=ceiling)
    return fewer


def agency_of(agent: Agent) -> Agency:
    """As it was admitted. Whoever an operator just ran, with leave to spawn and no manifest, is like a person at a
    session."""
    manifest = manifest_of(agent)
    return manifest.agency if manifest else Agency.session()


def manifest_of(agent: Agent) -> AgentManifest | None:
    """As it was admitted; None: it has none."""
    text = agent.order.get("manifest")
    return _read(text) if text else None


def above(agent: Agent) -> Above:
    agency = agency_of(agent)
    return Above(agent.id, agency, agent.holdings, ceiling_of(agency.capability_ceiling, agent.id))


def ceiling_of(written: CapabilityCeiling, holder: str) -> Ceiling:
    """`holder`: whose agency it is, and so the parent of those it is about."""
    if written == CapabilityCeiling.root():
        return Ceiling(whole=True)
    most = [capability.parse(text) for text in granting.allowed(written, bare(holder))]
    return Ceiling((*most, *([capability.parse("capability://agent?action=spawn")] if written.can_spawn else ())))


@lru_cache(maxsize=256)
def _read(text: str) -> AgentManifest:
    return AgentManifest.from_json(text)


# The steps.


def admit(who: Above, manifest: AgentManifest, extra: Iterable[Capability] = ()) -> Admitted:
    """Steps 4, 6 and 7: what depends on nothing but the two. `extra`: what is asked for beside the manifest."""
    require_role(who.agency, manifest)
    admitted = Admitted(copy(manifest))
    admitted.manifest.agency = _agency(who, manifest, admitted.clamped)
    for one in granting.wanted(admitted.manifest, bare(who.id)):
        admitted.capabilities += _granted(who, one, admitted.clamped)
    for one in extra:
        if not who.ceiling.allows(one):
            raise _above_ceiling("caps", one)
        admitted.capabilities.append(one)
    return admitted


def require_running(agent: Agent) -> None:
    """Step 1. Whoever is on its way out, or stands still, starts nobody."""
    if agent.exit or agent.life not in (Incarnation.STARTING, Incarnation.RUNNING):
        raise EBUSY("state", f"{agent.name} is {agent.life}, and only who runs has children", step=CALLER)


def read(tree: Mapping[str, Any], namespace: str, name: str) -> AgentManifest:
    """Step 2, of what an agent hands in: it may leave out name, namespace and role."""
    apart = cast("Mapping[str, Any]", tree.get("agent") if isinstance(tree.get("agent"), Mapping) else {})
    written = {key.lower() for key in (*tree, *apart)}  # a table may stand around the first keys
    usual = {"name": name, "namespace": namespace, "role": "worker"}
    try:
        manifest = AgentManifest.from_dict({**{key: usual[key] for key in usual if key not in written}, **tree})
    except EINVAL as error:
        error.detail["step"] = MANIFEST
        raise
    kind = runtime(manifest.program)
    if not kind:
        hint = 'program = {"entry": "FILE.py:NAME"}'
        raise EINVAL("manifest", f"{manifest.name} has no program to start", hint=hint, step=MANIFEST)
    if kind not in RUNTIMES:
        reason = f"the runtime {kind!r} does not exist here"
        raise ENOSYS("runtime", reason, hint=f"there is {', '.join(RUNTIMES)}", runtime=kind, step=MANIFEST)
    if manifest.namespace != namespace:
        reason = f"{manifest.id} is of another namespace than its parent, {namespace}"
        raise EACCES("namespace", reason, hint="leave namespace out", step=MANIFEST)
    require_nameable(manifest)
    return manifest


def require_nameable(manifest: AgentManifest) -> None:
    """Step 2: everything that it asks for, or denies, is something that a capability can name."""
    denied = [granting.Wanted("tools_deny", text) for text in granting.calls(manifest.tools_deny)]
    asked = [granting.Wanted("capabilities.approval", text) for text in granting.calls(manifest.capabilities.approval)]
    for one in (*granting.wanted(manifest, manifest.id), *denied, *asked):
        try:
            capability.parse(one.capability)
        except EINVAL as error:
            raise EINVAL("manifest", f"{one.key}: {error.reason}", hint=error.hint, step=MANIFEST) from None


def require_grant(agent: Agent, name: str, cap: int | None = None) -> Handle:
    """Step 3: it holds leave to spawn. EPERM `spawn` names what is missing."""
    try:
        found = agent.holdings.find([Need("agent", "spawn", name)], cap)
    except EPERM as error:
        missing = str(error.detail.get("missing", ""))
        raise EPERM("spawn", error.reason, missing=missing, step=GRANT) from None
    assert found
    return found


def require_role(agency: Agency, manifest: AgentManifest) -> None:
    """Step 4. A custom role is admitted by its label or by its base role."""
    role, allowed = manifest.role, agency.allowed_roles
    if role != AgentRole.ROOT and (role in allowed or (role.is_custom and manifest.base_role in allowed)):
        return
    may = ", ".join(map(str, allowed)) or "nobody"
    hint = "give it one of these roles" if allowed else "an operator can give you agency, in your manifest"
    raise EACCES("role", f"you may spawn {may}, and not a {role}", hint=hint, role=str(role), step=ROLE)


def require_place(table: Table, parent: str, most: int | None, waiting: int = 0) -> None:
    """Step 5, but for the id: its parent is there, and the family is neither too wide nor too deep. `most`: children
    alive at once; a child counts until it is gone. `waiting`: those that are not in the table, and will be."""
    require_there(table, parent)
    if most is not None and (alive := table.family(parent) + waiting) >= most:
        reason = f"you have {alive} live children, and {most} are allowed"
        raise EDQUOT("children", reason, hint="wait for one to end", used=alive, limit=most, step=PLACE)
    depth = table.generation(parent)
    if depth >= MOST_GENERATIONS:
        reason = f"you are {depth} generations below an operator's agent, and {MOST_GENERATIONS} are the most"
        hint = "let an agent further up start it"
        raise EDQUOT("limit", reason, hint=hint, used=depth, limit=MOST_GENERATIONS, step=PLACE)
    if (taken := table.taken()) >= table.most:
        reason = f"{taken} agents are alive, and {table.most} are the most"
        raise EDQUOT("limit", reason, hint="wait for one to end", used=taken, limit=table.most, step=PLACE)


def require_there(table: Table, parent: str) -> None:
    if table.over(parent):
        raise ESRCH("agent.ended", "who wanted this child has ended, and children end with their parents")


def require_free(table: Table, agent_id: str, parent: str) -> None:
    """Step 5, the id: it is nobody's who lives, and never was somebody else's."""
    if not table.is_free(agent_id):
        raise EEXIST("id", f"{bare(agent_id)} is running already", hint="choose another name", step=PLACE)
    table.require_own_name(agent_id, parent)


def require_shown(who: Above, key: str, one: Capability, hint: str, *, ceiling: bool = True) -> None:
    """Step 7, of a folder of the host that a child is to see: it is its parent's to show."""
    if _holds(who.holdings, one) and (who.ceiling.allows(one) or not ceiling):
        return
    reason = f"{key}: {one} is more than {bare(who.id)} holds and may hand on"
    raise EACCES("ceiling", reason, hint=hint, key=key, capability=str(one), step=CEILING)


def _agency(who: Above, manifest: AgentManifest, clamped: list[Clamped]) -> Agency:
    """Step 6: its agency is part of its parent's."""
    wanted = manifest.agency
    made = Agency(
        max_children=wanted.max_children,
        allowed_roles=list(wanted.allowed_roles),
        capability_ceiling=wanted.capability_ceiling,
    )
    if made == Agency.none():
        return made
    adapts = writing.agency(manifest) == "role"
    beyond = [role for role in made.allowed_roles if not _may(who.agency, role, manifest)]
    if beyond and not adapts:
        may = ", ".join(map(str, who.agency.allowed_roles)) or "nobody"
        reason = f"it wants to spawn a {beyond[0]}, and you yourself may spawn {may}"
        raise EACCES("agency", reason, hint='agency = "role" adapts', key="agency.allowed_roles", step=AGENCY)
    if beyond:
        made.allowed_roles = [role for role in made.allowed_roles if role not in beyond]
        clamped.append(Clamped("agency.allowed_roles", _texts(wanted.allowed_roles), _texts(made.allowed_roles)))
    most = least(made.max_children, who.agency.max_children)
    if most != made.max_children:
        clamped.append(Clamped("agency.max_children", made.max_children, most))
        made.max_children = most
    _require_lower(who, made.capability_ceiling, manifest)
    return made


def _may(agency: Agency, role: AgentRole, manifest: AgentManifest) -> bool:
    return role in agency.allowed_roles or (role.is_custom and base(role, manifest.base_role) in agency.allowed_roles)


def _require_lower(who: Above, written: CapabilityCeiling, manifest: AgentManifest) -> None:
    """What its own children may hold lies within what it may: all that is written out."""
    if written == CapabilityCeiling.root():
        return
    for text in granting.allowed(written, manifest.id, adapting=False):
        one = capability.parse(text)
        if not who.ceiling.allows(one) or not _holds(who.holdings, one):
            reason = f"the ceiling of its children has {one}, which is above your own"
            key, hint = "agency.capability_ceiling", "leave it out of the ceiling"
            raise EACCES("agency", reason, hint=hint, key=key, capability=str(one), step=AGENCY)


def _granted(who: Above, wanted: granting.Wanted, clamped: list[Clamped]) -> list[Capability]:
    """Step 7: what a key of its manifest comes to."""
    one = capability.parse(wanted.capability)
    if wanted.key == "agency":
        one = _within_max(who, one, clamped)
    if who.ceiling.allows(one) and _holds(who.holdings, one):
        return [one]
    if not wanted.adapts:
        raise _above_ceiling(wanted.key, one)
    got = _adapted(who, one)
    clamped.append(Clamped(wanted.key, str(one), [str(share) for share in got]))
    return got


def _within_max(who: Above, one: Capability, clamped: list[Clamped]) -> Capability:
    """How many it may start is a number, and numbers take the smaller value."""
    held = [one.capability for one in who.holdings.of_kind("agent") if not one.revoked]
    most = [capability.constraints.get("max") for capability in held if "spawn" in capability.actions]
    if not most or None in most:
        return one
    own, largest = one.constraints.get("max"), max(number for number in most if number is not None)
    if own is not None and own <= largest:
        return one
    clamped.append(Clamped("agency.max_children", own, largest))
    return Capability(one.kind, one.target, one.actions, {**one.constraints, "max": largest})


def _adapted(who: Above, one: Capability) -> list[Capability]:
    """All of it that every layer allows, as far as that can be named: patterns are never intersected."""
    shares: dict[Capability, None] = {}
    for handle in who.holdings.of_kind(one.kind):
        if not handle.revoked and not handle.starting:
            shares[Capability(one.kind, handle.capability.target, handle.capability.actions)] = None
    for most in who.ceiling.capabilities:
        if most.kind == one.kind:
            shares[most] = None
    found = (share.only(share.actions & one.actions) for share in shares if share.actions & one.actions)
    return [share for share in found if share.under(one) and who.ceiling.allows(share) and _holds(who.holdings, share)]


def _holds(holdings: Holdings, one: Capability) -> bool:
    try:
        holdings.prove(one)
    except EPERM:
        return False
    return True


def _above_ceiling(key: str, one: Capability) -> EACCES:
    reason = f"{key} asks for {one}, which is more than you may give"
    hint = 'leave it out, or write "*" for what there is'
    return EACCES("ceiling", reason, hint=hint, key=key, capability=str(one), step=CEILING)


def least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _texts(roles: Sequence[AgentRole]) -> list[str]:
    return [str(role) for role in roles]
