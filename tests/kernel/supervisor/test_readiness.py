"""Ways to become ready, and the line that says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.supervisor import readiness
from agent_os.kernel.supervisor.readiness import LONGEST_LINE, LogWatch, Ready, by_default, parse


@pytest.mark.parametrize(
    ("text", "ready"),
    [
        ("notify", Ready("notify")),
        ("immediate", Ready("immediate")),
        ("log:listening on .*", Ready("log", regex="listening on .*")),
        ("log:a:b", Ready("log", regex="a:b")),
        ("exec:curl -s 'http://[::1]/a b'", Ready("exec", argv=("curl", "-s", "http://[::1]/a b"))),
        ("port:8080", Ready("port", port=8080)),
    ],
)
def test_every_way_is_read(text: str, ready: Ready) -> None:
    assert parse(text) == ready


@pytest.mark.parametrize(
    "text",
    ["", "Notify", "notify:", "immediate:x", "log", "log:", "exec:", "exec:  ", "exec:'a", "port:0", "port:65536"]
    + ["port:8o8o", "port:²", "port:" + "9" * 5000, "log:(", "http:/x"],
)
def test_what_is_no_way_is_refused(text: str) -> None:
    with pytest.raises(EINVAL):
        parse(text)


def test_a_foreign_program_is_ready_at_once_and_others_say_so() -> None:
    assert [by_default(runtime).way for runtime in ("exec", "python", "model")] == ["immediate", "notify", "notify"]


def test_the_line_is_seen_however_the_output_is_cut() -> None:
    output = "starting…\nserver ready on 80\r\nmore\n".encode()
    for cut in range(len(output)):
        watch = LogWatch("ready on \\d+$")
        watch.feed(output[:cut])
        assert watch.feed(output[cut:])


def test_half_a_line_is_none() -> None:
    watch = LogWatch("^ready$")
    assert not watch.feed(b"ready")
    assert not watch.feed(b"-steady\n")
    assert watch.feed(b"ready\n")
    assert watch.feed(b"whatever follows\n")


@given(st.lists(st.binary(max_size=20)))
def test_bytes_that_are_no_text_harm_nobody(chunks: list[bytes]) -> None:
    watch = LogWatch("€+")
    for chunk in chunks:
        watch.feed(chunk)
    assert watch.feed("\n€\n".encode())


def test_a_line_without_an_end_is_not_kept() -> None:
    watch = LogWatch("ready")
    for _ in range(1000):
        watch.feed(b"x" * 10_000)
    assert len(watch._rest) <= 4 * LONGEST_LINE
    assert not watch.feed(b"ready\n"), "too far from its beginning"
    assert watch.feed(b"ready\n")


def test_where_a_long_line_is_cut_is_not_its_end() -> None:
    watch = LogWatch("b$")
    assert not watch.feed(b"b" * (LONGEST_LINE + 1) + b"\n")
    assert watch.feed(b"b" * LONGEST_LINE + b"\n")


def test_whoever_makes_matching_expensive_is_not_heard_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "MOST_STEPS", 5_000)
    watch = LogWatch("(a?){20}b$|ready")
    for number in range(100):
        watch.feed(f"{'ac' * number}{'a' * number}\n".encode())
    assert not watch.seen
    assert watch.exhausted
    assert not watch.feed(b"ready\n")
