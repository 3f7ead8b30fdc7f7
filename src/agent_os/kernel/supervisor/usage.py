"""Use of resources against their limits: what an agent is told before and when nothing is left.

In: figures that the kernel measured, never an agent's own. Out: one `resource_warning` at four fifths, one `exceeded`
at the limit, naming resource, value and limit; again only after use has been below four fifths. Refuses nothing: the
gate, the ledger and the host do.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

_PART, _WHOLE = 4, 5
_QUIET, _WARNED, _TOLD = range(3)


class Notice(Struct, frozen=True):
    what: Literal["resource_warning", "exceeded"]
    resource: str
    value: int
    limit: int


class Usage:
    """Of one agent id. A resource that is not among the limits, or whose limit is None, has none."""

    def __init__(self, limits: Mapping[str, int | None]) -> None:
        self._limits = dict(limits)
        self._levels: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def uses(self) -> list[tuple[str, int, int | None]]:
        """Each resource with its last figure and its limit."""
        return [(resource, value, self._limits.get(resource)) for resource, value in self._last.items()]

    def note(self, resource: str, value: int) -> Notice | None:
        """The present figure. Whoever leaps past both marks is told of the second only."""
        limit, self._last[resource] = self._limits.get(resource), value
        before = self._levels.get(resource, _QUIET)
        now = _level(value, limit)
        if now == _QUIET or now > before:
            self._levels[resource] = now
        if limit is None or now <= before:
            return None
        return Notice("exceeded" if now == _TOLD else "resource_warning", resource, value, limit)


def _level(value: int, limit: int | None) -> int:
    """Of a limit of zero nothing can be used, so nothing used is no news."""
    if limit is None or value <= 0:
        return _QUIET
    if value >= limit:
        return _TOLD
    return _WARNED if value * _WHOLE >= limit * _PART else _QUIET
