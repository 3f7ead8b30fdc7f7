"""`shell.execute` and `python.execute` in real sandboxes: what runs, what comes back, what an allow list is worth."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EINVAL, EISOLATION, EMSGSIZE, ENOENT, ETIMEDOUT
from agent_os.drivers.tools import Program, python, shell
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.calls import Need
from agent_os.kernel.tools import means as kernel_means
from agent_os.kernel.tools.means import SandboxRuns
from agent_os.kernel.tools.registry import Deed, Registry
from agent_os.kernel.tools.schema import Schema
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Launcher, SandboxError
from drivers.tools.means import Bodies

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("runs in the agents' sandbox, which both users test")]
Execute = Callable[..., dict[str, Any]]


class Sandbox:
    """One launcher for all runs: starting one takes longer than most of them."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.launcher = runner.run(Launcher.start())

    def run(self, module: Any, params: dict[str, Any], bodies: Bodies) -> dict[str, Any]:
        Schema(module.EXECUTE.input_schema).require(params, "it", ran=False)
        runs = SandboxRuns(self.launcher, "default/a")
        found = self.runner.run(module.execute(params, runs, bodies.kept()))
        Schema(module.EXECUTE.output_schema).require(found, "it", ran=True)
        return found


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with asyncio.Runner() as runner:
        found = Sandbox(runner)
        try:
            yield found
        finally:
            runner.run(found.launcher.close())


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


@pytest.fixture
def sh(sandbox: Sandbox, bodies: Bodies) -> Execute:
    return lambda **params: sandbox.run(shell, params, bodies)


@pytest.fixture
def py(sandbox: Sandbox, bodies: Bodies) -> Execute:
    return lambda code, **params: sandbox.run(python, {"code": code, **params}, bodies)


def test_words_are_not_read_by_any_shell(sh: Execute) -> None:
    words = ["a;id", "&&", "`id`", "$(id)", "| cat", "*", "", "a b", "-n", "\n", "é"]
    found = sh(argv=["printf", "%s|", *words])
    assert found["stdout"] == "|".join(words) + "|"
    assert (found["exit"], found["stderr"]) == (0, "")


def test_a_command_is_a_line_for_the_shell_and_its_failure_is_a_result(sh: Execute) -> None:
    found = sh(command="cat; echo oops >&2; exit 3", stdin="in")
    assert (found["exit"], found["stdout"], found["stderr"]) == (3, "in", "oops\n")


@pytest.mark.parametrize(
    "params", [{}, {"argv": [], "cwd": "/"}, {"argv": ["ls"], "command": "ls"}, {"argv": [""]}, {"argv": ["a\0b"]}]
)
def test_what_is_no_command_is_refused(sh: Execute, params: dict[str, Any]) -> None:
    with pytest.raises(EINVAL):
        sh(**params)


def test_a_program_that_is_not_there_is_not_found(sh: Execute) -> None:
    for argv in (["no-such-program"], ["/work/none"]):
        with pytest.raises(ENOENT):
            sh(argv=argv)


def test_a_timeout_kills_all_and_brings_back_what_there_was(sh: Execute) -> None:
    began = time.monotonic()
    with pytest.raises(ETIMEDOUT) as caught:
        sh(command="echo begun; echo warned >&2; (setsid sleep 600 &); sleep 600", timeout_s=2)
    assert (caught.value.detail["stdout"], caught.value.detail["stderr"]) == ("begun\n", "warned\n")
    assert caught.value.detail["ran"] is True
    assert not caught.value.retryable
    assert time.monotonic() - began < 60


def test_whoever_writes_without_end_is_killed(sh: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_means, "LARGEST_OUTPUT", 1 << 20)
    with pytest.raises(EMSGSIZE) as caught:
        sh(command="yes", timeout_s=600)
    assert str(caught.value.detail["stdout"]).startswith("y\ny\n")


def test_long_and_binary_output_is_kept_as_it_was(sh: Execute, bodies: Bodies) -> None:
    found = sh(command=r"printf 'a\377b'; seq 1 100000 >&2")
    assert found["stdout"] == "a\ufffdb"
    assert bodies[found["stdout_blob"]] == b"a\xffb"
    assert found["stderr"].startswith("1\n2\n")
    assert found["stderr"].endswith("100000\n")
    assert found["stderr_size"] == len(bodies[found["stderr_blob"]]) == 588_895


