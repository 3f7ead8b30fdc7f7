"""What a key allows of a model: buckets that refill, and how what the provider says of them corrects what we counted.

In: reservations when calls leave, `limit`, `remaining` and `reset` from a reply's head, usage at the end; always with
the moment. Out: whether a call fits now, and when it will. A reservation is the most that a call is thought to take, so
that what the provider counts is never more than what we did. No clock of its own, no call of its own.

A sample says what was left when the provider began to answer. Every call that left before the sampled one is in it, in
whatever way the provider counts; a call that left later may be or not, and is subtracted. From then on a call that is
in a sample is the provider's to count, and its end corrects nothing here.

Samples may be wrong: a proxy that makes them up, a clock that is an hour off. A limit smaller than a call that was just
taken is none, and no learned limit holds an idle key for more than a minute: then one call is sent to hear the truth.
"""

import math
from typing import Literal

from msgspec import Struct, field

from agent_os.drivers.models import Bucket as Kind
from agent_os.drivers.models import LimitSample

Source = Literal["configured", "learned", "default"]
KINDS: tuple[Kind, ...] = ("requests", "tokens", "input_tokens", "output_tokens")

LARGEST = 1e15  # a provider that says more says nothing
DOUBT_SECS = 60.0  # after which a learned limit is tried
WINDOW_SECS = 60.0  # over which providers state their limits, unless they say when one is whole again
_LEARN_SECS = 1.0  # between two samples that a rate is learned from
_FULL = 0.98  # of the capacity: a bucket that overflows shows no rate


class Hold(Struct):
    """A call that left, and what it was thought to take."""

    seq: int
    prompt: int
    output: int
    likely: int  # output, as a mean: a rate is learned from it

    def of(self, kind: Kind) -> int:
        return _amount(kind, self.prompt, self.output)

    def likely_of(self, kind: Kind) -> int:
        return _amount(kind, self.prompt, self.likely)


class Bucket(Struct):
    capacity: float
    rate: float  # per second
    level: float
    at: float  # when it had that level
    source: Source = "configured"
    newest: int = -1  # the latest dispatch that a sample has told of
    heard: float = -math.inf  # when
    told_rate: bool = False  # the rate is the operator's, or was computed from `reset`
    drawn: float = 0.0  # all that has probably been taken, to learn the rate from
    anchor: tuple[float, float, float] | None = None  # moment, remaining, drawn: of an earlier sample

    def refill(self, now: float) -> float:
        if now > self.at:
            self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
            self.at = now
        return self.level

    def full_in(self, need: float, now: float) -> float:
        """Seconds until it holds `need`."""
        missing = min(need, self.capacity) - self.refill(now)
        if missing <= 0:
            return 0.0
        return missing / self.rate if self.rate > 0 else math.inf

    def learn(self, remaining: float, now: float) -> None:
        """The rate, from two samples and what was taken between them. Others who use the key lower it, as they must."""
        if remaining >= _FULL * self.capacity:
            self.anchor = None
            return
        if self.anchor is None:
            self.anchor = (now, remaining, self.drawn)
            return
        then, had, drawn = self.anchor
        if now - then < _LEARN_SECS:
            return
        self.anchor = (now, remaining, self.drawn)
        seen = (remaining - had + self.drawn - drawn) / (now - then)
        if seen > 0:
            # A bucket that was full in between shows too little, nothing shows too much for long.
            weight = 0.5 if seen > self.rate else 0.1
            self.rate += weight * (seen - self.rate)


