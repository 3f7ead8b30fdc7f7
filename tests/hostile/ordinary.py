"""Somebody without rights and without a sandbox, for the controls of attempts with a half in the kernel.

Never host root: as root, programs run with a uid that has no account, else as whoever runs the tests. `folder` is a
directory of theirs, `run` starts a Python program of theirs, and one that begins with `IN_BOX` is root of throw-away
namespaces, where what it does to a user's counts or mounts is felt by nobody else.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hostile.stage import ordinary_uid, root_mode

SECONDS = 60
IN_BOX = """
import ctypes, os, resource, subprocess, sys
libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
assert uid != 0
if libc.unshare(0x10020000):  # user, mount
    raise OSError(ctypes.get_errno(), "unshare")
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
"""


def python() -> str:
    """One that an ordinary user, and a guest, can start: root's own often lies below a closed home."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else os.path.realpath(sys.executable)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="agent-os-ordinary-"))
    os.chown(top, ordinary_uid(), -1)
    try:
        yield top
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", top], check=True)
        subprocess.run(["rm", "-rf", top], check=True)  # of any depth, which Python's own does not manage


def run(script: str, *words: str | Path, cwd: Path | str = "/", timeout: float = SECONDS) -> str:
    """What a Python program of theirs prints; one that fails is a control that failed."""
    uid = ordinary_uid()
    who: dict[str, object] = {"user": uid, "group": uid, "extra_groups": []} if root_mode() else {}
    command = [python(), "-Ic", script, *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, **who)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done.stdout
