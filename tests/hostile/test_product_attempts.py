"""Attempts against the whole product: traps in a workspace, tricks with mounts and names, the control door.

Through `agentctl` as an operator would use it, or its parts where a guest could never be given so much. Each has its
control in the same test: what the trap would have done.
"""

import asyncio
import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import agents
import leftovers
from agent_os.kernel.workspace import Workspaces
from agent_os.sandbox import landlock
from agent_os.sandbox.spawner import Launcher
from agent_os.sandbox.spec import GUEST_LIMITS, Bind, Workspace
from guests.agentctl import Machine
from hostile import report

pytestmark = pytest.mark.hostile

# What a folding file system, or a careless tool, takes for a file that it executes or obeys.
DISGUISED = (
    *(".GIT/config", ".Git/hooks/pre-commit", "sub/.git", ".g\u200cit/config", "git~1/config", ".git./config"),
    *(".\uff27\uff29\uff34/config", ".git::$INDEX_ALLOCATION/config", "bare.git/config", "sub/HEAD", ".git /config"),
    *("CONFTEST.PY", "deep/er/Conftest.py", "PACKAGE.json", "makefile", "GNUmakefile", "Makefile.", "evil.PTH"),
    *("sitecustomize/__init__.py", "SiteCustomize.py", ".ENVRC", ".vsCode/tasks.json", ".GitHub/Workflows/x.yml"),
    *(".BASHRC", ".Claude/settings.json", "agents.MD", ".husky/pre-commit", ".GitModules"),
)
WRITE_ALL = """
import os, sys
for path in sys.argv[1:]:
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("gitdir: /evil\\n")
"""


def _note(number: str, name: str) -> None:
    """Only reached where every assertion held: the control worked, the attempt did not."""
    report.OWN.append((number, name, "works", "held"))


def _python() -> str:
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else os.path.realpath(sys.executable)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def outside(machine: Machine) -> Iterator[Path]:
    folder = machine.top / "outside"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def test_10_disguised_names_are_protected_too(machine: Machine) -> None:
    ran = machine.run(_python(), "-Ic", WRITE_ALL, *DISGUISED, "ordinary.txt", flags=["--commit"])
    assert ran.code == 0
    landed = [path for path in DISGUISED if os.path.lexists(machine.project / path)]
    assert landed == []
    assert (machine.project / "ordinary.txt").exists()
    machine.agentctl("commit", ran.name, "--yes", "--allow-protected")
    assert [path for path in DISGUISED if not os.path.lexists(machine.project / path)] == []  # the control
    _note("10b", f"{len(DISGUISED)} protected names in disguise")


def test_10_a_link_named_git_is_protected(machine: Machine) -> None:
    script = "mkdir -p evil/hooks && ln -s evil .git && ln -s ../evil/hooks sub-hooks && touch ordinary.txt"
    machine.run("sh", "-c", script, flags=["--commit"])
    assert not os.path.lexists(machine.project / ".git")
    assert (machine.project / "ordinary.txt").exists()
    _note("10c", "a link in place of .git")


def test_9_a_hard_link_does_not_carry_a_change_into_a_protected_file(machine: Machine) -> None:
    makefile = machine.project / "Makefile"
    makefile.write_text("all:\n")
    ran = machine.run(
        "sh", "-c", "ln Makefile notes.txt && echo 'evil:' >>notes.txt && cat Makefile", flags=["--commit"]
    )
    assert "evil:" in ran.out.decode()  # the control: inside, both names are one file
    assert makefile.read_text() == "all:\n"
    assert (machine.project / "notes.txt").read_text() == "all:\nevil:\n"
    assert makefile.stat().st_nlink == (machine.project / "notes.txt").stat().st_nlink == 1
    _note("9b", "a hard link between an ordinary and a protected file")


MARK = """
import os
os.makedirs("made", exist_ok=True)
for name in ("whiteout", "opaque", "redirect", "metacopy", "origin", "upper", "impure", "nlink", "protattr", "uuid"):
    for path in ("kept", "kept/file", "made", "."):
        for value in (b"y", b"x", b"/etc", b""):
            for prefix in ("user.overlay.", "trusted.overlay.", "user.overlay.overlay."):
                try:
                    os.setxattr(path, prefix + name, value)
                except OSError:
                    pass
print(sorted(os.listdir("kept")), sorted(os.listdir("made")))
"""


