"""Rows 1 and 2 of the fault table as an author meets them: `agentctl run FILE.py:NAME`, and kill -9 of the kernel or of
the launcher behind it. The command goes on as if nothing had been; every step is there, and there once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import leftovers
from agent_os.abi.entries import Kind
from agent_os.abi.states import ExitClass
from agent_os.kernel.recorded import decode_any
from cli.desk import Desk
from faults.world import wait_until
from journals import opened

pytestmark = pytest.mark.integration

STEPS = 12
WORKER = f"""
import os
from agent_os import agent

@agent
async def worker(ctx):
    for step in range({STEPS}):
        await ctx.append("/work/log", f"{{step}}\\n")
        note(f"{{ctx.incarnation}} {{step}}")
        await ctx.sleep(0.1)
    note("read " + (await ctx.read("/work/log", text=True)).replace("\\n", ","))

def note(text):
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\\n")
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    leftovers.adopt_orphans()
    before = set(leftovers.processes())
    desk = Desk(tmp_path)
    (desk.project / "worker.py").write_text(WORKER)
    (tmp_path / "notes").mkdir()
    yield desk
    assert leftovers.becomes_true(lambda: set(leftovers.processes()) <= before, 60), leftovers.processes()


def noted(desk: Desk) -> list[str]:
    notes = desk.home.parent / "notes" / "notes"
    return notes.read_text().splitlines() if notes.exists() else []


def killed_under(desk: Desk, part: str) -> int:
    """How the command ended under which a part was killed when it was half done."""
    notes = desk.home.parent / "notes"
    run = desk.follow("run", "--mount", f"rw:{notes}", "--env", f"NOTES={notes}/notes", "worker.py:worker")
    wait_until(lambda: len(noted(desk)) >= STEPS // 2, "half of the work")
    kernel = int((desk.home / "lock").read_text())
    family = [kernel]
    while children := Path(f"/proc/{family[-1]}/task/{family[-1]}/children").read_text().split():
        family.append(int(children[0]))  # kernel, starter, holder, launcher, agent
    os.kill(family[{"kernel": 0, "launcher": 3}[part]], signal.SIGKILL)
    with run:
        return run.wait(120)


@pytest.mark.parametrize("part", ["kernel", "launcher"])
def test_a_run_goes_on_whatever_is_killed_under_it(desk: Desk, part: str) -> None:
    assert killed_under(desk, part) == 0
    *steps, last = noted(desk)
    assert last == f"read {''.join(f'{n},' for n in range(STEPS))}"
    assert {line.split()[0] for line in steps} == {"1", "2"}, "it lived twice"
    with opened(desk.home) as journal:
        kept = [(entry.kind, body) for entry, body in journal.scan()]
    ends = [decode_any(body)["class"] for kind, body in kept if kind == Kind.EXIT and body]
    assert [kind for kind, _ in kept].count(Kind.BOOT) == (2 if part == "kernel" else 1)
    assert ends == ([ExitClass.NORMAL] if part == "kernel" else [ExitClass.LOST, ExitClass.NORMAL])
