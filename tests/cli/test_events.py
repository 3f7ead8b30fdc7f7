"""`agentctl events`, `trace` and `inspect`: what happened, as people and programs read it."""

import json

import pytest

from cli.desk import SECONDS, Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]


def test_events_show_who_did_what(desk: Desk) -> None:
    said = desk.good("events", "--agent", "worker").out
    assert any("outcome" in line and "SYS_WRITE /mem/working/note" in line for line in said.splitlines())
    assert "spawned" in said


def test_events_are_chosen_by_kind_and_by_cursor(desk: Desk) -> None:
    told = desk.good("events", "--cursor", "0", "--type", "boot", "--type", "decision", "-o", "json").json["entries"]
    assert {one["kind"] for one in told} == {"boot", "decision"}
    after = told[0]["seq"]
    assert desk.good("events", "--cursor", str(after), "-o", "json").json["entries"][0]["seq"] == after + 1


def test_an_unknown_agent_is_told(desk: Desk) -> None:
    assert desk.ask("events", "--agent", "nobody").code == 3
    assert desk.ask("trace", "nobody", "-o", "json").error["code"] == "ESRCH"
    assert desk.ask("inspect", "nobody").code == 3


def test_following_gives_an_object_a_line_as_things_happen(desk: Desk) -> None:
    following = desk.follow("events", "-f", "-n", "1", "-o", "json")
    try:
        assert following.stdout
        first = json.loads(following.stdout.readline())
        desk.good("status")
        told = json.loads(following.stdout.readline())
        while told.get("op") != "OP_STATUS":
            told = json.loads(following.stdout.readline())
        assert told["seq"] > first["seq"]
        assert told["api"] == "v1"
    finally:
        following.send_signal(2)
        assert following.wait(SECONDS) == 0  # leaving a view is no failure
        following.stdout.close()


def test_a_reader_that_leaves_is_no_failure(desk: Desk) -> None:
    following = desk.follow("events", "-f")
    assert following.stdout
    following.stdout.readline()
    following.stdout.close()
    desk.good("status")
    assert following.wait(SECONDS) == 0


def test_a_trace_shows_calls_refusals_and_what_waits(desk: Desk) -> None:
    lines = desk.good("trace", "worker").out.splitlines()
    assert "invoke_agent worker" in lines[0]
    assert any("REFUSED SYS_WRITE /mem/episodic/note" in line and "!" in line for line in lines)
    assert any("SYS_WRITE /work/out.txt" in line and "ms" in line for line in lines)
    assert "SYS_SLEEP" in lines[-1]
    assert lines[-1].endswith("waiting")


def test_a_trace_as_json_has_lengths(desk: Desk) -> None:
    spans = desk.good("trace", "worker", "-o", "json").json["spans"]
    effect = next(one for one in spans if one["entry"].get("ref"))
    assert effect["seconds"] > 0
    assert spans[-1]["waiting"] is True


def test_text_of_agents_cannot_steer_the_terminal(desk: Desk) -> None:
    for words in (("events", "-n", "100"), ("trace", "worker"), ("audit", "tail", "-n", "100")):
        assert "\x1b" not in desk.good(*words).out
    told = desk.good("events", "--agent", "worker", "-o", "json")
    assert "\x1b" not in told.out


def test_inspect_shows_everything_of_one_agent(desk: Desk) -> None:
    said = desk.good("inspect", "worker").out
    assert "default/worker" in said
    assert "mem:/mem/working/**" in said
    told = desk.good("inspect", "worker", "-o", "json").json
    assert (told["kind"], told["state"], told["parked"]) == ("native", "running", [])


def test_recorded_calls_are_what_policy_diff_decides_again(desk: Desk) -> None:
    calls, rules = desk.project / "calls.jsonl", desk.project / "new.toml"
    calls.write_text(desk.good("events", "--calls").out)
    rules.write_text(
        'version = 1\ndefault = "capability"\n\n'
        '[[rule]]\nid = "no-out"\neffect = "forbid"\nwhat = ["file:/work/out.txt:write"]\n'
    )
    said = desk.good("policy", "diff", rules, "--calls", calls)
    (row,) = [line.split() for line in said.out.splitlines()[1:]]
    assert row[1:] == ["worker", "file:/work/out.txt:write", "allow", "→", "forbid", "kill", "(no-out)"]
    assert f"{len(calls.read_text().splitlines())} calls decided again, 1 otherwise" in said.err
    assert desk.good("policy", "diff", rules, rules, "--calls", calls).out == ""
    last = desk.good("events", "--calls", "-n", "0").out
    assert last == ""
