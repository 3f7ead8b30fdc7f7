"""The file calls: each understood here and made into an `Act`, which acts only when the gate has decided.

In: a root and a request of the ABI. Out: an `Act` with what it needs, how it is recorded and the deed. Stored entries
are changed in memory within the deed, without a pause, and in the store with the call's own record; files of real
directories are changed on their mount's thread between intent and outcome. What is written keeps the label of whoever
wrote it, and every answer says that of what it tells of. Decides no authority; talks to no socket.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from agent_os.abi.errors import EBADF, EINVAL, EISDIR, ENOENT, EROFS
from agent_os.abi.syscalls import Close, Effect, List, Open, Read, Remove, Stat, Watch, Write
from agent_os.abi.syscalls import Share as ShareRequest
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import CLEAN, UNLABELLED, Label, of_words
from agent_os.kernel.calls import SAID, Act, Done, Way
from agent_os.kernel.vfs import paths, recovery
from agent_os.kernel.vfs.backend import (
    MIB,
    Backend,
    Change,
    Facts,
    Kept,
    Listed,
    Page,
    Snapshot,
    Source,
    absent,
    check_quota,
    check_range,
    is_directory,
    page,
    read_only,
)
from agent_os.kernel.vfs.bodies import Bodies
from agent_os.kernel.vfs.directory import DirectoryBackend
from agent_os.kernel.vfs.root import Held, Place, Root, shown
from agent_os.kernel.vfs.runs import INLINE
from agent_os.kernel.vfs.shares import Rests, Share, SharedBackend, Shares
from agent_os.kernel.vfs.sources import Spool, Whole
from agent_os.kernel.vfs.stored import StoreBackend
from agent_os.kernel.vfs.streams import Stream, Upload, chunks, decode

WORKING, EPISODIC, SEMANTIC, SHARED = "/mem/working", "/mem/episodic", "/mem/semantic", "/mem/shared"
IN_ONE_FRAME = 512 << 10  # bytes; beyond it a read is answered as a stream
CHECKPOINT_BYTES = 256 * MIB
MAX_PAGE = 256  # entries: everybody waits while one page is made, and whoever wants more asks for more

T = TypeVar("T")
History = Callable[[str, int], Iterable[dict[str, Any]] | None]


class Vfs:
    """All trees. One per kernel."""

    def __init__(
        self,
        store: Kept,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        label: Callable[[str], Label] = lambda agent: UNLABELLED,
    ) -> None:
        """`label`: what an agent carries now."""
        self._label = label
        self.history: History | None = None  # changes in an agent's tree after a journal sequence number
        self._store, self._wall_ns = store, wall_ns
        self._bodies = Bodies(store)
        self._shares = Shares(store, wall_ns)
        self._roots: dict[str, Root] = {}
        self._uploads: list[tuple[Backend, Upload]] = []

    def root(self, agent: str) -> Root:
        """The agent's tree, always the same one. Nothing is read from the store before it is used."""
        root = self._roots.get(agent)
        if root is None:
            root = self._roots[agent] = Root(agent, self._store, self._make_store)
            root.mount_store(WORKING, max_bytes=64 * MIB)
            root.mount_store(EPISODIC, max_bytes=256 * MIB, append_only=True)
            root.mount_store(SEMANTIC, max_bytes=256 * MIB)
            root.mount(SHARED, SharedBackend(self._shares, agent, self._lent))
        return root

    def _make_store(self, agent: str, name: str, **limits: Any) -> StoreBackend:
        bucket = f"vfs/{agent}/{name}"
        backend = StoreBackend(self._store, self._bodies, bucket, wall_ns=self._wall_ns, **limits)
        backend.watch(lambda change: self._tell_receivers(agent, name, change))
        return backend

    def _lent(self, owner: str, path: str) -> tuple[StoreBackend, str]:
        place = self.root(owner).find(path)
        if place is None or not isinstance(place.backend, StoreBackend):
            raise ENOENT("share.absent", "what was shared is no longer there")
        return place.backend, place.inner

    def _tell_receivers(self, owner: str, at: str, change: Change) -> None:
        lent = self._shares.lent(owner)
        changed = paths.join(at, change.path) if lent else ""
        for share in lent:
            root, inner = self._roots.get(share.to), paths.below(share.path, changed)
            if root and inner is not None:
                path = paths.join(f"{SHARED}/{share.place}", inner)
                label = of_words(share.label).join(change.label or UNLABELLED)
                root.watches.changed(path, change.kind, change.version, label)

    def erased(self, digests: Iterable[bytes]) -> None:
        """Bodies are gone in the store, and so from what was lately read."""
        self._bodies.forget(digests)

    # Reading.

    def read(self, root: Root, request: Read) -> Act:
        place = self._entry(root, request.path, request.handle, "r")
        check_range(request.offset, request.length)
        if not place.inner:
            raise is_directory(place.path)
        return _reading(place, lambda: _read(place, request), request.version)

    def extent(self, root: Root, request: Read) -> int:
        """How many bytes a read would give now."""
        place = self._entry(root, request.path, request.handle, "r")
        if request.version is not None:
            content = place.backend.read(place.inner, request.version)
            content.close()
            size = content.facts.size
        else:
            facts = place.backend.stat(place.inner)
            size = facts.size if facts else 0
        rest = max(0, size - request.offset)
        return rest if request.length is None else min(request.length, rest)

    def stat(self, root: Root, request: Stat) -> Act:
        place = root.find(request.path)
        if place is None:
            return Act(lambda: Done(_described(Facts("directory"), "r", CLEAN)), label=_clean)

        def do() -> Any:
            facts = place.backend.stat(place.inner)
            if facts is None:
                raise absent(place.path)
            backend = place.backend
            rights = backend.rights_of(place.inner) if isinstance(backend, SharedBackend) else backend.rights
            label = backend.label(place.inner)
            return _described(facts, shown(rights), root.source(place.need("read")) if label is None else label)

        return _reading(place, do)

    def list(self, root: Root, request: List) -> Act:
        if request.max < 1:
            raise EINVAL("vfs.max", "max is at least 1")
        limit = min(request.max, MAX_PAGE)
        path = root.resolve(request.path)
        place = root.find(path)
        tops = root.tops(place.path if place else path)
        if place is None:  # names of mounts, no secret
            return Act(lambda: Done(_page(page(tops, request.after, limit), root, path)), label=_clean)

        def do() -> Any:
            own = place.backend.list(place.inner, request.after, limit)
            return _page(_with_mounts(own, tops, request.after, limit) if tops else own, root, place.path)

        return _reading(place, do)

    def open(self, root: Root, request: Open) -> Act:
        place = self._entry(root, request.path, None, "r")
        if "w" in request.flags:
            _require_changes(place)
        needs = [place.need(action) for flag, action in (("r", "read"), ("w", "write")) if flag in request.flags]

        def look() -> None:
            facts = place.backend.stat(place.inner)
            if facts is None and "r" in request.flags:
                raise absent(place.path)
            if facts and facts.kind == "directory":
                raise is_directory(place.path)

        def do() -> Done:
            look()
            number, puts = root.open(place, request.flags)
            return Done({"handle": number}, puts)

        if not isinstance(place.backend, DirectoryBackend):
            return Act(do, needs, label=partial(place.backend.label, place.inner))

        async def wait() -> Done:
            await _threaded(place.backend, look)
            number, puts = root.open(place, request.flags)
            return Done({"handle": number}, puts)

        return Act(wait, needs, facts=place.facts)

    def close(self, root: Root, request: Close) -> Act:
        root.handle(request.handle)
        return Act(lambda: Done(None, root.close_handle(request.handle)))

    # Changing.

    def write(self, root: Root, request: Write) -> Act:
        place = self._changeable(root, request)
        return self._writing(root, place, request, Whole(request.data), streamed=False)

    def upload(self, root: Root, request: Write) -> Upload:
        """A write whose data follows. Raises at once what is wrong already."""
        place = self._changeable(root, request)

        def check(more: int) -> None:
            backend, inner = _payer(place)
            if not upload.spool.size:  # its first data: one that the gate refuses never gets so far, nor ends
                gone(upload)
                self._uploads.append((backend, upload))
            waiting = sum(one.spool.size for mount, one in self._uploads if mount is backend)
            # A walk through a real directory would stop everybody; its own thread counts anew at the end.
            usage = backend.last_usage() if isinstance(backend, DirectoryBackend) else backend.usage()
            old = backend.stat(inner) if request.mode == "replace" else None
            used = max(0, usage.bytes - (old.size if old else 0))
            check_quota(used + waiting, more, usage.max_bytes, "bytes")

        def end(spool: Spool) -> Act:
            return self._writing(root, place, request, spool, streamed=True)

        def gone(upload: Upload) -> None:
            self._uploads = [pair for pair in self._uploads if pair[1] is not upload]

        if isinstance(place.backend, DirectoryBackend):
            place.backend.run(place.backend.usage)
        there = partial(place.backend.label, place.inner)
        record = recovery.upload_record(place, request)
        upload = Upload((place.need("write"),), place.facts, record, there, check, end, gone)
        return upload

    def remove(self, root: Root, request: Remove) -> Act:
        place = self._entry(root, request.path, None, "r")
        _require_changes(place)
        backend = place.backend
        if isinstance(backend, DirectoryBackend):
            return recovery.removal(backend, place, request)

        def make() -> Change:
            return backend.remove(place.inner, if_version=request.if_version, label=self._label(root.agent))

        change = _Change(place, make, lambda _: None)
        record = {"path": place.path, "if_version": request.if_version}
        return change.act("delete", record)

    def _changeable(self, root: Root, request: Write) -> Place:
        place = self._entry(root, request.path, request.handle, "w")
        _require_changes(place)
        return place

    def _writing(self, root: Root, place: Place, request: Write, source: Whole | Spool, *, streamed: bool) -> Act:
        backend = place.backend
        if isinstance(backend, DirectoryBackend):
            return recovery.writing(backend, place, request, source, streamed=streamed)

        def make() -> Change:
            return _write(place, request, source, self._label(root.agent))

        change = _Change(place, make, partial(_written, request.mode == "append"))
        return change.act("write", _record(place.path, request, source, streamed))

    # Watching and sharing.

    def watch(self, root: Root, request: Watch) -> Act:
        place = root.find(request.path)
        path = place.path if place else root.resolve(request.path)
        if request.end:
            return Act(lambda: Done({"watch": path, "ended": True}, root.end_watch(path)))
        needs = [place.need("read")] if place else root.reading_below(path)

        def do() -> Done:
            puts = root.begin_watch(path, request.recursive)
            if request.since is not None:
                self._catch_up(root, path, request.since)
            return Done({"watch": path, "ended": False}, puts)

        return Act(do, needs, facts=place.facts if place else {})

    def _catch_up(self, root: Root, path: str, since: int) -> None:
        changes = self.history(root.agent, since) if self.history else None
        if changes is None:
            root.watches.missed(path, 1, CLEAN)  # always the same: it tells nothing of anybody
            return
        for one in changes:
            root.watches.changed(one["path"], one["kind"], one["version"], UNLABELLED)

    def share(self, root: Root, request: ShareRequest) -> Act:
        place = root.find(request.path)
        if place is None or not isinstance(place.backend, StoreBackend) or not place.inner:
            raise EINVAL("share.what", "what can be shared is an entry of /mem or all below one, not a mount or a file")
        to = request.to if "/" in request.to else f"{root.agent.rpartition('/')[0] or 'default'}/{request.to}"
        if to == root.agent:
            raise EINVAL("share.self", "an agent does not share with itself")
        rights = ("read", "write") if "w" in request.rights else ("read",)
        needs = [place.need(action) for action in ("share", *rights)]
        record = {"path": place.path, "to": to, "rights": request.rights, "ttl_s": request.ttl_s, "end": request.end}

        def do() -> Done:
            share, puts = self._lend(root, place, request, to)
            return Done({"path": f"{SHARED}/{share.place}"}, puts)

        return Act(do, [needs[0]] if request.end else needs, Way.STORE, Effect.IDEMPOTENT, record)

    def _lend(self, root: Root, place: Place, request: ShareRequest, to: str) -> tuple[Share, Sequence[Put]]:
        if request.end:
            return self._shares.end(root.agent, place.path, to)
        if place.backend.stat(place.inner) is None:
            raise absent(place.path)
        if request.ttl_s is not None and request.ttl_s <= 0:
            raise EINVAL("share.ttl", "ttl_s is above 0, or left out for no end")
        expires = None if request.ttl_s is None else self._wall_ns() + request.ttl_s * 10**9
        name = paths.split(place.path)[1]
        share = Share(root.agent, to, place.path, name, request.rights, expires, self._label(root.agent).words())
        return share, self._shares.add(share)

    def lend_only(self, rests: Rests) -> None:
        """From now on nobody lends what it may not do itself."""
        self._shares.rests = rests

    def shut(self, agent: str, held: Held) -> Sequence[Put]:
        """Close what an agent has open in its tree, and take back what it lent, where that is not covered any more."""
        return [*self.root(agent).shut(held), *self._shares.shut(agent, held)]

    # Recovery, checkpoints, the end.

    def verify(self, root: Root, op: int, record: dict[str, Any]) -> recovery.Verified:
        """What became of a change in a real directory whose outcome was not recorded. Blocks for one file's reading."""
        if not record.get("path"):
            return recovery.Verified("unsure", reason="the record names no path")
        place, backend = self._recorded(root, record)
        return backend.run(lambda: recovery.verify(backend, place, op, record)).result()

    def again(self, root: Root, op: int, record: dict[str, Any]) -> Act | None:
        """The same deed once more; None if its data came as a stream and is gone."""
        place, backend = self._recorded(root, record)
        return recovery.again(backend, place._replace(said=tuple(record.get(SAID, ()))), op, record)

    def _recorded(self, root: Root, record: dict[str, Any]) -> tuple[Place, DirectoryBackend]:
        place = root.find(record["path"])
        if place is None or not isinstance(place.backend, DirectoryBackend):
            raise ENOENT("vfs.mount", f"the directory that held {record['path']} is not mounted")
        return place, place.backend

    def snapshot(self, root: Root, name: str) -> Snapshot:
        """Pin the present versions of all stored entries under a checkpoint's name."""
        whole = Snapshot()
        for mount in root.backends():
            part = mount.backend.snapshot(name)
            whole.versions |= {paths.join(mount.at, path): version for path, version in part.versions.items()}
            whole.puts += part.puts
        return whole

    def release(self, root: Root, name: str) -> Sequence[Put]:
        stored = [mount.backend for mount in root.backends() if isinstance(mount.backend, StoreBackend)]
        return [put for backend in stored for put in backend.release(name)]

    async def work_hashes(self, root: Root, limit: int = CHECKPOINT_BYTES) -> dict[str, str]:
        backend = root.backend("/work")
        if not isinstance(backend, DirectoryBackend):
            return {}
        return await _threaded(backend, lambda: backend.hashes(limit))

    def end(self, agent: str) -> Sequence[Put]:
        """The agent is over: its working memory and what it lent of that, its handles, watches and directories. The
        rest is kept."""
        root = self.root(agent)
        for mount in root.backends():
            if isinstance(mount.backend, DirectoryBackend):  # it has a thread and a descriptor
                root.unmount(mount.at)
        working = root.backend(WORKING)
        cleared: Sequence[Put] = working.clear() if isinstance(working, StoreBackend) else ()
        return [*cleared, *self._shares.drop(agent, WORKING), *self._shares.outlive(agent), *root.forget()]

    def shutdown(self) -> None:
        for root in self._roots.values():
            root.close()
        self._roots.clear()

    def _entry(self, root: Root, path: str | None, handle: int | None, flag: str) -> Place:
        """What a call is about: a path, or a handle that was opened for it. Looked up anew each time."""
        if (path is None) == (handle is None):
            raise EINVAL("vfs.target", "give either path or handle")
        held = None if handle is None else root.handle(handle)
        if held is not None:
            if flag not in held.flags:
                raise EBADF("vfs.flags", f"handle {handle} was opened for {held.flags!r} only")
            path = held.path
        place = root.find(path or "")
        if place is None:
            raise EISDIR("vfs.directory", f"{path!r} is a directory above the mounts", hint="list it to see them")
        return place._replace(said=(*held.said, *place.said)) if held and held.said else place


