"""How an author's program is started: under their interpreter, with our package."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent_os.kernel.guests import BOOT


@pytest.fixture
def strangers_python() -> list[str]:
    """Without our package, and run by somebody for whom a folder without `r` cannot be listed."""
    if os.geteuid() != 0:
        return [sys.executable, "-I", "-S"]
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no python3 outside of root's home")
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-I", "-S"]


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
