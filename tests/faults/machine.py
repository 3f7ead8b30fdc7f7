"""A machine on which the real daemon runs sandboxed agents, and is killed: one home over many lives of the kernel."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import leftovers
from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EHOSTUNREACH, EPIPE, ESRCH
from agent_os.client.wire import Client, connect
from faults.world import PATIENCE, World

HERE = Path(__file__).parent
CAPS = ["tool:*:call", "agent:*:spawn"]
_NOTES = ("ledger", "hits", "parked", "result", "failed", "lost", "daemon.log", "policy.toml")  # the test's own


class Machine(World):
    """`program` is an agent of `authored.py`; it is called `w`."""

    def __init__(self, top: Path, program: str = "effects", *, broken: str | None = None, **env: object) -> None:
        leftovers.adopt_orphans()
        self._before = leftovers.processes()
        super().__init__(top / "home", program, broken=broken, **env)
        self.project, self.notes = top / "project", top / "notes"
        for folder in (self.project, self.notes):
            folder.mkdir(exist_ok=True)
        for file in ("authored.py", "programs.py"):
            shutil.copy(HERE / file, self.project)
        self.env["ACKS"] = str(self.notes / "acks")
        self.more: dict[str, Any] = {}  # of the plan
        self.kernels: list[int] = []  # pids of those that were killed
        self.said: dict[str, Any] = {}  # what the daemon said when it was ready, or was not

    @property
    def socket(self) -> Path:
        return self.home / "run" / "k"

    def boot(self, point: str = "", at: int = 1) -> "subprocess.Popen[bytes]":
        """A daemon that serves, or has died or refused on the way."""
        plan = {"point": point, "at": at, "broken": self.broken, "lasts": self.lasts, **self.more}
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "FAULTS": json.dumps(plan)}
        ready, telling = os.pipe()
        command = [sys.executable, HERE / "daemon_process.py", self.home, self.socket, str(telling)]
        with (self.home / "daemon.log").open("ab") as log:
            kernel = subprocess.Popen(command, env=env, pass_fds=[telling], stdout=log, stderr=log)
        os.close(telling)
        with open(ready, "rb") as told:
            self.said = json.loads(told.read() or b"{}")
        return kernel

    def live(self, point: str = "", at: int = 1, after: float | None = None) -> int:
        """One life of a kernel: until it dies at the point, is killed after so many seconds, or its agent has ended.
        How the kernel ended. Nothing of it is left when this returns."""
        with self.boot(point, at) as kernel:
            strike = Timer(after or 0, kernel.kill)  # under its client, who must not give up a moment before
            try:
                if after is not None:
                    strike.start()
                asyncio.run(self._to_the_end())
                code = kernel.wait(PATIENCE)
            finally:
                strike.cancel()
                kernel.kill()
        self.kills += code == -signal.SIGKILL
        self.kernels.append(kernel.pid)
        assert leftovers.becomes_true(lambda: not self.processes(), PATIENCE), self.processes()
        return code

    def processes(self) -> dict[int, str]:
        """Of kernels, launchers and agents; whatever else this test process has started is not ours to count."""
        return {pid: line for pid, line in leftovers.processes().items() if pid not in self._before}

    def order(self) -> dict[str, Any]:
        shown = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {
            "file": str(self.project / "authored.py"),
            "function": self.program,
            "python": sys.executable,
            "cwd": str(self.project),
            "environment": shown,
            "env": [f"{name}={value}" for name, value in self.env.items()],
            "mounts": [f"rw:{self.notes}"],
            "name": "w",
            "caps": CAPS,
        }

    async def _to_the_end(self) -> None:
        """Start the agent, unless it is there; wait for its end; stop the daemon. Or until the daemon is gone."""
        with suppress(EPIPE, EHOSTUNREACH):
            async with connect(self.socket) as client:
                ended = await self._ended(client)
                self._note("result", json.dumps(ended["result"], default=str))
                if ended["state"] != "completed":
                    self._note("failed", json.dumps(ended, default=str))
                await client.call(abi.Down(grace_s=0))
                await client.ended()

    async def _one_more(self) -> None:
        async with connect(self.socket) as client:
            order = self.order() | {"name": "last", "after": "discard", "caps": []}
            await client.call(abi.Run(order=order, detach=True))
            await client.call(abi.Await(agent="last"))
            await client.call(abi.Down(grace_s=0))

    async def _ended(self, client: Client) -> dict[str, Any]:
        try:
            return await client.call(abi.Await(agent="w"))
        except ESRCH:
            await client.call(abi.Run(order=self.order(), detach=True))
            return await client.call(abi.Await(agent="w"))

    def _note(self, file: str, text: str) -> None:
        with (self.home / file).open("a") as told:
            told.write(f"{text}\n")

    def noted(self, file: str) -> list[str]:
        path = (self.notes if file == "acks" else self.home) / file
        return path.read_text().splitlines() if path.exists() else []

    def left_behind(self) -> list[str]:
        """What is there of kernels that were killed, after another one has come, started an agent, and gone."""
        program, acks = self.program, self.env["ACKS"]
        self.program, self.env["ACKS"] = "effects", str(self.notes / "last")
        with self.boot() as kernel:
            asyncio.run(self._one_more())
            assert kernel.wait(PATIENCE) == 0
        self.program, self.env["ACKS"] = program, acks
        groups = [group for pid in self.kernels for group in leftovers.cgroups(pid)]
        return groups + [name for name in leftovers.files(self.home) if name not in _NOTES]


def lines(steps: int) -> dict[str, str]:
    """What `effects` and `keeps` have written in the end: every step, and each once."""
    text = "".join(f"{n}\n" for n in range(steps))
    return {"mem": text, "work": text}
