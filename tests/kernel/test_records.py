"""The record: one object a line, only ever appended."""

import json
from pathlib import Path

import pytest

from agent_os.abi.errors import EACCES, ENOSPC
from agent_os.kernel.records import Records


def test_entries_are_appended_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    for number in (1, 2):
        records = Records(path)
        records.before("a", "spawn", number=number)
        records.after("a", "exit", text="line\nbreak \x1b[31m")
        records.close()
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["event"] for entry in entries] == ["spawn", "exit", "spawn", "exit"]
    assert entries[1]["text"] == "line\nbreak \x1b[31m"


def test_the_record_is_its_owners_alone(tmp_path: Path) -> None:
    Records(tmp_path / "record.jsonl").close()
    assert (tmp_path / "record.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_record_that_cannot_be_opened_is_explained(tmp_path: Path) -> None:
    with pytest.raises(EACCES, match="nothing runs unrecorded") as caught:
        Records(tmp_path)
    assert "AGENT_OS_HOME" in caught.value.hint


def test_a_full_disk_is_explained() -> None:
    records = Records(Path("/dev/full"))
    with pytest.raises(ENOSPC, match="No space left"):
        records.before("a", "spawn")
    records.close()