class Buckets(Struct):
    """All that one key has of one model."""

    by_kind: dict[Kind, Bucket] = field(default_factory=dict[Kind, Bucket])
    ignored: int = 0  # values that made no sense
    _open: dict[int, Hold] = field(default_factory=dict[int, Hold])  # in the order in which they left

    @classmethod
    def configured(cls, now: float, **limits: tuple[float, float]) -> "Buckets":
        """`tokens=(capacity, rate)` and so on; they start full."""
        found = cls()
        for kind in KINDS:
            if kind in limits:
                capacity, rate = limits[kind]
                found.by_kind[kind] = Bucket(capacity, rate, capacity, now, told_rate=True)
        return found

    def largest(self) -> float:
        """Tokens that one call can ever take."""
        tokens = [one.capacity for kind, one in self.by_kind.items() if kind in ("tokens", "input_tokens")]
        return min(tokens, default=math.inf)

    def output_room(self, prompt: int) -> float:
        """Output that may be reserved: a quarter of the capacity, for a guess must not block the key."""
        rooms = [one.capacity / 4 for kind, one in self.by_kind.items() if kind in ("tokens", "output_tokens")]
        if whole := self.by_kind.get("tokens"):
            rooms.append(max(0.0, whole.capacity - prompt))
        return min(rooms, default=math.inf)

    @property
    def sampled(self) -> bool:
        """The provider has told something."""
        return any(one.newest >= 0 for one in self.by_kind.values())

    def fits_in(self, prompt: int, output: int, now: float, *, idle: bool = False) -> float:
        """Seconds until a call of that size may leave; 0: now. `idle`: no call is in flight that could tell more."""
        longest = 0.0
        for kind, one in self.by_kind.items():
            wait = one.full_in(_amount(kind, prompt, output), now)
            if idle and wait > 0 and one.source != "configured":
                wait = min(wait, max(0.0, one.heard + DOUBT_SECS - now))
            longest = max(longest, wait)
        return longest

    def reserve(self, seq: int, prompt: int, output: int, now: float, likely: int | None = None) -> None:
        hold = self._open[seq] = Hold(seq, prompt, output, output if likely is None else min(likely, output))
        for kind, one in self.by_kind.items():
            one.refill(now)
            one.level -= hold.of(kind)
            one.drawn += hold.likely_of(kind)

    def settle(self, seq: int, prompt: int, output: int, now: float) -> None:
        """The call is over and took that much."""
        hold = self._open.pop(seq, None)
        if hold is None:
            return
        for kind, one in self.by_kind.items():
            actual = _amount(kind, prompt, output)
            one.drawn += actual - hold.likely_of(kind)
            if seq > one.newest:
                one.refill(now)
                one.level = min(one.capacity, one.level + hold.of(kind) - actual)

    def refused(self, seq: int, wait: float, now: float) -> None:
        """The provider did not take the call: nothing was drawn, and nothing more leaves for `wait` seconds."""
        hold = self._open.pop(seq, None)
        for kind, one in self.by_kind.items():
            one.refill(now)
            if hold is not None:
                one.drawn -= hold.likely_of(kind)
                if seq > one.newest:
                    one.level = min(one.capacity, one.level + hold.of(kind))
            if kind != "requests" and hold is not None and wait > 0:
                # It will fit after `wait`, and no sooner: the level that says the same.
                one.level = min(one.level, hold.of(kind) - wait * one.rate)

    def sample(self, seq: int, sample: LimitSample, now: float) -> None:
        """What the reply to call `seq` said."""
        kind = sample.bucket
        limit, remaining = self._sound(sample.limit, least=1), self._sound(sample.remaining, least=0)
        reset_secs = self._sound(sample.reset_s, least=0)
        limit = self._plausible(limit, kind, seq)
        one = self.by_kind.get(kind)
        if one is None:
            if limit is None:
                return
            one = self.by_kind[kind] = Bucket(limit, limit / WINDOW_SECS, limit, now, "learned")
            for hold in self._open.values():
                one.level -= hold.of(kind)
        if seq < one.newest:
            return
        one.newest, one.heard = seq, now
        if limit is not None and one.source != "configured":
            one.capacity, one.source = limit, "learned"
        if remaining is None:
            return
        one.refill(now)
        later = sum(hold.of(kind) for hold in self._open.values() if hold.seq > seq)
        one.level = min(one.capacity, remaining) - later
        if one.source == "configured":
            return
        if reset_secs and one.capacity > remaining:
            one.rate, one.told_rate = (one.capacity - remaining) / reset_secs, True
        elif not one.told_rate:
            one.learn(remaining, now)

    def _plausible(self, limit: float | None, kind: Kind, seq: int) -> float | None:
        hold = self._open.get(seq)
        # Half, because our count of its prompt is an estimate.
        if (
            limit is not None
            and hold is not None
            and kind != "output_tokens"
            and limit < _amount(kind, hold.prompt, 0) / 2
        ):
            self.ignored += 1
            return None
        return limit

    def _sound(self, value: float | None, least: float) -> float | None:
        if value is None:
            return None
        if not least <= value <= LARGEST:  # false for NaN too
            self.ignored += 1
            return None
        return value


def _amount(kind: Kind, prompt: int, output: int) -> int:
    match kind:
        case "requests":
            return 1
        case "tokens":
            return prompt + output
        case "input_tokens":
            return prompt
        case "output_tokens":
            return output
