"""Attempts on the kernel itself, from where an agent sits: who it is, what others have, the record, everybody's time.

First a native agent and a guest, as `agentctl run` starts them, each beside a neighbour that has something to lose.
Then single frames: what once stalled the kernel, filled it, or had it believe something, each with a limit that the old
code was far beyond. Every refusal stands beside the same deed where it is allowed.
"""

import asyncio
import errno
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EAGAIN, EEXIST, EIO, EMSGSIZE, EPERM, ESRCH
from agent_os.abi.frames import Call, Chunk, Credit
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Checkpoint, Down, Now, Read, Sigmask, Signal, Spawn, Stat, Status, Write
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import control
from agent_os.kernel.checkpoints import MOST
from agent_os.kernel.connection import LONGEST_WORD, STREAM_CREDIT
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.signals import MOST_WAITING
from guests.agentctl import AGENTCTL, Machine
from hostile import ordinary
from kernel.serving import Caller, serving
from peer import Peer, greeted, until, with_kernel

pytestmark = pytest.mark.hostile
STALL = 1.0  # seconds that one call may take at most; what these tests are about took up to a minute

# An agent that speaks the wire itself, before our own userland does.
_WIRE = """
import json, os, socket, sys
from agent_os.abi import frames
import msgspec

kernel, splitter, waiting = socket.socket(fileno=os.dup(3)), frames.Splitter(), []
kernel.settimeout(20)

def hear():
    while not waiting:
        data = kernel.recv(1 << 16)
        if not data:
            return None
        waiting.extend(map(frames.decode_from_kernel, splitter.feed(data)))
    return waiting.pop(0)

def say(*said):
    kernel.sendall(b"".join(map(frames.encode, said)))

last = 0
def ask(op, body, **more):
    global last
    last += 1
    say(frames.Call(last, op, msgspec.Raw(msgspec.msgpack.encode(body)), **more))
    while not isinstance(heard := hear(), frames.Reply | frames.Error):
        pass
    if isinstance(heard, frames.Error):
        return heard.detail["code"]
    return msgspec.msgpack.decode(heard.body)

def tried(work):
    try:
        return str(work())
    except OSError as problem:
        return type(problem).__name__

def target(number):
    return tried(lambda: os.readlink(f"/proc/self/fd/{number}"))

say(frames.Hello(1, 1))
me = hear().agent
"""
_NEIGHBOUR = f"""{_WIRE}
ask(2, {{"path": "/mem/working/secret", "data": "of the neighbour"}})
handle = ask(3, {{"path": "/mem/working/secret", "flags": "r"}})["handle"]
print(json.dumps({{"me": me, "handle": handle, "own": ask(1, {{"handle": handle}})["data"]}}), flush=True)
while hear():
    pass
"""
_ATTACKER = f"""{_WIRE}
home, sock, other, handle = os.environ["STATE"], os.environ["SOCKET"], "default/neighbour", int(os.environ["HANDLE"])
said = {{
    "identity": me,
    "own file": ask(2, {{"path": "/mem/working/mine", "data": "x"}})["version"],
    "own file by its long name": ask(1, {{"path": f"/agent/{{me}}/mem/working/mine"}})["data"],
    "file of another": ask(1, {{"path": "/mem/working/secret"}}),
    "file of another by its long name": ask(1, {{"path": f"/agent/{{other}}/mem/working/secret"}}),
    "handle of another": ask(1, {{"handle": handle}}),
    "capability by number": [ask(1, {{"path": "/mem/semantic/x"}}, cap=number) for number in range(1, 30)],
    "share of another": ask(21, {{"path": f"/agent/{{other}}/mem/working/secret", "to": "attacker", "rights": "r"}}),
    "lend oneself": ask(21, {{"path": "/mem/working/mine", "to": "attacker", "rights": "rw"}}),
    "signal to another": [ask(6, {{"agent": "neighbour", "signal": number}}) for number in (1, 4, 5, 8, 9)],
    "signal of the kernel to oneself": [ask(6, {{"agent": "attacker", "signal": number}}) for number in (8, 9)],
    "mask of what cannot be": [ask(31, {{"block": [number]}}) for number in (4, 8, 9)],
    "own mask": ask(31, {{"block": [7]}})["mask"],
    "wait for another": ask(10, {{"agent": "neighbour"}}),
    "a name that is nearly another's": ask(6, {{"agent": "neighbor", "signal": 6}}),
    "operators' calls": sorted({{ask(op, {{}}) for op in (*range(128, 160), 255)}}, key=str),
    "spawn": ask(9, {{"manifest": {{"program": {{"entry": "attacker.py"}}}}}}),
    "policy": ask(2, {{"path": "/policy/rules.json", "data": "[]"}}),
    "the record": [tried(lambda: open(f"{{home}}/{{name}}").read(1)) for name in ("journal.db", "keys/journal.key")],
    "the control socket": tried(lambda: socket.socket(socket.AF_UNIX).connect(sock)),
    "open files of the kernel's": [link for n in range(4, 99) if (link := target(n))[0] == "/"],
}}
os.symlink("/etc/passwd", "out")
said["link out of /work"] = ask(1, {{"path": "/work/out"}})
open("in", "w").write("inside")
os.symlink("in", "to-in")
said["link inside /work"] = ask(1, {{"path": "/work/to-in", "text": True}})["data"]
os.mkfifo("pipe")
said["a pipe in /work"] = ask(1, {{"path": "/work/pipe"}})
print(json.dumps(said), flush=True)
say(frames.Hello(1, 1))  # to become somebody else
while hear():
    pass
"""
_GUEST = """
import json, os, socket
def tried(work):
    try:
        return str(work())
    except OSError as problem:
        return type(problem).__name__
home, sock = os.environ["STATE"], os.environ["SOCKET"]
print(json.dumps({
    "descriptor 3": tried(lambda: os.fstat(3)),
    "the record": [tried(lambda: open(f"{home}/{name}", "rb").read(1)) for name in ("journal.db", "keys/journal.key")],
    "the control socket": tried(lambda: socket.socket(socket.AF_UNIX).connect(sock)),
    "the workspaces of others": tried(lambda: os.listdir(f"{home}/work")),
    "own files": tried(lambda: open("mine", "w").write("x")),
}))
"""
_HIDDEN = ("FileNotFoundError", "PermissionError")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def neighbour(machine: Machine) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Somebody else's agent, native, with a file and an open handle."""
    (machine.project / "neighbour.py").write_text(_NEIGHBOUR)
    command = [*AGENTCTL, "run", "-q", "--name", "neighbour", "neighbour.py"]
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        command, cwd=machine.project, env=machine.environment(), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line, running.communicate()[1]
    yield running, json.loads(line)
    assert running.poll() is None, "the neighbour was ended"
    subprocess.run([*AGENTCTL, "kill", "neighbour"], env=machine.environment(), check=True, stdout=subprocess.DEVNULL)
    assert running.wait(30) == 137
    running.communicate()


