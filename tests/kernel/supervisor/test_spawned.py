"""Children that an agent spawns with a manifest, on real processes: supervised like others, and gone when over."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EDQUOT, EEXIST, EINVAL, AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Delete, Effect, Exit, History, Panic, Restart, Spawn, Stop, Wait
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.supervisor.keeping import RECORDS, SPECS
from agent_os.kernel.table import Actor, Agent, Ended
from agent_os.kernel.tooling import Tool
from kernel.serving import syscall, until
from kernel.supervisor.declared import World, health, in_world

pytestmark = pytest.mark.integration
PROGRAM = """
from agent_os import agent

@agent
async def boss(ctx):
    await ctx.now()
    await ctx.sleep(3600)

@agent
async def family(ctx):
    ctx.on("restarted", lambda news: print(news.value["agent"], news.value["class"], news.value["attempt"], flush=True))
    made = await ctx.spawn({"name": "c", "role": "worker", "program": {"argv": ["/bin/sh", "-c", "sleep 0.2; exit 3"]},
        "health": {"max_restarts": 2, "backoff": {"base_ms": 20, "cap_ms": 20, "jitter": "none"}}})
    print("over:", (await ctx.wait(made)).state, flush=True)
    try:
        await ctx.exec("pay")
    except Exception as refused:
        print(refused.name, flush=True)
    got = await ctx.request_elevation("tool:pay:call", "the invoice is due", seconds=60)
    print("granted", len(got.granted), (await ctx.exec("pay")).value, flush=True)
    await ctx.sleep(3600)
