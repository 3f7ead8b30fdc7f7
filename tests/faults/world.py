"""A world in which kernels are killed: one home over many lives, and what must hold of it in the end."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from agent_os.client.verify import verify
from faults.ledger import ONCE, Ledger
from journals import database, opened, public_key

SCRIPT = Path(__file__).with_name("kernel_process.py")
PATIENCE = 60.0  # seconds; a safety limit, never a measure
SOAK = bool(os.environ.get("AGENT_OS_SOAK"))
JOURNAL_POINTS = ("queued", "begun", "before_commit", "after_commit", "before_callbacks")
GATE_POINTS = ("before_act", "after_act")
# The operator vouches for these programs and their files: else every effect of theirs would wait for a person, since a
# program in a project that nobody knows is tainted from its first moment.
VOUCHED = """
version = 1
default = "capability"

[[source]]
what = ["file:/**:read,write,delete", "mem:/**:read,write,delete", "tool:*:call"]
integrity = "trusted"
"""


class World:
    def __init__(self, home: Path, program: str = "effects", *, broken: str | None = None, **env: object) -> None:
        self.home, self.program, self.broken = home, program, broken
        home.mkdir(exist_ok=True, mode=0o700)
        (home / "policy.toml").write_text(VOUCHED)
        self.env = {"ACKS": str(home / "acks"), **{name: str(value) for name, value in env.items()}}
        self.ledger = Ledger(home / "ledger")
        self.lasts = 0.001  # seconds that an effect takes
        self.kills = 0

    def boot(self, point: str = "", at: int = 1) -> "subprocess.Popen[bytes]":
        """A kernel that has begun to boot."""
        plan = {
            "point": point,
            "at": at,
            "broken": self.broken,
            "program": self.program,
            "env": self.env,
            "lasts": self.lasts,
        }
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "FAULTS": json.dumps(plan)}
        kernel = subprocess.Popen([sys.executable, SCRIPT, self.home], env=env, stdout=subprocess.PIPE)
        assert kernel.stdout
        assert kernel.stdout.readline() == b"booting\n"
        return kernel

    def run(self, point: str = "", at: int = 1) -> int:
        """Boot and wait; how the kernel ended."""
        with self.boot(point, at) as kernel:
            try:
                code = kernel.wait(PATIENCE)
            finally:
                kernel.kill()
        self.kills += code == -signal.SIGKILL
        return code

    def strike(self, most: float, rng: random.Random) -> int:
        """Boot, and kill at some instant; how the kernel ended."""
        with self.boot() as kernel:
            try:
                code = kernel.wait(rng.uniform(0, most))
            except subprocess.TimeoutExpired:
                kernel.kill()
                code = kernel.wait(PATIENCE)
        self.kills += code == -signal.SIGKILL
        return code

    def noted(self, file: str) -> list[str]:
        path = self.home / file
        return path.read_text().splitlines() if path.exists() else []

    def acks(self) -> dict[str, set[str]]:
        """What the program was told, over all its lives."""
        told: dict[str, set[str]] = defaultdict(set)
        for line in self.noted("acks"):
            name, value = line.split()
            told[name].add(value)
        return told

    def result(self) -> Any:
        return json.loads(self.noted("result")[-1])

    def problems(self) -> list[str]:
        """What is not as promised: nothing acknowledged lost, nothing twice unless idempotent, a journal that verifies,
        and nothing left open."""
        counts, told = self.ledger.counts(), self.acks()
        found = [f"{name} was told twice, differently" for name, values in told.items() if len(values) > 1]
        for name in told:
            kind = name.partition(":")[0]
            if kind in (*ONCE, "idempotent", "pure") and not counts[name]:
                found.append(f"{name} was acknowledged and is not in the ledger")
        found += [f"{name} ran {n} times" for name, n in counts.items() if name.partition(":")[0] in ONCE and n > 1]
        found += self.noted("failed")
        report = verify(database(self.home), key=public_key(self.home), anchor=self.home / "anchor/heads")
        found += [f"journal: {finding.what}" for finding in report.findings]
        with opened(self.home) as journal:
            found += [f"entry {entry.seq} is still open" for entry, _ in journal.open_intents()]
        return found


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.005)
