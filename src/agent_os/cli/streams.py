"""A guest's three streams: pipes of our own between it and whatever the operator connected.

Always our pipes, never the operator's descriptors: a file would show a host path, a terminal could be steered. Text
that goes to a terminal keeps its colours and loses every other escape sequence.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable

from agent_os.cli.tamer import Tamer

_CHUNK = 65536


class Streams:
    """`theirs` goes to the guest; call `started` once it has it, and `drain` after its end."""

    def __init__(self) -> None:
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        self.theirs = (stdin[0], stdout[1], stderr[1])
        threading.Thread(target=_feed, args=(0, stdin[1]), daemon=True).start()
        self._pumps = [_pump(stdout[0], sys.stdout.fileno()), _pump(stderr[0], sys.stderr.fileno())]

    def started(self) -> None:
        """Our copies of the guest's ends must go, or its end would never be the end of the stream."""
        for fd in self.theirs:
            os.close(fd)

    async def drain(self, hurry: asyncio.Event) -> None:
        """Everything the guest wrote is out when this returns, unless somebody is in a hurry: whoever should read it
        may never do so."""
        loop = asyncio.get_running_loop()
        out = asyncio.Event()

        def wait() -> None:
            for pump in self._pumps:
                pump.join()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(out.set)

        threading.Thread(target=wait, daemon=True).start()
        waiting = [asyncio.create_task(event.wait()) for event in (out, hurry)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()


def _feed(source: int, target: int) -> None:
    """The operator's input, until either side ends. May stay blocked on a terminal: the thread is a daemon."""
    try:
        while data := os.read(source, _CHUNK):
            _write_all(target, data)
    except OSError:
        pass  # no stdin at all, or the guest no longer reads: both are the end of input
    finally:
        os.close(target)


def _pump(source: int, target: int) -> threading.Thread:
    thread = threading.Thread(target=_carry, args=(source, target), daemon=True)
    thread.start()
    return thread


def _carry(source: int, target: int) -> None:
    tamer = Tamer() if os.isatty(target) else None
    change: Callable[[bytes], bytes] = tamer.feed if tamer else bytes
    try:
        while data := os.read(source, _CHUNK):
            _write_all(target, change(data))
        if tamer:
            _write_all(target, tamer.end())
    except BrokenPipeError:
        pass  # whoever read our output is gone; closing the pipe tells the guest
    except OSError as problem:  # a full disk, a terminal that hung up: the same for the guest, but no silent loss
        with contextlib.suppress(OSError):
            os.write(2, f"agentctl: its output could not be written: {problem.strerror}\n".encode())
    finally:
        os.close(source)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
