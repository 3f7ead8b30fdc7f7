"""Looks into a running agent, from outside of it."""

import asyncio

import pytest

import agents
from agent_os.kernel.supervisor.watching import Prober
from agent_os.sandbox.spawner import Launcher

pytestmark = pytest.mark.integration
LISTEN = (
    "import socket, sys; s = socket.create_server(('{}', 0), family=socket.{});"
    "print(s.getsockname()[1], flush=True); sys.stdin.read() or __import__('time').sleep(600)"
)


def test_a_command_is_judged_by_its_code_and_says_why_it_failed() -> None:
    async def body(launcher: Launcher) -> None:
        spec = agents.spec_of("guest", ["/bin/sleep", "600"], beside=True)
        async with agents.started(launcher, spec) as (process, _):
            prober = Prober(process)
            assert (await prober.succeeds(["true"], 20)).ok
            failed = await prober.succeeds(["sh", "-c", "exit 3"], 20)
            assert (failed.ok, failed.why) == (False, "sh ended 3")
            missing = await prober.succeeds(["/no/such"], 20)
            assert (missing.ok, missing.why) == (False, "/no/such could not be started: No such file or directory")

    agents.drive(body)


def test_one_that_took_too_long_does_not_answer_for_the_next() -> None:
    async def body(launcher: Launcher) -> None:
        spec = agents.spec_of("guest", ["/bin/sleep", "600"], beside=True)
        async with agents.started(launcher, spec) as (process, _):
            prober = Prober(process)
            late = await prober.succeeds(["sleep", "600"], 0.2)
            assert (late.ok, late.why) == (False, "sleep took longer than 0.2 s")
            assert (await prober.succeeds(["true"], 20)).ok

    agents.drive(body)


def test_one_that_has_ended_cannot_be_asked() -> None:
    async def body(launcher: Launcher) -> None:
        spec = agents.spec_of("guest", ["/bin/sleep", "600"], beside=True)
        async with agents.started(launcher, spec) as (process, _):
            prober = Prober(process)
            asking = asyncio.create_task(prober.succeeds(["sleep", "600"], 20))
            await asyncio.sleep(0)
            await process.kill()
            assert not (await asking).ok
            assert not (await prober.succeeds(["true"], 20)).ok
            assert prober.listens(80).why == "it has ended"

    agents.drive(body)


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", "AF_INET"), ("::1", "AF_INET6")])
def test_a_port_is_looked_for_in_the_agent_s_own_network(address: str, family: str) -> None:
    async def body(launcher: Launcher) -> None:
        code = LISTEN.format(address, family)
        spec = agents.spec_of("guest", ["python3", "-c", code], net="proxy")
        async with agents.started(launcher, spec) as (process, output):
            line = await asyncio.to_thread(agents.read_line, output)
            prober, port = Prober(process), int(line)
            assert prober.listens(port).ok
            other = prober.listens(port - 1 if port > 1025 else port + 1)
            assert not other.ok
            assert other.why.startswith("nothing listens on its port")

    agents.drive(body)
