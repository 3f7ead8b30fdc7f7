"""Real agents as guests: unmodified, with a model on the loopback, they read, edit, run a command and end.

What they did is in the diff and nowhere else. Each is one recipe of docs/recipes.md with the provider exchanged.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from guests.agentctl import PEEK_SH, Machine
from guests.mock_provider import Call, Provider, Say
from guests.packages import NotToBeHad, Package, obtain
from overlay import tree

pytestmark = pytest.mark.integration

CLAUDE_CODE = Package("claude-code", "npm", "@anthropic-ai/claude-code@2.1.325", 60)
CODEX = Package("codex", "npm", "@openai/codex@0.166.0", 60)
AIDER = Package("aider", "pip", "aider-chat==0.86.2", 150)

FILE = "greeting.txt"
OLD, NEW = "hello from the old days", "hello from the new days"
PROMPT = f"Bring {FILE} up to date, then run the check."
# The command that every agent's model asks for: what can be seen, what the file says now, who runs it.
CHECK = f"{{ {PEEK_SH}tr a-z A-Z < {FILE}; id -un; }} > check.txt; echo answer $((6 * 7))"


@dataclass(frozen=True)
class Recipe:
    package: Package
    command: tuple[str, ...]  # URL stands for the provider's address
    script: tuple[Say | Call, ...]
    env: dict[str, str] = field(default_factory=dict[str, str])
    typed: bytes = b""  # what a person answers to the agent's questions


def claude_code(file: Path) -> Recipe:
    edit = {"file_path": str(file), "old_string": OLD, "new_string": NEW}
    return Recipe(
        CLAUDE_CODE,
        ("claude", "-p", PROMPT, "--dangerously-skip-permissions"),
        (
            Call({"Read": {"file_path": str(file)}}),
            Call({"Edit": edit}),
            Call({"Bash": {"command": CHECK, "description": "Run the check"}}),
            Say("All done."),
        ),
        {
            "ANTHROPIC_BASE_URL": "URL",
            "ANTHROPIC_API_KEY": "placeholder",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    )


def codex(*model: str) -> Recipe:
    patch = f"*** Begin Patch\n*** Update File: {FILE}\n@@\n-{OLD}\n+{NEW}\n*** End Patch\n"
    provider = '{name="mock", base_url="URL/v1", env_key="OPENAI_API_KEY", wire_api="responses"}'
    settings = ("-c", "model_provider=mock", "-c", f"model_providers.mock={provider}")
    own_walls_off = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return Recipe(
        CODEX,
        ("codex", "exec", *own_walls_off, *settings, *model, PROMPT),
        (
            _codex_shell(f"cat {FILE}"),
            Call(
                {
                    "exec": f"text(await tools.apply_patch({json.dumps(patch)}))",
                    "apply_patch": patch,
                    "exec_command": {"cmd": f"apply_patch <<'EOF'\n{patch}EOF\n"},
                }
            ),
            _codex_shell(CHECK),
            Say("All done."),
        ),
        {"OPENAI_API_KEY": "placeholder"},
    )


def _codex_shell(command: str) -> Call:
    """Codex offers a shell, or one program that calls the shell from JavaScript."""
    return Call(
        {
            "exec": f"text(await tools.exec_command({{cmd: {json.dumps(command)}}}))",
            "exec_command": {"cmd": command},
        }
    )


def aider() -> Recipe:
    edit = f"{FILE}\n```\n<<<<<<< SEARCH\n{OLD}\n=======\n{NEW}\n>>>>>>> REPLACE\n```\n"
    silent = "--no-check-update --no-show-model-warnings --no-show-release-notes --analytics-disable --no-fancy-input"
    elsewhere = ("--no-git", "--chat-history-file", "/tmp/chat", "--input-history-file", "/tmp/input")
    model = ("--model", "openai/mock-1", "--edit-format", "diff")
    return Recipe(
        AIDER,
        ("aider", *model, *silent.split(), *elsewhere, "--message", PROMPT, FILE),
        (Say(f"The new words:\n\n{edit}\nThen the check:\n\n```bash\n{CHECK}\n```\n"),),
        {"OPENAI_API_BASE": "URL/v1", "OPENAI_API_KEY": "placeholder", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        typed=b"y\nn\n",  # yes, run the command; no, do not keep its output for the next message
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    (machine.project / FILE).write_text(f"# a letter\n{OLD}\n# its end\n")
    (machine.project / "untouched.txt").write_text("as it was\n")
    return machine


def test_claude_code_reads_edits_runs_a_command_and_ends(machine: Machine) -> None:
    told = works_as_a_guest(machine, claude_code(machine.project / FILE))
    assert OLD in told[1]  # the file was read
    assert "answer 42" in told[3]  # the command was run


def test_codex_reads_edits_runs_a_command_and_ends(machine: Machine) -> None:
    told = works_as_a_guest(machine, codex("-m", "mock-1"))
    assert OLD in told[1]
    assert "answer 42" in told[3]


def test_codex_calls_its_tools_from_javascript(machine: Machine) -> None:
    """With the model it takes by itself: it starts a second program, which compiles and runs what the model wrote."""
    told = works_as_a_guest(machine, codex())
    assert OLD in told[1]
    assert "answer 42" in told[3]


def test_aider_reads_edits_runs_a_command_and_ends(machine: Machine) -> None:
    told = works_as_a_guest(machine, aider())
    assert OLD in told[0]
    assert "answer 42" in told[1]  # printed: there is one message, and so no next turn


def works_as_a_guest(machine: Machine, recipe: Recipe) -> list[str]:
    """Run it and judge all that holds for every agent. Returns the conversation as the model saw it before each of
    its answers, and at the end what the agent printed."""
    commands = obtain(recipe.package)
    if isinstance(commands, NotToBeHad):
        pytest.skip(f"{recipe.package.name}: {commands}")
    before = tree(machine.project)
    file = machine.project / FILE
    with Provider(recipe.script) as provider:
        env = [f"--env={name}={value.replace('URL', provider.url)}" for name, value in recipe.env.items()]
        ran = machine.run(
            *(word.replace("URL", provider.url) for word in recipe.command),
            flags=["--net", provider.endpoint, "--timeout", "100s", *env],
            stdin=recipe.typed,
            PATH=f"{commands}:{machine.env['PATH']}",
            PEEK=":".join([str(file), *machine.private_paths()]),
        )
    said = f"{ran.out.decode()}\n{ran.err}"
    assert (ran.code, provider.problems) == (0, []), said
    assert len(provider.told) == len(recipe.script), said
    assert all("placeholder" in str(request.headers) for request in provider.told)

    assert ran.changes == {"check.txt": "add", FILE: "modify"}, said
    assert tree(machine.project) == before  # nothing reached the project by itself
    machine.agentctl("commit", ran.name or "")
    after = tree(machine.project)
    check = after.pop("check.txt").splitlines()
    assert after == before | {FILE: before[FILE].replace(OLD, NEW)}
    assert check[-4:] == ["# A LETTER", NEW.upper(), "# ITS END", "agent"]
    assert {line.removeprefix("SEEN ") for line in check[:-4]} <= {str(file), *around(machine, commands)}
    assert f"SEEN {file}" in check
    return [*(request.conversation for request in provider.told), ran.out.decode()]


def around(machine: Machine, commands: Path) -> set[str]:
    """The entries of a home that the installation itself lies in: the only ones that may be seen."""
    real = Path(os.path.realpath(commands))
    return {path for path in machine.private_paths() if real.is_relative_to(path)}
