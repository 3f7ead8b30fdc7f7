"""How a declared agent comes and goes, seen from outside: running at READY, and gone with all that it started."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from agent_os.abi.syscalls import Inspect, ListAgents, Restart, Stop
from kernel.serving import until
from kernel.supervisor.declared import World, health, in_world, sh

pytestmark = pytest.mark.integration


def living(token: str) -> int:
    """Processes of the host that sleep for that long."""
    count = 0
    for one in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            count += Path(f"/proc/{one}/cmdline").read_bytes() == f"sleep\0{token}\0".encode()
    return count


@pytest.mark.parametrize("how", ["stop", "force", "restart", "shutdown"])
def test_nothing_of_an_agent_is_left_however_deep_it_hid_it(tmp_path: Path, how: str) -> None:
    """N-06: a double fork, a session of its own, and every signal ignored."""
    token = f"9998.{int.from_bytes(os.urandom(6))}"
    ignore = "trap '' TERM INT HUP"
    script = (
        f"{ignore}; (setsid sh -c '{ignore}; (sleep {token} &) ; exec sleep {token}' &) ; echo up; exec sleep {token}"
    )

    async def test(world: World) -> None:
        program = f'[program]\nargv = ["/bin/sh", "-c", "{script}"]\n'
        world.manifest("a", program + health(ready="log:^up$") + "[lifecycle]\ngrace_secs = 0.3\n")
        await world.apply()
        await world.ready("a")
        await until(lambda: living(token) == 3)
        if how == "shutdown":
            await world.kernel.stop(0.3)
        elif how == "restart":
            await world.call(Restart(agent="a"))
            await until(lambda: living(token) == 3)
            assert world.record("a").incarnation == 2
            await world.call(Stop(agent="a"))
        else:
            await world.call(Stop(agent="a", force=how == "force"))
        assert living(token) == 0

    in_world(tmp_path, test)


def test_an_agent_is_running_only_when_it_is_ready_and_its_end_shows_its_code(tmp_path: Path) -> None:
    """S-49, S-37, S-43."""

    async def test(world: World) -> None:
        script = "while [ ! -e go ]; do sleep 0.02; done; trap 'exit 7' TERM; echo up; while :; do sleep 0.02; done"
        place = "[sandbox]\nworkspace = 'bind'\n"
        world.manifest("a", sh(script) + health(ready="log:^up$", restart_policy="never") + place)
        await world.apply()
        await until(lambda: "a" in world.alive())
        row = world.kernel.table.find("a")
        await until(lambda: row.watch is not None)
        assert (row.life, world.kernel.fleet.is_ready(row.id)) == ("starting", False)
        (world.project / "go").touch()
        await world.ready("a")
        assert row.life == "running"
        assert (await world.call(Inspect(agent="a")))["life"] == "running"
        await world.call(Stop(agent="a"))
        rows = (await world.call(ListAgents(all=True)))["agents"]
        assert [one["life"] for one in rows if one["name"] == "a"] == ["exited(7)"]

    in_world(tmp_path, test)


def test_a_failure_calls_nobody_of_another_namespace_who_waits_for_a_person(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        manual = "[lifecycle]\nactivation = 'manual'\n"
        world.manifest("wipe", manual, top='namespace = "bank"\n')
        world.manifest("own", manual)
        world.manifest("a", sh("exit 1") + health(restart_policy="never", on_failure=["bank/wipe", "own"]))
        await world.apply()
        await world.ready("own")
        assert str(world.record("bank/wipe")) == "stopped"

    in_world(tmp_path, test)
