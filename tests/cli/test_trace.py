"""`agentctl trace`: the picture, the objects, and spans at a real collector."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent_os
from cli.desk import AGENTCTL, SECONDS, Desk, until
from collector import attributes, collecting

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
POLICY = """
version = 1
default = "capability"
mode = "enforce"
[[rule]]
id = "ask-first"
effect = "ask"
what = ["mem:/mem/working/asked:write"]
reason = "somebody looks at this"
[[rule]]
id = "never"
effect = "forbid"
what = ["mem:/mem/working/never:write"]
violation = "refuse"
"""
ASKER = """
from agent_os import agent

@agent
async def asker(ctx):
    try:
        await ctx.write("/mem/working/never", "no")
    except Exception as refused:
        print(refused)
    await ctx.write("/mem/working/asked", "please")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One agent that has thought and used tools, one that waits for a person."""
    desk = Desk(tmp_path_factory.mktemp("trace"))
    desk.home.mkdir(mode=0o700)
    (desk.home / "policy.toml").write_text(POLICY)
    desk.up()
    try:
        desk.good("init", "--template", "loop", "loop")
        desk.good("run", "loop/loop.agent.toml")
        (desk.project / "asker.py").write_text(ASKER)
        desk.good("run", "--detach", "--name", "asker", "asker.py:asker")
        until(lambda: "q-1" in desk.ask("approvals").out)
        yield desk
    finally:
        desk.down()


def test_the_picture_has_models_tools_refusals_and_what_waits(home: Desk) -> None:
    lines = home.good("trace", "loop").out.splitlines()
    assert "invoke_agent loop" in lines[0]
    assert [line.split()[3] for line in lines if "├ chat " in line] == ["scripted/loop"] * 3
    assert "1193/61" in "".join(lines)
    assert sum("├ execute_tool file." in line for line in lines) == 2
    assert not any("SYS_NOW" in line for line in lines)
    assert any("SYS_NOW" in line for line in home.good("trace", "loop", "--all").out.splitlines())
    lines = home.good("trace", "asker").out.splitlines()
    assert any("REFUSED SYS_WRITE /mem/working/never" in line and "rule never" in line for line in lines)
    assert "approval mem.write /mem/working/asked" in lines[-1]
    assert lines[-1].endswith("waiting")


def test_objects_have_lanes_and_attributes(home: Desk) -> None:
    spans = home.good("trace", "loop", "-o", "json").json["spans"]
    chat = next(one for one in spans if one["lane"] == "model")
    assert chat["name"] == "chat scripted/loop"
    assert chat["attributes"]["gen_ai.usage.input_tokens"] == 1193
    assert {"model", "tools", "state"} <= {one["lane"] for one in spans}
    waits = home.good("trace", "asker", "-o", "json").json["spans"][-1]
    assert (waits["lane"], waits["waiting"]) == ("policy", True)


def test_spans_arrive_at_a_collector_whole_and_without_what_was_said(home: Desk) -> None:
    with collecting() as collector:
        home.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.address
        try:
            said = home.good("trace", "loop", "--export", "otlp")
            assert "spans sent to" in said.err
            (life,) = collector.named("invoke_agent loop")
            chats, tools = collector.named("chat scripted/loop"), collector.named("execute_tool file.")
            assert (len(chats), len(tools)) == (3, 2)
            assert {one.parent_span_id for one in (*chats, *tools)} == {life.span_id}
            assert {one.trace_id for one in collector.spans} == {life.trace_id}
            first = attributes(chats[0])
            assert (first["gen_ai.operation.name"], first["gen_ai.provider.name"]) == ("chat", "scripted")
            assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (1193, 61)
            assert first["agent_os.agent"] == "default/loop"
            assert first["agent_os.audit.sequence"] > 0
            assert first["agent_os.decision"] == "allow"
            assert collector.resources[0]["service.name"] == "agent-os"
            assert "gutter" not in str(collector.spans), "which is in the notes that a tool read"
            ids = [one.span_id for one in collector.spans]
            home.good("trace", "loop", "--export", "otlp", "--content")
            assert [one.span_id for one in collector.spans] == ids * 2
            assert "gutter" in str(collector.spans)
        finally:
            del home.env["OTEL_EXPORTER_OTLP_ENDPOINT"]


def test_the_same_can_be_had_as_json(home: Desk) -> None:
    told = json.loads(home.good("trace", "loop", "--export", "json").out)
    names = [one["name"] for one in told["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert names.count("chat scripted/loop") == 3
    assert "invoke_agent loop" in names


def test_a_collector_that_is_not_there_is_told(home: Desk) -> None:
    nowhere = home.ask("trace", "loop", "--export", "otlp")
    assert (nowhere.code, "OTEL_EXPORTER_OTLP_ENDPOINT" in nowhere.err) == (2, True)
    more = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    home.env |= more
    try:
        gone = home.ask("trace", "loop", "--export", "otlp")
    finally:
        for name in more:
            del home.env[name]
    assert (gone.code, "are lost" in gone.err) == (8, True)
    assert home.ask("trace", "loop", "--content").code == 2


def test_without_the_extra_it_is_one_line(home: Desk, tmp_path: Path) -> None:
    """As where it is not installed: a package of that name without anything in it is found first."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'opentelemetry':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Gone())\n"
    )
    env = {**home.env, "PYTHONPATH": f"{tmp_path}:{Path(agent_os.__file__).parents[1]}"}
    command = [*AGENTCTL, "trace", "loop", "--export", "otlp"]
    said = subprocess.run(
        command, env=env, cwd=home.project, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert said.returncode == 2
    assert "pip install 'agent-os[otel]'" in said.stderr
    assert "Traceback" not in said.stderr
