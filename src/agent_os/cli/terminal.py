"""The operator's terminal, lent to an agent that has one of its own: raw keys in, tamed screen out, sizes kept equal.

The agent's terminal is a pseudo-terminal inside its sandbox; the kernel holds the other end. The operator's own never
enters. Whatever happens, it is given back as it was found.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
import tty
from collections.abc import Iterator

from agent_os.client.wire import Stream

_CHUNK = 65536
# What a full-screen program may have left behind: modes of mouse, paste and keys, alternate screen, cursor, colours.
_RESTORE = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[>4m\x1b[?1049l\x1b[?25h\x1b[!p\x1b[0m"


def is_interactive() -> bool:
    return os.isatty(0) and os.isatty(1)


def size() -> tuple[int, int]:
    """Rows and columns of the operator's terminal."""
    rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))
    return rows or 24, columns or 80


@contextlib.contextmanager
def lent(stream: Stream) -> Iterator[None]:
    """Keys and sizes go to the agent, and Ctrl-C is a key. Afterwards the terminal is as it was, and no key is left
    over."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead belongs to the agent
    loop = asyncio.get_running_loop()
    under_way: set[asyncio.Task[None]] = set()

    def send(value: object, *, urgent: bool = False) -> None:
        task = loop.create_task(stream.send(value, urgent=urgent))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    def typed() -> None:
        try:
            keys = os.read(0, _CHUNK)
        except OSError:  # the terminal itself is gone
            keys = b""
        if keys:
            send(keys)
        else:
            loop.remove_reader(0)

    def resized() -> None:
        send(list(size()), urgent=True)

    loop.add_reader(0, typed)
    loop.add_signal_handler(signal.SIGWINCH, resized)
    resized()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_reader(0)
        with contextlib.suppress(OSError):  # the terminal itself may be gone
            os.write(1, _RESTORE)
            # also drops answers to questions that the agent asked the terminal just before its end
            termios.tcsetattr(0, termios.TCSAFLUSH, before)
