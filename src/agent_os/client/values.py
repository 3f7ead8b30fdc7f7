"""What the kernel answers, as JSON can hold it."""

from base64 import b64encode
from typing import Any, cast


def jsonable(value: Any) -> Any:
    """As JSON can hold it: bytes that are text as text, others as base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {str(jsonable(key)): jsonable(each) for key, each in items}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in cast("list[Any]", value)]
    return value
