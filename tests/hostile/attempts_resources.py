"""Attempts to take more than one's share: memory, disk, files, threads, limits. Each stays within a few hundred MB."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import signal
import threading
from collections.abc import Iterator

from hostile.attempts import RESOURCES, NotHere, Refused, Targets, attempt, call, call_number, first_that_works, read

MB = 1 << 20
NOT_GUESTS = ("tool", "native-warm", "native-exec")  # guests have other limits, held by the kernel and by cgroups
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextlib.contextmanager
def folder(top: str) -> Iterator[str]:
    """A directory of our own that goes away with all that is in it."""
    path = f"{top}/flood{os.getpid()}"
    os.mkdir(path)
    try:
        yield path
    finally:
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)


def fill(top: str, size_mb: int) -> str:
    """More than so much, in files that are small enough for any limit on one."""
    with folder(top) as path:
        for number in range(0, size_mb + 16, 16):
            fd = os.open(f"{path}/{number}", os.O_CREAT | os.O_WRONLY, 0o600)
            os.posix_fallocate(fd, 0, 16 * MB)
            os.close(fd)
        return f"{sum(os.stat(f'{path}/{name}').st_blocks for name in os.listdir(path)) // 2048} MB"


@attempt("88", "more address space than allowed", RESOURCES, "R", "limits", fine=(errno.ENOMEM,), kinds=NOT_GUESTS)
def address_space(t: Targets) -> object:
    page = mmap.mmap(-1, (t["as_mb"] + 64) * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # NORESERVE
    page[len(page) - 1] = 1
    return f"{len(page) // MB} MB"


@attempt("89", "fill /tmp beyond its size", RESOURCES, "R", "namespaces", fine=_FULL)
def fill_tmp(t: Targets) -> object:
    place, size, _ = t["full"]["tmp"]
    return fill(place, size)


@attempt("89b", "fill /dev/shm beyond its size", RESOURCES, "R", "namespaces", fine=_FULL)
def fill_shm(t: Targets) -> object:
    place, size, _ = t["full"]["shm"]
    return fill(place, size)


@attempt("89c", "a file larger than allowed", RESOURCES, "R", "limits", fine=_FULL, kinds=NOT_GUESTS)
def large_file(t: Targets) -> object:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error is enough
    path = f"{t['work']}/large{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        # Past a hole: nothing is used up, and yet the file would be larger than a limit allows.
        ways = {
            "written": lambda: os.pwrite(fd, b"x", (t["fsize_mb"] + 1) * MB),
            "truncated": lambda: os.truncate(fd, (t["fsize_mb"] + 1) * MB),
            "allocated": lambda: os.posix_fallocate(fd, t["fsize_mb"] * MB, MB),
        }
        return f"{first_that_works(ways)}, {os.fstat(fd).st_size // MB} MB"
    finally:
        os.close(fd)
        os.unlink(path)


@attempt("90", "more files than /dev/shm may hold", RESOURCES, "R", "namespaces", fine=_FULL)
def inodes_shm(t: Targets) -> object:
    return _many(t["full"]["shm"])


@attempt("90b", "more files than /tmp may hold", RESOURCES, "R", "namespaces", fine=_FULL)
def inodes_tmp(t: Targets) -> object:
    return _many(t["full"]["tmp"])


def _many(full: tuple[str, int, int]) -> str:
    """Links are as good as files: each is an entry that needs an inode of its own, unless it is a hard link."""
    place, _, most = full
    with folder(place) as path:
        for number in range(most + 16):
            os.symlink("x", f"{path}/{number}")
        return f"{most + 16} entries"


@attempt("92", "raise a limit, and use what it gives", RESOURCES, "R", "limits", fine=(errno.EMFILE,))
def raise_limit(t: Targets) -> object:
    wanted = t["nofile"] + 100
    kind = resource.RLIMIT_NOFILE
    with contextlib.suppress(ValueError, OSError):
        resource.prlimit(1, kind, (wanted, wanted))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (wanted, max(wanted, resource.getrlimit(kind)[1])))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(wanted - 20)]
    return f"{len(held)} files open at the same time"


@attempt("92b", "a higher priority", RESOURCES, "R", "limits", "n/a: an ordinary user has no higher one either")
def priority(t: Targets) -> object:
    def nicer() -> str:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, before - 1)
        return f"{before} became {os.getpriority(os.PRIO_PROCESS, 0)}"

    def realtime() -> str:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return f"policy {os.sched_getscheduler(0)}"

    return first_that_works({"nice": nicer, "real time": realtime})


@attempt("45b", "more threads than allowed at the same time", RESOURCES, "R", "limits")
def many_threads(t: Targets) -> object:
    gate = threading.Event()
    wanted, started = t["pids"] + 40, list[threading.Thread]()
    threading.stack_size(64 << 10)
    try:
        for _ in range(wanted):
            thread = threading.Thread(target=gate.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as problem:
        raise Refused(f"{len(started)} threads: {problem}") from problem
    finally:
        gate.set()
        for thread in started:
            thread.join()
    return f"{len(started)} threads"


@attempt("91", "lock memory", RESOURCES, "R", "limits", fine=(errno.ENOMEM,))
def mlock(t: Targets) -> object:
    page = mmap.mmap(-1, 1 << 16)
    call("mlock", ctypes.addressof(ctypes.c_char.from_buffer(page)), 1 << 16)
    locked = next(line for line in read("/proc/self/status").splitlines() if line.startswith(b"VmLck"))
    if locked.split()[1] == b"0":
        raise Refused("nothing is locked")
    return locked.decode()


@attempt("91b", "memory that cannot be swapped, by a mapping or by all of it", RESOURCES, "R", "limits",
         fine=(errno.ENOMEM, errno.EAGAIN))  # fmt: skip
def locked_mapping(t: Targets) -> object:
    page = mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000)  # LOCKED
    with open("/proc/self/status") as file:
        locked = next(line for line in file if line.startswith("VmLck")).split()[1]
    page.close()
    if locked == "0":
        raise Refused("nothing is locked")
    return f"{locked} kB"


@attempt("113", "requests of asynchronous input, of which the whole machine has one number", RESOURCES, "R", "seccomp")
def machine_wide_requests(t: Targets) -> object:
    if platform.machine() != "x86_64":
        raise NotHere("the number of the call is known for x86 only")
    context = ctypes.c_ulong(0)
    call_number(206, 64, ctypes.byref(context))  # io_setup
    call_number(207, context.value)
    return "64 of them were ours"


@attempt("114", "terminals, of which the whole machine has one number", RESOURCES, "R", "namespaces", fine=_FULL)
def many_terminals(t: Targets) -> object:
    held: list[int] = []
    try:
        while len(held) < 200:
            held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    finally:
        for fd in held:
            os.close(fd)
    return f"{len(held)} at the same time"


@attempt("111b", "a lock on a file of a read-only mount, for which the host may wait", RESOURCES, "R", "",
         "recorded: whoever may read a file may lock it; Linux has no other way")  # fmt: skip
def lock_of_shared_file(t: Targets) -> object:
    with open(t["ro_file"]) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return "locked"


@attempt("95", "half frames, huge lengths, deep nesting on the kernel's socket", RESOURCES, "R", "",
         "n/a: the kernel reads no agent socket yet")  # fmt: skip
def bad_frames(t: Targets) -> object:
    raise NotHere("the kernel reads no agent socket yet")


@attempt("97", "spawn more agents than allowed", RESOURCES, "R", "", "n/a: agents cannot spawn agents yet")
def spawn_storm(t: Targets) -> object:
    raise NotHere("agents cannot spawn agents yet")
