"""Prices from the public `genai-prices` table, which its maintainers keep and whose release is the version.

In: a provider and a model as we name them, and the moment. Out: what a token costs, each kind as the table has it (in
dollars for a million), or None. The package is loaded at the first question only, for it brings pydantic and 30 MB with
it and takes half a second: ask the first time in a thread. It never fetches anything.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from agent_os.drivers.models.listing import Listed, Listing

_KINDS = ("input", "output", "cache_read", "cache_write", "output_reasoning")


def version() -> str:
    from importlib.metadata import version as installed

    return f"genai-prices {installed('genai_prices')}"


def look_up(provider: str, model: str, at: datetime) -> Listing | None:
    """Prices change on dates and some by the hour: keep an answer no longer than an hour."""
    from genai_prices.data_snapshot import get_snapshot

    providers = get_snapshot().providers
    # By its exact name: the table would take any server that has `openai` in its name for OpenAI.
    known = next((one for one in providers if one.id == provider), None)
    found = known.find_model(model, all_providers=providers) if known else None
    if found is None:
        return None
    prices: Any = found.get_prices(at.astimezone(UTC))
    listed = {kind: _listed(price) for kind in _KINDS if (price := getattr(prices, f"{kind}_mtok", None)) is not None}
    if "input" not in listed or "output" not in listed:
        return None  # sound, pictures, searches: not what a token of text costs
    thousand = getattr(prices, "requests_kcount", None)
    return Listing(version(), listed, Decimal(0) if thousand is None else _listed(thousand).base / 1000)


def _listed(price: Any) -> Listed:
    if isinstance(price, Decimal):
        return Listed(price)
    return Listed(price.base, tuple((tier.start, tier.price) for tier in price.tiers))
