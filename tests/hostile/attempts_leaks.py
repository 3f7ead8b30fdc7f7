"""What could leak: descriptors, environment, command lines, cores; and what is recorded, because it is not promised."""

import ctypes
import errno
import json
import os
import random
import resource
import signal
import subprocess

from hostile.attempts import LEAKS, NotHere, Refused, Targets, attempt, gather, libc, pids, read


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
        libc.prctl(4, 1, 0, 0, 0)  # dumpable
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
    fd = libc.inotify_init()
    if libc.inotify_add_watch(fd, b"/usr/bin", 0x21) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return "a watch on /usr/bin"


@attempt("80b", "host paths of mount sources in mountinfo", LEAKS, "R", "", "recorded: Linux shows them")
def mount_sources(t: Targets) -> object:
    roots = {line.split()[3] for line in read("/proc/self/mountinfo").decode().splitlines()}
    if len(roots) < 2:
        raise Refused("only /")
    return " ".join(sorted(roots))[:160]
