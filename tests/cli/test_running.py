"""What may stand beside a manifest that is run: a goal, inputs and a model, and nothing that it says itself.

Without a kernel: what is no use is refused before one is asked. What is of use is in the manifest that is declared.
"""

from pathlib import Path

import pytest

from agent_os import AgentManifest
from agent_os.cli import running
from agent_os.cli.main import main
from agent_os.cli.running import Instead

HEAD = 'name = "a"\nrole = "worker"\n[program]\n'
MODEL = f"{HEAD}model = 'scripted/a'\ngoal = 'Work.'\n[program.loop]\nfallback = ['p/other']\n"
PYTHON = f"{HEAD}entry = 'a.py:main'\n[program.inputs]\nsize = '1'\n"
COMMAND = f"{HEAD}argv = ['true']\n"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("")
    for name, text in {"model": MODEL, "python": PYTHON, "command": COMMAND}.items():
        Path(f"{name}.agent.toml").write_text(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["command.agent.toml", "a goal"], "runs a command, which takes neither a goal nor --model or --input"),
        (["command.agent.toml", "--input", "a=b"], "runs a command"),
        (["python.agent.toml", "a goal"], "runs a.py:main, which takes no goal: --input NAME=VALUE"),
        (["model.agent.toml", "--input", "blue"], "--input takes NAME=VALUE, not 'blue'"),
        (["--model", "p/a", "model.agent.toml", "--model", "p/b"], "takes one --model, not p/a and p/b"),
        (["model.agent.toml", "two", "goals"], "goals"),
        (["model.agent.toml", "--wat"], "--wat"),
        (["--net", "example.com", "model.agent.toml"], "--net has no place beside it"),
        (["--input", "a=b", "--", "true"], "--input is for the agent of a manifest"),
    ],
)
def test_what_is_no_use_is_refused_in_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 125
    assert said in capsys.readouterr().err


def test_what_is_declared_is_the_manifest_with_these_in_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: list[AgentManifest] = []

    async def taken(agent: str, files: dict[str, str], detach: bool, quiet: bool) -> int:
        declared.extend(map(AgentManifest.from_toml, files.values()))
        assert (detach, quiet) == (True, True)
        return 0

    monkeypatch.setattr(running, "_run", taken)
    words = ["--model", "p/b", "--input", "colour=blue", "--input", "size=a=7", "--detach", "-q"]
    assert main(["run", "model.agent.toml", "Another", *words]) == 0
    assert main(["run", "-d", "-q", "python.agent.toml", *words[:6]]) == 0
    model, python = (one.program for one in declared)
    assert (model.goal, model.model, model.loop.fallback) == ("Another", "p/b", [])
    assert model.inputs == {"colour": "blue", "size": "a=7"}
    assert (python.runtime, python.model, python.entry) == ("python", "p/b", "a.py:main")
    assert python.inputs == {"size": "a=7", "colour": "blue"}


def test_without_anything_beside_it_the_file_is_declared_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: list[str] = []

    async def taken(agent: str, files: dict[str, str], detach: bool, quiet: bool) -> int:
        declared.extend(files.values())
        return 0

    monkeypatch.setattr(running, "_run", taken)
    assert running.run_manifest(Path("model.agent.toml"), Instead(), detach=False, quiet=False) == 0
    assert declared == [MODEL]
