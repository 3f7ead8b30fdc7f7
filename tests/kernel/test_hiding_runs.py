"""What rules cover stays covered: whatever an agent renames, and whatever others do around it."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from agent_os.abi.errors import EISOLATION
from agent_os.kernel.table import Agent
from agent_os.sandbox.spawner import Launcher
from kernel.serving import until
from kernel.test_governing_runs import HEAD, Run

pytestmark = pytest.mark.integration


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    for name in ("conf/key", "conf/deep/key", "other/plain"):
        for top in (run.project, tmp_path / "data"):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text("CANARY" if name.endswith("key") else "plain")
    opened(tmp_path / "data")
    opened(run.project)
    return run


def opened(top: Path) -> None:
    """For whatever uid an agent has."""
    for path in (top, *top.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)


def forbid(*what: str) -> str:
    return HEAD + f'[[rule]]\nid = "r"\neffect = "forbid"\nwhat = {list(what)!r}\n'.replace("'", '"')


async def begun(run: Run, script: str, name: str, **more: object) -> Agent:
    agent = await run.kernel.guests.start(run.order(argv=["sh", "-c", script], **more), name=name)
    log = run.home / "logs" / f"{name}.log"
    await until(lambda: log.exists() and "begun" in log.read_text())
    return agent


RENAMES = """
import os
def rename(old, new):
    try:
        os.rename(old, new)
        print("done", old)
    except OSError as error:
        print(error.errno, old)
os.chdir("TOP")
for old, new in (("conf", "conf2"), ("conf/deep", "deep"), ("conf/key", "k"), ("other", "conf/other"), ("conf/a", "a")):
    open("conf/a", "w").close()
    rename(old, new)
