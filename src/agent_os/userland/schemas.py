"""Types of a program as JSON Schema: what its annotations say, written so that a kernel can check it.

In: an annotation: a Struct, a dataclass, a TypedDict, a Literal, or what is made of these. Out: its name and schema.
Records are closed, so a field that was not declared does not cross; references are written out, unless a type contains
itself. Imports nothing of the kernel and sends nothing.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from agent_os.abi.errors import EINVAL

_REF = "#/$defs/"
_known: dict[str, Any] = {}  # types that this program has named


def register(kind: Any, name: str = "") -> Any:
    """Give a type a name that `allowed_types` can use; as a decorator, its own. What `@agent` functions return has one
    already."""
    known = _known.setdefault(name or name_of(kind), kind)
    if known is not kind and schema_of(known) != schema_of(kind):
        raise EINVAL("type.bound", f"{name or name_of(kind)} is the name of another type in this program")
    return kind


def is_known(name: str) -> bool:
    return name in _known


def find(name: str) -> Any:
    if name not in _known:
        there = ", ".join(sorted(_known)) or "none"
        hint = "annotate what an @agent function returns with it, or give the type itself"
        raise EINVAL("type.unknown", f"no type {name!r} is known in this program: there is {there}", hint=hint)
    return _known[name]


def name_of(kind: Any) -> str:
    """EINVAL: it has none of its own, as a list of something."""
    name = getattr(kind, "__name__", "")
    if not isinstance(kind, type) or not name or kind.__module__ == "builtins":
        hint = "make it a field of a Struct or a dataclass"
        raise EINVAL("type.name", f"{kind!r} has no name of its own", hint=hint)
    return name


def schema_of(kind: Any) -> dict[str, Any]:
    """EINVAL: nothing outside this program could check it."""
    try:
        whole = msgspec.json.schema(kind)
    except TypeError as problem:
        raise EINVAL("type.schema", f"{kind!r} cannot be written as a schema: {problem}") from None
    defs: dict[str, Any] = whole.pop("$defs", {})
    repeats = {name for name in defs if _reaches(name, defs[name], defs, set())}
    schema: dict[str, Any] = _written_out(whole, defs, repeats)
    if repeats:
        schema["$defs"] = {name: _written_out(defs[name], defs, repeats) for name in sorted(repeats)}
    return schema


def _reaches(name: str, schema: Any, defs: Mapping[str, Any], seen: set[str]) -> bool:
    """Whether a type contains itself."""
    if isinstance(schema, list):
        return any(_reaches(name, one, defs, seen) for one in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return False
    for key, value in cast("dict[str, Any]", schema).items():
        if key == "$ref":
            other = value.removeprefix(_REF)
            if other == name:
                return True
            if other not in seen:
                seen.add(other)
                if _reaches(name, defs[other], defs, seen):
                    return True
        elif _reaches(name, value, defs, seen):
            return True
    return False


def _written_out(schema: Any, defs: Mapping[str, Any], repeats: set[str]) -> Any:
    if isinstance(schema, list):
        return [_written_out(one, defs, repeats) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    one = cast("dict[str, Any]", schema)
    if "$ref" in one and (name := one["$ref"].removeprefix(_REF)) not in repeats:
        return _written_out(
            {**defs[name], **{key: value for key, value in one.items() if key != "$ref"}}, defs, repeats
        )
    out: dict[str, Any] = {}
    for key, value in one.items():
        if key == "properties":
            out[key] = {field: _written_out(each, defs, repeats) for field, each in value.items()}
        elif key in ("enum", "const", "required"):
            out[key] = value
        elif key not in ("default", "discriminator", "examples"):  # these say nothing of what fits
            out[key] = _written_out(value, defs, repeats)
    if "properties" in out:
        out.setdefault("additionalProperties", False)
    return out
