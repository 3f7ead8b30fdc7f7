"""Attempts with a half in the kernel: an agent lays a trap in its workspace, and the kernel's own file calls walk in.

Each has its control in the same test: the naive way of doing it does fall into the trap.
"""

import asyncio
import contextlib
import os
import py_compile
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import agent_os
from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.kernel import beneath
from agent_os.kernel.workspace import Workspace, Workspaces
from agent_os.kernel.workspace.sources import check_source
from agent_os.sandbox import spawner
from agent_os.sandbox.spec import Bind
from hostile import attempts, harness
from hostile.actors import FORGED, PROTECTED
from hostile.report import note
from hostile.stage import Stage, root_mode

pytestmark = pytest.mark.hostile
RACE_SECONDS = 30.0 if os.environ.get("AGENT_OS_SOAK") else 3.0

Scene = tuple[Stage, spawner.Lease]


@pytest.fixture
def scene() -> Iterator[Scene]:
    stage, lease = harness.new_stage()
    yield stage, lease
    stage.close()
    lease.release()


@asynccontextmanager
async def _acting(scene: Scene, kind: str, *words: str) -> AsyncIterator[spawner.Process]:
    stage, lease = scene
    launcher = await spawner.Launcher.start()
    try:
        process, stdin, stdout = await harness.act(launcher, lease, stage, kind, *words)
        try:
            yield process
        finally:
            await process.kill()
            process.close()
            os.close(stdin)
            os.close(stdout)
    finally:
        await launcher.close()


@contextlib.contextmanager
def _kept(scene: Scene, *words: str) -> Iterator[Workspace]:
    """A workspace of the product's own over a project, after an actor ran in it."""
    stage, lease = scene
    project = stage.base / "kept"
    project.mkdir()
    (stage.base / "outside").mkdir()
    (project / "out").symlink_to(stage.base / "outside")
    workspaces = Workspaces(stage.base / "state")
    kept = workspaces.create(project, name="kept", mode="overlay", agent_uid=lease.host_uid if root_mode() else None)

    async def run() -> None:
        spec, shown = harness.spec_of("guest", stage, ["/battery/hostile/actors.py", *words])
        at = str(project)
        spec = replace(spec, cwd=at, workspace=spec.workspace._replace(at=at), masks=[])
        launcher = await spawner.Launcher.start()
        try:
            shown |= {"lower": project, "upper": kept.path}
            process, stdin, stdout, stderr = await harness.spawn(launcher, lease, spec, shown)
            os.close(stdin)
            said, errors = await asyncio.gather(
                asyncio.to_thread(harness.drain, stdout), asyncio.to_thread(harness.drain, stderr)
            )
            await process.wait()
            process.close()
            assert said == "ready", errors
        finally:
            await launcher.close()

    asyncio.run(run())
    yield kept


@pytest.mark.parametrize("kind", ["guest", "native-warm"])
def test_7_a_link_to_a_host_file_is_not_followed_by_the_kernel(scene: Scene, kind: str) -> None:
    stage = scene[0]
    target = f"{stage.base}/hidden/file"
    ways = ("absolute", "relative", "magic", "chain", "folder/file")

    async def attempt() -> tuple[list[bytes], list[bytes]]:
        async with _acting(scene, kind, "links", target) as process:
            naive = [_naive(process.workspace, way) for way in ways]
            return naive, [_by_kernel(process.workspace, way) for way in ways]

    naive, kernel = asyncio.run(attempt())
    assert naive.count(stage.secret.encode()) >= 3  # the control: a plain open follows
    assert kernel == [b""] * len(ways)
    note("7", f"workspace link to a host file, read by the kernel ({kind})")


def _naive(root: int, path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY, dir_fd=root)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        return file.read(999)


def _by_kernel(root: int, path: str) -> bytes:
    found = b""
    for resolve in (beneath.INSIDE, beneath.PHYSICAL):
        with contextlib.suppress(OSError):
            found += beneath.read_beneath(root, path, 999, resolve=resolve)
    return found


def test_8_swapping_a_file_for_a_link_wins_no_race(scene: Scene) -> None:
    stage = scene[0]
    secret = stage.secret.encode()

    async def attempt() -> tuple[int, int, int]:
        async with _acting(scene, "guest", "swap", f"{stage.base}/hidden/file") as process:
            lost = _race(process.workspace, secret, _check_then_open, RACE_SECONDS * 4, enough=1)[0]
            return lost, *_race(process.workspace, secret, _by_kernel, RACE_SECONDS)

    control, stolen, reads = asyncio.run(attempt())
    assert control >= 1  # the control: checking first and opening afterwards loses
    assert reads > 100
    assert stolen == 0
    note("8", f"swap race on the kernel's read ({reads:,} reads)")


def _check_then_open(root: int, path: str) -> bytes:
    facts = os.stat(path, dir_fd=root, follow_symlinks=False)
    if facts.st_mode & 0o170000 != 0o100000:
        return b""
    return _naive(root, path)


def _race(root: int, secret: bytes, read: object, seconds: float, enough: int = 1 << 30) -> tuple[int, int]:
    assert callable(read)
    stolen = reads = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and stolen < enough:
        reads += 1
        stolen += secret in read(root, "swap")
    return stolen, reads


