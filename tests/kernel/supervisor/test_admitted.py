"""Declared agents and what they may: grants within those of their supervisor, roles, namespaces, one life at a time."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from agent_os.abi.syscalls import Apply, Delete, ListAgents, Logs, Reach, Restart, Stop
from agent_os.kernel.authority.labels import untrusted
from agent_os.kernel.authority.policy.rules import Layer
from agent_os.kernel.supervisor.admission import agency_of
from kernel.serving import chunks, until
from kernel.supervisor.declared import World, health, in_world, sh

pytestmark = pytest.mark.integration
BOSS = """
tools = ["search", "pay"]
tools_deny = ["sell"]
[capabilities]
network = ["api.example.org"]
[agency]
allowed_roles = ["worker", "service"]
[agency.capability_ceiling]
tools = ["search"]
network = ["*"]
[supervision]
children = ["a", "b"]
"""


def held(world: World, name: str) -> list[str]:
    found = world.kernel.table.find(name).holdings
    return [str(one.capability) for one in found if one.capability.kind == "tool"]


def test_a_declared_child_holds_a_part_of_what_its_supervisor_may_hand_on(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        (world.project / "boss.agent.toml").write_text(f'name = "boss"\nrole = "supervisor"\n{BOSS}')
        world.manifest("a", "[capabilities]\nnetwork = ['api.example.org']\n", top='tools = ["*"]\n')
        world.manifest("b", health(max_restarts=0), top='tools = ["pay"]\n')
        await world.apply()
        await world.ready("a")
        await world.state("b", "failed")
        assert held(world, "boss") == ["tool:search:call", "tool:pay:call"]
        assert held(world, "a") == ["tool:search:call{depth:2}"]
        hosts = [one.capability for one in world.kernel.table.find("a").holdings if one.capability.kind == "http"]
        assert [str(one.target) for one in hosts] == ["api.example.org/**"]
        assert "tools asks for tool:pay:call" in world.record("b").why
        rules = [rule for _, rule in world.kernel.authority.policies.of("default/a").rules()]
        assert [rule.id for rule in rules if rule.about(world.kernel.table.find("a").parties)] == ["boss tools_deny"]
        assert world.alive() == {"boss", "a"}
        rows = (await world.call(ListAgents()))["agents"]
        assert {(row["name"], row["role"], row["parent"]) for row in rows} == {
            ("boss", "supervisor", None),
            ("a", "worker", "default/boss"),
        }
        clamped = world.kernel.table.find("a").order["clamped"]
        assert [(one["key"], one["got"]) for one in clamped] == [("tools", ["tool:search:call"])]

    in_world(tmp_path, test)


def test_two_lives_of_one_agent_never_overlap_however_slow_the_first_is_to_die(tmp_path: Path) -> None:
    """N-12: whoever ignores every request is killed, and gone, before the next begins."""
    token = f"9999.{int.from_bytes(os.urandom(6))}"

    def living() -> int:
        count = 0
        for one in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                count += Path(f"/proc/{one}/cmdline").read_bytes() == f"sleep\0{token}\0".encode()
        return count

    async def test(world: World) -> None:
        script = f'trap "" TERM INT; exec sleep {token}'
        world.manifest("a", sh(script) + health() + "[lifecycle]\ngrace_secs = 0.3\n")
        await world.apply()
        await world.ready("a")
        await until(lambda: living() == 1)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, await asyncio.to_thread(living))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        for number in range(2, 5):
            await asyncio.gather(world.call(Restart(agent="a")), world.call(Restart(agent="a")), return_exceptions=True)
            await world.lives("a", number)
            await until(lambda: living() == 1)
        watching.cancel()
        assert most == 1
        await world.call(Stop(agent="a"))
        assert living() == 0

    in_world(tmp_path, test)


def test_two_agents_of_one_name_in_two_namespaces_have_nothing_in_common(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        workspace = "[sandbox]\nworkspace = 'overlay'\n"
        for place in ("", "lab"):
            folder = world.project / (place or "here")
            folder.mkdir()
            top = f'namespace = "{place}"\n' if place else ""
            program = sh(f"echo I am {place or 'here'}; echo x > {place or 'here'}.txt; exec sleep 1000")
            (folder / "a.agent.toml").write_text(f'name = "a"\nrole = "worker"\n{top}{program}{workspace}')
        files = {str(one): one.read_text() for one in world.project.glob("*/a.agent.toml")}
        from agent_os.abi.syscalls import Apply

        await world.call(Apply(files=files))
        for name in ("a", "lab/a"):
            await world.call(Reach(agent=name, state="ready"))
        for name, said in (("a", b"I am here\n"), ("lab/a", b"I am lab\n")):
            log = world.home / "logs" / f"{name.replace('/', '~')}.log"
            await until(lambda log=log: log.exists() and log.read_text() != "")
            assert b"".join(await chunks(world.client, Logs(agent=name))) == said
        assert {"a", "lab~a"} <= set(os.listdir(world.home / "work"))
        await world.call(Stop(agent="lab/a"))
        assert world.alive() == {"a"}

    in_world(tmp_path, test)


def test_what_a_manifest_denies_is_as_the_newest_manifest_says(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        def denied() -> list[str]:
            rules = world.kernel.authority.policies.of("default/a").rules()
            return [str(what) for file, rule in rules if file.layer is Layer.MANIFEST for what in rule.what]

        for number, tools in enumerate((["pay"], ["pay", "sell*"], []), 1):
            world.manifest("a", top=f'tools = ["*"]\ntools_deny = {tools}\n')
            await world.apply()
            await world.lives("a", number)
            assert denied() == [f"tool:{name}:call" for name in tools]

    in_world(tmp_path, test)


PARENT = """
from agent_os import agent

