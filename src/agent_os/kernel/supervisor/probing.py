"""Looks into a running agent: whether a command succeeds beside it, and whether anything listens on a port of it.

In: the agent's process, a command or a port, and how long it may take. Out: whether, and if not, why in a sentence. The
command runs in the agent's own confinement, started by its init; what comes back from there is an agent's word. A port
is not connected to: a server that takes one connection would be kept busy by us.
"""

import asyncio
import signal
from collections.abc import Sequence

from agent_os.kernel import members
from agent_os.kernel.supervisor.health import Seen
from agent_os.sandbox.beside import End
from agent_os.sandbox.spawner import Process

_LISTENS = "0A"


class Prober:
    """Of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def succeeds(self, argv: Sequence[str], seconds: float) -> Seen:
        """Out of time or cancelled, it is ended."""
        if self._process.commands is None:
            return Seen(False, "it cannot be asked")
        try:
            command = self._process.commands.start(argv)
        except OSError as problem:
            return Seen(False, f"it cannot be asked any more: {problem.strerror}")
        try:
            async with asyncio.timeout(seconds):
                return _result(argv[0], await command.wait())
        except TimeoutError:
            return Seen(False, f"{argv[0]} took longer than {seconds:g} s")
        finally:
            command.signal(signal.SIGKILL)

    def listens(self, port: int) -> Seen:
        """As its own network sees it."""
        init = None if self._process.exited.done() else members.pid_of(self._process.pidfd)
        if init is None:
            return Seen(False, "it has ended")
        for table in ("tcp", "tcp6"):
            if port in _listening(f"/proc/{init}/net/{table}"):
                return Seen(True)
        return Seen(False, f"nothing listens on its port {port}")


def _result(command: str, end: End) -> Seen:
    if end.code == 0:
        return Seen(True)
    if end.lost:
        return Seen(False, "it has ended")
    if end.why:
        return Seen(False, f"{command} could not be started: {end.why}")
    return Seen(False, f"{command} ended {'in a way that it does not tell' if end.code is None else end.code}")


def _listening(path: str) -> set[int]:
    """Ports. The lines are Linux's own, and an agent can make many of them."""
    found: set[int] = set()
    try:
        with open(path) as lines:
            next(lines, None)
            for line in lines:
                _, local, _, state, *_ = line.split(maxsplit=4)
                if state == _LISTENS:
                    found.add(int(local.rpartition(":")[2], 16))
    except (OSError, ValueError):
        return found
    return found
