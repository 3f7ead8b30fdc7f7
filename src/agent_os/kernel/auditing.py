"""What operators ask of the record: read it, prove it, take it away, and settle what it leaves open.

In: a recognised operator and a request of the operator range. Out: an `Act` for the gate. Reading happens page by page
in threads, so that somebody who reads a long journal delays nobody who writes it. Nothing here changes an entry.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from agent_os.abi import errors, exports
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Entry, Kind, Verdict, decode
from agent_os.abi.errors import EINVAL, ENOENT, ESRCH, ETIMEDOUT, AgentOSError
from agent_os.abi.heads import parse_note
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_NUMBER, BY_REQUEST
from agent_os.abi.tree import HASH, WIDTH, tile_key
from agent_os.drivers.store import Row, Store
from agent_os.kernel import rehearsal
from agent_os.kernel.calls import Act, Asked, Done, Stream
from agent_os.kernel.checkpoints import require_name
from agent_os.kernel.journal.heads import ANCHOR, KEY, MARK, PUBLIC
from agent_os.kernel.journal.writer import HEADS
from agent_os.kernel.recorded import Recorded, decode_any
from agent_os.kernel.table import Actor, Agent, qualified

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel


# The journal leaving the house: as an export for auditors, as a backup for the operator. In: the store, and the
# home's key and anchor. Out: bytes, read in a thread while everybody goes on writing. Both show one state: what is
# committed after they began is not in them.

PIECE = 64 << 10
DATABASE = "journal.db"
# The anchor first: it must not know more than the database beside it.
_BESIDE = (ANCHOR, MARK, KEY, PUBLIC)


def export(store: Store, end: int | None, *, bodies: bool) -> Iterator[bytes]:
    """The file that the offline verifier reads, with the first `end` entries and the heads that cover no more."""
    size = store.size()
    if end is not None and not 1 <= end <= size:
        raise ENOENT("journal.entry", f"there is no entry {end}; the newest is {size}")
    size = end or size
    yield exports.opening(store.get("meta", "log_id"), size, bodies=bodies)
    elsewhere: dict[bytes, None] = {}  # digests of bodies that do not lie beside their entry
    for tile, part in groupby(store.rows(1, size), key=_tile):
        rows = list(part)
        for row in rows:
            if bodies and row.body is None and (digest := decode(row.entry).body):
                elsewhere[digest] = None
        yield exports.rows(tile, rows, _leaves(store, tile), bodies=bodies)
    for digest in elsewhere:
        if (data := store.blob(digest)) is not None:  # else it was erased, and an entry says so
            yield exports.body(digest, data)
    notes = dict.fromkeys(note for _, note in store.items("heads"))
    yield exports.heads([note for note in notes if parse_note(note).head.size <= size])


def _tile(row: Row) -> int:
    return (row.seq - 1) // WIDTH


def _leaves(store: Store, tile: int) -> bytes | None:
    """The stored leaf hashes of a tile: they tell a verifier which entry is the bad one."""
    if whole := store.get("tree", tile_key(0, tile)):
        return whole[: WIDTH * HASH]
    tail = store.get("tree", "tail") or b""
    return tail[8:] if tail[:8] == tile.to_bytes(8) else None


class Backup:
    """A copy of journal and store, and what a home needs beside them to go on with it: the signing key among it, so
    whoever holds a backup can sign as this journal."""

    def __init__(self, store: Store, home: Path | None) -> None:
        if home is None:
            raise EINVAL("home.none", "a kernel without a home has nothing to keep", hint="KernelSpace(home=…)")
        self._beside = [(name, (home / name).read_bytes()) for name in _BESIDE if (home / name).exists()]
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=home) as place:
            copy = Path(place) / DATABASE
            store.backup(os.fspath(copy))
            self._copy: BinaryIO = copy.open("rb")  # nameless from here on, so that nothing of it can stay behind
        self._size = os.fstat(self._copy.fileno()).st_size

    def pieces(self) -> Iterator[bytes | tuple[str, int]]:
        """Name and size of a file, then its bytes, for each."""
        for name, data in self._beside:
            yield name, len(data)
            yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))
        yield DATABASE, self._size
        while data := self._copy.read(PIECE):
            yield data

    def close(self) -> None:
        self._copy.close()


Prepare = Callable[["Kernel", Any, Asked], Act]
_PAGE = 256  # entries read and sent at once
_LARGEST_BODY = 128 << 10  # bytes; a larger one is told by its size: a chunk must fit into a frame
_PAGE_BYTES = 256 << 10
_LOOK_S = 0.25  # not every commit is announced
_TO_CHECKPOINT = 30.0
_TO_SIGN = 5.0
_MOST_HEADS = 500
_CALLS = (Kind.INTENT, Kind.OUTCOME, Kind.RESULT, Kind.DECISION)
_CHECKPOINT = 26
_PLACES = {"kernel"}  # who acts without being an agent; operators have a colon in their name
Found = tuple[Entry, bytes | None]


def _waiting(work: Callable[["Kernel", Actor, Any, Stream | None], Awaitable[Any]]) -> Prepare:
    """An operation that takes time."""

    def prepared(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
        async def do() -> Done:
            return Done(await work(kernel, caller, asked.request, asked.stream))

        return Act(do)

    return prepared


def _needed(stream: Stream | None) -> Stream:
    if stream is None:
        raise EINVAL("stream", "there is no stream beside this call")
    return stream


# Read.


async def _events(kernel: "Kernel", caller: Actor, request: abi.Events, stream: Stream | None) -> None:
    """Entries as maps, in pages; with `follow`, new ones as soon as they are committed, until the caller leaves."""
    out, agent = _needed(stream), None
    if request.agent is not None:
        agent = _who(kernel, request.agent, must_exist=not request.follow)
    if request.last is not None and request.last < 0:
        raise EINVAL("events.last", "the last how many? A number from 0 on")
    news = asyncio.Event()
    kernel.journal.after_group.append(news.set)
    try:
        reached = max(kernel.store.size(), request.start - 1) if request.end is None else request.end
        await _send(kernel, out, _chosen(kernel, request, agent, reached), bodies=request.bodies)
        while request.follow and (request.end is None or reached < request.end):
            size = kernel.store.size()
            if size > reached:
                fresh = kernel.journal.scan(None, reached + 1, size)
                if agent is not None:
                    fresh = (one for one in fresh if one[0].agent == agent)
                await _send(kernel, out, fresh, bodies=request.bodies)
                reached = size
            else:
                await _sometime(news)
    finally:
        kernel.journal.after_group.remove(news.set)


async def _sometime(news: asyncio.Event) -> None:
    news.clear()
    try:
        async with asyncio.timeout(_LOOK_S):
            await news.wait()
    except TimeoutError:
        pass


def _chosen(kernel: "Kernel", request: abi.Events, agent: str | None, end: int) -> Iterator[Found]:
    start, last = max(1, request.start), request.last
    if agent is None:
        if last is not None:
            start = max(start, end - last + 1)
        return kernel.journal.scan(None, start, end)
    first = 1 if last is None else max(1, _entries_until(kernel, agent, end) - last + 1)
    found = takewhile(lambda one: one[0].seq <= end, kernel.journal.scan(agent, first))
    return (one for one in found if start <= one[0].seq)


def _entries_until(kernel: "Kernel", agent: str, end: int) -> int:
    """How many entries an agent has up to that one of the journal. Its own count rises with the journal's."""
    low, high = 0, kernel.store.aseq(agent)
    while low < high:
        middle = (low + high + 1) // 2
        row = next(kernel.store.rows_of(agent, middle, middle), None)
        if row is not None and row.seq <= end:
            low = middle
        else:
            high = middle - 1
    return low


