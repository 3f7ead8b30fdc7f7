"""A journal whose commits are the test's to give, and to lose: what was not committed is gone after a crash."""

from collections.abc import Callable, Sequence

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO
from agent_os.drivers.store import Put
from agent_os.kernel.journal import Draft


class Disk:
    def __init__(self) -> None:
        self.drafts: list[Draft] = []  # committed
        self.facts: dict[str, dict[str, bytes]] = {}
        self.full = False
        self._queue: list[tuple[Draft, Sequence[Put], Callable[[], None] | None]] = []

    @property
    def next_seq(self) -> int:
        return len(self.drafts) + len(self._queue) + 1

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def put(self, draft: Draft, *, sync: bool, puts: Sequence[Put] = (), done: Callable[[], None] | None = None) -> int:
        if self.full:
            raise EIO("journal", "the disk is full")
        self._queue.append((draft, puts, done))
        return self.next_seq - 1

    def commit(self, count: int | None = None) -> None:
        """The oldest so many, or all, with what follows from them."""
        while self._queue and count != 0:
            draft, puts, done = self._queue.pop(0)
            self.drafts.append(draft)
            for put in puts:
                bucket = self.facts.setdefault(put.bucket, {})
                if put.value is None:
                    bucket.pop(put.key, None)
                else:
                    bucket[put.key] = put.value
            if done:
                done()
            count = None if count is None else count - 1

    def crash(self) -> None:
        self._queue.clear()

    def of(self, kind: Kind) -> list[Draft]:
        return [draft for draft in self.drafts if draft.kind == kind]
