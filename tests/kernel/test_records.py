"""The record: one object a line, only ever appended."""

import json
from pathlib import Path

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