def _who(kernel: "Kernel", name: str, *, must_exist: bool) -> str:
    """The id that entries carry for a name: an agent's, an operator's (`local:0`), or the kernel's own."""
    agent = name if name in _PLACES or ":" in name else qualified(name, strict=False)
    if must_exist and not kernel.store.aseq(agent):
        raise ESRCH("agent.unknown", f"the record knows no {name!r}", hint="agentctl events shows who acted")
    return agent


async def _send(kernel: "Kernel", stream: Stream, found: Iterator[Found], *, bodies: bool) -> None:
    def page() -> tuple[list[dict[str, Any]], bool]:
        shown: list[dict[str, Any]] = []
        size = 0
        for entry, body in islice(found, _PAGE):
            shown.append(told(entry, body, bodies=bodies))
            size += len(body or b"") if bodies else 0
            if size > _PAGE_BYTES:
                return shown, True
        return shown, len(shown) == _PAGE

    more = True
    while more:
        shown, more = await asyncio.to_thread(page)
        if shown:
            await stream.send(shown)


def told(entry: Entry, body: bytes | None, *, bodies: bool) -> dict[str, Any]:
    """An entry in words. What says nothing (an empty rule, no handle) is left out."""
    word: dict[str, Any] = {
        "seq": entry.seq,
        "time": datetime.fromtimestamp(entry.wall_ns / 1e9, UTC).isoformat(timespec="microseconds"),
        "agent": entry.agent,
        "kind": _word(Kind, entry.kind),
        "op": BY_NUMBER[entry.op].name if entry.op in BY_NUMBER else entry.op,
        "verdict": _word(Verdict, entry.verdict),
        "code": errors.BY_NUMBER[entry.code].__name__ if entry.code in errors.BY_NUMBER else entry.code,
    }
    plain = ("aseq", "inc", "epoch", "effect", "ref", "pos", "seen", "key", "step", "rule", "handle")
    word |= {name: getattr(entry, name) for name in (*plain, "label", "mode", "isolation", "cost")}
    hashes = (("capability_digest", entry.capability_digest), ("policy_digest", entry.policy_digest))
    word |= {name: digest.hex() for name, digest in hashes} | {"body_hash": entry.body.hex()}
    word = {name: value for name, value in word.items() if value not in (0, "", None, [], {}, "none")}
    if bodies and entry.body:
        word["body"] = _content(entry, body)
    return word


