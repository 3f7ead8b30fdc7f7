"""Agents as plain processes, for faults: in a kernel it stands where `Guests` starts isolated ones.

The same interface, and the same promises about what is true when a call returns. An order names a program of
`programs.py`. No sandbox, because what is tested here is what becomes of the record when a process dies.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.drivers.store import Put
from agent_os.kernel.authority import capability
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Agent, Ended

PROGRAMS = Path(__file__).with_name("programs.py")
CAPS = ("tool:*:call", "file:/work/**:read,write,delete")


class Process:
    """One process of an agent; what the table knows as `running`."""

    def __init__(self, popen: "subprocess.Popen[bytes]", ended: Callable[[int], None]) -> None:
        self._popen, self._ended = popen, ended
        self.pid = popen.pid
        self._reaped = asyncio.Event()
        self._fd = os.pidfd_open(popen.pid)
        asyncio.get_running_loop().add_reader(self._fd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        code = self._popen.wait()
        self._reaped.set()
        self._ended(code)

    async def _until(self, letters: str) -> bool:
        while not self._reaped.is_set() and _state(self.pid) not in letters:
            await asyncio.sleep(0.0005)
        return not self._reaped.is_set()

    async def freeze(self) -> bool:
        self._signal(signal.SIGSTOP)
        return await self._until("T")

    async def thaw(self) -> bool:
        self._signal(signal.SIGCONT)
        return await self._until("RSD")

    async def destroy(self) -> int:
        self._signal(signal.SIGKILL)
        await self._reaped.wait()
        return 1

    async def finish(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                await self._reaped.wait()
        except TimeoutError:
            await self.destroy()

    def host_signal(self, number: int) -> None:
        self._signal(number)

    def _signal(self, number: int) -> None:
        if not self._reaped.is_set():
            os.kill(self.pid, number)


class Processes:
    """Starts and follows them. `started` tells a test of each."""

    def __init__(self, kernel: Kernel, work: Path | None = None) -> None:
        self._kernel, self._work = kernel, work
        self.started: list[Process] = []
        self.running = 0

    async def start(
        self,
        order: dict[str, Any],
        *,
        name: str | None = None,
        parent: str | None = None,
        caps: Any = (),
        input: Any = None,
        place: Callable[[], None] = lambda: None,
        confirm: Callable[[], None] = lambda: None,
    ) -> Agent:
        kernel = self._kernel
        place()
        confirm()
        kernel.check_admission(f"default/{name}")
        agent = kernel.table.admit(name or order["program"], "native", parent=parent, isolation="none")
        agent.order = {**order, "kind": "native", "parent": parent}
        again = kernel.store.get("agents", agent.id) is not None
        for text in [] if again else [*CAPS, *caps]:
            agent.holdings.grant(capability.parse(text), "test")
        stored = Put("agents", agent.id, frames.encode_body(agent.order))
        draft = Draft(agent.id, Kind.SPAWN, agent.incarnation, body=frames.encode_body({"event": "spawn"}))
        puts = [] if again else kernel.authority.begin(agent.id, parent)
        await kernel.journal.record(draft, puts=[*kernel.table.puts(agent), stored, *puts])
        ours, theirs = socket.socketpair()
        command = [sys.executable, str(PROGRAMS), order["program"], str(theirs.fileno())]
        env = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0", **order.get("env", {})}
        popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL)
        theirs.close()
        ours.setblocking(False)
        self.running += 1
        agent.running = process = Process(popen, lambda code: self._ended(agent, code))
        agent.become(Incarnation.RUNNING)
        self.started.append(process)
        work = os.open(self._work, os.O_PATH | os.O_DIRECTORY) if self._work else None
        kernel.start(kernel.adopt(agent, ours, work))
        return agent

    async def give_up(self, agent: Agent) -> None:
        """There is nothing of it to be kept."""

    def _ended(self, agent: Agent, code: int) -> None:
        self.running -= 1
        if code < 0:
            ended = Ended(ExitClass.SIGNAL, code, f"ended by signal {-code} of the host")
        else:
            ended = Ended(ExitClass.ERROR if code else ExitClass.NORMAL, code)
        self._kernel.start(self._kernel.left(agent, ended))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid: int) -> bool:
    return _state(pid) not in "XZ"
