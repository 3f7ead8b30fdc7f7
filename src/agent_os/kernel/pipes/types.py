"""The registry of types: a name, in a namespace, and the one schema that it stands for.

In: schemas that whoever builds a pipe declares, from the annotations in its own program. Out: what a name stands for,
and the rows that keep it. A name is bound to the digest of its schema for as long as anybody lives who declared it so:
nobody can give another meaning to a name under somebody's feet. What an agent says of its own messages counts nothing
here.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from agent_os.abi.errors import EDQUOT, EINVAL, EMSGSIZE, ETYPE
from agent_os.drivers.store import Put
from agent_os.kernel.bus.rows import Rows
from agent_os.kernel.pipes.schemas import Schema, require_understood

TYPES = "pipes.types"  # bucket: namespace/name
LARGEST = 64 << 10  # bytes of a schema
MOST = 1000  # types of a namespace
MOST_OWN = 256  # that one agent declares
_LONGEST = 100
_encode = msgspec.msgpack.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Type(Struct, array_like=True, eq=False):
    name: str
    digest: str
    schema: dict[str, Any]
    by: list[str]  # who declared it so


_decode = msgspec.msgpack.Decoder(Type).decode


class Types:
    def __init__(self, rows: Rows, is_over: Callable[[str], bool]) -> None:
        self._types = {key: _decode(row) for key, row in rows.items(TYPES)}
        self._is_over = is_over

    def find(self, namespace: str, name: str) -> Type:
        """ETYPE: nobody has declared it."""
        found = self._types.get(f"{namespace}/{name}")
        if found is None:
            raise ETYPE("type.unknown", f"there is no type {name!r}", hint="the pipe that uses it must declare it")
        return found

    def knows(self, namespace: str, name: str) -> bool:
        return f"{namespace}/{name}" in self._types

    def check(self, namespace: str, declared: Mapping[str, Schema], by: str) -> dict[str, Type]:
        """What these would be. Changes nothing. ETYPE: the name stands for something else."""
        return {name: self._understood(namespace, name, schema, by) for name, schema in declared.items()}

    def _understood(self, namespace: str, name: str, schema: Schema, by: str) -> Type:
        if not name or len(name) > _LONGEST or "/" in name or not name.isprintable():
            raise EINVAL("type.name", f"a type's name has 1 to {_LONGEST} characters, none of them a slash")
        require_understood(schema)
        text = _canonical(schema)
        if len(text) > LARGEST:
            raise EMSGSIZE("type.size", f"the schema of {name} has {len(text)} bytes, at most {LARGEST} are allowed")
        digest, known = sha256(text).hexdigest(), self._types.get(f"{namespace}/{name}")
        if known is None or known.digest == digest:
            return known or Type(name, digest, dict(schema), [by])
        holders = [one for one in known.by if one != by and not self._is_over(one)]
        if holders:
            reason = f"{name} stands for another schema, as {holders[0]} declared it"
            raise ETYPE("type.bound", reason, hint="choose another name for this one", digest=known.digest)
        return Type(name, digest, dict(schema), [by])

    def register(self, namespace: str, types: Mapping[str, Type], by: str) -> list[Put]:
        """From here on they are there; for the entry that says so. EDQUOT: too many, and then none is."""
        named = {f"{namespace}/{name}": one for name, one in types.items()}
        fresh = {key: one for key, one in named.items() if self._types.get(key) is not one or by not in one.by}
        gone = self._make_room(namespace, fresh, by)
        for key, one in fresh.items():
            one.by = [each for each in one.by if each != by and not self._is_over(each)] + [by]
            self._types[key] = one
        return [
            *(Put(TYPES, key, None) for key in gone),
            *(Put(TYPES, key, _encode(one)) for key, one in fresh.items()),
        ]

    def _make_room(self, namespace: str, fresh: Mapping[str, Type], by: str) -> list[str]:
        """What nobody alive has declared makes room for what somebody needs."""
        there = [key for key in self._types if key.startswith(f"{namespace}/") and key not in fresh]
        mine = sum(by in self._types[key].by for key in there) + len(fresh)
        if fresh and mine > MOST_OWN:
            raise EDQUOT("type.many", f"an agent declares at most {MOST_OWN} types", used=mine, limit=MOST_OWN)
        if len(there) + len(fresh) <= MOST:
            return []
        gone = [key for key in there if all(self._is_over(one) for one in self._types[key].by)]
        if len(there) - len(gone) + len(fresh) > MOST:
            raise EDQUOT("type.many", f"{MOST} types are the most of a namespace", used=len(there), limit=MOST)
        for key in gone:
            del self._types[key]
        return gone