@agent
async def boss(ctx):
    for name in ("c1", "c2"):
        try:
            await ctx.spawn({"name": name, "role": "worker", "program": {"entry": "family.py:child"}})
        except Exception as refused:
            print(name, refused.code, flush=True)
    await ctx.sleep(600)

@agent
async def child(ctx):
    await ctx.sleep(600)
"""


def test_a_service_spawns_by_its_manifests_agency_and_a_new_manifest_ends_its_family(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        (world.project / "family.py").write_text(PARENT)
        os.chmod(tmp_path, 0o755)
        program = "[program]\nentry = 'family.py:boss'\n[sandbox]\nworkspace = 'overlay'\n"
        agency = "[agency]\nmax_children = {}\nallowed_roles = ['worker']\n"
        world.manifest("boss", program + agency.format(1), role="service")
        await world.apply()
        log = world.home / "logs/boss.log"
        await until(lambda: log.exists() and "c2 children" in log.read_text())
        (child,) = world.kernel.table.children("default/boss")
        assert (child.name, child.role) == ("c1", "worker")
        world.manifest("boss", program + agency.format(2), role="service")
        await world.apply()
        await world.lives("boss", 2)
        assert child.exit, "what it held was part of what its parent was given then"
        assert agency_of(world.kernel.table.find("boss")).max_children == 2

    in_world(tmp_path, test)


HELLO = """
from agent_os import agent

@agent
async def main(ctx):
    print("hello", flush=True)
    await ctx.sleep(600)
