"""The real daemon as a process of the test, started and killed over the same home."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent_os.abi.entries import Entry, Kind
from agent_os.client.wire import Client, connect

PLAIN = ("-m", "agent_os.daemon", "--home")


class Daemon:
    """One after the other over the same home."""

    def __init__(self, top: Path, program: Sequence[str] = PLAIN) -> None:
        """`program`: what Python runs; home, socket and descriptor follow."""
        self.home, self.socket = top / "home", top / "home/run/kernel.sock"
        self.project, self._log = top / "project", top / "daemon.log"
        self.project.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self._program = program
        self.pids: list[int] = []

    def start(self) -> None:
        ready, told = os.pipe()
        argv = [sys.executable, *self._program, self.home, "--socket", self.socket, "--ready-fd", told]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(list(map(str, argv)), pass_fds=[told], stderr=log, env=env)
        os.close(told)
        with os.fdopen(ready, "rb") as word:
            said = word.read()
        assert b"ready" in said, (said, self._log.read_text())
        self.pids.append(self.process.pid)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        async with connect(self.socket) as client:
            yield client


def together(entries: Iterable[Entry]) -> list[Entry]:
    """Lives that began before an earlier one of the same agent had ended."""
    alive, found = set[str](), list[Entry]()
    for entry in entries:
        if entry.kind == Kind.SPAWN:
            found += [entry] if entry.agent in alive else []
            alive.add(entry.agent)
        elif entry.kind == Kind.EXIT:
            alive.discard(entry.agent)
    return found