def inside(machine: Machine, *words: str, **env: str) -> dict[str, Any]:
    """What a run that prints one line of JSON said."""
    more = {"STATE": str(machine.state), "SOCKET": str(machine.state / "run" / "kernel.sock"), **env}
    passed = [word for name in more for word in ("--env", name)]
    command = [*AGENTCTL, "run", "-q", "--discard", *passed, *words]
    done = subprocess.run(
        command, cwd=machine.project, env=machine.environment(**more), capture_output=True, timeout=120
    )
    lines = done.stdout.decode().splitlines()
    assert lines, done.stderr.decode()
    return json.loads(lines[-1])


def test_a_native_agent_is_itself_and_reaches_nobody_else(
    machine: Machine, neighbour: tuple[subprocess.Popen[bytes], dict[str, Any]]
) -> None:
    _, its = neighbour
    assert its["own"] == "of the neighbour"  # the control: whose they are, for him they open
    (machine.project / "attacker.py").write_text(_ATTACKER)
    said = inside(machine, "--name", "attacker", "attacker.py", HANDLE=str(its["handle"]))
    assert said["identity"] == "default/attacker"
    assert said["own file"] == 1
    assert said["own file by its long name"] == "x"
    assert said["file of another"] == "vfs.absent"
    assert said["file of another by its long name"] == "path.agent"
    assert said["handle of another"] == "vfs.handle"
    assert set(said["capability by number"]) <= {"cap.unknown", "cap.missing"}
    assert said["share of another"] == "path.agent"
    assert said["lend oneself"] == "share.self"
    assert said["signal to another"] == ["cap.missing"] * 3 + ["signal.kernel"] * 2
    assert said["signal of the kernel to oneself"] == ["signal.kernel"] * 2
    assert said["mask of what cannot be"] == ["signal.mask"] * 3
    assert said["own mask"] == [7]
    assert said["wait for another"] == "agent.child"
    assert said["a name that is nearly another's"] == "agent.unknown"
    assert set(said["operators' calls"]) <= {"operator", "op"}
    assert "operator" in said["operators' calls"]
    assert said["spawn"] == "spawn"
    assert said["policy"] == "vfs.read_only"
    assert set(said["the record"]) <= set(_HIDDEN)
    assert said["the control socket"] in _HIDDEN
    assert said["link out of /work"] == "vfs.outside"
    assert said["link inside /work"] == "inside"
    assert said["a pipe in /work"] == "vfs.special"
    assert said["open files of the kernel's"] == []
    shown = subprocess.run([*AGENTCTL, "trace", "attacker"], env=machine.environment(), capture_output=True, text=True)
    assert "EPERM" in shown.stdout  # and all of it is on the record
    assert "there is one H" in shown.stdout  # whoever wants to be another is ended


