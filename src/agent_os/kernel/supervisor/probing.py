"""Looks into a running agent: whether a command succeeds beside it, and whether anything listens on a port of it.

In: the agent's process, a command or a port, and how long it may take. Out: whether, and if not, why in a sentence. The
command runs in the agent's own confinement, started by its init; what comes back from there is an agent's word. A port
is not connected to: a server that takes one connection would be kept busy by us.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

from agent_os.kernel import members
from agent_os.kernel.supervisor.health import Seen
from agent_os.sandbox.spawner import Process

_LARGEST = 4096  # bytes of an answer
_LISTENS = "0A"
_COULD_NOT_START = 125


class Prober:
    """Of one process. One command at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._number = 0

    async def succeeds(self, argv: Sequence[str], seconds: float) -> Seen:
        """Out of time or cancelled, it is ended."""
        asked = self._process.probes
        if asked is None or asked.fileno() < 0:
            return Seen(False, "it cannot be asked any more")
        self._number += 1
        number, loop = self._number, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(asked, _said({"run": number, "argv": list(argv)}))
                while True:
                    ended = _read(await loop.sock_recv(asked, _LARGEST))
                    if ended.get("ended") == number:  # else of one that was given up
                        return _result(argv[0], ended)
        except TimeoutError:
            return Seen(False, f"{argv[0]} took longer than {seconds:g} s")
        except OSError as problem:
            return Seen(False, f"it cannot be asked any more: {problem.strerror}")
        finally:
            self._end(number)

    def _end(self, number: int) -> None:
        """What has ended by itself is not hurt by that."""
        try:
            if self._process.probes and self._process.probes.fileno() >= 0:
                self._process.probes.send(_said({"end": number}))
        except OSError:
            return

    def listens(self, port: int) -> Seen:
        """As its own network sees it."""
        init = None if self._process.exited.done() else members.pid_of(self._process.pidfd)
        if init is None:
            return Seen(False, "it has ended")
        for table in ("tcp", "tcp6"):
            if port in _listening(f"/proc/{init}/net/{table}"):
                return Seen(True)
        return Seen(False, f"nothing listens on its port {port}")


def _said(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode()


def _read(message: bytes) -> dict[str, Any]:
    if not message:
        raise OSError(0, "its init has ended")
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _result(command: str, ended: dict[str, Any]) -> Seen:
    code = ended.get("code")
    if code == 0:
        return Seen(True)
    if code == _COULD_NOT_START and isinstance(ended.get("why"), str):
        return Seen(False, f"{command} could not be started: {ended['why'][:200]}")
    return Seen(False, f"{command} ended {code if isinstance(code, int) else 'in a way that it does not tell'}")


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
