"""The public price table as rates, kept for an hour each: a price is asked for with every call and changes on dates.

In: listings from a table (an argument, so that the kernel loads none) and the wall clock. Out: `Rates` for `Prices`.
"""

from collections.abc import Callable
from datetime import datetime

from agent_os.drivers.models.listing import Listed, Listing
from agent_os.kernel.models.prices import FREE, SCALE, Rate, Rates, Tier, per_token

KEPT_SECS = 3600.0
_MOST = 1_000  # models remembered; names come from agents
Table = Callable[[str, str, datetime], Listing | None]


class Tabled:
    def __init__(self, table: Table, wall: Callable[[], datetime], free: frozenset[str] = frozenset()) -> None:
        """`free`: providers that run on this machine and cost nothing."""
        self._table, self._wall, self._free = table, wall, free
        self._kept: dict[tuple[str, str], tuple[datetime, Rates | None]] = {}

    def __call__(self, provider: str, model: str) -> Rates | None:
        if provider in self._free:
            return FREE
        now = self._wall()
        known = self._kept.get((provider, model))
        if known is not None and 0 <= (now - known[0]).total_seconds() < KEPT_SECS:
            return known[1]
        listing = self._table(provider, model, now)
        rates = None if listing is None else rates_of(listing)
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[provider, model] = (now, rates)
        return rates


def rates_of(listing: Listing) -> Rates:
    kinds = {kind: _rate(listed) for kind, listed in listing.per_million.items()}
    return Rates(
        input=kinds["input"],
        output=kinds["output"],
        cached_read=kinds.get("cache_read"),
        cache_write=kinds.get("cache_write"),
        reasoning=kinds.get("output_reasoning"),
        request=per_token(listing.per_request) * SCALE,
        version=listing.version,
    )


def _rate(listed: Listed) -> Rate:
    return Rate(per_token(listed.base), tuple(Tier(above, per_token(price)) for above, price in listed.tiers))
