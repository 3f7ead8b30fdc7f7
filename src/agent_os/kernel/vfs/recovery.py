"""Changes in real directories: what is written down before one begins, to tell afterwards whether it happened.

A replace may run again: the second time changes nothing. A replace with a condition, an append and a removal may not;
their record says what was there before, and `verify` compares it with what is there now. A killed append is taken back
before it runs again. What cannot be told is `unsure`, and a person decides.
"""

import asyncio
import hashlib
import weakref
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from agent_os.abi.syscalls import Effect, Remove, Write
from agent_os.kernel.calls import Act, Done, Way
from agent_os.kernel.vfs.backend import CHUNK, Change
from agent_os.kernel.vfs.directory import DirectoryBackend
from agent_os.kernel.vfs.root import Place
from agent_os.kernel.vfs.sources import Spool, Whole, encode

REMOVE = 24  # SYS_REMOVE


class Verified(Struct, frozen=True):
    state: Literal["done", "not_done", "unsure"]
    value: Any = None  # what to answer, if done
    reason: str = ""


_NOT_DONE = Verified("not_done")


def writing(backend: DirectoryBackend, place: Place, request: Write, source: Whole | Spool, *, streamed: bool) -> Act:
    """`source` is closed when it has been written."""
    if request.mode == "append":
        return _appending(backend, place, request, source, streamed=streamed)
    record = _record(place, request, source, streamed) | {"was": _version(backend, place)}
    repeatable = request.mode == "replace" and request.if_version is None and not streamed

    def make() -> Change:
        try:
            return backend.write(place.inner, source, create=request.mode == "create", if_version=request.if_version)
        finally:
            source.close()

    return _act(backend, place, "write", Effect.IDEMPOTENT if repeatable else Effect.VERIFIABLE, record, make)


def _appending(
    backend: DirectoryBackend,
    place: Place,
    request: Write,
    source: Whole | Spool,
    *,
    streamed: bool = False,
    before: int | None = None,
) -> Act:
    """`before` is where it was to begin when it was first decided; else it is decided now."""
    plan = backend.plan_append(place.inner, source.size) if before is None else None
    at = plan.begin if plan else before
    record = _record(place, request, source, streamed) | {"before": at}

    def make() -> Change:
        try:
            return backend.append(place.inner, source, if_version=request.if_version, at=at)
        finally:
            source.close()
            if plan:
                backend.drop_plan(plan)

    act = _act(backend, place, "write", Effect.VERIFIABLE, record, make)
    if plan:
        # A deed that the gate refuses is never done, only forgotten; then those behind it must not wait for it.
        weakref.finalize(make, backend.drop_plan, plan)
    return act


def upload_record(place: Place, request: Write) -> dict[str, Any]:
    """Of a write whose data has not come yet."""
    record: dict[str, Any] = {"path": place.path, "mode": request.mode, "if_version": request.if_version}
    record |= {"stream": True, **place.facts}
    if not isinstance(place.backend, DirectoryBackend):
        return record
    facts = place.backend.stat(place.inner)
    before = facts.size if facts and facts.kind == "file" else 0
    return record | {"was": _version(place.backend, place), "before": before}


def _record(place: Place, request: Write, source: Whole | Spool, streamed: bool) -> dict[str, Any]:
    """With the data, so that it can run again, unless that came as a stream."""
    record: dict[str, Any] = {"path": place.path, "mode": request.mode, "if_version": request.if_version}
    record |= place.facts
    return record | ({"digest": source.digest, "size": source.size} if streamed else {"data": request.data})


def removal(backend: DirectoryBackend, place: Place, request: Remove) -> Act:
    record = {"path": place.path, "if_version": request.if_version, "was": _version(backend, place), **place.facts}

    def make() -> Change:
        return backend.remove(place.inner, if_version=request.if_version)

    return _act(backend, place, "delete", Effect.VERIFIABLE, record, make)


def _version(backend: DirectoryBackend, place: Place) -> int:
    """0: nothing was there. Directories count as something of their own."""
    facts = backend.stat(place.inner)
    return 0 if facts is None else facts.version or 1