def test_10_protected_files_are_not_committed_without_a_person(scene: Scene) -> None:
    with _kept(scene, "protected") as kept:
        kept.commit()
        assert (kept.project / "ordinary.txt").exists()
        assert [path for path in PROTECTED if (kept.project / path).exists()] == []
        kept.commit(allow_protected=True)
        assert [path for path in PROTECTED if not (kept.project / path).exists()] == []  # the control
    note("10", f"{len(PROTECTED)} protected files committed without a person")


def test_11_a_commit_does_not_slip_out_of_the_project(scene: Scene) -> None:
    outside = scene[0].base / "outside"
    with _kept(scene, "slip") as kept:
        (kept.upper / "program").chmod(0o6755)  # as if it had got that far
        kept.commit(allow_protected=True)
        assert list(outside.iterdir()) == []
        assert not (kept.project / "outward").is_symlink()
        assert not (kept.project / "upward").is_symlink()
        assert (kept.project / "program").stat().st_mode & 0o6000 == 0
        # the control: copying file by file over the project does write through the link
        naive = scene[0].base / "naive"
        naive.mkdir()
        (naive / "out").symlink_to(outside)
        shutil.copytree(kept.upper, naive, dirs_exist_ok=True, symlinks=True)
        assert [path.name for path in outside.iterdir()] == ["evil"]
    note("11", "a commit that writes through a link of the project")


def test_12_a_fifo_does_not_stop_the_kernel(scene: Scene) -> None:
    with _kept(scene, "special") as kept:
        fifo = kept.upper / "fifo"
        with pytest.raises(subprocess.TimeoutExpired):  # the control: a plain open waits for a writer
            subprocess.run([sys.executable, "-c", f"open({str(fifo)!r})"], timeout=1)
        begun = time.monotonic()
        upper = beneath.open_root(kept.upper)
        with pytest.raises(OSError):  # noqa: PT011 (any refusal will do; waiting will not)
            beneath.read_beneath(upper, "fifo", 999)
        os.close(upper)
        kept.diff()
        kept.commit()
        assert time.monotonic() - begun < 20
        assert (kept.project / "ordinary.txt").exists()
        assert not (kept.project / "fifo").exists()
    note("12", "a FIFO in the workspace stops a kernel call")


def test_13_names_cannot_forge_a_line(scene: Scene) -> None:
    with _kept(scene, "names") as kept:
        found = kept.diff()
        assert len(found) == len(FORGED)
        raw = [change.path for change in found]
        assert any("\n" in path for path in raw)  # the control: the names are really there
        for change in found:
            assert change.shown.isprintable()
            for line in kept.patch(change).splitlines():
                assert line.replace("\t", " ").isprintable()
    note("13", "newline, ANSI and broken bytes in names forge a line")


def test_14_replacing_a_bind_source_during_the_spawn_shows_nothing_else(scene: Scene) -> None:
    stage, lease = scene
    (stage.base / "real/inner").mkdir(parents=True)
    (stage.base / "real/inner/file").write_text("granted")
    (stage.base / "decoy").mkdir()
    (stage.base / "decoy/inner").symlink_to(stage.base / "hidden")
    place = stage.base / "place"
    place.symlink_to("real")
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            for target in ("decoy", "real"):
                fresh = stage.base / "fresh"
                fresh.symlink_to(target)
                fresh.rename(place)

    async def attempt() -> tuple[set[bytes], set[bytes]]:
        naive: set[bytes] = set()
        seen: set[bytes] = set()
        launcher = await spawner.Launcher.start()
        try:
            for _ in range(25):
                spec, shown = harness.spec_of("guest", stage, ["/battery/hostile/actors.py", "show", "/granted/file"])
                spec = replace(spec, binds=[*spec.binds, Bind("granted", "/granted")])
                source = os.open(stage.base / "real/inner", os.O_PATH)
                named = Path(f"/proc/self/fd/{source}")
                naive |= {_read_through(place / "inner/file") for _ in range(40)}
                try:
                    process, stdin, stdout, stderr = await harness.spawn(
                        launcher, lease, spec, shown | {"granted": named}
                    )
                except spawner.SandboxError:
                    continue  # refused because it moved: clean
                finally:
                    os.close(source)
                os.close(stdin)
                os.close(stderr)
                seen.add((await asyncio.to_thread(harness.drain, stdout)).encode().removeprefix(b"ready"))
                await process.wait()
                process.close()
        finally:
            await launcher.close()
        return naive, seen

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        naive, seen = asyncio.run(attempt())
    finally:
        stop.set()
        thread.join()
    assert stage.secret.encode() in naive  # the control: by path the secret comes up
    assert seen <= {b"granted", b""}
    assert b"granted" in seen
    note("14", "bind source replaced during the spawn")


