"""Makes a guest's output harmless for the operator's terminal.

Bytes in, bytes out, chunk borders do not matter. In line mode colours pass and nothing else that steers a terminal; on
a guest's own terminal full-screen programs must work, so cursor and screen pass, too. What never passes: strings that
set the clipboard, the title or anything else from outside the text (OSC, DCS, …), and requests whose answer the
terminal would type back as if the operator had (window reports, answerback, printing).
"""

import codecs
import re

# One escape sequence: CSI, a string sequence (OSC, DCS, …) up to its end, or a two-byte one. Also the 8-bit forms in
# UTF-8, and their first byte alone: what is taken out behind it must not join it with a second one.
_ESCAPE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-Z\\`-~]"
    rb"|\xc2(?![\xa0-\xbf])[\x80-\x9f]?",
    re.DOTALL,
)
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?|\xc2)\Z", re.DOTALL)
_LONGEST = 4096

_COLOUR = re.compile(rb"\x1b\[[0-9;:]*m")
_SCREEN = re.compile(
    rb"\x1b\[[0-9;:]*[@A-HJKLMPSTXZ`abdefghlmnrsu]"  # cursor, erase, scroll, colours; 5n and 6n ask where the cursor is
    rb"|\x1b\[\?[0-9;]*[hlJKmn]"  # private modes: alternate screen, mouse, bracketed paste
    rb"|\x1b\[[>?]?[0-9;]*c|\x1b\[>[0-9;]*m"  # which terminal is this; how keys are reported
    rb"|\x1b\[!p|\x1b\[[0-9]* q"  # soft reset, cursor shape
    rb"|\x1b[78=>DEHMc]|\x1b[()*+][0-9A-Za-z]|\x1b#[3-8]"  # save, keypad, index, reset; character sets
)
_LINE_CONTROLS, _SCREEN_CONTROLS = b"\t\n\r", b"\t\n\r\a\b\v\f\x0e\x0f"


class Tamer:
    def __init__(self, *, full_screen: bool = False) -> None:
        self._held = b""
        # A byte that is no UTF-8 could be a control in an 8-bit terminal; it becomes a visible mark instead.
        self._text = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pass = _SCREEN if full_screen else _COLOUR
        allowed = _SCREEN_CONTROLS if full_screen else _LINE_CONTROLS
        self._drop = bytes(set(range(32)) - set(allowed)) + b"\x7f"

    def feed(self, data: bytes) -> bytes:
        data = self._held + self._text.decode(data).encode()
        unfinished = _UNFINISHED.search(data)
        self._held = data[unfinished.start() :] if unfinished and len(data) - unfinished.start() < _LONGEST else b""
        return self._tame(data[: len(data) - len(self._held)])

    def end(self) -> bytes:
        rest, self._held = self._held + self._text.decode(b"", final=True).encode(), b""
        return self._tame(rest)

    def _tame(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        position = 0
        for match in _ESCAPE.finditer(data):
            pieces.append(data[position : match.start()].translate(None, self._drop))
            if self._pass.fullmatch(match[0]):
                pieces.append(match[0])
            position = match.end()
        pieces.append(data[position:].translate(None, self._drop))
        return b"".join(pieces)
