"""Handles: capabilities in somebody's hands, where each came from, what it has used, and how it is taken back.

A handle is granted or derived from one parent handle. What it spends is charged to every ancestor, all or nothing, and
revoking one marks everything derived from it at once, so a check reads one flag. Handles live in the kernel; an agent
knows at most their numbers, which mean nothing on another agent's socket. In: capabilities, needs, amounts. Out:
handles, or EPERM, EACCES, EBUDGET, EAGAIN. Nothing here waits, writes a record or closes what a handle opened: revoking
says what that is, and the caller closes it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from math import ceil
from typing import Any, NamedTuple, Protocol

import msgspec

from agent_os.abi.errors import EACCES, EPERM
from agent_os.drivers.store import Put
from agent_os.kernel.authority.capability import STARTING_SET, Capability, missing, parse
from agent_os.kernel.authority.constraints import NO_FACTS, Facts, Rate, place
from agent_os.kernel.calls import Need

HANDLES = "handles"  # the bucket: number → record
_encode = msgspec.msgpack.Encoder().encode
COUNTED = ("count", "bytes", "tokens", "cost")
_LIMITS = frozenset({*COUNTED, "max"})
_SIZES = ("bytes", "max_size")
_DUST = 1e-9  # what adding up fractions may be off by
_SLOTS = 128  # needs remembered, each in the place its hash says: never grows, so no check pays for growing
_MOST_REVOKED = 64  # of one kind, kept to say why something is no longer allowed


class Opened(Protocol):
    """A connection, a run, a subscription, a mount: whatever must end with the handle that it was opened by."""

    @property
    def lasting(self) -> bool:
        """It is a mount: taking it back ends the process."""
        ...

    async def close(self) -> None:
        """Ended when this returns."""
        ...


class Clock(NamedTuple):
    wall: Callable[[], float] = time.time  # for expiry
    steady: Callable[[], float] = time.monotonic  # for rates


class Bucket:
    """A token bucket: as many as `rate` says at once, refilled evenly. Begins full, also after a restart."""

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._level: float = rate.most
        self._at: float | None = None

    def wait_ms(self, now: float) -> int:
        """How long until one can be taken; 0: now. Refills."""
        rate = self.rate
        if self._at is not None:
            self._level = min(rate.most, self._level + max(0.0, now - self._at) * 1000 * rate.most / rate.per_ms)
        self._at = now
        lacks = 1 - self._level
        return 0 if lacks < _DUST else max(1, ceil((lacks - _DUST) * rate.per_ms / rate.most))

    def take(self) -> None:
        self._level -= 1

    def give_back(self) -> None:
        self._level += 1


class Handle:
    """One capability in somebody's hands. `used` counts what this and everything derived from it spent: `count`,
    `bytes`, `tokens`, `cost` in millionths, and `live`, how many are alive now. `depth` is the distance from what was
    granted; how much further it may go is the constraint of that name."""

    __slots__ = (
        *("bucket", "capability", "children", "created_seq", "depth", "expiry", "holder", "id", "limited", "limits"),
        *("opened", "origin", "parent", "revoked", "used", "_digest"),
    )

    def __init__(
        self,
        number: int,
        holder: str,
        capability: Capability,
        origin: str,  # start, manifest, delegation, approval, operator, spawn
        parent: "Handle | None" = None,
        created_seq: int = 0,
    ) -> None:
        self.id, self.holder, self.capability, self.origin = number, holder, capability, origin
        self.parent, self.created_seq = parent, created_seq
        self.children: dict[Handle, None] = {}
        self.depth: int = parent.depth + 1 if parent else 0
        self.revoked = False
        self.opened: set[Opened] = set()
        self.used: dict[str, int] = {}
        constraints = capability.constraints
        self.expiry: int | None = constraints.get("expiry")
        rate = constraints.get("rate")
        self.bucket = Bucket(rate) if rate else None
        self.limits: Mapping[str, int] = {name: constraints[name] for name in constraints if name in _LIMITS}
        self.limited: bool = bool(self.limits or rate or (parent and parent.limited))  # it, or any ancestor
        self._digest: bytes | None = None

    @property
    def starting(self) -> bool:
        """Every agent holds it without asking."""
        return self.origin == "start"

    @property
    def digest(self) -> bytes:
        if self._digest is None:
            self._digest = sha256(self.capability.canonical.encode()).digest()
        return self._digest

    def chain(self) -> "Iterator[Handle]":
        """This and every ancestor."""
        at: Handle | None = self
        while at is not None:
            yield at
            at = at.parent

    def require_live(self, clock: Clock) -> None:
        """EACCES where it was revoked or has expired. A child is revoked with its parent and expires no later."""
        if self.revoked or self.expired(clock):
            raise self.ended()

    def ended(self) -> EACCES:
        """The error for a handle that is no longer good for anything."""
        if self.revoked:
            return EACCES("cap.revoked", f"the capability {self.capability} was revoked", handle=self.id)
        return EACCES("cap.expired", f"the capability {self.capability} has expired", handle=self.id)

    @property
    def exhausted(self) -> bool:
        """Nothing is left of something that it, or an ancestor, may use only so much of."""
        return any(
            one.used.get(row, 0) >= one.limits[row] for one in self.chain() for row in COUNTED if row in one.limits
        )

    def expired(self, clock: Clock) -> bool:
        return self.expiry is not None and clock.wall() * 1000 >= self.expiry

    def to_record(self) -> dict[str, Any]:
        """All that a restart needs. What was reserved and not settled is in `used`, so it counts as spent."""
        return {
            "id": self.id,
            "holder": self.holder,
            "capability": self.capability.canonical,
            "origin": self.origin,
            "parent": self.parent.id if self.parent else 0,
            "revoked": self.revoked,
            "used": {name: amount for name, amount in self.used.items() if name != "live"},  # nothing lives on
            "seq": self.created_seq,
        }

    def __repr__(self) -> str:
        return f"<handle {self.id} of {self.holder}: {self.capability}{', revoked' if self.revoked else ''}>"


def kept(handle: Handle) -> Put:
    """As the store must hold it. What was revoked is no longer there, also if something that it began ends later."""
    return gone(handle) if handle.revoked else Put(HANDLES, f"{handle.id:012}", _encode(handle.to_record()))


def gone(handle: Handle) -> Put:
    return Put(HANDLES, f"{handle.id:012}", None)


class Revoked(NamedTuple):
    handles: list[Handle]
    opened: list[tuple[Handle, Opened]]  # to be closed before anybody is told that it is revoked


def revoke(*roots: Handle) -> Revoked:
    """Mark them and everything derived from them. When this returns no check finds any of them."""
    done = Revoked([], [])
    stack = list(roots)
    while stack:
        handle = stack.pop()
        if handle.revoked:
            continue
        handle.revoked = True
        done.handles.append(handle)
        if handle.opened:
            done.opened.extend((handle, one) for one in handle.opened)
            handle.opened.clear()
        stack.extend(handle.children)
    for root in roots:
        if root.parent:
            root.parent.children.pop(root, None)
    return done


class _Numbers:
    last = 0

    def __call__(self) -> int:
        self.last += 1
        return self.last


_next_number = _Numbers()


def last_number(at_least: int = 0) -> int:
    """Of all handles so far. A number is never given twice, so whoever keeps records keeps this one as well."""
    _next_number.last = max(_next_number.last, at_least)
    return _next_number.last


_NONE_FOUND: list[tuple[Need, Handle] | None] = [None] * _SLOTS  # shared until something is found; never written
# How a target begins that is worth a look, whether that beginning is proof enough, and the handle.
_Row = tuple[str, bool, Handle]


class Holdings:
    """What one holder has. Finding a handle is a walk over a few; which one fitted a need is remembered, and asked
    whether it is still alive every time."""

    def __init__(self, holder: str, start: Iterable[Capability] = STARTING_SET, clock: Clock | None = None) -> None:
        self.holder = holder
        self.clock = clock or Clock()
        self._by_kind: dict[str, list[Handle]] = {}
        self._found = _NONE_FOUND
        self._sized: set[str] = set()
        self._rows: dict[tuple[str, str], list[_Row]] = {}
        for capability in start:
            self.grant(capability, "start")

    def begin(self) -> None:
        """What every agent holds, whatever else was kept of it."""
        if not any(one.starting for one in self):
            for capability in STARTING_SET:
                self.grant(capability, "start")

    def grant(self, capability: Capability, origin: str, *, seq: int = 0) -> Handle:
        if "loopback" in capability.constraints and origin != "operator":
            raise EPERM("cap.loopback", "an endpoint of the host itself is granted by the operator only", hint="--net")
        return self._add(Handle(_next_number(), self.holder, capability, origin, created_seq=seq))

    def _add(self, handle: Handle) -> Handle:
        self._rows.clear()
        if not handle.capability.constraints.keys().isdisjoint(_SIZES):
            self._sized.add(handle.capability.kind)
        held = self._by_kind.setdefault(handle.capability.kind, [])
        if len(held) > _MOST_REVOKED:
            self._forget_some(held)
        if handle.limited:
            held.append(handle)
        else:  # what costs nothing is found first
            held.insert(0, handle)
        return handle

    def _forget_some(self, held: list[Handle]) -> None:
        gone = [handle for handle in held if handle.revoked]
        if len(gone) > _MOST_REVOKED:
            old = set(sorted(gone, key=lambda handle: handle.id)[:-_MOST_REVOKED])
            held[:] = [handle for handle in held if handle not in old]

    def revoke(self, handle: Handle) -> Revoked:
        return revoke(handle)

    def revoke_all(self) -> Revoked:
        return revoke(*self)

    def __iter__(self) -> Iterator[Handle]:
        """What is alive, in the order of its numbers."""
        held = [one for several in self._by_kind.values() for one in several if not one.revoked]
        return iter(sorted(held, key=lambda handle: handle.id))

    def every(self) -> list[Handle]:
        """Also what was revoked, as far as it is remembered."""
        return [one for several in self._by_kind.values() for one in several]

    def measures(self, kind: str) -> bool:
        """Whether anything it holds, or held, of a kind is bounded in bytes, so that the size of a call counts."""
        return kind in self._sized

    def holding(self, wanted: Capability) -> Handle | None:
        """The live handle within which all of a capability lies."""
        for handle in self._by_kind.get(wanted.kind, ()):
            if not handle.revoked and not handle.expired(self.clock) and wanted.under(handle.capability):
                return handle
        return None

    def of_kind(self, kind: str) -> Sequence[Handle]:
        """Also those that were revoked lately, to say so."""
        return self._by_kind.get(kind, ())

    def get(self, number: int) -> Handle:
        """One's own live handle. Another's number is as good as none."""
        for handle in self:
            if handle.id == number:
                return handle
        raise EPERM("cap.missing", f"you hold no capability {number}")

    def find(self, needs: Sequence[Need], cap: int | None = None, facts: Facts = NO_FACTS) -> Handle | None:
        """The handle that covers the call, the last need's where there are several; None: nothing is needed. EPERM
        names what is missing, EACCES what there was. `cap`: it must be this one."""
        found: Handle | None = None
        for need in needs:
            known = self._found[hash(need) % _SLOTS]
            if known is not None and known[0] == need and cap is None:
                found = known[1]
                if not found.revoked and (found.expiry is None or not found.expired(self.clock)):
                    continue
            found = self._search(need, cap, facts)
        return found

    def find_all(self, needs: Sequence[Need], cap: int | None = None, facts: Facts = NO_FACTS) -> list[Handle]:
        """Every handle that the call rests on, each once: all of them are charged."""
        found = {handle: None for need in needs if (handle := self.find((need,), cap, facts)) is not None}
        return list(found)

    def _search(self, need: Need, cap: int | None, facts: Facts) -> Handle:
        kind, action, target = need
        empty: Handle | None = None
        for begin, sure, handle in self._rows.get((kind, action)) or self._sorted(kind, action):
            if (
                target.startswith(begin)
                and not handle.revoked
                and (cap is None or handle.id == cap)
                and ((sure and target != begin) or handle.capability.misfit(need, facts) is None)
                and not (handle.expiry is not None and handle.expired(self.clock))
            ):
                if handle.limited and handle.exhausted:  # another may have something left
                    empty = empty or handle
                    continue
                if cap is None and not handle.limited and (sure or handle.capability.plain):
                    if self._found is _NONE_FOUND:
                        self._found = list(_NONE_FOUND)
                    self._found[hash(need) % _SLOTS] = (need, handle)
                return handle
        if empty is not None:  # found, and the budget says what is used up
            return empty
        raise self._why_not(need, cap, facts)

    def _sorted(self, kind: str, action: str) -> "list[_Row]":
        """What is worth looking at for an action; made anew when something is granted."""
        held = [one for one in self._by_kind.get(kind, ()) if action in one.capability.actions and not one.revoked]
        sure = [(one.capability.sure, True, one) for one in held]
        rows = [row for row in sure if row[0]] + [(one.capability.target.stem, False, one) for one in held]
        self._rows[kind, action] = rows
        return rows

    def _why_not(self, need: Need, cap: int | None, facts: Facts) -> EPERM | EACCES:
        row, gone = "kind", None
        for handle in self._by_kind.get(need.kind, ()):
            if cap is not None and handle.id != cap:
                continue
            misfit = handle.capability.misfit(need, facts)
            if misfit is not None:
                row = misfit if misfit != "target" and not handle.revoked else row
            else:
                gone = handle
        if gone is not None:
            return gone.ended()
        wanted = missing(need, facts)
        if cap is not None and not any(handle.id == cap for handle in self):
            return EPERM("cap.missing", f"you hold no capability {cap}", missing=wanted)
        reason = f"you hold no capability that covers {wanted}"
        if row != "kind":
            given = f" {facts[row]}" if isinstance(facts.get(row), str | int) else ""
            reason = f"what you hold of {need.target} does not cover {wanted}: {row}{given}"
        return EPERM("cap.missing", reason, missing=wanted, row=row)

    def prove(
        self, wanted: Capability, cap: int | None = None, *, descendant: bool = True
    ) -> list[tuple[Handle, Capability]]:
        """Which handles it can be derived from: one for all actions, or else one for each. EPERM names the first row
        that fails. `descendant`: whoever gets it descends from this holder, so that its descendants are ours too."""
        one, row = self._parent_of(wanted, cap, descendant)
        if one is not None:
            return [(one, wanted)]
        shares: dict[Handle, set[str]] = {}
        for action in sorted(wanted.actions) if len(wanted.actions) > 1 else ():
            one, row = self._parent_of(wanted.only(frozenset({action})), cap, descendant)
            if one is None:
                break
            shares.setdefault(one, set()).add(action)
        else:
            if shares:
                return [(parent, wanted.only(frozenset(actions))) for parent, actions in shares.items()]
        reason = f"{wanted} is not within anything you hold: {row}"
        raise EPERM("cap.missing", reason, missing=str(wanted), row=row)

    def _parent_of(self, wanted: Capability, cap: int | None, descendant: bool) -> tuple[Handle | None, str]:
        nearest, rank = "kind", -1
        for handle in self._by_kind.get(wanted.kind, ()):
            if handle.revoked or (cap is not None and handle.id != cap):
                continue
            row = wanted.wider_than(handle.capability)
            if row is None and handle.capability.target.own and not descendant:
                row = "target"
            if row is None and handle.expired(self.clock):
                row = "expiry"
            if row is None:
                return handle, ""
            if (far := _place(row)) > rank:
                nearest, rank = row, far
        return None, nearest

    def delegate(
        self,
        wanted: Capability | str,
        to: "Holdings",
        cap: int | None = None,
        *,
        origin: str = "delegation",
        descendant: bool = True,
        seq: int = 0,
    ) -> list[Handle]:
        """Hand on what is proved to be part of what is held: one new handle for each parent. All or nothing."""
        if isinstance(wanted, str):
            wanted = parse(wanted, now=self.clock.wall())
        derived: list[Handle] = []
        for parent, share in self.prove(wanted, cap, descendant=descendant):
            handle = Handle(_next_number(), to.holder, share.below(parent.capability), origin, parent, seq)
            parent.children[handle] = None
            derived.append(to._add(handle))
        return derived

    def outside(self, ceiling: Sequence[Capability]) -> list[Handle]:
        """What a narrower ceiling no longer allows: to be revoked."""
        return [one for one in self if one.origin != "start" and not any(one.capability.under(c) for c in ceiling)]


_BEFORE = {"kind": 0, "actions": 1, "target": 2}


def _place(row: str) -> int:
    """How far a proof came."""
    return _BEFORE[row] if row in _BEFORE else 3 + place(row)


def restore(records: Iterable[Mapping[str, Any]], holdings: Callable[[str], Holdings]) -> list[Handle]:
    """Handles as they were when `to_record` wrote them, in the hands of those who held them. One whose parent is not
    among the records comes back revoked: nothing proves it. New numbers come after all of these."""
    known: dict[int, Handle] = {}
    for record in sorted(records, key=lambda record: record["id"]):
        parent = known.get(record["parent"])
        held = holdings(record["holder"])
        handle = Handle(record["id"], held.holder, parse(record["capability"]), record["origin"], parent, record["seq"])
        handle.used.update(record["used"])
        handle.revoked = record["revoked"] or (record["parent"] != 0 and (parent is None or parent.revoked))
        if parent and not handle.revoked:
            parent.children[handle] = None
        known[handle.id] = held._add(handle)  # pyright: ignore[reportPrivateUsage]
        _next_number.last = max(_next_number.last, handle.id)
    return list(known.values())
