"""The second lock on files: what a path allows, whatever the mounts say. Also TCP, abstract sockets and signals.

Goes in: a list of rules on paths as the confined process sees them. Rights the running kernel does not know are left
out of both sides, so a lower ABI is a weaker lock, never a failure.
"""

import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from agent_os.sandbox import syscalls

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 14, 1 << 15
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = 0xFFFF & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV)
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV

# file rights known to each ABI: thirteen at first, then refer (2), truncate (3), ioctl on devices (5)
_KNOWN = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
_TCP_BIND_CONNECT, _SCOPE_ABSTRACT_SIGNAL = 3, 3


@dataclass(frozen=True)
class Rule:
    path: str
    rights: int


def abi() -> int:
    """The version the kernel offers; 0 where there is no Landlock."""
    try:
        return syscalls.call("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def restrict(rules: Iterable[Rule], *, deny_tcp: bool, use_abi: int) -> None:
    """Irreversible. Paths that do not exist are skipped: what is not there needs no right. Needs no_new_privs."""
    known = _KNOWN[min(use_abi, 5)]
    attributes = struct.pack("Q", known)
    if use_abi >= 4:
        attributes += struct.pack("Q", _TCP_BIND_CONNECT if deny_tcp else 0)
    if use_abi >= 6:
        attributes += struct.pack("Q", _SCOPE_ABSTRACT_SIGNAL)
    ruleset = syscalls.call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for rule in rules:
            _add(ruleset, rule, known)
        syscalls.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _add(ruleset: int, rule: Rule, known: int) -> None:
    try:
        place = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights = rule.rights & known
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _FILE_RIGHTS
        syscalls.call("landlock_add_rule", ruleset, 1, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
