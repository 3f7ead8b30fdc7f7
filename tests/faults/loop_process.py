"""The real daemon, struck at one moment of a model's run: `loop_process.py HOME --socket SOCKET --ready-fd FD`.

STRIKE is `kernel:WHAT:N` or `agent:WHAT:N`: at the N-th event of that kind, in the moment in which its entry is on disk
and its answer has not left, the kernel dies by SIGKILL, or the agent does. It strikes once in a home.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from agent_os.daemon import process as daemon
from agent_os.kernel import syscalls
from agent_os.kernel.calls import Act
from agent_os.kernel.running import Run

HOME, EVENT = Path(sys.argv[1]), 41
WHOM, WHAT, NUMBER = os.environ["STRIKE"].split(":")
STRUCK = HOME.parent / "struck"
prepare = syscalls.PREPARE[EVENT]
seen = 0


def struck(kernel: Any, agent: Any, asked: Any) -> Act:
    global seen
    act = prepare(kernel, agent, asked)
    seen += asked.request.kind == WHAT
    if asked.request.kind == WHAT and seen == int(NUMBER) and not STRUCK.exists():
        act.answered = lambda: strike(agent)
    return act


def strike(agent: Any) -> None:
    STRUCK.touch()
    if WHOM == "kernel":
        os.kill(os.getpid(), signal.SIGKILL)
    assert isinstance(agent.running, Run)
    agent.running.guest.process.strike()


syscalls.PREPARE[EVENT] = struck
sys.exit(daemon.main(["--home", *sys.argv[1:]]))
