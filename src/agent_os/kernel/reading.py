"""Threads for whoever reads all of the record, apart from everybody else's.

In: work that takes as long as the journal is long. Out: its result. There are two threads for it, however many ask: who
only looks must not take those by which agents are started, paused and committed. What is shorter, a page at a time,
needs none of this.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
_READERS = ThreadPoolExecutor(2, "reading")


async def apart(work: Callable[..., T], *args: Any, **more: Any) -> T:
    """Cancelled while it waits for its turn, it never begins."""
    return await asyncio.get_running_loop().run_in_executor(_READERS, partial(work, *args, **more))
