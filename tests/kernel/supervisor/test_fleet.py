"""Agents of manifests on real processes: declared, started in order, started again as decided, stopped and gone."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EEXIST, EINVAL, ESRCH
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import (
    Apply,
    Declared,
    Delete,
    Down,
    Hold,
    Reach,
    Release,
    Restart,
    Run,
    Start,
    Stop,
    Tell,
)
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.terms import State
from kernel.serving import until
from kernel.supervisor.declared import World, health, in_world, sh

pytestmark = pytest.mark.integration


def test_a_declared_agent_runs_is_ready_and_is_gone_when_stop_returns(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a")
        report = await world.apply()
        assert [(one["id"], one["change"]) for one in report["agents"]] == [("default/a", "new")]
        assert (await world.call(Reach(agent="a", state="ready")))["state"] == "active"
        process = world.host_pid("a")
        stopped = await world.call(Stop(agent="a"))
        assert (stopped["state"], stopped["was"]) == ("stopped", "active")
        assert not os.path.exists(f"/proc/{process}")
        assert [(one["class"], one["decision"]["act"]) for one in world.exits("a")] == [("requested", "stopped")]

    in_world(tmp_path, test)


def test_pid_1_is_roots_and_root_is_the_parent_of_whoever_has_no_other(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a")
        await world.apply()
        await world.ready("a")
        rows = (await world.call(Declared()))["agents"]
        assert [(one["id"], one["parent"], one["role"]) for one in rows] == [
            ("system/root", None, "root"),
            ("default/a", "system/root", "worker"),
        ]
        assert world.pid("a") > 1

    in_world(tmp_path, test)


def test_an_endless_crasher_gets_exactly_its_restarts_and_then_has_failed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", sh("exit 3") + health(max_restarts=3))
        world.manifest("b")
        await world.apply()
        await world.state("a", "failed")
        rows = (await world.call(Declared(agents=["a", "b"])))["agents"]
        assert [(one["restarts_remaining"], one["exhausted"]) for one in rows] == [(0, True), (5, False)]
        assert world.decisions("a") == ["restart"] * 3 + ["fail"]
        assert [one["decision"]["delay_ms"] for one in world.exits("a")] == [20, 40, 80, 0]
        assert world.record("a").why == "max_restarts"
        assert world.record("a").incarnation == 4
        assert world.alive() == {"b"}

    in_world(tmp_path, test)


@pytest.mark.parametrize(
    ("code", "policy", "more", "decided"),
    [
        (0, "on_failure", {}, "complete"),
        (1, "on_failure", {}, "restart"),
        (1, "never", {}, "fail"),
        (0, "always", {}, "restart"),
        (7, "on_failure", {"success_exit_codes": [0, 7]}, "complete"),
        (9, "always", {"no_restart_exit_codes": [9]}, "fail"),
        (0, "never", {"force_restart_exit_codes": [0]}, "restart"),
        (143, "on_failure", {"success_exit_codes": [0, 143]}, "complete"),  # as servers end that were asked to
        (255, "on_failure", {"success_exit_codes": [255]}, "complete"),
    ],
)
def test_code_and_policy_of_the_manifest_decide(
    tmp_path: Path, code: int, policy: str, more: dict[str, object], decided: str
) -> None:
    async def test(world: World) -> None:
        world.manifest("a", sh(f"exit {code}") + health(restart_policy=policy, max_restarts=1, **more))
        await world.apply()
        await until(lambda: len(world.exits("a")) >= 1)
        assert world.decisions("a")[0] == decided

    in_world(tmp_path, test)


def test_a_killed_agent_lives_again_under_a_new_pid_and_the_program_really_runs(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        (tmp_path / "out").mkdir()
        mount = f"[[mounts]]\npath = '/out'\nsource = '{tmp_path}/out'\nrights = 'rw'\n"
        world.manifest("a", sh("echo life >> /out/lives; exec sleep 1000") + health() + mount)
        await world.apply()
        lives = tmp_path / "out/lives"
        await world.ready("a")
        await until(lambda: lives.exists() and lives.read_text() == "life\n")
        first = world.pid("a")
        world.strike("a")
        await world.lives("a", 2)
        assert world.pid("a") > first
        await until(lambda: lives.read_text() == "life\nlife\n")
        assert [(one["class"], one["code"]) for one in world.exits("a")] == [("signal", -9)]

    in_world(tmp_path, test)


def test_whoever_needs_somebody_starts_after_that_one_is_ready_and_fails_with_it(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("first", "[dependencies]\nrequires = ['last', 'kernel-init']\n")
        world.manifest("last", sh("sleep 0.3; echo up; exec sleep 1000") + "[health]\nready = 'log:^up$'\n")
        world.manifest("broken", sh("exit 1") + health(max_restarts=0, ready="log:^never$"))
        world.manifest("lost", "[dependencies]\nrequires = ['broken']\n")
        world.manifest("wishes", "[dependencies]\nwants = ['broken']\n")
        await world.apply()
        await world.ready("first", "wishes")
        events = [(one.agent, body) for one, body in world.kernel.journal.scan() if body]
        ready = next(i for i, (who, body) in enumerate(events) if who == "default/last" and b"ready" in body)
        spawned = next(i for i, (who, body) in enumerate(events) if who == "default/first" and b"spawned" in body)
        assert ready < spawned
        await world.state("lost", "failed")
        assert world.record("lost").why.startswith("dependency: broken is failed")
        assert world.record("lost").incarnation == 0

    in_world(tmp_path, test)


def test_a_dependency_that_dies_later_makes_its_dependants_not_ready_and_nothing_more(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        slow = "[health]\nbackoff = { base_ms = 700, cap_ms = 700, jitter = 'none' }\n"
        world.manifest("db", slow)
        world.manifest("web", "[dependencies]\nrequires = ['db']\n")
        world.manifest("bound", health() + "[dependencies]\nbinds_to = ['db']\n")
        await world.apply()
        await world.ready("web", "bound")
        pid = world.pid("web")
        world.strike("db")
        await until(lambda: not world.kernel.fleet.is_ready("default/web"))
        await world.lives("db", 2)
        await world.ready("web", "bound")
        assert world.pid("web") == pid
        assert world.record("bound").incarnation == 2
        assert [one["class"] for one in world.exits("bound")] == ["requested"]

    in_world(tmp_path, test)


def test_a_stop_ends_what_ignores_it_after_its_grace_and_keeps_the_code_of_what_does_not(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("deaf", sh("trap '' TERM; while :; do sleep 0.1; done") + "[lifecycle]\ngrace_secs = 0.3\n")
        world.manifest("polite", sh("trap 'exit 42' TERM; echo up; while :; do sleep 0.05; done") + READY_UP)
        world.manifest("struck", sh("trap '' TERM; while :; do sleep 0.1; done"))
        await world.apply()
        await world.ready("deaf", "polite", "struck")
        began = time.monotonic()
        await world.call(Stop(agent="deaf"))
        assert 0.3 <= time.monotonic() - began < 5
        await world.call(Stop(agent="polite"))
        await world.call(Stop(agent="struck", force=True))
        ends = {name: world.exits(name)[-1] for name in ("deaf", "polite", "struck")}
        assert {name: (one["class"], one["code"]) for name, one in ends.items()} == {
            "deaf": ("requested", -1),
            "polite": ("requested", 42),
            "struck": ("requested", -1),
        }
        assert world.alive() == set()
        again = await world.call(Stop(agent="deaf"))
        assert again["state"] == "stopped"

    in_world(tmp_path, test)


READY_UP = "[health]\nready = 'log:^up$'\n"


def test_a_second_stop_shortens_the_first(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("deaf", sh("trap '' TERM; while :; do sleep 0.1; done") + "[lifecycle]\ngrace_secs = 100\n")
        await world.apply()
        await world.ready("deaf")
        first = asyncio.create_task(world.call(Stop(agent="deaf")))
        await until(lambda: not world.record("deaf").wanted)
        await world.call(Stop(agent="deaf", force=True))
        assert (await first)["state"] == "stopped"

    in_world(tmp_path, test)


def test_stop_start_and_restart_of_nobody_say_so(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for request in (Stop(agent="x"), Start(agent="x"), Restart(agent="x"), Delete(agents=["x"]), Reach(agent="x")):
            with pytest.raises(ESRCH, match="no manifest declares 'x'"):
                await world.call(request)

    in_world(tmp_path, test)


@pytest.mark.parametrize("word", ["restart", "stop"])
def test_what_an_operator_asked_for_is_done_also_if_nobody_waits_for_it(tmp_path: Path, word: str) -> None:
    async def test(world: World) -> None:
        world.manifest("a", health(restart_policy="always"))
        await world.apply()
        await world.ready("a")
        fleet = world.kernel.fleet
        life = fleet.lives["default/a"]
        asked = asyncio.create_task(getattr(fleet, word)("a", "somebody"))
        while life.fate is None:  # the very moment in which it has been decided, and not yet been done
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        if word == "stop":
            await until(lambda: world.record("a").state == "stopped")
        else:
            await until(lambda: world.record("a").incarnation == 2)
            await world.ready("a")

    in_world(tmp_path, test)


def test_a_restart_by_hand_is_a_new_life_of_the_same_agent_and_clears_its_counters(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", health())
        await world.apply()
        await world.ready("a")
        world.strike("a")
        await world.lives("a", 2)
        assert world.record("a").consecutive == 1
        pid = world.pid("a")
        said = await world.call(Restart(agent="a"))
        assert (said["state"], said["incarnation"], said["pid"]) == ("active", 3, world.pid("a"))
        assert said["pid"] > pid
        assert world.record("a").consecutive == 0

    in_world(tmp_path, test)


def test_whoever_was_stopped_stays_so_until_it_is_started_by_hand(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", health(restart_policy="always"))
        await world.apply()
        await world.ready("a")
        await world.call(Tell(agent="a", signal=AgentSignal.SIGKILL))
        await world.state("a", "stopped")
        world.kernel.fleet.stir()
        await asyncio.sleep(0)
        assert world.alive() == set()
        await world.apply()
        assert str(world.record("a")) == "stopped"
        assert (await world.call(Start(agent="a")))["state"] == "active"

    in_world(tmp_path, test)


def test_a_violation_ends_in_quarantine_and_only_a_release_opens_the_way_back(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", health(restart_policy="always"))
        await world.apply()
        await world.ready("a")
        await world.kernel.quarantine(world.kernel.table.find("a"), "it tried")
        await world.state("a", "quarantined")
        with pytest.raises(EBUSY, match="quarantined"):
            await world.call(Start(agent="a"))
        await world.call(Release(agent="a", reason="looked at"))
        assert str(world.record("a")) == "stopped"
        await world.call(Start(agent="a"))
        await world.ready("a")

    in_world(tmp_path, test)


def test_manual_agents_wait_for_a_hand_or_for_whoever_needs_them(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("hand", "[lifecycle]\nactivation = 'manual'\n")
        world.manifest("needed", "[lifecycle]\nactivation = 'manual'\n")
        world.manifest("needs", "[dependencies]\nrequires = ['needed']\n[lifecycle]\nactivation = 'manual'\n")
        world.manifest("always")
        await world.apply()
        await world.ready("always")
        assert world.alive() == {"always"}
        await world.call(Start(agent="needs"))
        assert world.alive() == {"always", "needed", "needs"}

    in_world(tmp_path, test)


def test_on_failure_calls_whoever_is_named_there(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", sh("exit 1") + health(max_restarts=0, on_failure=["medic"]))
        world.manifest("medic", "[lifecycle]\nactivation = 'manual'\n")
        await world.apply()
        await world.ready("medic")

    in_world(tmp_path, test)


def test_a_changed_manifest_restarts_its_agent_and_no_other(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a")
        world.manifest("b")
        await world.apply()
        await world.ready("a", "b")
        before = {name: world.pid(name) for name in ("a", "b")}
        world.manifest("a", "[lifecycle]\ngrace_secs = 5\n")
        dry = await world.apply(dry_run=True)
        assert [(one["id"], one["change"]) for one in dry["agents"]] == [
            ("default/a", "changed"),
            ("default/b", "same"),
        ]
        assert dry["agents"][0]["keys"] == [["lifecycle.grace_secs", 10, 5]]
        assert world.pid("a") == before["a"]
        await world.apply()
        await world.lives("a", 2)
        assert world.pid("b") == before["b"]

    in_world(tmp_path, test)


def test_a_changed_manifest_starts_an_agent_that_had_failed_once_and_not_twice(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", sh("exit 3") + health(max_restarts=0))
        await world.apply()
        await world.state("a", "failed")
        world.manifest("a", health(max_restarts=0))
        await world.apply()
        await world.lives("a", 2)
        await world.call(Stop(agent="a"))
        assert len(world.exits("a")) == 2

    in_world(tmp_path, test)


def test_prune_lets_those_go_that_the_folder_does_not_have_any_more(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a")
        world.manifest("b").rename(tmp_path / "b")
        (tmp_path / "b").rename(world.project / "b.agent.toml")
        await world.apply()
        await world.ready("a", "b")
        (world.project / "b.agent.toml").unlink()
        report = await world.apply(prune=True)
        assert [(one["id"], one["change"]) for one in report["agents"]] == [
            ("default/a", "same"),
            ("default/b", "gone"),
        ]
        assert world.alive() == {"a"}
        assert world.kernel.fleet.record("default/b") is None

    in_world(tmp_path, test)


def test_whoever_is_needed_or_has_children_cannot_be_deleted_alone(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a")
        world.manifest("b", "[dependencies]\nrequires = ['a']\n")
        await world.apply()
        with pytest.raises(EBUSY, match="b needs it"):
            await world.call(Delete(agents=["a"]))
        await world.ready("b")
        await world.call(Delete(agents=["a", "b"]))
        assert world.alive() == set()
        assert [one.id for one in world.kernel.fleet.rows()] == ["system/root"]

    in_world(tmp_path, test)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[health]\nmax_restart = 3\n", r"a.agent.toml:6: health.max_restart: .*did you mean `max_restarts`"),
        ("[dependencies]\nrequires = ['c']\n", r"a.agent.toml:6: dependencies.requires.*there is no agent c"),
        ("[dependencies]\nrequires = ['b']\n", r"a circle: "),
        ("[lifecycle.hooks]\non_stop = 'x'\n", r"a.agent.toml:.*lifecycle.hooks.*not supported yet"),
        ("[budget]\non_exhausted = 'stop'\n", r"a.agent.toml:6: budget.on_exhausted: .*not supported yet"),
    ],
)
def test_nothing_of_a_broken_fleet_is_applied(tmp_path: Path, text: str, said: str) -> None:
    async def test(world: World) -> None:
        world.manifest("a", text)
        world.manifest("b", "[dependencies]\nrequires = ['a']\n")
        world.manifest("fine")
        with pytest.raises(EINVAL, match=said):
            await world.apply()
        assert [one.id for one in world.kernel.fleet.rows()] == ["system/root"]
        assert world.alive() == set()

    in_world(tmp_path, test)


def test_whoever_is_started_while_it_is_being_deleted_is_gone_all_the_same(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("deaf", sh("trap '' TERM; while :; do sleep 0.1; done") + "[lifecycle]\ngrace_secs = 2\n")
        world.manifest("quick")
        await world.apply("deaf")
        await world.apply("quick")
        await world.ready("deaf", "quick")
        deleted = asyncio.create_task(world.call(Delete(agents=["deaf", "quick"])))
        await until(lambda: world.alive() == {"deaf"})
        started = asyncio.create_task(world.call(Start(agent="quick")))
        await until(lambda: "quick" in world.alive())
        await deleted
        assert (world.alive(), world.kernel.fleet.lives) == (set(), {})
        await asyncio.wait([started])
        await world.apply("quick")
        await world.ready("quick")

    in_world(tmp_path, test)


@pytest.mark.parametrize("grace", [float("nan"), float("inf"), -1.0])
def test_a_grace_that_is_no_time_is_refused_and_stops_no_clock(tmp_path: Path, grace: float) -> None:
    async def test(world: World) -> None:
        world.manifest("a")
        await world.apply()
        await world.ready("a")
        for request in (Stop(agent="a", grace_s=grace), Restart(agent="a", grace_s=grace), Down(grace_s=grace)):
            with pytest.raises(EINVAL, match="grace_s"):
                await world.call(request)
        assert (await world.call(Stop(agent="a")))["state"] == "stopped"

    in_world(tmp_path, test)


def test_the_name_of_a_declared_agent_is_nobody_elses(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", "[lifecycle]\nactivation = 'manual'\n")
        await world.apply()
        order = {"argv": ["/bin/sleep", "100"], "cwd": str(world.project), "workspace": "tmpfs", "name": "a"}
        with pytest.raises(EEXIST, match="declared by a manifest"):
            await world.call(Run(order=order, detach=True))
        await world.call(Run(order={**order, "name": "b"}, detach=True))
        world.manifest("b")
        with pytest.raises(EINVAL, match="b runs already"):
            await world.apply("b")

    in_world(tmp_path, test)


def test_an_agent_that_stands_still_is_stopped_like_any_other(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a")
        await world.apply()
        await world.ready("a")
        await world.call(Hold(agent="a", hold=True))
        assert (await world.call(Stop(agent="a")))["state"] == "stopped"
        await world.call(Start(agent="a"))
        await world.ready("a")

    in_world(tmp_path, test)


def test_what_cannot_be_started_as_it_is_declared_fails_at_once_and_says_why(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", "[program]\nargv = ['/nowhere/at/all']\n")
        await world.apply()
        await world.state("a", "failed")
        assert "/nowhere/at/all" in world.record("a").why

    in_world(tmp_path, test)


def test_an_apply_needs_absolute_paths_of_folders_that_are_there(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for file in ("a.agent.toml", "/nowhere/a.agent.toml"):
            with pytest.raises(EINVAL, match="absolute path"):
                await world.call(Apply(files={file: 'name = "a"\nrole = "worker"\n'}))

    in_world(tmp_path, test)


def test_the_reconciler_starts_whoever_should_live_and_has_no_process(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", "[lifecycle]\nactivation = 'manual'\n")
        await world.apply()
        lost = Record("default/a", "system/root", 1, state=State.ACTIVE, incarnation=1)
        world.kernel.fleet.kept.keep(lost)
        world.kernel.fleet.stir()
        await world.ready("a")
        assert [one["event"] for one in world.told("a", Kind.STATE) if one.get("event") == "lost"] == ["lost"]

    in_world(tmp_path, test)


def test_a_long_path_hides_nobody_from_the_list_of_all(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        folder = world.project / "/".join(["d" * 200] * 14)
        folder.mkdir(parents=True)
        text = 'name = "a{}"\nrole = "worker"\n[program]\nargv = ["x"]\n[lifecycle]\nactivation = "manual"\n'
        for some in range(0, 450, 150):
            await world.call(
                Apply(files={f"{folder}/a{n}.agent.toml": text.format(n) for n in range(some, some + 150)})
            )
        assert len((await world.call(Declared()))["agents"]) == 451
        assert (await world.call(Declared(agents=["a7"])))["agents"][0]["file"] == f"{folder}/a7.agent.toml"

    in_world(tmp_path, test)
