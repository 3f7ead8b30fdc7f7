"""A guest's streams: what reaches a terminal is tamed, wherever the chunks of it are cut."""

import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.cli.tamer import Tamer

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")


def tamed(*chunks: bytes) -> bytes:
    tamer = Tamer()
    return b"".join([*map(tamer.feed, chunks), tamer.end()])


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (b"plain \xc3\xa4\xe2\x82\xac\n\r\t", b"plain \xc3\xa4\xe2\x82\xac\n\r\t"),
        (b"\x1b[31mred\x1b[0m \x1b[1;38;5;200mx\x1b[m", b"\x1b[31mred\x1b[0m \x1b[1;38;5;200mx\x1b[m"),
        (b"a\x1b]52;c;cHduZWQ=\x07b", b"ab"),  # writes the clipboard
        (b"a\x1b]52;c;cHduZWQ=\x1b\\b", b"ab"),
        (b"a\x1b]0;title\x07b\x1b]2;title\x1b\\c", b"abc"),
        (b"a\x1b]8;;http://evil.example\x1b\\b\x1b]8;;\x1b\\c", b"abc"),  # a link that shows another text
        (b"a\x1b[2J\x1b[H\x1b[10;20Hb\x1b[Ac\x1b[?1049hd\x1b[6ne", b"abcde"),  # screen, cursor, other screen, query
        (b"a\x1bP$qm\x1b\\b\x1bXtext\x1b\\c\x1b^pm\x1b\\d\x1b_apc\x1b\\e", b"abcde"),  # string sequences
        (b"a\x1bcb\x1b7c\x1b(0d\x1b#8e", b"abcde"),  # reset, save, character set, test pattern
        (b"a\xc2\x9b2Jb\xc2\x9d0;tc", b"a2Jb0;tc"),  # the 8-bit forms in UTF-8: no introducer, no sequence
        # nor by joining what stood apart; what is no UTF-8 shows as a mark, since 8-bit terminals would obey it
        (b"a\xc2\x00\x9b2Jb\xc2\x1b[2J\x9b2Jc", "a\ufffd\ufffd2Jb\ufffd\ufffd2Jc".encode()),
        (b"a\x9d0;pwn\x07\x9b21t", "a\ufffd0;pwn\ufffd21t".encode()),
        (b"a\x08\x08\x07\x0e\x00\x7fb\x0b\x0c", b"ab"),
        (b"end\x1b", b"end"),
        (b"end\x1b[", b"end["),  # what follows an escape that never was one is text
        (b"\x1b[31\x1b[32mx", b"[31\x1b[32mx"),
        (b"\x1b]0;never ended", b"]0;never ended"),
    ],
)
def test_what_could_steer_a_terminal_is_taken_out_and_colours_stay(given: bytes, left: bytes) -> None:
    assert tamed(given) == left


FRAGMENTS = [
    *(bytes([n]) for n in (0, 7, 8, 9, 10, 13, 24, 26, 27, 91, 92, 93, 59, 109, 0x7F, 0x9B, 0xC2, 0xC3, 0xA4)),
    *(b"\x1b[31m", b"\x1b[0m", b"\x1b[2J", b"\x1b]0;t\x07", b"\x1b]52;c;eA==\x1b\\", b"\x1bP", b"\x1b\\", b"text"),
]
SOUP = st.lists(st.sampled_from(FRAGMENTS), max_size=30).map(b"".join)
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


@given(data=SOUP, cuts=st.lists(st.integers(0, 200), max_size=8))
def test_where_the_chunks_are_cut_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    chunks = [data[a:b] for a, b in pairwise(edges)]
    assert tamed(*chunks) == tamed(data)


@given(data=SOUP | st.binary(max_size=200))
def test_the_only_escapes_that_come_out_are_colours(data: bytes) -> None:
    rest = COLOUR.sub(b"", tamed(*(data[n : n + 1] for n in range(len(data)))))
    assert not set(rest) & (set(range(32)) - set(b"\t\n\r"))
    assert b"\x7f" not in rest
    assert not re.search(rb"\xc2[\x80-\x9f]", rest)


@given(data=SOUP | st.binary(max_size=200))
def test_taming_twice_changes_nothing(data: bytes) -> None:
    assert tamed(tamed(data)) == tamed(data)


@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])))
def test_ordinary_text_passes_unchanged(text: str) -> None:
    assert tamed(text.encode()) == text.encode()


