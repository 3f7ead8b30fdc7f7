"""Where the demo plays: copies of its folders, what the burglar is after, and agentctl as a person would use it."""

import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
BESIDE = ("fleet", "code", "research", "trading")  # examples that the demo shows as they are
STAGE = HERE.parent.parent / ".cache" / "demo"
AGENTCTL = [sys.executable, "-m", "agent_os.cli.main"]
NOTES = {f"notes/{number}.txt": f"note number {number}\n" for number in (1, 2, 3)}
_DROP = "http://drop.example/drop"
_SCRIPTS = shutil.ignore_patterns("run.py", "stage.py", "thinkers.py", "__pycache__")


class NotShown(Exception):
    """An agent did not end as it must."""


@contextmanager
def alone() -> Iterator[None]:
    """One demo at a time has the stage. All folders are copied there: what agents change is no example any more."""
    STAGE.parent.mkdir(exist_ok=True)
    with (STAGE.parent / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("the demo runs already, in another terminal")
        shutil.rmtree(STAGE, ignore_errors=True)
        shutil.copytree(HERE, STAGE, ignore=_SCRIPTS)
        for example in BESIDE:
            shutil.copytree(HERE.parent / example, STAGE / example, ignore=_SCRIPTS)
        write(STAGE / "guest", NOTES)
        write(STAGE / "deployer", {"data/orders": "a thousand orders\n"})
        yield


class Targets:
    """What the burglar is after. All of it belongs to the demo."""

    def __init__(self, listener: socket.socket, box: int, left: list[bytes]) -> None:
        self.listener, self.box, self.left = listener, box, left
        self.neighbour = subprocess.Popen(["sleep", "600"])
        self.outside = STAGE / "outside"
        self.outside.mkdir()
        secret = STAGE / "secret.txt"
        secret.write_text("the vault code is 4711\n")
        secret.chmod(0o600)
        port = listener.getsockname()[1]
        told = [str(secret), port, self.neighbour.pid, str(self.outside), _DROP]
        write(STAGE / "burglar", {"targets.json": json.dumps(told)})


@contextmanager
def targets() -> Iterator[Targets]:
    with socket.create_server(("127.0.0.1", 0)) as listener, dropbox() as (box, left):
        listener.setblocking(False)
        found = Targets(listener, box, left)
        try:
            yield found
        finally:
            found.neighbour.kill()
            found.neighbour.wait()


@contextmanager
def dropbox() -> Iterator[tuple[int, list[bytes]]]:
    """A server that takes what is posted to it: its port, and what was left there so far."""
    left: list[bytes] = []

    class Box(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            left.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Box) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], left
        finally:
            server.shutdown()


def dialled(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def agentctl(*words: str, quiet: bool = False, together: bool = False) -> "subprocess.CompletedProcess[str]":
    """`together`: both streams as one, in the order in which a person sees them."""
    if not quiet:
        print(f"$ agentctl {shlex.join(words)}", flush=True)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT if together else subprocess.PIPE, "text": True}
    done = subprocess.run([*AGENTCTL, *words], cwd=STAGE, stdin=subprocess.DEVNULL, **streams)
    if not quiet:
        print(done.stdout + (done.stderr or ""), end="", flush=True)
    return done


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def require(true: bool, problem: str) -> None:
    if not true:
        raise NotShown(problem)


@contextmanager
def foreground() -> Iterator[None]:
    """Take the terminal for ourselves: a Ctrl-C then reaches us and not `make`, which would call it an error."""
    if not sys.stdin.isatty():
        yield
        return
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or giving the terminal back would stop us
    before = os.tcgetpgrp(0)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(0, before)
