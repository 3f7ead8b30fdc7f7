"""The journal: audit log, write-ahead log and replay record in one. What it does not hold did not happen.

What is on disk. `entries` holds one row per entry, numbered from 1 without a gap: the entry's bytes, which are the leaf
of the tree, and a body of up to 2 KiB beside it. Larger bodies lie once, by their hash, in `bodies`. `kv` holds small
facts: the kernel's own, and ours, which are the tiles of the tree, the signed heads, and the intents still open.
Outside the database, in `anchor/`, lie the heads once more and the mark of the newest synced group.

When something counts as done. `put` gives an entry its number at once; all that one turn of the loop put goes to the
writer together, or, if none of it waits for the disk and the writer has nothing to do, is committed at the end of that
turn. The writer takes all that has queued and hands the store one transaction: entries, bodies, facts, tiles, perhaps a
head. The commit of that transaction is the moment; before it nothing of the group has happened, after it all of it has.
If any entry of the group asked for `sync`, the commit returns only when the disk has it. Only then is anyone told
(`done`, on the loop's thread, in order). An entry that asked for no sync survives the death of this process; a power
loss may cut the tail of such entries, back to the last synced group and never behind it. A head goes to the anchor only
when what it covers is synced.

When something fails. A commit or sync that fails is final. It is not tried again, since after a failed sync nobody
knows what the disk holds. Everything queued fails, `put` raises EIO from then on, and `on_failure` is called once. On a
full disk the reserve is given up so that `closing` can write the last entries.

At opening. The tree is taken up from its tiles and compared with the newest signed head, the anchor and the mark, and
the newest entries are hashed again (`check.py`). A group cut off before its commit is dropped by the store and named in
`torn`. Any other difference refuses to open and names the first bad entry, unless `read_only`.
"""

import asyncio
import errno
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from agent_os.abi import entries
from agent_os.abi.entries import INLINE_BODY, Entry, Kind, Verdict
from agent_os.abi.errors import EIO, ENOENT, ENOSPC, EROFS, AgentOSError, FailureSeverity
from agent_os.abi.heads import key_statement, parse_note
from agent_os.drivers.store import Blob, Put, Row, Store
from agent_os.kernel.counting import Hour, Moments, Words
from agent_os.kernel.journal import check
from agent_os.kernel.journal.draft import Done, Draft, Item, Waiter
from agent_os.kernel.journal.heads import KEY, NEXT_KEY, Heads, Signer
from agent_os.kernel.journal.tiles import Missing, Tiles
from agent_os.kernel.journal.writer import INTENTS, META, MOST_ENTRIES, Writer

_ERASED_AT_ONCE, _LONGEST_REASON = 32, 200  # so that the body of the entry stays inline
_FORBID = int(Verdict.FORBID)
KERNEL = "kernel"  # who acts where no agent and no operator does


@runtime_checkable
class LocalStore(Protocol):
    """What a store on this machine's disk has beyond the interface."""

    torn: int
    failpoints: dict[str, Callable[[], None]]

    def free_reserve(self) -> None: ...


