"""Deadlines of many things, most of which never come: a wheel of slots.

Setting and dropping one costs the same however many there are, and what was dropped leaves nothing behind; a heap would
keep every acknowledged message until its time. In exchange a deadline is heard up to one `grain` late, never early.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Wheel(Generic[T]):
    def __init__(self, grain: float) -> None:
        self._grain = grain
        self._slots: dict[int, dict[T, None]] = {}
        self._order: list[int] = []  # a heap of the slots; one stays until its time even when it is empty

    def set(self, thing: T, at: float) -> None:
        number = int(at / self._grain)
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heapq.heappush(self._order, number)
        slot[thing] = None

    def drop(self, thing: T, at: float) -> None:
        """`at` is what it was set to."""
        if slot := self._slots.get(int(at / self._grain)):
            slot.pop(thing, None)

    def due(self, now: float) -> list[T]:
        """Whatever is over, taken out."""
        things: list[T] = []
        while self._order and (self._order[0] + 1) * self._grain <= now:
            things += self._slots.pop(heapq.heappop(self._order))
        return things

    @property
    def next(self) -> float | None:
        while self._order and not self._slots[self._order[0]]:
            del self._slots[heapq.heappop(self._order)]
        return (self._order[0] + 1) * self._grain if self._order else None
