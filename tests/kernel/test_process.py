"""A guest from start to end: what is recorded, what stops it, and how it ended in the operator's words."""

import asyncio
import os
from pathlib import Path
from typing import get_args

import pytest

from agent_os.abi.entries import Kind, decode
from agent_os.abi.errors import EACCES, EISOLATION
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import process
from agent_os.kernel.journal import Journal
from agent_os.kernel.plan import Host, Mode, Order
from agent_os.kernel.records import Records
from agent_os.kernel.supervisor.life import is_permanent
from agent_os.sandbox.spawner import Launcher, SandboxError
from agent_os.sandbox.spec import GUEST_LIMITS


@pytest.fixture
def host(tmp_path: Path) -> Host:
    state, home = tmp_path / "state", tmp_path / "home"
    state.mkdir()
    home.mkdir()
    return Host(state, home, {"PATH": "/usr/bin:/bin", "AWS_SECRET_ACCESS_KEY": "SECRET"})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "project"
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize(
    ("problem", "kind", "code", "words"),
    [
        (SandboxError("setup", "No such file", "exec", 2), EACCES, "command.exec", "could not be executed"),
        (SandboxError("setup", "EPERM", "L3", 1), EISOLATION, "level", "no user namespace"),
        (SandboxError("level", "this host reaches S1", "C16", 1), EISOLATION, "level", "reaches S1"),
        (SandboxError("setup", "failpoint", "C5", 5), EISOLATION, "setup", "step C5"),
        (SandboxError("launcher", "gone"), EISOLATION, "launcher", "gone"),
        (SandboxError("setup", "/p/.env is another file", "C9", 116), EISOLATION, "moved", "another file"),
        (SandboxError("idmap", "EINVAL", "trees", 22), EACCES, "workspace.unreadable", "cannot lend"),
    ],
)
def test_a_failure_is_explained(problem: SandboxError, kind: type, code: str, words: str) -> None:
    error = process.explain(problem, Order(("x",), Path("/"), Path("/p")))
    assert type(error) is kind
    assert error.code == code
    assert words in error.reason
    assert error.hint
    assert error.retryable == (code in ("launcher", "moved"))
    assert is_permanent(error) != error.retryable


@pytest.mark.parametrize("ending", get_args(process.Ending))
def test_whoever_was_ended_did_not_succeed_also_if_it_came_to_its_own_end_in_that_moment(
    ending: process.Ending,
) -> None:
    assert (process.status_of(ending, 0) == 0) is (ending == "exited")
    assert process.status_of("exited", 3) == process.status_of("killed", 3) == 3


async def run(order: Order, host: Host, **simulate: object) -> process.Outcome:
    store = SqliteStore(host.state / "journal.db", reserve=0)
    journal = Journal.open(store, home=host.state)
    launcher = await Launcher.start(**simulate)  # type: ignore[arg-type]
    null = os.open(os.devnull, os.O_RDWR)
    try:
        guest = await process.start(order, (null, null, null), host, launcher, Records(journal))
        return await guest.finish()
    finally:
        os.close(null)
        await launcher.close()
        await journal.close()
        store.close()


@pytest.mark.integration
def test_a_guest_that_fills_its_disk_is_stopped(host: Host, project: Path) -> None:
    fill = "i=0; while :; do head -c 1000000 /dev/zero > f$i; i=$((i+1)); done"
    order = Order(("/bin/sh", "-c", fill), project, project, limits=GUEST_LIMITS._replace(disk_mb=5))
    outcome = asyncio.run(run(order, host))
    assert (outcome.ending, outcome.code) == ("disk", 137)


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["overlay", "bind", "tmpfs"])
def test_a_guest_that_fills_its_tmp_is_stopped_and_it_is_gone(host: Host, project: Path, mode: Mode) -> None:
    fill = "i=0; while :; do head -c 1000000 /dev/urandom > /tmp/f$i; i=$((i+1)); done"
    place = None if mode == "tmpfs" else project
    order = Order(("/bin/sh", "-c", fill), project, place, mode=mode, limits=GUEST_LIMITS._replace(tmp_mb=5))
    outcome = asyncio.run(run(order, host))
    assert (outcome.ending, outcome.code) == ("tmp", 137)
    assert [entry.name for entry in (host.state / "tmp").iterdir()] == [".lock"]


@pytest.mark.integration
def test_without_an_overlay_the_project_is_copied(host: Host, project: Path) -> None:
    """Same commands, same promise."""
    (project / "old").write_text("old")
    order = Order(("/bin/sh", "-c", "echo new > old; echo made > made; ls"), project, project)
    outcome = asyncio.run(run(order, host, without=("overlay",)))
    assert outcome.workspace
    assert outcome.workspace.meta.mode == "copy"
    assert (project / "old").read_text() == "old"
    assert sorted(change.path for change in outcome.changes) == ["made", "old"]
    report = outcome.workspace.commit()
    assert report.complete
    assert (project / "old").read_text() == "new\n"


@pytest.mark.integration
def test_every_run_is_recorded_before_and_after(host: Host, project: Path) -> None:
    asyncio.run(run(Order(("/bin/sh", "-c", "exit 3"), project, project), host))
    store = SqliteStore(host.state / "journal.db", read_only=True)
    entries = [decode(row.entry) for row in store.rows(1) if decode(row.entry).agent.startswith("default/")]
    assert [entry.kind for entry in entries] == [Kind.SPAWN, Kind.STATE, Kind.STATE]
    assert entries[1].isolation >= "S2"
    store.close()


@pytest.mark.integration
def test_a_cancelled_run_leaves_nothing(host: Host, project: Path) -> None:
    async def body() -> None:
        running = asyncio.create_task(run(Order(("/bin/sleep", "602.5"), project, project), host))
        while b"602.5" not in b"".join(_command_lines()):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(body())
    assert b"602.5" not in b"".join(_command_lines())


def _command_lines() -> list[bytes]:
    found: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found
