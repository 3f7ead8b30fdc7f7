"""`agentctl checkpoint`, `replay`, `resolve` with real agents."""

import pytest

from cli.desk import AGENT, Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]


def test_a_checkpoint_is_taken_by_the_agent_and_told(desk: Desk) -> None:
    assert desk.good("checkpoint", "worker").out.startswith("k-1 worker at #")
    told = desk.good("checkpoint", "worker", "--as", "lunch", "-o", "json").json
    assert (told["checkpoint"], told["state"]) == ("lunch", False)
    assert "lunch" in desk.good("inspect", "worker").out
    assert desk.ask("checkpoint", "nobody").code == 3
    assert desk.ask("checkpoint", "worker", "--as", "a/b").code == 2


def test_a_replay_that_matches_says_so(desk: Desk) -> None:
    said = desk.good("replay", "worker").out
    assert said.startswith("replayed ")
    assert "all results match" in said
    assert desk.good("replay", "worker", "-o", "json").json["match"] is True


def test_a_replay_that_differs_ends_with_one_and_shows_where(desk: Desk) -> None:
    file = desk.project / "worker.py"
    file.write_text(AGENT.replace("SECONDS", "3600").replace('"hello"', '"something else"'))
    try:
        said = desk.ask("replay", "worker")
        assert said.code == 1
        assert said.out.startswith("DIFFERS")
        assert "recorded  SYS_WRITE" in said.out
        told = desk.ask("replay", "worker", "-o", "json")
        assert (told.code, told.json["difference"]["code"]) == (1, "replay.differs")
    finally:
        file.write_text(AGENT.replace("SECONDS", "3600"))


@pytest.mark.parametrize(
    "words",
    [
        ("worker", "3"),
        ("worker", "3", "--fail", "--result", "1"),
        ("worker", "3", "--done", "--result", "{"),
        ("worker", "x", "--done"),
    ],
)
def test_a_resolution_must_say_what_happened(desk: Desk, words: tuple[str, ...]) -> None:
    assert desk.ask("resolve", *words).code == 2


def test_what_does_not_wait_cannot_be_resolved(desk: Desk) -> None:
    said = desk.ask("resolve", "worker", "3", "--done")
    assert said.code == 3
    assert "does not wait" in said.err
