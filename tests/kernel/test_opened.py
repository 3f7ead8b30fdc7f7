"""Revoking closes what the capability opened before it returns: runs, streams, files, watches, questions."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EBADF, EBUDGET, EPERM, ETIMEDOUT, AgentOSError
from agent_os.abi.frames import Call, Reply
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import BY_REQUEST, Effect, Exec, Open, Read, Remove, Share, Spawn, Watch, Write
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.handles import Clock, Handle
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import Recorded
from agent_os.kernel.table import Agent, Ended
from agent_os.kernel.tooling import Tool
from agent_os.kernel.vfs.shares import Share as Lent
from kernel.authority.ruled import HEAD, rule, ruled
from peer import Peer, greeted, running, until, with_kernel

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")

BIG = "x" * (4 << 20)  # more than a peer has given credit for


decode_share = msgspec.msgpack.Decoder(Lent).decode


class Slow:
    """A tool that ends when it is told to, and notes if it is cut off."""

    def __init__(self, effect: Effect = Effect.OPAQUE) -> None:
        self.began, self.cut, self.ended = asyncio.Event(), False, False
        self.go_on = asyncio.Event()
        self.tool = Tool("slow", self._run, effect)

    async def _run(self, key: str, params: Any) -> Any:
        self.began.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cut = True
            raise
        self.ended = True
        return "done"


async def granted(kernel: Kernel, row: Agent, text: str) -> Handle:
    return await kernel.authority.grant(row.id, parse(text), "local:0")


async def refusal(asking: Any) -> AgentOSError:
    with pytest.raises(AgentOSError) as caught:
        await asking
    return caught.value


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.OPAQUE, Effect.IDEMPOTENT])
def test_a_tool_run_is_cut_off_before_the_revocation_returns(effect: Effect) -> None:
    async def test(kernel: Kernel) -> None:
        slow = Slow(effect)
        kernel.tools.register(slow.tool)
        row, peer = await greeted(kernel)
        handle = await granted(kernel, row, "tool:slow:call")
        asking = asyncio.create_task(peer.ask(Exec(tool="slow")))
        await slow.began.wait()
        assert len(handle.opened) == 1
        gone = await kernel.authority.revoke([handle], "local:0")
        assert slow.cut, "it is over when this returns"
        assert len(gone.opened) == 1
        error = await refusal(asking)
        assert (error.name, error.code) == ("EACCES", "cap.revoked")
        kinds = [Kind(entry.kind) for entry, _ in kernel.journal.scan(row.id)]
        assert Kind.REVOKE in kinds
        assert kinds[-1] in (Kind.OUTCOME, Kind.RESULT), "how it ended is on the record"

    with_kernel(test)


def test_a_run_that_ended_by_itself_is_open_no_more() -> None:
    async def test(kernel: Kernel) -> None:
        slow = Slow()
        kernel.tools.register(slow.tool)
        slow.go_on.set()
        row, peer = await greeted(kernel)
        handle = await granted(kernel, row, "tool:slow:call")
        assert await peer.ask(Exec(tool="slow")) == "done"
        assert not handle.opened

    with_kernel(test)


def test_a_stream_that_is_being_read_ends() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        handle = await granted(kernel, row, "mem:/mem/semantic/**:read,write")
        await _upload(peer, "/mem/semantic/big", BIG)
        peer.say(Call(900, BY_REQUEST[Read].number, frames.body(Read(path="/mem/semantic/big"))))
        await until(lambda: bool(handle.opened))
        await kernel.authority.revoke([handle], "local:0")
        while not isinstance(heard := await peer.hear(), frames.End):
            assert heard is not None
        assert heard.error, "it was cut off"
        assert frames.to_error(heard.error).code == "cap.revoked"

    with_kernel(test)


async def _upload(peer: Peer, path: str, data: str) -> None:
    """In pieces that one frame holds."""
    for at in range(0, len(data), 256 << 10):
        await peer.ask(Write(path=path, data=data[at : at + (256 << 10)], mode="append"))


def test_a_write_whose_data_is_still_coming_ends_and_nothing_is_written() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        handle = await granted(kernel, row, "mem:/mem/semantic/**:write")
        peer.say(Call(7, BY_REQUEST[Write].number, frames.body(Write(path="/mem/semantic/x", data="", stream=True))))
        peer.say(frames.Chunk(7, 0, frames.body("half")))
        await until(lambda: bool(handle.opened))
        await kernel.authority.revoke([handle], "local:0")
        while not isinstance(heard := await peer.hear(), frames.Error):
            assert heard is not None
        assert frames.to_error(heard).code == "cap.revoked"
        place = kernel.vfs.root(row.id).find("/mem/semantic/x")
        assert place is not None
        assert place.backend.stat(place.inner) is None

    with_kernel(test)


MEMORY = "mem:/mem/semantic/**:read,write,share"


async def lending(kernel: Kernel, text: str = MEMORY) -> tuple[Handle, Agent, Peer, Peer]:
    """One that lends all below /mem/semantic/plans for writing, and one that it lends it to."""
    row, owner = await greeted(kernel, "a")
    _, receiver = await greeted(kernel, "b")
    handle = await granted(kernel, row, text)
    for name in ("plans/x", "plans/secret"):
        await owner.ask(Write(path=f"/mem/semantic/{name}", data="y"))
    await owner.ask(Share(path="/mem/semantic/plans", to="b", rights="rw"))
    assert (await receiver.ask(Read(path="/mem/shared/a/plans/x")))["data"] == "y"
    return handle, row, owner, receiver


def test_what_an_owner_lent_ends_with_the_capability_that_it_lent_by() -> None:
    async def test(kernel: Kernel) -> None:
        handle, row, _, receiver = await lending(kernel)
        opened = (await receiver.ask(Open(path="/mem/shared/a/plans/x", flags="r")))["handle"]
        await kernel.authority.revoke([handle], "local:0")
        for request in (
            Read(path="/mem/shared/a/plans/x"),
            Read(handle=opened),
            Write(path="/mem/shared/a/plans/x", data="z"),
        ):
            assert (await refusal(receiver.ask(request))).code == "cap.missing"
        await granted(kernel, row, MEMORY)
        assert (await refusal(receiver.ask(Read(path="/mem/shared/a/plans/x")))).code == "cap.missing", "not again"
        assert not list(kernel.store.items("vfs.shares"))

    with_kernel(test)


def test_what_an_owner_may_only_read_any_more_is_not_written_by_its_share() -> None:
    async def test(kernel: Kernel) -> None:
        _, row, owner, receiver = await lending(kernel)
        await granted(kernel, row, "mem:/mem/semantic/**:read,share")
        await kernel.authority.revoke([one for one in row.holdings if "write" in one.capability.actions], "local:0")
        assert (await refusal(receiver.ask(Write(path="/mem/shared/a/plans/x", data="z")))).code == "cap.missing"
        await owner.ask(Share(path="/mem/semantic/plans", to="b"))
        assert (await receiver.ask(Read(path="/mem/shared/a/plans/x")))["data"] == "y"

    with_kernel(test)


def test_what_an_owner_lent_ends_when_its_capability_has_expired() -> None:
    async def test(kernel: Kernel) -> None:
        _, row, _, receiver = await lending(kernel, f"{MEMORY}{{expiry:1h}}")
        row.holdings.clock = Clock(lambda: time.time() + 7200)
        assert (await refusal(receiver.ask(Read(path="/mem/shared/a/plans/x")))).code == "cap.missing"

    with_kernel(test)


def test_what_is_done_with_a_share_is_charged_to_its_owner() -> None:
    async def test(kernel: Kernel) -> None:
        handle, _, _, receiver = await lending(kernel, f"{MEMORY}{{bytes:100}}")
        path, used = "/mem/shared/a/plans/x", handle.used["bytes"]
        await receiver.ask(Write(path=path, data="z" * 50))
        assert handle.used["bytes"] == used + 50
        assert (await refusal(receiver.ask(Write(path=path, data="z" * 51)))).code == "budget.bytes"
        peer_says = Write(path=path, data="", stream=True)
        receiver.say(Call(900, BY_REQUEST[Write].number, frames.body(peer_says)))
        receiver.say(frames.Chunk(900, 0, frames.body("z" * 51)), frames.End(900, 1))
        while not isinstance(heard := await receiver.hear(), frames.Error):
            assert heard is not None
        assert frames.to_error(heard).code == "budget.bytes"
        assert len((await receiver.ask(Read(path=path, length=1)))["data"]) == 1

    with_kernel(test)


def test_nobody_writes_for_an_owner_what_it_would_be_asked_about() -> None:
    async def test(kernel: Kernel) -> None:
        *_, receiver = await lending(kernel)
        ruled(kernel, rule("ask", "mem:/mem/semantic/plans/x:write", agents='["a"]'))
        assert (await refusal(receiver.ask(Write(path="/mem/shared/a/plans/x", data="z")))).code == "cap.missing"
        await receiver.ask(Write(path="/mem/shared/a/plans/secret", data="z"))
        assert not kernel.approvals.pending()

    with_kernel(test)


@pytest.mark.parametrize(("limit", "lasts"), [("", True), ("{expiry:1h}", True), ("{bytes:1000}", False)])
def test_a_share_outlives_its_owner_but_not_the_owners_capability(limit: str, lasts: bool) -> None:
    async def test(kernel: Kernel) -> None:
        handle, row, _, receiver = await lending(kernel, MEMORY + limit)
        await kernel.left(row, Ended(ExitClass.NORMAL, 0))
        path = "/mem/shared/a/plans/x"
        if lasts:
            assert (await receiver.ask(Read(path=path)))["data"] == "y"
        else:
            assert (await refusal(receiver.ask(Read(path=path)))).code == "cap.missing", "nobody would count it"
        ends = [decode_share(raw).expires for _, raw in kernel.store.items("vfs.shares")]
        assert ends == ([handle.expiry * 10**6 if handle.expiry else None] if lasts else [])

    with_kernel(test)


def test_nobody_lends_what_it_may_not_do_itself(tmp_path: Path) -> None:
    async def test() -> None:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        async with running(home) as kernel:
            *_, receiver = await lending(kernel)
            removing = Remove(path="/mem/shared/a/plans/x")
            assert (await refusal(receiver.ask(removing))).code == "cap.missing", "nor what it has no capability for"
            forbid = rule("forbid", "mem:/mem/semantic/plans/secret:read", agents='["a"]')
            (home / "policy.toml").write_text(HEAD.format(mode="strict") + forbid)
            await kernel.governing.reload("local:0")
            assert (await refusal(receiver.ask(Read(path="/mem/shared/a/plans/secret")))).code == "cap.missing"
            assert (await receiver.ask(Read(path="/mem/shared/a/plans/x")))["data"] == "y"
            forbid = rule("forbid", "mem:/mem/semantic/plans:share", agents='["a"]')
            (home / "policy.toml").write_text(HEAD.format(mode="strict") + forbid)
            await kernel.governing.reload("local:0")
            assert (await refusal(receiver.ask(Read(path="/mem/shared/a/plans/x")))).code == "cap.missing"
            assert not list(kernel.store.items("vfs.shares"))

    asyncio.run(test())


def test_what_somebody_lent_who_has_ended_stays_lent_unless_a_rule_forbids_it() -> None:
    async def test(kernel: Kernel) -> None:
        _, row, _, receiver = await lending(kernel)
        await kernel.end(row, Ended(ExitClass.REQUESTED, -1, "over"))
        assert (await receiver.ask(Read(path="/mem/shared/a/plans/x")))["data"] == "y"
        ruled(kernel, rule("forbid", "mem:/mem/semantic/**:read", agents='["a"]'))
        assert (await refusal(receiver.ask(Read(path="/mem/shared/a/plans/x")))).code == "cap.missing"

    with_kernel(test)


def test_open_files_and_watches_are_shut_and_others_stay() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        handle = await granted(kernel, row, "mem:/mem/semantic/**:read,write")
        for path in ("/mem/semantic/x", "/mem/working/x"):
            await peer.ask(Write(path=path, data="y"))
            await peer.ask(Watch(path=path))
        theirs = (await peer.ask(Open(path="/mem/semantic/x", flags="r")))["handle"]
        own = (await peer.ask(Open(path="/mem/working/x", flags="rw")))["handle"]
        assert (await peer.ask(Read(handle=theirs)))["data"] == "y"
        await kernel.authority.revoke([handle], "local:0")
        with pytest.raises(EBADF):
            await peer.ask(Read(handle=theirs))
        assert (await peer.ask(Read(handle=own)))["data"] == "y"
        assert list(kernel.vfs.root(row.id).watches.all()) == ["/mem/working/x"]

    with_kernel(test)


def test_what_was_shut_stays_shut_after_a_restart_and_what_was_open_before_it_is_shut_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    async def first(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        await granted(kernel, row, "mem:/mem/semantic/**:read,write")
        await peer.ask(Write(path="/mem/semantic/x", data="y"))
        await peer.ask(Watch(path="/mem/semantic"))

    async def second(kernel: Kernel) -> None:
        row, _ = await greeted(kernel)
        assert list(kernel.vfs.root(row.id).watches.all()) == ["/mem/semantic"]
        (handle,) = [one for one in row.holdings if not one.starting]
        await kernel.authority.revoke([handle], "local:0")
        assert not kernel.vfs.root(row.id).watches.all()

    async def third(kernel: Kernel) -> None:
        row, _ = await greeted(kernel)
        assert not kernel.vfs.root(row.id).watches.all()

    for test in (first, second, third):
        with_kernel(test, tmp_path)


def test_a_watch_tells_nothing_of_what_its_capability_covered_once() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        watched = Watch(path="/mem/semantic")
        own = await granted(kernel, row, "mem:/mem/semantic/**:write")
        await granted(kernel, row, "mem:/mem/semantic/**:read{expiry:1h}")
        await peer.ask(watched)
        await peer.ask(Write(path="/mem/semantic/x", data="1"))
        await until(lambda: _notices(kernel, row) == 1)
        row.holdings.clock = Clock(lambda: time.time() + 7200)
        await peer.ask(Write(path="/mem/semantic/x", data="2"))
        await peer.ask(Write(path="/mem/semantic/x", data="3"))
        assert _notices(kernel, row) == 1
        assert not own.revoked

    with_kernel(test)


def test_a_watch_of_a_folder_tells_nothing_of_what_a_rule_forbids_to_read_there() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel, "a", ("mem:/mem/semantic/**:read,write",))
        ruled(kernel, rule("forbid", "mem:/mem/semantic/secret/**:read"))
        await peer.ask(Watch(path="/mem/semantic", recursive=True))
        await peer.ask(Write(path="/mem/semantic/secret/name", data="1"))
        await peer.ask(Write(path="/mem/semantic/other", data="1"))
        await until(lambda: _notices(kernel, row) == 1)
        (told,) = [kept for entry, kept in kernel.journal.scan(row.id) if entry.kind == Kind.DELIVER]
        assert told
        assert b"/mem/semantic/other" in told

    with_kernel(test)


def _notices(kernel: Kernel, row: Agent) -> int:
    return sum(entry.kind == Kind.DELIVER for entry, _ in kernel.journal.scan(row.id))


def test_a_call_that_waits_for_a_person_is_cancelled() -> None:
    async def test(kernel: Kernel) -> None:
        slow = Slow()
        kernel.tools.register(slow.tool)
        row, peer = await greeted(kernel)
        handle = await granted(kernel, row, "tool:slow:call")
        usual = kernel.tools.prepare

        def asking_first(*words: Any, **more: Any) -> Any:
            act = usual(*words, **more)
            act.ask = "it is slow"
            return act

        kernel.tools.prepare = asking_first  # type: ignore[method-assign]
        asking = asyncio.create_task(peer.ask(Exec(tool="slow")))
        await until(lambda: bool(kernel.approvals.pending()))
        (question,) = kernel.approvals.pending()
        await kernel.authority.revoke([handle], "local:0")
        error = await refusal(asking)
        assert (error.name, error.detail["outcome"]) == ("EAPPROVAL", "cancelled")
        assert kernel.approvals.find(question.id).state == "cancelled"
        assert not handle.opened
        assert not slow.began.is_set()

    with_kernel(test)


def test_a_quarantine_cuts_off_what_is_under_way() -> None:
    async def test(kernel: Kernel) -> None:
        slow = Slow()
        kernel.tools.register(slow.tool)
        row, peer = await greeted(kernel)
        await granted(kernel, row, "tool:slow:call")
        asking = asyncio.create_task(peer.ask(Exec(tool="slow")))
        await slow.began.wait()
        await kernel.quarantine(row, "test")
        assert slow.cut
        asking.cancel()

    with_kernel(test)


# Constraints that need to know the call.


@asynccontextmanager
async def holding(*caps: str) -> AsyncIterator[tuple[Kernel, Agent, Peer, Slow]]:
    async with running() as kernel:
        slow = Slow()
        slow.go_on.set()
        kernel.tools.register(slow.tool)
        row, peer = await greeted(kernel, caps=caps)
        yield kernel, row, peer, slow


def test_arguments_are_held_to_what_the_capability_says() -> None:
    async def main() -> None:
        async with holding("tool:slow:call{arg.amount:1..100,arg.to:anna|ben}") as (_, _, peer, _):
            assert await peer.ask(Exec(tool="slow", params={"amount": 100, "to": "ben", "more": 1})) == "done"
            for params in ({"amount": 101, "to": "ben"}, {"amount": 5, "to": "eve"}, {"amount": 5}, {}):
                error = await refusal(peer.ask(Exec(tool="slow", params=params)))
                assert (error.name, error.code) == ("EPERM", "cap.missing"), params

    asyncio.run(main())


def test_a_call_takes_no_longer_than_its_capability_says() -> None:
    async def main() -> None:
        async with holding("tool:slow:call{timeout:50ms}") as (_, _, peer, slow):
            slow.go_on.clear()
            error = await refusal(peer.ask(Exec(tool="slow")))
            assert isinstance(error, ETIMEDOUT)
            assert slow.cut
            error = await refusal(peer.ask(Exec(tool="slow"), deadline_ms=60_000))
            assert isinstance(error, ETIMEDOUT), "the shorter one counts"

    asyncio.run(main())


def test_data_is_no_larger_than_the_capability_says_whole_or_in_pieces() -> None:
    async def main() -> None:
        async with holding("mem:/mem/semantic/**:read,write{max_size:10}", "mem:/mem/episodic/**:write") as held:
            kernel, row, peer, _ = held
            await peer.ask(Write(path="/mem/semantic/x", data="0123456789"))
            assert (await refusal(peer.ask(Write(path="/mem/semantic/x", data="01234567890")))).code == "cap.missing"
            assert (await refusal(peer.ask(Write(path="/mem/semantic/x", data="äöüäöü")))).code == "cap.missing"
            await peer.ask(Write(path="/mem/semantic/x", data="0123456789", mode="append"))
            assert (await refusal(peer.ask(Read(path="/mem/semantic/x")))).code == "cap.missing"
            assert (await peer.ask(Read(path="/mem/semantic/x", offset=2, length=10)))["data"] == "2345678901"
            error = await _streamed(peer, "/mem/semantic/y", ["01234", "56789", "x"])
            assert isinstance(error, EPERM)
            place = kernel.vfs.root(row.id).find("/mem/semantic/y")
            assert place is not None
            assert place.backend.stat(place.inner) is None
            assert await _streamed(peer, "/mem/semantic/y", ["01234", "56789"]) is None

    asyncio.run(main())


def test_bytes_are_counted_over_all_calls_whole_in_pieces_and_read() -> None:
    async def main() -> None:
        async with holding("mem:/mem/semantic/**:read,write{bytes:30}") as (_, row, peer, _):
            (handle,) = [one for one in row.holdings if not one.starting]
            await peer.ask(Write(path="/mem/semantic/x", data="0123456789"))
            assert await _streamed(peer, "/mem/semantic/y", ["01234", "56"]) is None
            await peer.ask(Read(path="/mem/semantic/x"))
            assert handle.used["bytes"] == 27
            error = await refusal(peer.ask(Read(path="/mem/semantic/x")))
            assert (error.name, error.code) == ("EBUDGET", "budget.bytes")
            assert isinstance(await _streamed(peer, "/mem/semantic/z", ["0", "1234567"]), EBUDGET)
            assert handle.used["bytes"] <= 30

    asyncio.run(main())


def test_streams_at_the_same_time_share_the_room() -> None:
    async def main() -> None:
        async with holding("mem:/mem/semantic/**:write{bytes:30}") as (_, row, peer, _):
            (handle,) = [one for one in row.holdings if not one.starting]
            for number in range(6):
                request = Write(path=f"/mem/semantic/{number}", data="", stream=True)
                peer.say(Call(number + 10, BY_REQUEST[Write].number, frames.body(request)))
                peer.say(frames.Chunk(number + 10, 0, frames.body("x" * 20)))
            for number in range(6):
                peer.say(frames.End(number + 10, 1))
            ended = 0
            while ended < 6:
                ended += isinstance(await peer.hear(), Reply | frames.Error)
            assert handle.used["bytes"] <= 30

    asyncio.run(main())


async def _streamed(peer: Peer, path: str, pieces: list[str]) -> AgentOSError | None:
    number = 1000 + len(pieces)
    peer.say(Call(number, BY_REQUEST[Write].number, frames.body(Write(path=path, data="", stream=True))))
    for place, piece in enumerate(pieces):
        peer.say(frames.Chunk(number, place, frames.body(piece)))
    peer.say(frames.End(number, len(pieces)))
    while True:
        heard = await peer.hear()
        assert heard is not None
        if isinstance(heard, Reply) and heard.id == number:
            return None
        if isinstance(heard, frames.Error) and heard.id == number:
            return frames.to_error(heard)


def test_a_capability_that_is_used_up_does_not_hide_another() -> None:
    async def main() -> None:
        async with holding("tool:slow:call{count:1}") as (kernel, row, peer, _):
            await peer.ask(Exec(tool="slow"))
            assert (await refusal(peer.ask(Exec(tool="slow")))).code == "budget.count"
            await granted(kernel, row, "tool:slow:call{count:1}")
            await peer.ask(Exec(tool="slow"))
            assert (await refusal(peer.ask(Exec(tool="slow")))).code == "budget.count"

    asyncio.run(main())


def test_a_child_with_a_constraint_that_nobody_knows_gets_no_handle() -> None:
    async def main() -> None:
        async with holding("tool:slow:call", "agent:*:spawn") as (kernel, row, peer, _):
            row.order = {"file": "/p/a.py", "cwd": "/p"}
            before = len(kernel.authority.everything())
            spawn = Spawn(manifest={"program": {"entry": "a.py"}}, caps=["tool:slow:call{colour:red}"])
            error = await refusal(peer.ask(spawn))
            assert (error.name, error.code) == ("EINVAL", "cap.malformed")
            wide = Spawn(manifest={"program": {"entry": "a.py"}}, caps=["tool:other:call"])
            error = await refusal(peer.ask(wide))
            assert (error.name, error.detail["row"]) == ("EPERM", "target")
            assert len(kernel.authority.everything()) == before

    asyncio.run(main())


def test_the_record_of_a_run_that_was_cut_off_says_so() -> None:
    async def test(kernel: Kernel) -> None:
        slow = Slow()
        kernel.tools.register(slow.tool)
        row, peer = await greeted(kernel)
        handle = await granted(kernel, row, "tool:slow:call")
        asking = asyncio.create_task(peer.ask(Exec(tool="slow")))
        await slow.began.wait()
        await kernel.authority.revoke([handle], "local:0")
        await refusal(asking)
        (kept,) = [kept for entry, kept in kernel.journal.scan(row.id) if entry.kind == Kind.OUTCOME]
        error = Recorded.of(kept).error
        assert isinstance(error, EACCES)

    with_kernel(test)