class Journal:
    def __init__(self, store: Store, home: Path | None, log_id: bytes, boot: int, signer: Signer) -> None:
        """Use `open`."""
        self._store, self._home = store, home
        local = store if isinstance(store, LocalStore) else None
        self.log_id, self.boot = log_id, boot
        self.torn = local.torn if local else 0  # bytes of a group that nobody was told of, dropped at opening
        self.damage: check.Damage | None = None  # what is wrong, in a journal opened read-only
        self.failed: AgentOSError | None = None
        self.on_failure: Callable[[AgentOSError], None] = lambda _: None
        self.after_group: list[Callable[[], None]] = []
        self.failpoints: dict[str, Callable[[], None]] = local.failpoints if local else {}  # set by tests only
        self._lock = threading.Lock()  # number and queue place are given together, whichever thread asks
        self._gathered: list[Item] = []  # numbered, in order, not yet handed to the writer
        self._seq = 0
        self._aseqs: dict[str, int] = {}
        self.told: dict[int, int] = {}  # how many entries of each sort since opening: see `metrics.unpacked`
        self.forbidden = Words()  # by rule
        self.refused = Hour()  # by a rule, or for want of a capability
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lasts = getattr(store, "path", "") is not None  # in memory nothing waits for a disk
        self._tiles = Tiles(store)
        self._heads = Heads(log_id, boot, signer)
        self._full = False
        self._writer = self._new_writer()
        self._queue = self._writer.queue.put

    @classmethod
    def open(
        cls, store: Store, *, home: Path | None = None, signer: Signer | None = None, read_only: bool = False
    ) -> "Journal":
        """Check what is there and go on from it. EIO `journal.damaged` names the first bad entry.

        Read-only, damage is not refused but told in `damage`, and nothing can be put.
        """
        size, known, boot, key = check.identity(store)
        log_id = known or secrets.token_bytes(16)
        signer = signer or (Signer.new() if read_only else _signer(home, key))
        journal = cls(store, None if read_only else home, log_id, boot + (not read_only), signer)
        journal._seq = size
        journal.damage = check.damage(store, journal._tiles, home, known, key)
        if read_only:
            journal.failed = EROFS("journal.read_only", "the journal was opened read-only")
            return journal
        if journal.damage is not None:
            raise journal.damage.error()
        if key is not None and key != signer.public:
            raise EIO(
                "journal.key",
                f"the journal is signed by key {sha256(key).hexdigest()[:16]}, this is {signer.key_id.hex()[:16]}",
                hint="give the key that belongs to this journal; a key is changed by rotation only",
            )
        if home is not None:
            journal._heads.begin(home)
        newest = store.get(META, "head")
        journal._heads.resume(parse_note(newest).head.size if newest else 0)
        facts = [Put(META, "log_id", log_id), Put(META, "boot", b"%d" % journal.boot), Put(META, "key", signer.public)]
        store.append([], facts, [], sync=True)
        journal._writer.start()
        if size == 0:
            journal.put_now(journal._key_draft(1, b"", signer, None))
        return journal

    def put(
        self,
        draft: Draft,
        *,
        sync: bool,
        puts: Sequence[Put] = (),
        blobs: Sequence[Blob] = (),
        done: Done | None = None,
    ) -> int:
        """Number and queue an entry. `done` runs on the loop when it is committed, with all before it; never, if it
        fails."""
        if done is not None:
            self._bind()
        return self._put(draft, sync, puts, blobs, done, None)

    async def record(
        self,
        draft: Draft,
        *,
        sync: bool = True,
        puts: Sequence[Put] = (),
        blobs: Sequence[Blob] = (),
        numbered: Callable[[int], None] | None = None,
    ) -> int:
        """Returns when the entry is committed. Cancelling stops the waiting; the entry is written all the same.
        `numbered` hears its number at once."""
        self._bind()
        task = _Task(asyncio.get_running_loop())
        seq = self._put(draft, sync, puts, blobs, task.done, task)
        if numbered:
            numbered(seq)
        await task.future
        return seq

    def put_now(self, draft: Draft, *, sync: bool = True, puts: Sequence[Put] = (), blobs: Sequence[Blob] = ()) -> int:
        """Blocks this thread until the entry is committed. Needs no loop, and may be called on the loop's thread."""
        held = _Thread()
        seq = self._put(draft, sync, puts, blobs, None, held)
        held.wait()
        return seq

    def _put(
        self,
        draft: Draft,
        sync: bool,
        puts: Sequence[Put],
        blobs: Sequence[Blob],
        done: Done | None,
        waiter: Waiter | None,
    ) -> int:
        if self.failed is not None:
            raise self.failed.with_traceback(None)  # it is raised again and again
        inline = body = draft.body
        digest = b""
        if body is not None:
            digest = sha256(body).digest()
            if len(body) > INLINE_BODY:
                inline, blobs = None, (*blobs, Blob(digest, body))
        agent = draft.agent
        with self._lock:
            seq = self._seq + 1
            aseq = self._aseqs.get(agent)
            aseq = (self._store.aseq(agent) if aseq is None else aseq) + 1
            row = Row(seq, agent, aseq, _encode(draft, seq, aseq, digest), inline)
            self._seq = seq
            sort = draft.kind | draft.verdict << 8 | (4096 if draft.code else 0) | draft.op << 16
            self.told[sort] = self.told.get(sort, 0) + 1
            if draft.verdict >= _FORBID:
                self.refused.add(time.monotonic())
                if draft.verdict == _FORBID:
                    self.forbidden.add(draft.rule)
            self._aseqs[agent] = aseq
            self._gathered.append((row, draft.kind, draft.ref, puts, blobs, sync and self._lasts, done, waiter))
            if blobs or isinstance(waiter, _Thread) or not self._hand_over_soon():
                self._queue(self._gathered)
                self._gathered = []
        if self.failpoints and (point := self.failpoints.get("queued")):
            point()
        if self.failed is not None and waiter is not None:  # it failed between the question above and the queue
            waiter.failed(self.failed)
        return seq

    def _hand_over_soon(self) -> bool:
        """At the end of this turn of the loop: waking the writer costs more than an entry, and a turn has many. False
        where no turn will end, or when there is enough for a group."""
        count = len(self._gathered)
        if count > 1:
            return count < MOST_ENTRIES  # whoever was first has seen to it
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # another thread, or no loop at all
            return False
        if running is self._loop:
            running.call_soon(self._end_turn)
        return running is self._loop

    def _end_turn(self) -> None:
        """On the loop. What needs no disk is committed here and now, unless the writer has work before it."""
        with self._lock:
            group, self._gathered = self._gathered, []
            here = bool(group) and self._writer.commit_here(group)
            if group and not here:
                self._queue(group)
        if here:
            asyncio.get_running_loop().call_soon(self._finish, group)  # behind what the writer has committed before

    def _hand_over(self) -> None:
        with self._lock:
            if self._gathered:
                self._queue(self._gathered)
                self._gathered = []

    def _bind(self) -> None:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()

    def _new_writer(self) -> Writer:
        return Writer(self._store, self._tiles, self._heads, self._committed, self._fail, self.failpoints)

    def _committed(self, group: list[Item]) -> None:
        """On the writer's thread. One call to the loop per group, however many it holds."""
        called = False
        for item in group:
            called = called or item[6] is not None
            if item[7] is not None:
                item[7].committed()
        if called and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: whoever waited went with it, and the entries are safe
                self._loop.call_soon_threadsafe(self._finish, group)

    def _finish(self, group: list[Item]) -> None:
        for item in group:
            done = item[6]
            if done is not None:
                try:
                    done()
                except Exception as problem:  # one caller's mistake must not keep the others waiting
                    assert self._loop is not None
                    self._loop.call_exception_handler({"message": "after a commit", "exception": problem})
        for flush in self.after_group:
            flush()

    def _fail(self, problem: Exception, lost: list[Item]) -> None:
        """On the writer's thread, once."""
        self._full = isinstance(problem, ENOSPC) or (isinstance(problem, OSError) and problem.errno == errno.ENOSPC)
        error = EIO(
            "journal",
            f"the journal cannot be written: {'the disk is full' if self._full else 'a write or a sync failed'}",
            hint="everything acknowledged is kept; make room or repair the disk, then restart the kernel",
        )
        error.severity = FailureSeverity.CRITICAL
        error.__cause__ = problem  # agents read the reason, the operator both: only the cause may name a path
        with self._lock:
            self.failed = error
            lost += self._writer.rest() + self._gathered
            self._gathered = []
        for item in lost:
            if item[7] is not None:
                item[7].failed(error)
        if self._loop is None or self._loop.is_closed():
            self.on_failure(error)
        else:
            self._loop.call_soon_threadsafe(self.on_failure, error)

    def closing(self, drafts: Sequence[Draft]) -> bool:
        """The last entries after a full disk, in the room of the reserve; blocks until they are on disk.

        False if the journal failed for another reason, or fails again: then nothing more can be said.
        """
        if not self._full or not isinstance(self._store, LocalStore):
            return False
        self._full = False
        self._writer.join()
        error, self.failed = self.failed, None
        try:
            self._store.free_reserve()
            self._seq = self._store.size()
            self._aseqs.clear()
            self._tiles.load(self._seq)
            self._heads.resume(0)
            self._writer = self._new_writer()
            self._queue = self._writer.queue.put
            for draft in drafts:
                self._put(draft, True, (), (), None, None)
            self._hand_over()
            self._writer.start()
            self._writer.stop()
            return self.failed is None
        except (AgentOSError, Missing):
            return False
        finally:
            self.failed = error

    async def rotate(self, signer: Signer) -> int:
        """Bring in a new key: one entry, signed by the old key and the new. Later heads are signed by the new one."""
        if self._home is not None:
            signer.save(self._home / NEXT_KEY)
        with self._lock:
            seq = self._seq + 1
        old = self._heads.signer
        self._writer.signers[seq] = signer
        draft = self._key_draft(seq, old.public, signer, old)
        if await self.record(draft, puts=[Put(META, "key", signer.public)]) != seq:
            raise EIO("journal.key", "another thread wrote while the key was changed")
        if self._home is not None:
            (self._home / NEXT_KEY).replace(self._home / KEY)
            self._heads.publish(self._home)
        return seq

    def _key_draft(self, seq: int, old: bytes, signer: Signer, by: Signer | None) -> Draft:
        statement = key_statement(self.log_id, seq, old, signer.public)
        body = {
            "log_id": self.log_id,
            "old": old,
            "new": signer.public,
            "by_old": by.sign(statement) if by else b"",
            "by_new": signer.sign(statement),
        }
        return Draft(KERNEL, Kind.KEY, body=msgspec.msgpack.encode(body))

    async def erase(
        self,
        digests: Sequence[bytes],
        *,
        agent: str,
        why: str,
        seqs: Sequence[int] = (),
        unnamed: Sequence[bytes] = (),
    ) -> int:
        """Erase bodies for good: by their hash, of these entries, and of `unnamed` those that no fact of the store
        names. Entries say so first, each with as many as its own inline body holds: what tells that a body was erased
        must not lie among the bodies. Hashes stay, and every proof still holds. The last entry."""
        why, seq = why[:_LONGEST_REASON], 0
        wanted = [(digest, 0, False) for digest in digests]
        wanted += [(self.read(one)[0].body, one, False) for one in seqs]
        wanted += [(digest, 0, True) for digest in unnamed]
        for start in range(0, len(wanted), _ERASED_AT_ONCE):
            some = wanted[start : start + _ERASED_AT_ONCE]
            told = msgspec.msgpack.encode({"digests": [digest for digest, _, _ in some], "why": why})
            seq = await self.record(Draft(agent, Kind.REDACT, body=told))
            sure, spared = ([digest for digest, _, spares in some if spares is way] for way in (False, True))
            await asyncio.to_thread(self._writer.erase, sure, [one for _, one, _ in some if one], spared)
        return seq

    async def scrub(self) -> bool:
        """What was erased, removed or replaced is in no byte of the store any more. Nothing is committed meanwhile, and
        it takes as long as writing all of it anew. False: it could not be done now; the next time may."""
        return await asyncio.to_thread(self._writer.scrub)

    @property
    def next_seq(self) -> int:
        """The number of the next entry, on the thread that puts them."""
        return self._seq + 1

    def aseq(self, agent: str) -> int:
        """The number of the agent's newest entry, committed or not."""
        known = self._aseqs.get(agent)
        return self._store.aseq(agent) if known is None else known

    @property
    def size(self) -> int:
        """The newest number given; it may not be committed yet."""
        return self._seq

    @property
    def policy_digest(self) -> bytes:
        return self._heads.policy_digest

    @policy_digest.setter
    def policy_digest(self, digest: bytes) -> None:
        self._heads.policy_digest = digest

    @property
    def counts(self) -> dict[str, int]:
        """Groups committed and syncs made since opening, which do not depend on how busy the machine is."""
        return {"groups": self._writer.groups, "syncs": self._writer.syncs}

    @property
    def commits(self) -> Moments:
        """How long a group took, from its first row until the store had it."""
        return self._writer.commits

    def head(self) -> dict[str, Any]:
        """The newest signed head, with its note. ENOENT before the first."""
        note = self._heads.newest[1] if self._heads.newest else self._store.get(META, "head")
        if note is None:
            raise ENOENT("journal.head", "nothing is signed yet")
        return msgspec.structs.asdict(parse_note(note).head) | {"note": note.decode()}

    def prove(self, seq: int, size: int | None = None) -> list[bytes]:
        """That entry `seq` is in the tree of the first `size`."""
        size = self._store.size() if size is None else size
        if not 1 <= seq <= size <= self._store.size():
            raise ENOENT("journal.proof", f"there is no entry {seq} among the first {size} of {self._store.size()}")
        return self._tiles.inclusion(seq - 1, size)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """That the first `old` entries are the beginning of the first `new`."""
        if not 1 <= old <= new <= self._store.size():
            raise ENOENT("journal.proof", f"no proof leads from {old} to {new} of {self._store.size()} entries")
        return self._tiles.consistency(old, new)

    def root(self, size: int) -> bytes:
        return self._tiles.root(size)

    def read(self, seq: int) -> tuple[Entry, bytes | None]:
        row = self._store.row(seq)
        if row is None:
            raise ENOENT("journal.entry", f"there is no entry {seq}; the newest is {self._store.size()}")
        return self._opened(row)

    def scan(
        self, agent: str | None = None, first: int = 1, last: int | None = None
    ) -> Iterator[tuple[Entry, bytes | None]]:
        """Everybody's by number, or one agent's by its own number. A body is None if there is none, or it is erased."""
        rows = self._store.rows(first, last) if agent is None else self._store.rows_of(agent, first, last)
        return (self._opened(row) for row in rows)

    def open_intents(self) -> list[tuple[Entry, bytes | None]]:
        """Effects that were begun and never answered, the oldest first."""
        return [self.read(int(key)) for key, _ in self._store.items(INTENTS)]

    def _opened(self, row: Row) -> tuple[Entry, bytes | None]:
        entry = entries.decode(row.entry)
        return entry, self._store.blob(entry.body) if row.body is None and entry.body else row.body

    async def close(self) -> None:
        """Commits what is queued and signs a last head. The store stays open: it is not ours."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        self._hand_over()
        self._writer.stop()
        self._heads.close()
        if self.failed is None:
            self.failed = EROFS("journal.closed", "the journal is closed", hint="start the kernel again")


class _Task:
    """A task that waits for its entry."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.future = loop, loop.create_future()

    def done(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def committed(self) -> None:
        pass  # `done` tells it, in its place among the others

    def failed(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._raise, error)

    def _raise(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Thread:
    """A thread that is held until its entry is committed."""

    __slots__ = ("_error", "_gate")

    def __init__(self) -> None:
        self._gate, self._error = threading.Event(), None

    def wait(self) -> None:
        self._gate.wait()
        if self._error is not None:
            raise self._error

    def committed(self) -> None:
        self._gate.set()

    def failed(self, error: Exception) -> None:
        self._error: Exception | None = error
        self._gate.set()


def _encode(draft: Draft, seq: int, aseq: int, digest: bytes) -> bytes:
    """The bytes of an `Entry`. Made from a tuple in the same order, which saves an object per entry."""
    return entries.encode(
        (
            seq,
            draft.agent,
            aseq,
            draft.inc,
            0,
            time.time_ns(),
            draft.kind,
            draft.op,
            draft.effect,
            draft.ref,
            draft.pos,
            draft.seen,
            draft.key,
            draft.verdict,
            draft.step,
            draft.rule,
            draft.handle,
            draft.capability_digest,
            draft.label,
            draft.policy_digest,
            draft.mode,
            draft.isolation,
            draft.cost,
            digest,
            draft.code,
        )
    )


def _signer(home: Path | None, key: bytes | None) -> Signer:
    """The home's key; if a rotation was cut off after its entry was committed, the one that it brought in."""
    if home is None:
        return Signer.new()
    if key is not None and (home / NEXT_KEY).exists() and Signer.load(home / NEXT_KEY).public == key:
        (home / NEXT_KEY).replace(home / KEY)
    if key is not None and not (home / KEY).exists():
        raise EIO(
            "journal.key",
            f"the journal's key is gone from {home / KEY}, and nothing can be signed without it",
            hint="put it back from a backup; what is there can still be verified and read",
        )
    return Signer.of_home(home)
