"""Charges: what a use of handles costs, taken from every ancestor at once or not at all.

In: the handles that a call rests on and the upper bound of what it will use. Out: a `Charge` that is settled to what
was really used, or EBUDGET naming the handle and the row that are exhausted, EAGAIN where only the rate is. The whole
chain is looked at first and then charged, with nothing awaited between, so ten children together cannot spend more
than their parent has. Amounts are whole numbers; `cost` is given in the currency and kept in millionths, rounded up.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal

from msgspec import Struct

from agent_os.abi.errors import EAGAIN, EBUDGET, EINVAL
from agent_os.kernel.authority.handles import COUNTED, Clock, Handle

NEARLY = 0.8  # of a limit: worth an event
_STEADY = Clock()
_NOTHING: Mapping[str, float] = {}


class Crossing(Struct, frozen=True):
    """A limit of which four fifths are used, since this charge."""

    handle: Handle
    row: str
    used: int
    limit: int


class Charge:
    """Reserved at every handle of `chain`. `settle` says what it really was, `ended` that what it started is no longer
    alive, `release` that nothing came of it. Each counts once. What was refused after all still counts for a rate."""

    __slots__ = ("_alive", "_amounts", "chain", "crossings")

    def __init__(self, chain: Sequence[Handle], amounts: Mapping[str, int], alive: bool) -> None:
        self.chain, self._alive = chain, alive
        self._amounts: Mapping[str, int] | None = amounts
        self.crossings: list[Crossing] = []

    def settle(self, actual: Mapping[str, float] = _NOTHING) -> None:
        """What is not named was used as reserved. More than was reserved is charged too: it is spent."""
        if self._amounts is not None:
            self._change({name: _whole(name, amount) - self._amounts.get(name, 0) for name, amount in actual.items()})
            self._amounts = None

    def grow(self, more: Mapping[str, int]) -> None:
        """It needs more than was thought: at every handle, or EBUDGET and at none."""
        if self._amounts is None:
            return
        for handle in self.chain:
            if handle.limits:
                _require_room(handle, more, False, self.crossings)
        self._change(more)
        self._amounts = {name: self._amounts.get(name, 0) + more.get(name, 0) for name in {**self._amounts, **more}}

    def ended(self) -> None:
        if self._alive:
            self._alive = False
            self._change({"live": -1})

    def release(self, *, parks: bool = False) -> None:
        """`parks`: it comes again, and takes its place in the rate then."""
        if self._amounts is not None:
            self._change({name: -amount for name, amount in self._amounts.items()})
            self._amounts = None
            for handle in self.chain if parks else ():
                if handle.bucket:
                    handle.bucket.give_back()
        self.ended()

    def _change(self, by: Mapping[str, int]) -> None:
        for handle in self.chain:
            for name, amount in by.items():
                handle.used[name] = handle.used.get(name, 0) + amount


def reserve(
    handles: Iterable[Handle], amounts: Mapping[str, float] = _NOTHING, *, alive: bool = False, clock: Clock = _STEADY
) -> Charge:
    """One use of these handles, and `amounts` of bytes, tokens, cost. `alive`: it starts something that lives on."""
    wanted = {"count": 1} | {name: _whole(name, amount) for name, amount in amounts.items()}
    chain = list({one: None for handle in handles for one in handle.chain()})
    charge = Charge(chain, wanted, alive)
    buckets = [(one, one.bucket) for one in chain if one.bucket]
    for handle in chain:
        if handle.limits:
            _require_room(handle, wanted, alive, charge.crossings)
    now = clock.steady() if buckets else 0.0
    for handle, bucket in buckets:
        if wait := bucket.wait_ms(now):
            rate = f"{bucket.rate.most} in {bucket.rate.per_ms} ms"
            raise EAGAIN("cap.rate", f"{_whose(handle)} allows {rate}", retry_after_ms=wait, handle=handle.id)
    for handle in chain:  # from here on nothing can fail
        used = handle.used
        for name, amount in wanted.items():
            used[name] = used.get(name, 0) + amount
        if alive:
            used["live"] = used.get("live", 0) + 1
        if handle.bucket:
            handle.bucket.take()
    return charge


def live(handle: Handle) -> Charge:
    """Something lives on under a handle, until the charge is `ended`. EBUDGET: as many do as may."""
    require_life(handle)
    charge = Charge(list(handle.chain()), {}, True)
    for one in charge.chain:
        one.used["live"] = one.used.get("live", 0) + 1
    return charge


def require_life(handle: Handle) -> None:
    """One more may live under it."""
    for one in handle.chain():
        _require_room(one, {}, True, [])


def room(handles: Iterable[Handle], row: str) -> int | None:
    """What is left of bytes, tokens or cost at the tightest ancestor; None: there is no limit."""
    left = [
        max(0, one.limits[row] - one.used.get(row, 0))
        for handle in handles
        for one in handle.chain()
        if row in one.limits
    ]
    return min(left) if left else None


def _require_room(handle: Handle, wanted: Mapping[str, int], alive: bool, crossings: list[Crossing]) -> None:
    for row, limit in handle.limits.items():
        before = handle.used.get("live" if row == "max" else row, 0)
        after = before + (int(alive) if row == "max" else wanted.get(row, 0))
        if after > limit and after > before:
            raise EBUDGET(
                f"budget.{row}",
                f"{_whose(handle)} is exhausted: {row} {before} of {limit} used, {after - before} asked for",
                handle=handle.id,
                holder=handle.holder,
                row=row,
                used=before,
                limit=limit,
            )
        if before < limit * NEARLY <= after:
            crossings.append(Crossing(handle, row, after, limit))


def _whose(handle: Handle) -> str:
    return f"the capability {handle.capability} of {handle.holder}"


def _whole(name: str, amount: float) -> int:
    if name not in COUNTED or not 0 <= amount <= 10**15:
        raise EINVAL("budget.amount", f"{amount!r} of {name} is not an amount that can be charged")
    if name == "cost":
        return int((Decimal(str(amount)) * 1_000_000).to_integral_value(ROUND_CEILING))
    return int(Decimal(str(amount)).to_integral_value(ROUND_CEILING))
