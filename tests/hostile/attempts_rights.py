"""Attempts to gain rights that outlast the sandbox or reach beyond it: setuid files, marks, keys, false identities."""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable

from hostile.attempts import (
    FILES,
    KERNEL,
    PRIVILEGE,
    PROCESSES,
    NotHere,
    Refused,
    Targets,
    attempt,
    call,
    call_number,
    first_that_works,
    read,
)

SETID = stat.S_ISUID | stat.S_ISGID
AT_CWD = -100


@attempt("112", "a setuid or setgid file in the workspace, by every call that gives a mode", FILES, "R", "seccomp")
def setid_file(t: Targets) -> object:
    os.umask(0)
    path = f"{t['work']}/setid{os.getpid()}"
    name = path.encode()

    def made(make: Callable[[], object]) -> str:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        try:
            make()
            mode = os.stat(path).st_mode
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.rmdir(path)
        if not mode & SETID:
            raise Refused(f"mode {mode:o}")
        return f"mode {mode:o}"

    def plain() -> int:
        return os.open(path, os.O_CREAT | os.O_RDWR, 0o755)

    def unnamed() -> None:
        fd = os.open(t["work"], os.O_TMPFILE | os.O_RDWR, 0o6755)
        os.link(f"/proc/self/fd/{fd}", path, follow_symlinks=True)

    def how(mode: int) -> bytes:
        return struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, mode, 0)

    ways: dict[str, Callable[[], object]] = {
        "chmod": lambda: (plain(), os.chmod(path, 0o4755)),
        "chmod 2": lambda: (plain(), os.chmod(path, 0o2755)),
        "fchmod": lambda: os.fchmod(plain(), 0o6755),
        "fchmodat": lambda: (plain(), os.chmod(os.path.basename(path), 0o6755, dir_fd=os.open(t["work"], os.O_RDONLY))),
        "fchmodat2": lambda: (plain(), call_number(452, AT_CWD, name, 0o6755, 0)),
        "chmod by link": lambda: os.chmod(f"/proc/self/fd/{plain()}", 0o6755),
        "open": lambda: os.open(path, os.O_CREAT | os.O_WRONLY, 0o6755),
        "openat2": lambda: call_number(437, AT_CWD, name, how(0o6755), 24),
        "unnamed file": unnamed,
        "mkdir": lambda: os.mkdir(path, 0o6755),
        "mkdir, chmod": lambda: (os.mkdir(path), os.chmod(path, 0o2755)),
        "mknod of a file": lambda: os.mknod(path, stat.S_IFREG | 0o6755),
        "mknod without a type": lambda: os.mknod(path, 0o6755),
        "mknod of a fifo": lambda: os.mknod(path, stat.S_IFIFO | 0o6755),
        "high bits": lambda: (plain(), call_number(452, AT_CWD, name, 0xFFFF0000_00000000 - (1 << 64) | 0o6755, 0)),
    }
    return first_that_works({way: lambda make=make: made(make) for way, make in ways.items()})


@attempt("112b", "give a program a capability", PRIVILEGE, "R", "capabilities", "box")
def file_capability(t: Targets) -> object:
    path = f"{t['work']}/capable{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    try:
        os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0))
        return f"{len(os.getxattr(path, 'security.capability'))} bytes of capabilities"
    finally:
        os.unlink(path)


@attempt("37b", "a device node left by a rename", PRIVILEGE, "R", "seccomp", fine=(errno.EINVAL,))
def whiteout_by_rename(t: Targets) -> object:
    """What overlays use to mark a deletion; Linux lets everybody ask for it."""

    def in_place(folder: str) -> str:
        old, new = f"{folder}/old{os.getpid()}", f"{folder}/new{os.getpid()}"
        os.close(os.open(old, os.O_CREAT | os.O_WRONLY, 0o600))
        try:
            call("renameat2", AT_CWD, old.encode(), AT_CWD, new.encode(), 4)
            made = os.lstat(old).st_mode
        finally:
            for path in (old, new):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        if not stat.S_ISCHR(made):
            raise Refused("no device")
        return oct(made)

    return first_that_works({place: lambda place=place: in_place(place) for place in (t["work"], t["full"]["tmp"][0])})


