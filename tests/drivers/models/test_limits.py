"""Rate-limit headers in all their forms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.drivers.models import LimitSample
from agent_os.drivers.models.limits import Limits, retry_after_ms

NOW = 1_770_000_000.0  # 2026-02-02T02:40:00Z


def samples(headers: dict[str, str]) -> list[LimitSample]:
    return Limits(headers, NOW).samples


def test_anthropic_tells_four_buckets_with_moments() -> None:
    headers = {
        f"anthropic-ratelimit-{bucket}-{part}": value
        for bucket in ("requests", "tokens", "input-tokens", "output-tokens")
        for part, value in (("limit", "1000"), ("remaining", "400"), ("reset", "2026-02-02T02:40:30Z"))
    }
    read = samples(headers)
    assert [sample.bucket for sample in read] == ["requests", "tokens", "input_tokens", "output_tokens"]
    assert all(sample[1:] == (1000, 400, 30.0) for sample in read)


def test_openai_tells_two_with_durations() -> None:
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-limit-tokens": "150,000",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert samples(headers) == [LimitSample("requests", 60, 59, 1.0), LimitSample("tokens", 150_000, 149_984, 360.0)]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("6m0s", 360.0),
        ("12ms", 0.012),
        ("1h2m3.5s", 3723.5),
        ("1d", 86_400.0),
        ("20", 20.0),
        ("0.5", 0.5),
        ("1770000045", 45.0),
        ("1770000045000", 45.0),
        ("1769999000", 0.0),
        ("2026-02-02T02:41:00Z", 60.0),
        ("2026-02-02T03:41:00+01:00", 60.0),
        ("Mon, 02 Feb 2026 02:40:10 GMT", 10.0),
        ("2026-02-02T02:41:00", None),  # of no zone
        ("-1", None),
        ("soon", None),
        ("1s or so", None),
        ("9" * 40, None),
        ("99999999999d", None),
        ("", None),
    ],
)
def test_a_reset_is_read_in_every_form(value: str, seconds: float | None) -> None:
    headers = {"x-ratelimit-limit-tokens": "10", "x-ratelimit-reset-tokens": value}
    limits = Limits(headers, NOW)
    assert limits.samples == [LimitSample("tokens", 10, None, seconds if seconds is None else pytest.approx(seconds))]
    assert limits.ignored == (seconds is None)


def test_a_clock_that_is_an_hour_wrong_does_no_harm() -> None:
    headers = {
        "date": "Mon, 02 Feb 2026 02:40:00 GMT",
        "anthropic-ratelimit-tokens-limit": "10",
        "anthropic-ratelimit-tokens-reset": "2026-02-02T02:40:30Z",
        "retry-after": "Mon, 02 Feb 2026 02:40:05 GMT",
    }
    assert Limits(headers, NOW + 3600).samples == [LimitSample("tokens", 10, None, 30.0)]
    assert retry_after_ms(headers, NOW - 3600) == 5000


@pytest.mark.parametrize("value", ["0", "-1", "many", "", "1e9", "NaN", "9" * 30])
def test_a_limit_that_is_none_is_ignored_and_counted(value: str) -> None:
    limits = Limits({"x-ratelimit-limit-tokens": value, "x-ratelimit-remaining-tokens": "0"}, NOW)
    assert limits.samples == [LimitSample("tokens", None, 0, None)]  # remaining 0 is an answer
    assert limits.ignored == 1


def test_more_remaining_than_the_limit_is_a_lie() -> None:
    limits = Limits({"x-ratelimit-limit-tokens": "10", "x-ratelimit-remaining-tokens": "11"}, NOW)
    assert (limits.samples, limits.ignored) == ([LimitSample("tokens", 10, None, None)], 1)


def test_other_servers_forms() -> None:
    headers = {
        "x-ratelimit-limit": "20",
        "x-ratelimit-remaining": "3",
        "x-ratelimit-limit-tokens-prompt": "5000",
        "x-ratelimit-limit-tokens-generated": "700",
        "x-ratelimit-limit-requests-day": "14400",
        "x-ratelimit-limit-tokens-minute": "60000",
        "x-ratelimit-limit-project-tokens": "1",
    }
    assert sorted(samples(headers)) == [
        LimitSample("input_tokens", 5000),
        LimitSample("output_tokens", 700),
        LimitSample("requests", 20, 3),
        LimitSample("tokens", 60_000),
    ]


@pytest.mark.parametrize(
    ("headers", "ms"),
    [
        ({"retry-after": "3"}, 3000),
        ({"retry-after": "0.25"}, 250),
        ({"retry-after-ms": "120", "retry-after": "3"}, 120),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "never"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_or_not_said(headers: dict[str, str], ms: int | None) -> None:
    assert retry_after_ms(headers, NOW) == ms


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["date", "retry-after", "x-ratelimit-limit", "x-ratelimit-reset-tokens"]), st.text()
    )
)
def test_no_header_does_harm(headers: dict[str, str]) -> None:
    Limits(headers, NOW)
    retry_after_ms(headers, NOW)
