"""What misbehaves while it runs, rather than at one call: swappers, storms, daemons, forgers of names.

argv: the act and its words. Says `ready` on stdout once at work, then goes on until killed or until stdin ends.
Standard library only; runs as a guest, a tool or a native agent, and without a sandbox for the controls.
"""

import contextlib
import ctypes
import itertools
import os
import signal
import socket
import sys
import time

PROTECTED = (
    *(
        ".git/config",
        ".git/hooks/pre-commit",
        "sub/.git/hooks/post-checkout",
        ".gitattributes",
        ".gitmodules",
        ".envrc",
    ),
    *("conftest.py", "tests/conftest.py", "sitecustomize.py", "evil.pth", "package.json", ".npmrc", "Makefile"),
    *(".mcp.json", "AGENTS.md", "CLAUDE.md", ".claude/settings.json", ".vscode/tasks.json", ".github/workflows/ci.yml"),
    *(".bashrc", ".profile", ".zshrc", ".agent.toml", ".agents/evil.toml"),
)
FORGED = ("plain\ncommitted: everything", "clear\x1b[2Jscreen", "back\rover", "bell\x07", "bad\udcffbyte", "c1\x9b31m")


def ready() -> None:
    os.write(1, b"ready")


def wait() -> None:
    sys.stdin.buffer.read()


def write(path: str) -> None:
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("made by an agent\n")


def links(target: str) -> None:
    """Every way to point from the workspace to one host file."""
    os.symlink(target, "absolute")
    os.symlink("../" * 40 + target.lstrip("/"), "relative")
    os.symlink(f"/proc/self/root{target}", "magic")
    os.symlink(os.path.dirname(target), "folder")
    os.symlink("absolute", "chain")
    ready()
    wait()


def swap(target: str) -> None:
    """One name that is a file and a link to the target by turns, as fast as possible."""
    write("swap")
    os.symlink(target, "other")
    libc = ctypes.CDLL(None, use_errno=True)
    number = 316 if os.uname().machine == "x86_64" else 276
    arguments = [ctypes.c_long(number), ctypes.c_long(-100), b"swap", ctypes.c_long(-100), b"other", ctypes.c_long(2)]
    ready()
    while True:
        libc.syscall(*arguments)


def protected() -> None:
    for path in PROTECTED:
        write(path)
    write("ordinary.txt")
    ready()


def slip() -> None:
    """A directory in place of the project's link to the outside, and files that must not arrive as they are."""
    os.unlink("out")
    os.mkdir("out")
    write("out/evil")
    os.symlink("/etc/passwd", "outward")
    os.symlink("../../../../etc", "upward")
    write("program")
    with contextlib.suppress(PermissionError):  # refused by the sandbox; without it, the commit must
        os.chmod("program", 0o6755)
    ready()


def special() -> None:
    os.mkfifo("fifo")
    write("ordinary.txt")
    ready()
    wait()


def names() -> None:
    for name in FORGED:
        write(name)
    ready()


def show(path: str) -> None:
    ready()
    with contextlib.suppress(OSError), open(path, "rb") as file:
        os.write(1, file.read())


def storm() -> None:
    """Forks without end, and every child as well."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ready()
    while True:
        with contextlib.suppress(OSError):
            os.fork()


def daemon(stay: str) -> None:
    """A grandchild in a session of its own without any descriptor of ours; we stay or leave it alone."""
    read, written = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_IGN)
            os.chdir("/")
            os.write(written, b"x")
            os.closerange(0, 64)
            while True:
                time.sleep(1)
        os._exit(0)
    os.wait()
    os.read(read, 1)
    ready()
    if stay == "stay":
        wait()


def flood(address: str, port: str, count: str, hands: str) -> None:
    """So many connections as fast as possible; then it holds them, drips bytes into them and goes on opening more.

    Some say nothing, others begin a request of every protocol there is and never end it. With several hands, because
    a full backlog makes each wait.
    """
    read, written = os.pipe()
    for _ in range(int(hands)):
        if os.fork() == 0:
            _drip((address, int(port)), int(count) // int(hands), written)
    for _ in range(int(hands)):
        os.read(read, 1)
    ready()
    wait()


def _drip(place: tuple[str, int], count: int, done: int) -> None:
    words = (b"", b"GET http://granted.test/ HTTP/1.1\r\nX: ", b"CONNECT g", b"\x05", b"\x05\x01\0\x05\x01\0\x03\xff")
    held: list[socket.socket] = []
    for turn in itertools.count(1):
        try:
            sock = socket.create_connection(place, timeout=5)
            held.append(sock)
            sock.setblocking(False)
            sock.send(words[turn % len(words)])
        except OSError:  # no descriptor is left: most of the later ones were turned away already
            while len(held) > 300:
                held.pop().close()
        if held:
            with contextlib.suppress(OSError):
                held[turn % len(held)].send(b"x")
        if turn == count:
            os.write(done, b"x")
        if turn >= count:
            time.sleep(0.05)  # the pace of one that wants to last


def deaf() -> None:
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    ready()
    while True:
        time.sleep(1)


ACTS = {act.__name__: act for act in (links, swap, protected, slip, special, names, show, storm, daemon, flood, deaf)}

if __name__ == "__main__":
    ACTS[sys.argv[1]](*sys.argv[2:])