def test_a_sandbox_that_cannot_be_made_is_no_output_of_the_command() -> None:
    class Broken:
        async def spawn(self, *args: Any, group: Group, **more: Any) -> Any:
            group.remove()  # which it takes over
            raise SandboxError("setup", "no namespaces here", step="unshare")

    runs = SandboxRuns(Broken(), "default/a")  # type: ignore[arg-type]
    with pytest.raises(EISOLATION) as caught:
        asyncio.run(shell.execute({"argv": ["true"]}, runs, Bodies().kept()))
    assert caught.value.detail["ran"] is False


# What an allow list says yes to.


def allowed(capability: str, params: dict[str, Any]) -> bool:
    runs = SandboxRuns(None, "default/a")  # type: ignore[arg-type]

    async def nothing(call: Any) -> None: ...

    there = Registry(lambda: 0.0)
    there.register(shell.EXECUTE, Deed(nothing, names=lambda given: shell.names(given, runs)))
    call = there.prepare("shell.execute", params)
    need = next(need for need in call.needs if need.kind == "shell")
    return parse(capability).covers(need, call.facts)


@pytest.mark.parametrize(
    ("argv", "fits"),
    [
        (["cat", "/work/a"], True),
        (["/usr/bin/cat", "/work/a"], True),
        (["/bin/cat"], True),
        (["/work/cat"], False),
        (["/work/bin/cat"], False),
        (["/tmp/cat"], False),
        (["tac"], False),
        (["sh", "-c", "cat"], False),
        (["env", "cat"], False),
    ],
)
def test_an_allow_list_is_about_the_program_that_runs(argv: list[str], fits: bool) -> None:
    assert allowed("shell:execute{allowlist:cat}", {"argv": argv}) is fits


@pytest.mark.parametrize("program", ["./cat", "../cat", "/usr/bin/../../work/cat", "/usr/bin//../cat", ".", ".."])
def test_a_program_by_a_crooked_path_is_refused(program: str) -> None:
    with pytest.raises((EINVAL, ENOENT)):
        allowed("shell:execute{allowlist:cat}", {"argv": [program]})


def test_a_command_line_needs_the_right_to_run_anything() -> None:
    assert not allowed("shell:execute{allowlist:cat|sh}", {"command": "cat"})
    assert allowed("shell:execute", {"command": "cat; anything"})


def test_a_name_that_leads_elsewhere_is_what_it_leads_to() -> None:
    named = shell.named(Program("/usr/bin/awk", "/usr/bin/mawk"))
    assert named["program"] == "/usr/bin/mawk"
    assert {"awk", "mawk"} <= set(named["programs"])
    own = shell.named(Program("/work/cat", "/work/cat", system=False))
    assert own["programs"] == ("/work/cat",)
    assert shell.runnable(Program("/usr/bin/awk", "/usr/bin/mawk")) == "/usr/bin/awk"


# What allowed programs can be talked into. Their options run others: the sandbox, not the list, is what bounds them. A
# marker outside /work would be a way out; the same words without a sandbox must leave it there.

WRAPPERS: dict[str, list[str]] = {
    "find -exec": ["find", "/", "-maxdepth", "0", "-exec", "touch", "@MARK@", ";"],
    "find -fprintf": ["find", "/", "-maxdepth", "0", "-fprintf", "@MARK@", "x"],
    "git -c core.sshCommand": ["git", "-c", "core.sshCommand=touch @MARK@ #", "ls-remote", "ssh://x/y"],
    "git alias": ["git", "-c", "alias.x=!touch @MARK@", "x"],
    "tar --checkpoint-action": [
        *("tar", "-cf", "/dev/null", "--checkpoint=1", "--checkpoint-action=exec=touch @MARK@", "/etc/hostname"),
    ],
    "tar -I": ["tar", "-I", "touch @MARK@", "-cf", "/dev/null", "/etc/hostname"],
    "sed w": ["sed", "-n", "w @MARK@", "/etc/hostname"],
    "sed e": ["sed", "1e touch @MARK@", "/etc/hostname"],
    "awk system": ["awk", 'BEGIN{system("touch @MARK@")}'],
    "xargs": ["xargs", "-I{}", "touch", "@MARK@"],
    "env": ["env", "touch", "@MARK@"],
    "timeout": ["timeout", "5", "touch", "@MARK@"],
    "curl -o": ["curl", "-s", "-o", "@MARK@", "file:///etc/hostname"],
    "curl -K": ["curl", "-s", "-K", "-"],
    "ssh ProxyCommand": ["ssh", "-oStrictHostKeyChecking=no", "-oProxyCommand=touch @MARK@", "x"],
    "perl -e": ["perl", "-e", "open(F,'>','@MARK@')"],
    "vim -c": ["vim", "-es", "-c", "!touch @MARK@", "-c", "q!"],
}
STDIN = {"xargs": "one\n", "curl -K": 'url = "file:///etc/hostname"\noutput = "@MARK@"\n'}


