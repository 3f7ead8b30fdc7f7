"""The record of what was decided and done: one JSON object a line, appended, never rewritten.

What is about to happen is written and synced before it happens (`before`); what happened is written after (`after`).
If it cannot be written, the error says so and the thing does not happen.
"""

import errno
import json
import os
import time
from pathlib import Path

from agent_os.abi.errors import EACCES, ENOSPC, AgentOSError

_ELSEWHERE = "AGENT_OS_HOME=/some/directory agentctl … keeps its state elsewhere"


class Records:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise self._explained(problem) from problem

    def before(self, agent: str, event: str, **facts: object) -> None:
        """An intent: on disk when this returns."""
        self._append(agent, event, facts)
        try:
            os.fdatasync(self._fd)
        except OSError as problem:
            raise self._explained(problem) from problem

    def after(self, agent: str, event: str, **facts: object) -> None:
        self._append(agent, event, facts)

    def _append(self, agent: str, event: str, facts: dict[str, object]) -> None:
        entry = {"time": round(time.time(), 6), "agent": agent, "event": event, **facts}
        line = json.dumps(entry, default=str).encode() + b"\n"
        try:
            written = os.write(self._fd, line)  # one write keeps the entries of several kernels apart
        except OSError as problem:
            raise self._explained(problem) from problem
        if written != len(line):
            raise self._explained(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def _explained(self, problem: OSError) -> AgentOSError:
        reason = f"the record {self._path} cannot be written: {problem.strerror}; nothing runs unrecorded"
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            return ENOSPC("record.full", reason, hint=f"free some room, or: {_ELSEWHERE}")
        return EACCES("record.unwritable", reason, hint=_ELSEWHERE)

    def close(self) -> None:
        os.close(self._fd)
