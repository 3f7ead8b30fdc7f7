"""`agentctl run`: any command, an author's own agent, or a manifest's, isolated; in the foreground, or left running.

In: flags and a command, `FILE.py[:NAME]`, or `FILE.agent.toml`. Out: its own output and exit code; on stderr, at the
end, what was refused and what it changed. 125 means we could not start it.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from agent_os.abi.errors import ENOENT, EPIPE
from agent_os.abi.text import portable
from agent_os.cli.changes import count, say, show, tell
from agent_os.cli.errors import EXIT_INTERRUPTED
from agent_os.cli.output import plain, show_result
from agent_os.cli.profile import NOTHING, ProfileName, load
from agent_os.cli.surroundings import environment, words
from agent_os.client.config import setting

if TYPE_CHECKING:
    from agent_os.cli.following import Lost

_MOST_SHOWN = 20
_AUTHORED = re.compile(r"(?P<file>[^:]+\.py)(?::(?P<function>[A-Za-z_]\w*))?")
_KILLED = 137
_MANIFEST = (".agent.toml", ".agent.json")
_WOULD = {"forbid": "would refuse", "ask": "would ask", "cover": "would cover"}  # what rules in shadow mode say


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--profile",
    metavar="NAME",
    type=ProfileName(),
    help="Flags for a known program: python, node, shell, claude-code, or of your own. What you type besides is added, "
    "or counts more.",
)
@click.option(
    "--workspace",
    metavar="[bind:]DIR|tmpfs",
    help="Project directory, default the current one. Writes are kept apart until you commit them; "
    "bind: writes through at once; tmpfs is empty and gone at the end.",
)
@click.option(
    "--mount", "mounts", multiple=True, metavar="[rw:]SRC[:DST]", help="Show another path, read-only unless rw:."
)
@click.option("--net", multiple=True, metavar="HOST[:PORT]", help="Allow connections to a host. Repeatable.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=HOST]",
    help="Let it use a bound secret, which it never sees, at http://127.0.0.1:3128/_api/NAME. Repeatable.",
)
@click.option(
    "--model",
    multiple=True,
    metavar="PROVIDER/NAME",
    help="Let it call a model, with a key that it never sees; its programs find the address in OPENAI_BASE_URL or "
    "ANTHROPIC_BASE_URL. Repeatable.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    help="What the agent of a manifest is given beside its goal. Repeatable.",
)
@click.option(
    "--cap", "caps", multiple=True, metavar="CAPABILITY", help="What it may do besides: 'tool:mail:call'. Repeatable."
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="0.50usd|RESOURCE=AMOUNT",
    help="What it, and all it starts, may spend: cost, tokens, bytes, count, calls, model_calls. Repeatable.",
)
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or pass yours on. Repeatable.")
@click.option("--timeout", metavar="10s|5m|1h", help="Kill it after this long; exit code 124.")
@click.option(
    "--limit",
    multiple=True,
    metavar="NAME=VALUE",
    help="Bound it: memory_mb, pids, cpu_pct (of one core), cpu_s, as_mb, nofile, fsize_mb, disk_mb, tmp_mb. "
    "Repeatable.",
)
@click.option("--min-isolation", metavar="S0…S4", help="Refuse to start below this level. Default S2.")
@click.option(
    "--shadow",
    is_flag=True,
    help="Try this project's rules: what they would refuse happens, and is told at the end. Rules above it hold.",
)
@click.option("--commit", is_flag=True, help="At the end, if it ended 0, write ordinary changes to the project.")
@click.option("--discard", "--rm", "discard", is_flag=True, help="At the end throw the changes away.")
@click.option("--keep", is_flag=True, help="Keep the changes for later. The default.")
@click.option("--snapshot", metavar="NAME", help="Keep the changes under this name, to look at, commit or restore.")
@click.option(
    "--from", "--restore", "origin", metavar="NAME", help="Start with a copy of the changes kept under this name."
)
@click.option("--allow-protected", is_flag=True, help="With --commit: also files that tools execute or obey.")
@click.option("--name", metavar="NAME", help="What to call it. Default: after the command.")
@click.option("-d", "--detach", is_flag=True, help="Leave it running; agentctl logs, wait and kill take its name.")
@click.option("-T", "--no-tty", is_flag=True, help="Plain streams, even if you are at a terminal.")
@click.option("-q", "--quiet", is_flag=True, help="No summary at the end.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    command: tuple[str, ...],
    profile: str | None,
    workspace: str | None,
    mounts: Sequence[str],
    net: Sequence[str],
    secrets: Sequence[str],
    model: Sequence[str],
    inputs: Sequence[str],
    caps: Sequence[str],
    budgets: Sequence[str],
    env: Sequence[str],
    timeout: str | None,
    limit: Sequence[str],
    min_isolation: str | None,
    shadow: bool,
    commit: bool,
    discard: bool,
    keep: bool,
    snapshot: str | None,
    origin: str | None,
    allow_protected: bool,
    name: str | None,
    detach: bool,
    no_tty: bool,
    quiet: bool,
) -> int:
    """Run COMMAND, or the @agent function of FILE.py[:NAME], as an isolated agent; or the agent of FILE.agent.toml.

    It sees the current directory at its own path, /usr, its own program and nothing else of this machine. Its writes
    stay apart until you commit them; it reaches the network only where --net allows.

    \b
      agentctl run -- python my_agent.py
      agentctl run --net api.example.com --timeout 10m -- bash -c './fetch && make report'
      agentctl run --profile python -- bash -c 'pip install -r requirements.txt && python report.py'
      agentctl run my_agent.py:digest
      agentctl run crawler.agent.toml
      agentctl run code.agent.toml "Mend the parser" --model anthropic/claude-sonnet-4-5
      agentctl run research.agent.toml --input question="How long does compost need?"
    """
    if sys.platform != "linux":
        raise click.ClickException(
            f"{sys.platform} has no namespaces to isolate an agent with; run Agent OS inside a Linux VM "
            "(for example with Lima: limactl start, then install it there)"
        )
    if not command:
        raise click.UsageError("no command was given: agentctl run -- python my_agent.py")
    if command[0].endswith(_MANIFEST):
        return _declared(command)
    if inputs:
        raise click.UsageError("--input is for the agent of a manifest; a FILE.py takes NAME=VALUE behind it")
    if commit + discard + keep + (snapshot is not None) > 1:
        raise click.UsageError("--commit, --discard, --keep and --snapshot exclude each other")
    from agent_os.cli import following  # not before: it needs Linux

    known = load(profile) if profile else NOTHING
    if profile and not quiet:
        say(f"profile  {profile}  {plain(known.flags)}")
    authored, models, env = _authored(command), [*known.model, *model], [*known.env, *env]
    interactive = following.is_interactive() and not (no_tty or detach or authored)
    order = {
        **(authored or {"argv": words(command)}),
        "cwd": portable(os.getcwd()),
        "environment": environment(env),
        "workspace": None if workspace is None else portable(workspace),
        "mounts": words([*known.mount, *mounts]),
        "net": [*known.net, *net],
        "secrets": [*known.secret, *secrets],
        "models": models,
        "caps": [*known.cap, *caps],
        "budget": {**_budget(known.budget), **_budget(budgets)},
        "env": words([*(_usual_model(models) if authored else ()), *env]),
        "timeout": timeout or known.timeout or None,
        "limit": [*known.limit, *limit],
        "min_isolation": min_isolation or setting("min_isolation", project=True).value,
        "origin": origin,
        "snapshot": snapshot,
        "tty": list(following.size()) if interactive else None,
        "name": name,
        "after": "commit" if commit else "discard" if discard else "keep",
        "allow_protected": allow_protected,
        "shadow": shadow,
    }
    if shadow and not quiet:
        say("shadow  this project's rules are tried and not enforced; those of operator and organisation hold")
    return _leave_running(order, quiet) if detach else _follow(order, quiet)


@click.command(add_help_option=False)
@click.argument("goal", nargs=-1)
@click.option("--model", multiple=True, metavar="PROVIDER/NAME")
@click.option("--input", "inputs", multiple=True, metavar="NAME=VALUE")
@click.option("-d", "--detach", is_flag=True)
@click.option("-T", "--no-tty", is_flag=True)
@click.option("-q", "--quiet", is_flag=True)
def _behind(**_: object) -> None:
    """What may stand behind a manifest."""


def _declared(command: Sequence[str]) -> int:
    """A manifest says all there is to say: flags beside it would be a second one. It takes a goal, inputs and another
    model in place of its own. What stands behind a command is the command's, so click has left that to us."""
    context = click.get_current_context()
    file, *words = command
    if not os.path.isfile(file):
        raise ENOENT("manifest.file", f"there is no file {file}", hint="agentctl init --template loop writes one")
    behind = _behind.make_context("agentctl run", words, parent=None).params
    given = [one for one in context.params if context.get_parameter_source(one) is ParameterSource.COMMANDLINE]
    flags = [param.opts[-1] for param in context.command.params if param.name in set(given) - {*behind, "command"}]
    if flags:
        raise click.UsageError(f"{file} says how its agent runs; {', '.join(flags)} has no place beside it")
    models: list[str] = [*context.params["model"], *behind["model"]]
    if len(behind["goal"]) > 1:
        raise click.UsageError(f'a goal stands in quotes: agentctl run {file} "{" ".join(behind["goal"])}"')
    if len(models) > 1:
        raise click.UsageError(f"{file} takes one --model, not {' and '.join(models)}")
    from pathlib import Path

    from agent_os.cli.running import Instead, run_manifest

    inputs = dict(map(_input, [*context.params["inputs"], *behind["inputs"]]))
    detach, quiet = (bool(context.params[flag] or behind[flag]) for flag in ("detach", "quiet"))
    instead = Instead("".join(behind["goal"]), "".join(models), inputs)
    return run_manifest(Path(file), instead, detach=detach, quiet=quiet)


