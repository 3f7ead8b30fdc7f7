"""What the headers of an answer say of a provider's rate limits, in all the forms that are in use.

In: headers with lower-case names, and the moment. Out: samples, the time to wait, and how many values were no use: a
limit of 0 or less, a negative or garbled number. Some servers send -1 for "no limit".

Times that are given as a moment are compared with the answer's own `date`, so that a clock that is wrong here or there
does no harm.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from agent_os.drivers.models import Bucket, LimitSample

_LARGEST = 10**15
_LONGEST_S = 366 * 86_400.0
_EPOCH_S = 1e9  # a plain number above is a moment, in seconds or, above the next, in milliseconds
_EPOCH_MS = 1e12

_ANTHROPIC = re.compile(r"anthropic-ratelimit-(requests|tokens|input-tokens|output-tokens)-(limit|remaining|reset)")
# x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens-prompt, x-ratelimit-limit-requests-minute, x-ratelimit-limit.
# What is counted per day or hour is no bucket of a queue that thinks in minutes.
_OTHERS = re.compile(
    r"x-ratelimit-(limit|remaining|reset)(?:-(requests|(?:input-|output-)?tokens)(-prompt|-generated)?)?(?:-minute)?"
)
_BUCKETS: Mapping[str, Bucket] = {
    "": "requests",
    "requests": "requests",
    "tokens": "tokens",
    "input-tokens": "input_tokens",
    "output-tokens": "output_tokens",
    "tokens-prompt": "input_tokens",
    "tokens-generated": "output_tokens",
}
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,9})?")
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|us|µs|ns|s|m|h|d)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Limits:
    """The samples of one answer, and what in it could not be used."""

    def __init__(self, headers: Mapping[str, str], now: float) -> None:
        self.samples: list[LimitSample] = []
        self.ignored = 0
        self._now = _moment(headers.get("date", "")) or now
        self._read(headers)

    def _read(self, headers: Mapping[str, str]) -> None:
        said: dict[Bucket, dict[str, float]] = {}
        for name, value in headers.items():
            if (place := _place(name)) is None:
                continue
            bucket, part = place
            number = self._seconds(value) if part == "reset" else _count(value, least=1 if part == "limit" else 0)
            if number is None:
                self.ignored += 1
            else:
                said.setdefault(bucket, {})[part] = number
        for bucket, parts in said.items():
            limit, remaining = parts.get("limit"), parts.get("remaining")
            if limit is not None and remaining is not None and remaining > limit:
                self.ignored += 1
                remaining = None
            if limit is None and remaining is None:
                continue
            self.samples.append(
                LimitSample(
                    bucket,
                    None if limit is None else int(limit),
                    None if remaining is None else int(remaining),
                    parts.get("reset"),
                )
            )

    def _seconds(self, value: str) -> float | None:
        return _wait(value, self._now)


def retry_after_ms(headers: Mapping[str, str], now: float) -> int | None:
    """How long the provider asks to wait. None: it does not say, or says nonsense."""
    exact = headers.get("retry-after-ms", "").strip()
    if _NUMBER.fullmatch(exact) and 0 <= float(exact) <= _LONGEST_S * 1000:
        return int(float(exact))
    seconds = _wait(headers.get("retry-after", ""), _moment(headers.get("date", "")) or now)
    return None if seconds is None else int(seconds * 1000 + 0.5)


def _place(name: str) -> tuple[Bucket, str] | None:
    if (found := _ANTHROPIC.fullmatch(name)) is not None:
        return _BUCKETS[found[1]], found[2]
    if (found := _OTHERS.fullmatch(name)) is not None:
        bucket = _BUCKETS.get((found[2] or "") + (found[3] or ""))
        return None if bucket is None else (bucket, found[1])
    return None


def _count(value: str, least: int) -> float | None:
    value = value.strip().replace(",", "") if value.count(",") < 5 else value
    if not _NUMBER.fullmatch(value):
        return None
    number = float(value)
    return number if least <= number <= _LARGEST else None


def _wait(value: str, now: float) -> float | None:
    """Seconds from `now`: a duration, a number of seconds, or a moment in one of three forms."""
    value = value.strip()
    if _NUMBER.fullmatch(value):
        number = float(value)
        if number >= _EPOCH_S:
            number = (number / 1000 if number >= _EPOCH_MS else number) - now
            return _bounded(max(0.0, number))
        return _bounded(number)
    if (duration := _duration(value)) is not None:
        return _bounded(duration)
    moment = _moment(value)
    return None if moment is None else _bounded(max(0.0, moment - now))


def _bounded(seconds: float) -> float | None:
    return seconds if 0 <= seconds <= _LONGEST_S else None


def _duration(value: str) -> float | None:
    if len(value) > 64 or not (parts := _PART.findall(value)) or "".join(n + u for n, u in parts) != value:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _moment(value: str) -> float | None:
    """RFC 3339, or the date form of HTTP."""
    if not value or len(value) > 64:
        return None
    try:
        if value[0].isdigit():
            parsed = datetime.fromisoformat(value)
            return None if parsed.tzinfo is None else parsed.timestamp()
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