def _word(kinds: type[Kind] | type[Verdict], number: int) -> str | int:
    try:
        return kinds(number).name.lower().replace("_", ".")
    except ValueError:  # of a later release
        return number


def _content(entry: Entry, body: bytes | None) -> Any:
    if body is None:
        return {"erased": True}
    if len(body) > _LARGEST_BODY:
        return {"size": len(body)}
    try:
        if entry.kind not in _CALLS or not entry.op:
            return decode_any(body)
        kept = Recorded.of(body)
        said: dict[str, Any] = {"request": decode_any(kept.request), "value": decode_any(kept.value)}
        return said | ({"error": _fault(kept.error)} if kept.error else {})
    except (msgspec.MsgspecError, ValueError):
        return {"unreadable": len(body)}


def _fault(error: AgentOSError) -> dict[str, Any]:
    return {"name": error.name, "code": error.code, "reason": error.reason}


# Prove.


async def _head(kernel: "Kernel", caller: Actor, request: abi.Head, stream: Stream | None) -> dict[str, Any]:
    newest = kernel.journal.head()
    if not request.most:
        return newest
    if not 0 < request.most <= _MOST_HEADS:
        raise EINVAL("head.most", f"at most {_MOST_HEADS} heads are listed at once", field="most")
    return newest | {"heads": await asyncio.to_thread(_heads, kernel, request)}


def _heads(kernel: "Kernel", request: abi.Head) -> list[dict[str, Any]]:
    below = "9" if request.below is None else f"{max(0, request.below):020}"  # a nine is greater than every size
    found = [parse_note(note).head for _, note in kernel.store.before(HEADS, below, request.most)]
    return [{"size": one.size, "root": one.root, "wall_ns": one.wall_ns, "boot": one.boot} for one in found]


