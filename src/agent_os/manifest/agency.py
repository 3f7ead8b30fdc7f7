"""Agency: the ability to have children. How many, in which roles, and what they may hold at most.

The class of seed 4, pure: who lives is told by `add_child` and `remove_child`, and the kernel keeps the record. The
presets of the roles are here; which role may list which other is `MAY_SPAWN`.
"""

from dataclasses import dataclass, field
from typing import Annotated

from agent_os.manifest.capabilities import AgentCapabilities, CapabilityCeiling
from agent_os.manifest.problems import Flaw, shown
from agent_os.manifest.roles import AgentRole
from agent_os.manifest.sections import Section, keys_of
from agent_os.manifest.values import UNLIMITED, List, Whole

MAY_SPAWN: dict[str, tuple[AgentRole, ...]] = {
    "root": (AgentRole.SUPERVISOR, AgentRole.SERVICE, AgentRole.WORKER, AgentRole.USER),
    # Supervisors too, where the manifest and the parent's agency both say so: hence the first is no part of the preset.
    "supervisor": (AgentRole.SUPERVISOR, AgentRole.SERVICE, AgentRole.WORKER),
    "service": (AgentRole.WORKER,),
    "worker": (),
    "user": (AgentRole.WORKER,),
}
DEFAULT_CHILDREN = {"supervisor": 64, "service": 16, "worker": 0, "user": 0}
SESSION_CHILDREN = 16  # of a person who is logged in


def _pid(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Flaw(f"a pid is a whole number, not {shown(value)}")
    return value


def _role(value: object) -> AgentRole:
    role = AgentRole.read(value)
    if role == AgentRole.ROOT:
        raise Flaw("nobody can spawn a root", "there is exactly one, made by boot")
    return role


class _Roles(List):
    def write(self, value: list[AgentRole]) -> object:
        return [str(role) for role in value]

    def seed(self, value: list[AgentRole]) -> object:
        return [role.seed() for role in value]


@dataclass(kw_only=True)
class Agency(Section):
    """Whether it may have children, or `agency = "role"` for what its role usually may."""

    max_children: Annotated[int | None, Whole("children alive at once; as its role has it", none=UNLIMITED)] = 0
    allowed_roles: Annotated[list[AgentRole], _Roles("roles it may spawn", _role, says="list of roles")] = field(
        default_factory=list[AgentRole]
    )
    capability_ceiling: CapabilityCeiling = field(default_factory=CapabilityCeiling)
    children: Annotated[list[int], List("pids of the living ones; written, never read", _pid, says="list of pids")] = (
        field(default_factory=list[int])
    )

    def __post_init__(self) -> None:
        ceiling: AgentCapabilities = self.capability_ceiling
        if type(ceiling) is AgentCapabilities:  # as seed 4 writes it, without the lists
            self.capability_ceiling = CapabilityCeiling(
                **{key: getattr(ceiling, key) for key in keys_of(type(ceiling))}
            )
        super().__post_init__()

    @classmethod
    def root(cls) -> "Agency":
        ceiling = CapabilityCeiling.root()
        return cls(max_children=None, allowed_roles=list(MAY_SPAWN["root"]), capability_ceiling=ceiling)

    @classmethod
    def supervisor(cls, max_children: int) -> "Agency":
        return cls(max_children=max_children, allowed_roles=[AgentRole.SERVICE, AgentRole.WORKER])

    @classmethod
    def service(cls, max_workers: int) -> "Agency":
        return cls(max_children=max_workers, allowed_roles=[AgentRole.WORKER])

    @classmethod
    def none(cls) -> "Agency":
        return cls()

    @classmethod
    def of_role(cls, role: AgentRole, base_role: AgentRole = AgentRole.WORKER) -> "Agency":
        """What `agency = "role"` means: the preset, with all of the agent's own grant as the ceiling."""
        word = base(role, base_role).word
        if word in ("supervisor", "service"):
            preset = (
                cls.supervisor(DEFAULT_CHILDREN[word]) if word == "supervisor" else cls.service(DEFAULT_CHILDREN[word])
            )
            preset.capability_ceiling = CapabilityCeiling.root()
            return preset
        return cls.root() if word == "root" else cls.none()

    @classmethod
    def session(cls) -> "Agency":
        """Of a person who is logged in."""
        ceiling = CapabilityCeiling.root()
        return cls(max_children=SESSION_CHILDREN, allowed_roles=[AgentRole.WORKER], capability_ceiling=ceiling)

    def can_spawn(self, role: AgentRole, base_role: AgentRole | None = None) -> bool:
        """One more child of this role, now? A custom role is admitted by its label or by its base role."""
        if role == AgentRole.ROOT or self.remaining_capacity() == 0:
            return False
        return role in self.allowed_roles or (role.is_custom and base_role in self.allowed_roles)

    def add_child(self, pid: int) -> None:
        self.children.append(pid)

    def remove_child(self, pid: int) -> None:
        """A pid that is none of its children changes nothing."""
        self.children = [child for child in self.children if child != pid]

    def remaining_capacity(self) -> int | None:
        """None: no limit."""
        return None if self.max_children is None else max(0, self.max_children - len(self.children))

    def to_json(self) -> str:
        from agent_os.manifest.writing import section_json

        return section_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Agency":
        from agent_os.manifest.reading import read_section

        return read_section(cls, text)


def base(role: AgentRole, base_role: AgentRole) -> AgentRole:
    """The role whose rules hold: a custom one never has more than its base."""
    return base_role if role.is_custom else role
