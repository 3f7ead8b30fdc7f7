"""The writer: one thread that takes what has queued, and commits it as one group.

Goes in: lists of items, in the order of their sequence numbers. Comes out: for each group one call of `committed`, or
one of `failed` and then nothing ever again. Whoever holds `_turn` owns the tree, the heads and the store's writing
side. The thread never touches the loop or an agent: what it calls back does that.

There is no timer for groups. While one commit runs the next group gathers, so a lone entry waits for nobody and a
crowd shares its sync. Only heads have a clock: the last entries before a silence are signed within a second.

The thread is there for what waits for a disk: syncs, heads, large bodies. A group that asks for none of that takes 2 µs
an entry, and two threads that want the interpreter at once cost more than that, so `commit_here` commits it where it is
made, if nothing is queued before it.
"""

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import perf_counter_ns

from agent_os.abi.entries import Kind
from agent_os.abi.tree import leaf_hashes
from agent_os.drivers.store import Blob, Put, Row, Store
from agent_os.kernel.counting import Moments
from agent_os.kernel.journal.draft import Item
from agent_os.kernel.journal.heads import Heads, Signer
from agent_os.kernel.journal.tiles import Tiles

MOST_ENTRIES, MOST_BYTES = 1024, 8 << 20  # of one group
HEADS, INTENTS, META = "heads", "intents", "meta"  # buckets


class Writer:
    def __init__(
        self,
        store: Store,
        tiles: Tiles,
        heads: Heads,
        committed: Callable[[list[Item]], None],
        failed: Callable[[Exception, list[Item]], None],
        failpoints: dict[str, Callable[[], None]],
    ) -> None:
        self._store, self._tiles, self._heads = store, tiles, heads
        self._committed, self._failed, self._failpoints = committed, failed, failpoints
        self.signers: dict[int, Signer] = {}  # by the number of the key entry that brings them in
        self.queue: SimpleQueue[list[Item] | None] = SimpleQueue()  # None: the end
        self.groups = self.syncs = 0
        self.commits = Moments()
        self._turn = threading.Lock()
        self._broken: Exception | None = None  # what a commit elsewhere failed with
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when everything queued is committed, or has failed."""
        self.queue.put(None)
        self.join()

    def join(self) -> None:
        """Returns when the thread has ended; at once if it never began."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        group: list[Item] = []
        try:
            more = True
            while more:
                group, more = self._take()
                with self._turn:
                    if self._broken:
                        raise self._broken
                    if group or self._heads.due(self._tiles.size) or not more:
                        self._commit(group, last=not more)
                    if group:  # before anybody commits a later one: who waits is told in order
                        self._committed(group)
        except Exception as problem:  # whatever it was, nothing more may be promised
            self._failed(problem, group)

    def commit_here(self, group: list[Item]) -> bool:
        """On the caller's thread, without calling back. False: it belongs in the queue. It is not the next one, or must
        wait for the disk; or it failed, and then the thread ends when it comes to it."""
        if any(synced or blobs for _, _, _, _, blobs, synced, _, _ in group) or not self._turn.acquire(blocking=False):
            return False
        try:
            size = self._tiles.size
            if self._broken or group[0][0].seq != size + 1 or self._heads.due(size + len(group)):
                return False
            if self._heads.wait(size) is None:
                self.queue.put([])  # the thread sleeps without end, and from now on a head will be due
            self._commit(group, last=False)
        except Exception as problem:
            self._broken = problem
            return False
        finally:
            self._turn.release()
        return True

    def erase(self, digests: Sequence[bytes], seqs: Sequence[int], unnamed: Sequence[bytes]) -> None:
        """Blocks until they are gone. Meanwhile nothing is committed, here or there."""
        with self._turn:
            self._store.erase(digests, seqs, unnamed)

    def scrub(self) -> bool:
        """The same, until nothing of what was erased is left in any byte. False: it could not be done now."""
        with self._turn:
            return self._store.scrub()

    def _take(self) -> tuple[list[Item], bool]:
        group: list[Item] = []
        get, weight = self.queue.get, 0
        try:
            items = get(timeout=self._heads.wait(self._tiles.size))
            while items is not None:
                group += items
                # What lies inline is small, so large groups are those with bodies; each of these comes alone.
                for _, _, _, puts, blobs, *_ in items if items and items[-1][4] else ():
                    weight += sum(len(put.value or b"") for put in puts) + sum(len(blob.data) for blob in blobs)
                if len(group) >= MOST_ENTRIES or weight >= MOST_BYTES:
                    return group, True
                items = get(block=False)
        except Empty:
            return group, True
        return group, False

    def _commit(self, group: list[Item], last: bool) -> None:
        if self._failpoints:
            self._pass("begun")
        rows: list[Row] = []
        puts: list[Put] = []
        blobs: list[Blob] = []
        sync = last
        for row, kind, ref, more_puts, more_blobs, synced, _, _ in group:
            rows.append(row)
            sync = sync or synced
            if more_puts:
                puts.extend(more_puts)
            if more_blobs:
                blobs.extend(more_blobs)
            if kind == Kind.INTENT:
                puts.append(Put(INTENTS, f"{row[0]:020}", b""))
            elif ref and kind in (Kind.OUTCOME, Kind.RESOLVE):
                puts.append(Put(INTENTS, f"{ref:020}", None))
            elif kind == Kind.KEY and row[0] in self.signers:
                self._heads.signer = self.signers.pop(row[0])
        tiles, heads = self._tiles, self._heads
        puts.extend(tiles.extend(leaf_hashes(row[3] for row in rows)))
        root = b""
        if heads.due(tiles.size) or (last and heads.wait(tiles.size) is not None):
            sync = sync or not group or heads.overdue()
            root = tiles.root()
            note = heads.make(tiles.size, root)
            puts += (Put(HEADS, f"{tiles.size:020}", note), Put(META, "head", note), tiles.tail())
        if rows or puts:
            began = perf_counter_ns()
            self._store.append(rows, puts, blobs, sync=sync)
            self.commits.add(perf_counter_ns() - began)
        if self._failpoints:
            self._pass("after_commit")
        self.groups += 1
        tiles.committed()
        if sync:
            self.syncs += 1
            heads.synced(tiles.size, root or tiles.root())
        if self._failpoints:
            self._pass("before_callbacks")

    def rest(self) -> list[Item]:
        """What is still queued, taken out."""
        rest: list[Item] = []
        while True:
            try:
                rest += self.queue.get_nowait() or ()
            except Empty:
                return rest

    def _pass(self, name: str) -> None:
        if point := self._failpoints.get(name):
            point()
