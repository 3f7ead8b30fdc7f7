"""Attempts on files: the host's own, those that a mask covers, and what stalls their owner."""

import errno
import fcntl
import os
from collections.abc import Callable

from hostile.attempts import FILES, SECRET, Refused, Targets, attempt, call, first_that_works, gather, make_file, read


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
