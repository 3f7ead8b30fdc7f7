"""A native agent ends as the same program under `python` would; an `@agent` lives on descriptor 3 and tells its end."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.signals import AgentSignal
from agent_os.sandbox.spawner import Launcher
from agent_os.userland import native
from agents import drive, spec_of
from userland.fake_kernel import FakeKernel, forever
from userland.sandboxed import in_sandbox

SOURCE = str(Path(native.__file__).parents[2])
RUN = f"import os, sys; sys.path.insert(0, {SOURCE!r}); from agent_os.userland import native; "
PROGRAMS = [
    "pass",
    "raise SystemExit",
    "raise SystemExit(3)",
    "raise SystemExit(256 + 7)",
    "raise SystemExit('a message')",
    "import sys; print(sys.argv); sys.exit(0)",
    "1/0",
    "raise KeyboardInterrupt",
    "import sys; sys.stdout.write('no newline')",
]


@pytest.mark.integration
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_ends_as_python_would(program: str, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(program)
    plain = subprocess.run([sys.executable, script, "x"], capture_output=True, text=True)
    run = f"os._exit(native.run([{str(script)!r}, 'x']))"
    wrapped = subprocess.run([sys.executable, "-c", RUN + run], capture_output=True, text=True)
    expected = 1 if program == "raise KeyboardInterrupt" else plain.returncode
    assert (wrapped.returncode, wrapped.stdout) == (expected, plain.stdout)
    assert plain.stderr.splitlines()[-1:] == wrapped.stderr.splitlines()[-1:]


AGENTS = """
import asyncio, dataclasses, os, random, subprocess, sys
from agent_os import Context, agent
from agent_os.abi.errors import EPERM

@dataclasses.dataclass
class Summary:
    words: int
    luck: float

@agent
async def count(ctx: Context, text: str = "a b") -> Summary:
    await ctx.write("/mem/working/text", text)
    return Summary(len((await ctx.read("/mem/working/text")).split()), random.random())

@agent
async def fails(ctx: Context):
    raise ValueError("the sky fell")

@agent
async def refused(ctx: Context):
    try:
        {}["first"]
    except KeyError:
        await ctx.read("/mem/working/absent")

@agent
async def unfit(ctx: Context):
    raise EPERM("cap.missing", "you hold no capability for it", missing="llm:mine/small:call")

@agent
async def leaves(ctx: Context):
    raise SystemExit(7)

class Stopped(SystemExit):
    failure, result = "stopped (turns)", {"text": "so far"}

@agent
async def stops(ctx: Context):
    raise Stopped(20)

@agent
async def waits(ctx: Context):
    await ctx.sleep(600)

@agent
async def odd(ctx: Context):
    return object()

@agent
async def children(ctx: Context):
    look = "import os; print(os.path.exists('/proc/self/fd/3'))"
    return subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, close_fds=False).stdout

@agent
async def order(ctx: Context):
    return [word for word in {"a", "b", "c", "d", "e", "f", "g"}], os.urandom(1) != b"", len(asyncio.all_tasks())

@count.on_checkpoint
def save(ctx):
    return None
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "my_agents.py"
    path.write_text(AGENTS)
    return path


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def run_agent(argv: list[str], sockets: tuple[socket.socket, socket.socket], **welcome: Any) -> tuple[Any, FakeKernel]:
    """Run it as a process with a kernel on its descriptor 3."""
    answers = welcome.pop("answers", None)
    code = f"import os, sys; os.dup2(int(sys.argv.pop(1)), 3); {RUN}os._exit(native.run(sys.argv[1:]))"
    with FakeKernel(sockets[1], answers, **welcome) as kernel:
        command = [sys.executable, "-c", code, str(sockets[0].fileno()), *argv]
        ended = subprocess.run(command, capture_output=True, text=True, pass_fds=[sockets[0].fileno()], timeout=60)
    return ended, kernel


@pytest.mark.integration
def test_an_agent_is_run_with_its_input_and_its_result_is_told(program: Path, sockets: Any) -> None:
    ended, kernel = run_agent([f"{program}:count"], sockets, input=frames.body({"text": "one two three"}))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert kernel.exit is not None
    assert (kernel.exit["status"], kernel.exit["failure"], kernel.exit["result"]["words"]) == (0, None, 3)
    assert kernel.entries["/mem/working/text"][0] == "one two three"
    assert kernel.hello == frames.Hello(1, 1, ["checkpoint"])


@pytest.mark.integration
def test_words_of_the_command_line_are_input_too(program: Path, sockets: Any) -> None:
    _, kernel = run_agent([f"{program}:count", "text=a b c d"], sockets)
    assert kernel.exit is not None
    assert kernel.exit["result"]["words"] == 4


