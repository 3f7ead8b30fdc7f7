"""Root gives each agent a uid of its own. One that goes on after its kernel was killed may find its uid taken."""

import os
from pathlib import Path

import pytest

from agent_os.sandbox.spawner import lease_uid
from cli.desk import Desk, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has uids to give to agents"),
]


def uid_of(desk: Desk) -> int:
    """Of the agent that runs."""
    found = [row["pid"] for row in desk.good("ps", "--json").json["agents"] if row["state"] == "running"]
    return os.stat(f"/proc/{found[0]}").st_uid if found else 0


def test_an_agent_goes_on_with_its_files_under_another_uid(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.up()
    desk.start("worker")
    before = uid_of(desk)
    desk.kill_kernel()
    taken = []

    def take() -> bool:
        """Once the last process of its old life has given it back."""
        lease = lease_uid(True, again=before)
        if lease.host_uid != before:
            lease.release()
            return False
        taken.append(lease)
        return True

    until(take)
    try:
        desk.up()
        until(lambda: uid_of(desk) != 0)
        assert uid_of(desk) != before
        assert "A  out.txt" in desk.good("diff", "worker").out
        own = desk.good("exec", "worker", "--", "sh", "-c", "echo more >>out.txt; cat out.txt")
        assert own.out.endswith("donemore\n")
    finally:
        taken[0].release()
        desk.down()
