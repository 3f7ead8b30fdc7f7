"""`agentctl version`: which Agent OS, which Python, which machine. Reads nothing but the interpreter's own facts."""

import os
import sys

import click

from agent_os import __version__
from agent_os.cli.output import output_option, print_json


@click.command()
@output_option(names=("version",))
def version(as_json: bool) -> None:
    """Show the versions of Agent OS and Python."""
    python = ".".join(map(str, sys.version_info[:3]))
    machine = os.uname().machine
    if as_json:
        print_json({"version": __version__, "python": python, "platform": sys.platform, "machine": machine})
    else:
        click.echo(f"agentctl {__version__}  python {python}  {sys.platform} {machine}")
