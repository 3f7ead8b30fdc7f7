"""A small honest kernel for tests of userland: real frames on a real socket, entries in a dictionary, no authority.

It answers what a kernel would answer, notes every call, and does on request what no kernel should: garbage, goodbyes,
answers out of order. It lives in a thread with a loop of its own, as a kernel does not share the agent's. `played` runs
a program with a Context against it.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from agent_os.abi import frames
from agent_os.abi.errors import ECONFLICT, EIO, ENOENT, ENOSYS, AgentOSError
from agent_os.abi.syscalls import BY_NUMBER
from agent_os.userland.context import Context

CREDIT = 256 * 1024
Answer = Callable[["FakeKernel", frames.Call, Any], Awaitable[Any]]
_CHUNK = 60_000


class FakeKernel:
    def __init__(self, sock: socket.socket, answers: dict[str, Answer] | None = None, **welcome: Any) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._splitter = frames.Splitter()
        self._answers = answers or {}
        self._welcome = {"abi": 1, "agent": "default/probe", "incarnation": 1, "limits": {"stream_credit": CREDIT}}
        self._welcome |= welcome
        self._uploads: dict[int, asyncio.Queue[frames.Chunk | frames.End]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._pushes = 0
        self.hello: frames.Hello | None = None
        self.calls: list[frames.Call] = []
        self.cancelled: list[int] = []
        self.credit: dict[int, int] = {}
        self.entries: dict[str, tuple[Any, int]] = {}
        self.exit: dict[str, Any] | None = None
        self._arrived = asyncio.Condition()  # something came in
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> "FakeKernel":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._loop.close()
        self._sock.close()

    async def _serve(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._loop.sock_recv(self._sock, 1 << 16):
                for one in self._splitter.feed(data):
                    frame = frames.decode_from_agent(one)
                    if frame is not None:
                        await self._take(frame)
                async with self._arrived:
                    self._arrived.notify_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # For the program of a test, which is in another thread.

    def signal(self, signal: int, value: Any = None) -> "asyncio.Future[Any]":
        return self._there(self.push_now("signal", {"signal": int(signal), "value": value, "sender": "local:0"}))

    def push(self, what: str, body: Any) -> "asyncio.Future[Any]":
        return self._there(self.push_now(what, body))

    def raw(self, data: bytes) -> "asyncio.Future[Any]":
        return self._there(self.send_bytes(data))

    def until(self, fact: Callable[[], Any]) -> "asyncio.Future[Any]":
        return self._there(self.until_now(fact))

    def hang_up(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)

    def _there(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Future[Any]":
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # In its own thread.

    async def _take(self, frame: frames.FromAgent) -> None:
        if isinstance(frame, frames.Hello):
            self.hello = frame
            await self.send(frames.Welcome(**self._welcome))
        elif isinstance(frame, frames.Call):
            self.calls.append(frame)
            if BY_NUMBER[frame.op].name == "SYS_EXIT":  # at once: the end of the connection is right behind it
                self.exit = msgspec.msgpack.decode(frame.body)
            task = asyncio.create_task(self._answer(frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(frame, frames.Cancel):
            self.cancelled.append(frame.id)
        elif isinstance(frame, frames.Credit):
            self.credit[frame.id] = self.credit.get(frame.id, 0) + frame.bytes
        else:
            self._upload(frame.id).put_nowait(frame)

    async def _answer(self, call: frames.Call) -> None:
        name = BY_NUMBER[call.op].name
        try:
            request = msgspec.msgpack.decode(call.body, type=BY_NUMBER[call.op].request)  # strict, as a kernel is
            body = msgspec.to_builtins(request, builtin_types=(bytes,))
            answer = self._answers.get(name) or getattr(FakeKernel, name.lower(), FakeKernel.unknown)
            value = await answer(self, call, body)
        except AgentOSError as error:
            await self.send(frames.from_error(call.id, error))
        except Exception as problem:  # of the fake itself: told, so that no test waits for an answer
            await self.send(frames.from_error(call.id, EIO("fake", repr(problem))))
        else:
            if value is not NO_REPLY:
                await self.send(frames.Reply(call.id, frames.body(value)))

    async def send(self, *some: frames.Frame) -> None:
        await self.send_bytes(b"".join(map(frames.encode, some)))

    async def send_bytes(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def push_now(self, what: str, body: Any) -> None:
        self._pushes += 1
        await self.send(frames.Push(self._pushes, what, frames.body(body)))

    async def until_now(self, fact: Callable[[], Any]) -> None:
        async with asyncio.timeout(10), self._arrived:
            await self._arrived.wait_for(fact)

    def named(self, name: str) -> list[frames.Call]:
        return [call for call in self.calls if BY_NUMBER[call.op].name == name]

    def trace(self) -> list[tuple[str | None, str, Any]]:
        """Place, name and body of every call: what a replay is matched by."""
        return [(one.pos, BY_NUMBER[one.op].name, msgspec.msgpack.decode(one.body)) for one in self.calls]

    def _upload(self, call: int) -> "asyncio.Queue[frames.Chunk | frames.End]":
        return self._uploads.setdefault(call, asyncio.Queue())

    # What a kernel answers.

    async def unknown(self, call: frames.Call, body: Any) -> Any:
        raise ENOSYS("op", f"the fake kernel has no {BY_NUMBER[call.op].name}")

    async def sys_read(self, call: frames.Call, body: Any) -> Any:
        if body["path"] not in self.entries:
            raise ENOENT("vfs.absent", f"there is no {body['path']}", hint="SYS_LIST shows what there is")
        data, version = self.entries[body["path"]]
        head = {"version": version, "size": len(data)}
        if len(data) <= CREDIT:
            return {"data": data, **head}
        pieces = [head, *(data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))]
        sent = 0
        for n, piece in enumerate(map(frames.body, pieces)):
            sent += len(bytes(piece))
            await self.until_now(lambda: CREDIT + self.credit.get(call.id, 0) >= sent)  # noqa: B023
            await self.send(frames.Chunk(call.id, n, piece))
        await self.send(frames.End(call.id, len(pieces)))
        return NO_REPLY

    async def sys_write(self, call: frames.Call, body: Any) -> Any:
        old, version = self.entries.get(body["path"], (None, 0))
        if body["if_version"] is not None and body["if_version"] != version:
            raise ECONFLICT("vfs.version", f"version {version} is there", version=version)
        data = await self._streamed(call) if body["stream"] else body["data"]
        if body["mode"] == "append" and old is not None:
            data = old + data
        self.entries[body["path"]] = (data, version + 1)
        return {"version": version + 1, "size": len(data)}

    async def _streamed(self, call: frames.Call) -> Any:
        parts: list[Any] = []
        while True:
            frame = await self._upload(call.id).get()
            assert frame.n == len(parts)
            if isinstance(frame, frames.End):
                return type(parts[0])().join(parts) if parts else b""
            parts.append(msgspec.msgpack.decode(frame.data))
            await self.send(frames.Credit(call.id, len(bytes(frame.data))))

    async def sys_list(self, call: frames.Call, body: Any) -> Any:
        top = body["path"].rstrip("/") + "/"
        names = sorted(path.removeprefix(top) for path in self.entries if path.startswith(top))
        rest = [name for name in names if name > body["after"]]
        return {"entries": [{"name": name, "kind": "file"} for name in rest[:3]], "more": len(rest) > 3}

    async def sys_stat(self, call: frames.Call, body: Any) -> Any:
        data, version = self.entries[body["path"]]
        return {"kind": "file", "size": len(data), "version": version, "rights": "rw", "labels": [], "later": "field"}

    async def sys_remove(self, call: frames.Call, body: Any) -> Any:
        self.entries.pop(body["path"])

    async def sys_watch(self, call: frames.Call, body: Any) -> Any:
        return {"watch": body["path"]}

    async def sys_exec(self, call: frames.Call, body: Any) -> Any:
        return {"tool": body["tool"], "params": body["params"]}

    async def sys_random(self, call: frames.Call, body: Any) -> Any:
        return bytes(range(body["n"]))

    async def sys_now(self, call: frames.Call, body: Any) -> Any:
        return {"wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}

    async def sys_sleep(self, call: frames.Call, body: Any) -> Any:
        await asyncio.sleep(body["ms"] / 1000)

    async def sys_checkpoint(self, call: frames.Call, body: Any) -> Any:
        return {"checkpoint": body["name"]}

    async def sys_sigmask(self, call: frames.Call, body: Any) -> Any:
        return {"mask": body["block"]}

    async def sys_ready(self, call: frames.Call, body: Any) -> Any:
        return None

    async def sys_alive(self, call: frames.Call, body: Any) -> Any:
        return None

    async def sys_exit(self, call: frames.Call, body: Any) -> Any:
        return NO_REPLY


NO_REPLY = object()


async def forever(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
    """An answer that never comes."""
    return NO_REPLY


def played(
    program: Callable[[Context, FakeKernel], Coroutine[Any, Any, Any]],
    answers: dict[str, Answer] | None = None,
    hook: Any = None,
    check: Any = None,
    says_ready: bool = False,
    **welcome: Any,
) -> tuple[Any, FakeKernel]:
    """What a program gave, or the exception that it ended with, and the kernel it talked to."""

    async def play(ours: socket.socket, kernel: FakeKernel) -> Any:
        try:
            ctx = await Context.connect(ours, hook=hook, check=check, says_ready=says_ready)
        except AgentOSError as problem:
            return problem
        try:
            async with asyncio.timeout(30):
                result = await ctx.run(program(ctx, kernel))
        except (AgentOSError, asyncio.CancelledError) as problem:
            result = problem
        with contextlib.suppress(AgentOSError):
            await ctx.leave(0)
        return result

    ours, theirs = socket.socketpair()
    with ours, FakeKernel(theirs, answers, **welcome) as kernel:
        return asyncio.run(play(ours, kernel)), kernel