"""
QUICK = {"backoff": {"base_ms": 20, "cap_ms": 200, "jitter": "none"}}


def long(name: str, **keys: Any) -> dict[str, Any]:
    own = {"health": QUICK, "program": {"argv": ["/bin/sleep", "1000"]}}
    return {"name": name, "role": "worker", **own, **keys}


def short(name: str, script: str, **words: Any) -> dict[str, Any]:
    return long(name, program={"argv": ["/bin/sh", "-c", script]}, health={**QUICK, **words})


class Nursery(World):
    """With a service of a manifest, whose calls the tests make."""

    async def boss(self, text: str = "", most: int = 8) -> Agent:
        (self.project / "boss.py").write_text(PROGRAM)
        os.chmod(self.project.parent, 0o755)
        self.write_boss(text, most)
        await self.apply("boss")
        await self.ready("boss")
        return self.parent

    def write_boss(self, text: str = "", most: int = 8) -> None:
        program = "[program]\nentry = 'boss.py:boss'\n[sandbox]\nworkspace = 'overlay'\n"
        agency = f"[agency]\nmax_children = {most}\nallowed_roles = ['worker', 'service']\n"
        agency += "[agency.capability_ceiling]\ncan_spawn = true\n"
        head = 'name = "boss"\nrole = "supervisor"\n'
        (self.project / "boss.agent.toml").write_text(head + program + agency + text)

    @property
    def parent(self) -> Agent:
        return self.kernel.table.find("boss")

    async def spawn(self, *manifests: dict[str, Any]) -> None:
        for one in manifests:
            await syscall(self.kernel, self.parent, Spawn(manifest=one))

    async def wait(self, name: str) -> Any:
        return await syscall(self.kernel, self.parent, Wait(agent=name))

    def heard(self, kind: str) -> list[dict[str, Any]]:
        """What the parent was told."""
        found = self.kernel.journal.scan("default/boss")
        told = [decode_any(body) for entry, body in found if entry.kind == Kind.DELIVER and body]
        return [one for one in told if one.get("type") == kind]

    def ends(self, name: str) -> list[dict[str, Any]]:
        """Also of one that is forgotten."""
        found = self.kernel.journal.scan(f"default/{name}")
        return [decode_any(body) for entry, body in found if entry.kind == Kind.EXIT and body]

    async def forgotten(self, *names: str) -> None:
        """Returns when neither the fleet nor the store knows anything of them."""
        for name in names:
            agent_id = f"default/{name}"
            await until(lambda agent_id=agent_id: self.kernel.fleet.record(agent_id) is None)
            buckets = (SPECS, RECORDS, "endowed", "windows", "agents")
            await until(lambda key=agent_id, all=buckets: not any(self.kernel.store.get(one, key) for one in all))


def drive(top: Path, test: Any) -> None:
    async def run(world: World) -> None:
        nursery = Nursery(top)
        nursery.kernel, nursery.client = world.kernel, world.client
        await test(nursery)

    in_world(top, run)


def test_a_spawned_child_that_dies_is_started_again_and_its_parent_hears_of_it(tmp_path: Path) -> None:
    """N-05, S-46, S-47."""

    async def test(world: Nursery) -> None:
        await world.boss()
        await world.spawn(long("c"))
        record = world.record("c")
        assert (record.parent, record.incarnation, str(record)) == ("default/boss", 1, "active")
        await world.ready("c")
        before = world.pid("c")
        world.strike("c")
        await world.lives("c", 2)
        row = world.kernel.table.find("c")
        assert row.pid > before
        assert (row.parent, row.incarnation, row.role) == ("default/boss", 2, "worker")
        assert row.restarted_from == before
        assert world.decisions("c") == ["restart"]
        await until(lambda: bool(world.heard("restarted")))
        (told,) = world.heard("restarted")
        facts = {"agent": "c", "old_pid": before, "pid": row.pid, "class": "signal", "attempt": 1}
        assert {key: told[key] for key in facts} == facts
        assert world.record("c").consecutive == 1

    drive(tmp_path, test)


def test_an_endless_crasher_is_given_up_and_forgotten_and_its_place_and_its_name_are_free(tmp_path: Path) -> None:
    """N-01, for dynamic children."""

    async def test(world: Nursery) -> None:
        await world.boss(most=1)
        await world.spawn(short("c", "exit 3", max_restarts=2))
        with pytest.raises(EDQUOT) as refused:
            await world.spawn(long("other"))
        assert refused.value.code == "children", "one that is to live again has its place"
        with pytest.raises(EEXIST) as taken:
            await world.spawn(long("c"))
        assert (taken.value.code, taken.value.detail["step"]) == ("id", 5)
        ended = await world.wait("c")
        assert (ended["state"], ended["status"]) == ("failed", 3)
        assert [one["decision"]["act"] for one in world.ends("c")] == ["restart", "restart", "fail"]
        await world.forgotten("c")
        await world.spawn(long("c"))
        await world.ready("c")
        assert world.record("c").consecutive == 0

    drive(tmp_path, test)


def test_many_short_children_one_after_the_other_leave_nothing_but_the_journal(tmp_path: Path) -> None:
    """N-09 in small; the long form is a benchmark."""

    async def test(world: Nursery) -> None:
        await world.boss(most=1)
        for number in range(20):
            name = f"c{number % 3}"
            await world.spawn(short(name, "exit 0"))
            assert (await world.wait(name))["state"] == "completed"
        await world.forgotten("c0", "c1", "c2")
        assert [one.id for one in world.kernel.fleet.rows()] == ["system/root", "default/boss"]

    drive(tmp_path, test)


def test_a_supervisors_strategy_holds_for_whom_it_spawned(tmp_path: Path) -> None:
    """S-62 over dynamic children."""

    async def test(world: Nursery) -> None:
        await world.boss("[supervision]\nstrategy = 'rest_for_one'\n")
        await world.spawn(long("a"), long("b"), long("c"), short("d", "exec sleep 1000", restart_policy="never"))
        await world.ready("a", "b", "c", "d")
        before = {name: world.pid(name) for name in "abc"}
        world.strike("b")
        await world.lives("c", 2)
        after = {name: world.pid(name) for name in "abc"}
        assert [name for name in "abc" if after[name] != before[name]] == ["b", "c"]
        assert after["b"] < after["c"]
        assert world.ends("c")[0]["class"] == "requested"
        await world.forgotten("d")

    drive(tmp_path, test)


def test_more_restarts_than_its_intensity_end_the_parent_whose_own_policy_counts(tmp_path: Path) -> None:
    """S-63 over dynamic children: they come back with their parent, which goes on where it was."""

    async def test(world: Nursery) -> None:
        await world.boss(health() + "[supervision]\nintensity = 1\n")
        await world.spawn(long("a"), long("b"))
        await world.ready("a", "b")
        before = world.pid("b")
        world.strike("a")
        await world.lives("a", 2)
        world.strike("a")
        await world.lives("boss", 2)
        await world.ready("a", "b")
        assert [(one["class"], one["reason"]) for one in world.exits("boss")] == [("error", "intensity")]
        assert world.pid("b") > before
        assert {one.parent for one in world.kernel.table.alive() if one.name in "ab"} == {"default/boss"}

    drive(tmp_path, test)


def test_a_parents_crash_leaves_its_children_alone_and_supervised(tmp_path: Path) -> None:
    """Supervision §6."""

    async def test(world: Nursery) -> None:
        await world.boss(health())
        await world.spawn(long("a"))
        await world.ready("a")
        before = world.pid("a")
        world.strike("boss")
        await world.lives("boss", 2)
        assert world.pid("a") == before
        world.strike("a")
        await world.lives("a", 2)
        assert world.kernel.table.find("a").parent == "default/boss"
        with pytest.raises(EEXIST):
            await world.spawn(long("a"))

    drive(tmp_path, test)


@pytest.mark.parametrize("how", ["stop", "manifest"])
def test_children_end_with_their_parents_run_for_good(tmp_path: Path, how: str) -> None:
    async def test(world: Nursery) -> None:
        await world.boss()
        await world.spawn(long("a"), long("b", role="service", agency={"allowed_roles": ["worker"]}))
        await world.ready("a", "b")
        if how == "stop":
            await world.call(Stop(agent="boss"))
            assert world.alive() == set()
        else:
            world.write_boss("[labels]\nnew = 'yes'\n")
            await world.apply("boss")
            await world.lives("boss", 2)
        await world.forgotten("a", "b")
        assert world.ends("a")[-1]["class"] == "requested"

    drive(tmp_path, test)


def test_a_run_that_ends_well_and_begins_anew_has_none_of_the_children_of_the_last(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        await world.boss(health(restart_policy="always"))
        await world.spawn(long("a"))
        await world.ready("a")
        await syscall(world.kernel, world.parent, Exit(status=0))
        await world.lives("boss", 2)
        assert world.exits("boss")[-1]["class"] == "normal"
        await world.forgotten("a")
        await world.spawn(long("a"))
        await world.ready("a")

    drive(tmp_path, test)


def test_the_next_kernel_takes_spawned_children_up_with_their_counters(tmp_path: Path) -> None:
    async def first(world: Nursery) -> None:
        await world.boss(health())
        await world.spawn(long("a"), long("b"))
        await world.ready("a", "b")
        world.strike("a")
        await world.lives("a", 2)
        await world.kernel.guests.close()  # as a kill -9 leaves it, nobody was asked

    async def second(world: Nursery) -> None:
        await world.ready("boss", "a", "b")
        assert world.record("a").consecutive == 1
        assert world.record("a").incarnation == 3
        assert world.kernel.table.find("a").restarted_from, "also over a kernel that died"
        rows = {one.name: one.parent for one in world.kernel.table.alive()}
        assert rows == {"boss": None, "a": "default/boss", "b": "default/boss"}
        await world.call(Stop(agent="b"))
        await world.forgotten("b")

    drive(tmp_path, first)
    drive(tmp_path, second)


def test_a_spawn_that_fails_leaves_nothing_and_is_not_tried_again(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        await world.boss()
        missing = {"name": "c", "role": "worker", "program": {"entry": "none.py:main"}}
        with pytest.raises(AgentOSError):
            await world.spawn(missing)
        await world.forgotten("c")
        assert "c" not in world.alive()
        await world.spawn(long("c"))
        await world.ready("c")

    drive(tmp_path, test)


def test_fewer_children_than_there_are_stop_the_youngest_first_and_their_parent_goes_on(tmp_path: Path) -> None:
    """Supervision §4: narrowed while it lives."""

    async def test(world: Nursery) -> None:
        await world.boss(most=4)
        await world.spawn(
            long("a"), long("b"), {"name": "plain", "program": {"argv": ["/bin/sleep", "1000"]}}, long("d")
        )
        await world.ready("a", "b", "d")
        world.strike("a")
        await world.lives("a", 2)
        before = world.pid("boss")
        world.write_boss(most=1)
        await world.apply("boss")
        await until(lambda: world.alive() == {"boss", "a"})
        await world.forgotten("b", "d")
        ends = [entry.agent.partition("/")[2] for entry, _ in world.kernel.journal.scan() if entry.kind == Kind.EXIT]
        assert ends == ["a", "d", "plain", "b"], "its age is over restarts"
        assert world.pid("boss") == before
        with pytest.raises(EDQUOT):
            await world.spawn(long("e"))
        world.strike("boss")
        await world.lives("boss", 2)
        with pytest.raises(EDQUOT):
            await world.spawn(long("e"))

    drive(tmp_path, test)


def test_an_operator_stops_and_restarts_a_spawned_child_and_does_not_declare_over_it(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        await world.boss()
        await world.spawn(long("a"), long("b"))
        await world.ready("a", "b")
        await world.call(Restart(agent="a"))
        assert world.record("a").incarnation == 2
        with pytest.raises(EBUSY, match="spawned by boss"):
            await world.call(Delete(agents=["a"]))
        world.manifest("a")
        with pytest.raises(EINVAL, match="was spawned by boss"):
            await world.apply("a")
        answer = await world.call(Stop(agent="a"))
        assert answer["state"] == "stopped"
        await world.forgotten("a")
        assert (await world.apply("boss", prune=True))["agents"][0]["change"] == "same"
        assert "b" in world.alive(), "it was not declared from that folder"

    drive(tmp_path, test)


def test_a_child_is_watched_as_its_manifest_says(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        await world.boss()
        words = {"ready": "exec:false", "start_timeout_secs": 0.3, "check_interval_secs": 0.1, "max_restarts": 0}
        await world.spawn(short("c", "exec sleep 1000", **words))
        assert (await world.wait("c"))["state"] == "failed"
        assert [one["class"] for one in world.ends("c")] == ["start_timeout"]

    drive(tmp_path, test)


def test_nobody_gives_a_child_more_of_the_machine_than_it_has(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        await world.boss()
        await world.spawn(long("c", resources={"priority": "critical"}))
        spec = world.kernel.fleet.spec("default/c")
        assert spec
        assert spec.priority == "normal"
        clamped = world.kernel.table.find("c").order["clamped"]
        assert {"key": "resources.priority", "wanted": "critical", "got": "normal"} in clamped

    drive(tmp_path, test)


def test_an_authors_program_hears_of_each_new_life_and_asks_for_more_than_it_holds(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        async def pay(key: str, params: Any) -> str:
            return "paid"

        world.kernel.tools.register(Tool("pay", pay, Effect.PURE))
        (world.project / "boss.py").write_text(PROGRAM)
        os.chmod(tmp_path, 0o755)
        world.write_boss()
        file = world.project / "boss.agent.toml"
        file.write_text(file.read_text().replace("boss.py:boss", "boss.py:family"))
        await world.apply("boss")
        approvals = world.kernel.approvals
        await until(lambda: bool(approvals.pending()))
        (question,) = approvals.pending()
        assert any(one.startswith("agent:spawn") for one in question.holds)
        approvals.decide(question.id, Actor("local:0"), approve=True, digest=question.digest)
        log = world.home / "logs/boss.log"
        await until(lambda: "granted" in log.read_text())
        said = log.read_text().splitlines()
        assert said == ["c error 1", "c error 2", "over: failed", "EPERM", "granted 1 paid"]

    drive(tmp_path, test)


def test_a_child_of_one_whom_no_manifest_declares_has_roots_terms_and_ends_with_it(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        (world.project / "boss.py").write_text(PROGRAM)
        os.chmod(tmp_path, 0o755)
        known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        order = {"cwd": str(world.project), "environment": known, "file": str(world.project / "boss.py")}
        order |= {"function": "boss", "python": sys.executable}
        parent = await world.kernel.guests.start(order, name="boss", caps=["agent:*:spawn{depth:8}"])
        await world.spawn(long("a"), long("b"))
        await world.ready("a", "b")
        world.strike("a")
        await world.lives("a", 2)
        assert [one.id for one in world.kernel.fleet.rows()] == ["system/root", "default/a", "default/b"]
        await world.kernel.end(parent, Ended(ExitClass.REQUESTED, -1, "the test is done"))
        assert world.alive() == set()
        await world.forgotten("a", "b")

    drive(tmp_path, test)


def test_whatever_goes_wrong_with_a_start_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the host is no end of supervision."""

    async def test(world: Nursery) -> None:
        await world.boss()
        await world.spawn(long("c"))
        await world.ready("c")
        start, failures = world.kernel.guests.start, 2

        async def failing(*args: Any, **keys: Any) -> Agent:
            nonlocal failures
            if failures:
                failures -= 1
                raise OSError(24, "too many open files")
            return await start(*args, **keys)

        monkeypatch.setattr(world.kernel.guests, "start", failing)
        world.strike("c")
        await until(lambda: failures == 0)
        await world.lives("c", 2)
        assert world.record("c").consecutive == 3

    drive(tmp_path, test)


