"""What an agent wants to hear about, and what it has not heard yet.

Changes of one path merge until they are taken; beyond 1,024 waiting notices the rest becomes one `gap` with a count.
The connection takes them when it can: `notify` answers False for "not now", and the kernel calls `flush` later.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from agent_os.kernel.vfs import paths

MAX_WAITING = 1024
MAX_WATCHES = 256

Notice = dict[str, Any]


class Watches:
    def __init__(self) -> None:
        self.notify: Callable[[Notice], bool | None] | None = None
        self._recursive: dict[str, bool] = {}
        self._waiting: dict[tuple[str, str], Notice] = {}
        self._missed: dict[str, int] = {}  # by watch
        self._scheduled = False

    def add(self, path: str, recursive: bool) -> None:
        self._recursive[path] = recursive

    def end(self, path: str) -> bool:
        self._missed.pop(path, None)
        for key in [key for key in self._waiting if key[0] == path]:
            del self._waiting[key]
        return self._recursive.pop(path, None) is not None

    @property
    def any(self) -> bool:
        return bool(self._recursive)

    def all(self) -> dict[str, bool]:
        return dict(self._recursive)

    def changed(self, path: str, kind: str, version: int) -> None:
        for watch, recursive in self._recursive.items():
            inside = paths.below(watch, path)
            if inside is not None and (recursive or "/" not in inside):
                self._queue(watch, {"watch": watch, "path": path, "kind": kind, "version": version})
        self._schedule()

    def missed(self, watch: str, count: int) -> None:
        """Something happened and nobody can say what any more."""
        self._missed[watch] = self._missed.get(watch, 0) + count
        self._schedule()

    def _queue(self, watch: str, notice: Notice) -> None:
        key = watch, notice["path"]
        if key not in self._waiting and len(self._waiting) >= MAX_WAITING:
            self._missed[watch] = self._missed.get(watch, 0) + 1
            return
        self._waiting.pop(key, None)  # the newest news of a path stands where it happened
        self._waiting[key] = notice

    def _schedule(self) -> None:
        """At the end of this turn of the loop, so that a burst is one notice; without a loop, now."""
        if self._scheduled or not (self._waiting or self._missed):
            return
        try:
            asyncio.get_running_loop().call_soon(self.flush)
            self._scheduled = True
        except RuntimeError:
            self.flush()

    def flush(self) -> None:
        self._scheduled = False
        while self.notify and (self._waiting or self._missed):
            if self._waiting:
                key = next(iter(self._waiting))
                if self.notify(self._waiting[key]) is False:
                    return
                self._waiting.pop(key, None)
            else:
                watch, count = next(iter(self._missed.items()))
                if self.notify({"watch": watch, "kind": "gap", "count": count}) is False:
                    return
                self._missed.pop(watch, None)
