"""The door of a running agent: the operator is served, an agent is not, and nobody outside can disturb the guest."""

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import leftovers
from agent_os.abi.errors import EEXIST, EINVAL, EPERM, ESRCH, ETIMEDOUT
from agent_os.kernel import door, members, process
from agent_os.kernel.plan import Host, Order
from agent_os.kernel.process import Guest
from agent_os.kernel.records import Records
from agent_os.sandbox.spawner import Launcher

pytestmark = pytest.mark.integration
# Connects to argv[1], sends argv[2] and prints what it is told.
CLIENT = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode() + b"\\n")
print(s.makefile().readline())
"""
STATUS = json.dumps({"do": "status"})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for name in ("state", "home", "home/project"):
        (tmp_path / name).mkdir()
    return Host(tmp_path / "state", tmp_path / "home", {"PATH": "/usr/bin:/bin"})


@contextlib.asynccontextmanager
async def running(host: Host, *argv: str) -> AsyncIterator[Guest]:
    """A guest with its door; killed at the end, if it still runs."""
    project = host.home / "project"
    records = Records(host.state / "record.jsonl")
    launcher = await Launcher.start()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        order = Order(argv or ("/bin/sleep", "1000"), project, project)
        guest = await process.start(order, (null, null, null), host, launcher, records)
        async with door.opened(host.state, guest):
            ending = asyncio.create_task(guest.finish())
            try:
                yield guest
            finally:
                if not guest.process.exited.done():
                    await guest.kill()
                await ending
    finally:
        os.close(null)
        await launcher.close()
        records.close()


def drive(host: Host, body: Callable[[Guest], Awaitable[None]], *argv: str) -> None:
    async def with_guest() -> None:
        async with running(host, *argv) as guest:
            await body(guest)

    asyncio.run(with_guest())


def socket_of(host: Host, guest: Guest) -> Path:
    return host.state / "run" / f"{guest.name}.sock"


async def ask(host: Host, guest: Guest, **request: str) -> dict[str, Any]:
    return await door.ask(host.state, guest.name, request, 20)


def say(host: Host, guest: Guest, text: bytes) -> dict[str, Any]:
    """Send raw bytes and return the answer."""
    with connected(host, guest) as peer:
        peer.sendall(text)
        return json.loads(peer.makefile().readline())


def connected(host: Host, guest: Guest) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(20)
    run = os.open(host.state / "run", os.O_PATH)
    peer.connect(f"/proc/self/fd/{run}/{guest.name}.sock")
    os.close(run)
    return peer


def test_the_operator_is_told_how_the_guest_is(host: Host) -> None:
    async def body(guest: Guest) -> None:
        told = await ask(host, guest, do="status")
        assert (told["name"], told["state"]) == (guest.name, "running")
        assert told["command"] == ["/bin/sleep", "1000"]
        assert told["processes"] == 2
        assert told["pid"] == members.pid_of(guest.process.pidfd)
        assert told["memory"] > 100_000
        assert told["limits"] in ("v2", "v1", "rlimits")

    drive(host, body)


def test_a_guest_can_be_paused_resumed_and_killed(host: Host) -> None:
    async def body(guest: Guest) -> None:
        heard: list[str] = []
        guest.notice = heard.append
        assert await ask(host, guest, do="pause") == {"was": True}
        assert (await ask(host, guest, do="status"))["state"] == "paused"
        assert await ask(host, guest, do="resume") == {"was": True}
        told = await ask(host, guest, do="kill")
        assert (told["processes"], told["survivors"]) == (2, 0)
        assert [line.split()[0] for line in heard] == ["paused", "resumed", "killed"]
        assert all(f"process {os.getpid()}" in line for line in heard)
        with pytest.raises(ESRCH):
            await ask(host, guest, do="pause")

    drive(host, body)
    events = [json.loads(line)["event"] for line in (host.state / "record.jsonl").read_text().splitlines()]
    assert events == ["spawn", "spawned", "pause", "resume", "kill", "exit"]


def test_only_its_owner_can_reach_the_socket_and_it_goes_with_the_guest(host: Host) -> None:
    async def body(guest: Guest) -> None:
        place = socket_of(host, guest)
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert door.names(host.state) == [guest.name]

    drive(host, body)
    assert os.listdir(host.state / "run") == []


def test_a_process_of_another_user_namespace_is_refused_though_it_has_our_uid(host: Host) -> None:
    async def body(guest: Guest) -> None:
        command = [sys.executable, "-c", CLIENT, os.path.relpath(socket_of(host, guest)), STATUS]

        async def told(*before: str) -> dict[str, Any]:
            run = await asyncio.to_thread(subprocess.run, [*before, *command], capture_output=True, timeout=60)
            if b"unshare failed" in run.stderr:
                pytest.skip("unshare: no user namespace here")
            return json.loads(run.stdout or json.dumps({"stderr": run.stderr.decode()}))

        assert (await told())["done"]["name"] == guest.name  # or the refusal below would prove nothing
        refused = await told("unshare", "--user", "--")
        assert (refused["error"]["name"], refused["error"]["code"]) == ("EPERM", "door.peer")
        assert "user namespace" in refused["error"]["reason"]
        refused = await told("unshare", "--user", "--map-root-user", "--")
        assert refused["error"]["code"] == "door.peer"

    drive(host, body)
    assert '"door refused"' in (host.state / "record.jsonl").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_where_the_file_lets_him_in(host: Host) -> None:
    async def body(guest: Guest) -> None:
        run = os.open(host.state / "run", os.O_RDONLY)
        place = socket_of(host, guest)
        place.chmod(0o666)
        become = f"import os, socket; os.fchdir({run}); os.setgid(65534); os.setuid(65534)\n{CLIENT}"
        command = [sys.executable, "-c", become, place.name, STATUS]
        os.fchmod(run, 0o755)
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, pass_fds=[run], timeout=60)
        os.close(run)
        assert json.loads(ran.stdout)["error"]["code"] == "door.peer", ran.stderr

    drive(host, body)


def test_a_peer_that_is_gone_when_it_is_looked_at_is_refused(host: Host) -> None:
    """Its pid may be somebody else's by then."""

    async def body(guest: Guest) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            code = (
                "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
                "socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b'x'], [s.fileno()])"
            )
            place, fd = os.path.relpath(socket_of(host, guest)), theirs.fileno()
            # Blocks the loop, so that the door looks at its peer only afterwards.
            subprocess.run([sys.executable, "-c", code, place, str(fd)], pass_fds=[fd], check=True, timeout=60)
            _, (left,), _, _ = socket.recv_fds(ours, 1, 1)
        with socket.socket(fileno=left) as peer:
            peer.settimeout(20)
            peer.sendall(STATUS.encode() + b"\n")
            answer = await asyncio.to_thread(peer.makefile().readline)
        assert json.loads(answer)["error"]["code"] == "door.peer"

    drive(host, body)


