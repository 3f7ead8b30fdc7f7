"""The examples against providers as they are: the same files, another `--model`, and the answers come over the wire.

A provider on a loopback socket plays what an example's script says, in the dialect of Chat Completions and in that of
Messages, and refuses what the originals refuse. What the examples do must be what they do with their scripts.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent_os.drivers.models.scripted import read_script
from cli.desk import AGENTCTL, SECONDS, Desk, until
from models.provider import KEY, Called, MockProvider, Say, Seen, Step
from test_examples_run import EXAMPLES, waiting

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("model routes are the same for every user")]
MODEL = "mine/small"
QUESTION = "How long must a heap of compost rest?"
ARGS_NO_JSON = '{"path": "/work/not'


class Bench(NamedTuple):
    desk: Desk
    mock: MockProvider


def played(seen: Seen) -> Step:
    """The step of this turn, of the script that whoever asks would have had: tools tell one agent from another."""
    names = {one.get("name") or one["function"]["name"] for one in seen.body.get("tools", [])}
    script = next((file for tool, file in SCRIPTS.items() if tool in names), "research/planner.yaml")
    spoken = sum(one["role"] == "assistant" for one in seen.body["messages"])
    step = read_script((EXAMPLES / script).read_text())[spoken]
    calls = [
        Called(one.name.replace(".", "_"), one.args, id=f"call_{spoken}_{number}")
        for number, one in enumerate(step.tool_calls)
    ]
    return Say(step.text, calls=calls, input=1000, output=50)


SCRIPTS = {
    "open_page": "research/reader.yaml",
    "market_order": "trading/trader.yaml",
    "shell_execute": "code/code.yaml",
    "file_edit": "../src/agent_os/cli/templates/loop/script.yaml",
}


@pytest.fixture(scope="module", params=["openai", "anthropic"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    with MockProvider(models=["small"], answer=played) as mock:
        desk.up()
        base = mock.url if request.param == "anthropic" else f"{mock.url}/v1"
        desk.good("model", "add", "mine", "--dialect", request.param, "--base", base, "--key", "k")
        told = [*AGENTCTL, "secrets", "set", "k"]
        subprocess.run(told, env=desk.env, input=KEY.encode(), check=True, timeout=SECONDS, capture_output=True)
        desk.good("secrets", "bind", "k", "--host", f"127.0.0.1:{mock.port}")
        desk.good("model", "price", MODEL, "--input", "1", "--output", "2")
        yield Bench(desk, mock)
        desk.down()


def stage(desk: Desk, example: str) -> Path:
    shutil.copytree(EXAMPLES / example, desk.project / example)
    return Path(example)


def test_the_code_agent_mends_the_program(bench: Bench) -> None:
    folder = stage(bench.desk, "code")
    ran = bench.desk.good("run", folder / "code.agent.toml", "--model", MODEL)
    assert json.loads(ran.out)["passes"] is True
    assert f"{MODEL}  4 turns, 5 tool calls, 4,000 + 200 tokens, $0.0044" in ran.err
    assert "scripted" not in ran.err
    changed = {one["path"] for one in bench.desk.good("diff", "code", "-o", "json").json["changes"]}
    assert "project/basket.py" in changed
    assert KEY not in ran.out + ran.err


def test_the_research_agent_takes_a_question_and_cites_what_was_opened(bench: Bench) -> None:
    folder = stage(bench.desk, "research")
    words = (folder / "research.agent.toml", "--input", f"question={QUESTION}", "--model", MODEL)
    assert json.loads(bench.desk.good("run", *words).out)["sources"] == ["/work/library/compost.md"]
    assert any(QUESTION in seen.raw.decode() for seen in bench.mock.seen), "no model was asked what was asked"


def test_the_trader_goes_without_what_a_person_refused(bench: Bench) -> None:
    desk, folder = bench.desk, stage(bench.desk, "trading")
    desk.good("apply", "-f", folder / "market.agent.toml", "--wait")
    command = [*AGENTCTL, "run", str(folder / "trader.agent.toml"), "--model", MODEL]
    running = subprocess.Popen(command, env=desk.env, cwd=desk.project, stdout=subprocess.PIPE, text=True)
    until(lambda: bool(waiting(desk)))
    desk.good("deny", str(waiting(desk)[0]["id"]))
    out, _ = running.communicate(timeout=SECONDS)
    said: dict[str, Any] = json.loads(out)
    assert (said["stop"], said["orders"], said["held"]) == ("done", 3, 0)


def test_the_loop_template_runs_and_a_call_that_is_no_json_is_told_to_the_model(bench: Bench) -> None:
    bench.desk.good("init", "notes", "--template", "loop")
    bench.mock.then(Say("I read.", calls=[Called("file_read", ARGS_NO_JSON, id="call_x")]))
    ran = bench.desk.good("run", "notes/notes.agent.toml", "--model", MODEL)
    assert "file.read  bad: Not run: the arguments of file.read are no JSON object" in ran.err
    assert ran.out.endswith("The summary is in /work/summary.md.\n")
    told = json.dumps([seen.body for seen in bench.mock.seen])
    assert "are no JSON object" in told, "the model never heard of it"
