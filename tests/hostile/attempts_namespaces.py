"""Attempts to leave one's namespaces, to change what is mounted, and to become somebody else."""

import contextlib
import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import time
from collections.abc import Callable

from hostile.attempts import (
    NEWNS,
    NEWUSER,
    PRIVILEGE,
    NotHere,
    Refused,
    Targets,
    attempt,
    call,
    first_that_works,
    gather,
    libc,
    pids,
    read,
)


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
    if os.geteuid() == 0:  # the box: whoever is root already proves nothing
        _be_somebody_else()
    before = os.getresuid()
    with contextlib.suppress(OSError):
        call("setuid", 0)
    os.setresuid(0, 0, 0)
    if 0 in before or os.geteuid() != 0:
        raise Refused(f"uid {before} became {os.getresuid()}")
    return f"uid {before} became {os.getresuid()}"


def _be_somebody_else() -> None:
    """Uid 1 in every respect, with the right to change it: only a second id that means somebody makes that possible."""
    with open("/proc/self/uid_map") as file:
        if sum(int(line.split()[2]) for line in file) < 2:
            raise NotHere("only root can give a user namespace a second id, so nobody is there to become root from")
    libc.prctl(8, 1, 0, 0, 0)  # keep capabilities, which are effective no more
    os.setresuid(1, 1, 1)
    rights = struct.pack("6I", *(1 << 7, 1 << 7, 0), *(0, 0, 0))  # CAP_SETUID
    call("capset", struct.pack("II", 0x20080522, 0), rights)


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
