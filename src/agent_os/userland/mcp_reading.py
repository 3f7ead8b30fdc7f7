"""What a server said, made into what the kernel takes: plain text, bounded sizes, names that can be names.

Pure. In: the SDK's objects. Out: `McpTool`, and parts with their bytes. A tool that cannot be one of ours is a
ValueError that says why; a result that is too long is cut and says so.
"""

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, cast

from agent_os.abi.helpers import LARGEST_SCHEMA, LONGEST_DESCRIPTION, MOST_TOOLS, McpTool, Part

LARGEST_MESSAGE = 48 << 20  # bytes of one message of a server
MOST_LEFT_OUT = 200
_MOST_PARTS = 256
_DEEPEST = 32
_LONGEST_URI = 2048
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HINTS = {
    "read_only_hint": "read_only",
    "destructive_hint": "destructive",
    "idempotent_hint": "idempotent",
    "open_world_hint": "open_world",
}


def plain(text: str, most: int) -> str:
    """Without what a reader cannot see: control and format characters, the tags and marks that hide instructions or
    turn a line around, halves of surrogate pairs."""
    kept = (c for c in text[: most * 2] if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    cut = "".join(kept)
    return cut if len(cut) <= most else cut[: most - 1] + "…"


def tool(listed: Any, taken: AbstractSet[str], count: int) -> McpTool:
    """`listed` is the SDK's Tool. ValueError: why it is none of ours."""
    if count >= MOST_TOOLS:
        raise ValueError(f"the server lists more than {MOST_TOOLS} tools")
    alias = re.sub(r"[./]", "_", listed.name)
    if not _NAME.fullmatch(alias):
        raise ValueError("its name is not 1 to 64 letters, digits, '_', '-', '.' or '/', a letter or digit first")
    if alias in taken:
        raise ValueError(f"another tool is called {alias} already")
    description = listed.description or ""
    if len(description) > LONGEST_DESCRIPTION:
        raise ValueError(f"its description has more than {LONGEST_DESCRIPTION} characters")
    output = listed.output_schema
    return McpTool(
        name=listed.name,
        alias=alias,
        description=plain(description, LONGEST_DESCRIPTION),
        title=plain(listed.title or "", 256),
        input_schema=_schema(listed.input_schema, "input"),
        output_schema=None if output is None else _schema(output, "output"),
        hints=_hints(listed.annotations),
    )


def _hints(annotations: Any) -> dict[str, bool]:
    if annotations is None:
        return {}
    said = {ours: getattr(annotations, theirs, None) for theirs, ours in _HINTS.items()}
    return {name: value for name, value in said.items() if value is not None}


def _schema(schema: dict[str, Any], what: str) -> dict[str, Any]:
    """As it is, if it is small, shallow and complete in itself: nothing is fetched for a schema."""
    if len(json.dumps(schema)) > LARGEST_SCHEMA:
        raise ValueError(f"its {what} schema has more than {LARGEST_SCHEMA} bytes")
    layer: list[Any] = [schema]
    for _ in range(_DEEPEST):
        for one in layer:
            target = cast("dict[str, Any]", one).get("$ref") if isinstance(one, dict) else None
            if isinstance(target, str) and not target.startswith("#"):
                raise ValueError(f"its {what} schema refers to something outside of itself")
        layer = [inner for outer in layer for inner in _inside(outer)]
        if not layer:
            return schema
    raise ValueError(f"its {what} schema is nested deeper than {_DEEPEST}")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def parts(result: Any, limit: int) -> tuple[list[Part], bytes, int]:
    """Of the SDK's CallToolResult: the parts, their bytes one after the other, and how many more there were."""
    found, data, left_out = list[Part](), bytearray(), 0
    for part, content in _contents(result):
        room = limit - len(data)
        if len(found) == _MOST_PARTS or (room <= 0 and content):
            left_out += 1
            continue
        if len(content) > room:
            part.whole = len(content)
            content = content[:room] if part.kind in ("text", "resource") else b""  # half a picture is none
        part.size = len(content)
        found.append(part)
        data += content
    return found, bytes(data), left_out


def _contents(result: Any) -> Iterator[tuple[Part, bytes]]:
    structured = result.structured_content
    if structured is not None:
        yield Part("json", 0, "application/json"), json.dumps(structured).encode()
    for block in result.content:
        match block.type:
            case "text":
                yield Part("text", 0, "text/plain"), block.text.encode("utf-8", "replace")
            case "image" | "audio":
                yield Part(block.type, 0, plain(block.mime_type, 128)), _decoded(block.data)
            case "resource_link":
                name = plain(block.name, 256)
                yield Part("link", 0, plain(block.mime_type or "", 128), plain(str(block.uri), _LONGEST_URI), name), b""
            case _:
                yield _resource(block.resource)


def _resource(resource: Any) -> tuple[Part, bytes]:
    text = getattr(resource, "text", None)
    content = _decoded(resource.blob) if text is None else text.encode("utf-8", "replace")
    return Part("resource", 0, plain(resource.mime_type or "", 128), plain(str(resource.uri), _LONGEST_URI)), content


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""  # what cannot be read is nothing; the part still says that there was something
