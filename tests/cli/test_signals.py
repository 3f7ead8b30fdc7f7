"""Signals for a whole tree, with a reason, with time to end first; and lists of agents by their labels."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.desk import Desk, ended, until

pytestmark = pytest.mark.integration

TEAM = 'name = "team"\nrole = "supervisor"\nagency = "role"\n[supervision]\nchildren = ["one", "two"]\n'
MEMBER = 'name = "NAME"\nrole = "worker"\n[program]\nargv = ["sleep", "1000"]\n[labels]\nnumber = "NAME"\nkind = "x"\n'
DEAF = "trap '' TERM\necho ready\nwhile :; do sleep 1; done\n"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("signals"))
    manifests = {"team": TEAM, **{name: MEMBER.replace("NAME", name) for name in ("one", "two")}}
    for name, text in manifests.items():
        (desk.project / f"{name}.agent.toml").write_text(text)
    (desk.project / "deaf.sh").write_text(DEAF)
    desk.up()
    desk.good("apply", "-f", desk.project, "--wait")
    yield desk
    desk.down()


def states(desk: Desk) -> dict[str, str]:
    return {row["name"]: row["state"] for row in desk.good("ps", "--all", "--json").json["agents"]}


def pids(desk: Desk) -> dict[str, int]:
    return {row["name"]: row["pid"] for row in desk.good("ps", "--json").json["agents"]}


def test_agents_are_listed_by_their_labels(desk: Desk) -> None:
    assert desk.good("ps", "-l", "kind=x", "-o", "name").out.split() == ["one", "two"]
    assert desk.good("ps", "-l", "kind=x", "-l", "number=two", "-o", "name").out.split() == ["two"]
    nobody = desk.good("ps", "-l", "kind=y")
    assert (nobody.out, nobody.err) == ("", "none of 3 is like that\n")
    assert "KEY=VALUE" in desk.ask("ps", "-l", "kind").err


def test_a_tree_is_paused_and_resumed_as_a_whole_with_a_reason_on_the_record(desk: Desk) -> None:
    assert desk.good("pause", "team", "--tree", "--reason", "lunch").out == "paused  team and 2 descendants\n"
    assert set(states(desk).values()) == {"paused"}
    assert desk.good("resume", "team", "--tree").out == "resumed  team and 2 descendants\n"
    assert set(states(desk).values()) == {"running"}
    said = desk.good("events", "-n", "60", "--json").json["entries"]
    asked = [one["body"]["request"] for one in said if one.get("op") == "OP_HOLD"]
    assert {one["reason"] for one in asked if one["hold"]} == {"lunch"}
    assert {one["agent"] for one in asked} == {"team", "one", "two"}


def test_one_without_tree_leaves_those_below_it_alone(desk: Desk) -> None:
    assert desk.good("pause", "team").out == "paused  team\n"
    assert states(desk)["one"] == "running"
    desk.good("resume", "team")


def test_a_kill_with_grace_asks_first(desk: Desk) -> None:
    desk.good("run", "-qd", "--name", "polite", "--", "sleep", "1000")
    assert desk.good("kill", "polite", "--grace", "60").out.startswith("ended  polite")
    assert desk.ask("wait", "polite").code == 128 + signal.SIGTERM


def test_who_is_deaf_to_it_is_killed_when_its_time_is_over(desk: Desk) -> None:
    desk.good("run", "-qd", "--name", "deaf", "--", "sh", "deaf.sh")
    until(lambda: "ready" in desk.ask("logs", "deaf").out)
    pid = pids(desk)["deaf"]
    assert desk.good("kill", "deaf", "--grace", "0.2").out.startswith("killed  deaf (")
    assert ended(pid)


def test_killing_a_tree_leaves_nothing_of_it(desk: Desk) -> None:
    alive = {name: pid for name, pid in pids(desk).items() if pid}
    assert set(alive) == {"one", "two"}
    done = desk.good("kill", "team", "--tree", "--reason", "the end", "--json").json["kill"]
    assert [one["name"] for one in done] == ["team"]
    assert all(ended(pid) for pid in alive.values())
    assert not any(one["survivors"] for one in done)


def test_a_signal_reaches_everybody_below(desk: Desk, tmp_path: Path) -> None:
    desk.good("start", "team", "one", "two")
    assert desk.good("signal", "team", "SIGUSR2", "--tree").out.startswith("sent  SIGUSR2 to team and 2")
