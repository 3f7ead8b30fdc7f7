"""Attempts to reach system calls and devices that no agent needs: the surface of the Linux kernel."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import select
import struct

from hostile.attempts import (
    KERNEL,
    NEWPID,
    NotHere,
    Refused,
    Targets,
    attempt,
    call,
    call_number,
    first_that_works,
    read,
)


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
