"""A lane: the queue of one key and one model, driven by the loop's clock, for calls that wait for their turn in it.

In: calls. Out: their turns, or why they have none. Whoever has had a turn says how it ended. Sends nothing itself.
"""

import asyncio
from collections.abc import Sequence

from agent_os.abi.errors import ETIMEDOUT
from agent_os.drivers.models import LimitSample
from agent_os.kernel.models.call import Call
from agent_os.kernel.models.queue import Queue
from agent_os.kernel.models.retries import RetryShare

_AT_LEAST = 0.001  # seconds until a look that is due: a moment that rounds to now must not spin


class Lane:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.share = RetryShare()
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, call: Call, *, not_before: float | None = None) -> None:
        """Returns when the call may leave; from then on it is in flight. Cancelled: it is in no queue any more."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not_before is None:
            self.queue.join(call, now)
        else:
            self.queue.again(call, now, not_before)
        turn = self._turns[call.id] = loop.create_future()
        self.stir()
        try:
            await turn
        except asyncio.CancelledError:
            self._turns.pop(call.id, None)
            if self.queue.cancel(call.id) is None:
                self.queue.failed(call.id, 0, 0, loop.time(), counts=False)
            self.stir()
            raise

    # How a call that had its turn went on.

    def began(self, call: Call, samples: Sequence[LimitSample]) -> None:
        self.queue.began(call.id, _now(), *samples)
        self.stir()

    def finished(self, call: Call, prompt: int, output: int) -> None:
        self.queue.finished(call.id, prompt, output, _now())
        self.stir()

    def failed(self, call: Call, prompt: int, output: int, *, counts: bool) -> None:
        self.queue.failed(call.id, prompt, output, _now(), counts=counts)
        self.stir()

    def refused(self, call: Call, retry_after: float | None) -> None:
        self.queue.refused(call.id, _now(), retry_after)
        self.stir()

    # Whose calls they are.

    def stop(self, agent: str) -> None:
        self.queue.stop(agent)

    def go_on(self, agent: str) -> None:
        self.queue.go_on(agent, _now())
        self.stir()

    def stir(self) -> None:
        """Something has changed: whoever may leave does, whoever came too late hears it, and the next look is set."""
        now = _now()
        for call in self.queue.late(now):
            if turn := self._waiting(call):
                reason = "the deadline passed before the call was sent"
                turn.set_exception(ETIMEDOUT("model.deadline", reason, retryable=True))
        while (call := self.queue.next(now)) is not None:
            if turn := self._waiting(call):
                turn.set_result(None)
            else:  # it was cancelled in this very moment
                self.queue.failed(call.id, 0, 0, now, counts=False)
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if (wake := self.queue.wake(now)) is not None:
            self._timer = asyncio.get_running_loop().call_at(max(wake, now + _AT_LEAST), self.stir)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _waiting(self, call: Call) -> asyncio.Future[None] | None:
        turn = self._turns.pop(call.id, None)
        return turn if turn is not None and not turn.done() else None


def _now() -> float:
    return asyncio.get_running_loop().time()
