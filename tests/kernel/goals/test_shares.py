"""Who has had how much: goals at work first, then time."""

from agent_os.kernel.goals.shares import MOST_AHEAD_SECS, START_SECS, Shares


def first(shares: Shares, now: float) -> str:
    standings = shares.standings(now)
    return min(standings, key=lambda tenant: standings[tenant])


def test_whoever_has_fewer_goals_at_work_comes_first() -> None:
    shares = Shares()
    for tenant in "ab":
        for _ in range(3):
            shares.came(tenant, 0.0)
    shares.started("a", 0.0)
    shares.started("b", 0.0)
    shares.started("b", 0.0)
    shares.ended("a", 9000.0)
    assert first(shares, 9000.0) == "a"


def test_among_equals_whoever_has_used_less_time_comes_first() -> None:
    shares = Shares()
    for tenant in "aabb":
        shares.came(tenant, 0.0)
    shares.started("a", 0.0)
    shares.started("b", 0.0)
    shares.ended("b", 10.0)
    shares.ended("a", 60.0)
    assert first(shares, 60.0) == "b"


def test_many_short_goals_count_by_their_starts() -> None:
    shares = Shares()
    for tenant in "aabb":
        shares.came(tenant, 0.0)
    before = shares.standings(0.0)
    shares.started("a", 1.0)
    shares.ended("a", 1.0)
    after = shares.standings(1.0)
    assert after["a"].use - before["a"].use == START_SECS
    assert after["b"] == before["b"]


def test_nobody_saves_up_turns_by_staying_away() -> None:
    shares = Shares()
    shares.came("busy", 0.0)
    shares.came("busy", 0.0)
    shares.started("busy", 0.0)
    shares.came("new", 5000.0)
    standings = shares.standings(5000.0)
    assert standings["new"].use >= standings["busy"].use


def test_what_was_idle_is_held_against_nobody_beyond_a_limit() -> None:
    shares = Shares()
    for tenant in "abb":
        shares.came(tenant, 0.0)
    shares.started("b", 0.0)
    standings = shares.standings(1e6)
    assert standings["b"].use == standings["a"].use + MOST_AHEAD_SECS


def test_a_start_that_came_to_nothing_costs_nothing() -> None:
    shares = Shares()
    shares.came("a", 0.0)
    before = shares.standings(0.0)
    shares.started("a", 0.0)
    shares.given_back("a", 0.0)
    assert shares.standings(0.0) == before


def test_tenants_that_are_gone_are_forgotten() -> None:
    shares = Shares()
    for number in range(1000):
        shares.came(f"t{number}", float(number))
        shares.left(f"t{number}")
    shares.came("last", 2000.0)
    for _ in range(3):
        shares.started("last", 3000.0)
    assert len(shares.standings(9000.0)) == 1


def test_a_clock_set_back_gives_nobody_time() -> None:
    shares = Shares()
    shares.came("a", 1000.0)
    shares.started("a", 1000.0)
    before = shares.standings(1000.0)["a"].use
    assert shares.standings(500.0)["a"].use == before
    assert shares.standings(510.0)["a"].use == before + 10.0
