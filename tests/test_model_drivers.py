"""Scripts of models are the operator's alone: what an agent can write is not read. Real agents, real files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.abi.errors import EINVAL, ENOENT, EPERM
from agent_os.model_drivers import Scripts
from cli.desk import Desk

pytestmark = pytest.mark.uid_free("model routes are the same for every user")

MANIFEST = """
name = "forger"
role = "worker"
tools = ["file.*"]
[program]
runtime = "model"
model = "scripted/forger"
goal = "Write your own next words."
[sandbox]
workspace = "{}"
"""
SCRIPT = """
- tool_calls: [{name: file.write, args: {path: /work/forger.yaml, content: "- text: x\\n- text: forged\\n"}}]
- text: as the operator wrote it
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    (desk.project / "forger.yaml").write_text(SCRIPT)
    yield desk
    desk.ask("down")


@pytest.mark.integration
def test_an_agent_that_writes_its_script_in_a_copy_changes_nothing_of_what_the_model_says(desk: Desk) -> None:
    (desk.project / "forger.agent.toml").write_text(MANIFEST.format("overlay"))
    ran = desk.good("run", "forger.agent.toml")
    assert "as the operator wrote it" in ran.out
    changed = {one["path"] for one in desk.good("diff", "forger", "-o", "json").json["changes"]}
    assert changed == {"forger.yaml"}, "it must have written it, or this shows nothing"


@pytest.mark.integration
def test_a_script_where_its_agent_writes_through_is_refused_in_words(desk: Desk) -> None:
    (desk.project / "forger.agent.toml").write_text(MANIFEST.format("bind"))
    ran = desk.ask("run", "forger.agent.toml")
    assert ran.code != 0
    assert "forger.yaml is where forger can write" in ran.err
    assert (desk.project / "forger.yaml").read_text() == SCRIPT


def scripts(folder: Path, *writable: Path) -> Scripts:
    below = [os.path.realpath(one) for one in writable]
    return Scripts(folder, lambda path: "default/a" if any(path.startswith(f"{one}/") for one in below) else None)


def test_a_link_to_where_an_agent_can_write_is_followed_before_it_is_judged(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    (other / "x.yaml").write_text("- text: hello\n")
    (own / "x.yaml").symlink_to(other / "x.yaml")
    assert [step.text for step in scripts(own).load("x")] == ["hello"]
    with pytest.raises(EPERM) as refused:
        scripts(own, other).load("x")
    assert refused.value.code == "script.writable"


def test_a_script_that_is_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(EINVAL, match="is no file"):
        scripts(tmp_path).load("x")


def test_a_script_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("- text: hello\n")
    with pytest.raises(ENOENT, match="there is scripted/other"):
        scripts(tmp_path).load("x")


def test_a_script_that_its_operator_changes_is_read_again(tmp_path: Path) -> None:
    path, mine = tmp_path / "x.yaml", scripts(tmp_path)
    path.write_text("- text: one\n")
    assert mine.load("x")[0].text == "one"
    path.write_text("- text: two\n")
    os.utime(path, ns=(1, 1))
    assert mine.load("x")[0].text == "two"
