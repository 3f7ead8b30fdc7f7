"""The system calls a confined process may make, as a BPF program. Pure: text in, bytes out; `install` alone acts.

Order of the program: wrong architecture → kill; x32 → kill; newer than we know → ENOSYS; calls judged by their
arguments; the deny list → EPERM; the rest is allowed. Only the low 32 bits of `int` arguments are compared, because
the kernel ignores the rest.
"""

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence

from agent_os.sandbox import syscalls

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FIRST_UNKNOWN = 470

_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_STREAM, _DATAGRAM, _SEQPACKET, _TYPE = 1, 2, 5, 0xF  # flags such as CLOEXEC live above the low four bits
_TCP, _UDP = 6, 17
_ARG = (16, 24, 32, 40, 48)  # offsets of the low halves of the arguments in struct seccomp_data

_NAMESPACE_BITS = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWCGROUP
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWTIME
)

DENIED = (
    # other processes
    "setns ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp "
    # wide kernel surface that agents have no use for
    "io_setup io_uring_setup io_uring_enter io_uring_register bpf perf_event_open userfaultfd memfd_secret "
    "keyctl add_key request_key "
    # the view of files
    "mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr "
    "statmount listmount "
    # the machine
    "init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load kexec_file_load "
    "reboot swapon swapoff acct quotactl quotactl_fd settimeofday clock_settime clock_adjtime adjtimex syslog vhangup "
    "nfsservctl lookup_dcookie name_to_handle_at open_by_handle_at fanotify_init "
    "move_pages migrate_pages mbind set_mempolicy get_mempolicy sethostname setdomainname "
    "iopl ioperm modify_ldt uselib ustat sysfs _sysctl "
    # channels outside the descriptors we count
    "shmget shmat semget msgget mq_open lsm_set_self_attr setxattrat"
).split()

# Calls that give a file its mode, and in which argument. In a directory that an agent may write through, a setuid file
# would belong to the operator: whoever runs it later runs what the agent wrote, as the operator.
_MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mkdir": 1, "mkdirat": 2}
_SETID_BITS, _O_CREAT_TMPFILE = 0o6000, 0o100 | 0o20000000
_RENAME_WHITEOUT = 4
_F_SETLEASE, _F_NOTIFY = 1024, 1026
_PLAIN_FILES = [(kind, _ALLOW) for kind in (0, 0x8000, 0x1000)]  # regular files and FIFOs; no device, no socket
_TERMINAL_TRICKS = {0x5412: "TIOCSTI", 0x541C: "TIOCLINUX", 0x541D: "TIOCCONS"}

Instruction = tuple[int, int, int, int]


def _refuse(code: int) -> int:
    return 0x00050000 | code


def _switch(offset: int, cases: Iterable[tuple[int, int]], otherwise: int, mask: int = 0) -> list[Instruction]:
    """Return by the value of one argument."""
    body: list[Instruction] = [(_LOAD, 0, 0, offset)]
    if mask:
        body.append((_AND, 0, 0, mask))
    for value, answer in cases:
        body += [(_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, answer)]
    return [*body, (_RETURN, 0, 0, otherwise)]


def _bits(offset: int, bits: int, if_any: int, otherwise: int) -> list[Instruction]:
    return [(_LOAD, 0, 0, offset), (_IF_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, if_any), (_RETURN, 0, 0, otherwise)]


