"""A project below the host's /work, which is also what every project is called inside: both names lead to it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.desk import Desk

pytestmark = pytest.mark.integration
TOP = Path("/work")
PARENT = """
from agent_os import agent

@agent
async def child(ctx, word: str) -> str:
    return word.upper()

@agent
async def parent(ctx):
    (found := open("made.txt", "w")).write("by its process"), found.close()
    by_host = await ctx.wait(await ctx.spawn(f"{__file__}:child", "host"))
    by_work = await ctx.wait(await ctx.spawn("/work/parent.py:child", "work"))
    told = await ctx.call("shell.execute", argv=["cat", "made.txt"], cwd="/work")
    inner = await ctx.call("shell.execute", argv=["/work/run.sh"], cwd="/work/inner")
    try:
        await ctx.call("shell.execute", argv=["ls"], cwd="/work/none")
    except Exception as refused:
        nowhere = refused.code
    read = await ctx.read("/work/made.txt", text=True)
    print([by_host.result, by_work.result, told["stdout"], inner["stdout"], nowhere, read])
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = not TOP.exists()
    if not os.access(TOP.parent if made else TOP, os.W_OK):
        pytest.skip("only who may write to the host's /work can have a project there")
    TOP.mkdir(exist_ok=True)
    project = Path(tempfile.mkdtemp(prefix="agent-os-test-", dir=TOP))
    try:
        desk = Desk(tmp_path)
        desk.project = project
        yield desk
    finally:
        shutil.rmtree(project)
        if made:
            TOP.rmdir()


def test_children_tools_and_files_find_it(desk: Desk) -> None:
    (desk.project / "parent.py").write_text(PARENT)
    (desk.project / "inner").mkdir()
    (desk.project / "run.sh").write_text("#!/bin/sh\nbasename $PWD\n")
    (desk.project / "run.sh").chmod(0o755)
    held = ("agent:spawn", "tool:shell.execute:call", "shell:execute")
    rights = [word for one in held for word in ("--cap", one)]
    said = desk.good("run", "-q", *rights, "parent.py:parent")
    assert "['HOST', 'WORK', 'by its process', 'inner\\n', 'shell.cwd', 'by its process']" in said.out, said
