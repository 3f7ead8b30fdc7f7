"""The streams of something that runs: what it wrote is carried to the end, and nobody keeps them open for us."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from agent_os.kernel.pumps import Pipes, Pumps


class Heard:
    """A client's stream that takes what it is given; `slow`, only once it is let."""

    last_size = 0

    def __init__(self, *, slow: bool = False) -> None:
        self.got: dict[int, bytes] = {1: b"", 2: b""}
        self.may = asyncio.Event()
        if not slow:
            self.may.set()

    async def send(self, value: Any) -> None:
        await self.may.wait()
        self.got[value[0]] += value[1]

    async def receive(self, *, credit: bool = True) -> Any:
        await asyncio.Event().wait()  # it says nothing

    def give(self, count: int) -> None: ...


def run(work: Callable[[Pipes, tuple[int, int, int]], Awaitable[None]]) -> None:
    """With pipes, and the ends that somebody inside has of them for as long as he likes."""

    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        pipes = Pipes(plain=True, fed=True)
        held = [os.dup(fd) for fd in pipes.theirs]
        pipes.started()
        try:
            async with asyncio.timeout(30):
                await work(pipes, (held[0], held[1], held[2]))
        finally:
            for fd in held:
                os.close(fd)
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


def test_what_was_written_before_the_end_is_carried_though_somebody_keeps_the_streams() -> None:
    async def work(pipes: Pipes, theirs: tuple[int, int, int]) -> None:
        stream = Heard()
        pumps = Pumps(pipes, None, stream)
        pumps.start()
        os.write(theirs[1], b"first ")
        while stream.got[1] != b"first ":
            await asyncio.sleep(0)
        os.write(theirs[1], b"last")
        os.write(theirs[2], b"errors")
        pumps.let_go()
        await pumps.drained()
        assert stream.got == {1: b"first last", 2: b"errors"}

    run(work)


def test_what_somebody_else_writes_after_the_end_is_nobodys() -> None:
    async def work(pipes: Pipes, theirs: tuple[int, int, int]) -> None:
        stream = Heard(slow=True)
        pumps = Pumps(pipes, None, stream)
        pumps.start()
        os.write(theirs[1], b"a")
        for _ in range(5):
            await asyncio.sleep(0)  # it is taken, and waits for the client
        os.write(theirs[1], b"b")
        pumps.let_go()
        os.write(theirs[1], b"forged")
        os.write(theirs[2], b"forged")
        stream.may.set()
        await pumps.drained()
        assert stream.got == {1: b"ab", 2: b""}

    run(work)


def test_without_letting_go_a_stream_lasts_as_long_as_somebody_has_it() -> None:
    async def work(pipes: Pipes, theirs: tuple[int, int, int]) -> None:
        pumps = Pumps(pipes, None, Heard())
        pumps.start()
        drained = asyncio.create_task(pumps.drained())
        done, _ = await asyncio.wait([drained], timeout=0.2)
        assert not done
        await pumps.stop()
        await drained

    run(work)


def test_given_up_before_anything_began_all_is_closed() -> None:
    async def work(pipes: Pipes, theirs: tuple[int, int, int]) -> None:
        pumps = Pumps(pipes, None, Heard())
        pumps.start()
        await pumps.stop()

    run(work)
