"""An agent's writes without the sandbox: a shell script run over a real overlay in a user namespace of its own.

For tests of what comes after a run. Works as root and as an unprivileged user; skips where overlay or user namespaces
are not to be had.
"""

import subprocess
from pathlib import Path

import pytest

from agent_os.kernel.workspace import Workspace

_MOUNT = """
mount -t overlay overlay -o "userxattr,lowerdir=$1,upperdir=$2,workdir=$3" "$1" || exit 77
cd "$1" || exit 77
set -e
"""


def agent_writes(workspace: Workspace, script: str) -> None:
    """Run `script` with the project as the agent sees it; the project itself is not touched."""
    command = ["unshare", "-Urm", "sh", "-c", _MOUNT + script, "sh"]
    paths = [str(workspace.project), str(workspace.upper), str(workspace.work)]
    try:
        done = subprocess.run([*command, *paths], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("unshare (util-linux) is not installed")
    if done.returncode == 77 or b"unshare failed" in done.stderr:
        pytest.skip(f"no overlay in a user namespace here: {done.stderr.decode(errors='replace').strip()}")
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def tree(directory: Path) -> dict[str, str]:
    """Every entry with its type and content, to compare whole directories."""
    found: dict[str, str] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = path.read_bytes().decode("latin-1") if path.is_file() else "special"
    return found
