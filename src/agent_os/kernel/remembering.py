"""OP_MEMORY: an agent's memory as an operator sees and changes it, now and as it was.

In: a recognised operator and a request. Out: an `Act` for the gate. Looks read the store, and the record where the
past is asked for (`memories.py`); changes go into the store with the operator's own entry, and one of the agent's tells
of them. An operator's word is trusted: what it writes carries no label. Real directories are no memory; of those a file
can be read, as its agent sees it now, by whoever has to say whether it may be changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_os.abi import frames
from agent_os.abi.doors import Memory
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EINVAL, EISDIR, ENOENT, EROFS, ESRCH
from agent_os.abi.syscalls import BY_REQUEST, Effect, Share
from agent_os.kernel import erasing, memories
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.calls import Act, Asked, Done, Stream, Way
from agent_os.kernel.journal import Draft
from agent_os.kernel.reading import apart
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Actor, bare, qualified
from agent_os.kernel.vfs import Root, normalise
from agent_os.kernel.vfs.backend import CHUNK, Change, Facts, check_version
from agent_os.kernel.vfs.directory import DirectoryBackend
from agent_os.kernel.vfs.root import Place
from agent_os.kernel.vfs.runs import INLINE
from agent_os.kernel.vfs.shares import SharedBackend
from agent_os.kernel.vfs.sources import Spool, Whole
from agent_os.kernel.vfs.stored import StoreBackend

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

MEM, WORK = "/mem", "/work"
MOST_LISTED, MOST_FOUND = 500, 100
IN_ONE_FRAME = 512 << 10  # bytes
_SEARCHED = 256 << 10  # bytes of each entry
_AT_ONCE = 64  # entries that are looked at before others have their turn
_AROUND = 60  # characters each side of a word that was found


class Row(NamedTuple):
    path: str
    facts: Facts
    writer: str
    label: Sequence[str]

    def told(self) -> dict[str, Any]:
        facts = self.facts
        said = {"path": self.path, "kind": facts.kind, "size": facts.size, "version": facts.version}
        return said | {"writer": self.writer, "modified": facts.modified, "text": facts.text, "labels": self.label}


def _memory(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request: Memory = asked.request
    agent = _who(kernel, request.agent)
    path = normalise(request.path, agent)
    if request.do == "read" and path.startswith(f"{WORK}/"):
        return _look(Desk(kernel, caller, agent, path, request).file, asked.stream)
    if path != MEM and not path.startswith(f"{MEM}/"):
        hint = f"agentctl work diff {bare(agent)} shows what it changed in files" if path.startswith("/work") else ""
        raise EINVAL("memory.path", f"{path} is not below {MEM}", hint=hint or "agentctl memory ls NAME")
    desk = Desk(kernel, caller, agent, path, request)
    match request.do:
        case "write":
            return desk.write(asked.stream)
        case "remove":
            return desk.change(Effect.IDEMPOTENT, {}, desk.removed)
        case "erase":
            return desk.erase()
        case "share":
            return desk.share()
        case _:
            pass
    looks = {"list": desk.list, "read": desk.read, "history": desk.history, "search": desk.search}
    looks["export"] = desk.export
    return _look(looks[request.do], asked.stream)


def _look(look: Callable[[Stream | None], Awaitable[Any]], stream: Stream | None) -> Act:
    """The record keeps that it was read, and not once more what was."""

    async def do() -> Done:
        value = await look(stream)
        kept = {key: one for key, one in value.items() if not isinstance(one, list) and key not in ("data", "entry")}
        return Done(value, kept=kept)

    return Act(do)


def _who(kernel: "Kernel", name: str) -> str:
    agent = qualified(name)
    if not kernel.store.aseq(agent) and kernel.table.row(agent) is None:
        raise ESRCH("agent.unknown", f"there is and was no agent {name!r}", hint="agentctl ps --all lists them")
    return agent


class Desk:
    """One request."""

    def __init__(self, kernel: "Kernel", caller: Actor, agent: str, path: str, request: Memory) -> None:
        self._kernel, self._caller, self._agent, self._path, self._request = kernel, caller, agent, path, request

    @property
    def _root(self) -> Root:
        return self._kernel.vfs.root(self._agent)

    # Looking.

    async def list(self, stream: Stream | None) -> dict[str, Any]:
        request = self._request
        if not 1 <= request.max <= MOST_LISTED:
            raise EINVAL("memory.max", f"a page has 1 to {MOST_LISTED} entries - at `$.max`")
        rows = await self._then() if self._asks_past() else self._rows()
        after = request.after
        found = [row.told() for row in islice((one for one in rows if one.path > after), request.max + 1)]
        more = len(found) > request.max
        found = found[: request.max]
        if not found and not after and self._path != MEM and not self._asks_past():
            self._require_there()
        return {"agent": bare(self._agent), "entries": found, "next": found[-1]["path"] if more else None}

    def _rows(self) -> Iterator[Row]:
        """As it is now: mounts in order of their names, which is the order of paths."""
        for at, backend, _ in sorted(self._root.backends()):
            if isinstance(backend, StoreBackend):
                yield from self._stored(at, backend)
            elif isinstance(backend, SharedBackend) and _meet(at, self._path):
                yield from self._shared(at, backend, "")

    def _stored(self, at: str, backend: StoreBackend) -> Iterator[Row]:
        if not _meet(at, self._path):
            return
        below = self._path[len(at) + 1 :] if self._path.startswith(f"{at}/") else ""
        for path, facts, by in backend.every(below):
            yield Row(f"{at}/{path}", facts, bare(by or self._agent), backend.label(path).words())

    def _shared(self, at: str, backend: SharedBackend, inner: str) -> Iterator[Row]:
        """What others lent it. The writer is told where that is theirs: in the owner's own list."""
        after = ""
        while True:
            page = backend.list(inner, after, MOST_LISTED)
            for one in page.entries:
                path = f"{inner}/{one.name}" if inner else one.name
                whole = f"{at}/{path}"
                if not _meet(whole, self._path):
                    continue
                if one.facts.kind == "directory":
                    yield from self._shared(at, backend, path)
                else:
                    owner = path.partition("/")[0].replace("~", "/")
                    yield Row(whole, one.facts, owner, backend.label(path).words())
            if not page.more:
                return
            after = page.entries[-1].name

    def _require_there(self) -> None:
        place = self._place()
        if place and place.backend.stat(place.inner) is None:
            raise ENOENT("memory.none", f"{bare(self._agent)} has no {self._path}", hint=self._hint())

    def _hint(self) -> str:
        return f"agentctl memory ls {bare(self._agent)}"

    def _place(self) -> Place | None:
        return self._root.find(self._path)

    def _entry(self) -> Place:
        place = self._place()
        if place is None or not place.inner:
            raise EISDIR("memory.directory", f"{self._path} is a directory", hint=f"{self._hint()} {self._path}")
        return place

    async def read(self, stream: Stream | None) -> dict[str, Any]:
        request, place = self._request, self._entry()
        version, state = request.version, None
        if self._asks_past():
            if version is not None:
                raise EINVAL("memory.when", "a version or a moment, one of them")
            state = (await self._past()).get(self._path)
            if state is None:
                raise ENOENT("memory.then", f"{bare(self._agent)} had no {self._path} {self._when()}")
            version = state.version
        return await self._content(place, version, state, stream)

    async def _content(
        self, place: Place, version: int | None, state: memories.State | None, stream: Stream | None
    ) -> dict[str, Any]:
        try:
            content = place.backend.read(place.inner, version)
        except ENOENT as error:
            if version is None or error.code not in ("vfs.version", "vfs.absent"):
                raise
            return await self._recorded(version, state, stream)
        facts, label = content.facts, place.backend.label(place.inner, version)
        writer = self._writer(place, facts.version)
        row = Row(self._path, facts, writer, (label or CLEAN).words()).told() | {"source": "store"}
        with _closing(content.close):
            if facts.size <= IN_ONE_FRAME or stream is None:
                return row | {"data": _shown(content.read(0, facts.size), facts.text)}
            for at in range(0, facts.size, CHUNK):
                await stream.send(content.read(at, min(CHUNK, facts.size - at)))
        return row | {"streamed": True}

    async def file(self, stream: Stream | None) -> dict[str, Any]:
        """Of the workspace, while its agent has one: on the directory's own thread, with its owner's rights."""
        if self._request.version is not None or self._asks_past():
            raise EINVAL("memory.when", "a directory keeps no old versions", hint=f"agentctl diff {bare(self._agent)}")
        place = self._root.find(self._path)
        if place is None or not isinstance(backend := place.backend, DirectoryBackend):
            raise ENOENT("memory.none", f"{bare(self._agent)} has no workspace now", hint=self._hint())

        def look() -> tuple[Facts, bytes]:
            content = backend.read(place.inner, None)
            with _closing(content.close):
                size = content.facts.size
                if size > IN_ONE_FRAME:
                    raise EINVAL("memory.large", f"{self._path} has {size} bytes: too many to be shown")
                return content.facts, content.read(0, size)

        facts, raw = await asyncio.wrap_future(backend.run(look))
        row = Row(self._path, facts, "", []).told()
        try:
            return row | {"text": True, "data": raw.decode(), "source": "directory"}
        except UnicodeDecodeError:
            return row | {"data": raw, "source": "directory"}

    def _writer(self, place: Place, version: int) -> str:
        backend = place.backend
        by = backend.writer(place.inner, version) if isinstance(backend, StoreBackend) else ""
        return bare(by or self._agent)

    async def _recorded(self, version: int, state: memories.State | None, stream: Stream | None) -> dict[str, Any]:
        """The store keeps that version no more; the record may still have all that it was made of."""
        kernel = self._kernel
        if state is None:
            rows = await apart(memories.history, kernel.journal, self._agent, self._path)
            state = next((one for _, one in reversed(rows) if one and one.version == version), None)
        found = state and await apart(memories.content, kernel.journal, kernel.store.blob, state)
        if state is None or found is None:
            reason = f"version {version} of {self._path} is gone: the store keeps the last ten"
            more = ", and the record does not have all of it" if state else ", and the record knows of none"
            raise ENOENT("memory.gone", reason + more, hint="agentctl memory history tells which can be read")
        data, text = found
        facts = Facts("file", state.size, state.version, state.at_ns, text)
        row = Row(self._path, facts, bare(state.by), []).told() | {"source": "record"}
        if len(data) <= IN_ONE_FRAME or stream is None:
            return row | {"data": _shown(data, text)}
        for at in range(0, len(data), CHUNK):
            await stream.send(data[at : at + CHUNK])
        return row | {"streamed": True}

    # The past.

    def _asks_past(self) -> bool:
        request = self._request
        if request.as_of is not None and request.as_of_ns is not None:
            raise EINVAL("memory.when", "as_of is a number of the journal, as_of_ns a time; give one of them")
        newest = self._kernel.store.size()
        if request.as_of is not None and not 0 <= request.as_of <= newest:
            raise EINVAL("memory.when", f"there is no entry {request.as_of} of the journal; the newest is {newest}")
        return request.as_of is not None or request.as_of_ns is not None

    def _when(self) -> str:
        return f"as of #{self._request.as_of}" if self._request.as_of is not None else "then"

    async def _past(self) -> dict[str, memories.State]:
        request = self._request
        return await apart(memories.past, self._kernel.journal, self._agent, seq=request.as_of, at_ns=request.as_of_ns)

    async def _then(self) -> Iterator[Row]:
        states = await self._past()
        chosen = sorted(path for path in states if path == self._path or path.startswith(f"{self._path}/"))
        return (_row_then(path, states[path]) for path in chosen)

    async def history(self, stream: Stream | None) -> dict[str, Any]:
        place = self._entry()
        if isinstance(place.backend, SharedBackend):
            raise EINVAL("memory.shared", f"{self._path} is another's; its history is in the owner's memory")
        rows = await apart(memories.history, self._kernel.journal, self._agent, self._path)
        kept = place.backend.kept(place.inner) if isinstance(place.backend, StoreBackend) else set[int]()
        told = [await self._told(change, state, kept) for change, state in reversed(rows[-self._most() :])]
        return {"agent": bare(self._agent), "path": self._path, "changes": told}

    def _most(self) -> int:
        if not 1 <= self._request.max <= MOST_LISTED:
            raise EINVAL("memory.max", f"a page has 1 to {MOST_LISTED} changes - at `$.max`")
        return self._request.max

    async def _told(self, change: memories.Change, state: memories.State | None, kept: set[int]) -> dict[str, Any]:
        source = ""
        if state and change.version in kept:
            source = "store"
        elif state:
            kernel = self._kernel
            there = await apart(memories.content, kernel.journal, kernel.store.blob, state)
            source = "record" if there else ""
        said = {"seq": change.seq, "at_ns": change.at_ns, "change": change.sort, "version": change.version}
        return said | {"size": change.size, "writer": bare(change.by), "source": source, "gone": not source}

    # Searching and taking away.

    async def search(self, stream: Stream | None) -> dict[str, Any]:
        words = self._request.query.lower().split()
        if not words:
            raise EINVAL(
                "memory.query", "which words? - at `$.query`", hint=f"agentctl memory search {self._agent} WORD"
            )
        found: list[dict[str, Any]] = []
        for number, row in enumerate(list(self._rows())):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)  # a search delays nobody
            if hit := self._hit(row, words):
                found.append(hit)
        found.sort(key=lambda one: (-one["hits"], one["path"]))
        return {"agent": bare(self._agent), "found": found[:MOST_FOUND], "more": len(found) > MOST_FOUND}

    def _hit(self, row: Row, words: Sequence[str]) -> dict[str, Any] | None:
        place = self._root.find(row.path)
        if place is None or place.backend.stat(place.inner) is None:  # removed meanwhile
            return None
        content = place.backend.read(place.inner, None)
        with _closing(content.close):
            raw = content.read(0, _SEARCHED) if row.facts.text else b""
        text = raw.decode(errors="ignore")
        low, name = text.lower(), row.path.lower()
        if not all(word in low or word in name for word in words):
            return None
        hits = sum(low.count(word) for word in words)
        at = min((found for word in words if (found := low.find(word)) >= 0), default=0)
        excerpt = text[max(0, at - _AROUND) : at + _AROUND] if hits else ""
        return row.told() | {"hits": hits, "excerpt": excerpt}

    async def export(self, stream: Stream | None) -> dict[str, Any]:
        if stream is None:
            raise EINVAL("stream", "there is no stream beside this call")
        past = await self._past() if self._asks_past() else None
        rows = list(await self._then() if past is not None else self._rows())
        size, gone = 0, list[str]()
        for row in rows:
            place = self._root.find(row.path)
            state = past[row.path] if past is not None else None
            one = Desk(self._kernel, self._caller, self._agent, row.path, self._request)
            if place is None:
                continue
            try:
                told = await one._content(place, row.facts.version, state, None)
            except ENOENT:
                gone.append(row.path)
                continue
            data = told.pop("data")
            raw = data.encode() if isinstance(data, str) else data
            await stream.send(["entry", told])
            for at in range(0, len(raw), CHUNK):
                await stream.send(["data", raw[at : at + CHUNK]])
            size += len(raw)
        return {"agent": bare(self._agent), "count": len(rows) - len(gone), "bytes": size, "gone": gone}

    # Changing.

    def write(self, stream: Stream | None) -> Act:
        request = self._request
        if not request.stream:
            if not isinstance(request.data, bytes | str):
                kind = type(request.data).__name__
                raise EINVAL("body", f"OP_MEMORY: expected bytes or text, got {kind} - at `$.data`")
            source = Whole(request.data)
            facts = _facts_of(source, request.data)
            return self.change(Effect.IDEMPOTENT, facts, lambda place: self._written(place, source))
        if stream is None:
            raise EINVAL("stream", "there is no stream beside this call")
        act = self.change(Effect.IDEMPOTENT, {"streamed": True}, lambda place: _never())

        async def receive() -> Done:
            spool = Spool()
            try:
                while (chunk := await stream.receive()) is not None:
                    spool.add(chunk)
                facts = {"digest": spool.digest, "size": spool.size, "text": spool.text}
                return self._made(act, facts, lambda place: self._written(place, spool))
            finally:
                spool.close()

        act.do = receive
        return act

    def change(self, effect: Effect, facts: dict[str, Any], make: Callable[[Place], Change]) -> Act:
        """`facts`: of the content, for the record, which keeps what is large by its hash."""
        request = self._request
        self._require_changeable(self._entry())
        said = {"do": request.do, "agent": self._agent, "path": self._path, "if_version": request.if_version}
        if request.do == "write":
            said |= {"mode": request.mode}
        act = Act(_nothing, (), Way.STORE, effect, said | facts)
        act.do = lambda: self._made(act, facts, make)
        return act

    def _made(self, act: Act, facts: dict[str, Any], make: Callable[[Place], Change]) -> Done:
        place = self._entry()
        made = make(place)
        act.answered = made.settled
        request = self._request
        said = {"event": memories.WRITTEN, "do": request.do, "path": self._path, "mode": request.mode, "by": self._by}
        body = frames.encode_body(said | {"version": made.version, "size": made.size} | _content_facts(facts))
        beside = [Draft(self._agent, Kind.CHANGE, body=body)]
        return Done({"version": made.version, "size": made.size}, made.puts, made.blobs, beside=beside)

    @property
    def _by(self) -> str:
        return self._caller.actor

    def _written(self, place: Place, source: Whole | Spool) -> Change:
        backend, request = _stored(place), self._request
        if request.mode == "append":
            return backend.append(place.inner, source, if_version=request.if_version, label=CLEAN, by=self._by)
        create = request.mode == "create"
        return backend.write(
            place.inner, source, create=create, if_version=request.if_version, label=CLEAN, by=self._by
        )

    def removed(self, place: Place) -> Change:
        return _stored(place).remove(place.inner, if_version=self._request.if_version, label=CLEAN)

    def erase(self) -> Act:
        """The entry, all that was, and what the record holds of it. First it is gone for everybody, then an entry says
        who erased what and why, then the bodies go. Broken off in between, it can be asked for again."""
        request, place = self._request, self._entry()
        self._require_changeable(place)
        if not request.reason.strip():
            raise EINVAL("memory.reason", "why? the record keeps a reason for what is erased - at `$.reason`")
        return Act(self._erased, can_stop=False)

    async def _erased(self) -> Done:
        kernel, place = self._kernel, self._entry()
        journal, backend, reason = kernel.journal, _stored(place), self._request.reason
        found = await self._traces()
        self._require_unneeded(found)
        facts = backend.stat(place.inner)
        check_version(place.inner, facts.version if facts else 0, self._request.if_version)
        contents = self._kept(place) | await asyncio.to_thread(self._recorded_contents)
        change, bodies = backend.erase(place.inner) or (None, set[bytes]())
        if change is None and not found.seqs:
            raise ENOENT("memory.none", f"{bare(self._agent)} has and had no {self._path}", hint=self._hint())
        told = {"event": memories.WRITTEN, "do": "erase", "path": self._path, "mode": "", "by": self._by, "size": 0}
        told |= {"version": change.version if change else 0, "reason": reason}
        draft = Draft(self._agent, Kind.CHANGE, body=frames.encode_body(told))
        await journal.record(draft, sync=True, puts=change.puts if change else ())
        if change and change.settled:
            change.settled()
        found = await self._traces()  # once more: it may have been written and read until this moment
        digests = [*(bodies | found.digests)]
        why = f"{bare(self._agent)} {self._path}: {reason}"
        await journal.erase([], agent=self._caller.id, why=why, seqs=found.seqs, unnamed=digests)
        kernel.vfs.erased(digests)
        shared = sum(kernel.store.blob(one) is not None for one in digests)  # somebody's memory has the same
        scrubbed = await journal.scrub()
        left = [
            {"seq": seq, "agent": bare(agent)}
            for seq, agent in (await asyncio.to_thread(erasing.left, journal, contents))[:MOST_FOUND]
        ]
        counts = {"entries": len(found.seqs), "bodies": len(digests) - shared, "shared": shared}
        return Done({**counts, "left": left, "scrubbed": scrubbed})

    async def _traces(self) -> erasing.Traces:
        return await asyncio.to_thread(erasing.traces, self._kernel.journal, self._agent, self._path)

    def _require_unneeded(self, found: erasing.Traces) -> None:
        """Whoever may have to start again is replayed from its record, and cannot be without it."""
        for agent in sorted(found.agents):
            order = self._kernel.store.get("agents", agent)
            if order is not None and decode_any(order).get("kind") == "native":
                name = bare(agent)
                reason = f"{name} lives, and if it must start again it goes by the very entries that would be erased"
                raise EBUSY("memory.needed", reason, hint=f"agentctl kill {name}, and then once more")

    def _kept(self, place: Place) -> set[bytes]:
        """What it was, version by version, to be looked for elsewhere: as the store has it."""
        backend, found = _stored(place), set[bytes]()
        for version in backend.kept(place.inner):
            content = backend.read(place.inner, version)
            with _closing(content.close):
                found.add(content.read(0, min(content.facts.size, _SEARCHED)))
        return found

    def _recorded_contents(self) -> set[bytes]:
        """And as the record has it."""
        journal, blob = self._kernel.journal, self._kernel.store.blob
        states = (state for _, state in memories.history(journal, self._agent, self._path) if state)
        return {one[0] for state in states if (one := memories.content(journal, blob, state))}

    def _require_changeable(self, place: Place) -> None:
        if not isinstance(place.backend, StoreBackend):
            reason = f"{self._path} is another's memory, which it was lent"
            raise EROFS("memory.shared", reason, hint="change it where it lies, in its owner's memory")

    def share(self) -> Act:
        request = self._request
        if not request.to:
            raise EINVAL("memory.to", "with whom? - at `$.to`")
        asked = Share(path=self._path, to=request.to, rights=request.rights, ttl_s=request.ttl_s, end=request.end)
        lending = self._kernel.vfs.share(self._root, asked)
        said = {"do": "share", "agent": self._agent, **lending.record}

        def do() -> Done:
            done = lending.do()
            assert isinstance(done, Done)
            told = {"event": memories.WRITTEN, **said, "by": self._by}
            done.beside = [Draft(self._agent, Kind.CHANGE, body=frames.encode_body(told))]
            return done

        return Act(do, (), Way.STORE, Effect.IDEMPOTENT, said)


class _closing:
    """An opened content is closed, whatever becomes of it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def __enter__(self) -> None:
        pass

    def __exit__(self, *problem: object) -> None:
        self._close()


def _meet(one: str, other: str) -> bool:
    """Whether one lies at or below the other, either way."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _row_then(path: str, state: memories.State) -> Row:
    return Row(path, Facts("file", state.size, state.version, state.at_ns), bare(state.by), [])


def _stored(place: Place) -> StoreBackend:
    assert isinstance(place.backend, StoreBackend)
    return place.backend


def _shown(raw: bytes, text: bool) -> bytes | str:
    return raw.decode() if text else raw


def _facts_of(source: Whole, data: bytes | str) -> dict[str, Any]:
    if source.size <= INLINE:
        return {"data": data}
    return {"digest": source.digest, "size": source.size, "text": source.text}


def _content_facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: facts[key] for key in ("data", "digest", "text") if key in facts}


def _nothing() -> Done:
    return Done()


def _never() -> Change:
    raise AssertionError("the data has yet to come")


PREPARE = {BY_REQUEST[Memory].number: _memory}
