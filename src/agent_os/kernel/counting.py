"""What parts of the kernel count with: a histogram of moments, and counters by words that somebody else chose.

Both cost a fraction of a microsecond and never grow without bound. Each part keeps its own; `metrics.py` reads them.
"""

from collections.abc import Iterator

MOST_WORDS = 200  # of one label; whatever comes then is `other`
OTHER = "other"
_LOWEST, _HIGHEST = 10, 36  # 2**10 ns is a microsecond, 2**36 ns 69 seconds
_KINDS = _HIGHEST + 2


class Moments:
    """How long something took, by powers of two: the length of a number of nanoseconds is its bucket."""

    __slots__ = ("_counts", "total_ns")

    def __init__(self) -> None:
        self._counts = [0] * _KINDS
        self.total_ns = 0

    def add(self, ns: int) -> None:
        bits = ns.bit_length()
        self._counts[bits if bits < _KINDS else _KINDS - 1] += 1
        self.total_ns += ns

    def told(self) -> dict[str, object]:
        """Buckets with all that is at most as long, each in seconds; the last counts everything."""
        counts = list(self._counts)  # of one moment, whoever goes on counting
        buckets: list[list[float | int]] = []
        below = sum(counts[:_LOWEST])
        for bits in range(_LOWEST, _HIGHEST + 1):
            below += counts[bits]
            buckets.append([2**bits / 1e9, below])
        return {"buckets": buckets, "sum": self.total_ns / 1e9, "count": sum(counts)}


class Hour:
    """How often in the last hour, by minutes: what is older than that is forgotten a minute at a time."""

    __slots__ = ("_counts", "_minute")

    def __init__(self) -> None:
        self._counts = [0] * 60
        self._minute = 0

    def add(self, seconds: float) -> None:
        self._counts[self._at(seconds) % 60] += 1

    def count(self, seconds: float) -> int:
        self._at(seconds)
        return sum(self._counts)

    def _at(self, seconds: float) -> int:
        minute = int(seconds // 60)
        for passed in range(max(self._minute + 1, minute - 59), minute + 1):
            self._counts[passed % 60] = 0
        self._minute = max(self._minute, minute)
        return self._minute


class Words:
    """Counts by label."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, float] = {}

    def add(self, word: str, amount: float = 1) -> None:
        counts = self._counts
        if word not in counts and len(counts) >= MOST_WORDS:
            word = OTHER
        counts[word] = counts.get(word, 0) + amount

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return iter(sorted(self._counts.items()))
