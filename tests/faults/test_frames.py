"""Row 15 of the fault table, what `test_connection.py` does not show: forged authority, and what a claim may cost.

A length is only a claim. A build that makes room for a frame before it has looked at the limit pays for the claim.
"""

import resource
import socket
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.errors import EBADF, EMSGSIZE, EPERM
from agent_os.abi.syscalls import TABLE, Now, Read
from agent_os.kernel import connection, table
from agent_os.kernel.kernel import Kernel
from faults.world import SOAK
from peer import Peer, agent, greeted, with_kernel

pytestmark = pytest.mark.uid_free("a crash is recovered the same way for every user")

CLAIM = 512 << 20
CONNECTIONS = 10_000 if SOAK else 300


HOLD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
door = socket.socket(fileno=int(sys.argv[1]))
while socket.recv_fds(door, 16, 100)[0]:
    pass
"""


@contextmanager
def crowd_elsewhere() -> Iterator[socket.socket]:
    """A process that holds the descriptors it is sent until the socket closes; this one has too few for both ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", HOLD, str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()
            assert process.wait(60) == 0


class AllocatesFirst(frames.Splitter):
    """Broken on purpose: room for the whole frame is made when its length is known."""

    def feed(self, data: bytes) -> list[bytes]:
        self._room = bytearray(struct.unpack("<I", data[:4])[0])
        return super().feed(data)


async def cost_of_a_claim(kernel: Kernel) -> tuple[int, int]:
    """The number in the goodbye, and how many bytes were taken at most."""
    _, theirs = await agent(kernel)
    peer = await Peer.on(theirs)
    await peer.greet()
    tracemalloc.start()
    try:
        peer.say(struct.pack("<I", CLAIM))
        bye = await peer.hear_bye()
        return bye.code, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_claimed_length_costs_nothing() -> None:
    async def test(kernel: Kernel) -> None:
        code, taken = await cost_of_a_claim(kernel)
        assert code == EMSGSIZE.number
        assert taken < 4 << 20

    with_kernel(test)


def test_a_build_that_makes_room_first_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "Splitter", AllocatesFirst)

    async def test(kernel: Kernel) -> None:
        code, taken = await cost_of_a_claim(kernel)
        assert code == EMSGSIZE.number
        assert taken >= CLAIM

    with_kernel(test)


def test_another_agents_handle_is_worth_nothing() -> None:
    async def test(kernel: Kernel) -> None:
        rich, _ = await greeted(kernel, "rich", caps=("tool:pay:call",))
        _, poor = await greeted(kernel, "poor")
        held = [one.id for one in rich.holdings]
        assert held
        for number in (*held, 0, 1 << 31):
            with pytest.raises((EBADF, EPERM)):
                await poor.ask(Read(path="/mem/episodic/x"), cap=number)

    with_kernel(test)


def test_no_operator_number_is_answered_on_an_agents_socket() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        numbers = [one.number for one in TABLE if one.operator]
        assert len(numbers) > 10
        for n, number in enumerate(numbers):
            peer.say(frames.Call(n, number, frames.body({})))
            heard: Any = await peer.hear()
            assert (heard.id, heard.code, heard.detail["code"]) == (n, EPERM.number, "operator")

    with_kernel(test)


@pytest.mark.integration
def test_a_crowd_that_says_nothing_leaves_room_for_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_PROCESSES", CONNECTIONS + 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS + 400
    if hard < needed:
        pytest.skip(f"descriptors: at most {hard} are allowed, {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    asked = 0

    async def test(kernel: Kernel) -> None:
        nonlocal asked
        with crowd_elsewhere() as crowd:
            for first in range(0, CONNECTIONS, 100):
                theirs = [(await agent(kernel, f"idle{n}"))[1] for n in range(first, first + 100)]
                socket.send_fds(crowd, [b"hold"], [one.fileno() for one in theirs])
                for one in theirs:
                    one.close()
            assert len(kernel.connections) == CONNECTIONS
            _, peer = await greeted(kernel, "busy")
            for _ in range(50):
                assert await peer.ask(Now())
                asked += 1
            assert len(kernel.connections) == CONNECTIONS + 1, "somebody of the crowd was sent away"

    try:
        with_kernel(test)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert asked == 50
