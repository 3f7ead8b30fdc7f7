"""`agentctl version`: which Agent OS, which Python, which machine. Reads nothing but the interpreter's own facts."""

import os
import sys

import click

from agent_os import __version__
from agent_os.cli import version_line
from agent_os.cli.output import output_option, print_json


@click.command()
@output_option(names=("version",))
def version(as_json: bool) -> None:
    """Show the versions of Agent OS and Python."""
    if as_json:
        python = ".".join(map(str, sys.version_info[:3]))
        print_json({"version": __version__, "python": python, "platform": sys.platform, "machine": os.uname().machine})
    else:
        click.echo(version_line())
