"""Short forms for the JSON Schemas of the built-in tools: every record is closed, every text and list is bounded."""

from typing import Any

Shape = dict[str, Any]
LONGEST_PATH = 4096


def record(required: str = "", /, **fields: Shape) -> Shape:
    """An object with these fields and no other; `required` are names."""
    shape: Shape = {"type": "object", "properties": fields, "additionalProperties": False}
    return {**shape, "required": required.split()} if required else shape


def text(about: str = "", *, most: int | None = None, **more: Any) -> Shape:
    return _told({"type": "string", **({} if most is None else {"maxLength": most}), **more}, about)


def whole(about: str = "", *, least: int = 0, most: int | None = None, **more: Any) -> Shape:
    bounds = {"minimum": least, **({} if most is None else {"maximum": most})}
    return _told({"type": "integer", **bounds, **more}, about)


def seconds(about: str, *, most: float) -> Shape:
    return _told({"type": "number", "exclusiveMinimum": 0, "maximum": most}, about)


def flag(about: str = "") -> Shape:
    return _told({"type": "boolean"}, about)


def one_of(*words: str, about: str = "") -> Shape:
    return _told({"type": "string", "enum": list(words)}, about)


def rows(item: Shape, about: str = "", *, most: int | None = None) -> Shape:
    return _told({"type": "array", "items": item, **({} if most is None else {"maxItems": most})}, about)


def table(item: Shape, about: str = "", *, most: int) -> Shape:
    return _told({"type": "object", "additionalProperties": item, "maxProperties": most}, about)


def path(about: str) -> Shape:
    return text(about, most=LONGEST_PATH, minLength=1)


def _told(shape: Shape, about: str) -> Shape:
    return {**shape, "description": about} if about else shape
