"""The Linux calls that Python does not offer, by ctypes. Every return is checked; nothing here decides anything.

Numbers are a literal table (x86_64, aarch64); `-` means the architecture has no such call.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct

ARCHITECTURES = ("x86_64", "aarch64")

# name, number on x86_64, number on aarch64
_TABLE = """
_sysctl 156 - · acct 163 89 · add_key 248 217 · adjtimex 159 171 · bpf 321 280 · capset 126 91 · chmod 90 -
chroot 161 51 · clock_adjtime 305 266 · clock_settime 227 112 · clone 56 220 · clone3 435 435 · close_range 436 436
creat 85 - · create_module 174 - · delete_module 176 106 · execveat 322 281 · fanotify_init 300 262 · fchmod 91 52
fchmodat 268 53 · fchmodat2 452 452 · fcntl 72 25 · finit_module 313 273 · fsconfig 431 431 · fsmount 432 432
fsopen 430 430 · fspick 433 433 · get_kernel_syms 177 - · get_mempolicy 239 236 · init_module 175 105
io_setup 206 0 · io_uring_enter 426 426 · io_uring_register 427 427 · io_uring_setup 425 425 · ioctl 16 29
ioperm 173 - · iopl 172 - · kcmp 312 272 · kexec_file_load 320 294 · kexec_load 246 104 · keyctl 250 219
landlock_add_rule 445 445 · landlock_create_ruleset 444 444 · landlock_restrict_self 446 446 · listmount 458 458
lookup_dcookie 212 18 · lsm_set_self_attr 460 460 · mbind 237 235 · memfd_create 319 279 · memfd_secret 447 447
migrate_pages 256 238 · mkdir 83 - · mkdirat 258 34 · mknod 133 - · mknodat 259 33 · modify_ldt 154 - · mount 165 40
mount_setattr 442 442 · move_mount 429 429 · move_pages 279 239 · mq_open 240 180 · msgget 68 186
name_to_handle_at 303 264 · nfsservctl 180 42 · open 2 - · open_by_handle_at 304 265 · open_tree 428 428
open_tree_attr 467 467 · openat 257 56 · openat2 437 437 · perf_event_open 298 241 · personality 135 92
pidfd_getfd 438 438 · pivot_root 155 41 · prctl 157 167 · process_madvise 440 440 · process_mrelease 448 448
process_vm_readv 310 270 · process_vm_writev 311 271 · ptrace 101 117 · query_module 178 - · quotactl 179 60
quotactl_fd 443 443 · reboot 169 142 · renameat2 316 276 · request_key 249 218 · seccomp 317 277 · semget 64 190
set_mempolicy 238 237 · setdomainname 171 162 · sethostname 170 161 · setns 308 268 · settimeofday 164 170
setxattrat 463 463 · shmat 30 196 · shmget 29 194 · socket 41 198 · socketpair 53 199 · statmount 457 457
swapoff 168 225 · swapon 167 224 · sysfs 139 - · syslog 103 116 · umount2 166 39 · unshare 272 97 · uselib 134 -
userfaultfd 323 282 · ustat 136 - · vhangup 153 58
"""


def _numbers() -> dict[str, tuple[int | None, int | None]]:
    rows = (cell.split() for cell in _TABLE.replace("\n", " · ").split(" · ") if cell.strip())
    return {name: (int(x86), None if arm == "-" else int(arm)) for name, x86, arm in rows}


NUMBERS = _numbers()

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWTIME = 0x10000000, 0x20000000, 0x40000000, 0x80

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2

ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC, ATTR_IDMAP = 1, 2, 4, 8, 0x100000
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
_TREE_CLONE, _TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_FROM_FD, _MOVE_TO_FD = 0x4, 0x40

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_CAPBSET_DROP = 1, 4, 15, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_ZEROS = (0,) * 6

MACHINE = os.uname().machine

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.syscall.argtypes = (ctypes.c_long, *(ctypes.c_void_p,) * 6)  # each an integer of 64 bits, bytes or None


def number(name: str, machine: str = MACHINE) -> int | None:
    """The number of a call on an architecture; None where that architecture has no such call."""
    return NUMBERS[name][ARCHITECTURES.index(machine)]


def call(name: str, *args: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """One raw system call. Integers are widened to 64 bits; a negative result is raised as OSError."""
    nr = number(name)
    if nr is None:
        raise OSError(errno.ENOSYS, f"{name}: not on this architecture")
    result: int = _libc.syscall(nr, *args, *_ZEROS[len(args) :])
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    call("unshare", flags)


def setns(fd: int, kind: int) -> None:
    call("setns", fd, kind)


def prctl(option: int, *args: int | bytes) -> None:
    call("prctl", option, *args)


def die_with_parent() -> None:
    """SIGKILL for us when the parent ends. Cleared by every change of uid, so it is set again afterwards."""
    prctl(PR_SET_PDEATHSIG, 9)


def mount(kind: str | None, target: str, flags: int = 0, options: str = "") -> None:
    source = kind.encode() if kind else None
    call("mount", source, os.fsencode(target), source, flags, options.encode() or None)


def unmount(target: str) -> None:
    call("umount2", os.fsencode(target), MNT_DETACH)


def pivot_root_here() -> None:
    """Make the current directory the root and drop the old one: afterwards the host's view does not exist."""
    call("pivot_root", b".", b".")
    unmount(".")
    os.chdir("/")


def clone_tree(path: str = "", at: int = AT_FDCWD, recursive: bool = True) -> int:
    """A private, still unattached copy of the mounts at a path or descriptor; nobody can swap it any more."""
    flags = _TREE_CLONE | _TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)
    return call("open_tree", at, os.fsencode(path), flags)


def attach_tree(tree: int, mountpoint: int) -> None:
    """Attach an unattached tree on the place that a descriptor names; no path is walked."""
    call("move_mount", tree, b"", mountpoint, b"", _MOVE_FROM_FD | _MOVE_TO_FD)


def set_tree(fd: int, attributes: int, recursive: bool = True, userns: int = 0) -> None:
    """Add mount attributes to a tree, submounts included: a plain remount would leave those writable."""
    packed = struct.pack("QQQQ", attributes, 0, 0, userns)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    call("mount_setattr", fd, b"", flags, packed, len(packed))


def close_from(first: int) -> None:
    call("close_range", first, 0xFFFFFFFF, 0)


def close_all_but(kept: set[int]) -> None:
    first = 0
    for fd in sorted(kept):
        if fd > first:
            call("close_range", first, fd - 1, 0)
        first = fd + 1
    close_from(first)


def drop_capabilities() -> None:
    """Empty the bounding, ambient, permitted, effective and inheritable sets."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as problem:
            if problem.errno != errno.EINVAL:
                raise
            break  # past the last capability of this kernel
    call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


def set_hostname(name: bytes) -> None:
    call("sethostname", name, len(name))


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running
