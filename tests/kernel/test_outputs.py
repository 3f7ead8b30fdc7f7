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
    assert left == ["a5.log", "a6.log", "a7.log", "kernel.log"]