"""


@pytest.mark.parametrize("place", ["workspace", "mount"])
def test_a_folder_with_forbidden_content_cannot_be_renamed_and_all_else_in_it_can(run: Run, place: str) -> None:
    data = run.project.parent / "data"
    top, inside = (run.project, "/work") if place == "workspace" else (data, "/data")

    async def test() -> None:
        (run.project / "renames.py").write_text(RENAMES.replace("TOP", inside))
        ways = {"workspace": "bind:.", "mounts": [f"rw:{data}:/data"]}
        said = await run.shell(
            "python3 renames.py; cat /work/conf*/key /data/conf*/key; ls /.held/0 || echo unseen", **ways
        )
        busy = "16 conf\n16 conf/deep\n16 conf/key\n"
        assert f"{busy}done other\ndone conf/a\n" in said
        assert "CANARY" not in said
        assert "unseen\n" in said  # what holds them
        assert "CANARY" not in await run.shell("cat conf*/key */deep/key deep/key", name="next", **ways)
        assert (top / "conf/key").read_text() == (top / "conf/deep/key").read_text() == "CANARY"
        assert (top / "conf/other/plain").read_text() == "plain"

    run.policy(forbid("file:/work/conf/**/key:read", "file:/data/conf/**/key:read"))
    run(test)


def test_what_is_forbidden_to_be_written_or_removed_is_not_where_the_host_would_have_it_at_once(run: Run) -> None:
    data = run.project.parent / "data"

    async def test() -> None:
        script = """
        for top in /work /data; do cd $top
            echo EVIL > conf/key; echo EVIL > conf/new; rm conf/key; mv conf c2; rm other/plain; mv other o2
            mv other/plain p2; echo changed > other/plain; echo fine > allowed
        done; echo EVIL > /all/new; cat /all/other/plain"""
        mounts = [f"rw:{data}:/data", f"rw:{run.project / 'sub'}:/all"]
        (run.project / "sub/other").mkdir()
        (run.project / "sub/other/plain").write_text("seen")
        opened(run.project / "sub")
        assert "seen" in await run.shell(script, workspace="bind:.", mounts=mounts)
        for top in (run.project, data):
            assert (top / "conf/key").read_text() == "CANARY"
            assert sorted(os.listdir(top / "conf")) == ["deep", "key"]
            assert (top / "other/plain").read_text() == "changed\n"
            assert (top / "allowed").read_text() == "fine\n"
        assert not (run.project / "sub/new").exists()

    both = [f"file:{top}/{what}" for top in ("/work", "/data") for what in ("conf/**:write", "other/plain:delete")]
    run.policy(forbid(*both, "file:/all/**:write"))
    run(test)


def test_an_overlay_is_written_freely_as_its_changes_are_judged_at_the_commit(run: Run) -> None:
    async def test() -> None:
        assert "changed" in await run.shell("echo changed > conf/key; cat conf/key")
        assert (run.project / "conf/key").read_text() == "CANARY"

    run.policy(forbid("file:/work/conf/key:write"))
    run(test)


@pytest.mark.parametrize("workspace", [None, "bind:."])
def test_what_is_moved_between_the_look_and_the_mount_is_looked_for_again(run: Run, workspace: str | None) -> None:
    def swap() -> None:
        if moved:
            (run.project / "conf").rename(run.project / moved.pop())
            (run.project / "other").rename(run.project / "conf")

    async def start(name: str) -> str:
        order = run.order(argv=["sh", "-c", "cat conf/key elsewhere*/key; cat conf/plain"], workspace=workspace)
        agent = await run.kernel.guests.start(order, name=name, confirm=swap)
        await run.kernel.wait_for(agent)
        await until(lambda: not run.kernel.guests.busy)
        return (run.home / "logs" / f"{name}.log").read_text()

    async def test() -> None:
        said = await start("a")
        assert not moved
        assert "plain" in said
        assert "CANARY" not in said

    moved = ["elsewhere"]
    (run.project / "other/key").write_text("public")  # what the cover would lie on
    run.policy(forbid("file:/work/conf/key:read", "file:/work/elsewhere/key:read"))
    run(test)


def test_whoever_moves_it_each_time_keeps_the_agent_from_starting(run: Run) -> None:
    def move() -> None:
        here = next(run.project.glob("conf*"))
        here.rename(run.project / f"conf{len(here.name)}{here.name[4:]}")

    async def test() -> None:
        order = run.order(argv=["true"], workspace="bind:.")
        with pytest.raises(EISOLATION, match="was moved during the spawn"):
            await run.kernel.guests.start(order, name="a", confirm=move)

    run.policy(forbid("file:/work/*/key:read"))
    run(test)


def replaced(file: Path) -> None:
    new = file.with_name("new")
    new.write_text("REPLACED")
    new.chmod(0o666)
    new.rename(file)


@pytest.mark.parametrize("place", ["mount", "workspace"])
def test_an_agent_ends_when_somebody_outside_replaces_what_is_covered(run: Run, place: str) -> None:
    data = run.project.parent / "data"
    file = (data if place == "mount" else run.project) / "conf/key"

    async def test() -> None:
        ways = {"mounts": [f"{data}:/data"]} if place == "mount" else {"workspace": "bind:."}
        agent = await begun(run, "echo begun; sleep 60", "a", **ways)
        replaced(file)
        await run.kernel.wait_for(agent)
        assert agent.exit
        assert (
            f"was replaced, and is not covered any more: {'/data' if place == 'mount' else run.project}/conf/key"
            in agent.exit.reason
        )

    run.policy(forbid("file:/work/conf/key:read", "file:/data/conf/key:read"))
    run(test)


def test_an_overlay_holds_what_it_covers_so_that_nobody_has_to_end(run: Run) -> None:
    async def test() -> None:
        agent = await begun(run, "echo begun; sleep 0.8; cat conf/key; echo over", "a")
        replaced(run.project / "conf/key")
        await run.kernel.wait_for(agent)
        await until(lambda: not run.kernel.guests.busy)
        assert (run.home / "logs/a.log").read_text() == "begun\nover\n"

    run.policy(forbid("file:/work/conf/key:read"))
    run(test)


def test_a_copy_in_place_of_an_overlay_is_covered_and_held_as_well(run: Run) -> None:
    async def test() -> None:
        run.kernel.guests._starting = asyncio.create_task(Launcher.start(without=("overlay",)))
        said = await run.shell("mv conf conf2; cat conf/key conf2/key other/plain; mv other o2", after="commit")
        assert "plain" in said
        assert "CANARY" not in said
        assert (run.project / "o2/plain").read_text() == "plain"
        assert not (run.project / "conf2").exists()

    run.policy(forbid("file:/work/conf/key:read"))
    run(test)


def test_what_a_program_brings_along_is_covered_as_well(run: Run) -> None:
    venv = run.project.parent / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(venv)], check=True)
    (venv / "secret.key").write_text("CANARY")
    (venv / "plain").write_text("plain text")
    program = venv / "bin/prog"
    program.write_text(f"#!{venv}/bin/python\nfor n in ('secret.key', 'plain'): print(open('{venv}/' + n).read())\n")
    program.chmod(0o755)

    async def test() -> None:
        agent = await run.kernel.guests.start(run.order(argv=[str(program)]), name="a")
        assert "customer" in run.kernel.authority.labels.of(agent.id).classes  # taken as read from the start
        await run.kernel.wait_for(agent)
        await until(lambda: not run.kernel.guests.busy)
        said = (run.home / "logs/a.log").read_text()
        assert "plain text" in said
        assert "CANARY" not in said

    source = f'[[source]]\nwhat = ["file:{venv}/plain:read"]\nintegrity = "trusted"\nclasses = ["customer"]\n'
    run.policy(forbid(f"file:{venv}/secret.key:read") + source)
    run(test)
