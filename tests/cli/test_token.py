"""`agentctl token` and AGENT_OS_TOKEN_FILE as an operator uses them."""

from collections.abc import Iterator

import pytest

from cli.desk import Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]


@pytest.fixture
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.up()
    yield desk
    desk.env.pop("AGENT_OS_TOKEN_FILE", None)
    desk.down()


def test_a_token_is_made_shown_once_used_listed_and_removed(desk: Desk) -> None:
    made = desk.good("token", "add", "wall", "--ttl", "30d")
    text = made.out.strip()
    assert text.startswith("aos_")
    assert text not in made.err
    file = desk.project / "wall.token"
    file.write_text(f"{text}\n")
    file.chmod(0o644)
    desk.env["AGENT_OS_TOKEN_FILE"] = str(file)
    wide = desk.ask("ps")
    assert (wide.code, "chmod 600" in wide.err, text in wide.err) == (4, True, False)
    file.chmod(0o600)
    assert desk.good("ps", "-o", "json").json["agents"] == []
    low = desk.ask("down")
    assert (low.code, "needs the role operator; wall is viewer" in low.err) == (4, True)
    desk.env["AGENT_OS_TOKEN_FILE"] = str(desk.home / "operator.token")
    listed = desk.good("token", "ls")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [["operator", "operator"], ["wall", "viewer"]]
    assert text not in listed.out
    assert desk.good("token", "ls", "-o", "name").out == "operator\nwall\n"
    asked = desk.ask("token", "rm", "wall")
    assert (asked.code, "agentctl token rm wall --yes" in asked.err) == (2, True)
    assert desk.good("token", "rm", "wall", "--yes").out == "removed  wall\n"
    desk.env["AGENT_OS_TOKEN_FILE"] = str(file)
    gone = desk.ask("ps")
    assert (gone.code, "token.unknown" in gone.err, text in gone.err) == (4, True, False)


@pytest.mark.parametrize(
    "words", [("add", "no/name"), ("add", "wall", "--ttl", "soon"), ("add", "wall", "--role", "x")]
)
def test_what_cannot_be_meant_is_refused(desk: Desk, words: tuple[str, ...]) -> None:
    assert desk.ask("token", *words).code == 2
    assert "wall" not in desk.good("token", "ls").out


def test_a_kernel_does_not_start_beside_a_token_that_others_can_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.up()
    desk.down()
    (desk.home / "operator.token").chmod(0o640)
    refused = desk.ask("up", "--detach", "--no-ui")
    assert (refused.code, "chmod 600" in refused.err) == (4, True)
    (desk.home / "operator.token").chmod(0o600)
    desk.up()
    desk.down()