async def _prove(kernel: "Kernel", caller: Actor, request: abi.Prove, stream: Stream | None) -> dict[str, Any]:
    """That an entry is in the log of a signed head: the newest one, unless a size is given."""
    journal = kernel.journal
    entry = journal.read(request.seq)[0]
    size = await _signed(kernel, request.seq) if request.size is None else request.size
    proof = journal.prove(request.seq, size)
    row = kernel.store.row(request.seq)
    leaf = row.entry if row else b""
    facts = {"seq": entry.seq, "size": size, "entry": leaf, "proof": proof, "root": journal.root(size)}
    return facts | {"head": _note_of(kernel, size)}


async def _consistency(
    kernel: "Kernel", caller: Actor, request: abi.Consistency, stream: Stream | None
) -> dict[str, Any]:
    """That the log of `second` entries continues that of `first`."""
    journal = kernel.journal
    second = await _signed(kernel, request.first) if request.second is None else request.second
    proof = journal.consistency(request.first, second)
    roots = {"first_root": journal.root(request.first), "second_root": journal.root(second)}
    sizes = {"first": request.first, "second": second, "proof": proof}
    return {**sizes, **roots, "head": _note_of(kernel, second)}


async def _signed(kernel: "Kernel", seq: int) -> int:
    """The size of the newest head, once one covers that entry: one is signed every second."""
    if not 1 <= seq <= kernel.journal.size:
        raise ENOENT("journal.proof", f"there is no entry {seq}; the newest is {kernel.store.size()}")
    try:
        async with asyncio.timeout(_TO_SIGN):
            while (size := _head_size(kernel)) < seq:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise ETIMEDOUT("journal.head", f"no head covered entry {seq} within {_TO_SIGN:.0f} s") from None
    return size


def _head_size(kernel: "Kernel") -> int:
    try:
        return kernel.journal.head()["size"]
    except ENOENT:
        return 0


def _note_of(kernel: "Kernel", size: int) -> str | None:
    """The signed head of exactly that size, if there is one."""
    head = kernel.journal.head()
    if head["size"] == size:
        return head["note"]
    note = kernel.store.get(HEADS, f"{size:020}")
    return note.decode() if note else None


# Take away.


async def _export(kernel: "Kernel", caller: Actor, request: abi.Export, stream: Stream | None) -> None:
    await _pour(_needed(stream), export(kernel.store, request.end, bodies=request.bodies))


async def _backup(kernel: "Kernel", caller: Actor, request: abi.Backup, stream: Stream | None) -> dict[str, Any]:
    out = _needed(stream)
    if kernel.journal.failed is None:
        await _signed(kernel, kernel.journal.size)  # so that what is kept is covered by a head
    copy = await asyncio.to_thread(Backup, kernel.store, kernel.home)
    try:
        await _pour(out, copy.pieces())
    finally:
        copy.close()
    return {"log_id": kernel.journal.log_id.hex(), "boot": kernel.journal.boot}


async def _pour(stream: Stream, pieces: Iterator[Any]) -> None:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        if isinstance(piece, bytes):
            for at in range(0, len(piece), PIECE):
                await stream.send(piece[at : at + PIECE])
        else:
            await stream.send(piece)


# Settle.


async def _checkpoint(
    kernel: "Kernel", caller: Actor, request: abi.CheckpointOf, stream: Stream | None
) -> dict[str, Any]:
    """A native agent is asked for one and has some time to take it; of any other the kernel takes what it knows."""
    agent = kernel.table.find_alive(request.agent)
    name = request.name or _next_name(kernel, agent)
    require_name(name)
    before = kernel.journal.aseq(agent.id)
    if agent.kind == "native":
        await kernel.signals.send(caller, agent, AgentSignal.SIGUSR1, name)
        await _until_taken(kernel, agent, name, before)
    else:
        await kernel.checkpoints.take(agent, name, None)
    facts = next(one for one in kernel.checkpoints.of(agent.id) if one["name"] == name)
    seq = next((entry.seq for entry, _ in kernel.journal.scan(agent.id, before + 1) if _takes(entry)), 0)
    size = len(msgspec.msgpack.encode(facts))
    return {"checkpoint": name, "agent": agent.name, "at": seq, "size": size, "state": facts["state"] is not None}


