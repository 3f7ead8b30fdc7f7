"""A kernel as a process of its own, to be killed while it spends: `spending_process.py HOME LIFE`.

Its agent sends bytes through a tunnel and makes calls that count, and notes outside of the kernel's reach what has come
back. The operator's account, which has a limit, is charged for all of it, over all lives.
"""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

from agent_os.abi.entries import Kind
from agent_os.kernel.authority import authority
from agent_os.kernel.authority.budget import OPERATOR
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from kernel.egress.proxies import echo
from kernel.test_outward import ANY, desk

LIMITS = {"bytes": 200_000, "calls": 1_000_000}
MESSAGE = b"x" * 97
KEEP_EVERY = 10  # entries


def note(file: Path, life: str, amount: int) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{life} {amount}\n".encode())
    os.close(fd)


async def limit(kernel: Kernel) -> None:
    if not kernel.budgets.account(OPERATOR).limits:
        await kernel.journal.record(Draft("kernel", Kind.BUDGET, cost=kernel.budgets.limit(OPERATOR, LIMITS)))


async def main(home: Path, life: str) -> None:
    authority.KEEP_EVERY = KEEP_EVERY
    note_moved = partial(note, home / "moved", life)
    async with desk(ANY, handler=echo, home=home, name=f"a{life}") as here:
        await limit(here.kernel)
        print("spending", flush=True)
        moved = 0
        while True:
            _, reader, writer = await here.proxy.connect(here.host)
            for _ in range(5):
                writer.write(MESSAGE)
                note_moved(moved := moved + len(MESSAGE))
                await reader.readexactly(len(MESSAGE))
                note_moved(moved := moved + len(MESSAGE))
            writer.write_eof()
            note_moved(moved := moved + len(await reader.read()))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
