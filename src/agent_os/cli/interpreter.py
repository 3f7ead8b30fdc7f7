"""Which Python runs an author's agent: their own, with what they installed in it.

Looks at the environment and asks interpreters whether they know us; changes nothing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from agent_os.abi.errors import ENOENT

_TO_ANSWER = 10.0  # seconds


def authors_python() -> str:
    """The active virtual environment's, else the first `python3` on PATH that has agent_os, else ours."""
    if venv := os.environ.get("VIRTUAL_ENV"):
        python = str(Path(venv) / "bin" / "python")
        if not _knows_us(python):
            reason = f"the active virtual environment {venv} has no agent_os"
            raise ENOENT("python.without", reason, hint=f"{python} -m pip install agent-os, or deactivate")
        return python
    found = shutil.which("python3")
    if found and os.path.realpath(found) != os.path.realpath(sys.executable) and _knows_us(found):
        return found
    return sys.executable


def _knows_us(python: str) -> bool:
    """Asked without PYTHONPATH and the user's own packages: the agent will not have them either."""
    question = [python, "-I", "-c", "import agent_os.abi.frames"]
    try:
        return subprocess.run(question, capture_output=True, timeout=_TO_ANSWER).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
