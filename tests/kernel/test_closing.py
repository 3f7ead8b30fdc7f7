"""A kernel that closes leaves nothing running, whatever was about to start."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

import leftovers
from agent_os.abi import syscalls as abi
from kernel.serving import serving
from peer import until

SLEEPER = "from agent_os import agent\n@agent\nasync def a(ctx):\n    await ctx.sleep(3600)\n"


@pytest.mark.integration
def test_an_agent_that_waits_for_its_next_life_is_left_to_the_next_kernel(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.py").write_text(SLEEPER)
    shown = {name: os.environ[name] for name in ("PATH", "HOME")}
    order = {"file": str(tmp_path / "p" / "a.py"), "function": "a", "python": sys.executable}
    order |= {"cwd": str(tmp_path / "p"), "name": "w", "environment": shown}

    async def main() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            await client.call(abi.Run(order=order, detach=True))
            running = kernel.table.find("w").running
            assert running
            running.host_signal(signal.SIGKILL)
            await until(lambda: kernel.table.find("w").detail == "backoff")
            await kernel.guests.close()
            await asyncio.sleep(0.3)  # longer than its back-off
            assert set(leftovers.processes()) <= before
            assert kernel.store.get("agents", "default/w") is not None

    before = set(leftovers.processes())
    asyncio.run(main())
    assert set(leftovers.processes()) <= before
