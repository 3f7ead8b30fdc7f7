"""SIGPOLICY end to end: a rule in strict mode ends a real agent with all it started, which stays out until released."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
POLICY = """
version = 1
default = "capability"
mode = "strict"

[[rule]]
id = "no-env"
effect = "forbid"
what = ["file:/work/**/.env:read", "file:/work/.env:read"]
reason = "Secrets live in the secret store."

[[rule]]
id = "gone-far-enough"
effect = "ask"
what = ["file:/work/ready:write"]
"""
BURGLAR = """
import subprocess, sys
from agent_os import agent

@agent
async def burglar(ctx):
    for _ in range(3):  # also from a session of its own it is part of the tree
        code = "import os, time; os.setsid(); time.sleep(3600)  # MARK"
        subprocess.Popen([sys.executable, "-c", code])
    await ctx.write("/work/ready", "1")
    await ctx.read("/work/.env")
    await ctx.write("/work/after", "1")
    return "away"
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    made.home.mkdir(mode=0o700)
    (made.home / "policy.toml").write_text(POLICY)
    (made.project / ".env").write_text("TOKEN=1")
    (made.project / "burglar.py").write_text(BURGLAR.replace("MARK", str(tmp_path)))
    made.up()
    yield made
    made.ask("down")


def alive(mark: str) -> int:
    """How many processes have it in their command line, whichever namespace they live in."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += mark.encode() in entry.read_bytes()
    return found


def test_a_violation_ends_the_whole_tree_and_keeps_it_out_until_an_operator_releases_it(
    desk: Desk, tmp_path: Path
) -> None:
    desk.good("run", "--detach", "--name", "burglar", "burglar.py:burglar")
    until(lambda: alive(f"# {tmp_path}") == 3 and "q-1" in desk.good("approvals").out)
    assert "file:/work" in desk.good("cap", "ls").out
    desk.good("approve", "q-1")
    ended = desk.ask("wait", "burglar", "--json")
    assert ended.code != 0
    assert "no-env" in ended.json["reason"]
    assert alive(f"# {tmp_path}") == 0
    assert desk.good("cap", "ls", "--json").json["capabilities"] == []
    kinds = desk.good("events", "--agent", "burglar").out
    assert "SIGPOLICY" in kinds
    assert "/work/after" not in kinds
    (row,) = [line.split() for line in desk.good("ps", "--all").out.splitlines() if line.startswith("burglar")]
    assert row[2] == "quarantined"
    assert desk.good("ps", "--all", "--state", "quarantined", "-o", "name").out.split() == ["burglar"]
    told = desk.good("inspect", "burglar").out
    assert "quarantined (SIGPOLICY: no-env" in told
    assert "agentctl release burglar" in told
    refused = desk.ask("run", "--name", "burglar", "burglar.py:burglar")
    assert refused.code != 0
    assert "quarantined" in refused.err
    desk.kill_kernel()
    desk.up()
    assert "quarantined" in desk.ask("run", "--name", "burglar", "burglar.py:burglar").err
    assert desk.good("status", "--json").json["quarantined"] == ["burglar"]
    desk.good("release", "burglar")
    desk.good("discard", "burglar", "--yes")
    (desk.project / "burglar.py").write_text("from agent_os import agent\n\n@agent\nasync def burglar(ctx): return 3\n")
    again = desk.ask("run", "--name", "burglar", "burglar.py:burglar")
    assert "quarantined" not in again.err, again
    assert desk.ask("wait", "burglar", "--json").json["result"] == 3
    assert desk.good("audit", "verify").code == 0


def test_in_enforce_mode_it_is_refused_and_goes_on(desk: Desk, tmp_path: Path) -> None:
    """The control: nothing but the mode is another."""
    desk.good("down")
    (desk.home / "policy.toml").write_text(POLICY.replace("strict", "enforce"))
    desk.up()
    softer = BURGLAR.replace('await ctx.read("/work/.env")', "await tried(ctx)").replace("MARK", str(tmp_path))
    tried = "\n\nasync def tried(ctx):\n    try:\n        await ctx.read('/work/.env')\n    except Exception as no:\n"
    (desk.project / "burglar.py").write_text(softer + tried + "        print(no)\n")
    desk.good("run", "--detach", "--name", "burglar", "burglar.py:burglar")
    until(lambda: "q-1" in desk.good("approvals").out)
    desk.good("approve", "q-1")
    assert desk.good("wait", "burglar", "--json").json["result"] == "away"
    assert "EPOLICY" in desk.good("logs", "burglar").out
