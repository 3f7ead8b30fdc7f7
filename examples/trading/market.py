"""A simulated market: an agent that others ask. Its prices come from a seed, so a day is the same day again.

`{"do": "quote"}` looks and changes nothing. `{"do": "order", "id": …, "side": …, "size": …}` books once for one id,
however often it is sent: whoever crashed in the middle of an order sends it again and gets the first answer.
"""

import hashlib
from typing import Any

from agent_os import Context, agent

SEED, CASH = 7, 100_000_00  # cents
SPREAD = 5


def price(tick: int, seed: int = SEED) -> int:
    """In cents. A walk whose every step is known from the seed."""
    steps = (hashlib.sha256(f"{seed}:{n}".encode()).digest()[0] for n in range(tick))
    return 10_000 + sum(step % 41 - 20 for step in steps)


class Book:
    """Everything that was ordered, by id."""

    def __init__(self, loss_limit: int) -> None:
        self.loss_limit = loss_limit
        self.cash, self.held, self.tick = CASH, 0, 0
        self.orders: dict[str, dict[str, Any]] = {}

    def quote(self) -> dict[str, int]:
        now = price(self.tick)
        return {"tick": self.tick, "bid": now - SPREAD, "ask": now + SPREAD, "held": self.held, "worth": self.worth()}

    def worth(self) -> int:
        return self.cash + self.held * price(self.tick)

    def order(self, id: str, side: str, size: int) -> dict[str, Any]:
        if id in self.orders:
            return {**self.orders[id], "again": True}
        if side not in ("buy", "sell") or size <= 0:
            raise ValueError(f"no order: {side} {size}")
        if CASH - self.worth() >= self.loss_limit:
            raise ValueError(f"the loss limit of {self.loss_limit / 100:.2f} is reached: no more orders")
        now = price(self.tick)
        each, signed = (now + SPREAD, size) if side == "buy" else (now - SPREAD, -size)
        if self.held + signed < 0 or self.cash - signed * each < 0:
            raise ValueError(f"cannot {side} {size}: {self.held} are held, and {self.cash / 100:.2f} in cash")
        self.held += signed
        self.cash -= signed * each
        self.tick += 1
        self.orders[id] = {"id": id, "side": side, "size": size, "price": each, "again": False}
        return self.orders[id]


@agent
async def market(ctx: Context, loss_limit: int = 50_000) -> None:
    """Answers until it is stopped. What it knows is its record: after a crash it is run again on it."""
    book = Book(loss_limit)

    async def answer(message: Any) -> Any:
        asked = dict(message.payload)
        what = asked.pop("do", "")
        if what == "tick":
            book.tick += int(asked["n"])
            return book.quote()
        return book.quote() if what == "quote" else book.order(**asked)

    await ctx.serve(answer)