@attempt("112c", "attributes beyond one's own: trusted, security, system", FILES, "R", "", "n/a: needs real root")
def foreign_attributes(t: Targets) -> object:
    path = f"{t['work']}/marked{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    # Not security.selinux: where SELinux has no policy, Linux lets every owner of a file set it.
    names = ("trusted.overlay.opaque", "trusted.overlay.redirect", "security.ima", "security.apparmor", "system.none")
    try:
        return first_that_works({name: lambda name=name: _mark(path, name) for name in names})
    finally:
        os.unlink(path)


def _mark(path: str, name: str) -> str:
    try:
        os.setxattr(path, name, b"y")
    except OSError as problem:
        if problem.errno in (errno.ENOTSUP, errno.EINVAL):
            raise Refused("not on this file system") from problem
        raise
    return f"{name} is {os.getxattr(path, name)!r}"


@attempt("112d", "make a file immutable, so that its owner cannot remove it", FILES, "R", "", "n/a: needs real root")
def immutable(t: Targets) -> object:
    def flag(path: str, bits: int) -> str:
        fd = os.open(path, os.O_RDONLY)
        try:
            before = struct.unpack("l", fcntl.ioctl(fd, 0x80086601, bytes(8)))[0]
            fcntl.ioctl(fd, 0x40086602, struct.pack("l", before | bits))
            after = struct.unpack("l", fcntl.ioctl(fd, 0x80086601, bytes(8)))[0]
            if not after & bits:
                raise Refused("the flag did not stay")
            fcntl.ioctl(fd, 0x40086602, struct.pack("l", before))
        except OSError as problem:
            if problem.errno in (errno.ENOTTY, errno.EOPNOTSUPP):
                raise Refused("not on this file system") from problem
            raise
        finally:
            os.close(fd)
        return "flagged"

    own = f"{t['work']}/flagged{os.getpid()}"
    os.close(os.open(own, os.O_CREAT | os.O_WRONLY, 0o600))
    ways = {"immutable": (own, 0x10), "append only": (own, 0x20), "of a read-only file": (t["ro_file"], 0x40)}
    return first_that_works({name: lambda way=way: flag(*way) for name, way in ways.items()})


@attempt("49b", "a session keyring and a key of one's own", KERNEL, "R", "seccomp")
def own_key(t: Targets) -> object:
    ring = call("keyctl", 1, None, 0, 0, 0)
    key = call("add_key", b"user", b"battery", b"x", 1, ring)
    return f"key {key} in ring {ring}"


