"""The interface of a price table: what it lists for a model. A table is a function of provider, model and moment."""

from decimal import Decimal

from msgspec import Struct


class Listed(Struct, frozen=True):
    """Dollars. `tiers`: from so many tokens of input on, all tokens of the kind cost that."""

    base: Decimal
    tiers: tuple[tuple[int, Decimal], ...] = ()


class Listing(Struct, frozen=True):
    version: str
    per_million: dict[str, Listed]  # input, output, cache_read, cache_write, output_reasoning
    per_request: Decimal  # for one call
