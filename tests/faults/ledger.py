"""The outside world: a file that counts what was done to it, and tools of each class that do something to it.

A line is `NAME KEY`. Whoever is killed between two instructions has written a line or has not; nothing is buffered.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agent_os.abi.syscalls import Effect
from agent_os.kernel.tooling import Tool, Verified

CLASSES = {
    "pure": Effect.PURE,
    "idempotent": Effect.IDEMPOTENT,
    "verifiable": Effect.VERIFIABLE,
    "opaque": Effect.OPAQUE,
}
ONCE = ("verifiable", "opaque")  # what must never happen twice


class Ledger:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def add(self, name: str, key: str) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, f"{name} {key}\n".encode())
        finally:
            os.close(fd)

    def lines(self) -> list[tuple[str, str]]:
        return [(words[0], words[1]) for line in self._path.read_text().splitlines() if (words := line.split())]

    def counts(self) -> Counter[str]:
        return Counter(name for name, _ in self.lines())

    def has(self, key: str) -> bool:
        return any(known == key for _, known in self.lines())

    def tools(self, lasts: float = 0.001, met: Callable[[str], None] = lambda name: None) -> list[Tool]:
        """`lasts`: how long a tool takes after its effect, unless the call says so; `met`: hears of the effect."""
        return [self._tool(kind, effect, lasts, met) for kind, effect in CLASSES.items()]

    def _tool(self, kind: str, effect: Effect, lasts: float, met: Callable[[str], None]) -> Tool:
        async def run(key: str, params: Mapping[str, Any]) -> Any:
            await asyncio.sleep(0.001)
            self.add(f"{kind}:{params['n']}", key)
            met("after_act")
            await asyncio.sleep(params.get("lasts", lasts))
            return answer(kind, key)

        async def verify(key: str, params: Mapping[str, Any]) -> Verified:
            return Verified("done", answer(kind, key)) if self.has(key) else Verified("not_done")

        return Tool(kind, run, effect, verify if effect is Effect.VERIFIABLE else None)


def answer(kind: str, key: str) -> dict[str, str]:
    """What a tool gives: for a pure one something new each time, so that a repetition shows."""
    return {"token": os.urandom(8).hex() if kind == "pure" else key}
