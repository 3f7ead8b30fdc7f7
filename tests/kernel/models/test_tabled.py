from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from agent_os.abi.models import Usage
from agent_os.drivers.models import pricetable
from agent_os.drivers.models.listing import Listed, Listing
from agent_os.kernel.models.prices import FREE
from agent_os.kernel.models.tabled import Tabled, rates_of

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def listing(price: str) -> Listing:
    listed = {"input": Listed(Decimal(price)), "output": Listed(Decimal(price) * 5)}
    return Listing("table 1", listed, Decimal(0))


def test_a_listing_is_asked_for_once_an_hour():
    asked: list[datetime] = []
    moment = NOW

    def table(provider: str, model: str, at: datetime) -> Listing | None:
        asked.append(at)
        return listing(str(len(asked)))

    tabled = Tabled(table, lambda: moment)
    assert tabled("p", "m") == tabled("p", "m")
    moment = NOW + timedelta(minutes=61)
    later = tabled("p", "m")
    assert later is not None
    assert later.cost(Usage(input=10)) == 20
    moment = NOW - timedelta(days=1)  # somebody set the clock back
    tabled("p", "m")
    assert len(asked) == 3


def test_a_model_that_the_table_does_not_know_has_no_price_and_a_local_one_costs_nothing():
    tabled = Tabled(lambda provider, model, at: None, lambda: NOW, free=frozenset({"ollama"}))
    assert tabled("p", "m") is None
    assert tabled("ollama", "anything") is FREE


def test_names_of_agents_do_not_fill_the_memory():
    tabled = Tabled(lambda provider, model, at: None, lambda: NOW)
    for number in range(3_000):
        tabled("p", f"m{number}")
    assert len(vars(tabled)["_kept"]) <= 1_000


@pytest.mark.parametrize("provider", ["anthropic", "openai", "google", "deepseek"])
def test_our_whole_numbers_say_what_the_tables_own_arithmetic_says(provider: str):
    """For every model of the table whose tokens of text have a price, at several sizes on both sides of its tiers."""
    from genai_prices import calc_price
    from genai_prices import types as theirs
    from genai_prices.data_snapshot import get_snapshot

    models = next(one for one in get_snapshot().providers if one.id == provider).models
    compared = 0
    for model in models:
        found = pricetable.look_up(provider, model.id, NOW)
        if found is None or model.match.is_match(model.id) is False:
            continue
        rates = rates_of(found)
        for sizes in ((1, 0, 0, 1), (1_000, 400, 100, 300), (150_000, 0, 0, 5_000), (300_000, 250_000, 7, 1)):
            whole, read, written, output = sizes
            given = {"input_tokens": whole, "output_tokens": output}
            given |= {"cache_read_tokens": read} if read else {}
            given |= {"cache_write_tokens": written} if written else {}
            price = calc_price(
                theirs.Usage(**given), model.id, provider_id=provider, genai_request_timestamp=NOW
            ).total_price
            ours = rates.cost(Usage(input=whole, cached_read=read, cache_write=written, output=output))
            assert 0 <= ours - price * 1_000_000 < 1, (model.id, sizes)
            compared += 1
    assert compared >= 8
