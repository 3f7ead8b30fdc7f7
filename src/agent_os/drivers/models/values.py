"""JSON of strangers, read without trusting its shape.

In: bytes or decoded values. Out: what is asked for, or something empty of the same kind: a provider that leaves a field
out or gives it another type must not end a call that can go on without it.
"""

from typing import Any, cast

import msgspec

from agent_os.abi.models import ToolCall

_LARGEST_COUNT = 10**9  # tokens of one call; more is no count


def decoded(data: bytes) -> dict[str, Any] | None:
    """An object, or None where it is anything else or no JSON at all."""
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def mapping(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def count(value: object) -> int | None:
    """A number of tokens. None: not said, or nonsense."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _LARGEST_COUNT else None


def tool_call(id: str, name: str, written: str, extra: bytes = b"") -> ToolCall:
    """A call with what the model wrote as its arguments, which need not be JSON, nor an object."""
    if not written.strip():
        return ToolCall(id=id, name=name, extra=extra)
    try:
        args: object = msgspec.json.decode(written)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        why = f"the arguments are not JSON: {error}"
        return ToolCall(id=id, name=name, args_error=why, raw=written, extra=extra)
    if not isinstance(args, dict):
        why = f"the arguments are not a JSON object but {type(args).__name__}"
        return ToolCall(id=id, name=name, args_error=why, raw=written, extra=extra)
    return ToolCall(id=id, name=name, args=cast(dict[str, Any], args), extra=extra)
