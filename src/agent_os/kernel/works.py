"""Kept work for whoever asks through a door: states listed, looked at, committed, discarded, copied.

In: requests by name, or by the directory somebody is in. Out: plain maps, and long lists as chunks of a stream. All
deciding is `workspace`'s; everything that touches a disk is done in a thread.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from agent_os.abi import frames
from agent_os.abi.syscalls import Work
from agent_os.abi.text import native, portable
from agent_os.kernel.calls import Stream
from agent_os.kernel.table import as_file, from_file
from agent_os.kernel.workspace import Workspace, Workspaces, digest
from agent_os.kernel.workspace.changes import Change
from agent_os.kernel.workspace.landing import Report

_PIECE = 48 << 10  # bytes of one chunk, more or less
_PROGRESS_S = 1.0
Judge = Callable[[str, Path], Callable[[Change], Change]]


def find(home: Path, name: str, directory: str | bytes = "") -> Workspace:
    kept = Workspaces(home)
    return kept.open(as_file(name)) if name else kept.latest(Path(native(directory)) if directory else None)


def copy(home: Path, name: str, as_name: str) -> Workspace:
    """Keep the state of an ended agent under another name."""
    kept = Workspaces(home)
    origin = kept.open(as_file(name))
    with origin.hold(shared=True):
        return kept.copy(origin, name=as_name, agent_uid=origin.meta.agent_uid, keep=True)


async def do(home: Path, request: Work, stream: Stream, judge: Judge) -> dict[str, Any]:
    """`judge`: what the rules say of changes, by workspace name and project."""
    if request.do == "list":
        found = await asyncio.to_thread(Workspaces(home).list)
        await send(stream, "states", (_state(one) for one in found))
        return {}
    workspace = await asyncio.to_thread(find, home, request.name, request.directory)
    if request.do == "diff":
        return await _diff(workspace, request, stream, judge)
    if request.do == "commit":
        return await _commit(workspace, request, stream, judge)
    changes = await asyncio.to_thread(workspace.diff)
    if not request.dry_run:
        await asyncio.to_thread(workspace.discard)
    return {**about(workspace), "counts": counts(changes)}


async def _diff(workspace: Workspace, request: Work, stream: Stream, judge: Judge) -> dict[str, Any]:
    changes = await asyncio.to_thread(lambda: [*map(judge(workspace.agent, workspace.project), workspace.diff())])
    await send(stream, "changes", map(entry, changes))
    if request.patch:
        for index, change in enumerate(changes):
            text = await asyncio.to_thread(workspace.patch, change)
            for at in range(0, len(text), _PIECE // 4):
                await stream.send(["patch", index, text[at : at + _PIECE // 4]])
    running = await asyncio.to_thread(lambda: workspace.running)
    return {**about(workspace), "running": running, "digest": digest(changes)}


async def _commit(workspace: Workspace, request: Work, stream: Stream, judge: Judge) -> dict[str, Any]:
    written = 0

    def step(_change: Change) -> None:
        nonlocal written
        written += 1

    def commit() -> tuple[Report, bool]:
        paths = [native(path) for path in request.paths]
        report = workspace.commit(
            allow_protected=request.allow_protected,
            paths=paths or None,
            dry_run=request.dry_run,
            expect=request.digest,
            progress=step,
            judge=judge(workspace.agent, workspace.project),
        )
        removed = report.complete and not paths
        if removed:
            workspace.discard()
        return report, removed

    working = asyncio.create_task(asyncio.to_thread(commit))
    while not (await asyncio.wait([working], timeout=_PROGRESS_S))[0]:
        await stream.send(["progress", written])
    report, removed = working.result()
    await send_report(stream, report)
    return {**about(workspace), "dry_run": report.dry_run, "complete": report.complete, "removed": removed}


# As maps.


def about(workspace: Workspace) -> dict[str, Any]:
    meta = workspace.meta
    project = portable(meta.project)
    return {"workspace": from_file(workspace.name), "mode": meta.mode, "project": project, "snapshot": meta.snapshot}


def _state(workspace: Workspace) -> dict[str, Any]:
    kind = "snapshot" if workspace.meta.snapshot else "running" if workspace.running else "ended"
    return {**about(workspace), "kind": kind, "created": workspace.meta.born / 1e9}


def entry(change: Change) -> dict[str, Any]:
    return {
        "path": portable(change.path),
        "shown": change.shown,
        "kind": change.kind,
        "type": change.type,
        "size": change.size,
        "mode": change.mode,
        "sha256_old": change.sha256_old,
        "sha256_new": change.sha256_new,
        "protected": change.protected,
        "refused": change.refused,
    }


def counts(changes: Iterable[Change]) -> dict[str, int]:
    found = list(changes)
    kinds = Counter[str](change.kind for change in found)
    return {**kinds, "protected": sum(c.protected for c in found), "refused": sum(bool(c.refused) for c in found)}


async def send_report(stream: Stream, report: Report) -> None:
    for name in ("committed", "withheld", "refused", "failed"):
        await send(stream, name, map(entry, getattr(report, name)))
    conflicts = ({**entry(one.change), "code": one.code, "reason": one.reason} for one in report.conflicts)
    await send(stream, "conflicts", conflicts)


async def send(stream: Stream, what: str, entries: Iterable[dict[str, Any]]) -> None:
    """A list of any length, in chunks of a bearable size."""
    batch: list[dict[str, Any]] = []
    size = 0
    for one in entries:
        batch.append(one)
        size += len(frames.encode_body(one))
        if size > _PIECE:
            await stream.send([what, batch])
            batch, size = [], 0
    if batch:
        await stream.send([what, batch])