@pytest.mark.parametrize("how", ["stop", "delete", "quarantine"])
def test_whoever_is_ended_between_two_lives_takes_along_whom_it_spawned(tmp_path: Path, how: str) -> None:
    async def test(world: Nursery) -> None:
        await world.boss("[health]\nbackoff = { base_ms = 60_000, cap_ms = 60_000, jitter = 'none' }\n")
        await world.spawn(long("member"), {"name": "plain", "program": {"argv": ["/bin/sleep", "1000"]}})
        world.strike("boss")
        await world.state("boss", "backoff")
        assert world.alive() == {"member", "plain"}, "a crash leaves them alone"
        requests = {"stop": Stop(agent="boss"), "delete": Delete(agents=["boss"])}
        await world.call(requests.get(how) or Panic(agent="boss", reason="a violation"))
        assert world.alive() == set()
        await world.forgotten("member")
        if how == "quarantine":
            assert str(world.record("boss")) == "quarantined"

    drive(tmp_path, test)


def test_a_violation_of_one_that_is_being_ended_for_something_else_ends_in_quarantine(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        boss = await world.boss(health(watchdog_secs=1000))
        boss.fate = Ended(ExitClass.WATCHDOG, -1, "silent")  # as between SIGABRT and SIGKILL
        await world.call(Panic(agent="boss", reason="a violation"))
        await world.state("boss", "quarantined")

    drive(tmp_path, test)


def test_long_last_words_hide_no_life_from_people(tmp_path: Path) -> None:
    async def test(world: Nursery) -> None:
        boss = await world.boss(health(max_restarts=2))
        for life in (2, 3):
            await syscall(world.kernel, boss, Exit(status=1, failure="x" * 900_000))
            await world.lives("boss", life)
            boss = world.parent
        told = (await world.call(History(agent="boss")))["lives"]
        assert [len(one["reason"] or "") for one in told] == [500, 500, 0]

    drive(tmp_path, test)
