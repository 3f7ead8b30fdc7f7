"""`agentctl exec`: a command in the sandbox of an agent that runs, followed to its end.

In: an agent's name and a command. Out: the command's own output and exit code; 125 means that it could not be started.
Starts no kernel: without one nobody runs.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from agent_os.abi.errors import EHOSTUNREACH, EPIPE
from agent_os.cli.changes import say
from agent_os.cli.naming import AGENT
from agent_os.cli.surroundings import words

if TYPE_CHECKING:
    from agent_os.abi.syscalls import Beside

_ENDINGS = {
    "timeout": "the command was killed by its --timeout",
    "interrupted": "the command was stopped by you",
    "agent": "it has ended, and the command with it",
}


@click.command("exec")
@click.argument("name", type=AGENT)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD [ARG]…")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or pass yours on. Repeatable.")
@click.option("--timeout", metavar="10s|5m|1h", help="Kill it after this long; exit code 124.")
@click.option("-t", "--tty", is_flag=True, hidden=True)
def exec_(name: str, command: tuple[str, ...], env: Sequence[str], timeout: str | None, tty: bool) -> int:
    """Run COMMAND in the sandbox of agent NAME, which runs, and end with its code.

    It sees the agent's files and processes and may do what the agent may, no more. It is paused and killed with the
    agent, and ends with it; what it starts and leaves behind stays until then. Ctrl-C asks it to end, the second kills
    it.

    \b
      agentctl exec fix-47cb -- ls -l
      agentctl exec fix-47cb -- sh -c 'cat > notes.txt' < notes.txt
      agentctl exec --timeout 10s web-0a1e -- curl -s localhost:8000/health
    """
    from agent_os.abi.syscalls import Beside

    if tty:
        reason = "a command in the sandbox of an agent has no terminal yet, only plain streams: leave -t out"
        raise click.UsageError(reason)
    if not command:
        raise click.UsageError(f"no command was given: agentctl exec {name} -- ls")
    return _follow(Beside(agent=name, argv=words(command), env=words(_given(env)), timeout=timeout))


def _given(env: Sequence[str]) -> Iterator[str]:
    """`NAME` means ours."""
    for item in env:
        name, equals, _ = item.partition("=")
        if not equals and name not in os.environ:
            raise click.UsageError(f"--env {name}: {name} is not set here: --env {name}=VALUE")
        yield item if equals else f"{name}={os.environ[name]}"


def _follow(request: "Beside") -> int:
    from agent_os.cli.agents import nobody
    from agent_os.cli.following import beside, carry_out
    from agent_os.cli.run import killed, take_no_more_signals

    try:
        ended = carry_out(beside(request))
    except asyncio.CancelledError:  # interrupted twice before it was there
        raise click.Abort from None
    except EHOSTUNREACH:
        raise nobody(request.agent) from None
    except EPIPE:
        return killed()
    finally:
        take_no_more_signals()
    if told := _ENDINGS.get(ended["ending"]):
        say(f"{ended['name']}  {told}")
    return ended["code"]
