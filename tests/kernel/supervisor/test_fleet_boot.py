"""A fleet over the end of its kernel and the boot of the next: what is wanted stays so, and nothing else comes back."""

import asyncio
import time
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY
from agent_os.abi.syscalls import Hold, Start, Stop
from agent_os.kernel.supervisor.terms import State
from kernel.serving import until
from kernel.supervisor.declared import World, health, in_world, sh

pytestmark = pytest.mark.integration
DEAF = sh("trap '' TERM INT HUP; while :; do sleep 0.1; done")


def test_a_shutdown_leaves_nothing_of_a_program_that_ignores_everything(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("deaf", DEAF)
        await world.apply()
        await world.ready("deaf")
        process, began = world.host_pid("deaf"), time.monotonic()
        await world.kernel.stop(0.1)
        assert time.monotonic() - began < 10
        assert not Path(f"/proc/{process}").exists()
        assert [(one["class"], one["code"]) for one in world.exits("deaf")] == [("lost", -1)]
        assert world.record("deaf").wanted

    in_world(tmp_path, test)


def test_the_next_kernel_starts_whom_it_should_and_nobody_else(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        world.manifest("runs")
        world.manifest("stopped")
        world.manifest("failed", sh("exit 1") + health(max_restarts=0))
        world.manifest("done", sh("exit 0"))
        world.manifest("evil", health(restart_policy="always"))
        world.manifest(
            "boss", "[supervision]\nstrategy = 'one_for_all'\nchildren = ['evil', 'good']\n", role="supervisor"
        )
        world.manifest("good", health())
        world.manifest("once", health(restart_policy="never"))
        await world.apply()
        await world.ready("runs", "stopped", "evil", "good", "once")
        await world.call(Stop(agent="stopped"))
        await world.kernel.quarantine(world.kernel.table.find("evil"), "it tried")
        await world.state("failed", "failed")
        await world.state("done", "completed")
        world.strike("good")
        await world.lives("good", 2)
        assert str(world.record("evil")) == "quarantined", "a strategy brings nobody back from there"
        await world.kernel.stop(2)

    async def second(world: World) -> None:
        await world.ready("runs", "good")
        states = {one.id.partition("/")[2]: str(one.state) for one in world.kernel.fleet.rows()}
        assert states == {
            "root": "active",
            "runs": "active",
            "boss": "active",
            "good": "active",
            "stopped": "stopped",
            "failed": "failed",
            "done": "completed",
            "evil": "quarantined",
            "once": "failed",
        }
        assert world.record("once").why.startswith("lost with the kernel"), "a guest that is never restarted"
        assert world.alive() == {"runs", "boss", "good"}
        assert world.record("good").consecutive == 1, "no crash is forgiven"
        with pytest.raises(EBUSY):
            await world.call(Start(agent="evil"))

    in_world(tmp_path, first)
    in_world(tmp_path, second)


def test_whoever_stands_still_does_so_in_the_next_kernel_until_somebody_lets_it_go_on(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        world.manifest("a")
        await world.apply()
        await world.ready("a")
        await world.call(Hold(agent="a", hold=True))
        await world.kernel.stop(1)

    async def second(world: World) -> None:
        await until(lambda: world.alive() == {"a"})
        agent = world.kernel.table.find("a")
        assert (agent.asleep, agent.running) == (True, None)
        assert not world.kernel.fleet.is_ready("default/a")
        await world.call(Hold(agent="a", hold=False))
        await world.ready("a")
        assert world.kernel.table.find("a").running is not None
        assert world.record("a").state is State.ACTIVE
        assert (await world.call(Stop(agent="a")))["state"] == "stopped"

    in_world(tmp_path, first)
    in_world(tmp_path, second)


def test_whoever_stands_still_without_a_process_can_be_stopped(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        world.manifest("a")
        await world.apply()
        await world.ready("a")
        await world.call(Hold(agent="a", hold=True))
        await world.kernel.stop(1)

    async def second(world: World) -> None:
        await until(lambda: world.alive() == {"a"})
        assert (await world.call(Stop(agent="a")))["state"] == "stopped"
        assert world.alive() == set()
        await world.call(Start(agent="a"))
        await world.ready("a")

    in_world(tmp_path, first)
    in_world(tmp_path, second)


def test_whoever_stands_still_and_may_not_be_any_more_has_failed_and_holds_nobody_up(tmp_path: Path) -> None:
    first = World(tmp_path)
    first.manifest("boss", "[supervision]\nchildren = ['a']\n", role="supervisor")
    first.manifest("a")

    async def main() -> None:
        async with asyncio.timeout(60):
            async with World(tmp_path).up(scans=True) as world:
                await world.ready("a")
                await world.call(Hold(agent="a", hold=True))
                await world.kernel.stop(1)
            first.manifest("a", "[capabilities]\nnetwork = ['example.org:443']\n")
            async with World(tmp_path).up(scans=True) as world:
                await world.state("a", "failed")
                assert world.record("a").why.startswith("not started: ")
                assert (await world.call(Stop(agent="a")))["state"].startswith("failed")
                await world.kernel.stop(1)

    asyncio.run(main())


def test_what_a_manifest_gave_is_as_it_is_today_in_every_life(tmp_path: Path) -> None:
    """S-48 for what was revoked: a restart asks nobody for it again."""

    async def test(world: World) -> None:
        world.manifest("a", health() + "[capabilities]\nnetwork = ['api.example.org:443']\n")
        await world.apply()
        await world.ready("a")
        held = {str(one.capability): one for one in world.kernel.authority.holdings("default/a")}
        web = [handle for text, handle in held.items() if text.startswith("http")]
        assert web, held
        await world.kernel.authority.revoke(web, "a test")
        world.strike("a")
        await world.lives("a", 2)
        left = [str(one.capability) for one in world.kernel.authority.holdings("default/a")]
        assert left
        assert not [text for text in left if text.startswith("http")]
        assert [one for one, _ in world.kernel.journal.scan("default/a") if one.kind == Kind.REVOKE]

    in_world(tmp_path, test)
