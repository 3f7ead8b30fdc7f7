"""How an author's program is started: looked at once, under their interpreter, with our package."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel import orders, plan, programs
from agent_os.kernel.programs import BOOT

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")


@pytest.fixture
def strangers_python() -> list[str]:
    """Without our package, and run by somebody for whom a folder without `r` cannot be listed."""
    if os.geteuid() != 0:
        return [sys.executable, "-I", "-S"]
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no python3 outside of root's home")
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-I", "-S"]


@pytest.mark.integration
def test_our_package_is_found_though_the_folder_around_it_cannot_be_listed(strangers_python: list[str]) -> None:
    with tempfile.TemporaryDirectory() as top:  # not below pytest's own, which is closed to others
        os.chmod(top, 0o755)
        package = Path(top, "closed", "agent_os")
        (package / "userland").mkdir(parents=True)
        for empty in (package, package / "userland"):
            (empty / "__init__.py").touch()
        (package / "userland/native.py").write_text("def run(argv): print('ran', *argv)")
        package.parent.chmod(0o711 if os.geteuid() == 0 else 0o311)
        by_path = f"import sys; sys.path.append({str(package.parent)!r}); import agent_os"
        control = subprocess.run([*strangers_python, "-c", by_path], capture_output=True, text=True)
        assert "No module named 'agent_os'" in control.stderr
        ran = subprocess.run([*strangers_python, "-c", BOOT, package, "it"], capture_output=True, text=True)
        package.parent.chmod(0o755)
    assert (ran.returncode, ran.stdout) == (0, "ran it\n"), ran.stderr


def program(project: Path, name: str = "main.py") -> str:
    """The digest of what would be started."""
    written = orders.read({"file": str(project / name), "cwd": str(project), "environment": {}, "argv": []})
    wanted = plan.Order((), project, project)
    return programs.digest(wanted, written, ())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "outside.py").write_text("outside")
    inside = tmp_path / "project"
    inside.mkdir()
    (inside / "main.py").write_text("inside")
    return inside


@pytest.mark.parametrize("strange", ["link outside", "pipe", "device", "directory", "nothing"])
def test_what_became_of_a_program_after_it_was_looked_at_is_not_read(project: Path, strange: str) -> None:
    assert program(project)
    main = project / "main.py"
    main.unlink()
    if strange == "pipe":
        os.mkfifo(main)
    elif strange == "directory":
        main.mkdir()
    elif strange != "nothing":
        main.symlink_to("/dev/zero" if strange == "device" else "../outside.py")
    with pytest.raises(EINVAL) as caught:
        program(project)
    assert caught.value.code == "file.outside"


def test_a_program_that_is_exchanged_all_the_time_is_one_of_those_inside_or_refused(project: Path) -> None:
    (project / "other.py").write_text("other")
    known = {program(project), program(project, "other.py")}
    (project / "out.py").symlink_to("../outside.py")
    over, seen = threading.Event(), set[str]()

    def exchange() -> None:
        while not over.is_set():
            for target in ("other.py", "out.py"):
                (project / "new").symlink_to(target)
                (project / "new").rename(project / "main.py")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(500):
            with suppress(EINVAL):
                seen.add(program(project))
    finally:
        over.set()
        thread.join()
    assert seen <= known
    assert seen, "it was inside now and then"
