"""The client's end of the wire, against a peer on a real socket that speaks frames and nothing more."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_os.abi import frames
from agent_os.abi.errors import EHOSTUNREACH, EINVAL, EMSGSIZE, EPERM, EPIPE, EPROTO, ETIMEDOUT
from agent_os.abi.frames import Bye, Call, Cancel, Chunk, Credit, End, Hello, Reply, Welcome
from agent_os.abi.syscalls import Logs, Run, Status
from agent_os.client import wire
from agent_os.client.wire import CREDIT, Client, at_once, connect


class Peer:
    """A kernel in small: hears frames, says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def hear(self) -> Any:
        size = int.from_bytes(await self._reader.readexactly(frames.LENGTH), "little")
        return frames.decode_from_agent(await self._reader.readexactly(size))

    def say(self, *said: frames.Frame) -> None:
        self._writer.write(b"".join(map(frames.encode, said)))

    def hang_up(self) -> None:
        self._writer.close()


def meet(
    path: Path,
    kernel: Callable[[Peer], Awaitable[None]],
    client: Callable[[Client], Awaitable[Any]],
    greet: bool = True,
    bind: str | None = None,
) -> Any:
    """Run both sides to the end of the client's; a failure of either is a failure."""

    async def scenario() -> Any:
        served: list[asyncio.Task[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Peer(reader, writer)
            try:
                assert isinstance(await peer.hear(), Hello)
                if greet:
                    peer.say(Welcome(1, "local:0", 0, {}))
                await kernel(peer)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.append(asyncio.create_task(serve(reader, writer)))

        server = await asyncio.start_unix_server(accepted, bind or path)
        try:
            async with asyncio.timeout(20), connect(path) as connected:
                return await client(connected)
        finally:
            server.close()
            await asyncio.gather(*served)

    return asyncio.run(scenario())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kernel.sock"


def test_a_call_is_answered_with_the_value_of_its_reply(path: Path) -> None:
    async def kernel(peer: Peer) -> None:
        first, second = await peer.hear(), await peer.hear()
        assert isinstance(first, Call)
        peer.say(Reply(second.id, frames.body({"n": 2})), Reply(first.id, frames.body({"n": 1})))

    async def client(client: Client) -> Any:
        return await asyncio.gather(client.call(Status()), client.call(Status()))

    assert meet(path, kernel, client) == [{"n": 1}, {"n": 2}]


def test_an_error_of_the_kernel_is_raised_as_it_was_meant(path: Path) -> None:
    meant = EINVAL("signal.unknown", "there is no signal 99", hint="one of these", number=99)

    async def kernel(peer: Peer) -> None:
        peer.say(frames.from_error((await peer.hear()).id, meant))

    async def client(client: Client) -> None:
        with pytest.raises(EINVAL) as caught:
            await client.call(Status())
        error = caught.value
        assert (error.code, error.reason, error.hint, error.detail) == (
            meant.code,
            meant.reason,
            meant.hint,
            {"number": 99},
        )

    meet(path, kernel, client)


def test_a_stream_gives_its_chunks_and_then_its_result(path: Path) -> None:
    async def kernel(peer: Peer) -> None:
        call = await peer.hear()
        peer.say(Chunk(call.id, 0, frames.body(b"a")), Chunk(call.id, 1, frames.body(b"b")), End(call.id, 2))

    async def client(client: Client) -> None:
        stream = client.stream(Logs(agent="x"))
        assert [chunk async for chunk in stream] == [b"a", b"b"]
        assert await stream.result() is None

    meet(path, kernel, client)


def test_an_error_at_the_end_of_a_stream_comes_after_its_chunks(path: Path) -> None:
    async def kernel(peer: Peer) -> None:
        call = await peer.hear()
        peer.say(Chunk(call.id, 0, frames.body(b"a")), frames.end_of(call.id, 1, EINVAL("x", "broken")))

    async def client(client: Client) -> None:
        stream = client.stream(Logs(agent="x"))
        assert [chunk async for chunk in stream] == [b"a"]
        with pytest.raises(EINVAL, match="broken"):
            await stream.result()

    meet(path, kernel, client)


def test_nothing_is_sent_beyond_the_credit_but_what_is_urgent(path: Path) -> None:
    piece = bytes(64 << 10)

    async def kernel(peer: Peer) -> None:
        call = await peer.hear()
        sent = 0
        while isinstance((await _data(peer, call)), bytes):
            sent += len(frames.body(piece))
        assert sent <= CREDIT < sent + 2 * len(frames.body(piece))  # then came what was urgent
        peer.say(Credit(call.id, CREDIT))
        assert await _data(peer, call) == piece  # and only now the rest
        peer.say(Reply(call.id, frames.body("done")))

    async def _data(peer: Peer, call: Call) -> Any:
        chunk = await peer.hear()
        assert isinstance(chunk, Chunk)
        assert chunk.id == call.id
        return msgspec.msgpack.decode(chunk.data)

    async def client(client: Client) -> Any:
        stream = client.stream(Run(order={}))

        async def feed() -> None:
            for _ in range(8):
                await stream.send(piece)

        feeding = asyncio.create_task(feed())
        for _ in range(20):  # until it stands still
            await asyncio.sleep(0)
        await stream.send(["close", 1], urgent=True)
        result = await stream.result()
        await feeding  # what is left goes nowhere, and nobody hangs
        return result

    assert meet(path, kernel, client) == "done"


def test_credit_is_given_back_for_what_was_dealt_with_and_not_before(path: Path) -> None:
    piece = frames.body(bytes(64 << 10))

    async def kernel(peer: Peer) -> None:
        call = await peer.hear()
        peer.say(Chunk(call.id, 0, piece), Chunk(call.id, 1, piece))
        credit = await peer.hear()
        assert isinstance(credit, Credit)
        assert credit.bytes == len(bytes(piece))
        peer.say(Reply(call.id, frames.NIL))

    async def client(client: Client) -> None:
        stream = client.stream(Logs(agent="x"))
        _, size = await stream.receive()
        await stream.receive()
        stream.give(size)
        await stream.result()

    meet(path, kernel, client)


def test_a_call_that_is_given_up_is_cancelled_at_the_kernel(path: Path) -> None:
    async def kernel(peer: Peer) -> None:
        call = await peer.hear()
        cancel = await peer.hear()
        assert isinstance(cancel, Cancel)
        assert cancel.id == call.id

    async def client(client: Client) -> None:
        with pytest.raises(ETIMEDOUT) as caught:
            await client.call(Status(), deadline=0.05)
        assert f"kill -9 {os.getpid()}" in caught.value.hint  # the peer is us

    meet(path, kernel, client)


def test_a_kernel_that_goes_ends_every_call_with_epipe(path: Path) -> None:
    async def kernel(peer: Peer) -> None:
        await peer.hear()
        await peer.hear()
        peer.hang_up()

    async def client(client: Client) -> None:
        results = await asyncio.gather(client.call(Status()), client.call(Status()), return_exceptions=True)
        assert [type(result) for result in results] == [EPIPE, EPIPE]
        with pytest.raises(EPIPE):
            await client.call(Status())

    meet(path, kernel, client)


def test_a_refusal_at_the_door_is_told(path: Path) -> None:
    async def kernel(peer: Peer) -> None:
        peer.say(Bye(EPERM.number, "peer.namespace: you live elsewhere"))

    async def client(client: Client) -> None:
        raise AssertionError("let in")

    with pytest.raises(EPERM, match="you live elsewhere"):
        meet(path, kernel, client, greet=False)


def test_a_kernel_that_does_not_greet_is_silent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_TO_GREET", 0.1)

    async def kernel(peer: Peer) -> None:
        await asyncio.sleep(0.3)

    async def client(client: Client) -> None:
        raise AssertionError("let in")

    with pytest.raises(ETIMEDOUT, match="does not answer"):
        meet(path, kernel, client, greet=False)


async def _connects(path: Path) -> None:
    async with connect(path):
        pass


def test_without_a_kernel_the_hint_says_how_to_start_one(path: Path, tmp_path: Path) -> None:
    with pytest.raises(EHOSTUNREACH) as caught:
        asyncio.run(_connects(tmp_path / "no" / "kernel.sock"))
    assert (caught.value.code, "agentctl up" in caught.value.hint) == ("daemon.down", True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(EHOSTUNREACH):
        asyncio.run(_connects(path))


def test_a_path_longer_than_a_sockets_address_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    here = os.open(deep, os.O_PATH)

    async def kernel(peer: Peer) -> None:
        peer.say(Reply((await peer.hear()).id, frames.body(1)))

    async def client(client: Client) -> Any:
        return await client.call(Status())

    assert meet(deep / "kernel.sock", kernel, client, bind=f"/proc/self/fd/{here}/kernel.sock") == 1
    os.close(here)


# Without a loop: the same connection, whose waits block.


def ask(path: Path, kernel: Callable[[socket.socket], None], asked: Callable[[Client], Awaitable[Any]]) -> Any:
    """`asked` of a kernel in a thread that has greeted; what it heard of it is nobody's business."""
    served: list[BaseException] = []

    def serve() -> None:
        try:
            peer, _ = door.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(frames.encode(Welcome(1, "local:0", 0, {})))
                kernel(peer)
        except BaseException as problem:
            served.append(problem)

    async def scenario() -> Any:
        async with connect(path) as client:
            return await asked(client)

    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            return at_once(scenario())
        finally:
            thread.join(20)
            assert not served, served


async def _status(client: Client) -> Any:
    return await client.call(Status(), deadline=20)


def test_without_a_loop_chunks_and_the_answer_come_however_they_are_cut(path: Path) -> None:
    def kernel(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        said = [Chunk(1, 0, frames.body("a")), Chunk(1, 1, frames.body("b")), Reply(1, frames.body({"n": 1}))]
        for byte in b"".join(map(frames.encode, said)):
            peer.sendall(bytes([byte]))

    async def asked(client: Client) -> Any:
        stream = client.stream(Logs(agent="a"))
        return [chunk async for chunk in stream], await stream.result()

    assert ask(path, kernel, asked) == (["a", "b"], {"n": 1})


def test_without_a_loop_a_kernel_that_dies_in_the_middle_is_epipe(path: Path) -> None:
    def kernel(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(frames.encode(Reply(1, frames.body("x" * 100)))[:50])

    async def asked(client: Client) -> None:
        for _ in range(2):  # the second is not even sent
            with pytest.raises(EPIPE) as caught:
                await _status(client)
            assert caught.value.code == "daemon.gone"
        assert client.lost

    ask(path, kernel, asked)


def test_why_the_kernel_shows_us_out_is_told_even_if_it_went_before_we_asked(path: Path) -> None:
    gone = threading.Event()

    def kernel(peer: socket.socket) -> None:
        peer.sendall(frames.encode(Bye(EPERM.number, "your token was removed")))
        peer.close()
        gone.set()

    async def asked(client: Client) -> None:
        assert gone.wait(20)
        with pytest.raises(EPERM, match="token was removed"):
            await _status(client)

    ask(path, kernel, asked)


@pytest.mark.parametrize(
    ("said", "error"),
    [((frames.MAX_FRAME + 1).to_bytes(4, "little"), EMSGSIZE), (b"\x01\0\0\0\xc1", EPROTO)],
    ids=["oversized", "garbage"],
)
@pytest.mark.parametrize("looped", [False, True])
def test_what_is_no_frame_ends_the_connection(path: Path, said: bytes, error: type[Exception], looped: bool) -> None:
    async def refused(client: Client) -> None:
        with pytest.raises(error):
            await _status(client)
        assert client.lost

    async def looped_kernel(peer: Peer) -> None:
        await peer.hear()
        peer._writer.write(said)

    def kernel(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(said)

    meet(path, looped_kernel, refused) if looped else ask(path, kernel, refused)


def test_without_a_loop_a_deadline_holds_and_the_kernel_is_told(path: Path) -> None:
    heard: list[Any] = []

    def kernel(peer: socket.socket) -> None:
        splitter = frames.Splitter()
        while data := peer.recv(1 << 16):
            heard.extend(map(frames.decode_from_agent, splitter.feed(data)))

    async def asked(client: Client) -> None:
        with pytest.raises(ETIMEDOUT, match="does not answer"):
            await client.call(Status(), deadline=0.05)

    ask(path, kernel, asked)
    assert [type(one) for one in heard] == [Call, Cancel]
    assert heard[0].deadline_ms == 50


def test_without_a_loop_ctrl_c_ends_a_wait_and_the_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    waited_for = wire.poll

    def kernel(peer: socket.socket) -> None:
        splitter = frames.Splitter()
        while data := peer.recv(1 << 16):
            heard.extend(map(frames.decode_from_agent, splitter.feed(data)))

    def interrupted() -> Any:
        signal.raise_signal(signal.SIGINT)
        return waited_for()

    async def asked(client: Client) -> None:
        monkeypatch.setattr(wire, "poll", interrupted)
        await client.call(Status())

    with pytest.raises(KeyboardInterrupt):
        ask(path, kernel, asked)
    assert [type(one) for one in heard] == [Call, Cancel]


@pytest.mark.parametrize("looped", [False, True])
def test_somebody_elses_socket_is_told_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, looped: bool) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(EPERM) as caught:
            (asyncio.run if looped else at_once)(_connects(path))
        assert caught.value.code == "daemon.foreign"
        peer, _ = door.accept()
        with peer:
            assert peer.recv(1) == b""


def test_what_waits_for_a_loop_says_so() -> None:
    with pytest.raises(RuntimeError, match="only a loop"):
        at_once(asyncio.sleep(0))