def test_11_marks_of_the_overlay_set_from_inside_take_no_effect(machine: Machine) -> None:
    (machine.project / "kept").mkdir()
    for name in ("file", "other"):
        (machine.project / "kept" / name).write_text(name)
    ran = machine.run(_python(), "-Ic", MARK, "touch", flags=["--keep"])
    assert ran.lines == ["['file', 'other'] []"]
    assert "delete" not in ran.changes.values(), ran.changes
    again = machine.run("cat", "kept/file", "kept/other", flags=["--from", ran.name or "", "--discard"])
    assert again.out == b"fileother"
    # the control: the same mark, set from outside on the layer itself, deletes
    kept = Workspaces(machine.state).open(ran.name or "")
    layer = kept.upper / "kept"
    layer.mkdir(exist_ok=True)
    os.setxattr(layer, "user.overlay.opaque", b"y")
    assert "delete" in {change.kind for change in kept.diff()}
    _note("11b", "deletion and redirection marks of the overlay, set from inside")


def test_11_a_running_agents_workspace_is_not_committed(machine: Machine) -> None:
    """Whoever still runs could swap what was shown for something else."""
    swap = "echo up; while :; do echo a >x; mv x y; ln -sf /etc/passwd x; mv x y; done"
    running = machine.start("sh", "-c", swap, flags=["-q"])
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    name = machine.workspaces()[0]
    done = subprocess.run(
        [*machine.command("x")[:3], "commit", name, "--yes"], env=machine.env, cwd=machine.project, capture_output=True
    )
    running.terminate()
    running.communicate(timeout=30)
    assert done.returncode != 0
    assert list(machine.project.iterdir()) == []
    _note("11c", "a commit while the agent swaps files for links")


def test_107_a_home_in_any_disguise_is_refused(machine: Machine) -> None:
    link = machine.top / "link-to-home"
    link.symlink_to(machine.home)
    forms = [machine.home, f"{machine.home}/.", f"{machine.home}/project/..", link, machine.top, "/", f"bind:{link}"]
    forms += [machine.home / ".ssh", machine.state, f"bind:{machine.state}"]
    for form in forms:
        ran = machine.run("true", flags=["--workspace", str(form)])
        assert ran.code == 125, form
    for source in (machine.home, link, machine.state):
        assert machine.run("true", flags=["--mount", f"{source}:/shown"]).code == 125, source
    assert machine.run("true", cwd=machine.home).code == 125
    assert machine.run("true", flags=["--workspace", str(machine.project)]).code == 0  # the control
    _note("107b", f"the home as a workspace or a mount, {len(forms)} forms")


@pytest.mark.parametrize("where", ["link", "link/inner", "missing", "kept/file/below"])
def test_14_a_mount_does_not_land_where_a_link_leads(machine: Machine, outside: Path, where: str) -> None:
    """The project is the agent's: a link that an earlier run left there must not choose a mount's place."""
    (machine.project / "link").symlink_to(outside)
    (machine.project / "kept").mkdir()
    (machine.project / "kept/file").write_text("as it was")
    source = machine.top / "source"
    source.mkdir()
    before = sorted(path.name for path in machine.project.rglob("*"))
    ran = machine.run("true", flags=["--mount", f"rw:{source}:{machine.project}/{where}"])
    assert ran.code == 125
    assert sorted(path.name for path in machine.project.rglob("*")) == before
    assert list(outside.iterdir()) == []
    _note("14b", f"a mount at {where} of the project")


def test_80_no_descriptor_beyond_the_streams_is_there(machine: Machine) -> None:
    """Asking for the kernel's socket does not give one, and nothing of the kernel's side slips in."""
    look = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"
    ran = machine.run(_python(), "-Ic", look, flags=["--env", "AGENT_OS_FD=3"])
    assert json.loads(ran.lines[0]) == [0, 1, 2, 3]  # the last one reads the list
    control = subprocess.run(
        [_python(), "-Ic", look], pass_fds=[os.open("/", os.O_RDONLY)], capture_output=True, text=True, close_fds=True
    )
    assert len(json.loads(control.stdout)) == 5  # the control: a descriptor that is passed on shows
    _note("80c", "descriptors of the kernel, with AGENT_OS_FD set by the operator")