@pytest.mark.hostile
@pytest.mark.parametrize("name", WRAPPERS)
def test_an_option_that_runs_another_program_stays_in_the_sandbox(sh: Execute, name: str, tmp_path: Path) -> None:
    argv = WRAPPERS[name]
    if not shutil.which(argv[0]):
        pytest.skip(f"{argv[0]} is not installed here")
    mark = tmp_path / "mark"
    stdin = STDIN.get(name, "").replace("@MARK@", str(mark))
    words = [word.replace("@MARK@", str(mark)) for word in argv]
    control = subprocess.run(words, input=stdin.encode(), capture_output=True, timeout=30, check=False)
    if not mark.exists() and name not in ("find -fprintf", "sed w"):
        pytest.skip(f"{name} does nothing of the kind here: {control.stderr[:200]!r}")
    assert mark.exists(), "the control"
    mark.unlink()
    found = sh(argv=words, **({"stdin": stdin} if stdin else {}), timeout_s=30)
    assert not mark.exists(), found
    place = "/usr/local/agent-os-mark"  # which is there inside, and cannot be written to
    inside = [word.replace(str(mark), place) for word in words]
    sh(argv=inside, **({"stdin": stdin.replace(str(mark), place)} if stdin else {}), timeout_s=30)
    assert not Path(place).exists()


# Python.


def test_a_program_prints_and_its_files_are_beside_it(py: Execute) -> None:
    code = "import helper, sys\nprint(helper.value, open('data/in.txt').read(), __name__, sys.argv)\n"
    found = py(code, files={"helper.py": "value = 41 + 1\n", "data/in.txt": "grüße"})
    assert found["stdout"] == "42 grüße __main__ ['program.py']\n"


def test_a_failure_shows_the_line_of_the_program(py: Execute) -> None:
    found = py("x = 1\nraise ValueError('no')\n")
    assert found["exit"] == 1
    assert 'File "program.py", line 2' in found["stderr"]
    assert "raise ValueError('no')" in found["stderr"]
    assert "<string>" not in found["stderr"]  # nothing of ours
    assert "SyntaxError" in py("1 +")["stderr"]
    assert py("raise SystemExit(7)")["exit"] == 7


def test_it_is_fresh_has_no_input_and_no_network(py: Execute) -> None:
    code = (
        "import os, socket, sys\n"
        "print(repr(sys.stdin.read()), [key for key in os.environ if key.startswith(('PYTHON', 'AGENT'))])\n"
        "try:\n    socket.create_connection(('192.0.2.1', 80), 3)\nexcept OSError as error:\n    print('refused')\n"
    )
    assert py(code)["stdout"] == "'' []\nrefused\n"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "", "a//b", ".", "a\0b", "x" * 300])
def test_files_lie_below_its_folder(py: Execute, name: str) -> None:
    with pytest.raises(EINVAL):
        py("pass", files={name: ""})


def test_a_program_without_end_is_killed(py: Execute) -> None:
    with pytest.raises(ETIMEDOUT) as caught:
        py("print('begun', flush=True)\nwhile True: pass", timeout_s=3)
    assert caught.value.detail["stdout"] == "begun\n"


def test_both_specs_need_the_right_to_run_a_program() -> None:
    for spec in (shell.EXECUTE, python.EXECUTE):
        assert spec.requires == ("shell:{program}:execute",)
        assert spec.effect == "opaque"
    runs = SandboxRuns(None, "default/a")  # type: ignore[arg-type]
    names = python.names({"code": ""}, runs)
    need = Need("shell", "execute", names["program"])
    assert parse("shell:execute{allowlist:python3}").covers(need, {"program": names["programs"]})
    assert not parse("shell:execute{allowlist:cat}").covers(need, {"program": names["programs"]})
