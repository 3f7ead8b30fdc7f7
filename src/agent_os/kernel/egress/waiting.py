"""How two directions of a connection are waited for: together, one for the other, and not for ever.

In: coroutines and bounds. Out: their end, or a `Stop` that says why. Knows nothing of what is sent.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from agent_os.kernel.egress.attempt import Stop


@contextlib.asynccontextmanager
async def idle(seconds: float) -> AsyncGenerator[Callable[[], None], None]:
    """Ends what is inside when nothing moved for `seconds`; call what it yields for every move."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds) as clock:

            def touch() -> None:
                when = loop.time() + seconds
                # Moving the timer for every chunk would cost more than the chunk.
                if not clock.expired() and when - (clock.when() or 0.0) > seconds / 60:
                    clock.reschedule(when)

            yield touch
    except TimeoutError:
        raise Stop("net.limit", f"nothing moved for {seconds:g} s", status=504) from None


async def until_last(first: Coroutine[Any, Any, None], last: Coroutine[Any, Any, None]) -> None:
    """Run both; over when `last` is. A failure of either ends both."""
    tasks = asyncio.create_task(first), asyncio.create_task(last)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[1] not in done:
            tasks[0].result()
        await tasks[1]
    finally:
        await _cancel(*tasks)


async def until_all(*work: Coroutine[Any, Any, None]) -> None:
    """Run all; over when all are, or with the first failure."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except OSError as error:
        raise Stop("net.broken", f"the connection broke: {error.strerror}") from error
    finally:
        await _cancel(*tasks)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # the failure that counts was raised already


def half_close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other end has closed both ways already
        sock.shutdown(socket.SHUT_WR)
