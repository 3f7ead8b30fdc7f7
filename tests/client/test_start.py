"""Kernels started in the background: one for a home however many ask, gone with its last user, clear when it fails."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leftovers
from agent_os.abi.errors import EACCES, EHOSTUNREACH, EIO
from agent_os.abi.syscalls import ListAgents, Status
from agent_os.client import place
from agent_os.client.start import connected, launch, session
from agent_os.client.wire import connect
from guests.agentctl import AGENTCTL

pytestmark = pytest.mark.integration


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home whose kernels are all gone afterwards."""
    leftovers.adopt_orphans()
    others = set(leftovers.processes())
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "state"))
    yield tmp_path / "state"
    assert leftovers.becomes_true(lambda: not set(leftovers.processes()) - others), leftovers.processes()


def kernels() -> set[int]:
    return {pid for pid, command in leftovers.processes().items() if "agent_os.daemon" in command}


def test_many_who_start_one_at_once_get_the_same_kernel(home: Path) -> None:
    async def ask(came: asyncio.Semaphore, all_here: asyncio.Event) -> int:
        async with session() as (client, _):
            facts = await client.call(Status())
            await came.acquire()
            if came.locked():
                all_here.set()
            await all_here.wait()  # nobody leaves before everybody came
            return facts["pid"]

    async def everybody() -> list[int]:
        came, all_here = asyncio.Semaphore(5), asyncio.Event()
        return await asyncio.gather(*(ask(came, all_here) for _ in range(5)))

    assert len(set(asyncio.run(everybody()))) == 1


@pytest.mark.parametrize("follows", [True, False])
def test_a_kernel_that_an_agent_will_follow_has_started_its_launcher(home: Path, follows: bool) -> None:
    async def has_launcher() -> bool:
        async with session(same=follows):
            return any("agent_os.sandbox.launcher" in command for command in leftovers.processes().values())

    assert asyncio.run(has_launcher()) is follows


_LATER = """
import asyncio, pkgutil, sys
from types import SimpleNamespace
from agent_os import lazy
from agent_os.daemon import process
before = set(sys.modules)
assert lazy.waiting
kernel = SimpleNamespace(halting=False, tools=SimpleNamespace(classes=lambda: None))
asyncio.run(asyncio.wait_for(process.load_the_rest(kernel), 60))
rooms = [sys.modules[f"agent_os.{room}"] for room in ("abi", "drivers", "kernel", "manifest")]
ours = [one.name for room in rooms for one in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
print(len(set(ours) - before), *(set(ours) - set(sys.modules)), *lazy.waiting)
"""


def test_what_a_start_left_out_is_loaded_soon_after_it() -> None:
    """A kernel whose files are replaced must not find the new ones."""
    done = subprocess.run([sys.executable, "-c", _LATER], capture_output=True, text=True, check=True)
    count, *missing = done.stdout.split()
    assert int(count) > 20
    assert missing == []


def test_a_kernel_that_somebodys_command_started_is_gone_when_the_last_one_leaves(home: Path) -> None:
    async def scenario() -> None:
        async with session() as (first, new):
            assert new
            async with session() as (second, again):
                assert not again
                assert second.pid == first.pid
            assert kernels() == {first.pid}  # somebody is still there
        assert kernels() == set()

    asyncio.run(scenario())
    assert not (home / "run" / "kernel.sock").exists()


def test_who_only_looks_whether_a_kernel_is_there_does_not_end_it(home: Path) -> None:
    """So does the second of two kernels that are started at once, before the first one's client has come."""

    async def scenario() -> None:
        assert await launch()
        (first,) = kernels()
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(place.control_socket()))
        assert not leftovers.becomes_true(lambda: first not in kernels(), 1)
        async with session() as (client, new):
            assert (client.pid, new) == (first, False)

    asyncio.run(scenario())


