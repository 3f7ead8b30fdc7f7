"""Attempts on /proc and /sys: other processes, the machine, what a guest's full proc covers, reopened descriptors."""

import contextlib
import ctypes
import errno
import mmap
import os
import subprocess
from collections.abc import Callable, Iterator

from hostile.attempts import PROC, SECRET, Refused, Targets, attempt, call, first_that_works, gather, libc, pids, read


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
    libc.mmap.restype = ctypes.c_void_p

    def through(access: int, rights: int, sharing: int) -> str:
        fd = os.open(path, access)
        address = libc.mmap(None, ctypes.c_size_t(4096), rights, sharing, fd, ctypes.c_long(0))
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


# What a guest may read besides its own processes: facts that real programs ask for, and links into its own process.
FACTS = set("self thread-self mounts net cpuinfo meminfo stat uptime loadavg version filesystems".split())


_MOUNTS = (errno.EINVAL, errno.EXDEV)  # what a mount that may not be touched answers, too


def machine_entries() -> list[str]:
    return sorted(name for name in os.listdir("/proc") if not name.isdigit() and name not in FACTS)


def _telling(path: str) -> str:
    """Evidence that a file or directory says something."""
    if os.path.isdir(path):
        found = os.listdir(path)
        if not found:
            raise Refused("an empty directory")
        return f"{len(found)} entries"
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        size = len(os.read(fd, 4096))
    finally:
        os.close(fd)
    if not size:
        raise Refused("an empty file")
    return f"{size} bytes"


@attempt("18b", "anything in /proc about the machine beyond a few facts", PROC, "R", "namespaces")
def machine_facts(t: Targets) -> object:
    names = machine_entries()
    if not names:
        raise Refused("nothing but processes and facts")
    return first_that_works({name: lambda name=name: _telling(f"/proc/{name}") for name in names})


@attempt(
    "18c", "uncover what is covered in /proc", PROC, "R", "namespaces capabilities seccomp landlock", "box", _MOUNTS
)
def uncover(t: Targets) -> object:
    covered = [name for name in machine_entries() if _is_quiet(f"/proc/{name}")] or ["interrupts", "keys", "sys"]

    def unmounted(name: str) -> str:
        call("umount2", f"/proc/{name}".encode(), 2)
        return _telling(f"/proc/{name}")

    def moved(name: str) -> str:
        os.rename(f"/proc/{name}", f"{t['work']}/{name}")
        return _telling(f"/proc/{name}")

    def again(name: str) -> str:
        place = f"{t['work']}/proc{os.getpid()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(place)
        call("mount", b"proc", place.encode(), b"proc", 0, None)
        return _telling(f"{place}/{name}")

    def bound(name: str) -> str:
        place = f"{t['work']}/bound{os.getpid()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(place)
        call("mount", b"/proc", place.encode(), None, 4096, None)  # without what is mounted below it
        return _telling(f"{place}/{name}")

    ways = (unmounted, moved, again, bound)
    return first_that_works({f"{way.__name__} {name}": lambda w=way, n=name: w(n) for way in ways for name in covered})


def _is_quiet(path: str) -> bool:
    try:
        _telling(path)
    except Refused:
        return True
    except OSError:
        return False
    return False


@attempt("17b", "open anything of the machine in /proc for writing", PROC, "R", "namespaces landlock", "box")
def writable(t: Targets) -> object:
    # Only opened, never written: some of these would stop the machine.
    paths = [f"/proc/{name}" for name in ("sysrq-trigger", "sys/vm/drop_caches", "sys/kernel/core_pattern", "mtrr")]
    return first_that_works({path: lambda path=path: _opens(path) for path in [*paths, *_machine_files()]})


def _machine_files() -> Iterator[str]:
    """Some hundred files of the directories with switches, deepest places included."""
    for top in ("sys", "irq", "bus", "fs", "scsi", "acpi", "tty", "driver", "sysvipc"):
        files = [f"{folder}/{name}" for folder, _, names in os.walk(f"/proc/{top}") for name in names]
        yield from files[:400]


def _opens(path: str) -> str:
    # A directory is refused as such, and what is not open to writing is no switch.
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except IsADirectoryError as problem:
        raise Refused("a directory") from problem
    return "opened"


