"""One-shot tool runs: bounded output, bounded time, nothing left."""

import asyncio
import os
from pathlib import Path

import pytest

import agents
import leftovers
from agent_os.kernel.tools.oneshot import ToolResult, run_tool
from agent_os.sandbox import hierarchies
from agent_os.sandbox.spawner import Launcher, SandboxError
from agent_os.sandbox.spec import Limits

pytestmark = pytest.mark.integration


def tool(script: str, stdin: bytes = b"", wall: float | None = None, most: int = 1 << 20) -> ToolResult:
    async def body(launcher: Launcher) -> ToolResult:
        limits = Limits(wall_s=wall)
        return await run_tool(launcher, "tool", ["sh", "-c", script], stdin=stdin, limits=limits, output_bytes=most)

    return agents.drive(body)


def test_output_and_code_come_back_apart() -> None:
    result = tool("cat; echo oops >&2; exit 3", stdin=b"in\0put")
    assert (result.code, result.stdout.data, result.stderr.data) == (3, b"in\0put", b"oops\n")
    assert not result.stdout.truncated


def test_what_a_shell_would_obey_is_plain_text_in_an_argument() -> None:
    words = ["a;id", "&&", "`id`", "$(id)", "| cat", "*"]

    async def body(launcher: Launcher) -> ToolResult:
        return await run_tool(launcher, "tool", ["printf", "%s\\n", *words])

    assert agents.drive(body).stdout.data.decode().splitlines() == words


def test_output_beyond_the_bound_is_drained_and_marked() -> None:
    result = tool("head -c 3000000 /dev/zero; echo end >&2", most=1000)
    assert result.stdout.data == bytes(1000)
    assert result.stdout.truncated
    assert (result.code, result.stderr.data) == (0, b"end\n")


def test_output_of_exactly_the_bound_is_whole() -> None:
    result = tool("head -c 1000 /dev/zero", most=1000)
    assert not result.stdout.truncated


def test_a_tool_that_does_not_read_its_input_still_ends() -> None:
    assert tool("exit 0", stdin=bytes(10 << 20)).code == 0


def test_a_tool_that_outlives_its_wall_limit_is_killed_with_all_it_started() -> None:
    result = tool("echo begun; (setsid sleep 600 &) ; sleep 600", wall=2.0)
    assert result.timed_out
    assert result.code == 124
    assert result.stdout.data == b"begun\n"


def test_a_tool_that_cannot_start_is_an_error_of_ours_not_output() -> None:
    async def body(launcher: Launcher) -> None:
        await run_tool(launcher, "tool", ["/no/such/tool"])

    with pytest.raises(SandboxError) as caught:
        agents.drive(body)
    assert caught.value.step == "exec"


def test_a_tool_beyond_its_memory_is_told_apart_from_one_that_failed() -> None:
    eat = ["python3", "-c", "kept = bytearray(b'x') * (200 << 20)"]
    if "memory" not in hierarchies.detect().controllers:
        pytest.skip("cgroup: no memory controller this user may use")

    async def body(launcher: Launcher) -> list[tuple[int, bool]]:
        few = await run_tool(launcher, "few", eat, limits=Limits(memory_mb=64))
        enough = await run_tool(launcher, "enough", eat, limits=Limits(memory_mb=400))
        return [(few.code, few.out_of_memory), (enough.code, enough.out_of_memory)]

    assert agents.drive(body) == [(137, True), (0, False)]


def test_a_cancelled_tool_run_leaves_nothing() -> None:
    async def body(launcher: Launcher) -> None:
        before = len(os.listdir("/proc/self/fd"))
        command = ["sleep", f"601.{os.getpid()}"]  # nobody else's, whoever tests on this machine
        running = asyncio.create_task(run_tool(launcher, "cancelled", command))
        while not (waiting := children_named(*command)) and not running.done():
            await asyncio.sleep(0.01)
        assert waiting, await running
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not any(Path(f"/proc/{pid}").exists() for pid in waiting)
        assert len(os.listdir("/proc/self/fd")) == before
        assert leftovers.cgroups(os.getpid()) == []

    agents.drive(body)


def children_named(*argv: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_text().rstrip("\0").split("\0") == list(argv):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
