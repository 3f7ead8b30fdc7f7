"""What a hostile program is made of: the table of attempts, the calls they make, and how they tell what happened.

One function per attempt, numbered as in the specification of the sandbox (§11), by subject in `attempts_*.py`;
`battery` runs them as a guest, a tool, a native agent, or without any sandbox (the positive control). Standard library
only, and everything is imported before the first attempt, because one may close the file system.

An attempt succeeds only if its effect was read back. Detection: C: the canary `SECRET-…` was seen; H: the host's state
changed (also compared from outside); R: the call worked, and its effect is there. It fails by an error of refusal or
by death through SIGSYS; any other error or signal is `broken`, so a badly written attempt never counts as held.
"""

import ctypes
import encodings.idna  # noqa: F401  (the first connect would import it)
import errno
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Targets = dict[str, Any]
SECRET = re.compile(rb"SECRET-[0-9a-f]{32}")

FILES, PROC, PRIVILEGE = "files", "proc, sys", "namespaces, privilege"
PROCESSES, KERNEL, NETWORK, LEAKS, RESOURCES = "processes", "kernel surface", "network", "leaks", "resources"


class Refused(Exception):
    """The thing was tried and did not work."""


class NotHere(Exception):
    """This machine or this run has nothing to try it on; says why."""


@dataclass(frozen=True)
class Attempt:
    id: str
    name: str
    group: str
    detect: str  # C, H or R
    layers: dict[str, int]  # each of which stops it alone; the number is the first Landlock ABI that does
    control: str  # where it must succeed: plain or box; "n/a: reason"; "recorded: reason" is not promised, not judged
    take: Callable[[Targets], object]
    fine: frozenset[int]  # errors of refusal beyond the usual
    kinds: tuple[str, ...]  # of sandbox in which it makes sense; empty: all


ATTEMPTS: dict[str, Attempt] = {}


def attempt(
    id: str,
    name: str,
    group: str,
    detect: str,
    layers: str,
    control: str = "plain",
    fine: tuple[int, ...] = (),
    kinds: tuple[str, ...] = (),
) -> Callable[[Callable[[Targets], object]], Callable[[Targets], object]]:
    """`layers`: words, each with an optional `:ABI`. `control`: plain = an unprivileged user; box = root of a
    throw-away user namespace of that user."""

    def register(take: Callable[[Targets], object]) -> Callable[[Targets], object]:
        named = {word.partition(":")[0]: int(word.partition(":")[2] or 1) for word in layers.split()}
        ATTEMPTS[id] = Attempt(id, name, group, detect, named, control, take, frozenset(fine), kinds)
        return take

    return register


# Raw system calls: x86_64, aarch64 (None: not there).
NUMBERS: dict[str, tuple[int, int | None]] = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clone3": (435, 435),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "mlock": (149, 228),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "renameat2": (316, 276),
    "setns": (308, 268),
    "setuid": (105, 146),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(name: str, *args: object) -> int:
    number = NUMBERS[name][0 if platform.machine() == "x86_64" else 1]
    if number is None:
        raise NotHere(f"{name}: not on {platform.machine()}")
    return call_number(number, *args)


def call_number(number: int, *args: object) -> int:
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def read(path: str, limit: int = 1 << 16) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def first_that_works(tries: dict[str, Callable[[], object]]) -> str:
    """Evidence of the first that works; the last refusal if none does."""
    last: OSError | Refused = Refused("nothing to try")
    for name, take in tries.items():
        try:
            return f"{name}: {take()}"
        except (OSError, Refused) as problem:
            last = problem
    raise last


def gather(takes: list[Callable[[], object]]) -> bytes:
    """Everything that any of them yields, errors in words between."""
    parts: list[str] = []
    for take in takes:
        try:
            value = take()
            parts.append(value.decode("latin-1") if isinstance(value, bytes) else str(value))
        except OSError as problem:
            parts.append(f"[{errno.errorcode.get(problem.errno or 0, problem.errno)}]")
    return "\n".join(parts).encode("latin-1", "replace")


def pids() -> list[int]:
    """Visible processes other than the attempts themselves."""
    own = {os.getpid(), os.getppid()}  # an attempt runs as a child of the runner
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own]


def make_file(folder: str) -> str:
    path = f"{folder}/agent-os-battery-{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(fd, b"was here")
    os.close(fd)
    found = read(path) == b"was here"
    os.unlink(path)
    if not found:
        raise Refused("the file was not there afterwards")
    return f"wrote {path}"
