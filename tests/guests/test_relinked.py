"""A place that an agent writes to becomes a link, and the agent dies: its next life is not shown where that leads.

An agent of the kernel's own lives again after a crash, by the order that it was started with. Whatever that order names
on the host is looked up once more, and one of the names may lie where the agent itself writes.
"""

from pathlib import Path

import pytest

from cli.desk import Desk

pytestmark = pytest.mark.integration
PROGRAM = """
import os
from agent_os import agent

@agent
async def mover(ctx):
    print("cache holds", sorted(os.listdir("/cache")), flush=True)
    if "private.txt" not in os.listdir("/cache") and os.path.isdir("cache") and not os.path.islink("cache"):
        os.rename("cache", "away")
        os.symlink("PRIVATE", "cache")
        os.kill(os.getpid(), 9)
    return "ended"
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    for place in (tmp_path, desk.project):
        place.chmod(0o777)
    return desk


def test_a_link_in_place_of_what_was_mounted_leads_no_next_life_anywhere(desk: Desk, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o755)
    (private / "private.txt").write_text("nobody was shown this")
    (desk.project / "cache").mkdir(mode=0o755)
    (desk.project / "cache/plain").touch()
    (desk.project / "mover.py").write_text(PROGRAM.replace("PRIVATE", str(private)))
    said = desk.ask("run", "--name", "mover", "--workspace", "bind:.", "--mount", "./cache:/cache", "mover.py:mover")
    assert "cache holds ['plain']" in said.out + said.err
    assert (desk.project / "cache").is_symlink(), "the agent could not do what is tested"
    assert "private.txt" not in said.out + said.err
    assert said.code != 0
    # The control: whoever is started by name now, and by an operator, is shown where the link leads.
    shown = desk.ask("run", "--workspace", "tmpfs", "--mount", "./cache:/cache", "--", "ls", "/cache")
    assert "private.txt" in shown.out
