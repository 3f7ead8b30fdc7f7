"""Agents without code: a model, its tools and a goal, as a manifest says it."""

import pytest

from agent_os import AgentManifest, ManifestError
from agent_os.manifest.checks import oddities
from agent_os.manifest.explaining import explained, reference
from agent_os.manifest.settling import STOPPED

RESEARCH = """
name = "research"
role = "worker"
tools = ["http.fetch", "file.write", "memory.*"]
[program]
runtime = "model"
model = "anthropic/claude-sonnet"
goal = "Answer inputs.question with sources."
instructions = "Name every page you opened."
output_schema = "answer.schema.json"
[program.loop]
turns = 12
wall_secs = "5m"
fallback = ["ollama/qwen3"]
[budget]
usd = 0.50
per = "run"
"""


def test_a_model_a_goal_and_tools_are_an_agent() -> None:
    one = AgentManifest.from_toml(RESEARCH)
    assert (one.program.model, one.program.output_schema) == ("anthropic/claude-sonnet", "answer.schema.json")
    assert one.program.instructions == "Name every page you opened."
    loop = one.program.loop
    assert (loop.turns, loop.tool_calls, loop.wall_secs, loop.max_output) == (12, 200, 300, 4096)
    assert list(oddities(one)) == []


def test_it_reads_back_as_it_is_written() -> None:
    one = AgentManifest.from_toml(RESEARCH)
    assert AgentManifest.from_toml(one.to_toml()) == one
    assert AgentManifest.from_toml(one.to_toml(full=True)) == one
    assert AgentManifest.from_json(one.to_json()) == one


def test_a_model_alone_tells_its_runtime() -> None:
    text = 'name = "a"\nrole = "worker"\n[model]\nname = "scripted/a.yaml"\n'
    one = AgentManifest.from_toml(text + "[program]\ngoal = 'x'\n[budget]\nusd = 1\n")
    assert one.program.model == "scripted/a.yaml"
    assert one.health.no_restart_exit_codes == [STOPPED]


def test_a_run_that_was_stopped_is_not_paid_for_again_unless_the_author_says_so() -> None:
    assert AgentManifest.from_toml(RESEARCH).health.no_restart_exit_codes == [STOPPED]
    assert (
        AgentManifest.from_toml(RESEARCH + "[health]\nno_restart_exit_codes = []\n").health.no_restart_exit_codes == []
    )
    python = AgentManifest.from_toml('name = "a"\nrole = "worker"\n[program]\nentry = "a.py:a"\n')
    assert python.health.no_restart_exit_codes == []


def test_explain_tells_what_it_says_and_asks_for() -> None:
    told = explained(AgentManifest.from_toml(RESEARCH))
    keys = {row.key: row.value for row in told.keys}
    assert keys["program.loop.turns"] == 12
    assert keys["program.output_schema"] == "answer.schema.json"
    grants = {one.capability: one.key for one in told.grants}
    assert grants["capability://llm/anthropic/claude-sonnet?action=call"] == "program.model"
    assert grants["capability://llm/ollama/qwen3?action=call"] == "program.loop.fallback"
    assert grants["capability://tool/memory.*?action=call"] == "tools"
    assert {"program.goal", "program.instructions", "program.output_schema"} <= {
        row.key for row in reference("program")
    }


def odd(text: str) -> list[str]:
    return [".".join(map(str, one.key)) for one in oddities(AgentManifest.from_toml(text))]


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ('goal = "Answer inputs.question with sources."', "", ["program.goal"]),
        ('goal = "Answer inputs.question with sources."\n', "", ["program.goal"]),
        ('usd = 0.50\nper = "run"', "", ["budget.usd"]),
    ],
)
def test_what_is_odd_about_a_model_agent_is_told(before: str, after: str, keys: list[str]) -> None:
    assert odd(RESEARCH.replace(before, after)) == keys


def test_with_skills_it_may_wait_for_goals() -> None:
    text = RESEARCH.replace('goal = "Answer inputs.question with sources."\n', "")
    assert odd(text.replace('role = "worker"', 'role = "worker"\nskills = ["reading"]')) == []


def test_keys_of_model_agents_are_odd_elsewhere() -> None:
    text = 'name = "a"\nrole = "worker"\n[program]\nargv = ["true"]\ngoal = "x"\n[program.loop]\nturns = 3\n'
    assert odd(text) == ["program.goal", "program.loop"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("turns = 12", "turns = 0", "turns"),
        ("turns = 12", "turn = 12", "turns"),
        ('wall_secs = "5m"', "wall_secs = 0", "wall_secs"),
        ('fallback = ["ollama/qwen3"]', 'fallback = "ollama/qwen3"', "fallback"),
        ('model = "anthropic/claude-sonnet"', "", "model needs a model"),
    ],
)
def test_what_is_wrong_is_told_with_its_key(before: str, after: str, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        AgentManifest.from_toml(RESEARCH.replace(before, after))


@pytest.mark.parametrize(("tools", "asks"), [('"shell.execute"', 1), ('"python.*"', 1), ('"file.*"', 0), ('"*"', 0)])
def test_a_tool_that_runs_programs_asks_for_that_as_well(tools: str, asks: int) -> None:
    one = AgentManifest.from_toml(RESEARCH.replace('"http.fetch", "file.write", "memory.*"', tools))
    shell = [grant for grant in explained(one).grants if grant.capability == "capability://shell?action=execute"]
    assert len(shell) == asks