def _require(offset: int, values: Sequence[int], mask: int = 0) -> list[Instruction]:
    """Go on if the argument has one of these values, else refuse."""
    body: list[Instruction] = [(_LOAD, 0, 0, offset)]
    if mask:
        body.append((_AND, 0, 0, mask))
    body += [(_IF_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*body, (_RETURN, 0, 0, _refuse(errno.EACCES))]


def _unless_setid(offset: int) -> list[Instruction]:
    """Go on if a mode has neither the setuid nor the setgid bit, else refuse."""
    return [(_LOAD, 0, 0, offset), (_IF_ANY_BIT, 0, 1, _SETID_BITS), (_RETURN, 0, 0, _refuse(errno.EPERM))]


def _judged_by_argument(net: str, exec_memfd: bool) -> dict[str, list[Instruction]]:
    eperm = _refuse(errno.EPERM)
    sockets = {
        "none": [(_RETURN, 0, 0, _refuse(errno.EACCES))],
        "unix": _switch(_ARG[0], [(_AF_UNIX, _ALLOW)], _refuse(errno.EACCES)),
        "proxy": [
            *_require(_ARG[0], (_AF_INET, _AF_INET6)),
            *_require(_ARG[1], (_STREAM, _DATAGRAM), mask=_TYPE),
            *_require(_ARG[2], (0, _TCP, _UDP)),
            (_RETURN, 0, 0, _ALLOW),
        ],
    }
    rules: dict[str, list[Instruction]] = {
        "socket": sockets[net],
        # a DGRAM end could `sendto` a socket that has a name on the host
        "socketpair": [
            *_require(_ARG[0], (_AF_UNIX,)),
            *_require(_ARG[1], (_STREAM, _SEQPACKET), mask=_TYPE),
            (_RETURN, 0, 0, _ALLOW),
        ],
        "clone": _bits(_ARG[0], _NAMESPACE_BITS, eperm, _ALLOW),
        "unshare": _bits(_ARG[0], _NAMESPACE_BITS, eperm, _ALLOW),
        "clone3": [(_RETURN, 0, 0, _refuse(errno.ENOSYS))],  # its flags lie in memory; libc falls back to clone
        "ioctl": _switch(_ARG[1], [(request, eperm) for request in _TERMINAL_TRICKS], _ALLOW),
        # a lease on a file we only lent would stall its owner; so would a directory notification
        "fcntl": _switch(_ARG[1], [(command, eperm) for command in (_F_SETLEASE, _F_NOTIFY)], _ALLOW),
        "mknod": [*_unless_setid(_ARG[1]), *_switch(_ARG[1], _PLAIN_FILES, eperm, mask=0xF000)],
        "mknodat": [*_unless_setid(_ARG[2]), *_switch(_ARG[2], _PLAIN_FILES, eperm, mask=0xF000)],
        "renameat2": _bits(_ARG[4], _RENAME_WHITEOUT, eperm, _ALLOW),  # it leaves a device node behind
        "personality": _switch(_ARG[0], [(value, _ALLOW) for value in (0, 8, 0xFFFFFFFF)], eperm),
    }
    allow: Instruction = (_RETURN, 0, 0, _ALLOW)
    rules |= {name: [*_unless_setid(_ARG[place]), allow] for name, place in _MODES.items()}
    for name, flags, mode in (("open", 1, 2), ("openat", 2, 3)):
        if_made: list[Instruction] = [(_LOAD, 0, 0, _ARG[flags]), (_IF_ANY_BIT, 1, 0, _O_CREAT_TMPFILE), allow]
        rules[name] = [*if_made, *_unless_setid(_ARG[mode]), allow]
    rules["openat2"] = [(_RETURN, 0, 0, _refuse(errno.ENOSYS))]  # its mode lies in memory; programs fall back to openat
    if not exec_memfd:
        rules["execveat"] = _bits(_ARG[4], syscalls.AT_EMPTY_PATH, eperm, _ALLOW)
        rules["memfd_create"] = _bits(_ARG[1], 0x8, _ALLOW, eperm)  # MFD_NOEXEC_SEAL
    return rules


def program(net: str, exec_memfd: bool = False, machine: str = syscalls.MACHINE) -> bytes:
    code: list[Instruction] = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, 0))
    if machine == "x86_64":
        code += [(_IF_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]  # x32: other numbers, same kernel
    code += [(_IF_AT_LEAST, 0, 1, _FIRST_UNKNOWN), (_RETURN, 0, 0, _refuse(errno.ENOSYS))]
    rules = _judged_by_argument(net, exec_memfd)
    rules |= {name: [(_RETURN, 0, 0, _refuse(errno.EPERM))] for name in DENIED}
    for name, body in rules.items():
        nr = syscalls.number(name, machine)
        if nr is not None:
            code += [(_IF_EQUAL, 0, len(body), nr), *body]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Irreversible for this process and all it will ever start. Needs no_new_privs."""
    text = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(text))
    syscalls.call("seccomp", 1, 0, header)
