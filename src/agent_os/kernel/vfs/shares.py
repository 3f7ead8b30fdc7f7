"""Entries lent to other agents: the only bridge between two trees.

A share names an owner's stored entry (or all below it), a receiver, rights and possibly an end. It is looked up at
every use, so taking it back works at once, also on handles that are open; and it is worth no more than what its owner
may still do itself, of whose capabilities every use of it is a use. Owns the table and its rows in the store; the bytes
stay the owner's, and so does the bill.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import EACCES, EEXIST, ENOENT
from agent_os.drivers.store import Put
from agent_os.kernel.authority.constraints import NO_FACTS
from agent_os.kernel.authority.handles import Handle
from agent_os.kernel.authority.labels import UNLABELLED, Label, joined, of_words
from agent_os.kernel.calls import Need
from agent_os.kernel.vfs import paths
from agent_os.kernel.vfs.backend import (
    Backend,
    Change,
    Content,
    Facts,
    Kept,
    Listed,
    Listener,
    Page,
    Snapshot,
    Source,
    Usage,
    absent,
    is_directory,
    read_only,
)
from agent_os.kernel.vfs.stored import StoreBackend

BUCKET = "vfs.shares"


class Share(Struct, frozen=True):
    owner: str
    to: str
    path: str  # in the owner's tree
    name: str  # the last component, at the receiver
    rights: Literal["r", "rw"]
    expires: int | None = None  # ns, wall clock: the time left counts across a restart
    label: list[str] = []  # of the owner when it shared: the name is its word to the receiver

    @property
    def key(self) -> str:
        return f"{self.to}//{self.place}"

    @property
    def place(self) -> str:
        """Below /mem/shared of the receiver."""
        return f"{paths.owner_name(self.owner)}/{self.name}"

    @property
    def actions(self) -> tuple[str, ...]:
        """What its owner must be able to do with it."""
        return ("share", "read", "write") if "w" in self.rights else ("share", "read")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Share).decode


# An owner's capabilities for something, given the facts of it. None: it may not do that itself, or not unasked.
Rests = Callable[[str, Need, Mapping[str, Any]], Sequence[Handle] | None]


class Shares:
    def __init__(self, store: Kept, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self.rests: Rests = lambda owner, need, facts: ()
        self._by_receiver: dict[str, dict[str, Share]] = {}
        self._by_owner: dict[str, dict[str, Share]] = {}
        for _, raw in store.items(BUCKET):
            self._set(_decode(raw))

    def _set(self, share: Share) -> None:
        self._by_receiver.setdefault(share.to, {})[share.place] = share
        self._by_owner.setdefault(share.owner, {})[share.key] = share

    def _unset(self, share: Share) -> Put:
        del self._by_receiver[share.to][share.place]
        del self._by_owner[share.owner][share.key]
        return Put(BUCKET, share.key, None)

    def lent(self, owner: str) -> list[Share]:
        """What still holds of what the owner gave."""
        mine = self._by_owner.get(owner)
        return [share for share in mine.values() if self._holds(share)] if mine else []

    def _holds(self, share: Share) -> bool:
        return share.expires is None or share.expires > self._wall_ns()

    def of(self, receiver: str) -> dict[str, Share]:
        """By place; those that still hold."""
        mine = self._by_receiver.get(receiver, {})
        return {place: share for place, share in mine.items() if self._holds(share)}

    def at(self, receiver: str, place: str) -> Share | None:
        share = self._by_receiver.get(receiver, {}).get(place)
        return share if share and self._holds(share) else None

    def add(self, share: Share) -> list[Put]:
        old = self.at(share.to, share.place)
        if old and old.path != share.path:
            raise EEXIST(
                "share.name",
                f"{share.to} already sees {old.path} of yours under the name {share.name!r}",
                hint="take that share back first, or share under another name",
            )
        self._set(share)
        return [Put(BUCKET, share.key, _encode(share))]

    def end(self, owner: str, path: str, to: str) -> tuple[Share, list[Put]]:
        for share in list(self._by_owner.get(owner, {}).values()):
            if share.to == to and share.path == path:
                return share, [self._unset(share)]
        raise ENOENT("share.absent", f"{path} is not shared with {to}")

    def drop(self, owner: str, below: str) -> list[Put]:
        """All that the owner lent of one mount."""
        mine = list(self._by_owner.get(owner, {}).values())
        return [self._unset(share) for share in mine if paths.below(below, share.path) is not None]

    def outlive(self, owner: str) -> list[Put]:
        """The owner ends. What it lent lasts as long as its capabilities would have; what they count ends with it,
        since nobody would count it any more."""
        puts: list[Put] = []
        for share in list(self._by_owner.get(owner, {}).values()):
            rests = [self.rests(owner, Need("mem", action, share.path), NO_FACTS) for action in share.actions]
            handles = [one for several in rests for one in several or ()]
            if None in rests or any(one.limited for one in handles):
                puts.append(self._unset(share))
                continue
            ends = [one.expiry * 10**6 for one in handles if one.expiry is not None]
            if ends:
                ends += [share.expires] if share.expires is not None else []
                share = msgspec.structs.replace(share, expires=min(ends))
                self._set(share)
                puts.append(Put(BUCKET, share.key, _encode(share)))
        return puts

    def shut(self, owner: str, held: Callable[[Need, Mapping[str, Any]], bool]) -> list[Put]:
        """Take back what the owner could not lend any more."""
        mine = list(self._by_owner.get(owner, {}).values())
        kept = (all(held(Need("mem", action, share.path), {}) for action in share.actions) for share in mine)
        return [self._unset(share) for share, keeps in zip(mine, kept, strict=True) if not keeps]


Lent = Callable[[str, str], tuple[StoreBackend, str]]  # (owner, path) → where it lies


class SharedBackend:
    """/mem/shared of one receiver: owner/name/…, each part of somebody else's mount."""

    name = "shared"
    kind: Literal["mem", "file"] = "mem"
    rights = "rwa"  # as each share says

    def __init__(self, shares: Shares, receiver: str, lent: Lent) -> None:
        self._shares, self._receiver, self._lent = shares, receiver, lent

    def _find(self, path: str) -> tuple[Share, StoreBackend, str] | None:
        """The share that `path` lies in, and where that is."""
        parts = path.split("/", 2)
        share = self._shares.at(self._receiver, "/".join(parts[:2])) if len(parts) > 1 else None
        if share is None:
            return None
        backend, base = self._lent(share.owner, share.path)
        return share, backend, base + (f"/{parts[2]}" if len(parts) > 2 else "")

    def _require(self, path: str, right: str) -> tuple[StoreBackend, str, Callable[[Change], Change]]:
        found = self._find(path)
        if found is None:
            raise read_only("/mem/shared itself") if right == "w" else absent(path)
        share, backend, inner = found
        if right not in share.rights:
            raise EACCES("share.rights", f"{share.owner} shared {share.name!r} for reading only")

        def outward(change: Change) -> Change:
            return replace(change, path=path)  # the owner's own watchers hear the owner's name

        return backend, inner, outward

    def lent(self, path: str, action: str, facts: Mapping[str, Any]) -> Sequence[Handle] | None:
        """What that rests on, if the share says so and its owner could do the same with that very entry. Empty: its
        owner has ended. None: it is not lent."""
        found = self._find(path)
        if found is None or not (action == "read" or (action in ("write", "delete") and "w" in found[0].rights)):
            return None
        share, rest = found[0], path.split("/", 2)[2:]
        if self._shares.rests(share.owner, Need("mem", "share", share.path), NO_FACTS) is None:
            return None
        return self._shares.rests(share.owner, Need("mem", action, "/".join((share.path, *rest))), facts)

    def rights_of(self, path: str) -> str:
        found = self._find(path)
        return "".join(right for right in found[1].rights if right == "r" or "w" in found[0].rights) if found else "r"

    def stat(self, path: str) -> Facts | None:
        found = self._find(path)
        if found:
            return found[1].stat(found[2])
        owners = {place.split("/")[0] for place in self._shares.of(self._receiver)}
        return Facts("directory") if not path or path in owners else None

    def label(self, path: str, version: int | None = None) -> Label:
        found = self._find(path)
        if found is None:  # the names of owners, or of what one of them shares
            places = [place for place in self._shares.of(self._receiver) if not path or paths.below(path, place)]
            return joined(self.label(place) for place in places)
        share, backend, inner = found
        return of_words(share.label).join(backend.label(inner, version))

    def read(self, path: str, version: int | None) -> Content:
        if self._find(path) is None and self.stat(path):
            raise is_directory(path)
        backend, inner, _ = self._require(path, "r")
        return backend.read(inner, version)

    def list(self, path: str, after: str, limit: int) -> Page:
        if self._find(path):
            backend, inner, _ = self._require(path, "r")
            return backend.list(inner, after, limit)
        names = set(self._names(path))
        if path and not names:
            raise absent(path)
        rest = sorted(name for name in names if name > after)
        stem = f"{path}/" if path else ""
        entries = [Listed(name, self.stat(stem + name) or Facts("other")) for name in rest[:limit]]
        return Page(entries, len(rest) > limit)

    def _names(self, path: str) -> Iterator[str]:
        for place in self._shares.of(self._receiver):
            owner, name = place.split("/", 1)
            if not path:
                yield owner
            elif owner == path:
                yield name

    def write(
        self,
        path: str,
        source: Source,
        *,
        create: bool = False,
        if_version: int | None = None,
        label: Label = UNLABELLED,
    ) -> Change:
        backend, inner, outward = self._require(path, "w")
        by = self._receiver
        return outward(backend.write(inner, source, create=create, if_version=if_version, label=label, by=by))

    def append(self, path: str, source: Source, *, if_version: int | None = None, label: Label = UNLABELLED) -> Change:
        backend, inner, outward = self._require(path, "w")
        return outward(backend.append(inner, source, if_version=if_version, label=label, by=self._receiver))

    def remove(self, path: str, *, if_version: int | None = None, label: Label = UNLABELLED) -> Change:
        backend, inner, outward = self._require(path, "w")
        return outward(backend.remove(inner, if_version=if_version, label=label))

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Changes come from the owners' own mounts; the tree passes them on."""
        return lambda: None

    def snapshot(self, name: str) -> Snapshot:
        return Snapshot()  # the owner's checkpoint names it, not the receiver's

    def payer(self, path: str) -> tuple[Backend, str]:
        """Whose space a write to `path` takes, and where it lies there."""
        backend, inner, _ = self._require(path, "w")
        return backend, inner

    def usage(self) -> Usage:
        return Usage(0, 0, None, None)  # the owners pay, each within its own limits