def test_a_guest_has_no_way_to_the_kernel_at_all(
    machine: Machine, neighbour: tuple[subprocess.Popen[bytes], dict[str, Any]]
) -> None:
    assert (machine.state / "journal.db").exists()  # the control: there is something to be found
    assert (machine.state / "run" / "kernel.sock").is_socket()
    said = inside(machine, "--", ordinary.python(), "-Ic", _GUEST)
    assert said["descriptor 3"] == "OSError"
    assert set(said["the record"]) <= set(_HIDDEN)
    assert said["the control socket"] in _HIDDEN
    assert said["the workspaces of others"] in _HIDDEN
    assert said["own files"] == "1"


def took(began: float) -> float:
    return time.monotonic() - began


def test_a_path_through_endless_links_is_given_up_soon(tmp_path: Path) -> None:
    """Forty links of eight hundred steps each held everybody up for most of a second, and sixty calls for a minute."""

    async def test(kernel: Kernel) -> None:
        (tmp_path / "d").mkdir()
        for number in range(40):
            target = "d/../" * 800 + (f"l{number + 1}" if number < 39 else "d")
            (tmp_path / f"l{number}").symlink_to(target)
        (tmp_path / "short").symlink_to("d")
        agent, peer = await greeted(kernel, caps=("file:/work/**:read",))
        root = os.open(tmp_path, os.O_PATH)
        agent.files.mount_directory("/work", root)
        os.close(root)
        assert (await peer.ask(Stat(path="/work/short")))["kind"] == "directory"
        began = time.monotonic()
        for _ in range(10):
            with pytest.raises(EACCES, match="link"):
                await peer.ask(Stat(path="/work/l0"))
        assert took(began) < 10 * STALL / 5

    with_kernel(test)