"""


def test_what_a_supervisor_shows_its_children_see_and_what_it_cannot_is_refused_by_name(tmp_path: Path) -> None:
    """Nobody runs without something that its manifest says it sees."""

    async def test(world: World) -> None:
        os.chmod(tmp_path, 0o755)
        (tmp_path / "data").mkdir(mode=0o755)
        (tmp_path / "data/x").write_text("CONTENT\n")
        (world.project / "main.py").write_text(HELLO)

        def mount(rights: str = "r", path: str = "/data") -> str:
            return f"[[mounts]]\npath = '{path}'\nsource = '{tmp_path}/data'\nrights = '{rights}'\n"

        children = "[supervision]\nchildren = {}\n"
        world.manifest("boss", mount() + children.format(["lower"]), role="supervisor")
        roles = "[agency]\nallowed_roles = ['supervisor', 'service', 'worker']\n"
        boss = (world.project / "boss.agent.toml").read_text().replace('agency = "role"\n', "")
        ceiling = "[agency.capability_ceiling]\nfilesystem_access = ['/data']\ncan_spawn = true\n"
        (world.project / "boss.agent.toml").write_text(boss + roles + ceiling)
        world.manifest("lower", mount() + children.format(["py", "good", "wide", "other"]), role="supervisor")
        world.manifest("py", "[program]\nentry = 'main.py:main'\n")
        world.manifest("good", mount() + sh("cat /data/x; exec sleep 600"))
        world.manifest("wide", mount("rw") + health(max_restarts=0))
        world.manifest("other", mount(path="/elsewhere") + health(max_restarts=0))
        await world.apply()
        await world.ready("py", "good")
        for name, said in (("py", "hello\n"), ("good", "CONTENT\n")):
            await until(lambda name=name, said=said: (world.home / f"logs/{name}.log").read_text() == said)
        for name in ("wide", "other"):
            await world.state(name, "failed")
            assert "mounts.0: file:/" in world.record(name).why

    in_world(tmp_path, test)


def test_a_supervisor_that_is_refused_leaves_no_row_behind(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("boss", "[supervision]\nchildren = ['lower']\n", role="supervisor")
        world.manifest("lower", "[supervision]\nchildren = ['a']\n", role="supervisor")
        world.manifest("a")
        await world.apply()
        await world.state("lower", "failed")
        assert "not a supervisor" in world.record("lower").why, "it is not in the role's usual agency"
        assert world.alive() == {"boss"}

    in_world(tmp_path, test)


def test_what_a_child_mounts_is_what_its_supervisor_sees_under_that_name(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        os.chmod(tmp_path, 0o755)
        for name in ("data", "data/below", "secret"):
            (tmp_path / name).mkdir(mode=0o755)

        def mount(source: str, path: str) -> str:
            return f"[[mounts]]\npath = '{path}'\nsource = '{tmp_path}/{source}'\n"

        wrong = {"other": ("secret", "/data"), "moved": ("data", "/data/below")}
        names = [*wrong, "good"]
        world.manifest("boss", mount("data", "/data") + f"[supervision]\nchildren = {names}\n", role="supervisor")
        for name, (source, path) in wrong.items():
            world.manifest(name, mount(source, path) + health(max_restarts=0))
        world.manifest("good", mount("data/below", "/data/below"))
        await world.apply()
        await world.ready("good")
        for name in wrong:
            await world.state(name, "failed")
            assert "is not what boss sees there" in world.record(name).why

    in_world(tmp_path, test)


@pytest.mark.parametrize("mode", ["overlay", "bind"])
def test_a_child_works_in_no_folder_that_its_supervisor_cannot_show(tmp_path: Path, mode: str) -> None:
    async def test(world: World) -> None:
        os.chmod(tmp_path, 0o755)
        for folder in (tmp_path / "other", world.project / "below"):
            folder.mkdir()
        (world.project / "linked").symlink_to(tmp_path / "other")
        work = f"[sandbox]\nworkspace = '{mode}'\n"
        world.manifest("boss", work + "[supervision]\nchildren = ['a', 'b', 'c']\n", role="supervisor")
        files = {world.project / "boss.agent.toml": (world.project / "boss.agent.toml").read_text()}
        for name, folder in (
            ("a", tmp_path / "other"),
            ("b", world.project / "linked"),
            ("c", world.project / "below"),
        ):
            files[folder / f"{name}.agent.toml"] = world.manifest(name, work + health(max_restarts=0)).read_text()
        await world.call(Apply(files={str(file): text for file, text in files.items()}))
        await world.ready("c")
        for name in ("a", "b"):
            await world.state(name, "failed")
            assert "program: " in world.record(name).why

    in_world(tmp_path, test)


def test_a_child_writes_through_to_the_host_only_if_its_supervisor_does(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("boss", "[supervision]\nchildren = ['a']\n", role="supervisor")
        world.manifest("a", "[sandbox]\nworkspace = 'bind'\n" + health(max_restarts=0))
        await world.apply()
        await world.state("a", "failed")
        assert "delete,read,write is more than boss holds" in world.record("a").why

    in_world(tmp_path, test)


def test_no_life_sees_what_an_earlier_one_made_a_link_to(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        os.chmod(tmp_path, 0o755)
        os.chmod(world.project, 0o777)
        (tmp_path / "private").mkdir(mode=0o755)
        (tmp_path / "private/x").write_text("PRIVATE\n")
        (world.project / "cache").mkdir()
        script = f"cat /cache/x; rmdir cache && ln -s {tmp_path}/private cache; exit 1"
        mount = "[sandbox]\nworkspace = 'bind'\n[[mounts]]\npath = '/cache'\nsource = 'cache'\n"
        world.manifest("a", mount + sh(script) + health(max_restarts=3))
        await world.apply()
        await world.state("a", "failed")
        assert (world.project / "cache").is_symlink(), "it did what it could"
        assert "somebody has put a link there" in world.record("a").why
        assert "PRIVATE" not in (world.home / "logs/a.log").read_text()

    in_world(tmp_path, test)


def test_an_end_is_told_also_if_the_project_is_not_there_any_more(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", "[sandbox]\nworkspace = 'overlay'\n" + health(restart_policy="never"))
        await world.apply()
        await world.ready("a")
        world.project.rename(tmp_path / "moved")
        world.strike("a")
        await world.state("a", "failed")

    in_world(tmp_path, test)


SEARCHES = """
tools = ["{tool}"]
{more}
[agency]
allowed_roles = ["worker"]
[agency.capability_ceiling]
tools = ["{tool}"]
[supervision]
children = ["a"]
"""


def boss(world: World, tool: str = "search", more: str = "") -> None:
    text = SEARCHES.format(tool=tool, more=more)
    (world.project / "boss.agent.toml").write_text(f'name = "boss"\nrole = "supervisor"\n{text}')


def test_who_is_moved_below_a_supervisor_holds_no_more_than_that_may_hand_on(tmp_path: Path) -> None:
    """N-02, N-03: also what it was given before."""

    async def test(world: World) -> None:
        world.manifest("a", health(max_restarts=0), top='tools = ["search", "pay"]\n')
        await world.apply()
        await world.ready("a")
        boss(world)
        await world.apply("boss")
        await world.state("a", "failed")
        assert "tools asks for tool:pay:call" in world.record("a").why
        world.manifest("a", health(max_restarts=0), top='tools = ["search"]\n')
        await world.apply("a")
        await world.ready("a")
        assert held(world, "a") == ["tool:search:call{depth:2}"]
        assert world.kernel.budgets.chain("default/a") == ("default/a", "default/boss", "operator")

    in_world(tmp_path, test)


def test_a_supervisor_that_was_given_something_else_hands_that_on(tmp_path: Path) -> None:
    """Nobody goes on with what is not there any more, neither with all of it nor with nothing."""

    async def test(world: World) -> None:
        boss(world)
        world.manifest("a", health(max_restarts=0), top='tools = ["search"]\n')
        await world.apply()
        await world.ready("a")
        boss(world, more='description = "the same"')
        await world.apply("boss")
        await world.lives("a", 2)
        assert held(world, "a") == ["tool:search:call{depth:2}"]
        boss(world, tool="pay")
        await world.apply("boss")
        await world.state("a", "failed")
        assert "tools asks for tool:search:call" in world.record("a").why

    in_world(tmp_path, test)


def test_a_projects_rules_hold_for_whoever_is_declared_there_with_a_workspace_or_without(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        (world.project / ".agents").mkdir()
        rule = '[[rule]]\nid = "no-pay"\neffect = "forbid"\nwhat = ["tool:pay:call"]\n'
        (world.project / ".agents/policy.toml").write_text(f'version = 1\ndefault = "capability"\n{rule}')
        world.manifest("boss", "[supervision]\nchildren = ['b']\n", role="supervisor")
        world.manifest("a")
        (world.project / "below").mkdir()
        file = world.manifest("b").rename(world.project / "below/b.agent.toml")
        files = [*world.project.glob("*.agent.toml"), file]
        await world.call(Apply(files={str(one): one.read_text() for one in files}))
        await world.ready("a", "b")
        for name in ("a", "b"):
            rules = [rule.id for _, rule in world.kernel.authority.policies.of(f"default/{name}").rules()]
            assert "no-pay" in rules

    in_world(tmp_path, test)


@pytest.mark.parametrize("anew", ["changed", "deleted"])
def test_who_goes_on_with_an_earlier_workspace_carries_what_is_in_it(tmp_path: Path, anew: str) -> None:
    """Neither a changed manifest nor a delete and an apply make clean what lies there."""

    async def test(world: World) -> None:
        work = "[sandbox]\nworkspace = 'overlay'\n" + sh("cat found; echo secret > found; echo wrote; exec sleep 600")
        world.manifest("a", work)
        await world.apply()
        await world.ready("a")
        log, labels = world.home / "logs/a.log", world.kernel.authority.labels
        await until(lambda: "wrote" in log.read_text())
        label = untrusted("http:elsewhere", "customers")
        labels.take_in("default/a", label)
        if anew == "deleted":
            await world.call(Delete(agents=["a"]))
        world.manifest("a", work, top='description = "another one"\n')
        await world.apply()
        await until(lambda: "secret" in log.read_text())
        assert labels.of("default/a").holds(label)

    in_world(tmp_path, test)
