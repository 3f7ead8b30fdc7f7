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
