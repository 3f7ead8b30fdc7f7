"""What talks to the measured kernel: one process that holds the other ends of its agents' sockets.

`drive` keeps every agent asking as fast as it is answered; `lone` asks one call after the other and takes each time.
"""

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from socket import socket, socketpair
from typing import Any

from agent_os.abi import frames
from agent_os.abi.frames import Call, Error, Hello, Splitter

RECEIVED = 1 << 16  # bytes at once; more is mapped and unmapped by each call
ROOT = Path(__file__).resolve().parent.parent
NOW = frames.encode(Call(1, 28))
READ = frames.encode(Call(1, 1, frames.body({"path": "/mem/working/x"})))
WRITE = frames.encode(Call(1, 2, frames.body({"path": "/mem/working/x", "data": "y" * 100})))
WORK = frames.encode(Call(1, 2, frames.body({"path": "/work/x", "data": "y" * 100})))


class Side:
    """A started `kernel_side.py` and our ends of its sockets, greeted."""

    def __init__(self, mode: str, home: Path | None = None, agents: int = 1, **more: Any) -> None:
        pairs = [socketpair() for _ in range(agents)]
        theirs = [end.fileno() for end, _ in pairs]
        order = {"mode": mode, "home": str(home) if home else None, "fds": theirs, **more}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kernel_side", json.dumps(order)],
            cwd=ROOT,
            pass_fds=theirs,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for end, _ in pairs:
            end.close()
        self.socks = [end for _, end in pairs]
        for sock in self.socks:
            sock.sendall(frames.encode(Hello(frames.ABI_MIN, frames.ABI_MAX)))
        if self._line().strip() != "ready":
            raise RuntimeError(f"{mode} did not start")
        for sock in self.socks:
            sock.recv(RECEIVED)

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def ask(self, line: str = "about") -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for sock in self.socks:
            sock.close()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)
        for sock in self.socks:
            sock.close()


def drive(socks: Sequence[socket], frame: bytes, seconds: float, batch: int = 1) -> float:
    """Answers per second. Each agent sends `batch` calls at once, and the next ones when all are answered."""
    poll = select.epoll()
    peers = {sock.fileno(): (sock, Splitter()) for sock in socks}
    message = numbered(frame, batch)
    waiting = dict.fromkeys(peers, batch)
    for number, (sock, _) in peers.items():
        poll.register(number, select.EPOLLIN)
        sock.sendall(message)
    answered, began = 0, time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        for number, _ in poll.poll(0.1):
            sock, splitter = peers[number]
            found = len(splitter.feed(sock.recv(RECEIVED)))
            answered += found
            waiting[number] -= found
            if not waiting[number]:
                waiting[number] = batch
                sock.sendall(message)
    rate = answered / (now - began)
    while any(left for left in waiting.values()):  # nothing is left in the sockets for whoever comes next
        for number, _ in poll.poll(5):
            sock, splitter = peers[number]
            waiting[number] -= len(splitter.feed(sock.recv(RECEIVED)))
    poll.close()
    return rate


def numbered(frame: bytes, batch: int) -> bytes:
    """The same call `batch` times, with different ids."""
    calls = [frames.decode_from_agent(frame[4:]) for _ in range(batch)]
    for number, call in enumerate(calls, 1):
        assert isinstance(call, Call)
        call.id = number
    return b"".join(frames.encode(call) for call in calls if call)


def lone(sock: socket, calls: Iterable[bytes]) -> list[float]:
    """µs of each call. A refusal ends it: a benchmark of errors would be fast."""
    took: list[float] = []
    splitter, found = Splitter(), list[bytes]()
    for call in calls:
        began = time.perf_counter()
        sock.sendall(call)
        while not (found := splitter.feed(sock.recv(RECEIVED))):
            pass
        took.append((time.perf_counter() - began) * 1e6)
        answer = frames.decode_from_kernel(found[-1])
        if isinstance(answer, Error):
            raise RuntimeError(f"the call was refused: {answer.reason}")
    return took
