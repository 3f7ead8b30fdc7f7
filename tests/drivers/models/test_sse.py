"""Server-sent events, however the network cuts them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.drivers.models.sse import Event, Reader, TooLong

TEXT = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=20)


def read(data: bytes, cuts: list[int] | None = None) -> list[Event]:
    reader, events, places = Reader(), [], sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})
    for begin, end in itertools.pairwise(places):
        events += reader.feed(data[begin:end])
    last = reader.end()
    return [*events, *([last] if last else [])]


@settings(deadline=None)
@given(
    st.lists(st.tuples(TEXT, st.lists(TEXT, min_size=1, max_size=3)), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 10_000), max_size=30),
)
def test_events_are_the_same_wherever_the_bytes_are_cut(
    said: list[tuple[str, list[str]]], line: str, cuts: list[int]
) -> None:
    lines = [": a comment", ""]
    for name, data in said:
        lines += [f"event: {name}", "id: 7", *(f"data: {part}" for part in data), "retry: 3", ""]
    raw = line.join([*lines, ""]).encode()
    expected = [Event(name, "\n".join(data).encode()) for name, data in said]
    expected = [event for event in expected if event.data]
    assert read(raw, cuts) == expected
    assert read(raw, list(range(len(raw)))) == expected  # byte by byte, through every character


def test_a_byte_order_mark_and_comments_are_no_data() -> None:
    assert read(b"\xef\xbb\xbf:hello\n\ndata: x\n\n:\n\ndata:y\n\n") == [Event("", b"x"), Event("", b"y")]


def test_only_one_space_belongs_to_the_field() -> None:
    assert read(b"data:  two\ndata\n\n") == [Event("", b" two\n")]


def test_an_event_without_the_empty_line_behind_it_counts_at_the_end() -> None:
    assert read(b"data: [DONE]") == [Event("", b"[DONE]")]
    assert read(b"data: [DONE]\n") == [Event("", b"[DONE]")]
    assert read(b"event: error\n") == []


def test_line_separators_of_unicode_are_no_line_ends() -> None:
    data = "data: a\u2028b\x0bc\x85d\n\n".encode()
    assert read(data) == [Event("", "a\u2028b\x0bc\x85d".encode())]


@pytest.mark.parametrize("data", [b"x" * 2000, b"data: " + b"x" * 500 + b"\n", b"data: xxxxxxxxx\n" * 200])
def test_an_event_that_never_ends_is_refused(data: bytes) -> None:
    reader = Reader(largest=1000)
    with pytest.raises(TooLong):  # noqa: PT012
        for _ in range(10):
            list(reader.feed(data))


def test_many_events_are_not_one_long_one() -> None:
    reader = Reader(largest=1000)
    assert len([event for _ in range(50) for event in reader.feed(b"data: " + b"x" * 100 + b"\n\n")]) == 50
