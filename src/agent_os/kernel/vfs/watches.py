"""What an agent wants to hear about, and what it has not heard yet.

Changes of one path merge until they are taken; beyond 1,024 waiting notices the rest becomes one `gap` with a count.
The connection takes them when it can: `notify` answers False for "not now", and the kernel calls `flush` later. With
each notice goes the label of all who made what it tells of.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from agent_os.kernel.authority.labels import CLEAN, Label
from agent_os.kernel.vfs import paths

MAX_WAITING = 1024
MAX_WATCHES = 256

Notice = dict[str, Any]
Notify = Callable[[Notice, Label], bool | None]


class Watches:
    def __init__(self) -> None:
        self.notify: Notify | None = None
        self._recursive: dict[str, bool] = {}
        self._waiting: dict[tuple[str, str], tuple[Notice, Label]] = {}
        self._missed: dict[str, tuple[int, Label]] = {}  # by watch
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

    def changed(self, path: str, kind: str, version: int, label: Label) -> None:
        for watch, recursive in self._recursive.items():
            inside = paths.below(watch, path)
            if inside is not None and (recursive or "/" not in inside):
                self._queue(watch, {"watch": watch, "path": path, "kind": kind, "version": version}, label)
        self._schedule()

    def missed(self, watch: str, count: int, label: Label) -> None:
        """Something happened and nobody can say what any more."""
        self._miss(watch, count, label)
        self._schedule()

    def _miss(self, watch: str, count: int, label: Label) -> None:
        before, known = self._missed.get(watch, (0, CLEAN))
        self._missed[watch] = before + count, known.join(label)

    def _queue(self, watch: str, notice: Notice, label: Label) -> None:
        key = watch, notice["path"]
        if key not in self._waiting and len(self._waiting) >= MAX_WAITING:
            self._miss(watch, 1, label)
            return
        _, known = self._waiting.pop(key, (None, CLEAN))  # the newest news of a path stands where it happened
        self._waiting[key] = notice, known.join(label)

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
                if self.notify(*self._waiting[key]) is False:
                    return
                self._waiting.pop(key, None)
            else:
                watch, (count, label) = next(iter(self._missed.items()))
                if self.notify({"watch": watch, "kind": "gap", "count": count}, label) is False:
                    return
                self._missed.pop(watch, None)
