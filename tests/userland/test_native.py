"""A native agent ends as the same program under `python` would."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent_os.userland import native

SOURCE = str(Path(native.__file__).parents[2])
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


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_ends_as_python_would(program: str, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(program)
    plain = subprocess.run([sys.executable, script, "x"], capture_output=True, text=True)
    ours = f"import sys; sys.path.insert(0, {SOURCE!r}); from agent_os.userland import native; "
    run = f"import os; os._exit(native.run([{str(script)!r}, 'x']))"
    wrapped = subprocess.run([sys.executable, "-c", ours + run], capture_output=True, text=True)
    expected = 1 if program == "raise KeyboardInterrupt" else plain.returncode
    assert (wrapped.returncode, wrapped.stdout) == (expected, plain.stdout)
    assert plain.stderr.splitlines()[-1:] == wrapped.stderr.splitlines()[-1:]