FAILURES = [
    ("fails", 1, "ValueError: the sky fell", "ValueError: the sky fell"),
    ("leaves", 7, None, ""),
    ("odd", 1, "cannot travel", "cannot travel"),
    ("absent", 1, "it has children, count, fails", "it has children, count, fails"),
    ("refused", 1, "ENOENT", "ENOENT"),
    ("", 1, "not exactly one @agent", "not exactly one @agent"),
]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "status", "failure", "said"), FAILURES)
def test_a_failure_is_told_to_the_kernel_and_its_trace_to_stderr(
    name: str, status: int, failure: str | None, said: str, program: Path, sockets: Any
) -> None:
    ended, kernel = run_agent([f"{program}:{name}"], sockets)
    assert ended.returncode == status
    assert kernel.exit is not None
    assert kernel.exit["status"] == status
    assert said in ended.stderr
    assert kernel.exit["failure"] is None if failure is None else failure in kernel.exit["failure"]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "lines"), [("fails", 1), ("refused", 2), ("absent", 0), ("odd", 0)])
def test_an_author_is_shown_their_own_lines_and_none_of_ours(
    name: str, lines: int, program: Path, sockets: Any
) -> None:
    said = run_agent([f"{program}:{name}"], sockets)[0].stderr
    shown = [line for line in said.splitlines() if line.startswith("  File ")]
    assert [str(program) in line for line in shown] == [True] * lines
    assert ("Traceback" in said) is (lines > 0)


@pytest.mark.integration
def test_an_author_is_told_which_capability_is_missing_and_who_gives_it(program: Path, sockets: Any) -> None:
    said = run_agent([f"{program}:unfit"], sockets)[0].stderr
    assert said.endswith("  try: agentctl run --cap 'llm:mine/small:call', or capabilities in its manifest\n")


@pytest.mark.integration
def test_a_program_that_stops_early_can_hand_over_what_it_has(program: Path, sockets: Any) -> None:
    ended, kernel = run_agent([f"{program}:stops"], sockets)
    assert ended.returncode == 20
    assert kernel.exit is not None
    assert (kernel.exit["status"], kernel.exit["result"]) == (20, {"text": "so far"})
    assert kernel.exit["failure"] == "stopped (turns)"


@pytest.mark.integration
def test_a_file_that_cannot_be_loaded_is_told(tmp_path: Path, sockets: Any) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import agent_os\n\nthis is no python\n")
    ended, kernel = run_agent([f"{broken}:main"], sockets)
    assert ended.returncode == 1
    assert "SyntaxError" in ended.stderr
    assert kernel.exit is not None
    assert "SyntaxError" in kernel.exit["failure"]


@pytest.mark.integration
def test_sigterm_ends_it_with_143(program: Path, sockets: Any) -> None:
    async def told(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        await kernel.push_now("signal", {"signal": int(AgentSignal.SIGTERM)})
        return await forever(kernel, call, body)

    ended, kernel = run_agent([f"{program}:waits"], sockets, answers={"SYS_SLEEP": told})
    assert (ended.returncode, ended.stderr) == (143, "")
    assert kernel.exit is not None
    assert kernel.exit["failure"] == "ended by SIGTERM"


@pytest.mark.integration
def test_a_kernel_that_goes_away_ends_it(program: Path, sockets: Any) -> None:
    async def go(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        kernel.hang_up()
        return await forever(kernel, call, body)

    ended, _ = run_agent([f"{program}:waits"], sockets, answers={"SYS_SLEEP": go})
    assert ended.returncode == 1
    assert "EPIPE kernel.gone" in ended.stderr


@pytest.mark.integration
def test_without_a_kernel_it_says_so(program: Path) -> None:
    code = f"{RUN}os._exit(native.run([{str(program)!r} + ':count']))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ended.returncode == 1
    assert "no kernel on descriptor 3" in ended.stderr


@pytest.mark.integration
def test_what_an_agent_starts_does_not_speak_for_it(program: Path, sockets: Any) -> None:
    _, kernel = run_agent([f"{program}:children"], sockets)
    assert kernel.exit is not None
    assert kernel.exit["result"] == "False\n"


@pytest.mark.integration
def test_it_lives_in_the_sandbox_and_is_the_same_again_under_another_launcher(program: Path) -> None:
    program.parent.chmod(0o755)

    async def twice(launcher: Launcher) -> list[tuple[int, str, dict[str, Any]]]:
        specs = [spec_of("native", [f"/prog/{program.name}:{name}"]) for name in ("count", "order", "order", "fails")]
        return [await in_sandbox(launcher, program.parent, spec) for spec in specs]

    first, second = drive(twice), drive(twice)
    assert [code for code, _, _ in first] == [0, 0, 0, 1], first
    assert first[0][2]["result"]["words"] == 2
    words, random_bytes_work, tasks = first[1][2]["result"]
    assert (sorted(words), random_bytes_work, tasks) == (list("abcdefg"), True, 2)
    assert first[:3] == second[:3]  # sets are walked alike, and `random` gives the same
    assert "ValueError: the sky fell" in first[3][1]