def test_a_client_that_dies_is_not_waited_for(home: Path) -> None:
    script = "import asyncio\nfrom agent_os.client.start import session\n"
    script += "async def stay():\n  async with session() as (client, _):\n    print(client.pid, flush=True)\n"
    script += "    await asyncio.sleep(600)\nasyncio.run(stay())"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as client:
        assert client.stdout
        kernel = int(client.stdout.readline())
        assert kernel in kernels()
        client.kill()
    assert leftovers.becomes_true(lambda: not kernels())


def test_one_that_was_started_to_stay_stays(home: Path) -> None:
    async def scenario() -> int:
        async with connected(stay=True) as (client, new):
            assert new
            pid = client.pid
        async with session(start=False) as (client, _):
            assert (await client.call(ListAgents()))["agents"] == []
        return pid

    pid = asyncio.run(scenario())
    assert kernels() == {pid}
    os.kill(pid, signal.SIGTERM)


def test_without_the_wish_to_start_one_its_absence_is_told(home: Path) -> None:
    async def look() -> None:
        async with session(start=False):
            pass

    with pytest.raises(EHOSTUNREACH, match="no kernel is running"):
        asyncio.run(look())
    assert not home.exists()


def test_the_socket_is_its_owners_alone(home: Path) -> None:
    async def look() -> tuple[int, int]:
        async with session():
            place_of = place.control_socket()
            return place_of.stat().st_mode, place_of.parent.stat().st_mode

    socket_mode, directory_mode = asyncio.run(look())
    assert stat.S_ISSOCK(socket_mode)
    assert (stat.S_IMODE(socket_mode), stat.S_IMODE(directory_mode)) == (0o600, 0o700)


def test_a_socket_that_a_killed_kernel_left_is_replaced(home: Path) -> None:
    async def killed() -> None:
        async with connected() as (client, _):
            os.kill(client.pid, signal.SIGKILL)
            await client.ended()

    asyncio.run(killed())
    assert (home / "run" / "kernel.sock").exists()

    async def again() -> bool:
        async with session() as (_, new):
            return new

    assert asyncio.run(again())


def test_a_home_that_cannot_be_is_told_by_whoever_wanted_it(home: Path) -> None:
    home.write_text("a file")

    async def start() -> None:
        async with session():
            pass

    with pytest.raises(EACCES, match="state directory") as caught:
        asyncio.run(start())
    assert "AGENT_OS_HOME" in caught.value.hint


def test_a_kernel_that_fails_at_its_start_says_why(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "journal.db").write_bytes(b"this is no database, and never was one" * 100)

    async def start() -> None:
        async with session():
            pass

    with pytest.raises(EIO) as caught:
        asyncio.run(start())
    assert "journal.db" in caught.value.reason


def test_a_second_kernel_on_one_home_says_who_has_it(home: Path) -> None:
    async def scenario() -> "tuple[int, subprocess.CompletedProcess[bytes]]":
        async with session() as (client, _):
            reading, writing = os.pipe()
            command = [sys.executable, "-m", "agent_os.daemon", "--home", str(home), "--ready-fd", str(writing)]
            second = await asyncio.to_thread(subprocess.run, command, pass_fds=(writing,), capture_output=True)
            os.close(writing)
            with open(reading, "rb") as said:
                return client.pid, (second.returncode, json.loads(said.read()))

    pid, (code, said) = asyncio.run(scenario())
    assert (code, said) == (75, {"held": pid})


