"""What one sender may take, and what a refused one is told."""

import pytest

from agent_os.abi.errors import EAGAIN, EDQUOT
from agent_os.kernel.bus.quota import BURST, RATE, SUBSCRIPTIONS, UNACKED, Account, Accounts, Drain


def test_a_rate_comes_back_with_time_and_never_beyond_the_burst() -> None:
    account = Account(0.0)

    def spend(now: float) -> int:
        for count in range(10_000):
            try:
                account.require_turn(now)
            except EAGAIN as refused:
                return count if refused.retry_after_ms else -1
            account.spend()
        raise AssertionError("no limit")

    assert spend(0.0) == BURST
    assert spend(0.25) == RATE / 4
    assert spend(1000.0) == BURST


def test_a_quota_names_what_is_used_and_the_limit() -> None:
    account = Account(0.0)
    account.unacked, account.subscriptions = UNACKED - 5, SUBSCRIPTIONS
    account.require_unacked(5)
    with pytest.raises(EAGAIN) as bytes_refused:
        account.require_unacked(6)
    with pytest.raises(EDQUOT) as refused:
        account.require_subscription()
    assert (bytes_refused.value.detail["used"], bytes_refused.value.detail["limit"]) == (UNACKED - 5, UNACKED)
    assert (refused.value.detail["used"], refused.value.detail["limit"]) == (SUBSCRIPTIONS, SUBSCRIPTIONS)


def test_who_has_nothing_to_remember_is_forgotten() -> None:
    accounts = Accounts()
    accounts.of("keeps", 0.0).unacked = 1
    for number in range(10_000):
        accounts.of(f"a{number}", float(number)).spend()
    assert len(accounts._of) < 3000  # pyright: ignore[reportPrivateUsage]
    assert accounts.of("keeps", 10_000.0).unacked == 1


def test_a_drain_rate_says_how_long() -> None:
    drain = Drain(0.0)
    assert drain.wait_ms(1, 0.0) == 10
    assert drain.wait_ms(1, 2.0) == 2000
    for number in range(3000):
        drain.took(1, 2.0 + number / 100)
    now = 32.0
    assert 9 <= drain.wait_ms(1, now) <= 12
    assert 900 <= drain.wait_ms(100, now) <= 1200
    assert drain.wait_ms(1, now + 3600) == 60_000