def _input(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--input takes NAME=VALUE, not {word!r}")
    return name, value


def _budget(words: Sequence[str]) -> dict[str, int]:
    if not words:
        return {}
    from agent_os.cli.budget import parse_limits

    return {resource: amount for resource, amount in parse_limits(words).items() if amount is not None}


def _follow(order: dict[str, Any], quiet: bool) -> int:
    from agent_os.cli.following import Lost, carry_out
    from agent_os.cli.following import run as follow

    begun = time.monotonic()
    try:
        outcome = carry_out(follow(order, quiet=quiet))
    except asyncio.CancelledError:  # interrupted twice before there was an agent
        raise click.Abort from None
    except Lost as lost:
        return _go_on(lost, begun, quiet) if "file" in order else killed()
    except EPIPE:
        return killed()
    finally:
        take_no_more_signals()
    facts = outcome.facts
    if facts["result"] is not None:
        show_result(facts["result"])
    if facts["note"]:
        say(plain(_native(facts["note"])))
    if facts["committed"]:
        tell(facts["workspace"], outcome.lists, removed=False)
    if not quiet:
        _summarise(facts, outcome.lists.get("changes", []))
    return facts["code"]


def killed() -> int:
    """The kernel was killed, and no process outlives its kernel."""
    say("killed: the kernel has ended, and every agent with it")
    return _KILLED


def _go_on(lost: "Lost", begun: float, quiet: bool) -> int:
    """An agent that speaks to the kernel has a record, from which it goes on under the next kernel."""
    from agent_os.cli.following import go_on

    name = lost.name
    say(f"{name}  the kernel was killed; it is started again, and {name} goes on from its record")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ended, changes = asyncio.run(go_on(name, lost.said))
    except KeyboardInterrupt:
        say(f"{name}  runs on   agentctl logs -f {name}   agentctl kill {name}")
        return EXIT_INTERRUPTED
    if ended["result"] is not None:
        show_result(ended["result"])
    code = ended["status"]
    if not quiet:
        how = plain(ended["reason"] or f"ended {code}")
        say(f"{name}  {how} after {time.monotonic() - begun:.1f} s   what it was refused: agentctl trace {name}")
        if changes:
            _tell_kept(name, changes)
    return code if 0 <= code < 256 else _KILLED


def take_no_more_signals() -> None:
    """It is over; what is left is to say so, and the code that we end with is the agent's."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _leave_running(order: dict[str, Any], quiet: bool) -> int:
    from agent_os.cli.following import detached

    started = asyncio.run(detached(order))
    name = started["name"]
    click.echo(name)
    if not quiet:
        say(f"next  agentctl logs -f {name}   agentctl wait {name}   agentctl kill {name}")
    return 0


def _authored(command: Sequence[str]) -> dict[str, Any] | None:
    """`FILE.py[:NAME]`, if that is what was written: an agent of somebody who wrote it for us."""
    named = _AUTHORED.fullmatch(command[0])
    if not named:
        return None
    if not os.path.isfile(named["file"]):
        if named["function"] and not os.path.exists(command[0]):
            raise ENOENT("program.file", f"there is no file {named['file']}", hint="agentctl run FILE.py:NAME")
        return None
    from agent_os.cli.interpreter import authors_python

    file, python = os.path.abspath(named["file"]), authors_python()
    call = {"argv": words(command[1:]), "function": named["function"] or ""}
    return {**call, "file": portable(file), "python": portable(python)}


def _usual_model(models: Sequence[str]) -> Iterator[str]:
    """The one model that it may call takes the place of what its `@agent(model=…)` says."""
    if len(models) == 1 and "*" not in models[0]:
        from agent_os.abi.models import MODEL_VARIABLE

        yield f"{MODEL_VARIABLE}={models[0]}"


def _native(value: str | bytes) -> str:
    return os.fsdecode(value)


def _summarise(facts: dict[str, Any], changes: list[dict[str, Any]]) -> None:
    limits, name = facts["limits"], facts["name"]
    memory, disk, tmp = limits["memory_mb"] or 0, limits["disk_mb"], limits["tmp_mb"]
    endings = {
        "exited": f"ended {facts['code']}",
        "timeout": "killed by its --timeout",
        "interrupted": "stopped by you",
        "killed": f"killed by {'SIGPOLICY' if facts['violation'] else 'agentctl kill'}",
        "disk": f"killed: its workspace outgrew its disk limit of {disk} MB (more: --limit disk_mb={2 * disk})",
        "tmp": f"killed: its /tmp outgrew its limit of {tmp} MB (more: --limit tmp_mb={2 * tmp})",
        "memory": f"killed: it used more than its memory limit of {memory} MB (more: --limit memory_mb={2 * memory})",
        "launcher": "killed: the launcher ended",
    }
    say(f"{name}  {endings[facts['ending']]} after {facts['seconds']:.1f} s  isolation {facts['level']}")
    if facts["violation"]:
        say(f"violation  {plain(facts['violation'])}   it is quarantined: agentctl release {name}")
    for note in facts["notes"]:
        say(f"note  {plain(_native(note))}")
    for what, times, allowing in facts["refusals"]:
        allow = f"   allow: {allowing}" if allowing else ""
        say(f"refused  {plain(_native(what))}  {times}×{allow}")
    if facts["shadow"] and not facts["would"]:
        say("shadow  no rule of its project would have refused anything")
    for one in facts["would"]:
        times = "" if one["effect"] == "cover" else f"  {one['times']}×"
        say(f"{_WOULD[one['effect']]}  {plain(one['what'])}  {plain(one['rule'])}  {plain(one['where'])}{times}")
    for what, times in facts["failures"]:
        say(f"failed  {plain(_native(what))}  {times}×")
    for what, times in facts["expired"]:
        say(f"expired  {plain(what)}  {times}×   nobody answered in time: agentctl approvals --all --agent {name}")
    if facts["kept"]:
        kept = facts["workspace"]["workspace"]
        _tell_kept(kept, changes, f"   agentctl run --restore {kept} -- CMD" if facts["workspace"]["snapshot"] else "")


def _tell_kept(kept: str, changes: list[dict[str, Any]], again: str = "") -> None:
    hidden = len(changes) - _MOST_SHOWN
    show(changes[:_MOST_SHOWN], sys.stderr)
    say(count(changes) + (f" ({hidden} not shown here)" if hidden > 0 else ""))
    say(f"next  agentctl diff --patch {kept}   agentctl commit {kept}   agentctl discard {kept}{again}")
