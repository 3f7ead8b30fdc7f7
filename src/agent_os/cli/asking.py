"""A question to the kernel. While agentctl listens, Ctrl-C and a reader of its output that left only detach."""

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import Body
from agent_os.client.wire import at_once

TO_LOOK = 5.0  # seconds that a kernel has to answer what takes it none


def ask(request: Body) -> Any:
    """The kernel's answer. If none is running, one is started for it and ends with it."""
    return receive(request, lambda chunk: None)


def receive(request: Body, heard: Callable[[Any], object], *, start: bool = True) -> Any:
    """The answer, after each chunk beside it was `heard`. Without `start` a kernel must be running."""
    return at_once(_receive(request, heard, start))


def listen(request: Body, heard: Callable[[Any], object]) -> None:
    """The same for something to look at, where nobody needs to see the end."""
    try:
        receive(request, heard)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())


def confirm(question: str, otherwise: str, again: str) -> None:
    """Ask before something is lost. Where nobody can be asked, EINVAL tells what would be, and how to mean it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise EINVAL("confirm", otherwise, hint=again)
    click.confirm(question, abort=True, err=True)


async def _receive(request: Body, heard: Callable[[Any], object], start: bool) -> Any:
    from agent_os.client.start import session

    async with session(start=start) as (client, _):
        stream = client.stream(request)
        try:
            async for chunk in stream:
                heard(chunk)
            return await stream.result()
        except BaseException:
            stream.cancel()
            raise