class _Change:
    """A change in the store between its deed and its commit."""

    __slots__ = ("_answer", "_made", "_make", "_place")

    def __init__(self, place: Place, make: Callable[[], Change], answer: Callable[[Change], Any]) -> None:
        self._place, self._make, self._answer = place, make, answer
        self._made: Change | None = None

    def act(self, action: str, record: Any) -> Act:
        needs = (self._place.need(action),)
        return Act(self.do, needs, Way.STORE, Effect.IDEMPOTENT, record, answered=self.committed, label=self.there)

    def there(self) -> Label | None:
        """Versions and sizes tell of whoever wrote there before, and so does a refusal."""
        return self._place.backend.label(self._place.inner)

    def do(self) -> Done:
        before = self.there()
        made = self._made = self._make()
        return Done(self._answer(made), made.puts, made.blobs, label=before)

    def committed(self) -> None:
        if self._made and self._made.settled:
            settled, self._made.settled = self._made.settled, None  # each knows the other: a circle is garbage
            settled()


def _require_changes(place: Place) -> None:
    if place.backend.rights == "r":
        raise read_only(place.at)
    if not place.inner:
        raise EROFS("vfs.mount_point", f"{place.path} is where a mount begins; name an entry in it")


def _payer(place: Place) -> tuple[Backend, str]:
    """Where what is written takes room."""
    shared = place.backend
    return shared.payer(place.inner) if isinstance(shared, SharedBackend) else (shared, place.inner)


