"""`agentctl config`: the settings that hold here, where each comes from, and changing yours.

In: a key and a value. Out: a table or one object. Writes the user's own file and no other; what would not be understood
afterwards is not written.
"""

import os
from pathlib import Path

import click

from agent_os.abi.errors import EACCES
from agent_os.cli.changes import say
from agent_os.cli.output import output_option, plain, print_json
from agent_os.cli.screen import listed
from agent_os.client import config as settings
from agent_os.client import place


@click.group()
def config() -> None:
    """Settings: a flag counts before AGENT_OS_* of the environment, then comes the project's agent-os.toml, which may
    only make them stricter, your config.toml, the machine's, and the default."""


@config.command()
@click.option("--show-origin", is_flag=True, help="Also where each comes from: a variable, or file and line.")
@output_option(names=("settings.key",))
def view(show_origin: bool, as_json: bool) -> None:
    """Show every setting as it holds in this directory."""
    found = settings.everything()
    if as_json:
        rows = [{**one._asdict(), "value": _holds(one)} for one in found]
        print_json({"settings": rows, "files": [str(file.path) for file in settings.files() if file.path.exists()]})
        return
    rows = [(one.key, _holds(one), one.where or one.origin, settings.KEYS[one.key].about) for one in found]
    if show_origin:
        click.echo(listed([row[:3] for row in rows], ("KEY", "VALUE", "ORIGIN")))
    else:
        click.echo(listed([(key, value, about) for key, value, _, about in rows], ("KEY", "VALUE", "WHAT IT IS")))


def _holds(one: settings.Setting) -> str | int:
    """What it comes to, also where the default depends on something."""
    if one.value is not None:
        return one.value
    depends = {"home": place.home, "socket": place.control_socket, "agents": lambda: place.agents() or "none"}
    return str(depends[one.key]()) if one.key in depends else one.shown


@config.command("set")
@click.argument("key", type=click.Choice(list(settings.KEYS)))
@click.argument("value")
@click.option("--dry-run", is_flag=True, help="Say what would happen and change nothing.")
@output_option(names=("key",))
def set_(key: str, value: str, dry_run: bool, as_json: bool) -> None:
    """Set KEY in your own config.toml. A kernel that runs keeps what it was started with."""
    path = settings.user_file()
    before = settings.read(settings.File("user", path)).get(key)
    text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    meant = settings.parsed(settings.changed(text, key, value), str(path), "user")[key]  # as it is read, or an error
    text = settings.changed(text, key, str(meant.value))
    after = settings.parsed(text, str(path), "user")[key]
    if not dry_run:
        _write(path, text)
    now = settings.setting(key, project=True)
    if as_json:
        facts = {"key": key, "value": after.value, "was": before and before.value, "file": str(path)}
        print_json({**facts, "dry_run": dry_run})
    else:
        was = f" (it was {before.shown})" if before else ""
        click.echo(plain(f"{'would set' if dry_run else 'set'}  {key} = {after.shown} in {path}{was}"))
    if not dry_run and now.where != after.where and now.value != after.value:
        say(plain(f"here {now.where} counts before it: {key} is {now.shown}"))


def _write(path: Path, text: str) -> None:
    """The whole file, or the one that was there."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path.resolve())
    except OSError as problem:
        beside.unlink(missing_ok=True)
        raise EACCES("config.unwritable", f"{path} cannot be written: {problem.strerror}") from None