def test_the_chosen_socket_is_used(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere" / "my.sock"
    monkeypatch.setenv("AGENT_OS_SOCKET", str(elsewhere))

    async def look() -> None:
        async with session(), connect(elsewhere) as client:
            await client.call(Status())

    asyncio.run(look())
    assert leftovers.becomes_true(lambda: not elsewhere.exists())  # the kernel may see both go in either order
    assert leftovers.becomes_true(lambda: not kernels())


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"AGENT_OS_HOME": "/h"}, "/h/run/kernel.sock"),
        ({"AGENT_OS_HOME": "/h", "XDG_RUNTIME_DIR": "/r"}, "/h/run/kernel.sock"),
        ({"XDG_RUNTIME_DIR": "/r"}, "/r/agent-os/kernel.sock"),
        ({"XDG_STATE_HOME": "/s"}, "/s/agent-os/run/kernel.sock"),
        ({"HOME": "/u"}, "/u/.local/state/agent-os/run/kernel.sock"),
        ({"AGENT_OS_SOCKET": "/x/y.sock", "AGENT_OS_HOME": "/h"}, "/x/y.sock"),
    ],
)
def test_where_the_socket_is(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENT_OS_HOME", "AGENT_OS_SOCKET", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(place.control_socket()) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/u"}, "/u/.config/agent-os/agents"),
        ({"XDG_CONFIG_HOME": "/c"}, "/c/agent-os/agents"),
        ({"AGENT_OS_HOME": "/h", "XDG_CONFIG_HOME": "/c"}, "None"),  # nobody else's agents start in a chosen home
        ({"AGENT_OS_HOME": "/h", "AGENT_OS_AGENTS": "/a"}, "/a"),
    ],
)
def test_where_manifests_are_scanned(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AGENT_OS_HOME", "AGENT_OS_AGENTS", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(place.agents()) == expected


def test_down_asks_agents_to_end_before_it_ends_them(home: Path, tmp_path: Path) -> None:
    tidy = "trap 'echo tidied > tidied; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    command = [*AGENTCTL, "run", "-T", "--name", "tidy", "--", "sh", "-c", tidy]
    (tmp_path / "project").mkdir()
    with subprocess.Popen(command, cwd=tmp_path / "project", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout
        assert run.stdout.readline() == b"ready\n"
        subprocess.run([*AGENTCTL, "down"], capture_output=True, timeout=60, check=True)
        run.communicate(timeout=60)
    told = subprocess.run([*AGENTCTL, "diff", "tidy"], capture_output=True, text=True, timeout=60)
    assert "tidied" in told.stdout


def test_up_status_and_down(home: Path) -> None:
    def ctl(*words: str, expect: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run([*AGENTCTL, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == expect, done
        return done

    assert "no kernel is running" in ctl("status", expect=8).stderr
    assert "no kernel is running" in ctl("down").stderr
    (pid,) = {int(ctl("up", "--detach").stdout.split("pid ")[1].split()[0])}
    assert kernels() == {pid}
    assert "(it ran)" in ctl("up", "-d").stdout
    facts = json.loads(ctl("status", "--json").stdout)
    assert (facts["pid"], facts["auto"], facts["journal"], facts["socket"]) == (
        pid,
        False,
        "ok",
        str(place.control_socket()),
    )
    name = ctl("run", "-d", "--workspace", "tmpfs", "--", "sleep", "1007.5").stdout.strip()
    assert "1 running" in ctl("status").stdout
    assert f"process {pid}, and 1 agent" in ctl("down").stderr
    assert kernels() == set()
    assert not [pid for pid, command in leftovers.processes().items() if "1007.5" in command]
    assert ctl("wait", name, expect=137).stdout.startswith(name)


def test_up_in_the_foreground_ends_with_ctrl_c(home: Path) -> None:
    with subprocess.Popen([*AGENTCTL, "up"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        assert up.stdout
        assert "ok    kernel" in up.stdout.readline()
        assert leftovers.becomes_true(lambda: len(kernels()) == 1)
        up.send_signal(signal.SIGINT)
        _, err = up.communicate(timeout=60)
    assert up.returncode == 0
    assert "stopped  kernel" in err
    assert kernels() == set()


def test_up_adopts_a_kernel_that_a_run_started(home: Path) -> None:
    command = [*AGENTCTL, "run", "-q", "--workspace", "tmpfs", "--", "sh", "-c", "echo up; read line"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout
        assert run.stdout.readline() == b"up\n"
        done = subprocess.run([*AGENTCTL, "up", "-d"], capture_output=True, text=True, check=True, timeout=60)
        run.communicate(b"\n", timeout=60)
    assert "(it ran)" in done.stdout
    assert len(kernels()) == 1
    subprocess.run([*AGENTCTL, "down"], check=True, capture_output=True, timeout=60)
