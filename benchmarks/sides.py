"""A process beside the benchmark's own that measures something in itself: one line of JSON in, one line out."""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any

_LONGEST = 1 << 22  # bytes of a line


async def start(argv: Sequence[str], **options: Any) -> Process:
    """Returns when it has said that it is ready."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, limit=_LONGEST, **options)
    assert process.stdout
    said = await process.stdout.readline()
    if said.strip() != b"ready":
        raise SystemExit(f"{argv[-1]} did not start: {said!r}")
    return process


async def ask(process: Process, order: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(order).encode() + b"\n")
    said = json.loads(await process.stdout.readline())
    if "problem" in said:
        raise SystemExit(said["problem"])
    return said


async def end(process: Process | None) -> None:
    if process and process.stdin:
        process.stdin.close()
        await process.wait()