def _act(
    backend: DirectoryBackend,
    place: Place,
    action: str,
    effect: Effect,
    record: dict[str, Any],
    make: Callable[[], Change],
) -> Act:
    made: list[Change] = []

    async def do() -> Done:
        """Cancelled: the change goes on and is waited for by nobody. The caller must not cancel what has begun."""
        change = await asyncio.wrap_future(backend.run(make))
        made.append(change)
        return Done(None if action == "delete" else _answer(change.version, change.size, change.offset))

    def committed() -> None:
        for change in made:
            if change.settled:
                change.settled()

    needs = [place.need(action)]
    return Act(do, needs, Way.EFFECT, effect, record, can_stop=False, facts=place.facts, answered=committed)


def _answer(version: int, size: int, offset: int | None = None) -> dict[str, Any]:
    answer = {"version": version, "size": size}
    return answer if offset is None else answer | {"offset": offset}


def again(backend: DirectoryBackend, place: Place, op: int, record: dict[str, Any]) -> Act | None:
    if op == REMOVE:
        return removal(backend, place, Remove(path=record["path"], if_version=record["if_version"]))
    if "data" not in record:
        return None
    request = Write(path=record["path"], data=record["data"], mode=record["mode"], if_version=record["if_version"])
    if request.mode == "append":
        return _appending(backend, place, request, Whole(request.data), before=record["before"])
    return writing(backend, place, request, Whole(request.data), streamed=False)


def verify(backend: DirectoryBackend, place: Place, op: int, record: dict[str, Any]) -> Verified:
    """On the directory's thread, before anything else changes it."""
    if op == REMOVE:
        return _verify_removal(backend, place, record["was"])
    if "data" not in record and "digest" not in record:
        return _verify_unseen(backend, place, record)
    if record["mode"] == "append":
        return _verify_append(backend, place, record)
    return _verify_replace(backend, place, record)


def _verify_removal(backend: DirectoryBackend, place: Place, was: int) -> Verified:
    now = _version(backend, place)
    if was == now:
        return _NOT_DONE
    return Verified("done") if now == 0 else Verified("unsure", reason="something else is there now")


def _verify_unseen(backend: DirectoryBackend, place: Place, record: dict[str, Any]) -> Verified:
    """The data was still coming when its intent was written: all that can be told is whether anything changed."""
    if "was" in record and _version(backend, place) == record["was"]:
        return _NOT_DONE
    return Verified("unsure", reason="the file changed, and what was to be written is not known")


def _verify_replace(backend: DirectoryBackend, place: Place, record: dict[str, Any]) -> Verified:
    now = _version(backend, place)
    if now == record["was"]:
        return _NOT_DONE
    facts = backend.stat(place.inner)
    size, digest = _wanted(record)
    if facts and facts.kind == "file" and facts.size == size and _digest(backend, place, 0, size) == digest:
        return Verified("done", _answer(facts.version, size))
    return Verified("unsure", reason="the file is neither what it was nor what was to be written")


def _verify_append(backend: DirectoryBackend, place: Place, record: dict[str, Any]) -> Verified:
    before: int = record["before"]
    size, digest = _wanted(record)
    facts = backend.stat(place.inner)
    now = facts.size if facts and facts.kind == "file" else 0
    if now == before and (size or facts is None):
        return _NOT_DONE
    if facts and now >= before + size and _digest(backend, place, before, size) == digest:
        return Verified("done", _answer(facts.version, now, before))
    if before < now < before + size and "data" in record:
        begun = encode(record["data"])[: now - before]
        if _digest(backend, place, before, now - before) == hashlib.sha256(begun).digest():
            backend.take_back(place.inner, before)
            return _NOT_DONE
    return Verified("unsure", reason="the file changed in a way that this append does not explain")


def _wanted(record: dict[str, Any]) -> tuple[int, bytes]:
    if "data" not in record:
        return record["size"], record["digest"]
    raw = encode(record["data"])
    return len(raw), hashlib.sha256(raw).digest()


def _digest(backend: DirectoryBackend, place: Place, offset: int, length: int) -> bytes:
    content = backend.read(place.inner, None)
    try:
        digest = hashlib.sha256()
        while length > 0 and (part := content.read(offset, min(length, CHUNK))):
            digest.update(part)
            offset, length = offset + len(part), length - len(part)
        return digest.digest()
    finally:
        content.close()