def test_credit_beyond_what_was_taken_counts_for_nothing() -> None:
    """An agent that gave itself 4 GiB and did not read had the kernel hold all of its file."""

    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        content = kernel.vfs.root(agent.id)
        data = b"x" * (8 << 20)
        stream = Call(1, 2, frames.body(Write(path="/mem/working/large", data=b"", stream=True)))
        peer.say(stream)
        piece = 128 << 10
        for number in range(len(data) // piece):
            peer.say(Chunk(1, number, frames.body(data[:piece])))
            while not isinstance(await peer.hear(), Credit):
                pass
        peer.say(frames.End(1, len(data) // piece))
        assert isinstance(await peer.hear(), frames.Reply)
        assert content.find("/mem/working/large") is not None
        peer.say(Call(2, 1, frames.body(Read(path="/mem/working/large"))), Credit(2, 2**32 - 1), Credit(2, 2**62))
        (line,) = (one for one in kernel.connections if one.caller is agent)
        await peer_is_ahead(peer)
        stream_of = line._streams[2]
        assert stream_of._credit <= STREAM_CREDIT
        assert line.transport.get_write_buffer_size() <= 2 * STREAM_CREDIT
        line.transport.abort()

    with_kernel(test)


async def peer_is_ahead(peer: Peer) -> None:
    """Everything said so far has been handled."""
    await asyncio.sleep(0)
    taken = 0
    while taken < STREAM_CREDIT - (64 << 10):
        heard = await peer.hear()
        assert isinstance(heard, frames.Chunk), heard
        taken += len(bytes(heard.data))


def test_a_refused_upload_leaves_nothing_behind() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        for _ in range(50):
            with pytest.raises(EPERM, match="capability"):
                await peer.ask(Write(path="/mem/semantic/x", data=b"", stream=True))
        assert kernel.vfs._uploads == []

    with_kernel(test)


def test_signals_cannot_pile_up_behind_a_mask() -> None:
    """Each that came wrote all that waited: sixty large ones took a quarter of a minute, and all of it stayed."""

    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        await peer.ask(Sigmask(block=[AgentSignal.SIGCHLD]))
        with pytest.raises(EMSGSIZE, match="signal"):
            await peer.ask(Signal(agent="a", signal=AgentSignal.SIGCHLD, value=b"x" * 100_000))
        for number in range(MOST_WAITING):
            await peer.ask(Signal(agent="a", signal=AgentSignal.SIGCHLD, value=number))
        with pytest.raises(EAGAIN, match="behind the mask"):
            await peer.ask(Signal(agent="a", signal=AgentSignal.SIGCHLD))
        assert len(agent.pending[AgentSignal.SIGCHLD]) == MOST_WAITING

    with_kernel(test)


def test_checkpoints_do_not_pile_up() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        await peer.ask(Now())
        await peer.ask(Checkpoint(name="with-state", state={"n": 1}))
        for number in range(2 * MOST):
            await peer.ask(Write(path="/mem/working/a", data=str(number)))
            await peer.ask(Checkpoint(name=f"c{number}"))
        names = {facts["name"] for facts in kernel.checkpoints.of(agent.id)}
        assert len(names) <= MOST
        assert {"with-state", f"c{2 * MOST - 1}"} <= names

    with_kernel(test)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: Signal(agent="ab" * 480_000, signal=AgentSignal.SIGUSR1),
        lambda: Signal(agent="b", signal=AgentSignal.SIGUSR1, value=[None] * 900_000),
    ],
    ids=["a long name", "a million values"],
)
def test_a_frame_full_of_something_costs_about_a_frame(request_of: Any) -> None:
    async def test(kernel: Kernel) -> None:
        await greeted(kernel, "bob")
        _, peer = await greeted(kernel)
        request = request_of()
        began = time.process_time()
        with pytest.raises((ESRCH, EMSGSIZE)) as refused:
            await peer.ask(request)
        assert time.process_time() - began < STALL
        assert "bob" not in refused.value.hint

    with_kernel(test)


def test_a_long_key_is_a_fault_of_the_wire() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        await peer.ask(Now(), key="k" * LONGEST_WORD)
        peer.say(Call(9, 28, key="k" * (LONGEST_WORD + 1)))
        assert (await peer.hear_bye()).reason.startswith("word")

    with_kernel(test)


def test_a_key_is_not_answered_for_somebody_of_an_earlier_life() -> None:
    """The name is the same, the agent is not: its write must happen."""

    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        first = await peer.ask(Write(path="/mem/working/a", data="x"), key="init")
        assert await peer.ask(Write(path="/mem/working/a", data="x"), key="init") == first
        peer.say(Call(77, 8))
        await peer.leave()
        await kernel.end(agent, kernel_end())
        _, peer = await greeted(kernel)
        await peer.ask(Write(path="/mem/working/a", data="x"), key="init")
        assert (await peer.ask(Read(path="/mem/working/a")))["data"] == "x"

    with_kernel(test)


def kernel_end() -> Any:
    from agent_os.abi.states import ExitClass
    from agent_os.kernel.table import Ended

    return Ended(ExitClass.REQUESTED, -1, "the test is done with it")


def test_a_large_record_is_read_without_holding_others_up() -> None:
    """An agent that died with a long record held everybody up for as long as it takes to read it."""

    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        for _ in range(40):
            peer.say(*(Call(number, 28, pos=f"{_}:{number}") for number in range(60)))
            for _ in range(60):
                await peer.hear()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        line = await kernel.lives._lived_through(agent)
        counting.cancel()
        assert len(line) >= 2400
        assert turns >= len(line) // 128

    with_kernel(test)


def test_the_socket_lies_where_nobody_can_replace_it_and_directories_keep_their_modes(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    control.listen(shared / "k.sock").close()
    assert shared.stat().st_mode & 0o7777 == 0o1777  # it may be /tmp
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    with pytest.raises(EACCES, match="others"):
        control.listen(loose / "k.sock")


def test_the_record_is_for_its_owner_whatever_the_home_allows(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "journal.db").touch(mode=0o644)
    SqliteStore(home / "journal.db", reserve=1 << 16).close()
    store = SqliteStore(home / "journal.db", reserve=1 << 16)
    assert {path.name: path.stat().st_mode & 0o077 for path in home.iterdir()} == dict.fromkeys(
        (path.name for path in home.iterdir()), 0
    )
    store.close()


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_home_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "AGENT_OS_HOME": str(home)}
    home.chmod(mode)
    refused = subprocess.run([*AGENTCTL, "up", "--detach"], env=env, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert "cannot be trusted" in refused.stderr
    assert list(home.iterdir()) == []
    home.chmod(0o755)
    subprocess.run([*AGENTCTL, "up", "--detach"], env=env, check=True, capture_output=True, timeout=60)
    subprocess.run([*AGENTCTL, "down"], env=env, check=True, capture_output=True, timeout=60)


def test_a_crash_is_no_way_out_of_a_sigterm() -> None:
    """It would have been started again, as after any other crash, and the request forgotten."""

    async def test(kernel: Kernel) -> None:
        from agent_os.abi.states import ExitClass
        from agent_os.kernel.signals import KERNEL
        from agent_os.kernel.table import Ended

        for asked in (False, True):
            agent, peer = await greeted(kernel, f"a-{asked}".lower())
            began: list[str] = []

            async def begin(agent_id: str, order: dict[str, Any], *, after: float, began: list[str] = began) -> None:
                began.append(agent_id)

            kernel.recovery.begin = begin  # type: ignore[method-assign]
            if asked:
                await kernel.signals.send(KERNEL, agent, AgentSignal.SIGTERM)
            await peer.leave()
            await kernel.left(agent, Ended(ExitClass.SIGNAL, -9, "it crashed"))
            await until(agent.gone.is_set)
            await asyncio.sleep(0)
            assert began == ([] if asked else [agent.id])

    with_kernel(test)


def test_a_child_does_not_take_the_name_of_somebody_elses_agent() -> None:
    """What an agent keeps belongs to its name: a child that was called like it would have read its memory."""

    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel, caps=("agent:*:spawn",))
        agent.order = {"file": "/p/a.py", "cwd": "/p"}
        victim, _ = await greeted(kernel, "victim")
        own, _ = await greeted(kernel, "own", parent=agent.id)
        for row in (victim, own):
            await kernel.journal.record(Draft(row.id, Kind.STATE), puts=kernel.table.puts(row))
            await kernel.end(row, kernel_end())
        program = {"program": {"entry": "a.py"}}
        with pytest.raises(EEXIST, match="not yours"):
            await peer.ask(Spawn(manifest={"name": "victim", **program}))
        with pytest.raises(EIO):  # the control: the gate lets it pass; this kernel has no launcher
            await peer.ask(Spawn(manifest={"name": "own", **program}))

    with_kernel(test)


def test_an_operator_can_still_look_and_stop_when_nothing_can_be_recorded(tmp_path: Path) -> None:
    """An agent that fills the disk must not take the kernel out of its operator's hands."""

    async def main() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            assert (await client.call(Status()))["journal"] == "ok"

            def full() -> None:
                raise OSError(errno.ENOSPC, "no room")

            kernel.journal.failpoints["before_commit"] = full
            with pytest.raises(EIO, match="journal"):
                await kernel.journal.record(Draft("kernel", Kind.STATE))
            with pytest.raises(EIO, match="journal"):
                await Caller(kernel, "a").write("/mem/working/a", "x")
            assert "full" in (await client.call(Status()))["journal"]
            await client.call(Down())
            await asyncio.wait_for(kernel.ended.wait(), 20)

    asyncio.run(main())
