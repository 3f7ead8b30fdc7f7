"""A guest's three streams: pipes of our own between it and whatever the operator connected.

Always our pipes, never the operator's descriptors: a file would show a host path, a terminal could be steered. Text
that goes to a terminal keeps its colours and loses every other escape sequence.
"""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable

_CHUNK = 65536
# One escape sequence: CSI, a string sequence (OSC, DCS, …) up to its end, or a two-byte one. Also the 8-bit forms in
# UTF-8, and their first byte alone: what is taken out behind it must not join it with a second one.
_ESCAPE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-Z\\`-~]"
    rb"|\xc2(?![\xa0-\xbf])[\x80-\x9f]?",
    re.DOTALL,
)
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?|\xc2)\Z", re.DOTALL)
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x1b")) + b"\x7f"
_LONGEST = 4096


class Tamer:
    """Makes output harmless for a terminal, across chunk borders."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        unfinished = _UNFINISHED.search(data)
        self._held = data[unfinished.start() :] if unfinished and len(data) - unfinished.start() < _LONGEST else b""
        return self._tame(data[: len(data) - len(self._held)])

    def end(self) -> bytes:
        rest, self._held = self._held, b""
        return self._tame(rest)

    @staticmethod
    def _tame(data: bytes) -> bytes:
        pieces: list[bytes] = []
        position = 0
        for match in _ESCAPE.finditer(data):
            pieces.append(data[position : match.start()].translate(None, _CONTROLS + b"\x1b"))
            if _COLOUR.fullmatch(match[0]):
                pieces.append(match[0])
            position = match.end()
        pieces.append(data[position:].translate(None, _CONTROLS + b"\x1b"))
        return b"".join(pieces)


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

    def drain(self) -> None:
        """Everything the guest wrote is out when this returns."""
        for pump in self._pumps:
            pump.join()


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
