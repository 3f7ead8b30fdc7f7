"""Attempts on other processes: look into them, take from them, signal them; and on their number."""

import contextlib
import ctypes
import errno
import os
import signal
import struct
import time

from hostile.attempts import PROCESSES, Refused, Targets, attempt, call, read


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
    deadline = time.monotonic() + 10
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
    deadline = time.monotonic() + 5
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
