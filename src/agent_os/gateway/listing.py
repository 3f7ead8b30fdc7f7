"""Lists in pages: `?limit=` and `?cursor=` in, `{"items": […], "next": …}` out.

A cursor names the last item that was given, not a position: items that come or go meanwhile shift nothing. It is opaque
to whoever holds it. There are two kinds of lists, by numbers and by names, and a cursor of the other kind is refused.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query

Key = int | str
K = TypeVar("K", int, str)
Limit = Annotated[int, Query(ge=1, le=500, description="At most so many items.")]
_SAID = "`next` of the page before; none: from the beginning."


class Paging(Generic[K]):
    """`after`: the key of the last item that was given."""

    def __init__(self, limit: int, after: K | None) -> None:
        self.limit, self.after = limit, after


def _by_name(
    limit: Limit = 50,
    cursor: Annotated[str | None, Query(pattern="^t([0-9a-f]{2}){1,1000}$", description=_SAID)] = None,
) -> Paging[str]:
    return Paging(limit, bytes.fromhex(cursor[1:]).decode(errors="replace") if cursor else None)


def _by_number(
    limit: Limit = 50, cursor: Annotated[str | None, Query(pattern="^n[0-9]{1,18}$", description=_SAID)] = None
) -> Paging[int]:
    return Paging(limit, int(cursor[1:]) if cursor else None)


Pages = Annotated[Paging[str], Depends(_by_name)]
Numbered = Annotated[Paging[int], Depends(_by_number)]


def next_cursor(key: Key) -> str:
    return f"n{key}" if isinstance(key, int) else f"t{key.encode().hex()}"


def paged(rows: Sequence[Any], paging: Paging[K], key: Callable[[Any], K]) -> dict[str, Any]:
    """A page of a whole list, in the order of its keys."""
    ordered = sorted(rows, key=key)
    if paging.after is not None:
        ordered = [row for row in ordered if key(row) > paging.after]
    found = ordered[: paging.limit]
    more = len(ordered) > len(found)
    return {"items": found, "next": next_cursor(key(found[-1])) if more else None}


def number(name: str) -> int:
    """The number of `q-12`, `c-7` and their like."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0
