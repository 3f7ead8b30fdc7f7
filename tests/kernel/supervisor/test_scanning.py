"""The operator's folder: what lies there is declared when the kernel boots; what is broken is left out, and told."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY
from agent_os.abi.syscalls import Start, Status
from agent_os.kernel.recorded import decode_any
from kernel.supervisor.declared import World, health, sh

pytestmark = pytest.mark.integration
Step = Callable[[World], Awaitable[None]]


def booted(top: Path, *steps: Step) -> None:
    """Each with a kernel of its own, one after another, which finds the folder as the last step left it."""

    async def main() -> None:
        async with asyncio.timeout(120):
            for step in steps:
                async with World(top).up(scans=True) as world:
                    await step(world)
                    await world.kernel.stop(2)

    asyncio.run(main())


def names(world: World) -> set[str]:
    return {one.removeprefix("default/") for one in world.kernel.fleet.kept.specs}


def told(world: World) -> list[str]:
    """What was left out, without the folder."""
    return [one.replace(f"{world.project}/", "") for one in world.kernel.fleet.folder.left_out]


def test_what_lies_in_the_folder_is_declared_at_boot_and_what_was_taken_away_is_forgotten(tmp_path: Path) -> None:
    first = World(tmp_path)
    first.manifest("base")
    first.manifest("above", "[dependencies]\nrequires = ['base']\n")

    async def then(world: World) -> None:
        await world.ready("above")
        assert (names(world), told(world)) == ({"base", "above"}, [])
        assert world.order_of("base", "above") == ["base", "above"]
        (world.project / "above.agent.toml").unlink()
        world.manifest("base", top="description = 'another'\n")
        world.manifest("third")

    async def at_last(world: World) -> None:
        await world.ready("base", "third")
        assert (names(world), told(world)) == ({"base", "third"}, [])
        assert world.kernel.fleet.kept.specs["default/base"].tree["description"] == "another"
        assert world.record("base").incarnation == 2

    booted(tmp_path, then, at_last)


def test_a_broken_manifest_is_left_out_with_whoever_requires_it_and_the_rest_boots(tmp_path: Path) -> None:
    first = World(tmp_path)
    first.manifest("broken", "[health]\nmax_restart = 3\n")
    first.manifest("needs", "[dependencies]\nrequires = ['broken']\n")
    first.manifest("needs-that", "[dependencies]\nbinds_to = ['needs']\n")
    first.manifest("after", "[dependencies]\nafter = ['broken']\n")
    first.manifest("fine")

    async def then(world: World) -> None:
        await world.ready("after", "fine")
        assert names(world) == {"after", "fine"}
        assert told(world) == [
            "broken.agent.toml:6: health.max_restart: `max_restart` unknown, did you mean `max_restarts`?",
            "needs.agent.toml:6: dependencies.requires.0: broken is left out",
            "needs-that.agent.toml:6: dependencies.binds_to.0: needs is left out",
        ]
        assert (await world.call(Status()))["left_out"] == world.kernel.fleet.folder.left_out
        entries = (decode_any(body) for entry, body in world.kernel.journal.scan("kernel") if entry.kind == Kind.CHANGE)
        assert [one["problems"] for one in entries if one["event"] == "scan"] == [world.kernel.fleet.folder.left_out]

    booted(tmp_path, then)


@pytest.mark.parametrize("flaw", ["strategy = 'one_for_none'\n", "strategy = \n"], ids=["a value", "no TOML"])
def test_nobody_is_started_below_root_because_its_supervisor_is_broken(tmp_path: Path, flaw: str) -> None:
    first = World(tmp_path)
    first.manifest("boss", f"[supervision]\nchildren = ['left', 'chief']\n{flaw}", role="supervisor")
    first.manifest("chief", "[supervision]\nchildren = ['right']\n", role="supervisor")
    first.manifest("left")
    first.manifest("right")
    first.manifest("fine")

    async def then(world: World) -> None:
        await world.ready("fine")
        assert names(world) == {"fine"}
        files = {one.partition(":")[0] for one in told(world)}
        assert files == {f"{name}.agent.toml" for name in ("boss", "chief", "left", "right")}

    booted(tmp_path, then)


def test_whoever_was_declared_from_a_file_that_is_broken_now_is_held_and_not_forgotten(tmp_path: Path) -> None:
    first = World(tmp_path)
    good = first.manifest("held").read_text()
    first.manifest("needs", "[dependencies]\nrequires = ['held']\n")

    async def then(world: World) -> None:
        await world.ready("needs")
        (world.project / "held.agent.toml").write_text(f"{good}[oops]\n")
        world.manifest("fine")

    async def while_broken(world: World) -> None:
        await world.ready("fine")
        assert world.alive() == {"fine"}
        assert "held.agent.toml:" in told(world)[0]
        with pytest.raises(EBUSY) as refused:
            await world.call(Start(agent="held"))
        assert "its manifest is broken" in refused.value.reason
        assert not world.kernel.fleet.lives.keys() & {"default/held", "default/needs"}
        (world.project / "held.agent.toml").write_text(good)
        await world.apply()  # or by the next boot
        await world.lives("held", 2)
        await world.lives("needs", 2)
        assert told(world) == []

    booted(tmp_path, then, while_broken)


def test_a_boot_forgives_nobody_whose_manifest_is_the_same(tmp_path: Path) -> None:
    World(tmp_path).manifest("flaky", sh("exit 1") + health(max_restarts=1))

    async def then(world: World) -> None:
        await world.state("flaky", "failed")
        assert world.record("flaky").incarnation == 2

    async def again(world: World) -> None:
        assert str(world.record("flaky").state) == "failed"
        assert world.record("flaky").incarnation == 2

    booted(tmp_path, then, again)


@pytest.mark.parametrize("whose", ["folder", "file"])
def test_what_others_can_write_is_not_the_operators_word(tmp_path: Path, whose: str) -> None:
    world = World(tmp_path)
    file = world.manifest("foreign")
    os.chmod(world.project if whose == "folder" else file, 0o777)

    async def then(world: World) -> None:
        assert names(world) == set()
        assert "can be written by others" in world.kernel.fleet.folder.left_out[0]

    booted(tmp_path, then)


def test_what_is_no_manifest_at_all_holds_nobody_up(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.manifest("fine")
    os.mkfifo(world.project / "pipe.agent.toml")
    (world.project / "folder.agent.toml").mkdir()
    (world.project / "huge.agent.toml").write_bytes(b"#" * (1 << 20))
    (world.project / "latin.agent.toml").write_bytes(b"name = '\xff'")
    Path(os.fsdecode(os.fsencode(world.project) + b"/\xff.agent.toml")).write_text("")
    (world.project / "dangling.agent.json").symlink_to("nowhere")

    async def then(world: World) -> None:
        await world.ready("fine")
        assert names(world) == {"fine"}
        assert len(world.kernel.fleet.folder.left_out) == 6

    booted(tmp_path, then)


def test_a_folder_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.manifest("stays")

    async def then(world: World) -> None:
        await world.ready("stays")

    async def main() -> None:
        async with asyncio.timeout(60):
            async with World(tmp_path).up(scans=True) as world:
                await then(world)
                world.kernel.fleet.folder.place = tmp_path / "nowhere"
                await world.kernel.fleet.folder.scan()
                assert (names(world), world.kernel.fleet.folder.left_out) == ({"stays"}, [])

    asyncio.run(main())


def test_a_file_of_empty_lines_holds_up_no_boot(tmp_path: Path) -> None:
    (World(tmp_path).project / "empty.agent.toml").write_text("\n" * 100_000)

    async def then(world: World) -> None:
        assert {one.partition(":")[0] for one in told(world)} == {"empty.agent.toml"}

    began = time.monotonic()
    booted(tmp_path, then)
    assert time.monotonic() - began < 60, "each line was looked at from each line before it"


@pytest.mark.parametrize(
    "way", ["[sandbox]\nworkspace = 'bind'\n", "[[mounts]]\npath = '/in'\nsource = '{}'\nrights = 'rw'\n"]
)
def test_no_agent_writes_what_is_declared_at_the_next_boot(tmp_path: Path, way: str) -> None:
    first = World(tmp_path)
    first.manifest("a", way.format(first.project))

    async def then(world: World) -> None:
        await world.state("a", "failed")
        assert "holds manifests that are declared at boot" in world.record("a").why

    booted(tmp_path, then)