def _read_through(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_14_moving_the_real_source_away_during_the_spawn_shows_nothing_else(scene: Scene) -> None:
    """The directory itself changes places with a link, so that its own path leads elsewhere."""
    stage, lease = scene
    for name, text in (("one", "granted"), ("two", stage.secret)):
        (stage.base / name).mkdir()
        (stage.base / name / "file").write_text(text)
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            # one ↔ two by exchange: at every moment both names exist
            old, new = (os.fsencode(stage.base / name) for name in ("one", "two"))
            attempts.call("renameat2", -100, old, -100, new, 2)

    async def attempt() -> set[bytes]:
        seen: set[bytes] = set()
        source = os.open(stage.base / "one", os.O_PATH)
        thread.start()
        launcher = await spawner.Launcher.start()
        try:
            for _ in range(25):
                spec, shown = harness.spec_of("guest", stage, ["/battery/hostile/actors.py", "show", "/granted/file"])
                spec = replace(spec, binds=[*spec.binds, Bind("granted", "/granted")])
                try:
                    process, stdin, stdout, stderr = await harness.spawn(
                        launcher, lease, spec, shown | {"granted": Path(f"/proc/self/fd/{source}")}
                    )
                except spawner.SandboxError:
                    continue
                os.close(stdin)
                os.close(stderr)
                seen.add((await asyncio.to_thread(harness.drain, stdout)).encode().removeprefix(b"ready"))
                await process.wait()
                process.close()
        finally:
            await launcher.close()
            os.close(source)
        return seen

    thread = threading.Thread(target=flip)
    try:
        seen = asyncio.run(attempt())
    finally:
        stop.set()
        thread.join()
    assert stage.secret.encode() not in seen
    assert seen <= {b"granted", b""}


@pytest.mark.parametrize("place", ["/", "home", "state", "above the state", "above the home"])
def test_107_what_holds_everything_is_refused_as_a_workspace(tmp_path: Path, place: str) -> None:
    home = tmp_path / "users/me"
    state = home / ".local/state/agent-os"
    project = home / "project"
    for folder in (state, project):
        folder.mkdir(parents=True)
    sources = {
        "/": Path("/"),
        "home": home,
        "state": state,
        "above the state": state.parent,
        "above the home": home.parent,
    }
    assert check_source(project, state=state, home=home) == project.resolve()  # the control: an ordinary one is fine
    with pytest.raises((EINVAL, AgentOSError)) as refused:
        check_source(sources[place], state=state, home=home)
    assert refused.value.code == "workspace.refused"
    if place == "above the home":
        note("107", "/, the home, the state directory or what is above as a workspace")


def test_bytecode_that_an_agent_plants_is_not_executed_by_the_kernel(tmp_path: Path) -> None:
    """Its workspace is the very folder that agentctl is imported from, as in a checkout or a project's environment."""
    library, marker = tmp_path / "library", tmp_path / "executed"
    shutil.copytree(Path(agent_os.__file__).parent, library / "agent_os", ignore=shutil.ignore_patterns("__pycache__"))
    victim = library / "agent_os/cli/version.py"
    planted = f"agent_os/cli/__pycache__/version.{sys.implementation.cache_tag}.pyc"
    evil = tmp_path / "evil.py"
    evil.write_text(victim.read_text() + f"\nopen({str(marker)!r}, 'w').close()\n")
    py_compile.compile(str(evil), str(library / "evil.pyc"))
    data, info = bytearray((library / "evil.pyc").read_bytes()), victim.stat()
    data[8:16] = struct.pack("<II", int(info.st_mtime), info.st_size)  # what the loader compares
    (library / "evil.pyc").write_bytes(data)
    for folder in (library, *library.rglob("*")):
        folder.chmod(0o777 if folder.is_dir() else 0o666)  # nothing but the kernel's rule is in its way
    home = {"AGENT_OS_HOME": str(tmp_path / "state"), "AGENT_OS_IDLE_EXIT": "0", "HOME": str(tmp_path / "user")}
    env = {**os.environ, **home, "PYTHONPATH": str(library)}
    (tmp_path / "user").mkdir()

    def ctl(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "agent_os.cli.main", *words]
        return subprocess.run(command, env=env | more, cwd=library, capture_output=True, text=True, timeout=120)

    def executed() -> bool:
        """Whether the next agentctl runs what was planted."""
        assert ctl("version", "-o", "json").returncode == 0
        return marker.exists()

    plant = ("--", "sh", "-c", f"mkdir -p agent_os/cli/__pycache__ && cp evil.pyc {planted} && echo planted")
    apart = ctl("run", "--name", "apart", *plant)
    assert "planted" in apart.stdout, apart
    assert not executed()
    for flags in (
        ("--workspace", f"bind:{library}"),
        ("--mount", f"rw:{library}"),
        ("--mount", f"rw:{library}/agent_os"),
    ):
        refused = ctl("run", *flags, *plant)
        assert (refused.returncode, "planted" in refused.stdout) == (125, False), refused
        assert "the kernel runs code from" in refused.stderr
    assert not executed()
    # The controls: the same agent writes through where no kernel's code is, and what it planted works.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(library, elsewhere)
    through = ctl("run", "--workspace", f"bind:{elsewhere}", *plant)
    assert "planted" in through.stdout, through
    shutil.copy2(elsewhere / planted, library / planted)
    assert executed()
    note("9c", "bytecode planted in the code that the kernel runs")
