"""An operator's desk: agentctl as real processes, with a home and a project of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AGENTCTL = [sys.executable, "-m", "agent_os.cli.main"]
SECONDS = 180  # a safety limit, never a measure: a busy machine takes long for a command
AGENT = """
from agent_os import agent

@agent
async def worker(ctx):
    await ctx.write("/mem/working/note", "hello")
    try:
        await ctx.write("/mem/episodic/note", "no")
    except Exception as refused:
        print(refused)
    await ctx.write("/work/out.txt", "\\x1b[2Jdone")
    await ctx.sleep(SECONDS)
    return 7
"""


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.err)["error"]


class Desk:
    def __init__(self, top: Path) -> None:
        self.home, self.project = top / "home", top / "project"
        self.project.mkdir(parents=True)
        passed = ("PATH", "HOME", "LANG", "PYTHONPATH", "AGENT_OS_IDLE_EXIT")
        kept = {name: os.environ[name] for name in passed if name in os.environ}
        self.env = {**kept, "AGENT_OS_HOME": str(self.home), "NO_COLOR": "1"}

    def ask(self, *words: str | Path) -> Said:
        command = [*AGENTCTL, *map(str, words)]
        ran = subprocess.run(
            command, env=self.env, cwd=self.project, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return Said(ran.returncode, ran.stdout, ran.stderr)

    def follow(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*AGENTCTL, *words], env=self.env, cwd=self.project, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def good(self, *words: str | Path) -> Said:
        said = self.ask(*words)
        assert said.code == 0, said
        return said

    def up(self) -> None:
        self.good("up", "--detach", "--no-ui")

    def down(self) -> None:
        self.good("down")

    def start(self, name: str, *, seconds: float = 3600) -> None:
        """An agent that has done what it does, and now sleeps."""
        (self.project / "worker.py").write_text(AGENT.replace("SECONDS", str(seconds)))
        self.good("run", "--detach", "--name", name, "worker.py:worker")
        until(lambda: "SYS_SLEEP" in self.ask("events", "--agent", name).out)

    def kill_kernel(self) -> None:
        """kill -9, in the middle of whatever it does."""
        pid = self.good("status", "--json").json["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: ended(pid))

    @property
    def journal(self) -> Path:
        return self.home / "journal.db"


def ended(pid: int) -> bool:
    """A zombie does nothing any more; it waits for somebody to take note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.2)  # each look is a command of its own