def _reading(place: Place, look: Callable[[], Any], version: int | None = None) -> Act:
    needs = [place.need("read")]
    if not isinstance(place.backend, DirectoryBackend):
        there = partial(place.backend.label, place.inner, version)
        return Act(lambda: _looked(look(), there()), needs, label=there)
    backend = place.backend

    async def wait() -> Done:
        return _looked(await _threaded(backend, look))

    return Act(wait, needs, facts=place.facts)


def _looked(value: Any, label: Label | None = None) -> Done:
    """Of a stream the record keeps what it was, not every byte."""
    return Done(value, kept=value.head if isinstance(value, Stream) else None, label=label)


def _clean() -> Label:
    return CLEAN


async def _threaded(backend: Backend, work: Callable[[], T]) -> T:
    """On the directory's own thread. Cancelled: the work goes on and its result is dropped."""
    assert isinstance(backend, DirectoryBackend)
    return await asyncio.wrap_future(backend.run(work))


def _read(place: Place, request: Read) -> dict[str, Any] | Stream:
    content = place.backend.read(place.inner, request.version)
    facts = content.facts
    rest = max(0, facts.size - request.offset)
    length = rest if request.length is None else min(request.length, rest)
    text = facts.text or request.text
    head: dict[str, Any] = {"version": facts.version, "size": facts.size}
    if length > IN_ONE_FRAME:
        return Stream(head, text, chunks(content, request.offset, length, text, place.path), content.close)
    try:
        raw = content.read(request.offset, length)
    finally:
        content.close()
    data = decode(raw, place.path, last=request.offset + len(raw) >= facts.size) if text else raw
    return {"data": data, **head}


