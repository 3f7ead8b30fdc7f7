"""The operator's terminal and the guest's own, joined: raw keys in, tamed screen out, sizes kept equal.

The guest's terminal is a pseudo-terminal inside its sandbox; we hold the other end. The operator's own terminal never
enters. Whatever happens, it is given back as it was found.
"""

import contextlib
import fcntl
import os
import select
import struct
import termios
import threading
import tty
from collections.abc import Callable, Iterator

from agent_os.cli.tamer import Tamer

_CHUNK = 65536
_MOST_KEYS = 1 << 20  # more than anybody types or pastes
# What a full-screen program may have left behind: modes of mouse, paste and keys, alternate screen, cursor, colours.
_RESTORE = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[>4m\x1b[?1049l\x1b[?25h\x1b[!p\x1b[0m"


def is_interactive() -> bool:
    return os.isatty(0) and os.isatty(1)


def size() -> tuple[int, int]:
    """Rows and columns of the operator's terminal."""
    rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))
    return rows or 24, columns or 80


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Keys reach us one by one, and Ctrl-C is a key. Afterwards the terminal is as it was, and no key is left over."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead belongs to the guest
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the terminal itself may be gone
            os.write(1, _RESTORE)
            # also drops answers to questions that the guest asked the terminal just before its end
            termios.tcsetattr(0, termios.TCSAFLUSH, before)


class Link:
    """Carries keys and screen between the two terminals until the guest's has no user left. Never waits for the guest:
    keys that it does not read are kept up to a bound, so that Ctrl-C is seen and the screen goes on."""

    def __init__(self, guest_end: int, kill: Callable[[], object]) -> None:
        self._guest = os.dup(guest_end)
        os.set_blocking(self._guest, False)
        self._kill = kill
        self._tamer = Tamer(full_screen=True)
        self._keys = b""  # typed, and not yet taken by the guest's terminal
        self._asked = False  # Ctrl-C was pressed, and the program has shown nothing since
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def resize(self) -> None:
        rows, columns = size()
        with contextlib.suppress(OSError):  # the guest has just ended
            fcntl.ioctl(self._guest, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def finish(self) -> None:
        """Everything the guest wrote is on the screen when this returns."""
        os.close(self._woken)
        self._thread.join()
        os.close(self._wake)
        os.close(self._guest)

    def _carry(self) -> None:
        watch = select.poll()
        watch.register(0, select.POLLIN)
        watch.register(self._wake, select.POLLIN)
        ending = False
        while True:
            watch.register(self._guest, select.POLLIN | (select.POLLOUT if self._keys else 0))
            ready = dict(watch.poll(0 if ending else None))
            seen = ready.get(self._guest, 0)
            if seen & ~select.POLLOUT:
                if not self._show():
                    return
            elif ending:
                return
            if 0 in ready and not ending and not self._type():
                watch.unregister(0)
            self._pass_keys()
            ending = ending or self._wake in ready

    def _show(self) -> bool:
        try:
            data = os.read(self._guest, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # EIO: nobody has the guest's terminal open any more
            data = b""
        if data.strip(b"^C\r\n"):  # more than the echo of the key
            self._asked = False
        _write(1, self._tamer.feed(data) if data else self._tamer.end())
        return bool(data)

    def _type(self) -> bool:
        keys = os.read(0, _CHUNK)
        if b"\x03" in keys and self._interrupts():
            if self._asked:
                self._kill()
            self._asked = True
        self._keys = (self._keys + keys)[:_MOST_KEYS]
        return bool(keys)

    def _pass_keys(self) -> None:
        with contextlib.suppress(OSError):  # full for now, or the guest has just ended
            self._keys = self._keys[os.write(self._guest, self._keys) :] if self._keys else b""

    def _interrupts(self) -> bool:
        """Whether Ctrl-C means interrupt there. An editor reads it as a key like any other."""
        try:
            return bool(termios.tcgetattr(self._guest)[3] & termios.ISIG)
        except termios.error:
            return False


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
