"""Bounding what a tool gives: the agent gets the beginning and the end, the rest lies in a blob.

In: a value of any shape, and the tool's limit. Out: a `ToolResult`, and the bytes to keep where something was cut. What
is text stays a text of its place, with a marker that says how much there was, so that a result still fits its schema;
what is too large without any long text (a list of a million numbers) becomes a text of its JSON. Pure.
"""

from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Any, NamedTuple, cast

import msgspec

from agent_os.abi.errors import EIO, EMSGSIZE
from agent_os.abi.tools import LARGEST_OUTPUT, ToolResult

_HEAD, _TAIL = 3, 1  # of four parts: 48 and 16 KiB of 64
_LEAST = 512  # bytes; a text below it is not worth cutting
_DEEPEST = 64
_SHARE = 4  # of a text that is cut again, so much of it is kept at most: it ends soon
_json = msgspec.json.Encoder().encode


class Bounded(NamedTuple):
    result: ToolResult
    blob: bytes | None  # to be kept under `result.blob`; None: nothing was cut


def bound(value: Any, limit: int, raw: bytes | None = None) -> Bounded:
    """`raw`: what it really gave, where that is not the value (bytes that are no UTF-8); it is what is kept."""
    text, size = _measured(value)
    whole = raw if raw is not None else text
    if len(whole) > LARGEST_OUTPUT or size > LARGEST_OUTPUT:
        reason = f"the result has {max(len(whole), size):,} bytes; at most {LARGEST_OUTPUT:,} are kept"
        raise EMSGSIZE("tool.output", reason, hint="ask for less, or write it to a file", size=size, ran=True)
    if size <= limit and raw is None:
        return Bounded(ToolResult(value=value, size=size), None)
    blob = sha256(whole).hexdigest()
    if size <= limit:
        return Bounded(ToolResult(value=value, size=len(whole), blob=blob), whole)
    small = _cut_texts(value, limit)
    if small is not None:
        return Bounded(ToolResult(value=small, size=size, cut=True, blob=blob), whole)
    shown = cut(text.decode(errors="replace"), limit)
    return Bounded(ToolResult(text=shown, size=size, cut=True, blob=blob), whole)


def _measured(value: Any) -> tuple[bytes, int]:
    """Its JSON, which for a plain text is the text itself."""
    if isinstance(value, str):
        plain = value.encode(errors="replace")
        return plain, len(plain)
    if isinstance(value, bytes):
        return value, len(value)
    try:
        text = _json(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise EIO("tool.output", f"the result is not what JSON can hold: {problem}", ran=True) from None
    return text, len(text)


def cut(text: str, limit: int, size: int | None = None) -> str:
    """The beginning, a marker with the true size, the end; no character is torn."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    total = len(data) if size is None else size
    head = data[: limit * _HEAD // (_HEAD + _TAIL)].decode(errors="ignore")
    tail = _from_a_character(data[-(limit * _TAIL // (_HEAD + _TAIL)) :]).decode(errors="ignore")
    left = total - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {left:,} of {total:,} bytes left out …]\n{tail}"


def _from_a_character(data: bytes) -> bytes:
    at = 0
    while at < min(4, len(data)) and data[at] & 0xC0 == 0x80:
        at += 1
    return data[at:]


def _cut_texts(value: Any, limit: int) -> Any:
    """The same with its longest texts cut; None: that is not enough. Each text may keep the same, so that a short one
    beside a long one stays whole."""
    if isinstance(value, str):
        return cut(value, limit)
    found = _lengths(value, limit)
    if found is None:
        return None
    texts = sorted(found, reverse=True)
    rest = len(_json(_mapped(value, lambda text: ""))) + 8
    room, others = limit - rest, sum(texts)
    for count, length in enumerate(texts, 1):
        others -= length
        each = (room - others) // count
        if each >= min(_LEAST, length) and (count == len(texts) or texts[count] <= each):
            break
    else:
        return None
    for _ in range(_SHARE):  # escapes make JSON longer than its texts
        keep = max(_LEAST, each - 64)
        small = _mapped(value, lambda text, keep=keep: cut(text, keep) if len(text) * 4 > keep else text)
        if len(_json(small)) <= limit:
            return small
        each = each // 2
    return None


def _lengths(value: Any, most: int) -> list[int] | None:
    """Of its texts, in bytes. None: it has more parts than that, so its texts are not what makes it long."""
    found: list[int] = []
    layer: list[Any] = [value]
    for _ in range(_DEEPEST + 1):
        found += [len(one.encode(errors="replace")) for one in layer if isinstance(one, str)]
        most -= len(layer)
        inner = [_parts(one) for one in layer]
        if sum(map(len, inner)) > most:
            return None
        layer = [one for parts in inner for one in parts]
    return found


def _parts(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _mapped(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    if isinstance(value, str):
        return change(value)
    if depth < _DEEPEST and isinstance(value, dict):
        fields = cast("dict[Any, Any]", value).items()
        return {name: _mapped(one, change, depth + 1) for name, one in fields}
    if depth < _DEEPEST and isinstance(value, list):
        return [_mapped(one, change, depth + 1) for one in cast("list[Any]", value)]
    return value


def text_of(data: bytes) -> tuple[str, bool]:
    """As text, and whether it was one: what is no UTF-8 is replaced, and its bytes should be kept."""
    try:
        return data.decode(), True
    except UnicodeDecodeError:
        return data.decode(errors="replace"), False


def part(blob: bytes, offset: int, length: int) -> dict[str, Any]:
    """A range of what was kept, for tool.output."""
    piece = blob[offset : offset + length]
    text, plain = text_of(piece)
    row: dict[str, Any] = {"text": text, "offset": offset, "size": len(blob), "more": offset + len(piece) < len(blob)}
    return row if plain else {**row, "replaced": True}
