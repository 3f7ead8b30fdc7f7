"""The examples and the `loop` template as an operator runs them: real processes, the real tools, a scripted model.

Each is a copy of its folder, run by agentctl on a kernel of its own. That a scripted model is called so is part of it.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.desk import AGENTCTL, SECONDS, Desk, until

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.ask("down")


def stage(desk: Desk, example: str) -> None:
    shutil.copytree(EXAMPLES / example, desk.project, dirs_exist_ok=True)


def test_the_code_agent_mends_the_program_in_a_layer_of_its_own_and_hands_over_a_diff(desk: Desk) -> None:
    stage(desk, "code")
    before = (desk.project / "project/basket.py").read_text()
    ran = desk.good("run", "code.agent.toml")
    assert json.loads(ran.out)["passes"] is True
    assert "turn 1  scripted/code (scripted)" in ran.err
    assert "shell.execute  good" in ran.err
    assert "scripted/code (scripted)  4 turns, 5 tool calls" in ran.err
    assert ran.err.endswith("agentctl diff code   agentctl commit code\n")
    assert (desk.project / "project/basket.py").read_text() == before, "it was changed without a commit"
    changed = {one["path"] for one in desk.good("diff", "code", "-o", "json").json["changes"]}
    assert "project/basket.py" in changed
    desk.good("commit", "code")
    tests = [sys.executable, "-m", "unittest", "-q"]
    assert subprocess.run(tests, cwd=desk.project / "project", capture_output=True, check=False).returncode == 0


def test_another_goal_and_another_model_take_the_place_of_the_manifests_own(desk: Desk) -> None:
    stage(desk, "code")
    (desk.project / "other.yaml").write_text(
        "- when: Say hello\n  tool_calls:\n    - {name: agent.finish, args: {result: {cause: hello, changed: [], "
        "passes: true}}}\n"
    )
    ran = desk.good("run", "code.agent.toml", "Say hello", "--model", "scripted/other")
    assert json.loads(ran.out)["cause"] == "hello"
    assert "scripted/other (scripted)" in ran.err
    none = desk.ask("run", "code.agent.toml", "Say hello", "--model", "scripted/nobody")
    assert (none.code, none.out) == (20, "")
    assert "nobody.yaml" in none.err, "it must say which script is missing"


def test_the_research_agent_cites_what_was_really_opened(desk: Desk) -> None:
    stage(desk, "research")
    said = json.loads(desk.good("run", "research.agent.toml").out)
    assert said["sources"] == ["/work/library/compost.md"]
    assert "my system message" not in (desk.project / "library/leaves.md").read_text()


@pytest.mark.parametrize(("value", "orders"), [("true", 4), (None, 3)])
def test_the_trader_waits_for_a_person_before_a_large_order(desk: Desk, value: str | None, orders: int) -> None:
    """What it may not order, it goes on without."""
    stage(desk, "trading")
    desk.good("apply", "-f", "market.agent.toml", "--wait")
    command = [*AGENTCTL, "run", "trader.agent.toml"]
    running = subprocess.Popen(
        command, env=desk.env, cwd=desk.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: bool(waiting(desk)))
    assert waiting(desk)[0]["args"]["question"] == "May I buy 500 pieces?"
    question = str(waiting(desk)[0]["id"])
    if value is None:
        desk.good("deny", question, "--reason", "too much")
    else:
        desk.good("answer", question, value)
    out, err = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, err
    assert f"agentctl answer {question}" in err
    assert json.loads(out)["orders"] == orders
    assert json.loads(out)["stop"] == "done"


def waiting(desk: Desk) -> list[dict[str, object]]:
    return desk.good("approvals", "-o", "json").json["approvals"]


def test_the_loop_template_runs_unedited(desk: Desk) -> None:
    desk.good("init", "--template", "loop", "--name", "notes")
    ran = desk.good("run", "notes.agent.toml")
    assert ran.out == "The summary is in /work/summary.md.\n"
    assert "scripted/notes (scripted)" in ran.err
    assert [one["path"] for one in desk.good("diff", "notes", "-o", "json").json["changes"]] == ["summary.md"]