@attempt("24b", "memory, environment and descriptors of one's own init", PROC, "R", "launcher", "box")
def init_inside(t: Targets) -> object:
    def memory() -> str:
        with open("/proc/1/maps") as maps, open("/proc/1/mem", "rb", 0) as mem:
            low = next(int(line.split("-")[0], 16) for line in maps if "[stack]" in line or "[heap]" in line)
            mem.seek(low)
            return f"{len(mem.read(64))} bytes at {low:x}"

    def links(name: str) -> str:
        found = os.listdir(f"/proc/1/{name}")
        return f"{len(found)}, the first leads to {os.readlink(f'/proc/1/{name}/{found[0]}')}"

    ways = {"mem": memory, "environ": lambda: f"{len(read('/proc/1/environ'))} bytes"}
    ways |= {name: lambda name=name: links(name) for name in ("fd", "map_files", "task/1/fd")}
    ways |= {name: lambda name=name: os.readlink(f"/proc/1/{name}") for name in ("root", "cwd", "exe", "ns/mnt")}
    return first_that_works(ways)


@attempt("24c", "a read-only descriptor opened again for writing", PROC, "H", "namespaces landlock")
def reopened(t: Targets) -> object:
    path = t["ro_file"]
    before = read(path)
    held = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(held, 0, prot=mmap.PROT_READ)
    places = [f"/proc/self/fd/{held}", f"/dev/fd/{held}", f"/proc/thread-self/fd/{held}"]
    places += [f"/proc/{os.getpid()}/task/{os.getpid()}/fd/{held}"]
    with contextlib.suppress(OSError):
        places += [f"/proc/self/map_files/{name}" for name in os.listdir("/proc/self/map_files")]

    def through(place: str) -> str:
        fd = os.open(place, os.O_WRONLY)
        os.pwrite(fd, b"X", 0)
        changed = read(path) != before
        os.pwrite(fd, before[:1], 0)
        os.close(fd)
        if not changed:
            raise Refused("another file changed")
        return "the file changed"

    try:
        return first_that_works({place: lambda place=place: through(place) for place in places})
    finally:
        mapped.close()


@attempt("24d", "truncate, stamp or mark a read-only file through its descriptor", PROC, "H", "namespaces")
def stamped(t: Targets) -> object:
    path = t["ro_file"]
    held = os.open(path, os.O_RDONLY)
    before = os.fstat(held)
    again = f"/proc/self/fd/{held}"

    def changed(way: str) -> str:
        after = os.fstat(held)
        if (after.st_mtime_ns, after.st_mode, after.st_size) == (before.st_mtime_ns, before.st_mode, before.st_size):
            raise Refused(f"{way}: nothing changed")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.chmod(path, before.st_mode & 0o777)
        return "changed"

    ways = {
        "utime": lambda: os.utime(held, ns=(1, 1)),
        "utime by link": lambda: os.utime(again, ns=(1, 1)),
        "mode": lambda: os.fchmod(held, 0o600),
        "mode by link": lambda: os.chmod(again, 0o600),
        "owner": lambda: os.chown(again, os.getuid(), os.getgid()),
        "attribute": lambda: os.setxattr(again, "user.battery", b"x"),
        "size": lambda: os.truncate(again, 1),
    }
    return first_that_works({name: lambda n=name, way=way: (way(), changed(n))[1] for name, way in ways.items()})


@attempt("21b", "see a process of the host by asking for its number", PROC, "R", "namespaces")
def host_pid_by_number(t: Targets) -> object:
    """Not by listing: hidden entries of /proc, a signal 0, priorities, process groups and scheduling by pid."""
    pid = t["peer_pid"]
    if pid in pids():
        if t["marker"].encode() not in read(f"/proc/{pid}/cmdline"):
            raise Refused("that number is somebody else here")
        return "listed"
    ways = {
        "stat": lambda: read(f"/proc/{pid}/stat"),
        "open": lambda: os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY),
        "group": lambda: os.getpgid(pid),
        "session": lambda: os.getsid(pid),
        "scheduling": lambda: os.sched_getaffinity(pid),
        "priority": lambda: os.getpriority(os.PRIO_PROCESS, pid),
        "descriptor": lambda: os.pidfd_open(pid),
        "signal 0": lambda: os.kill(pid, 0),
    }
    return first_that_works(ways)


@attempt("20b", "the host's name of one's own cgroup", PROC, "R", "namespaces")
def cgroup_path(t: Targets) -> object:
    paths = {line.split(":", 2)[2] for line in read("/proc/self/cgroup").decode().splitlines()}
    if paths <= {"/"}:
        raise Refused("only /")
    return " ".join(sorted(paths))
