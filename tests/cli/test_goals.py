"""`agentctl submit` and `queue` on a fleet of real processes: picked by their words, started for their goals, put in
order, taken back."""

from collections.abc import Iterator

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
PROGRAMS = """
from agent_os import agent

@agent
async def reader(ctx):
    while goal := await ctx.goal():
        if goal.text.startswith("fail"):
            await ctx.finish(goal, failure="it cannot be done")
        else:
            await ctx.finish(goal, {"said": goal.text, **goal.inputs})

@agent
async def translator(ctx):
    goal = await ctx.goal()
    return f"traduit: {goal.text}"

@agent
async def sleeper(ctx):
    goal = await ctx.goal()
    await ctx.sleep(3600)
"""
MANIFEST = 'name = "{name}"\nrole = "worker"\n{words}\n[program]\n{program}\n[lifecycle]\nactivation = "{when}"\n'
FLEET = {
    "reader": ('skills = ["read", "summaries"]', 'entry = "programs.py:reader"', "always"),
    "translator": ('skills = ["translate"]', 'entry = "programs.py:translator"', "manual"),
    "sleeper": ('skills = ["sleep"]', 'entry = "programs.py:sleeper"', "manual"),
    "echo": (
        'labels = { does = "echo" }',
        'argv = ["sh", "-c", "echo \\"<$AGENT_OS_GOAL> $AGENT_OS_GOAL_INPUTS\\""]',
        "manual",
    ),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    (desk.project / "programs.py").write_text(PROGRAMS)
    for name, (words, program, when) in FLEET.items():
        text = MANIFEST.format(name=name, words=words, program=program, when=when)
        (desk.project / f"{name}.agent.toml").write_text(text)
    desk.up()
    desk.good("apply", "-f", ".")
    desk.good("start", "reader")
    yield desk
    desk.down()


def test_a_goal_goes_to_whoever_has_its_words_and_its_result_comes_back(desk: Desk) -> None:
    said = desk.good("submit", "read", "this", "--input", "n=3", "--input", "to=me", "--wait", "--json").json
    assert (said["agent"], said["picked_by"], said["state"]) == ("default/reader", "matches read", "done")
    assert said["result"] == {"said": "read this", "n": 3, "to": "me"}


def test_an_agent_without_a_process_is_started_for_its_goal_each_time(desk: Desk) -> None:
    for word in ("please translate", "translate more"):
        said = desk.good("submit", word, "--wait")
        assert f"done  traduit: {word}" in said.out
        assert "for translator (matches translate)" in said.err
    assert len(desk.good("history", "translator", "--json").json["lives"]) == 2


def test_a_command_has_its_goal_in_its_environment(desk: Desk) -> None:
    desk.good("submit", "echo this; rm -rf /", "--input", "a=b", "--wait")
    assert '<echo this; rm -rf /> {"a": "b"}' in desk.good("logs", "echo").out


def test_a_goal_that_fails_says_why_and_the_command_fails(desk: Desk) -> None:
    said = desk.ask("submit", "fail", "to", "read", "--agent", "reader", "--wait")
    assert said.code == 1
    assert "failed  it cannot be done" in said.out


def test_the_queue_shows_who_works_and_what_the_others_wait_for_and_can_be_put_in_order(desk: Desk) -> None:
    first = desk.good("submit", "sleep", "--json").json["id"]
    until(lambda: desk.good("queue", "show", first, "--json").json["state"] == "working")
    second = desk.good("submit", "sleep again", "--within", "1h", "--json").json["id"]
    third = desk.good("submit", "sleep more", "--json").json["id"]
    lines = desk.good("queue").out.splitlines()
    assert lines[0].split() == ["ID", "AGENT", "PRIORITY", "STATE", "AGE", "DEADLINE", "GOAL"]
    assert [line.split()[0] for line in lines[1:]] == [first, second, third]
    assert "working" in lines[1]
    assert "1. waits for agent" in lines[2]
    assert "59m" in lines[2]
    desk.good("queue", "prioritize", third, "high")
    assert [one["id"] for one in desk.good("queue", "--json").json["waiting"]] == [third, second]
    assert "withdrawn  not now" in desk.good("queue", "withdraw", second, "--reason", "not now").out
    busy = desk.ask("queue", "withdraw", first)
    assert busy.code == 9
    assert "sleeper is at the goal" in busy.err
    desk.good("queue", "withdraw", third)
    desk.good("stop", "sleeper")
    assert desk.good("queue", "show", first, "--json").json["state"] == "withdrawn"
    assert desk.good("queue").out == ""


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("dance",), 3, "no agent of default has a word of this goal"),
        (("read", "--agent", "raeder"), 3, "did you mean reader?"),
        (("read", "--priority", "urgent"), 2, "urgent"),
        (("read", "--within", "soon"), 2, "such as 90s"),
        (("read", "--input", "x"), 2, "--input NAME=VALUE"),
        (("read", "--budget", "euros=3"), 2, "no budget counts"),
        (("read", "--memory", "100000000"), 7, "MiB"),
        ((" ",), 2, "must say what is to be done"),
    ],
)
def test_what_cannot_be_submitted_is_refused_in_words(
    desk: Desk, words: tuple[str, ...], code: int, reason: str
) -> None:
    said = desk.ask("submit", *words)
    assert (said.code, reason in said.err) == (code, True), said
    assert desk.ask("queue", "show", "g-0").code == 3


def test_goals_survive_the_end_of_a_kernel_that_is_stopped(desk: Desk) -> None:
    desk.good("stop", "sleeper")
    goal = desk.good("submit", "sleep", "--agent", "sleeper", "--json").json["id"]
    desk.down()
    desk.up()
    (waiting,) = desk.good("queue", "--json").json["waiting"]
    assert (waiting["id"], waiting["waiting_for"]) == (goal, "agent"), "an operator's stop stands"
    desk.good("queue", "withdraw", goal)
    assert desk.good("submit", "read on", "--agent", "reader", "--wait", "--json").json["result"] == {"said": "read on"}
