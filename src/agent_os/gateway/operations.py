"""Long work: begun by a request, looked at by others until it is over.

In: a coroutine, and whose it is. Out: its result if it is quick, else an operation (202) that its owner finds under
`/operations/{id}`. Bounded: so many at a time, and so many of those that are over are kept, for an hour. They live in
this process; what a gateway that ends was doing for somebody goes on in the kernel or not, as the record says.
"""

import asyncio
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agent_os.abi.errors import EAGAIN, EIO, ENOENT, AgentOSError
from agent_os.gateway import problems

MOST_RUNNING = 64
MOST_KEPT = 1000
KEPT_S = 3600.0
QUICK_S = 2.0


@dataclass(eq=False)
class Operation:
    id: str
    what: str
    owner: str
    began: str
    task: "asyncio.Task[Any]"
    ended_at: float | None = None  # by the clock that nobody sets
    told: dict[str, Any] = field(default_factory=dict[str, Any])

    def shown(self) -> dict[str, Any]:
        """`state` is running, done (with `result`) or failed (with `error`, a problem)."""
        return {"id": self.id, "what": self.what, "began": self.began, "state": "running", **self.told}


class Operations:
    def __init__(self, running: int = MOST_RUNNING, kept: int = MOST_KEPT, seconds: float = KEPT_S) -> None:
        self._running, self._kept, self._seconds = running, kept, seconds
        self._all: dict[str, Operation] = {}
        self._alone = asyncio.Semaphore(1)

    async def alone(self, work: Coroutine[Any, Any, Any]) -> Any:
        """For what takes a whole processor: one after the other."""
        try:
            await self._alone.acquire()
        except BaseException:
            work.close()
            raise
        try:
            return await work
        finally:
            self._alone.release()

    def begin(self, owner: str, what: str, work: Coroutine[Any, Any, Any]) -> Operation:
        """EAGAIN: too many are running."""
        self._sweep()
        if sum(one.ended_at is None for one in self._all.values()) >= self._running:
            work.close()
            reason = f"{self._running} operations are running already"
            raise EAGAIN("operations.many", reason, hint="wait for one of them", retry_after_ms=1000)
        one = Operation(f"op-{secrets.token_hex(8)}", what, owner, _now(), asyncio.create_task(work))
        one.task.add_done_callback(lambda task: self._over(one, task))
        self._all[one.id] = one
        return one

    async def within(self, owner: str, what: str, work: Coroutine[Any, Any, Any], seconds: float = QUICK_S) -> Any:
        """Its result, or its error; an `Operation` if it takes longer. Cancelled, the work goes on."""
        one = self.begin(owner, what, work)
        done, _ = await asyncio.wait([one.task], timeout=seconds)
        if not done:
            return one
        del self._all[one.id]
        return one.task.result()

    def find(self, owner: str, name: str) -> Operation:
        """Others' are not there."""
        self._sweep()
        one = self._all.get(name)
        if one is None or one.owner != owner:
            hint = "one that is over is kept for an hour, and only whoever began it sees it"
            raise ENOENT("operation.unknown", f"there is no operation {name!r}", hint=hint)
        return one

    async def close(self) -> None:
        tasks = [one.task for one in self._all.values() if not one.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _over(self, one: Operation, task: "asyncio.Task[Any]") -> None:
        one.ended_at = time.monotonic()
        path = f"/api/v1/operations/{one.id}"
        if task.cancelled():
            error: AgentOSError | None = EIO("operation.cut", "the gateway ended before it was over")
        else:
            bug = task.exception()
            error = bug if isinstance(bug, AgentOSError) else None
            if bug is not None and error is None:
                error = problems.failure(path, bug)
        if error is None:
            one.told = {"state": "done", "ended": _now(), "result": task.result()}
        else:
            problem = problems.shape(error, path, problems.status_of(error))
            one.told = {"state": "failed", "ended": _now(), "error": problem}

    def _sweep(self) -> None:
        now = time.monotonic()
        over = [one for one in self._all.values() if one.ended_at is not None]
        late = [one for one in over if one.ended_at is not None and now - one.ended_at > self._seconds]
        more = len(over) - len(late) - self._kept
        oldest = [one for one in over if one not in late][: max(0, more)]
        for one in [*late, *oldest]:
            del self._all[one.id]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
