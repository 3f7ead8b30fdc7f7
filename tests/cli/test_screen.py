"""Tables on a real terminal: lines that fit, and the columns that are left out for it."""

import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.cli.output import width
from agent_os.cli.screen import cut

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")

SECONDS = 60


@given(st.text(), st.integers(1, 80))
def test_a_line_never_needs_more_columns_than_there_are(text: str, columns: int) -> None:
    line = text.replace("\n", " ")
    assert width(cut(line, columns)) <= columns
    assert width(line) > columns or cut(line, columns) == line


def test_what_is_cut_says_so() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("漢字漢字", 4) == "漢…"


TABLE = """
from agent_os.cli.screen import listed
rows = [("crawler", "supervisor", "S3", "running"), ("w", "worker", "S3", "a long story of what it is doing now")]
print(listed(rows, ("NAME", "ROLE", "ISO", "NOW"), ("ISO", "PID", "ROLE")), flush=True)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("columns", "headings"),
    [(80, "NAME ROLE ISO NOW"), (42, "NAME ROLE ISO NOW"), (40, "NAME ROLE NOW"), (30, "NAME NOW"), (12, "NAME NOW")],
)
def test_a_narrow_table_does_without_columns_rather_than_without_its_last(columns: int, headings: str) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns)}
    with subprocess.Popen([sys.executable, "-c", TABLE], stdin=theirs, stdout=theirs, env=env) as process:
        assert process.wait(SECONDS) == 0
    lines = os.read(ours, 4096).decode().splitlines()
    assert lines[0].split() == headings.split()
    assert len(lines) == 3
    assert all(width(line) <= columns for line in lines)
