"""The same end point over loopback HTTP and in real time, `speed` times faster; the product's queue before it.

What virtual time cannot show: connections, a reply's head that arrives late, clocks that drift apart. The server counts
as the end point of the benchmark does and streams its answer; the client is the queue with one task a program.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import httpx2
from benchmarks.sharedllm.engine import EndPoint, Job
from benchmarks.sharedllm.metrics import quantile
from benchmarks.sharedllm.policies import Ours
from benchmarks.sharedllm.programs import DECODE, DEPTH, Program, herd, start_after

_PIECES = 8  # of an answer


class Server:
    """POST / with {prompt, output}: 429 with `retry-after`, or a stream with the limits in its head."""

    def __init__(self, speed: float) -> None:
        self.speed, self.refusals = speed, 0
        self._end_point, self._began = EndPoint(), time.monotonic()

    def _now(self) -> float:
        return (time.monotonic() - self._began) * self.speed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                asked = json.loads(await reader.readexactly(int(length.split(b":")[1])))
                await self._answer(asked["prompt"], asked["output"], writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client is done
        finally:
            writer.close()

    async def _answer(self, prompt: int, output: int, writer: asyncio.StreamWriter) -> None:
        retry_after = self._end_point.admit(prompt + output, self._now())
        if retry_after is not None:
            self.refusals += 1
            head = f"HTTP/1.1 429 Too Many Requests\r\nretry-after: {retry_after:.3f}\r\ncontent-length: 0\r\n\r\n"
            writer.write(head.encode())
            return await writer.drain()
        try:
            await asyncio.sleep(start_after(prompt) / self.speed)
            left = max(0, int(self._end_point.refill(self._now())))
            limits = f"x-ratelimit-limit-tokens: {DEPTH:.0f}\r\nx-ratelimit-remaining-tokens: {left}\r\n"
            head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{limits}\r\n"
            writer.write(head.encode())
            for _ in range(_PIECES):
                await writer.drain()
                await asyncio.sleep(output / _PIECES / DECODE / self.speed)
                writer.write(b"8\r\ndata: x\n\r\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            self._end_point.flying -= 1


class Client:
    """Programs that call through the product's queue."""

    def __init__(self, url: str, speed: float, *, told: bool) -> None:
        self._url, self._speed = url, speed
        self._policy = Ours(1, told=told)
        self._http = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=64), timeout=300)
        self._began = time.monotonic()
        self._done: dict[str, asyncio.Future[None]] = {}
        self._flying: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None

    def now(self) -> float:
        return (time.monotonic() - self._began) * self._speed

    async def run(self, program: Program) -> float:
        """How long it took, in the end point's seconds."""
        await self._pause(program.arrival - self.now())
        arrived = self.now()
        for number, stage in enumerate(program.stages):
            jobs = [Job(f"{program.id}.{number}.{n}", program, ask, self.now()) for n, ask in enumerate(stage.asks)]
            for job in jobs:
                self._done[job.id] = asyncio.get_running_loop().create_future()
                self._policy.join(job, self.now())
            self._turn()
            await asyncio.gather(*(self._done[job.id] for job in jobs))
            if number + 1 < len(program.stages):
                await self._pause(stage.pause)
        self._policy.program_done(program, self.now(), whole=True)
        return self.now() - arrived

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self._speed)

    def _turn(self) -> None:
        """After every event, and when the queue asked for it."""
        while sending := self._policy.next(self.now()):
            task = asyncio.ensure_future(self._call(sending))
            self._flying.add(task)
            task.add_done_callback(self._flying.discard)
        if self._alarm:
            self._alarm.cancel()
        moment = self._policy.wake(self.now())
        if moment is not None:
            wait = max(0.0, moment - self.now()) / self._speed
            self._alarm = asyncio.get_running_loop().call_later(wait + 0.001, self._turn)

    async def _call(self, sending) -> None:
        body = {"prompt": sending.prompt, "output": sending.output}
        async with self._http.stream("POST", self._url, json=body) as reply:
            if reply.status_code == 429:
                self._policy.refused(sending, float(reply.headers["retry-after"]), self.now())
                return self._turn()
            self._policy.began(sending, float(reply.headers["x-ratelimit-remaining-tokens"]), self.now())
            self._turn()
            async for _ in reply.aiter_bytes():
                pass
        self._policy.ended(sending, self.now())
        self._done.pop(sending.job.id).set_result(None)
        self._turn()

    async def close(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        await self._http.aclose()


async def main(seed: int, count: int, speed: float) -> int:
    bad = 0
    for told in (True, False):
        mean, p95, took, refusals = await _served(
            speed, lambda url, speed, told=told: _herd(url, speed, seed, count, told)
        )
        mode = "told" if told else "learned"
        print(f"  {mode:<8} mean JCT {mean:7.1f} s, p95 {p95:7.1f} s, 429s {refusals}, {took:.1f} s of real time")
        bad += refusals > (0 if told else 10)
    return 1 if bad else 0


async def _herd(url: str, speed: float, seed: int, count: int, told: bool) -> list[float]:
    client = Client(url, speed, told=told)
    try:
        return await asyncio.gather(*(client.run(program) for program in herd(seed, count)))
    finally:
        await client.close()


async def _served(
    speed: float, work: Callable[[str, float], Awaitable[list[float]]]
) -> tuple[float, float, float, int]:
    server = Server(speed)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    began = time.monotonic()
    async with listening:
        host, port = listening.sockets[0].getsockname()
        took = await work(f"http://{host}:{port}/", speed)
    return sum(took) / len(took), quantile(took, 0.95), time.monotonic() - began, server.refusals
