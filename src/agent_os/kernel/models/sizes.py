"""How large programs of a type turn out, learned from those that have finished.

A program is a goal with its whole subtree; its type is the manifest's name with its major version. What it still needs
is thought to be as many calls as others of its type went on to make, each as large as the one that waits and a little
larger every time, because a conversation grows. One that has made more calls than any before is thought to make one
more, but only until it has made twice as many: what never ends must not come first for being nearly finished.

In: calls as they are sent and answered, the end of programs. Out: tokens that a program probably still needs, and how
long a reply of its type may get. Kept over restarts as a plain mapping (`packed`, `unpacked`); what running programs
have made so far is not, and a program that goes on after a restart only seems younger than it is.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from msgspec import Struct, field

FEWEST_OUTPUTS = 20
_GROWTH_WEIGHT = 0.05
_OUTPUT = 256  # tokens of a reply, before one is known
_KEPT_PROGRAMS = 200
_KEPT_OUTPUTS = 500
_MOST_TYPES = 1_000  # names come from manifests, and there may be any number of them


class _Recent(Struct):
    """The latest values, also in order."""

    most: int
    came: deque[int] = field(default_factory=deque[int])
    ordered: list[int] = field(default_factory=list[int])
    total: int = 0
    tails: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # see `above`

    def add(self, value: int) -> None:
        self.came.append(value)
        insort(self.ordered, value)
        self.total += value
        if len(self.came) > self.most:
            oldest = self.came.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]
            self.total -= oldest
        self.tails = []

    def above(self, least: int) -> tuple[int, int, int]:
        """Of the values above that: how many, their sum, the sum of their squares."""
        if not self.tails:
            sums = accumulate(reversed(self.ordered))
            squares = accumulate(value * value for value in reversed(self.ordered))
            self.tails = [*zip(sums, squares, strict=True)][::-1]
        first = bisect_right(self.ordered, least)
        return (len(self.ordered) - first, *self.tails[first]) if first < len(self.ordered) else (0, 0, 0)

    def __len__(self) -> int:
        return len(self.came)

    @property
    def mean(self) -> float:
        return self.total / len(self.came)

    def quantile(self, part: float) -> int:
        return self.ordered[min(len(self.ordered) - 1, int(part * len(self.ordered)))]


class _Type(Struct):
    calls: _Recent = field(default_factory=lambda: _Recent(_KEPT_PROGRAMS))  # of a whole program
    outputs: _Recent = field(default_factory=lambda: _Recent(_KEPT_OUTPUTS))
    growth: float = 0.0  # tokens that a prompt is longer than the one before
    most_made: int = 1  # calls, by a program that goes on

    def grew(self, tokens: int) -> None:
        self.growth += _GROWTH_WEIGHT * (tokens - self.growth)

    def to_come(self, made: int, prompt: int) -> float:
        """Tokens of what follows `made` calls, the next of which has that prompt."""
        output = self.outputs.mean if self.outputs.came else _OUTPUT
        count, sum_, squares = self.calls.above(made)
        if count:
            left = sum_ / count - made
            left_squared = (squares - 2 * made * sum_) / count + made * made
        else:
            longest = self.calls.ordered[-1] if self.calls.came else 0
            # Beyond all that is known, and while none has finished: the one that made most is half done, the others
            # will make as many. So the most advanced comes first, and they end one by one, not all at the end.
            left = 1 if made < 2 * longest else max(1, 2 * self.most_made - made)
            left_squared = left * left
        return left * (prompt + output) + max(0.0, self.growth) * (left_squared - left) / 2


class _Run(Struct):
    """A program that goes on."""

    type: str
    calls: int = 0
    prompt: int = 0  # of its latest call


_UNKNOWN = _Type()


class Sizes:
    def __init__(self) -> None:
        self._types: dict[str, _Type] = {}
        self._runs: dict[str, _Run] = {}

    def sent(self, program: str, type: str, prompt: int) -> None:
        known = self._of(type)
        run = self._runs.setdefault(program, _Run(type))
        if run.calls:
            known.grew(prompt - run.prompt)
        run.calls += 1
        run.prompt = prompt
        known.most_made = max(known.most_made, run.calls)

    def taken_back(self, program: str) -> None:
        """A call that was sent was refused."""
        run = self._runs.get(program)
        if run is not None:
            run.calls -= 1

    def replied(self, type: str, output: int) -> None:
        """A whole answer had that many tokens."""
        self._of(type).outputs.add(output)

    def finished(self, program: str, type: str, *, whole: bool = True) -> None:
        """The program is over. One that was killed is not `whole`, and its size says nothing of its type."""
        run = self._runs.pop(program, None)
        if run is None:
            return
        known = self._of(type)
        if whole and run.calls > 0:
            known.calls.add(run.calls)
        if run.calls >= known.most_made:
            known.most_made = max((one.calls for one in self._runs.values() if one.type == type), default=1)

    def calls(self, type: str) -> float | None:
        """That a program of the type makes, as a mean; None while none has finished."""
        known = self._types.get(type)
        return known.calls.mean if known and known.calls.came else None

    def remaining(self, program: str, type: str, prompt: int) -> float:
        """Of a program whose next call has that prompt."""
        run = self._runs.get(program)
        return self._types.get(type, _UNKNOWN).to_come(run.calls if run else 0, prompt)

    def longest_output(self, type: str, most: int) -> int:
        """Of a reply: exceeded by one in a hundred. Of few samples the largest is not yet that, so more is added."""
        known = self._types.get(type)
        count = len(known.outputs) if known else 0
        if known is None or count < FEWEST_OUTPUTS:
            return most
        return min(most, int(known.outputs.quantile(0.99) * (1 + FEWEST_OUTPUTS / count)))

    def likely_output(self, type: str, most: int) -> int:
        known = self._types.get(type)
        return min(most, int(known.outputs.mean)) if known and len(known.outputs) else min(most, _OUTPUT)

    def _of(self, type: str) -> _Type:
        known = self._types.pop(type, None) or _Type()
        self._types[type] = known  # the latest used last
        if len(self._types) > _MOST_TYPES:
            del self._types[next(iter(self._types))]
        return known

    def packed(self) -> dict[str, Any]:
        return {
            name: {"calls": list(one.calls.came), "outputs": list(one.outputs.came), "growth": one.growth}
            for name, one in self._types.items()
        }

    @classmethod
    def unpacked(cls, kept: Mapping[str, Any]) -> "Sizes":
        sizes = cls()
        for name, one in kept.items():
            known = sizes._of(name)
            known.growth = float(one["growth"])
            for count in one["calls"]:
                known.calls.add(int(count))
            for output in one["outputs"]:
                known.outputs.add(int(output))
        return sizes
