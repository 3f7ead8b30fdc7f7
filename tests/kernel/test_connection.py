"""What a peer on the wire can do, and what it cannot do to others."""

import array
import asyncio
import os
import socket
import struct
from contextlib import suppress
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi import frames
from agent_os.abi.errors import EBADF, EINVAL, ENOSYS, EPERM
from agent_os.abi.frames import Bye, Call, Cancel, Chunk, Credit, End, Hello
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_NAME, Now, Random, Sleep, Write
from agent_os.kernel import connection
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.signals import KERNEL
from agent_os.kernel.tooling import Tool
from peer import Peer, agent, greeted, until, with_kernel

EMSGSIZE_NUMBER, EPROTO_NUMBER, ENOSYS_NUMBER, ETIMEDOUT_NUMBER, EPIPE_NUMBER = 90, 71, 38, 110, 32


async def farewell(kernel: Kernel, *said: frames.Frame | bytes, hello: bool = True) -> Bye:
    """What the kernel says to somebody who said that; others must not notice."""
    _, other = await greeted(kernel, "other")
    _, theirs = await agent(kernel, "rude")
    peer = await Peer.on(theirs)
    if hello:
        await peer.greet()
    peer.say(*said)
    bye = await peer.hear_bye()
    assert await peer.hear() is None
    assert (await other.ask(Random(n=8))) is not None
    return bye


RUDE = {
    "a frame over the limit": (EMSGSIZE_NUMBER, [struct.pack("<I", frames.MAX_FRAME + 1)]),
    "the largest length there is": (EMSGSIZE_NUMBER, [b"\xff\xff\xff\xff"]),
    "garbage": (EPROTO_NUMBER, [b"\x04\x00\x00\x00\xc1\xc1\xc1\xc1"]),
    "an empty frame": (EPROTO_NUMBER, [b"\x00\x00\x00\x00"]),
    "no array": (EPROTO_NUMBER, [b"\x01\x00\x00\x00\x01"]),
    "an unknown kind": (EPROTO_NUMBER, [b"\x02\x00\x00\x00\x91\x0c"]),
    "a frame of the kernel's": (EPROTO_NUMBER, [frames.Reply(1)]),
    "hello twice": (EPROTO_NUMBER, [Hello(1, 1)]),
    "an id that is open": (EPROTO_NUMBER, [Call(1, 27, frames.body({"ms": 60_000})), Call(1, 28)]),
    "an id of more than 32 bits": (EPROTO_NUMBER, [Call(1 << 32, 28)]),
    "a chunk out of turn": (
        EPROTO_NUMBER,
        [Call(1, 2, frames.body({"path": "/mem/working/x", "stream": True})), Chunk(1, 5, frames.body(b"x"))],
    ),
    "an end out of turn": (
        EPROTO_NUMBER,
        [Call(1, 2, frames.body({"path": "/mem/working/x", "stream": True})), End(1, 3)],
    ),
}


@pytest.mark.parametrize("what", RUDE)
def test_a_peer_that_breaks_the_rules_is_told_which_and_let_go(what: str) -> None:
    number, said = RUDE[what]

    async def test(kernel: Kernel) -> None:
        assert (await farewell(kernel, *said)).code == number

    with_kernel(test)


def test_more_than_the_credit_is_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: connection.Stream, *, credit: bool = True) -> object:
        await asyncio.Event().wait()

    monkeypatch.setattr(connection.Stream, "receive", never)  # a handler that takes nothing, so no credit comes back

    async def test(kernel: Kernel) -> None:
        begin = Call(1, 2, frames.body({"path": "/mem/working/x", "stream": True}))
        chunks = [Chunk(1, n, frames.body(b"x" * 100_000)) for n in range(4)]
        assert (await farewell(kernel, begin, *chunks)).code == EPROTO_NUMBER

    with_kernel(test)


def test_a_chunk_to_a_call_that_takes_none_is_a_breach() -> None:
    async def test(kernel: Kernel) -> None:
        async def run(key: str, params: object) -> object:
            await asyncio.Event().wait()

        kernel.tools.register(Tool("slow", run))
        _, peer = await greeted(kernel, caps=("tool:slow:call",))
        peer.say(Call(1, 5, frames.body({"tool": "slow"})), Chunk(1, 0, frames.body(b"x")))
        bye = await peer.hear_bye()
        assert (bye.code, "takes no chunks" in bye.reason) == (EPROTO_NUMBER, True)

    with_kernel(test)


