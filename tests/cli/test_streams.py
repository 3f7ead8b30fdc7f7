"""A guest's streams: what reaches a terminal is tamed, wherever the chunks of it are cut."""

import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.cli.streams import Tamer


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
        (b"a\xc2\x00\x9b2Jb\xc2\x1b[2J\x9b2Jc", b"a\x9b2Jb\x9b2Jc"),  # nor by joining what stood apart
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
import os, sys, threading
from agent_os.cli import streams
both = streams.Streams()
def guest():
    data = os.read(both.theirs[0], 100)
    os.write(both.theirs[1], b'got ' + data)
    os.write(both.theirs[2], b'on the side')
    both.started()
thread = threading.Thread(target=guest); thread.start(); thread.join(); both.drain()
"""


@pytest.mark.integration
def test_the_three_streams_are_carried_apart_and_drained() -> None:
    done = subprocess.run([sys.executable, "-c", FLOOD], input=b"in\x1b]0;t\x07", capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"got in\x1b]0;t\x07", b"on the side")
