"""`agentctl init` writes an agent to begin with, and nothing over anything."""

import json
import os
from pathlib import Path

import pytest

from agent_os import AgentManifest
from agent_os.cli.init import TEMPLATES
from agent_os.cli.main import main
from agent_os.drivers.models.scripted import read_script
from agent_os.manifest.checks import oddities
from cli.desk import Desk

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")


@pytest.fixture(autouse=True)
def _plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_a_sound_agent_with_rules_that_hold(
    template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "shop", "--template", template]) == 0
    written = capsys.readouterr().out.splitlines()
    assert sorted(written) == sorted(str(path) for path in Path("shop").rglob("*") if path.is_file())
    manifest = AgentManifest.load("shop/shop.agent.toml")
    assert manifest.name == "shop"
    assert list(oddities(manifest)) == []
    assert main(["manifest", "lint", "--strict", "shop"]) == 0
    assert main(["policy", "check", "--strict", "shop/.agents/policy.toml"]) == 0
    assert main(["policy", "test", "shop/policy-cases.toml", "--policy", "shop/.agents/policy.toml"]) == 0
    assert "NAME" not in "".join(Path(path).read_text() for path in written)


def test_the_script_of_a_loop_is_one() -> None:
    main(["init", "--template", "loop", "--name", "sum"])
    assert AgentManifest.load("sum.agent.toml").program.model == "scripted/sum"
    assert len(read_script(Path("sum.yaml").read_text())) == 3


def test_what_is_there_is_never_overwritten_and_then_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("agent.py").write_text("mine")
    assert main(["init", "--name", "a"]) == 9
    assert "agent.py is there already" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["agent.py"]
    assert Path("agent.py").read_text() == "mine"


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    Path("p").mkdir()
    os.symlink(tmp_path / "elsewhere", "p/agent.py")
    assert main(["init", "p"]) == 9
    assert not (tmp_path / "elsewhere").exists()


def test_rules_that_are_there_stay(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p/.agents").mkdir(parents=True)
    Path("p/.agents/policy.toml").write_text("mine")
    assert main(["init", "p", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] == [".agents/policy.toml"]
    assert told["wrote"] == ["p.agent.toml", "agent.py", "agent-os.toml", "policy-cases.toml"]
    assert Path("p/.agents/policy.toml").read_text() == "mine"


@pytest.mark.parametrize(("folder", "name"), [("My Shop!", "my-shop"), ("_x_", "x"), ("…", "agent")])
def test_the_agent_is_called_as_its_folder_in_letters_that_a_name_can_have(folder: str, name: str) -> None:
    assert main(["init", folder]) == 0
    assert AgentManifest.load(f"{folder}/{name}.agent.toml").name == name


@pytest.mark.parametrize("name", ["../up", "Big", "a b", "-x", "a/b", "x" * 64])
def test_a_name_that_is_none_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", f"--name={name}"]) == 2
    assert "is no name" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert main(["init", "file/below"]) == 4
    assert "cannot be written" in capsys.readouterr().err


def test_an_unknown_template_is_told_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--template", "lop"]) == 2
    assert "pipeline" in capsys.readouterr().err


@pytest.mark.integration
def test_templates_run_unedited(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk")
    desk.up()
    try:
        for template in ("code", "pipeline", "guest"):
            desk.good("init", template, "--template", template)
            desk.good("run", f"{template}/{template}.agent.toml")
        desk.good("init", "service", "--template", "service")
        desk.good("apply", "-f", "service/service.agent.toml")
        answer = desk.good("send", "service", "any words here", "--wait")
        assert json.loads(answer.out) == {"words": 3, "longest": "words"}
    finally:
        desk.down()