def test_more_chunks_than_anybody_needs_are_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty ones take no credit worth the name, and a hundred bytes each."""

    async def never(self: connection.Stream, *, credit: bool = True) -> object:
        await asyncio.Event().wait()

    monkeypatch.setattr(connection.Stream, "receive", never)

    async def test(kernel: Kernel) -> None:
        begin = Call(1, 2, frames.body({"path": "/mem/working/x", "stream": True}))
        chunks = [Chunk(1, n, frames.body(b"")) for n in range(connection.WAITING_CHUNKS + 1)]
        assert "fewer" in (await farewell(kernel, begin, *chunks)).reason

    with_kernel(test)


def test_a_chunk_that_cannot_be_read_is_the_senders_fault_and_the_calls_error() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        peer.say(Call(1, 2, frames.body({"path": "/mem/working/x", "stream": True})))
        peer.say(Chunk(1, 0, msgspec.Raw(b"\xa1\xff")))  # text that is no UTF-8
        while isinstance(heard := await peer.hear(), Credit):
            pass
        assert isinstance(heard, frames.Error)
        assert (heard.code, heard.detail["code"]) == (EPROTO_NUMBER, "chunk")
        assert await peer.ask(Now())

    with_kernel(test)


def test_who_is_held_in_the_middle_of_a_frame_may_finish_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TO_FINISH_FRAME", 0.3)

    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        data = frames.encode(Call(7, 28))
        peer.say(data[:-1])
        await until(lambda: any(one._splitter.partial for one in kernel.connections))
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGSTOP)
        await asyncio.sleep(0.6)
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGCONT)
        peer.say(data[-1:])
        heard = await peer.hear()
        assert isinstance(heard, frames.Reply), heard

    with_kernel(test)


@pytest.mark.long
def test_a_frame_that_we_ourselves_do_not_read_on_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TO_FINISH_FRAME", 0.2)

    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        last = frames.encode(Call(99, 28))
        peer.say(*(Call(number, 27, frames.body(Sleep(ms=3000))) for number in range(connection.OPEN_CALLS)), last[:-1])
        await asyncio.sleep(0.4)
        peer.say(last[-1:])
        heard = [await peer.hear() for _ in range(connection.OPEN_CALLS + 1)]
        assert all(isinstance(one, frames.Reply) for one in heard)

    with_kernel(test)


def test_the_first_frame_is_hello() -> None:
    async def test(kernel: Kernel) -> None:
        assert (await farewell(kernel, Call(1, 28), hello=False)).code == EPROTO_NUMBER

    with_kernel(test)


def test_versions_that_do_not_meet_are_both_named() -> None:
    async def test(kernel: Kernel) -> None:
        bye = await farewell(kernel, Hello(7, 9), hello=False)
        assert bye.code == ENOSYS_NUMBER
        assert "7 to 9" in bye.reason
        assert "1 to 1" in bye.reason

    with_kernel(test)


def test_half_a_frame_and_a_missing_hello_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TO_FINISH_FRAME", 0.2)

    async def test(kernel: Kernel) -> None:
        half = frames.encode(Call(1, 28))[:-1]
        assert (await farewell(kernel, half)).code == ETIMEDOUT_NUMBER
        kernel.table.forget(kernel.table.find("rude"))
        kernel.table.forget(kernel.table.find("other"))
        assert (await farewell(kernel, frames.encode(Hello(1, 1))[:3], hello=False)).code == ETIMEDOUT_NUMBER

    with_kernel(test)


def test_a_trickled_frame_is_understood() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        for byte in frames.encode(Call(9, 28)):
            peer.say(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        heard = await peer.hear()
        assert isinstance(heard, frames.Reply)
        assert heard.id == 9

    with_kernel(test)


def test_unknown_kinds_from_128_on_and_trailing_fields_are_ignored() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        later = msgspec.msgpack.encode([200, "something", {"new": 1}])
        longer = msgspec.msgpack.encode(
            [2, 5, 28, *[None] * len(Call.__struct_fields__[2:]), "a field of a later version"]
        )
        for data in (later, longer):
            peer.say(len(data).to_bytes(4, "little") + data)
        heard = await peer.hear()
        assert isinstance(heard, frames.Reply)
        assert heard.id == 5

    with_kernel(test)


BAD_BODIES: dict[str, tuple[int, object, type[Exception], str]] = {
    "an unknown op": (60, {}, ENOSYS, "60"),
    "an op of a later step": (20, {}, ENOSYS, "memory"),
    "an operator's op": (128, {}, EPERM, "OP_STATUS"),
    "a wrong type": (1, {"path": 7}, EINVAL, "path"),
    "a field that is not there": (1, {"path": "/mem/working/x", "form": "/etc"}, EINVAL, "form"),
    "no object at all": (1, [1, 2], EINVAL, "SYS_READ"),
    "a path that climbs": (1, {"path": "/mem/working/../../etc/passwd"}, EINVAL, ".."),
    "a closed handle": (4, {"handle": 77}, EBADF, "77"),
    "a mask of what cannot be masked": (31, {"block": [4]}, EINVAL, "SIGKILL"),
    "too much randomness": (29, {"n": 5000}, EINVAL, "1024"),
}


@pytest.mark.parametrize("what", BAD_BODIES)
def test_a_bad_body_in_a_good_frame_is_only_an_error_and_names_the_field(what: str) -> None:
    op, body, kind, word = BAD_BODIES[what]

    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        peer.say(Call(1, op, frames.body(body)))
        heard = await peer.hear()
        assert isinstance(heard, frames.Error)
        error = frames.to_error(heard)
        assert isinstance(error, kind)
        assert word in error.reason
        assert await peer.ask(Now())

    with_kernel(test)


def test_nesting_beyond_the_limit_ends_in_an_error_and_the_kernel_lives() -> None:
    async def test(kernel: Kernel) -> None:
        value: object = 1
        for _ in range(100):
            value = [value]
        _, peer = await greeted(kernel)
        peer.say(Call(1, 8, frames.body({"result": value})))
        heard = await peer.hear()
        assert isinstance(heard, frames.Error)
        assert heard.code == EPROTO_NUMBER
        deep = b"\x91" * 200_000 + b"\xc0"
        data = b"\x95\x02\x02\x08" + deep + b"\xc0"
        peer.say(len(data).to_bytes(4, "little") + data)
        assert (await peer.hear_bye()).code == EPROTO_NUMBER

    with_kernel(test)


def test_a_field_that_claims_to_be_somebody_else_changes_nothing() -> None:
    async def test(kernel: Kernel) -> None:
        _, victim = await greeted(kernel, "victim")
        await victim.ask(Write(path="/mem/working/secret", data="mine"))
        _, peer = await greeted(kernel, "thief")
        for path in (
            "/mem/working/secret",
            "/agent/default/victim/mem/working/secret",
            "/agent/victim/mem/working/secret",
        ):
            peer.say(Call(1, 1, frames.body({"path": path})))
            heard = await peer.hear()
            assert isinstance(heard, frames.Error), path
        peer.say(Call(1, 1, frames.body({"path": "/mem/working/secret", "agent": "victim"})))
        assert isinstance(await peer.hear(), frames.Error)
        entries = [entry for entry, _ in kernel.journal.scan(None, 1) if entry.agent.endswith("thief")]
        assert len(entries) >= 4

    with_kernel(test)


def test_calls_beyond_the_limit_wait_in_the_socket_and_none_is_lost() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        held = asyncio.Event()

        async def wait(agent: object, asked: object, seconds: float) -> None:
            await held.wait()

        kernel.sleeps.sleep = wait  # pyright: ignore[reportAttributeAccessIssue]
        for number in range(300):
            peer.say(Call(number, 27, frames.body({"ms": 1})))
        line = row.line
        assert isinstance(line, connection.Connection)
        await until(lambda: len(line._open) == connection.OPEN_CALLS, "a full house")
        _, other = await greeted(kernel, "b")
        assert await other.ask(Now())
        assert len(line._open) == connection.OPEN_CALLS
        held.set()
        answered = set[int]()
        while len(answered) < 300:
            heard = await peer.hear()
            assert isinstance(heard, frames.Reply)
            answered.add(heard.id)

    with_kernel(test)


def test_somebody_who_does_not_read_is_let_go_and_costs_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TO_READ", 0.3)

    async def test(kernel: Kernel) -> None:
        row, theirs = await agent(kernel, caps=("mem:/mem/**:read,write",))
        theirs.setblocking(True)
        loop = asyncio.get_running_loop()

        def flood() -> None:
            body = frames.body({"n": 1024})
            theirs.sendall(frames.encode(Hello(1, 1)))
            with suppress(OSError):
                for number in count():
                    theirs.sendall(frames.encode(Call(number, 29, body)))

        await loop.run_in_executor(None, flood)
        await until(lambda: row.line is None, "it to be gone")
        await until(lambda: row.exit is not None, "its end to be recorded")
        assert "1048576 bytes were not read" in row.exit.reason  # pyright: ignore[reportOptionalMemberAccess]

    with_kernel(test)


def test_who_is_held_need_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TO_READ", 0.3)

    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        for number in range(1000):  # of 4 KiB, which is more than is kept for anybody
            assert row.line
            row.line.push("notice", {"number": number, "data": "x" * 4096})
        (line,) = (one for one in kernel.connections if one.caller is row)
        await until(lambda: line._stuck)
        await kernel.signals.send(KERNEL, row, AgentSignal.SIGSTOP)
        await asyncio.sleep(0.7)
        assert line.fault is None, "it was let go for what it could not help"
        await kernel.signals.send(KERNEL, row, AgentSignal.SIGCONT)
        for _ in range(1000):
            heard = await peer.hear()
            assert isinstance(heard, frames.Push)
        assert await peer.ask(Now())

    with_kernel(test)


def test_descriptors_sent_to_the_kernel_do_not_stay() -> None:
    async def test(kernel: Kernel) -> None:
        _, theirs = await agent(kernel)
        before = len(os.listdir("/proc/self/fd"))
        theirs.setblocking(False)
        theirs.send(frames.encode(Hello(1, 1)))
        with open(os.devnull) as null:
            for n in range(100):  # 100 descriptors a message
                data = frames.encode(Call(n, 28))
                rights = array.array("i", [null.fileno()] * 100)
                while True:
                    try:
                        theirs.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                        break
                    except BlockingIOError:
                        await asyncio.sleep(0.001)
                await asyncio.sleep(0)
        peer = await Peer.on(theirs)
        heard = 0
        while heard < 101:
            assert await peer.hear() is not None
            heard += 1
        assert len(os.listdir("/proc/self/fd")) <= before + 1

    with_kernel(test)


def test_many_idle_connections_leave_room_for_an_active_one() -> None:
    async def test(kernel: Kernel) -> None:
        idle = [await agent(kernel, f"idle{n}") for n in range(200)]
        _, peer = await greeted(kernel, "busy")
        for _ in range(50):
            assert await peer.ask(Now())
        for _, theirs in idle:
            theirs.close()
        await until(lambda: len(kernel.connections) == 1)

    with_kernel(test)


def test_a_call_can_be_given_up() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        peer.say(Call(3, 27, frames.body({"ms": 60_000})), Cancel(3))
        heard = await peer.hear()
        assert isinstance(heard, frames.Error)
        assert heard.code == 125

    with_kernel(test)


def test_a_deadline_ends_a_pure_wait_with_a_retryable_error() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        with pytest.raises(Exception, match="deadline") as caught:
            await peer.ask(Sleep(ms=60_000), deadline_ms=30)
        assert caught.value.retryable  # pyright: ignore[reportAttributeAccessIssue]

    with_kernel(test)


def test_large_entries_travel_as_streams_both_ways() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        data = os.urandom(3_000_000)
        peer.say(Call(1, 2, frames.body({"path": "/mem/working/big", "stream": True})))
        credit, n, at = connection.STREAM_CREDIT, 0, 0
        while at < len(data):
            piece = frames.body(data[at : at + 60_000])
            while credit < len(bytes(piece)):
                heard = await peer.hear()
                assert isinstance(heard, Credit)
                credit += heard.bytes
            peer.say(Chunk(1, n, piece))
            credit -= len(bytes(piece))
            n, at = n + 1, at + 60_000
        peer.say(End(1, n))
        while not isinstance(heard := await peer.hear(), frames.Reply):
            assert isinstance(heard, Credit)
        peer.say(Call(2, 1, frames.body({"path": "/mem/working/big"})))
        found, pieces = b"", 0
        while not isinstance(heard := await peer.hear(), End):
            assert isinstance(heard, Chunk)
            value = msgspec.msgpack.decode(heard.data)
            found += value if isinstance(value, bytes) else b""
            pieces += 1
            peer.say(Credit(2, len(bytes(heard.data))))
        assert heard.error is None
        assert found == data
        assert pieces > 40

    with_kernel(test)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=20))
def test_no_bytes_whatever_end_the_kernel(noise: list[bytes]) -> None:
    async def test(kernel: Kernel) -> None:
        _, theirs = await agent(kernel, "noisy")
        with theirs:
            theirs.setblocking(True)
            theirs.settimeout(5)
            try:
                theirs.sendall(frames.encode(Hello(1, 1)))
                for data in noise:
                    theirs.sendall(len(data).to_bytes(4, "little") + data)
            except OSError:
                pass  # it was let go while it was still talking
            await asyncio.sleep(0)
        _, peer = await greeted(kernel, "other")
        assert await peer.ask(Now())

    with_kernel(test)


# These end it, or wait as they should.
ENDLESS = {BY_NAME[name].number for name in ("SYS_EXIT", "SYS_WAIT", "SYS_SLEEP", "SYS_TAKE")}


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 260),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers(-(2**63), 2**64 - 1)
                | st.text(max_size=20)
                | st.binary(max_size=20),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
                max_leaves=8,
            ),
        ),
        max_size=10,
    )
)
def test_any_body_to_any_number_is_answered(calls: list[tuple[int, object]]) -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel, "fuzz")
        waiting = set[int]()
        for number, (op, body) in enumerate(calls):
            if op in ENDLESS:
                continue
            peer.say(Call(number, op, frames.body(body)))
            waiting.add(number)
            if op in (1, 2):
                peer.say(End(number, 0))
        while waiting:
            heard = await peer.hear()
            assert heard is not None
            assert not isinstance(heard, Bye), heard
            if isinstance(heard, frames.Reply | frames.Error | End):
                waiting.discard(heard.id)
        assert await peer.ask(Now())

    with_kernel(test)
