"""On a system that is not Linux: the package imports, and `run` explains itself."""

import subprocess
import sys
from pathlib import Path

import pytest

import agent_os

pytestmark = pytest.mark.integration

SOURCE = str(Path(agent_os.__file__).parents[1])


def on_mac(code: str) -> "subprocess.CompletedProcess[str]":
    """Simulated by the platform value; modules that only Linux has must not be needed."""
    boot = f"import sys; sys.path.insert(0, {SOURCE!r}); sys.platform = 'darwin'\n"
    return subprocess.run([sys.executable, "-c", boot + code], capture_output=True, text=True)


def test_the_package_can_be_imported() -> None:
    done = on_mac("import agent_os; print(agent_os.__version__)")
    assert (done.returncode, done.stdout.strip()) == (0, agent_os.__version__)


def test_run_explains_and_names_a_way() -> None:
    done = on_mac("from agent_os.cli.main import main; sys.exit(main(['run', '--', 'true']))")
    assert done.returncode == 125
    assert "darwin has no namespaces" in done.stderr
    assert "Linux VM" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_explains_before_it_loads_what_only_linux_has() -> None:
    code = (
        "class Refuse:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.startswith(('agent_os.daemon', 'agent_os.kernel', 'agent_os.sandbox')):\n"
        "            raise AssertionError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from agent_os.cli.main import main; sys.exit(main(['run', '--', 'true']))"
    )
    done = on_mac(code)
    assert done.returncode == 125, done.stderr
    assert "Linux VM" in done.stderr
