"""Lines of JSON between us and a server on two pipes: of a guest that the kernel joined to us, or of a child of ours.

Owns the pipes and the child. In: descriptors or a command. Out: the pair of streams that the SDK reads and writes. A
line longer than a message may be ends the connection before it is kept.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from agent_os.userland.mcp_reading import LARGEST_MESSAGE

if TYPE_CHECKING:
    from mcp.client import Transport

_PATIENCE = 2.0  # seconds to end by itself once nothing more will come
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "TZ", "HTTP_PROXY", "HTTPS_PROXY")
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def pipes(read: int, write: int) -> AsyncGenerator[Ends]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LARGEST_MESSAGE)
    protocol = asyncio.StreamReaderProtocol(reader)
    incoming, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(read, "rb", 0))
    outgoing, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(write, "wb", 0))
    try:
        yield reader, asyncio.StreamWriter(outgoing, flow, None, loop)
    finally:
        outgoing.close()
        incoming.close()


@contextlib.asynccontextmanager
async def child(argv: Sequence[str], env: Mapping[str, str]) -> AsyncGenerator[Ends]:
    """A server in our own sandbox, which is its only company there. Nothing of it is left afterwards."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(LARGEST_MESSAGE, loop),
        *argv,
        stdin=PIPE,
        stdout=PIPE,
        stderr=None,
        env=passed | dict(env),
        start_new_session=True,
    )
    process = Process(transport, protocol, loop)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process.stdout, process.stdin
    finally:
        process.stdin.close()
        try:
            await _ended(transport, _PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started and left behind as well
            transport.close()  # else a pipe that nobody reads any more, or that somebody inherited, stays open
        await process.wait()


async def _ended(transport: asyncio.SubprocessTransport, seconds: float) -> None:
    """asyncio's own way to wait for a process also waits for its pipes, which may never end."""
    deadline = asyncio.get_running_loop().time() + seconds
    while transport.get_returncode() is None and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _streams(ends: AbstractAsyncContextManager[Ends]) -> AsyncGenerator[Any]:
    import anyio
    import mcp_types
    from anyio.streams.memory import MemoryObjectReceiveStream as Receiving
    from anyio.streams.memory import MemoryObjectSendStream as Sending
    from mcp.shared.message import SessionMessage

    parse = mcp_types.jsonrpc_message_adapter.validate_json

    async def read(reader: asyncio.StreamReader, to_session: Sending[SessionMessage | Exception]) -> None:
        async with to_session:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError, ValueError):
                while line := await reader.readline():  # ValueError: a line beyond all bounds
                    try:
                        message = SessionMessage(parse(line, by_name=False))
                    except ValueError:
                        continue  # servers print to their output what is no message; the SDK would only log it
                    await to_session.send(message)

    async def write(
        writer: asyncio.StreamWriter,
        from_session: Receiving[SessionMessage],
        to_session: Sending[SessionMessage | Exception],
    ) -> None:
        async with from_session:
            try:
                async for one in from_session:
                    writer.write(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                    await writer.drain()
            except OSError:
                await to_session.aclose()  # the server takes no more: whoever waits for an answer must hear of it

    async with ends as (reader, writer):
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        with to_session, incoming, outgoing, from_session:
            async with anyio.create_task_group() as group:
                group.start_soon(read, reader, to_session)
                group.start_soon(write, writer, from_session, to_session)
                try:
                    yield incoming, outgoing
                finally:
                    group.cancel_scope.cancel()


def streams(ends: AbstractAsyncContextManager[Ends]) -> "Transport":
    return _streams(ends)
