"""Tries to get out, from inside: the small battery that `agentctl doctor` runs in a really spawned agent.

Run as a native agent with a JSON object of host facts as its argument; prints one JSON object: what was tried and
whether it held. Every attempt is harmless where it succeeds. Standard library only.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import TypeVar

from agent_os.sandbox.syscalls import CLONE_NEWNS, CLONE_NEWUSER, call

T = TypeVar("T")
_PTRACE_TRACEME, _KEYCTL_GET_KEYRING_ID, _MKNOD_CHARACTER = 0, 0, 0o020600


def main() -> None:
    facts: dict[str, str] = json.loads(sys.argv[1])
    results = {name: _held(attempt) for name, attempt in attempts(facts).items()}
    print(json.dumps(results))


def attempts(facts: dict[str, str]) -> dict[str, Callable[[], object]]:
    """Name → something that raises OSError when the walls hold. What returns has got through."""
    return {
        "read a host file": lambda: _read(facts["secret_file"]),
        "see into the home directory": lambda: os.lstat(facts["in_home"]),
        "read /etc/shadow": lambda: _read("/etc/shadow"),
        "write below /usr": lambda: _write("/usr/agent-os-canary"),
        "write below /etc": lambda: _write("/etc/agent-os-canary"),
        "list /sys": lambda: os.listdir("/sys"),
        "change a sysctl": lambda: _write("/proc/sys/kernel/core_pattern"),
        "see other processes": _other_processes,
        "signal the kernel process": lambda: os.kill(int(facts["pid"]), 0),
        "mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
        "new user namespace": lambda: call("unshare", CLONE_NEWUSER),
        "new mount namespace": lambda: call("unshare", CLONE_NEWNS),
        "become root": lambda: os.setuid(0),
        "make a device": lambda: call("mknodat", -100, b"/tmp/device", _MKNOD_CHARACTER, 0x103),
        "trace": lambda: call("ptrace", _PTRACE_TRACEME, 0, 0, 0),
        "load bpf": lambda: call("bpf", 0, bytes(128), 128),
        "set up io_uring": lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(120)),
        "use the keyring": lambda: call("keyctl", _KEYCTL_GET_KEYRING_ID, -3, 0, 0, 0),
        "open an internet socket": lambda: socket.socket(socket.AF_INET),
        "open a Unix socket": lambda: socket.socket(socket.AF_UNIX),
        "open a netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "find inherited descriptors": _extra_descriptors,
        "find the host's environment": lambda: _found(os.environ.get(facts["variable"])),
        "hold a capability": _capabilities,
    }


def _held(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return True
    return False


def _found(things: T) -> T:
    """Something where nothing should be."""
    if not things:
        raise OSError("nothing there")
    return things


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1)


def _write(path: str) -> None:
    with open(path, "a"):
        pass


def _other_processes() -> list[int]:
    return _found([pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid()])


def _extra_descriptors() -> list[str]:
    """0–2 and the kernel's socket are ours to have; one more is the listing itself."""
    return _found([fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3 and os.path.lexists(f"/proc/self/fd/{fd}")])


def _capabilities() -> list[int]:
    with open("/proc/self/status") as file:
        sets = [int(line.split()[1], 16) for line in file if line.startswith("Cap")]
    return _found([bits for bits in sets if bits])


if __name__ == "__main__":
    main()
