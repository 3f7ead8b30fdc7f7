"""Logs of agents: bounded, rotated, and read back while they grow."""

from pathlib import Path

import pytest

from agent_os.abi.errors import ENOENT
from agent_os.kernel import outputs
from agent_os.kernel.outputs import Output, Reader


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MOST_BYTES", 1000)


def read(home: Path, last: int | None = None) -> bytes:
    reader = Reader(home, "a", last)
    try:
        return b"".join(iter(lambda: reader.read(7), b""))
    finally:
        reader.close()


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    for text in (b"one\n", b"two\n"):  # two lives of one agent
        output = Output(tmp_path, "a")
        output.write(text)
        output.close()
    assert read(tmp_path) == b"one\ntwo\n"
    assert (tmp_path / "logs" / "a.log").stat().st_mode & 0o777 == 0o600


def test_a_log_is_bounded_and_keeps_the_end(tmp_path: Path) -> None:
    output = Output(tmp_path, "a")
    lines = [f"line {n:04}\n".encode() for n in range(1000)]
    for line in lines:
        output.write(line)
    output.close()
    kept = read(tmp_path)
    assert 1000 <= len(kept) <= 2000
    assert b"".join(lines).endswith(kept)


@pytest.mark.parametrize("before", [0, 600, 1500, 2800])
@pytest.mark.parametrize("after", [0, 300, 900, 1700])
def test_a_life_knows_where_its_own_output_begins(tmp_path: Path, before: int, after: int) -> None:
    for size, letter in ((before, b"b"), (after, b"a")):
        output = Output(tmp_path, "a")
        for _ in range(size // 100):
            output.write(letter * 100)
        output.close()
    reader = Reader(tmp_path, "a", skip=output.begins)
    own = b"".join(iter(lambda: reader.read(64), b""))
    reader.close()
    assert own == read(tmp_path).lstrip(b"b")
    assert bool(own) == bool(after)


@pytest.mark.parametrize("last", [0, 1, 5, 150, 10_000])
def test_the_last_lines_reach_over_a_rotation(tmp_path: Path, last: int) -> None:
    output = Output(tmp_path, "a")
    for n in range(1000):
        output.write(f"line {n:04}\n".encode())
    output.close()
    everything = read(tmp_path).splitlines()
    assert read(tmp_path, last).splitlines() == everything[len(everything) - min(last, len(everything)) :]


def test_a_log_that_grows_and_is_rotated_is_read_without_a_gap(tmp_path: Path) -> None:
    output = Output(tmp_path, "a")
    output.write(b"0\n")
    reader = Reader(tmp_path, "a")
    seen = b""
    for n in range(1, 600):
        output.write(f"{n}\n".encode())
        while data := reader.read(64):
            seen += data
    reader.close()
    output.close()
    assert seen == b"".join(f"{n}\n".encode() for n in range(600))


def test_a_log_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ENOENT, match="no output of a"):
        Reader(tmp_path, "a")


def test_a_place_that_cannot_be_written_costs_nobody_anything(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in its way")
    output = Output(tmp_path, "a")
    output.write(b"lost")
    output.close()
    assert (tmp_path / "logs").read_text() == "a file in its way"
    with pytest.raises(ENOENT, match="no output of a"):
        Reader(tmp_path, "a")


def test_only_so_many_logs_are_kept_and_never_the_kernels_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MOST_LOGS", 3)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "kernel.log").touch()
    for n in range(8):
        output = Output(tmp_path, f"a{n}")
        output.write(b"x")
        output.close()
    outputs.sweep(tmp_path)
    left = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert left == sorted(["kernel.log", *(f"a{n}.log{end}" for n in (5, 6, 7) for end in ("", ".times"))])


SECOND = 1_000_000_000


def since(home: Path, moment: int, last: int | None = None) -> bytes:
    reader = Reader(home, "a", last, since_ns=moment * SECOND)
    try:
        return b"".join(iter(lambda: reader.read(7), b""))
    finally:
        reader.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Its last number is the time, in seconds."""
    seconds = [1000]
    monkeypatch.setattr(outputs.time, "time_ns", lambda: seconds[-1] * SECOND)
    return seconds


def write(home: Path, clock: list[int], *pieces: tuple[int, bytes]) -> None:
    output = Output(home, "a")
    for when, text in pieces:
        clock.append(when)
        output.write(text)
    output.close()


def test_what_was_written_since_a_moment_is_read_alone(tmp_path: Path, clock: list[int]) -> None:
    write(tmp_path, clock, (1000, b"a\n"), (1010, b"b\n"), (1010, b"c\n"))
    write(tmp_path, clock, (1020, b"d\n"))  # another life
    whole = b"a\nb\nc\nd\n"
    expected = {1: whole, 1000: whole, 1002: b"b\nc\nd\n", 1010: b"b\nc\nd\n", 1012: b"d\n", 1020: b"d\n", 1022: b""}
    assert {moment: since(tmp_path, moment) for moment in expected} == expected
    assert since(tmp_path, 1002, last=1) == b"d\n"
    assert since(tmp_path, 1020, last=3) == b"d\n"


def test_a_line_that_was_begun_before_is_shown_whole(tmp_path: Path, clock: list[int]) -> None:
    write(tmp_path, clock, (1000, b"a\nhalf "), (1010, b"a line\nb\n"))
    assert since(tmp_path, 1005) == b"half a line\nb\n"


def test_times_reach_over_a_rotation_and_are_swept_with_their_log(tmp_path: Path, clock: list[int]) -> None:
    write(tmp_path, clock, *((1000 + 2 * n, f"line {n:04}\n".encode()) for n in range(120)))
    kept = read(tmp_path).splitlines(keepends=True)
    for line in kept[::7]:
        at = kept.index(line)
        assert since(tmp_path, 1000 + 2 * int(line.split()[1])) == b"".join(kept[at:]), line
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        *("a.log", "a.log.1", "a.log.1.times", "a.log.times")
    ]


def test_times_are_bounded_like_the_log(tmp_path: Path, clock: list[int]) -> None:
    write(tmp_path, clock, *((1000 + 2 * n, b"\n") for n in range(500)))
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "logs").iterdir()}
    assert max(sizes.values()) <= 1000 + 16


def test_a_log_without_times_or_with_half_a_mark_is_shown_rather_than_hidden(tmp_path: Path, clock: list[int]) -> None:
    write(tmp_path, clock, (1000, b"a\n"))
    times = tmp_path / "logs" / "a.log.times"
    times.write_bytes(times.read_bytes() + b"\x00\x01")
    write(tmp_path, clock, (1010, b"b\n"))
    assert since(tmp_path, 1005) == b"b\n"
    times.unlink()
    assert since(tmp_path, 1005) == b"a\nb\n"
    times.mkdir()
    write(tmp_path, clock, (1020, b"c\n"))  # no times can be kept: the output is
    assert read(tmp_path) == b"a\nb\nc\n"
