"""`agentctl up`, `down`, `status`: what they say of the kernel."""

import re
from pathlib import Path

import pytest

from cli.desk import Desk

pytestmark = pytest.mark.integration


def test_up_says_where_the_kernel_is_and_what_isolation_agents_get(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    try:
        said = desk.good("up", "--detach").out
        assert re.search(r"^ok +kernel +\S+ +pid \d+ ", said, re.MULTILINE)
        assert re.search(r"^(ok|warn) +isolation +S[1-4] of S4: .*namespaces", said, re.MULTILINE), said
    finally:
        desk.down()


def test_up_boots_the_operators_manifests_and_names_those_that_it_left_out(tmp_path: Path) -> None:
    desk, folder = Desk(tmp_path), tmp_path / "agents"
    desk.env["AGENT_OS_AGENTS"] = str(folder)
    folder.mkdir()
    program = "[program]\nargv = ['sleep', '1000']\n"
    (folder / "good.agent.toml").write_text(f"name = 'good'\nrole = 'worker'\n{program}")
    (folder / "bad.agent.toml").write_text(f"name = 'bad'\nrole = 'workr'\n{program}")
    try:
        said = desk.good("up", "--detach").out
        assert re.search(r"^ok +agents +1 declared$", said, re.MULTILINE), said
        assert re.search(r"^warn +agents +left out: \S+/bad\.agent\.toml:2: role: .*worker", said, re.MULTILINE), said
        assert desk.ask("wait", "good", "--for", "ready").code == 0
        assert "bad.agent.toml:2" in desk.good("status").out
    finally:
        desk.down()
