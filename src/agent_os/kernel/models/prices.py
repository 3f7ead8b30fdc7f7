"""What a call costs: whole millionths of a dollar, rounded up, from a table with a version or from the operator.

In: usage, and rates that somebody looked up (`drivers/models/pricetable.py` reads the public table; the operator's own
come first). Out: a cost and the version of what it was computed from, or None where no price is known: under a money
limit such a call is refused, which is not decided here. Pure: no table is loaded here, and no clock is read.

A price of one dollar for a million tokens is one millionth of a dollar for a token. Rates are therefore kept as whole
millionths of a millionth per token, and a cost is exact until it is rounded once, at the end.
"""

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, NamedTuple, cast

from msgspec import Struct

from agent_os.abi.errors import EINVAL
from agent_os.abi.models import Usage

SCALE = 1_000_000
OPERATOR = "operator"  # in the version, where the operator set the price
_WORDS = ("input", "output", "cached_read", "cache_write", "request")


class Tier(Struct, frozen=True):
    """From `above` tokens of input on, every token has this rate."""

    above: int
    rate: int


class Rate(Struct, frozen=True):
    base: int
    tiers: tuple[Tier, ...] = ()  # ascending

    def at(self, input_tokens: int) -> int:
        rate = self.base
        for tier in self.tiers:
            if input_tokens > tier.above:
                rate = tier.rate
        return rate


class Rates(Struct, frozen=True):
    """Of one model. A kind of token without a rate of its own costs what it is a part of."""

    input: Rate
    output: Rate
    cached_read: Rate | None = None
    cache_write: Rate | None = None
    reasoning: Rate | None = None
    request: int = 0  # for every call, in the same unit
    version: str = OPERATOR

    def cost(self, usage: Usage) -> int:
        """Millionths of a dollar. Parts that exceed their whole, which some servers report, are cut to it."""
        read = min(usage.cached_read, usage.input)
        written = min(usage.cache_write, usage.input - read)
        thought = min(usage.reasoning, usage.output) if self.reasoning else 0
        amount = self.request
        for tokens, rate in (
            (usage.input - read - written, self.input),
            (read, self.cached_read or self.input),
            (written, self.cache_write or self.input),
            (usage.output - thought, self.output),
            (thought, self.reasoning or self.output),
        ):
            amount += tokens * rate.at(usage.input)
        return -(-amount // SCALE)

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """The most that so many tokens can cost, whatever a cache does: what a budget reserves."""
        inputs = (one.at(input_tokens) for one in (self.input, self.cached_read, self.cache_write) if one)
        outputs = (one.at(input_tokens) for one in (self.output, self.reasoning) if one)
        return -(-(self.request + input_tokens * max(inputs) + output_tokens * max(outputs)) // SCALE)

    def output_for(self, input_tokens: int, microusd: int) -> int:
        """Tokens of output that so much money pays for, after the input."""
        outputs = max(one.at(input_tokens) for one in (self.output, self.reasoning) if one)
        left = microusd * SCALE - self.most(input_tokens, 0) * SCALE
        return left // outputs if outputs else left


FREE = Rates(Rate(0), Rate(0), version="free")  # a model on this machine


class Priced(NamedTuple):
    cost_microusd: int | None  # None: no price is known
    version: str


Lookup = Callable[[str, str], Rates | None]  # provider, model


class Prices:
    """`operator`: models (`provider/name`) with dollars for a million tokens, and `request` for every call."""

    def __init__(self, lookup: Lookup, operator: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._lookup = lookup
        self._own = {model: own_rates(model, given) for model, given in (operator or {}).items()}

    def rates(self, provider: str, model: str) -> Rates | None:
        return self._own.get(f"{provider}/{model}") or self._lookup(provider, model)

    def price(self, provider: str, model: str, usage: Usage) -> Priced:
        rates = self.rates(provider, model)
        return Priced(None, "") if rates is None else Priced(rates.cost(usage), rates.version)


def own_rates(model: str, given: Mapping[str, Any]) -> Rates:
    """The operator's, as written. EINVAL names what is wrong."""
    unknown = sorted(set(given) - set(_WORDS))
    if unknown or "input" not in given or "output" not in given:
        wrong = f"{unknown[0]!r} is no price" if unknown else "`input` and `output` are needed"
        raise EINVAL("model.price", f"price of {model}: {wrong}", hint=f"give dollars for {', '.join(_WORDS)}")
    rates = {word: per_token(given[word], f"price of {model}, {word}") for word in given}
    read, written = (Rate(rates[word]) if word in rates else None for word in ("cached_read", "cache_write"))
    request = rates.get("request", 0) * SCALE
    return Rates(Rate(rates["input"]), Rate(rates["output"]), read, written, request=request)


def per_token(dollars: object, what: str = "price") -> int:
    """Dollars for a million tokens as our unit, rounded up. A float is taken as it is written, not as it is stored."""
    try:
        amount = Decimal(str(cast("Any", dollars)))
    except InvalidOperation:
        amount = Decimal(-1)
    if isinstance(dollars, bool) or not (amount.is_finite() and 0 <= amount <= 1_000_000):
        raise EINVAL("model.price", f"{what}: {dollars!r} is no amount of dollars", hint="a number from 0 up")
    return int((amount * SCALE).to_integral_value(ROUND_CEILING))