def _described(facts: Facts, rights: str, label: Label) -> dict[str, Any]:
    return {**_facts(facts), "rights": rights, "labels": label.words(), "text": facts.text}


def _facts(facts: Facts) -> dict[str, Any]:
    return {"kind": facts.kind, "size": facts.size, "version": facts.version, "modified": facts.modified}


def _page(found: Page, root: Root, path: str) -> dict[str, Any]:
    entries = [{"name": one.name, **_facts(one.facts)} for one in found.entries]
    for entry in entries:
        if root.backend(paths.join(path, entry["name"])):
            entry["mount"] = True
    return {"entries": entries, "more": found.more, **({"hidden": found.hidden} if found.hidden else {})}


def _with_mounts(own: Page, tops: dict[str, Facts], after: str, limit: int) -> Page:
    """A directory in which further mounts lie: they hide entries of their name."""
    names = {one.name: one.facts for one in own.entries} | {name: facts for name, facts in tops.items() if name > after}
    merged: list[Listed] = [Listed(name, names[name]) for name in sorted(names)]
    return Page(merged[:limit], own.more or len(merged) > limit, own.hidden)


def _write(place: Place, request: Write, source: Whole | Spool, label: Label) -> Change:
    try:
        if request.mode == "append":
            return place.backend.append(place.inner, source, if_version=request.if_version, label=label)
        create = request.mode == "create"
        return place.backend.write(place.inner, source, create=create, if_version=request.if_version, label=label)
    finally:
        source.close()


def _written(append: bool, change: Change) -> dict[str, Any]:
    answer = {"version": change.version, "size": change.size}
    return answer | {"offset": change.offset} if append else answer


def _record(path: str, request: Write, source: Source, streamed: bool) -> dict[str, Any] | None:
    """What the journal keeps. Data that the store holds as one body is named by its hash: it lies there once. None: the
    request itself, which is small and says the path as it is."""
    if request.path == path and source.size <= INLINE and not streamed:
        return None
    record: dict[str, Any] = {"path": path, "mode": request.mode, "if_version": request.if_version}
    if streamed or source.size > INLINE:
        return record | {"digest": source.digest, "size": source.size, "text": source.text}
    return record | {"data": request.data}
