"""Attempts against the whole product: traps in a workspace, tricks with mounts and names, what is inherited.

Through `agentctl` as an operator would use it, or its parts where a guest could never be given so much. Each has its
control in the same test: what the trap would have done.
"""

import asyncio
import json
import os
import secrets
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import agents
import leftovers
from agent_os.kernel.workspace import Workspaces
from agent_os.sandbox.spawner import Launcher
from guests.agentctl import AGENTCTL, Machine
from hostile import ordinary
from hostile.report import note

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
    ran = machine.run(ordinary.python(), "-Ic", WRITE_ALL, *DISGUISED, "ordinary.txt", flags=["--commit"])
    assert ran.code == 0
    landed = [path for path in DISGUISED if os.path.lexists(machine.project / path)]
    assert landed == []
    assert (machine.project / "ordinary.txt").exists()
    machine.agentctl("commit", ran.name, "--yes", "--allow-protected")
    assert [path for path in DISGUISED if not os.path.lexists(machine.project / path)] == []  # the control
    note("10b", f"{len(DISGUISED)} protected names in disguise")


def test_10_a_link_named_git_is_protected(machine: Machine) -> None:
    script = "mkdir -p evil/hooks && echo evil >evil/hooks/pre-commit && ln -s evil .git && touch ordinary.txt"
    ran = machine.run("sh", "-c", script, flags=["--commit"])
    assert not os.path.lexists(machine.project / ".git")
    assert (machine.project / "ordinary.txt").exists()
    machine.agentctl("commit", str(ran.name), "--yes", "--allow-protected")
    assert (machine.project / ".git/hooks/pre-commit").read_text() == "evil\n"  # the control: git would run it
    note("10c", "a link in place of .git")


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
    note("9b", "a hard link between an ordinary and a protected file")


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
    ran = machine.run(ordinary.python(), "-Ic", MARK, "touch", flags=["--keep"])
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
    note("11b", "deletion and redirection marks of the overlay, set from inside")


def test_11_a_running_agents_workspace_is_not_committed(machine: Machine) -> None:
    """Whoever still runs could swap what was shown for something else."""
    swap = "echo a >plain; echo a >y; echo up; while :; do echo a >x; mv x y; ln -sf /etc/passwd x; mv x y; done"
    running = machine.start("sh", "-c", swap, flags=["-q"])
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    name = machine.workspaces()[0]
    commit = [*AGENTCTL, "commit", name, "--yes"]
    done = subprocess.run(commit, env=machine.env, cwd=machine.project, capture_output=True)
    swapped = Workspaces(machine.state).open(name).upper / "y"
    was_shown = leftovers.becomes_true(lambda: not swapped.is_symlink(), 10)
    naive = leftovers.becomes_true(lambda: _content(swapped) == Path("/etc/passwd").read_bytes(), 10)
    running.terminate()
    running.communicate(timeout=30)
    assert done.returncode != 0
    assert list(machine.project.iterdir()) == []
    assert was_shown  # the control: a file when a person looks at it,
    assert naive  # and when it is copied, what a link leads to
    subprocess.run(commit, env=machine.env, cwd=machine.project, capture_output=True)
    assert (machine.project / "plain").read_text() == "a\n"  # and only that it ran stood in the way
    note("11c", "a commit while the agent swaps files for links")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


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
    note("107b", f"the home as a workspace or a mount, {len(forms)} forms")


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
    if where == "kept/file/below":
        note("14b", f"a mount at {where} of the project", no_control="Linux itself mounts nothing below a file")
        return
    assert _naive_mount(where)
    note("14b", f"a mount at {where} of the project")


MOUNT = """
source, place = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2])
os.makedirs(place, exist_ok=True)
if libc.mount(source, place, None, 4096, None):  # bind
    raise OSError(ctypes.get_errno(), "mount")
with open("/proc/self/mountinfo") as file:
    print(file.readlines()[-1].split()[4])
"""


def _naive_mount(where: str) -> bool:
    """The control: whether one who makes the place and mounts there, by path, leaves the project or changes it."""
    with ordinary.folder() as top:
        made = "import os; [os.mkdir(name) for name in ('project', 'outside', 'source')]"
        ordinary.run(f"{made}; os.symlink('../outside', 'project/link')", cwd=top)
        before = sorted(top.rglob("*"))
        landed = ordinary.run(ordinary.IN_BOX + MOUNT, top / "source", top / "project" / where).strip()
        return not landed.startswith(f"{top}/project/") or sorted(top.rglob("*")) != before


def test_80_no_descriptor_beyond_the_streams_is_there(machine: Machine) -> None:
    """Asking for the kernel's socket does not give one, and nothing of the kernel's side slips in."""
    look = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"
    ran = machine.run(ordinary.python(), "-Ic", look, flags=["--env", "AGENT_OS_FD=3"])
    assert json.loads(ran.lines[0]) == [0, 1, 2, 3]  # the last one reads the list
    control = subprocess.run(
        [ordinary.python(), "-Ic", look],
        pass_fds=[os.open("/", os.O_RDONLY)],
        capture_output=True,
        text=True,
        close_fds=True,
    )
    assert len(json.loads(control.stdout)) == 5  # the control: a descriptor that is passed on shows
    note("80c", "descriptors of the kernel, with AGENT_OS_FD set by the operator")


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
    machine.run(ordinary.python(), "-Ic", SETID, flags=["--workspace", f"bind:{machine.project}"])
    found = {path.name: oct(path.stat().st_mode) for path in (machine.project, *machine.project.iterdir())}
    assert {name: mode for name, mode in found.items() if int(mode, 8) & 0o6000} == {}
    control = machine.top / "control"
    control.mkdir()
    (control / "plain").write_text("#!/bin/sh\n")
    subprocess.run([ordinary.python(), "-Ic", SETID], cwd=control, check=True)
    assert (control / "plain").stat().st_mode & stat.S_ISUID  # the control
    note("112e", "a setuid file of the operator's through a shared workspace")


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
            words = ["-c", SCAN] if kind == "native-warm" else [ordinary.python(), "-Ic", SCAN]
            isolation = "warm" if kind == "native-warm" else "exec"
            spec = agents.spec_of(kind.partition("-")[0], words, isolation=isolation, env={"KEY": own})
            return (await agents.run(launcher, spec)).output

    found = agents.drive(scanned).split()
    assert own in found  # the control: what is there is found
    assert [secret for secret in others if secret in found] == []
    note("81b", f"another agent's environment in the memory of a {kind} one")
