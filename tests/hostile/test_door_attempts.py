"""Attempts on the control socket, by which an operator pauses and kills running agents: it must not open for agents."""

import json
import os
import socket
from pathlib import Path

import pytest

import agents
from agent_os.abi import frames
from agent_os.abi.errors import EPERM
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_REQUEST, Tell
from agent_os.client import credentials
from agent_os.sandbox.spawner import Launcher
from agent_os.sandbox.spec import GUEST_LIMITS, Bind
from guests.agentctl import Machine
from hostile import ordinary
from hostile.report import note

pytestmark = pytest.mark.hostile


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


ASK = """
import json, socket, sys
try:
    door = socket.socket(socket.AF_UNIX)
    door.settimeout(5)
    door.connect(sys.argv[1])
    door.sendall(bytes.fromhex(sys.argv[2]))
    heard = b""
    while piece := door.recv(4096):
        heard += piece
    print(json.dumps({"heard": heard.hex()}))
except OSError as problem:
    print(json.dumps({"refused": problem.errno}))
"""


def kill(name: str, token: str | None = None) -> bytes:
    """What an operator's program would say."""
    order = frames.Call(1, BY_REQUEST[Tell].number, frames.body(Tell(agent=name, signal=AgentSignal.SIGKILL)))
    return frames.encode(frames.Hello(frames.ABI_MIN, frames.ABI_MAX, [], token)) + frames.encode(order)


def answers(heard: bytes) -> list[frames.FromKernel | None]:
    return [frames.decode_from_kernel(frame) for frame in frames.Splitter().feed(heard)]


@pytest.mark.parametrize("net", ["unix", "proxy", "none"])
def test_108_the_control_socket_does_not_open_for_an_agent(machine: Machine, net: str) -> None:
    """Bound into a sandbox on purpose, which agentctl itself refuses: whoever is inside has no say about others."""
    running = machine.start("sh", "-c", "echo up; sleep 60", flags=["-q"])
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    run, (name,) = machine.state / "run", machine.agents()
    source = os.open(run, os.O_PATH)

    async def ask(launcher: Launcher) -> agents.Ran:
        command = [ordinary.python(), "-Ic", ASK, "/door/kernel.sock", kill(name).hex()]
        spec = agents.spec_of("guest", command, net=net, binds=[Bind("door", "/door", rw=True)], limits=GUEST_LIMITS)
        return await agents.run(launcher, spec, {"door": source})

    said = json.loads(agents.drive(ask).output)
    if net == "unix" and "heard" in said:
        (bye,) = answers(bytes.fromhex(said["heard"]))
        assert isinstance(bye, frames.Bye)
        assert bye.code == EPERM.number
    else:
        assert said == {"refused": 13}
    assert running.poll() is None
    with socket.socket(socket.AF_UNIX) as own:  # the control: the operator is heard
        own.connect(f"/proc/self/fd/{source}/kernel.sock")  # a path may be longer than a socket's name
        own.sendall(kill(name))
        assert running.wait(30) == 137
    os.close(source)
    running.communicate(timeout=30)
    note("108b", f"kill another agent through its control door, net {net}")


def test_108_a_token_does_not_open_the_control_socket_for_an_agent(machine: Machine) -> None:
    """It was given an operator's token and the socket: it lives in a user namespace of its own, and is refused."""
    running = machine.start("sh", "-c", "echo up; sleep 60", flags=["-q"])
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    run, (name,) = machine.state / "run", machine.agents()
    order = kill(name, credentials.read(machine.state / "operator.token"))
    source = os.open(run, os.O_PATH)

    async def ask(launcher: Launcher) -> agents.Ran:
        command = [ordinary.python(), "-Ic", ASK, "/door/kernel.sock", order.hex()]
        spec = agents.spec_of("guest", command, net="unix", binds=[Bind("door", "/door", rw=True)], limits=GUEST_LIMITS)
        return await agents.run(launcher, spec, {"door": source})

    said = json.loads(agents.drive(ask).output)
    if "heard" in said:
        (bye,) = answers(bytes.fromhex(said["heard"]))
        assert isinstance(bye, frames.Bye)
        assert bye.code == EPERM.number
        assert bye.reason.startswith("peer.")
    else:
        assert said == {"refused": 13}
    assert running.poll() is None
    with socket.socket(socket.AF_UNIX) as own:  # the control: the same words from outside are heard
        own.connect(f"/proc/self/fd/{source}/kernel.sock")
        own.sendall(order)
        assert running.wait(30) == 137
    os.close(source)
    running.communicate(timeout=30)
    note("108d", "kill another agent with an operator's token, through the control socket")


def test_108_the_token_file_is_not_there_for_an_agent(machine: Machine) -> None:
    look = f"cat {machine.state}/operator.token"
    seen = machine.run("sh", "-c", f"{look}; ls -la {machine.state}")
    assert b"aos_" not in (seen.out if isinstance(seen.out, bytes) else seen.out.encode())
    assert (machine.state / "operator.token").read_text().startswith("aos_")  # the control: it is there
    note("108e", "read the operator's token")


def test_108_agentctl_does_not_mount_the_doors(machine: Machine) -> None:
    doors = machine.state / "run"
    doors.mkdir(mode=0o700)
    for source in (doors, machine.state):
        assert machine.run("true", flags=["--mount", f"{source}:/door"]).code == 125
    # the control: past agentctl's refusal the mount is made, and the directory is as visible as any other
    (doors / "door").touch()
    source = os.open(doors, os.O_PATH)
    spec = agents.spec_of("guest", ["ls", "/door"], binds=[Bind("door", "/door")], limits=GUEST_LIMITS)
    shown = agents.drive(lambda launcher: agents.run(launcher, spec, {"door": source})).output
    os.close(source)
    assert shown == "door\n"
    note("108c", "mount the directory of the control doors")
