"""Where in the program a call is made: `pos`, the same again when the program is run again.

A task has a path (`0` is the main one, `0.2` the third task it created) and counts its calls: `0.2:17`. The path is
given when the task is created, not when it first runs, so it does not depend on which answer came first. After a
checkpoint with a state the count starts again under that checkpoint's name, because a run that resumes from it starts
at its beginning, too.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

MAIN, OUTSIDE, RUNTIME = "0", "x", "r"  # the program, tasks made by a bare callback, and what we ask for ourselves


class Place:
    """One task's path and counters. `handler`: it belongs to a signal handler, not to the program."""

    __slots__ = ("calls", "children", "handler", "path")

    def __init__(self, path: str, handler: bool = False) -> None:
        self.path, self.handler = path, handler
        self.calls = self.children = 0

    def child(self) -> "Place":
        self.children += 1
        return Place(f"{self.path}.{self.children - 1}", self.handler)

    def begin_again(self) -> None:
        self.calls = self.children = 0


class PlacedTask(asyncio.Task[Any]):
    """A task that knows its place."""

    place: Place


class Places:
    """The places of one program. `install` makes every later task of the loop a placed one."""

    def __init__(self, checkpoint: str = "") -> None:
        self.main, self.runtime, self._outside = Place(MAIN), Place(RUNTIME), Place(OUTSIDE)
        self._epoch = f"{checkpoint}@" if checkpoint else ""
        self._next: Place | None = None

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_task_factory(self._make)

    def start(self, work: Coroutine[Any, Any, Any], place: Place) -> PlacedTask:
        """A task at a place of our choice."""
        self._next = place
        task = asyncio.get_running_loop().create_task(work)
        assert isinstance(task, PlacedTask)
        return task

    def current(self) -> Place:
        """The place of the running task."""
        return self._of(asyncio.current_task())

    def pos(self, place: Place) -> str:
        """The next call's place in the program."""
        place.calls += 1
        return f"{self._epoch}{place.path}:{place.calls}"

    def alone(self) -> bool:
        """Whether the running task is all that the program consists of now."""
        me = asyncio.current_task()
        return all(task is me or _is_ours(task) for task in asyncio.all_tasks())

    def begin_again(self, checkpoint: str) -> None:
        self._epoch = f"{checkpoint}@"
        for place in (self.main, self.runtime, self._outside):
            place.begin_again()

    def _of(self, task: "asyncio.Task[Any] | None") -> Place:
        return task.place if isinstance(task, PlacedTask) else self._outside

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> PlacedTask:
        place, self._next = self._next or self._of(asyncio.current_task(loop)).child(), None
        task = PlacedTask(work, loop=loop, **options)
        task.place = place
        return task


def _is_ours(task: "asyncio.Task[Any]") -> bool:
    return not isinstance(task, PlacedTask) or task.place.handler or task.place.path.startswith(RUNTIME)
