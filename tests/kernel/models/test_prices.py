import pytest

from agent_os.abi.errors import EINVAL
from agent_os.abi.models import Usage
from agent_os.kernel.models.prices import FREE, Prices, Rate, Rates, Tier, own_rates, per_token


def nothing(provider: str, model: str) -> Rates | None:
    return None


def test_a_dollar_for_a_million_is_a_millionth_for_one():
    rates = own_rates("p/m", {"input": 1, "output": 10})
    assert rates.cost(Usage(input=1_000, output=100)) == 2_000


def test_a_cost_is_rounded_up_once():
    rates = own_rates("p/m", {"input": 0.1, "output": 0.1})
    assert rates.cost(Usage(input=1)) == 1
    assert rates.cost(Usage(input=15, output=15)) == 3  # not two, rounded up twice to four
    assert rates.cost(Usage()) == 0


def test_decimals_are_taken_as_they_are_written():
    assert per_token(0.1) == 100_000
    assert per_token("0.075") == 75_000
    assert per_token(0.0000001) == 1  # what is finer than our unit is rounded up


def test_each_part_has_its_rate_and_the_whole_prompt_is_counted_once():
    rates = own_rates("p/m", {"input": 10, "output": 20, "cached_read": 1, "cache_write": 12})
    usage = Usage(input=1_000, cached_read=600, cache_write=100, output=50, reasoning=40)
    assert rates.cost(usage) == 300 * 10 + 600 * 1 + 100 * 12 + 50 * 20


def test_a_part_without_a_rate_costs_what_it_is_part_of():
    rates = own_rates("p/m", {"input": 10, "output": 20})
    assert rates.cost(Usage(input=1_000, cached_read=900)) == 10_000


def test_parts_larger_than_their_whole_do_not_make_a_cost_negative():
    rates = own_rates("p/m", {"input": 10, "output": 20, "cached_read": 1})
    assert rates.cost(Usage(input=100, cached_read=10**9, cache_write=10**9)) == 100


def test_beyond_a_tier_every_token_has_its_rate():
    rates = Rates(Rate(3_000_000, (Tier(200_000, 6_000_000),)), Rate(15_000_000, (Tier(200_000, 22_500_000),)))
    assert rates.cost(Usage(input=200_000, output=10)) == 600_150
    assert rates.cost(Usage(input=200_001, output=10)) == 1_200_006 + 225


def test_what_is_reserved_is_the_most_that_it_can_cost():
    rates = own_rates("p/m", {"input": 10, "output": 20, "cache_write": 12.5, "cached_read": 1, "request": 0.01})
    most = rates.most(1_000, 500)
    for usage in (
        Usage(input=1_000, output=500),
        Usage(input=1_000, cache_write=1_000, output=500),
        Usage(input=1_000, cached_read=1_000, output=500),
    ):
        assert rates.cost(usage) <= most
    assert most == 12_500 + 10_000 + 10_000


def test_the_operators_price_comes_before_the_tables():
    table = own_rates("p/m", {"input": 1, "output": 1})
    prices = Prices(lambda provider, model: table, {"p/m": {"input": 5, "output": 5}})
    assert prices.price("p", "m", Usage(input=100)) == (500, "operator")
    assert prices.price("p", "other", Usage(input=100)).cost_microusd == 100


def test_a_model_without_a_price_costs_nobody_knows_what():
    assert Prices(nothing).price("p", "m", Usage(input=100)) == (None, "")
    assert Prices(lambda provider, model: FREE).price("ollama", "m", Usage(input=100)) == (0, "free")


@pytest.mark.parametrize(
    "given",
    [
        {"input": 1},
        {"input": 1, "output": 1, "outptu": 2},
        {"input": -1, "output": 1},
        {"input": "many", "output": 1},
        {"input": float("nan"), "output": 1},
        {"input": float("inf"), "output": 1},
        {"input": True, "output": 1},
        {"input": None, "output": 1},
    ],
)
def test_a_price_that_is_none_is_refused_with_its_name(given: dict[str, object]):
    with pytest.raises(EINVAL) as refused:
        own_rates("p/m", given)
    assert "p/m" in refused.value.reason