@pytest.mark.parametrize("opening", [b"\x1b]52;c;", b"\x1b[", b"\x1bP"])
def test_a_sequence_that_never_ends_holds_back_a_bounded_amount(opening: bytes) -> None:
    tamer = Tamer()
    fed, out = 0, b""
    for chunk in [opening, *[b"0" * 1000] * 20]:
        out += tamer.feed(chunk)
        fed += len(chunk)
    assert len(out) > fed - 10_000
    assert b"\x1b" not in out + tamer.end()


@pytest.mark.parametrize("size", [5_000, 100_000])
def test_a_long_clipboard_sequence_is_taken_out_whole_or_shown_as_text(size: int) -> None:
    """Longer than what is held back: its text may appear, its effect may not."""
    data = b"a\x1b]52;c;" + b"A" * size + b"\x07b"
    for step in (1 << 16, 1000, 7):
        out = tamed(*(data[n : n + step] for n in range(0, len(data), step)))
        assert b"\x1b" not in out
        assert b"\x07" not in out


FLOOD = """
import asyncio
from agent_os.cli.following import Drain

async def main():
    written = []
    drains = {fd: Drain(fd, None, written.append, lambda: None) for fd in (1, 2)}
    drains[1].put(b'got in\\x1b]0;t\\x07', 13)
    drains[2].put(b'on the side', 11)
    for drain in drains.values():
        await drain.finish()
    await asyncio.sleep(0)
    assert sorted(written) == [11, 13]

asyncio.run(main())
"""


@pytest.mark.integration
def test_the_outputs_are_carried_apart_unchanged_and_drained() -> None:
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"got in\x1b]0;t\x07", b"on the side")


def shown_full_screen(data: bytes) -> bytes:
    tamer = Tamer(full_screen=True)
    return tamer.feed(data) + tamer.end()


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b[2J\x1b[H\x1b[10;20H\x1b[A\x1b[1;31mred\x1b[0m",  # screen, cursor, colour
        b"\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[?1000h\x1b[?1006h",  # other screen, cursor off, paste, mouse
        b"\x1b[6n\x1b[c\x1b[>c\x1b[>4;2m",  # where is the cursor, which terminal are you, how to report keys
        b"\x1b(B\x1b)0\x0elqk\x0f\x1b7\x1b8\x1b=\x1b>\x1bM",  # line drawing, save and restore, keypad, scroll
        b"\x1b[1;24r\x1b[4h\x1b[3X\x1b[2 q\x1b[!p\a\b\t\r\n",
    ],
)
def test_full_screen_programs_pass_on_a_terminal_of_their_own(data: bytes) -> None:
    assert shown_full_screen(data) == data


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b]52;c;cHduZWQ=\x07",  # writes the clipboard
        b"\x1b]0;title\x07\x1b]2;title\x1b\\",
        b"\x1b[21t\x1b[20t\x1b[18t",  # reports the title and the size as if typed
        b"\x1bP$qm\x1b\\\x1bP+q544e\x1b\\",  # asks for settings and capabilities
        b"\x1b]10;?\x07\x1b]4;1;?\x07",  # asks for colours
        b"\x05",  # answerback
        b"\x1b[5i\x1b[4i\x1b[?5i",  # prints
        b"\x1b[>1u\x1b[=5u\x1b[>q\x1b[x\x1b[4;1y",  # key protocols that stay on, version and parameter queries
        b"\x1bZ\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\",
        b"\xc2\x9d52;c;eA==\xc2\x9c".replace(b"52;c;eA==", b""),  # the 8-bit forms
        b"\x1b\x1b\x1b\x00\x7f",
    ],
)
def test_what_could_reach_beyond_the_screen_never_passes(data: bytes) -> None:
    assert shown_full_screen(data) == b""


@given(data=SOUP | st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_on_a_terminal_too_chunks_make_no_difference_and_no_string_begins(data: bytes, cuts: list[int]) -> None:
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    tamer = Tamer(full_screen=True)
    left = b"".join([*(tamer.feed(data[a:b]) for a, b in pairwise(edges)), tamer.end()])
    assert left == shown_full_screen(data)
    assert not re.search(rb"\x1b[\]PX^_]|\xc2[\x80-\x9f]|\x1b\[[0-?]*[ -/]*[tiqxy]", left.replace(b" q", b""))
