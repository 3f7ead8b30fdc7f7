"""`agentctl ui`: the dashboard's address, with a new code that lets one browser in, once.

In: nothing, or the role that the browser shall have. Out: the address on stdout. Opens no browser.
"""

from typing import Any

import click

from agent_os.abi.doors import Gateway, Role, Session
from agent_os.abi.errors import EHOSTUNREACH
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.changes import say
from agent_os.cli.output import output_option, print_json
from agent_os.client.wire import at_once


@click.command()
@click.option(
    "--role", type=click.Choice(["viewer", "auditor", "operator"]), help="What the page may. Default: as you."
)
@output_option(names=("url",))
def ui(role: Role | None, as_json: bool) -> None:
    """Print the dashboard's address with a one-time code.

    \b
      agentctl ui --role viewer
    """
    found = at_once(_address(role))
    if as_json:
        print_json(found)
    else:
        click.echo(found["url"])
        say(f"valid once, {round(found['seconds'] / 60)} minutes; a restart of the kernel ends the session")


async def _address(role: Role | None) -> dict[str, Any]:
    from agent_os.client.wire import connect

    async with connect() as client:
        gateway = (await client.call(Gateway(), deadline=TO_LOOK))["gateway"]
        if not gateway:
            hint = "agentctl up starts it beside the kernel"
            raise EHOSTUNREACH("gateway.down", "the dashboard is not running", hint=hint)
        code = await client.call(Session(do="code", role=role or ""), deadline=TO_LOOK)
    return {"url": f"{gateway['url']}/#code={code['code']}", "seconds": code["seconds"]}
