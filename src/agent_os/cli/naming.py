"""Names on a command line: which one was meant, and which there are, for a shell that completes.

In: a word that nobody knows, or the beginning of one. Out: the nearest known word, or the names that a running kernel
tells in time. Never starts a kernel.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from agent_os.client.wire import Client

WITHIN_S = 0.2  # that a kernel has; somebody waits for the next key


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like it; nothing if none is."""
    from difflib import get_close_matches

    by_case = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), by_case, n=1, cutoff=0.5)
    return by_case[near[0]] if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'ps'?`, to be put behind the sentence that says there is no such word."""
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""


class Known(click.types.StringParamType):
    """Text, of which a running kernel knows what it can be."""

    name = "name"  # as usage lines call it

    def __init__(self, names: "Callable[[Client], Awaitable[list[str]]]") -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        import asyncio

        from click.shell_completion import CompletionItem

        try:
            found = asyncio.run(self._asked())
        except Exception:  # whatever it is, a line that is being typed is no place to tell it
            return []
        given = ctx.params.get(param.name or "") or ()
        return [CompletionItem(name) for name in found if name.startswith(incomplete) and name not in given]

    async def _asked(self) -> list[str]:
        import asyncio

        from agent_os.client.wire import connect

        async with asyncio.timeout(WITHIN_S), connect() as client:
            return [name for name in await self._names(client) if name.isprintable() and " " not in name]


async def _agents(client: "Client") -> list[str]:
    from agent_os.cli.members import ROOT, members

    return [row["name"] for row in await members(client, ended=True) if row["id"] != ROOT]


async def _approvals(client: "Client") -> list[str]:
    from agent_os.abi.syscalls import Approvals

    found: list[dict[str, Any]] = (await client.call(Approvals()))["approvals"]
    return [row["id"] for row in found]


AGENT = Known(_agents)
APPROVAL = Known(_approvals)