def _takes(entry: Entry) -> bool:
    return entry.kind == Kind.CHECKPOINT or (entry.kind == Kind.OUTCOME and entry.op == _CHECKPOINT and not entry.code)


def _next_name(kernel: "Kernel", agent: Agent) -> str:
    taken = {facts["name"] for facts in kernel.checkpoints.of(agent.id)}
    return next(name for number in range(1, len(taken) + 2) if (name := f"k-{number}") not in taken)


async def _until_taken(kernel: "Kernel", agent: Agent, name: str, before: int) -> None:
    news = asyncio.Event()
    kernel.journal.after_group.append(news.set)
    try:
        async with asyncio.timeout(_TO_CHECKPOINT):
            while not any(one["name"] == name and one["aseq"] > before for one in kernel.checkpoints.of(agent.id)):
                if agent.exit:
                    raise ESRCH("agent.ended", f"{agent.name} ended before it took a checkpoint")
                await _sometime(news)
    except TimeoutError:
        hint = f"agentctl trace {agent.name} shows what it is doing; with on_checkpoint it answers between two calls"
        reason = f"{agent.name} took no checkpoint within {_TO_CHECKPOINT:.0f} s"
        raise ETIMEDOUT("checkpoint.late", reason, hint=hint) from None
    finally:
        kernel.journal.after_group.remove(news.set)


async def _replay(kernel: "Kernel", caller: Actor, request: abi.Replay, stream: Stream | None) -> dict[str, Any]:
    return await rehearsal.rehearse(kernel, request.agent, request.at)


async def _resolve(kernel: "Kernel", caller: Actor, request: abi.Resolve, stream: Stream | None) -> None:
    agent = _who(kernel, request.agent, must_exist=True)
    if not any(seq == request.seq for seq, _ in kernel.recovery.parked(agent)):
        waiting = ", ".join(str(seq) for seq, _ in kernel.recovery.parked(agent))
        reason = f"entry {request.seq} of {request.agent} does not wait to be resolved"
        hint = f"of {request.agent} there waits: {waiting}" if waiting else f"nothing of {request.agent} waits"
        raise ENOENT("resolve.none", reason, hint=hint)
    await kernel.recovery.resolve(request.seq, request.verdict, request.result, caller.id)


def story(kernel: "Kernel", agent_id: str) -> dict[str, Any]:
    """What an inspection adds from the record: effects whose outcome is unknown, and checkpoints."""
    waiting: list[dict[str, Any]] = []
    for seq, _ in kernel.recovery.parked(agent_id):
        entry, body = kernel.journal.read(seq)
        waiting.append(told(entry, body, bodies=True))
    kept = sorted(kernel.checkpoints.of(agent_id), key=lambda facts: facts["aseq"])
    short = [{"name": one["name"], "aseq": one["aseq"], "state": one["state"] is not None} for one in kept]
    return {"entries": kernel.store.aseq(agent_id), "parked": waiting, "checkpoints": short}


_BY_TYPE: Mapping[type[abi.Body], Prepare] = {
    abi.Events: _waiting(_events),
    abi.Head: _waiting(_head),
    abi.Prove: _waiting(_prove),
    abi.Consistency: _waiting(_consistency),
    abi.Export: _waiting(_export),
    abi.Backup: _waiting(_backup),
    abi.CheckpointOf: _waiting(_checkpoint),
    abi.Replay: _waiting(_replay),
    abi.Resolve: _waiting(_resolve),
}
PREPARE: dict[int, Prepare] = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
