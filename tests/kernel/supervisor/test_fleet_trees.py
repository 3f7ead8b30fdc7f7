"""Supervisors on real processes: strategies, intensity and escalation, and who goes and comes with whom."""

from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EINVAL
from agent_os.abi.syscalls import Restart, Start, Stop
from agent_os.kernel.supervisor.specs import ROOT_ID
from kernel.serving import until
from kernel.supervisor.declared import World, health, in_world, sh

pytestmark = pytest.mark.integration


def family(world: World, strategy: str, *more: str, intensity: int = 10, **children: str) -> None:
    """A supervisor without a program, its children in order, and one that is none of them."""
    names = "".join(f"'{name}', " for name in children)
    group = f"[supervision]\nstrategy = '{strategy}'\nintensity = {intensity}\nchildren = [{names}]\n"
    world.manifest("boss", "".join(more) + group, role="supervisor")
    for name, text in children.items():
        world.manifest(name, text or health())
    world.manifest("stranger")


async def settled(world: World, *names: str) -> dict[str, int]:
    await world.ready(*names)
    return {name: world.pid(name) for name in (*names, "stranger")}


def test_one_for_one_leaves_the_siblings_alone(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        family(world, "one_for_one", a="", b="", c="")
        await world.apply()
        before = await settled(world, "a", "b", "c", "stranger")
        world.strike("b")
        await world.lives("b", 2)
        after = await settled(world, "a", "b", "c")
        assert [name for name in after if after[name] != before[name]] == ["b"]

    in_world(tmp_path, test)


def test_rest_for_one_takes_those_that_came_later_along_in_order(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        family(world, "rest_for_one", a="", b="", c="")
        await world.apply()
        before = await settled(world, "a", "b", "c", "stranger")
        world.strike("b")
        await world.lives("c", 2)
        after = await settled(world, "a", "b", "c")
        assert [name for name in after if after[name] != before[name]] == ["b", "c"]
        assert after["b"] < after["c"], "the first of them starts first"
        assert [one["class"] for one in world.exits("c")] == ["requested"]
        assert world.record("c").consecutive == 0
        assert len(world.record("boss").restarts) == 1

    in_world(tmp_path, test)


def test_one_for_all_stops_in_reverse_and_starts_in_order_and_whoever_is_never_restarted_stays(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        family(world, "one_for_all", a="", b="", c="", d=health(restart_policy="never"))
        await world.apply()
        before = await settled(world, "a", "b", "c", "d", "stranger")
        world.strike("b")
        await world.lives("c", 2)
        after = await settled(world, "a", "b", "c")
        assert all(after[name] > before[name] for name in ("a", "b", "c"))
        assert after["stranger"] == before["stranger"]
        assert after["a"] < after["b"] < after["c"]
        assert str(world.record("d")) == "stopped"
        ends = [entry.agent for entry, _ in world.kernel.journal.scan() if entry.kind == Kind.EXIT]
        assert ends == ["default/b", "default/d", "default/c", "default/a"]

    in_world(tmp_path, test)


def test_a_strategy_overrides_no_policy(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        family(world, "one_for_all", a="", b=sh("sleep 0.3") + health())
        await world.apply()
        await world.ready("a")
        before = world.pid("a")
        await world.state("b", "completed")
        assert world.pid("a") == before
        assert world.record("b").incarnation == 1

    in_world(tmp_path, test)


def test_one_restart_too_many_ends_the_supervisor_whose_own_policy_then_counts(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        family(world, "one_for_one", health(max_restarts=1), intensity=1, a="", b="")
        await world.apply()
        before = await settled(world, "a", "b", "stranger")
        world.strike("a")
        await world.lives("a", 2)
        world.strike("b")
        await world.lives("boss", 2)
        after = await settled(world, "a", "b")
        assert after["a"] > before["a"]
        assert after["stranger"] == before["stranger"]
        assert [(one["class"], one["reason"]) for one in world.exits("boss")] == [("error", "intensity")]
        assert world.decisions("b") == ["escalate"]
        assert world.exits("a")[-1]["class"] == "requested"
        world.strike("a")
        await world.lives("a", world.record("a").incarnation + 1)
        world.strike("b")
        await world.state("boss", "failed")
        await until(lambda: world.alive() == {"stranger"})
        assert world.record("boss").why == "max_restarts"

    in_world(tmp_path, test)


def test_children_go_and_come_with_their_supervisor(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        family(world, "one_for_one", a="", b="")
        await world.apply()
        before = await settled(world, "a", "b", "stranger")
        await world.call(Stop(agent="boss"))
        assert world.alive() == {"stranger"}
        with pytest.raises(EBUSY, match="its supervisor boss, which is stopped"):
            await world.call(Start(agent="a"))
        await world.call(Start(agent="boss"))
        await world.ready("a", "b")
        await world.call(Restart(agent="boss"))
        after = await settled(world, "a", "b")
        assert after["a"] > before["a"]
        assert after["stranger"] == before["stranger"]

    in_world(tmp_path, test)


def test_whoever_needs_a_supervisor_that_is_stopped_hears_so_instead_of_waiting(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("boss", "[supervision]\nchildren = ['a']\n", role="supervisor")
        world.manifest("a")
        world.manifest("above", "[dependencies]\nrequires = ['a']\n")
        await world.apply()
        await world.ready("above")
        for name in ("above", "a", "boss"):
            await world.call(Stop(agent=name))
        for request in (Restart(agent="a"), Start(agent="a"), Start(agent="above")):
            with pytest.raises(EBUSY, match="a starts with its supervisor boss, which is stopped"):
                await world.call(request)
        assert {str(world.record(name)) for name in ("a", "above")} == {"stopped"}

    in_world(tmp_path, test)


def test_a_supervisor_with_a_program_that_crashes_leaves_its_children_alone(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        group = "[supervision]\nchildren = ['a']\n"
        world.manifest("boss", "[program]\nargv = ['/bin/sleep', '1000']\n" + health() + group, role="supervisor")
        world.manifest("a", health())
        await world.apply()
        await world.ready("boss", "a")
        before = world.pid("a")
        world.strike("boss")
        await world.lives("boss", 2)
        assert world.pid("a") == before
        assert world.kernel.table.find("a").parent == "default/boss"

    in_world(tmp_path, test)


def test_supervisors_below_supervisors_go_with_all_that_is_below_them(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("top", "[supervision]\nchildren = ['boss']\n", role="supervisor")
        text = (world.project / "top.agent.toml").read_text().replace('agency = "role"\n', "")
        wide = "[agency]\nallowed_roles = ['supervisor', 'worker']\n[agency.capability_ceiling]\ncan_spawn = true\n"
        (world.project / "top.agent.toml").write_text(text + wide)
        world.manifest("boss", "[supervision]\nchildren = ['a']\n", role="supervisor")
        world.manifest("a")
        await world.apply()
        await world.ready("top", "boss", "a")
        await world.call(Stop(agent="top"))
        assert world.alive() == set()
        await world.call(Start(agent="top"))
        await world.ready("a")

    in_world(tmp_path, test)


@pytest.mark.parametrize(
    ("children", "said"),
    [
        ("['a', 'x']", "there is no agent x"),
        ("['a', 'a']", "a is a child of boss already"),
        ("['boss']", "it is its own supervisor"),
    ],
)
def test_a_tree_that_is_none_is_refused(tmp_path: Path, children: str, said: str) -> None:
    async def test(world: World) -> None:
        world.manifest("boss", f"[supervision]\nchildren = {children}\n", role="supervisor")
        world.manifest("a")
        with pytest.raises(EINVAL, match=said):
            await world.apply()

    in_world(tmp_path, test)


def test_nobody_is_made_a_child_over_the_border_of_its_namespace(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("safe", top='namespace = "bank"\n')
        await world.apply()
        await world.ready("bank/safe")
        world.manifest("thief", "[supervision]\nchildren = ['bank/safe']\n", role="supervisor")
        with pytest.raises(EINVAL, match="bank/safe is of another namespace"):
            await world.apply("thief")
        assert world.record("bank/safe").parent == ROOT_ID

    in_world(tmp_path, test)


@pytest.mark.parametrize(
    ("name", "space"), [("root", "system"), ("root", "default"), ("operator", "default"), ("message-bus", "system")]
)
def test_nobody_is_called_like_a_part_of_the_kernel(tmp_path: Path, name: str, space: str) -> None:
    """What an operator says to `root` or to `operator` is for those."""

    async def test(world: World) -> None:
        world.manifest(name, top=f'namespace = "{space}"\n')
        with pytest.raises(EINVAL, match="the kernel's own"):
            await world.apply()

    in_world(tmp_path, test)


def test_an_apply_tells_whom_it_moves_below_somebody_else(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a")
        await world.apply()
        world.manifest("boss", "[supervision]\nchildren = ['a']\n", role="supervisor")
        told = await world.apply("boss", dry_run=True)
        assert told["warnings"] == ["a is moved from system/root to boss"]
        assert (await world.apply("boss"))["warnings"] == told["warnings"]
        assert world.record("a").parent == "default/boss"

    in_world(tmp_path, test)


@pytest.mark.parametrize("key", ["requires", "after", "binds_to"])
def test_a_supervisor_that_waits_for_its_own_child_is_a_circle(tmp_path: Path, key: str) -> None:
    """The child starts when its supervisor lives: both would wait for ever."""

    async def test(world: World) -> None:
        world.manifest("boss", f"[supervision]\nchildren = ['a']\n[dependencies]\n{key} = ['b']\n", role="supervisor")
        world.manifest("a")
        world.manifest("b", "[dependencies]\nrequires = ['a']\n")
        with pytest.raises(EINVAL, match=r"a cycle: each waits for the next: .*boss"):
            await world.apply()

    in_world(tmp_path, test)
