"""The record of what was decided and done: one JSON object a line, appended, never rewritten.

What is about to happen is written and synced before it happens (`before`); what happened is written after (`after`).
"""

import json
import os
import time
from pathlib import Path


class Records:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def before(self, agent: str, event: str, **facts: object) -> None:
        """An intent: on disk when this returns."""
        self._append(agent, event, facts)
        os.fdatasync(self._fd)

    def after(self, agent: str, event: str, **facts: object) -> None:
        self._append(agent, event, facts)

    def _append(self, agent: str, event: str, facts: dict[str, object]) -> None:
        entry = {"time": round(time.time(), 6), "agent": agent, "event": event, **facts}
        line = json.dumps(entry, default=str).encode() + b"\n"
        if os.write(self._fd, line) != len(line):  # one write keeps entries of several kernels apart
            raise OSError("the record could not be written in full")

    def close(self) -> None:
        os.close(self._fd)
