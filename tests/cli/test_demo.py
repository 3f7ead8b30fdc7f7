"""`agentctl up --demo`: agents to look at, for whoever has the package and no checkout."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent_os.cli
from cli.desk import Desk, until

pytestmark = pytest.mark.integration
NAMES = ["demo", "demo-asker", "demo-guest", "demo-tally"]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.env["XDG_DATA_HOME"] = str(tmp_path / "data")
    yield desk
    desk.down()


def shipped() -> str:
    """A digest of what the package holds."""
    folder = Path(agent_os.cli.__file__).parent / "demo"
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def test_it_shows_a_service_a_guest_and_a_question_and_can_be_taken_away(desk: Desk, tmp_path: Path) -> None:
    before = shipped()
    said = desk.good("up", "--detach", "--no-ui", "--demo")
    assert f"demo        {', '.join(NAMES)} in {tmp_path}/data/agent-os/demo" in said.out
    assert f"agentctl delete {' '.join(NAMES)} --yes" in said.err
    until(lambda: "tally: 2" in desk.ask("logs", "demo-tally").out)
    until(lambda: "could not post the report" in desk.ask("logs", "demo-guest").out)
    until(
        lambda: [one["path"] for one in desk.ask("diff", "demo-guest", "-o", "json").json["changes"]] == ["report.md"]
    )
    until(lambda: desk.ask("approvals", "-o", "name").out != "")
    desk.good("answer", desk.good("approvals", "-o", "name").out.strip(), "yes")
    until(lambda: "answered: yes" in desk.ask("logs", "demo-asker").out)
    desk.good("commit", "demo-guest", "--yes")
    assert (tmp_path / "data/agent-os/demo/report.md").is_file()
    assert shipped() == before
    again = desk.good("up", "--detach", "--no-ui", "--demo")  # nothing is declared twice
    assert ", ".join(NAMES) in again.out
    desk.good("delete", *NAMES, "--yes")
    assert "demo" not in desk.good("tree").out


def test_without_the_word_nothing_is_declared_and_without_a_place_it_says_so(desk: Desk, tmp_path: Path) -> None:
    desk.good("up", "--detach", "--no-ui")
    assert "demo" not in desk.good("tree").out
    (tmp_path / "data").write_text("no folder")
    refused = desk.ask("up", "--detach", "--no-ui", "--demo")
    assert (refused.code, "XDG_DATA_HOME" in refused.err) == (4, True)
