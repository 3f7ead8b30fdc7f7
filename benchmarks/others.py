"""Other sandboxes, each asked for the same: run one command in namespaces of its own, the host's `/usr` read-only, no
network, an empty working directory. `benchmarks/get-others` installs them; what is missing says so.
"""

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_NODE_TOOLS = Path(__file__).resolve().parent.parent / ".cache" / "others" / "node_modules" / ".bin"
_LINKS = [name for name in ("bin", "sbin", "lib", "lib32", "lib64") if os.path.islink(f"/{name}")]
_QUIET = subprocess.DEVNULL


@dataclass(frozen=True)
class Other:
    name: str
    command: Callable[[Sequence[str]], list[str]]
    rounds: int
    cwd: Path

    def run(self, argv: Sequence[str]) -> None:
        subprocess.run(self.command(argv), cwd=self.cwd, check=True, stdin=_QUIET, stdout=_QUIET, stderr=_QUIET)

    def why_not(self) -> str:
        """Empty if it can run here."""
        command = self.command(["/bin/true"])
        if not shutil.which(command[0]):
            return "not installed; benchmarks/get-others installs it"
        done = subprocess.run(command, cwd=self.cwd, stdin=_QUIET, capture_output=True, text=True)
        return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1] if done.returncode else ""


def all_others(scratch: Path) -> list[Other]:
    return [
        Other("bubblewrap", _bubblewrap, 50, scratch),
        Other("runc", _runc(scratch), 20, scratch),
        Other("sandbox-runtime", _sandbox_runtime(scratch), 5, scratch),
    ]


def _bubblewrap(argv: Sequence[str]) -> list[str]:
    links = [word for name in _LINKS for word in ("--symlink", os.readlink(f"/{name}"), f"/{name}")]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *("--ro-bind", "/usr", "/usr", *links, "--proc", "/proc", "--dev", "/dev"),
        *("--tmpfs", "/tmp", "--tmpfs", "/work", "--chdir", "/work", *argv),
    ]


def _runc(scratch: Path) -> Callable[[Sequence[str]], list[str]]:
    bundle, state = scratch / "bundle", scratch / "state"
    scratch.chmod(0o755)  # the container's root is another user and must get to its own root directory
    for folder in ("usr", "proc", "dev", "work", "tmp"):
        (bundle / "rootfs" / folder).mkdir(parents=True)
    for name in _LINKS:
        (bundle / "rootfs" / name).symlink_to(os.readlink(f"/{name}"))

    def command(argv: Sequence[str]) -> list[str]:
        (bundle / "config.json").write_text(json.dumps(_bundle(argv)))
        return ["runc", "--root", str(state), "run", "--bundle", str(bundle), f"bench-{secrets.token_hex(4)}"]

    return command


def _bundle(argv: Sequence[str]) -> dict[str, object]:
    def mount(kind: str, at: str, *options: str, source: str = "") -> dict[str, object]:
        return {"type": kind, "source": source or kind, "destination": at, "options": ["nosuid", *options]}

    ids = [{"containerID": 0, "hostID": os.geteuid() or 200_000, "size": 1}]
    spaces = ("user", "pid", "network", "ipc", "uts", "mount")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(argv),
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/work",
            "noNewPrivileges": True,
            "capabilities": {},
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": [
            mount("bind", "/usr", "rbind", "ro", "nodev", source="/usr"),
            mount("proc", "/proc", "noexec", "nodev"),
            mount("tmpfs", "/dev", "mode=755"),
            mount("tmpfs", "/tmp", "nodev"),
            mount("tmpfs", "/work", "nodev"),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in spaces],
            "uidMappings": ids,
            "gidMappings": ids if os.geteuid() == 0 else [{"containerID": 0, "hostID": os.getegid(), "size": 1}],
        },
    }


def _sandbox_runtime(scratch: Path) -> Callable[[Sequence[str]], list[str]]:
    settings = scratch / "srt.json"
    closed = {
        "network": {"allowedDomains": [], "deniedDomains": []},
        "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []},
    }
    settings.write_text(json.dumps(closed))
    return lambda argv: [str(_NODE_TOOLS / "srt"), "-s", str(settings), *argv]