@pytest.mark.parametrize(
    "text",
    [
        b"\n",
        b"nonsense\n",
        b"\xff\xfe\x00\n",
        b"[]\n",
        b"{}\n",
        b'{"do": "explode"}\n',
        b'{"do": ["kill"]}\n',
        b'{"do": "snapshot"}\n',
        b'{"do": "snapshot", "as": "../../escape"}\n',
        b"[" * 4000 + b"\n",
        b'{"do": "' + b"x" * 100_000 + b'"}\n',
        b"x" * 5_000,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_nonsense_is_answered_and_harms_nobody(host: Host, text: bytes) -> None:
    async def body(guest: Guest) -> None:
        told = await asyncio.to_thread(say, host, guest, text)
        assert told["error"]["name"] == "EINVAL"
        assert (await ask(host, guest, do="status"))["state"] == "running"

    drive(host, body)


def test_slow_and_many_peers_keep_nobody_out_for_long(host: Host) -> None:
    async def body(guest: Guest) -> None:
        crowd = [connected(host, guest) for _ in range(10)]
        crowd[0].sendall(b'{"do": ')
        assert (await ask(host, guest, do="status"))["state"] == "running"
        for _ in range(50):
            crowd.append(await asyncio.to_thread(connected, host, guest))
        crowd[0].settimeout(20)
        slow = json.loads(await asyncio.to_thread(crowd[0].makefile().readline))
        assert slow["error"]["code"] == "door.slow"
        for peer in crowd:
            peer.close()
        assert (await ask(host, guest, do="status"))["state"] == "running"

    drive(host, body)


def test_a_peer_that_says_nothing_does_not_keep_a_guest_from_ending(host: Host) -> None:
    took: list[float] = []

    async def with_guest() -> None:
        async with running(host) as guest:
            peer = await asyncio.to_thread(connected, host, guest)
            assert (await ask(host, guest, do="kill"))["survivors"] == 0
            took.append(time.monotonic())
        took.append(time.monotonic())
        peer.close()

    asyncio.run(with_guest())
    assert took[1] - took[0] < 1.5


def test_a_peer_that_leaves_before_its_answer_harms_nobody(host: Host) -> None:
    async def body(guest: Guest) -> None:
        for _ in range(20):
            with connected(host, guest) as peer:
                peer.sendall(STATUS.encode() + b"\n")
        assert (await ask(host, guest, do="status"))["state"] == "running"

    drive(host, body)


def test_a_long_state_directory_has_doors_too(tmp_path: Path, host: Host) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * 5)
    deep.mkdir(parents=True)

    async def body(guest: Guest) -> None:
        assert len(str(deep)) > 108
        assert (await door.ask(deep, guest.name, {"do": "status"}, 20))["name"] == guest.name

    drive(Host(deep, host.home, host.env), body)


def test_an_unknown_agent_is_named_and_a_near_one_suggested(host: Host) -> None:
    async def body(guest: Guest) -> None:
        with pytest.raises(ESRCH) as caught:
            await door.ask(host.state, guest.name + "x", {"do": "kill"}, 20)
        assert guest.name in caught.value.hint
        for odd in ("../work", "", ".new-x", "a/b"):
            with pytest.raises(ESRCH):
                await door.ask(host.state, odd, {"do": "kill"}, 20)

    drive(host, body)


def dead_socket(place: Path) -> None:
    place.parent.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.path.relpath(place))


