"""What all dialects do alike with the blocks of a request: images, instructions, and what may go back to a provider.

An opaque block is bytes that the caller hands in. It is sent as it is only if it is one JSON object, without a name
twice, of a kind that its dialect gives out, with that kind's fields alone: otherwise it could carry a tool or an
address that the provider would act on outside our gate.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from agent_os.abi.models import ImageBlock, Message, ModelRequest, OpaqueBlock, TextBlock, ToolCall, ToolResultBlock
from agent_os.abi.strict_json import json_object
from agent_os.drivers.models.speaking import Blobs, unsound
from agent_os.drivers.models.values import decoded

MEDIA_TYPES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")


def image(block: ImageBlock, blobs: Blobs) -> tuple[str, str]:
    """Its media type, and its bytes in base64."""
    if block.media_type not in MEDIA_TYPES:
        raise unsound(f"an image is one of {', '.join(sorted(MEDIA_TYPES))}, not {block.media_type[:60]!r}")
    data = blobs(block.blob)
    if data is None:
        raise unsound(f"there is no blob {block.blob[:80]!r} for the image")
    return block.media_type, base64.b64encode(data).decode()


def data_url(block: ImageBlock, blobs: Blobs) -> str:
    media_type, data = image(block, blobs)
    return f"data:{media_type};base64,{data}"


def opaque(block: OpaqueBlock, kinds: Mapping[str, frozenset[str]]) -> dict[str, Any]:
    """Its fields, if it may go back. `kinds`: the fields of each `type` that the dialect gives out; the type "" has
    none."""
    try:
        fields = json_object(block.data)
    except ValueError as error:
        raise unsound(f"an opaque block of {block.dialect[:40]!r} is not what the provider gave: {error}") from error
    kind = fields.get("type", "")
    if not isinstance(kind, str) or not fields or not set(fields) <= kinds.get(kind, frozenset()):
        raise unsound(f"an opaque block of {block.dialect[:40]!r} is not of a kind that the provider gives out")
    return fields


def extras(block: TextBlock | ToolCall, allowed: Iterable[str]) -> dict[str, Any]:
    """The provider's own fields of a block, as far as they are known to be harmless."""
    if not block.extra:
        return {}
    fields = decoded(block.extra)
    if fields is None or not set(fields) <= set(allowed):
        raise unsound("the extra fields of a block are not those of this provider")
    return fields


def call_id(id: str) -> str:
    """An id as every provider takes it; the same for the call and for its result."""
    return _NOT_IN_IDS.sub("_", id)[:64] or "_"


def arguments(call: ToolCall) -> dict[str, Any]:
    """Of a call in the history. What was no JSON goes back as a text inside some: servers choke on the bare thing."""
    return call.args if call.args_error is None else {"not_json": call.raw}


def result_text(block: ToolResultBlock) -> str:
    return "\n".join(part.text for part in block.content if isinstance(part, TextBlock))


def result_images(block: ToolResultBlock) -> list[ImageBlock]:
    return [part for part in block.content if isinstance(part, ImageBlock)]


def tool_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return schema or {"type": "object", "properties": {}}


def instructed(request: ModelRequest) -> list[Message]:
    """For a model without a mode for schemas: the messages, and what is wanted as the last word of the system."""
    schema = msgspec.json.encode(request.output_schema).decode()
    wish = (
        "Answer with one JSON value and nothing else: no words around it, no code fence. "
        f"It must be valid under this JSON Schema:\n{schema}"
    )
    heads = 0
    while heads < len(request.messages) and request.messages[heads].role == "system":
        heads += 1
    said = Message(role="system", blocks=[TextBlock(text=wish)])
    return [*request.messages[:heads], said, *request.messages[heads:]]


def is_strict(schema: object) -> bool:
    """Whether every object in it closes itself and requires all it names, which the strict modes of providers ask."""
    if isinstance(schema, list):
        return all(is_strict(part) for part in cast(list[object], schema))
    if not isinstance(schema, dict):
        return True
    fields = cast(dict[str, Any], schema)
    if fields.get("type") == "object" or "properties" in fields:
        named: object = fields.get("properties", {})
        required: object = fields.get("required", [])
        if fields.get("additionalProperties") is not False or not isinstance(named, dict):
            return False
        if not isinstance(required, list) or set(cast(list[str], required)) != set(cast(dict[str, Any], named)):
            return False
        return all(is_strict(part) for part in cast(dict[str, object], named).values())
    return all(is_strict(part) for name, part in fields.items() if name not in ("enum", "const", "default", "examples"))
