"""The agent's end of the wire: what is asked is answered, and nothing that a kernel sends can hang or fool it."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi import frames, syscalls
from agent_os.abi.errors import EINVAL, ENOSYS, EPIPE, EPROTO, AgentOSError
from agent_os.userland.context import Context
from agent_os.userland.wire import Wire
from userland.fake_kernel import FakeKernel, forever, played


def test_hello_and_welcome_come_first() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        return ctx.agent, ctx.incarnation, ctx.replaying, ctx.input

    result, kernel = played(program, agent="default/me", incarnation=3, replaying=True, input=frames.body({"a": 1}))
    assert result == ("default/me", 3, True, {"a": 1})
    assert kernel.hello == frames.Hello(frames.ABI_MIN, frames.ABI_MAX, [])


def test_calls_made_together_leave_in_one_write() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await ctx.gather(*(ctx.write(f"/mem/working/{n}", str(n)) for n in range(20)))

    result, kernel = played(program)
    assert result is None
    assert [kernel.entries[f"/mem/working/{n}"][0] for n in range(20)] == [str(n) for n in range(20)]
    assert {call.seen for call in kernel.named("SYS_WRITE")} == {1}  # all before the first was answered


def test_answers_out_of_order_reach_who_asked() -> None:
    held: list[frames.Call] = []

    async def backwards(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        held.append(call)
        await kernel.until_now(lambda: len(held) == 5)
        for later in held[held.index(call) + 1 :]:
            await kernel.until_now(lambda later=later: later.id in answered)
        answered.append(call.id)
        async with kernel._arrived:
            kernel._arrived.notify_all()
        return body["params"]["n"]

    answered: list[int] = []

    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        return await ctx.gather(*(ctx.call("echo", n=n) for n in range(5)))

    result, _ = played(program, {"SYS_EXEC": backwards})
    assert result == [0, 1, 2, 3, 4]
    assert answered == sorted(answered, reverse=True)


def test_an_error_is_raised_as_its_own_type_with_all_its_facts() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await ctx.read("/mem/working/nothing")

    error, _ = played(program)
    assert (error.name, error.code, error.hint) == ("ENOENT", "vfs.absent", "SYS_LIST shows what there is")


@pytest.mark.parametrize("data", [b"x" * 1_000_000, "ä" * 700_000], ids=["bytes", "text"])
def test_large_data_goes_both_ways_within_the_credit(data: Any) -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        await ctx.write("/mem/working/large", data)
        return await ctx.content("/mem/working/large")

    content, kernel = played(program)
    assert content.data == data
    assert (content.version, content.size) == (1, len(data))
    [read] = kernel.named("SYS_READ")
    assert kernel.credit[read.id] >= len(data.encode() if isinstance(data, str) else data) - 2 * 256 * 1024


def test_a_piece_larger_than_the_credit_does_not_wait_for_ever() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        async def pieces() -> Any:
            yield b"a" * 600_000
            yield b"b"

        return (await ctx.write("/mem/working/large", pieces())).size

    assert played(program)[0] == 600_001


def test_a_refusal_during_an_upload_ends_it() -> None:
    async def refuse(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        raise EINVAL("quota", "no room")

    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await ctx.write("/mem/working/large", b"x" * 2_000_000)

    error, _ = played(program, {"SYS_WRITE": refuse})
    assert isinstance(error, EINVAL)


def test_a_cancelled_call_is_cancelled_at_the_kernel_and_its_late_answer_is_dropped() -> None:
    held: list[frames.Call] = []

    async def hold(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        held.append(call)
        await kernel.until_now(lambda: call.id in kernel.cancelled)
        return {"late": True}

    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        waiting = asyncio.ensure_future(ctx.call("slow"))
        await kernel.until(lambda: held)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await kernel.until(lambda: kernel.cancelled)
        return (await ctx.write("/mem/working/after", "x")).version

    result, kernel = played(program, {"SYS_EXEC": hold})
    assert result == 1
    assert kernel.cancelled == [held[0].id]


def test_a_stream_left_early_is_cancelled() -> None:
    async def endless(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        for n in range(3):
            await kernel.send(frames.Chunk(call.id, n, frames.body(f"line {n}")))
        await kernel.until_now(lambda: call.id in kernel.cancelled)
        return None

    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        parts = ctx.stream("tail", path="/x")
        first = await anext(parts)
        await parts.aclose()  # type: ignore[attr-defined]
        await kernel.until(lambda: kernel.cancelled)
        return first

    assert played(program, {"SYS_EXEC": endless})[0] == "line 0"


def test_a_stream_ends_with_its_parts_or_its_error() -> None:
    async def lines(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        for n in range(3):
            await kernel.send(frames.Chunk(call.id, n, frames.body(n)))
        error = EINVAL("late", "it broke") if body["params"].get("broken") else None
        await kernel.send(frames.end_of(call.id, 3, error))
        return await forever(kernel, call, body)

    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        whole = await ctx.call("lines")
        parts = [part async for part in ctx.stream("lines")]
        got: list[Any] = []
        try:
            async for part in ctx.stream("lines", broken=True):
                got.append(part)
        except EINVAL as error:
            got.append(error.code)
        return whole, parts, got

    assert played(program, {"SYS_EXEC": lines})[0] == ([0, 1, 2], [0, 1, 2], [0, 1, 2, "late"])


def raised_after(what: bytes) -> AgentOSError:
    """What a waiting call raises when the kernel sends these bytes."""

    async def program(ctx: Context, kernel: FakeKernel) -> None:
        waiting = asyncio.ensure_future(ctx.call("slow"))
        await kernel.until(lambda: kernel.named("SYS_EXEC"))
        await kernel.raw(what)
        try:
            await waiting
        finally:
            with pytest.raises(AgentOSError):
                await ctx.read("/mem/working/x")  # and so does every later one

    error, _ = played(program, {"SYS_EXEC": forever})
    assert isinstance(error, AgentOSError)
    return error


MALFORMED = {
    "no msgpack": b"\x03\0\0\0\xc1\xc1\xc1",
    "no array": b"\x01\0\0\0\x07",
    "empty frame": b"\0\0\0\0",
    "unknown kind": b"\x02\0\0\0\x91\x0c",
    "over the limit": b"\xff\xff\xff\xff",
    "a call": frames.encode(frames.Call(1, 1)),
    "an answer to nothing": frames.encode(frames.Reply(4711)),
    "a second welcome": frames.encode(frames.Welcome(1, "a", 1, {})),
    "a chunk out of order": frames.encode(frames.Chunk(2, 5, frames.body("x"))),
    "an end that counts wrong": frames.encode(frames.End(2, 5)),
    "an end with half an error": frames.encode(frames.End(2, 0, [1, 2])),
    "a severity that there is not": frames.encode(frames.Error(2, 1, 99, False, "?")),
    "a signal without number": frames.encode(frames.Push(1, "signal", frames.body({"value": 1}))),
    "a notice without type": frames.encode(frames.Push(1, "notice", frames.body([]))),
    "a body cut off": b"\x06\0\0\0\x93\x03\x02\xda\xff\xff",
}


@pytest.mark.parametrize("what", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_the_wire_ends_the_connection_with_eproto(what: bytes) -> None:
    assert isinstance(raised_after(what), EPROTO)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=60))
def test_no_garbage_hangs_an_agent(data: bytes) -> None:
    what = len(data).to_bytes(4, "little") + data + frames.encode(frames.Bye(71, "the end"))
    assert isinstance(raised_after(what), AgentOSError)


def test_a_kind_that_is_not_for_us_is_ignored() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        await kernel.raw(b"\x03\0\0\0\x91\xcc\xc8")
        return (await ctx.write("/mem/working/x", "x")).version

    assert played(program)[0] == 1


def test_a_goodbye_is_raised_with_its_reason() -> None:
    error = raised_after(frames.encode(frames.Bye(EPROTO.number, "id: call 7 is still open")))
    assert isinstance(error, EPROTO)
    assert "call 7 is still open" in error.reason


def test_pushes_that_come_with_the_welcome_are_not_lost() -> None:
    async def meet() -> bool:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            live = frames.Push(1, "notice", frames.body({"type": "live"}))
            theirs.sendall(frames.encode(frames.Welcome(1, "a", 1, {}, [], True)) + frames.encode(live))
            connecting = asyncio.ensure_future(Context.connect(ours))
            received = b""
            while received.count(b"r:1") < 1:  # the seed is asked for, so hello is over
                await asyncio.sleep(0)
                with contextlib.suppress(BlockingIOError):
                    received += theirs.recv(1024, socket.MSG_DONTWAIT)
            theirs.sendall(frames.encode(frames.Reply(1, frames.body(bytes(32)))))
            ctx = await connecting
            replaying = ctx.replaying
            await ctx.leave(0)
            return replaying

    assert asyncio.run(meet()) is False


def test_a_goodbye_instead_of_welcome_is_raised() -> None:
    async def meet() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(frames.encode(frames.Bye(ENOSYS.number, "abi: this kernel speaks 7 to 8")))
            await Wire.connect(ours)

    with pytest.raises(ENOSYS, match="7 to 8"):
        asyncio.run(meet())


def test_a_kernel_that_is_gone_is_epipe_for_all_who_wait() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        watch = await ctx.watch("/mem/working")
        waiting = [asyncio.ensure_future(ctx.call("slow", n=n)) for n in range(3)]
        await kernel.until(lambda: len(kernel.named("SYS_EXEC")) == 3)
        kernel.hang_up()
        ends = [type(end) for end in await asyncio.gather(*waiting, return_exceptions=True)]
        with pytest.raises(EPIPE):
            await anext(watch)
        with pytest.raises(EPIPE):
            await ctx.now()
        return ends

    assert played(program, {"SYS_EXEC": forever})[0] == [EPIPE] * 3


def test_what_cannot_travel_is_refused_before_it_is_sent() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        for params in ({"x": object()}, {"x": 1 << 70}):
            with pytest.raises(EINVAL, match="cannot travel"):
                await ctx.exec("tool", params)
        with pytest.raises(AgentOSError, match="more than a frame"):
            await ctx.exec("tool", {"x": b"x" * (1 << 20)})
        return await ctx.exec("tool", {"x": 1})

    result, kernel = played(program)
    assert result.tool == "tool"
    assert len(kernel.named("SYS_EXEC")) == 1


def test_the_options_of_a_call_travel_with_it() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await ctx.exec("pay", {"sum": 3}, key="order-7", deadline=1.5, cap=9)
        await ctx.syscall(syscalls.Random(n=4))

    result, kernel = played(program)
    assert result is None
    [call] = kernel.named("SYS_EXEC")
    assert (call.key, call.deadline_ms, call.cap) == ("order-7", 1500, 9)
