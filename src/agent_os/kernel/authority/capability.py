"""Capabilities: what an agent holds, and whether one of them covers a call.

A capability is a kind, some actions and a target: an exact name, `*` for any, or a subtree ending in `/**`. Handles
live in the kernel; an agent knows at most their numbers, which mean nothing on another agent's socket. Written in the
short form, `kind:target:actions`. Constraints, delegation and the full pattern language come with the authority issue;
what is not understood here is refused, because ignoring it would widen.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import count

from agent_os.abi.errors import EACCES, EBADF, EINVAL, EPERM
from agent_os.kernel.calls import Need

ACTIONS: dict[str, frozenset[str]] = {
    "file": frozenset({"read", "write", "delete"}),
    "mem": frozenset({"read", "write", "delete", "share"}),
    "tool": frozenset({"call"}),
    "agent": frozenset({"spawn", "signal", "inspect"}),
}
_MOST_BYTES = 4096
_MOST_FOUND = 256  # needs remembered
_numbers = count(1)


@dataclass(frozen=True)
class Capability:
    kind: str
    target: str
    actions: frozenset[str]

    def covers(self, need: Need) -> bool:
        return need.kind == self.kind and need.action in self.actions and _within(need.target, self.target)

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}:{','.join(sorted(self.actions))}"


@dataclass(eq=False)
class Handle:
    """One capability in somebody's hands."""

    id: int
    holder: str
    capability: Capability
    origin: str  # start, operator, spawn
    revoked: bool = False

    @cached_property
    def digest(self) -> bytes:
        return sha256(str(self.capability).encode()).digest()


def parse(text: str) -> Capability:
    """`kind:target:actions`. `agent:spawn` without a target means any name."""
    if len(text.encode()) > _MOST_BYTES:
        raise EINVAL("cap.malformed", f"a capability has at most {_MOST_BYTES} bytes")
    if "{" in text or "?" in text or text.startswith("capability://"):
        raise EINVAL("cap.constraint", f"{text!r}: constraints and the URI form are not understood yet")
    kind, _, rest = text.partition(":")
    target, _, actions = rest.rpartition(":")
    if kind not in ACTIONS or not actions:
        hint = f"kind:target:actions, kind one of {', '.join(sorted(ACTIONS))}"
        raise EINVAL("cap.malformed", f"{text!r} is no capability", hint=hint)
    wanted = ACTIONS[kind] if actions == "*" else frozenset(actions.split(","))
    if unknown := sorted(wanted - ACTIONS[kind]):
        known = ", ".join(sorted(ACTIONS[kind]))
        raise EINVAL("cap.malformed", f"{text!r}: {kind} has no action {unknown[0]!r}", hint=f"there is {known}")
    return Capability(kind, _pattern(target or "*", text), wanted)


def _pattern(target: str, text: str) -> str:
    base = target.removesuffix("/**").removesuffix("/*")
    if "*" in base and base != "*":
        raise EINVAL("cap.pattern", f"{text!r}: a star stands alone or ends the target as /**")
    return target if base == target else f"{base}/**"


def _within(target: str, pattern: str) -> bool:
    if pattern == "*":
        return True
    if pattern.endswith("/**"):
        return target.startswith(pattern[:-2]) or target == pattern[:-3]
    return target == pattern


# What every agent holds without asking; only an explicit forbid takes it away.
STARTING_SET = tuple(
    Capability(kind, target, frozenset(actions))
    for kind, target, actions in (
        ("mem", "/mem/working/**", ("read", "write", "delete")),
        ("mem", "/state/checkpoints/**", ("read",)),
        ("mem", "/policy/**", ("read",)),
        ("mem", "/proc/self/**", ("read",)),
        ("mem", "/ipc/**", ("read",)),
    )
)


class Holdings:
    """What one holder has. Finding a handle is a walk over a few; which one fitted a need is remembered until what is
    held changes."""

    def __init__(self, holder: str, start: Iterable[Capability] = STARTING_SET) -> None:
        self._holder = holder
        self._by_kind: dict[str, list[Handle]] = {}
        self._found: dict[Need, Handle] = {}
        for capability in start:
            self.grant(capability, "start")

    def grant(self, capability: Capability, origin: str) -> Handle:
        self._found.clear()
        handle = Handle(next(_numbers), self._holder, capability, origin)
        self._by_kind.setdefault(capability.kind, []).append(handle)
        return handle

    def revoke(self, handle: Handle) -> None:
        handle.revoked = True
        self._found.clear()
        self._by_kind[handle.capability.kind].remove(handle)

    def revoke_all(self) -> None:
        for handle in list(self):
            self.revoke(handle)

    def __iter__(self) -> Iterator[Handle]:
        return (handle for handles in self._by_kind.values() for handle in handles)

    def find(self, needs: Sequence[Need], cap: int | None = None) -> Handle | None:
        """The handle that covers the call, all needs; EPERM names what is missing. `cap`: it must be this one."""
        found: Handle | None = None
        for need in needs:
            found = self._found.get(need) if cap is None else None
            if found is None:
                found = self._one(need, cap)
        return found

    def _one(self, need: Need, cap: int | None) -> Handle:
        excluded = False
        for handle in self._by_kind.get(need.kind, ()):
            if cap is not None and handle.id != cap:
                continue
            if handle.capability.covers(need):
                if len(self._found) >= _MOST_FOUND:
                    self._found.clear()
                if cap is None:
                    self._found[need] = handle
                return handle
            excluded = excluded or _within(need.target, handle.capability.target)
        if cap is not None and not any(handle.id == cap for handle in self):
            raise EBADF("cap.unknown", f"you hold no capability {cap}")
        missing = f"{need.kind}:{need.target}:{need.action}"
        reason = f"you hold no capability that covers {missing}"
        if excluded:
            raise EACCES("cap.action", f"what you hold of {need.target} excludes {need.action}", missing=missing)
        raise EPERM("cap.missing", reason, missing=missing)