SETID = """
import os, stat
for how in (lambda: os.mknod("setid", stat.S_IFREG | 0o6777), lambda: os.chmod("plain", 0o6777),
            lambda: os.open("setid", os.O_CREAT | os.O_WRONLY, 0o6777), lambda: os.mkdir("folder", 0o2777),
            lambda: os.chmod(".", 0o2777)):
    try:
        how()
    except OSError:
        pass
"""


def test_112_no_setuid_file_of_the_operators_comes_out_of_a_shared_workspace(machine: Machine) -> None:
    """`bind:` writes through: such a file would belong to the operator, and run as the operator for everybody."""
    (machine.project / "plain").write_text("#!/bin/sh\n")
    machine.run(_python(), "-Ic", SETID, flags=["--workspace", f"bind:{machine.project}"])
    found = {path.name: oct(path.stat().st_mode) for path in (machine.project, *machine.project.iterdir())}
    assert {name: mode for name, mode in found.items() if int(mode, 8) & 0o6000} == {}
    control = machine.top / "control"
    control.mkdir()
    (control / "plain").write_text("#!/bin/sh\n")
    subprocess.run([_python(), "-Ic", SETID], cwd=control, check=True)
    assert (control / "plain").stat().st_mode & stat.S_ISUID  # the control
    _note("112e", "a setuid file of the operator's through a shared workspace")


SCAN = r"""
import ctypes, re
found = set()
with open("/proc/self/maps") as maps:
    spans = [line.split()[0] for line in maps if line.split()[1].startswith("rw")]
for span in spans:
    low, high = (int(text, 16) for text in span.split("-"))
    found |= set(re.findall(b"SECR" + b"ET-[0-9a-f]{16,}", ctypes.string_at(low, high - low)))
print(" ".join(sorted(text.decode() for text in found)))
"""


@pytest.mark.parametrize("kind", ["native-warm", "native-exec", "tool", "guest"])
def test_81_no_agent_finds_anothers_environment_in_its_own_memory(kind: str) -> None:
    """Agents are forked from one launcher, which is told the environment of each."""
    others = [f"SECRET-{secrets.token_hex(size)}" for size in (8, 9, 17, 17, 17, 17, 32, 33, 64, 300)]  # of many sizes
    own = f"SECRET-{secrets.token_hex(8)}"

    async def scanned(launcher: Launcher) -> str:
        for secret in others[1:]:
            await agents.run(launcher, agents.spec_of("tool", ["/bin/true", secret], env={"KEY": secret}))
        alive = agents.spec_of("tool", ["/bin/sh", "-c", "echo up; sleep 60"], env={"KEY": others[0]})
        async with agents.started(launcher, alive) as (_, output):
            await asyncio.to_thread(agents.read_line, output)
            words = ["-c", SCAN] if kind == "native-warm" else [_python(), "-Ic", SCAN]
            isolation = "warm" if kind == "native-warm" else "exec"
            spec = agents.spec_of(kind.partition("-")[0], words, isolation=isolation, env={"KEY": own})
            return (await agents.run(launcher, spec)).output

    found = agents.drive(scanned).split()
    assert own in found  # the control: what is there is found
    assert [secret for secret in others if secret in found] == []
    _note("81b", f"another agent's environment in the memory of a {kind} one")


# ----------------------------------------------------------------------------------------------------- the control door


ASK = """
import json, socket, sys
for path in sys.argv[1:]:
    try:
        door = socket.socket(socket.AF_UNIX)
        door.settimeout(5)
        door.connect(path)
        door.sendall(b'{"do": "kill"}\\n')
        print(door.recv(4096).decode().strip() or '{"closed": true}')
    except OSError as problem:
        print(json.dumps({"refused": problem.errno}))
"""