def test_the_socket_of_a_dead_kernel_is_removed_by_whoever_notices(host: Host) -> None:
    dead_socket(host.state / "run" / "gone-1.sock")
    assert door.names(host.state) == ["gone-1"]
    with pytest.raises(ESRCH):
        asyncio.run(door.ask(host.state, "gone-1", {"do": "status"}, 20))
    assert door.names(host.state) == []


def test_a_new_agent_sweeps_what_dead_kernels_left(host: Host) -> None:
    dead_socket(host.state / "run" / "gone-2.sock")
    dead_socket(host.state / "run" / ".new-gone-3-4194304")  # no pid is so large

    async def body(guest: Guest) -> None:
        assert os.listdir(host.state / "run") == [f"{guest.name}.sock"]

    drive(host, body)


def test_a_kernel_that_does_not_answer_is_named_with_its_pid(host: Host) -> None:
    place = host.state / "run" / "deaf-1.sock"
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(os.path.relpath(place))
        deaf.listen()
        with pytest.raises(ETIMEDOUT) as caught:
            asyncio.run(door.ask(host.state, "deaf-1", {"do": "kill"}, 0.1))
    assert f"kill -9 {os.getpid()}" in caught.value.hint


def test_a_snapshot_is_taken_while_the_guest_runs_and_it_goes_on(host: Host) -> None:
    script = "echo one > first; while :; do echo x >> log; sleep 0.01; done"

    async def body(guest: Guest) -> None:
        work = guest.workspace
        assert work
        assert await asyncio.to_thread(leftovers.becomes_true, (work.upper / "log").exists, 10)
        assert await ask(host, guest, **{"do": "snapshot", "as": "mid"}) == {"snapshot": "mid"}
        kept = host.state / "work" / "mid"
        size = (kept / "upper" / "log").stat().st_size
        assert (kept / "upper" / "first").read_text() == "one\n"
        live = work.upper / "log"
        assert await asyncio.to_thread(leftovers.becomes_true, lambda: live.stat().st_size > size, 10)
        assert (kept / "upper" / "log").stat().st_size == size
        for name in ("mid", "Not A Name"):
            with pytest.raises((EEXIST, EINVAL)):
                await ask(host, guest, **{"do": "snapshot", "as": name})
        assert (await ask(host, guest, do="status"))["state"] == "running"

    drive(host, body, "/bin/sh", "-c", script)


def test_a_door_of_somebody_else_says_so(host: Host) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may open every door")
    place = host.state / "run" / "other-1.sock"
    dead_socket(place)
    place.chmod(0)
    with pytest.raises(EPERM):
        asyncio.run(door.ask(host.state, "other-1", {"do": "status"}, 20))
