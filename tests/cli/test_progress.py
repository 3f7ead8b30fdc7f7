"""cli/progress.py: nothing for what is quick, lines for what is long, and only where somebody looks."""

import pytest

from agent_os.cli import progress as module
from agent_os.cli.progress import Progress


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_nothing_is_said_in_the_first_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("checking", shown=True)
    for done in range(1000):
        progress(done, 1000)
    assert told(capsys) == []


def test_a_line_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    progress = Progress("checking", shown=True)
    progress(1500, 6000)
    progress(0, 0)
    assert told(capsys) == ["checking: 25 % of 6,000", "checking: 0 % of 0"]


def test_nothing_is_said_to_a_file_unless_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    Progress("checking")(1, 2)
    assert told(capsys) == []