@pytest.mark.parametrize("net", ["unix", "proxy", "none"])
def test_108_the_control_door_does_not_open_for_an_agent(machine: Machine, net: str) -> None:
    """Bound into a sandbox on purpose, which agentctl itself refuses: whoever is inside has no say about others."""
    running = machine.start("sh", "-c", "echo up; sleep 60", flags=["-q"])
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    run = machine.state / "run"
    assert leftovers.becomes_true(lambda: any(run.glob("*.sock")), 5)
    door = next(run.glob("*.sock"))
    source = os.open(run, os.O_PATH)

    async def ask(launcher: Launcher) -> agents.Ran:
        command = [_python(), "-Ic", ASK, f"/door/{door.name}"]
        spec = agents.spec_of("guest", command, net=net, binds=[Bind("door", "/door", rw=True)], limits=GUEST_LIMITS)
        return await agents.run(launcher, spec, {"door": source})

    said = json.loads(agents.drive(ask).output)
    assert "done" not in said, said
    if net == "unix":
        assert said.get("error", {}).get("code") == "door.peer" or "refused" in said, said
    else:
        assert said == {"refused": 13}
    assert running.poll() is None
    with socket.socket(socket.AF_UNIX) as own:  # the control: the operator is heard
        own.connect(f"/proc/self/fd/{source}/{door.name}")  # a path may be longer than a socket's name
        own.sendall(b'{"do": "kill"}\n')
        assert "done" in json.loads(own.recv(4096))
    os.close(source)
    running.communicate(timeout=30)
    _note("108b", f"kill another agent through its control door, net {net}")


def test_108_agentctl_does_not_mount_the_doors(machine: Machine) -> None:
    (machine.state / "run").mkdir(mode=0o700)
    for source in (machine.state / "run", machine.state):
        assert machine.run("true", flags=["--mount", f"{source}:/door"]).code == 125
    _note("108c", "mount the directory of the control doors")


# ------------------------------------------------------------------------------------------------- only these programs


WRAPPED = {
    "find": ["find", "/work", "-maxdepth", "0", "-exec", "/usr/bin/touch", "/work/mark", ";"],
    "env": ["env", "/usr/bin/touch", "/work/mark"],
    "xargs": ["xargs", "-a", "/dev/null", "/usr/bin/touch", "/work/mark"],
    "timeout": ["timeout", "5", "/usr/bin/touch", "/work/mark"],
    "nice": ["nice", "/usr/bin/touch", "/work/mark"],
    "setsid": ["setsid", "-w", "/usr/bin/touch", "/work/mark"],
    "sed": ["sed", "1e /usr/bin/touch /work/mark", "/etc/passwd"],
    "awk": ["awk", 'BEGIN { system("/usr/bin/touch /work/mark") }'],
    "tar": ["tar", "-cf", "/dev/null", "--checkpoint=1", "--checkpoint-action=exec=/usr/bin/touch /work/mark", "/etc"],
    "git": ["git", "-c", "alias.own=!/usr/bin/touch /work/mark", "own"],
    "vim": ["vim", "-es", "-u", "NONE", "-i", "NONE", "-c", "silent !/usr/bin/touch /work/mark", "-c", "qa!"],
}


@pytest.mark.parametrize("tool", WRAPPED)
def test_98_105_a_declared_tool_runs_no_other(tool: str, tmp_path: Path) -> None:
    if not landlock.abi():
        pytest.skip("landlock: not on this kernel, and nothing else keeps a list of programs")
    program = shutil.which(tool, path="/usr/bin:/bin")
    if program is None:
        pytest.skip(f"{tool}: not installed")

    async def both(launcher: Launcher) -> tuple[bool, bool]:
        return await marked(launcher, None), await marked(launcher, [os.path.realpath(program)])

    async def marked(launcher: Launcher, allowed: list[str] | None) -> bool:
        words = [program, *WRAPPED[tool][1:]]
        spec = agents.spec_of("tool", words, workspace=Workspace("tmpfs", "/work"), env={"HOME": "/home/agent"})
        spec = replace(spec, exec_allow=allowed)
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        process = await launcher.spawn(spec, streams=(null, write, write))
        os.close(write)
        os.close(null)
        await asyncio.to_thread(agents.read_all, read)
        await process.wait()
        found = os.path.lexists(f"/proc/self/fd/{process.workspace}/mark")
        process.close()
        os.close(read)
        return found

    unbound, bound = agents.drive(both)
    assert unbound  # the control: without a list, the other program runs
    assert not bound
    _note("98c", f"{tool}, declared alone, runs an undeclared program")