@attempt("86b", "claim to be another process", PROCESSES, "R", "capabilities", "box")
def false_credentials(t: Targets) -> object:
    """By SCM_CREDENTIALS: what a service that asks for credentials would believe."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    claims = {"pid 1": (1, os.getuid(), os.getgid()), "uid 0": (os.getpid(), 0, 0), "uid 1": (os.getpid(), 1, 1)}

    def claim(pid: int, uid: int, gid: int) -> str:
        if (pid, uid, gid) == (os.getpid(), os.getuid(), os.getgid()):
            raise Refused("that is who we are")
        try:
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, struct.pack("3i", pid, uid, gid))])
        except OSError as problem:
            if problem.errno == errno.EINVAL:
                raise Refused("no such id here") from problem
            raise
        told = struct.unpack("3i", other.recvmsg(1, 64)[1][0][2])
        return f"believed to be {told}"

    return first_that_works({name: lambda who=who: claim(*who) for name, who in claims.items()})


@attempt("41b", "descriptors of one's own init", PROCESSES, "R", "seccomp launcher", "box", fine=(errno.EBADF,))
def descriptors_of_init(t: Targets) -> object:
    init = os.pidfd_open(1)
    numbers = {
        str(fd): lambda fd=fd: os.readlink(f"/proc/self/fd/{call('pidfd_getfd', init, fd, 0)}") for fd in range(9)
    }
    return first_that_works(numbers)


@attempt("29b", "other new namespaces: time, cgroup, ipc, uts, net, pid", PRIVILEGE, "R", "capabilities seccomp", "box")
def other_namespaces(t: Targets) -> object:
    kinds = {"time_for_children": 0x80, "cgroup": 0x2000000, "ipc": 0x8000000, "uts": 0x4000000, "net": 0x40000000}
    kinds["pid_for_children"] = 0x20000000

    def change(kind: str, bit: int) -> str:
        before = os.readlink(f"/proc/self/ns/{kind}")
        call("unshare", bit)
        after = os.readlink(f"/proc/self/ns/{kind}")
        if before == after:
            raise Refused("the namespace stayed the same")
        return f"{before} became {after}"

    return first_that_works({kind: lambda kind=kind, bit=bit: change(kind, bit) for kind, bit in kinds.items()})


@attempt("30b", "new namespaces by the old clone call", PRIVILEGE, "R", "seccomp")
def old_clone(t: Targets) -> object:
    number = 56 if platform.machine() == "x86_64" else 220
    before = os.readlink("/proc/self/ns/user")
    ours, theirs = os.pipe()
    pid = call_number(number, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os.write(theirs, os.readlink("/proc/self/ns/user").encode())
        os._exit(0)
    os.waitpid(pid, 0)
    after = os.read(ours, 99).decode()
    if after == before:
        raise Refused("the child is in our own namespace")
    return f"{before} became {after}"


@attempt("42b", "an owner for asynchronous signals outside", PROCESSES, "R", "namespaces landlock:6")
def signal_by_owner(t: Targets) -> object:
    """F_SETOWN lets the Linux kernel send a signal for us, to whom we named."""
    pid, mark = t["peer_pid"], t["signal_mark"]
    if os.path.exists(f"/proc/{pid}") and t["marker"].encode() not in read(f"/proc/{pid}/cmdline"):
        raise Refused("that number is somebody else here")
    ours, theirs = os.pipe()
    before = _size(mark)
    fcntl.fcntl(ours, fcntl.F_SETOWN, pid)
    fcntl.fcntl(ours, 10, int(signal.SIGUSR1))  # F_SETSIG
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(theirs, b"x")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if _size(mark) != before:
            return "the signal arrived"
        time.sleep(0.01)
    raise Refused("the signal did not arrive")


def _size(path: str) -> int:
    """-1 if it is not there."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


@attempt("64b", "run a program from a place without execute permission", KERNEL, "R", "namespaces")
def run_from_shm(t: Targets) -> object:
    path = f"{t['full']['shm'][0]}/program{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o755)
    os.write(fd, read("/bin/true", 1 << 24))
    os.close(fd)
    try:
        pid = os.posix_spawn(path, [path], {})
        return f"exit code {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"
    finally:
        os.unlink(path)


@attempt(
    "61b", "ports of the machine: iopl, ioperm", KERNEL, "R", "seccomp", "n/a: needs real root; never as host root"
)
def ports(t: Targets) -> object:
    if platform.machine() != "x86_64":
        raise NotHere("x86 only")
    return first_that_works({"iopl": lambda: call_number(172, 3), "ioperm": lambda: call_number(173, 0x80, 1, 1)})


@attempt("57b", "change the name of the host", KERNEL, "R", "capabilities seccomp", "box")
def host_name(t: Targets) -> object:
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.uname().nodename
    if libc.sethostname(b"battery", 7):
        raise OSError(ctypes.get_errno(), "sethostname")
    after = os.uname().nodename
    libc.sethostname(before.encode(), len(before))
    if after == before:
        raise Refused("unchanged")
    return f"{before} became {after}"
