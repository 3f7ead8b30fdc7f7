"""Data beside a call: nobody gets or changes more of it than is allowed by then, and what it carries comes first."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.frames import Call, Chunk, Credit, End
from agent_os.abi.syscalls import BY_REQUEST, Body, Exec, Read, Share, Stat, Write
from agent_os.kernel.acting import UnderWay
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.handles import Clock
from agent_os.kernel.authority.labels import LABELS, unpacked, untrusted
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Agent
from agent_os.kernel.tooling import Tool
from agent_os.kernel.vfs.directory import DirectoryBackend
from kernel.authority.ruled import HEAD, rule, ruled
from peer import Peer, greeted, running, until

CAPS = ("mem:/mem/semantic/**:read,write,share", "file:/work/**:read,write")
STREAM = 900  # the number of the call that a test is about
MEMORY, FILE = "/mem/semantic/x", "/work/x"


def with_agent(home: Path, test: Callable[[Kernel, Agent, Peer], Awaitable[None]]) -> None:
    async def main() -> None:
        (home / "work").mkdir()
        home.chmod(0o700)
        async with running(home) as kernel:
            row, peer = await greeted(kernel, caps=CAPS)
            work = os.open(home / "work", os.O_PATH)
            row.files.mount_directory("/work", work)
            os.close(work)
            await test(kernel, row, peer)

    asyncio.run(main())


def begin(peer: Peer, request: Body) -> None:
    peer.say(Call(STREAM, BY_REQUEST[type(request)].number, frames.body(request)))


async def uploading(peer: Peer, path: str) -> None:
    """A write whose first half has come."""
    begin(peer, Write(path=path, data=b"", stream=True))
    peer.say(Chunk(STREAM, 0, frames.body(b"half")))
    while not isinstance(heard := await peer.hear(), Credit):  # it has taken the half
        assert heard is not None


def the_rest(peer: Peer) -> None:
    peer.say(Chunk(STREAM, 1, frames.body(b"more")), End(STREAM, 2))


async def end_of(peer: Peer) -> tuple[str, int]:
    """The code that the call ended with, and how many bytes came before that, all of them taken."""
    count = 0
    while True:
        heard = await peer.hear()
        assert heard is not None, "the kernel closed the connection"
        if isinstance(heard, Chunk):
            count += len(bytes(heard.data))
            peer.say(Credit(STREAM, len(bytes(heard.data))))
        elif isinstance(heard, frames.Error) and heard.id == STREAM:
            return frames.to_error(heard).code, count
        elif isinstance(heard, End) and heard.id == STREAM:
            return frames.to_error(heard.error).code if heard.error else "", count
        elif isinstance(heard, frames.Reply) and heard.id == STREAM:
            return "", count


async def is_there(kernel: Kernel, row: Agent, path: str) -> bool:
    place = kernel.vfs.root(row.id).find(path)
    assert place is not None
    return await asyncio.to_thread(place.backend.stat, place.inner) is not None


def forbid(path: str, action: str) -> str:
    return rule("forbid", f"{'mem' if path.startswith('/mem') else 'file'}:{path}:{action}")


def outcomes(kernel: Kernel, row: Agent) -> list[tuple[Kind, int]]:
    kernel.journal.put_now(Draft("kernel", Kind.STATE), sync=False)  # with all that was put before
    ends = (Kind.OUTCOME, Kind.RESULT, Kind.DECISION)
    return [(Kind(one.kind), one.op) for one, _ in kernel.journal.scan(row.id) if one.kind in ends]


# A write whose data is still coming.


@pytest.mark.parametrize("path", [MEMORY, FILE])
@pytest.mark.parametrize("forbidden", [True, False])
def test_a_rule_that_came_before_the_last_data_stops_a_streamed_write(
    tmp_path: Path, path: str, forbidden: bool
) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        await uploading(peer, path)
        ruled(kernel, forbid(path if forbidden else f"{path}y", "write"))
        the_rest(peer)
        assert (await end_of(peer))[0] == ("policy.forbid" if forbidden else "")
        assert await is_there(kernel, row, path) is not forbidden
        assert outcomes(kernel, row) == [(Kind.OUTCOME, 2)]
        assert not row.quarantined, "it was allowed when it began"

    with_agent(tmp_path, test)


def test_a_rule_that_asks_now_is_not_answered_by_what_was_allowed_before(tmp_path: Path) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        await uploading(peer, MEMORY)
        ruled(kernel, rule("ask", f"mem:{MEMORY}:write"))
        the_rest(peer)
        assert (await end_of(peer))[0] == "approval.changed"
        assert not await is_there(kernel, row, MEMORY)

    with_agent(tmp_path, test)


def test_a_capability_that_expired_before_the_last_data_is_none(tmp_path: Path) -> None:
    now = [1000.0]

    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        row.holdings.clock = Clock(wall=lambda: now[0])
        for handle in row.holdings:
            if not handle.starting:
                handle.expiry = 2_000_000
        await uploading(peer, MEMORY)
        now[0] = 3000.0
        the_rest(peer)
        assert (await end_of(peer))[0] == "cap.expired"
        assert not await is_there(kernel, row, MEMORY)

    with_agent(tmp_path, test)


@pytest.mark.parametrize("how", ["deadline", "cancel", "revocation"])
def test_a_write_that_has_begun_is_waited_for_and_recorded_as_it_ended(tmp_path: Path, how: str) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        backend, go_on = row.files.backend("/work"), threading.Event()
        assert isinstance(backend, DirectoryBackend)
        request = Write(path=FILE, data=b"", stream=True)
        peer.say(Call(STREAM, BY_REQUEST[Write].number, frames.body(request), deadline_ms=600_000))
        peer.say(Chunk(STREAM, 0, frames.body(b"half")))
        while not isinstance(await peer.hear(), Credit):
            pass
        backend.run(go_on.wait)  # whoever writes there has its turn after this
        the_rest(peer)
        [handle] = [one for one in row.holdings if one.capability.kind == "file"]
        [under_way] = handle.opened
        assert isinstance(under_way, UnderWay)
        await until(lambda: not under_way.passing.act.can_stop)
        if how == "revocation":
            revoking = asyncio.create_task(kernel.authority.revoke([handle], "local:0"))
            await until(lambda: handle.revoked)
            go_on.set()
            await revoking
        elif how == "cancel":
            peer.say(frames.Cancel(STREAM))
            await until(lambda: under_way.passing.given_up)
            go_on.set()
        else:
            limit = under_way.passing.limit
            assert limit is not None
            assert limit.when() is None, "no deadline cuts it off any more"
            go_on.set()
        assert (await end_of(peer))[0] == ("cancelled" if how == "cancel" else "")
        assert outcomes(kernel, row) == [(Kind.OUTCOME, 2)]
        assert (tmp_path / "work/x").read_bytes() == b"halfmore"

    with_agent(tmp_path, test)


# What a reload finds under way.


async def reloaded(kernel: Kernel, *rules: str) -> None:
    assert kernel.home
    (kernel.home / "policy.toml").write_text(HEAD.format(mode="strict") + "".join(rules))
    await kernel.governing.reload("local:0")


@pytest.mark.parametrize("path", [MEMORY, FILE])
def test_a_reload_that_forbids_a_streamed_write_ends_it_before_it_returns(tmp_path: Path, path: str) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        await uploading(peer, path)
        await reloaded(kernel, forbid(f"{path}y", "write"))
        assert outcomes(kernel, row) == [], "it is about something else"
        await reloaded(kernel, forbid(path, "write"))
        await until(lambda: outcomes(kernel, row) == [(Kind.OUTCOME, 2)])
        assert (await end_of(peer))[0] == "policy.forbid"
        assert not await is_there(kernel, row, path)
        assert not row.quarantined

    with_agent(tmp_path, test)


@pytest.mark.parametrize("forbidden", ["slow", "other"])
def test_a_reload_cuts_off_a_tool_that_it_forbids_and_no_other(tmp_path: Path, forbidden: str) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        began, go_on, ended = asyncio.Event(), asyncio.Event(), list[str]()

        async def run(key: str, params: Any) -> Any:
            began.set()
            try:
                await go_on.wait()
                ended.append("done")
            except asyncio.CancelledError:
                ended.append("cut")
                raise

        kernel.tools.register(Tool("slow", run))
        kernel.authority.grant_now(row.id, parse("tool:slow:call"), "local:0")
        begin(peer, Exec(tool="slow"))
        await began.wait()
        await reloaded(kernel, rule("forbid", f"tool:{forbidden}:call"))
        go_on.set()
        assert (await end_of(peer))[0] == ("policy.forbid" if forbidden == "slow" else "")
        assert ended == ["cut" if forbidden == "slow" else "done"]

    with_agent(tmp_path, test)


# A read in pieces.


async def stored(peer: Peer, path: str, pieces: int = 8) -> None:
    for _ in range(pieces):
        await peer.ask(Write(path=path, data=b"x" * (256 << 10), mode="append"))


async def reading(peer: Peer, path: str) -> None:
    """A read whose first piece has come."""
    begin(peer, Read(path=path))
    while not isinstance(heard := await peer.hear(), Chunk):
        assert heard is not None


@pytest.mark.parametrize("path", [MEMORY, FILE])
@pytest.mark.parametrize("forbidden", [True, False])
def test_a_streamed_read_ends_at_the_next_piece_after_a_rule_forbids_it(
    tmp_path: Path, path: str, forbidden: bool
) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        await stored(peer, path)
        await reading(peer, path)
        ruled(kernel, forbid(path if forbidden else f"{path}y", "read"))
        code, count = await end_of(peer)
        assert code == ("policy.forbid" if forbidden else "")
        assert (count < 1 << 20) is forbidden, "no more than was on its way"

    with_agent(tmp_path, test)


@pytest.mark.parametrize("ended", ["share", "rule", "reload", ""])
def test_a_read_that_rests_on_a_share_alone_ends_with_it(tmp_path: Path, ended: str) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        friend, theirs = await greeted(kernel, "friend")
        await stored(peer, MEMORY)
        lent = (await peer.ask(Share(path=MEMORY, to="friend")))["path"]
        await reading(theirs, lent)
        if ended == "share":
            await peer.ask(Share(path=MEMORY, to="friend", end=True))
        elif ended == "rule":
            ruled(kernel, forbid(lent, "read"))
        elif ended == "reload":
            await reloaded(kernel, forbid(lent, "read"))
            assert (Kind.RESULT, 1) in outcomes(kernel, friend), "it has ended by now"
        code, count = await end_of(theirs)
        assert code == {"share": "cap.missing", "": ""}.get(ended, "policy.forbid")
        assert (count < 1 << 20) is bool(ended)

    with_agent(tmp_path, test)


def test_whoever_reads_in_pieces_carries_what_it_reads_before_the_first(tmp_path: Path) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        labels, theirs = kernel.authority.labels, untrusted("http:evil.example", "private", "customer")
        friend, reader = await greeted(kernel, "friend")
        labels.take_in(row.id, theirs)
        await stored(peer, MEMORY)
        lent = (await peer.ask(Share(path=MEMORY, to="friend")))["path"]
        assert not labels.of(friend.id).classes
        await reading(reader, lent)
        assert labels.of(friend.id).classes == {"private", "customer"}
        assert unpacked(kernel.store.get(LABELS, friend.id)) == labels.of(friend.id), "it survives a crash"
        [told] = [entry.label for entry, _ in kernel.journal.scan(friend.id) if entry.kind == Kind.LABEL]
        assert told == labels.of(friend.id).words(), "and is on the record"
        await reader.ask(Write(path="/mem/working/copy", data=b"x"))
        assert "customer" in str((await reader.ask(Stat(path="/mem/working/copy")))["labels"])

    with_agent(tmp_path, test)


def test_who_carries_it_already_leaves_no_further_entry(tmp_path: Path) -> None:
    async def test(kernel: Kernel, row: Agent, peer: Peer) -> None:
        await stored(peer, MEMORY)
        for _ in range(2):
            begin(peer, Read(path=MEMORY))
            assert (await end_of(peer))[0] == ""
        assert Kind.LABEL not in [entry.kind for entry, _ in kernel.journal.scan(row.id)]

    with_agent(tmp_path, test)
