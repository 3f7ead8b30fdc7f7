"""The frame of agentctl: which verbs there are, where each lives, and how every failure ends.

In: the command line. Out: an exit code. A verb's module is imported only when that verb is used, so `--help` and
`version` stay fast. Never does a verb's work and never imports kernel or sandbox.

A verb is a click command. Its return value is the exit code (None is 0); it raises the family of `abi.errors`, and the
one handler here turns that into the message and the code.
"""

import gc
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import NamedTuple

import click

import agent_os
from agent_os.abi.errors import AgentOSError
from agent_os.cli import entry, errors

_NO_VERB = re.compile(r"No such command '(.*?)'")
_NO_CHOICE = re.compile(r"'(.*)' is not one of")


class Verb(NamedTuple):
    target: str  # module:object
    group: str
    summary: str
    failure: int | None = None  # the one exit code of our own failures, where others are the guest's


VERBS = {
    "run": Verb("agent_os.cli.run:run", "Agents", "Run any command, or a manifest, isolated.", errors.EXIT_NOT_STARTED),
    "init": Verb("agent_os.cli.init:init", "Agents", "Write an example agent to begin with."),
    "new": Verb("agent_os.cli.init:new", "Agents", "The same by template: new TEMPLATE [DIR]."),
    "ps": Verb("agent_os.cli.agents:ps", "Agents", "List the agents."),
    "top": Verb("agent_os.cli.top:top", "Agents", "Watch all agents."),
    "kill": Verb("agent_os.cli.agents:kill", "Agents", "End agents and all they started, at once."),
    "pause": Verb("agent_os.cli.agents:pause", "Agents", "Hold agents still; their --timeout waits, too."),
    "resume": Verb("agent_os.cli.agents:resume", "Agents", "Let paused agents go on."),
    "release": Verb("agent_os.cli.agents:release", "Agents", "Let a quarantined agent be started again."),
    "signal": Verb("agent_os.cli.agents:signal", "Agents", "Send an agent a signal."),
    "logs": Verb("agent_os.cli.agents:logs", "Agents", "Show what an agent wrote."),
    "wait": Verb("agent_os.cli.agents:wait", "Agents", "Wait for an agent to end, and end with its code."),
    "exec": Verb(
        "agent_os.cli.exec:exec_", "Agents", "Run a command in the sandbox of an agent.", errors.EXIT_NOT_STARTED
    ),
    "work": Verb("agent_os.cli.work:work", "Work", "What an agent changed: diff, commit, rollback."),
    "diff": Verb("agent_os.cli.work:diff", "Work", "Show what an agent changed; with -f, what apply would."),
    "commit": Verb("agent_os.cli.work:commit", "Work", "Write an agent's changes to the real directory."),
    "discard": Verb("agent_os.cli.work:discard", "Work", "Throw an agent's changes away."),
    "snapshot": Verb("agent_os.cli.work:snapshot", "Work", "Keep an agent's changes of this moment under a name."),
    "events": Verb("agent_os.cli.events:events", "Record", "Show what happened, to everybody or to one agent."),
    "trace": Verb("agent_os.cli.trace:trace", "Record", "Show what one agent did, in time."),
    "memory": Verb("agent_os.cli.memory:memory", "Record", "What an agent remembers: look, search, remove, export."),
    "inspect": Verb("agent_os.cli.inspection:inspect", "Record", "Show everything that is known of one agent."),
    "audit": Verb("agent_os.cli.audit:audit", "Record", "Read, verify, prove and export the signed log."),
    "checkpoint": Verb("agent_os.cli.checkpoint:checkpoint", "Record", "Keep the present state of an agent."),
    "replay": Verb("agent_os.cli.checkpoint:replay", "Record", "Run an agent against its record, and compare."),
    "resolve": Verb("agent_os.cli.checkpoint:resolve", "Record", "Say what became of an effect nobody knows about."),
    "backup": Verb("agent_os.cli.backup:backup", "Record", "Copy journal and store, while agents run."),
    "restore": Verb("agent_os.cli.backup:restore", "Record", "Put journal and store back as they were."),
    "token": Verb("agent_os.cli.token:token", "System", "Say who else may come in, and as what."),
    "ui": Verb("agent_os.cli.ui:ui", "System", "Print the dashboard's address, with a code that lets you in."),
    "secrets": Verb("agent_os.cli.secrets:secrets", "System", "Keep secrets that agents use and never see."),
    "approvals": Verb("agent_os.cli.approvals:approvals", "Authority", "List what waits for a person's decision."),
    "approve": Verb("agent_os.cli.approvals:approve", "Authority", "Allow what an agent asks for."),
    "answer": Verb("agent_os.cli.approvals:answer", "Authority", "Answer a question of an agent."),
    "deny": Verb("agent_os.cli.approvals:deny", "Authority", "Refuse what an agent asks for."),
    "cap": Verb("agent_os.cli.cap:cap", "Authority", "Show, give and take back capabilities."),
    "can": Verb("agent_os.cli.explain:can", "Authority", "Say whether an agent may do something."),
    "explain": Verb("agent_os.cli.explain:explain", "Authority", "Say which step and rule decide, and what to do."),
    "budget": Verb("agent_os.cli.budget:budget", "Authority", "Show and set what agents may spend."),
    "cost": Verb("agent_os.cli.budget:cost", "Authority", "Show what was spent."),
    "apply": Verb("agent_os.cli.fleet:apply", "Fleet", "Declare agents by their manifests."),
    "delete": Verb("agent_os.cli.fleet:delete", "Fleet", "Stop declared agents and forget them."),
    "start": Verb("agent_os.cli.fleet:start", "Fleet", "Start declared agents, with cleared counters."),
    "stop": Verb("agent_os.cli.fleet:stop", "Fleet", "Stop agents, and keep them so."),
    "restart": Verb("agent_os.cli.fleet:restart", "Fleet", "Stop and start declared agents."),
    "tree": Verb("agent_os.cli.tree:tree", "Fleet", "Show who supervises whom."),
    "history": Verb("agent_os.cli.history:history", "Fleet", "Show the lives of one agent, and why they ended."),
    "submit": Verb("agent_os.cli.goals:submit", "Fleet", "Give a goal to the agent that fits it best."),
    "queue": Verb("agent_os.cli.goals:queue", "Fleet", "List goals, and put them in order."),
    "send": Verb("agent_os.cli.bus:send", "Fleet", "Send an agent a message, or ask it something."),
    "bus": Verb("agent_os.cli.bus:bus", "Fleet", "Look at messages, topics and dead letters."),
    "manifest": Verb("agent_os.cli.manifest:manifest", "Fleet", "Lint, show and explain manifests."),
    "model": Verb("agent_os.cli.models:model", "Models and tools", "Say which models there are, and try them."),
    "tool": Verb("agent_os.cli.tools:tool", "Models and tools", "List tools, and call one."),
    "mcp": Verb("agent_os.cli.mcp:mcp", "Models and tools", "Add servers that bring further tools."),
    "policy": Verb("agent_os.cli.policy:policy", "Authority", "Check, test and compare rules."),
    "up": Verb("agent_os.cli.kernel:up", "System", "Start the kernel and keep it; a run starts one by itself."),
    "down": Verb("agent_os.cli.kernel:down", "System", "Stop every agent, then the kernel."),
    "status": Verb("agent_os.cli.health:status", "System", "Show how everything is, on one screen."),
    "doctor": Verb("agent_os.cli.doctor:doctor", "System", "Check machine and installation, by doing things."),
    "config": Verb("agent_os.cli.config:config", "System", "Show settings and where they come from; change yours."),
    "completion": Verb("agent_os.cli.completion:completion", "System", "Print the script that lets a shell complete."),
    "version": Verb("agent_os.cli.version:version", "System", "Show the versions of Agent OS and Python."),
}


ALIASES = {"inbox": "approvals", "mem": "memory", "secret": "secrets", "suspend": "pause"}


class AgentCtl(click.Group):
    """A group that knows its verbs by a table and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = _verb(cmd_name)
        if verb is None:
            return None
        module, _, name = verb.target.partition(":")
        command = getattr(import_module(module), name)
        gc.freeze()  # it stays, so nobody need look through it
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if _verb(args[0]) is None and not args[0].startswith("-"):
            from agent_os.cli.naming import did_you_mean

            raise click.UsageError(f"there is no verb {args[0]!r}{did_you_mean(args[0], [*VERBS, *ALIASES])}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in dict.fromkeys(verb.group for verb in VERBS.values()):
            with formatter.section(group):
                formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items() if verb.group == group])


def _verb(name: str) -> Verb | None:
    return VERBS.get(ALIASES.get(name, name))


@click.group(cls=AgentCtl, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(agent_os.__version__, prog_name="agentctl", message="%(prog)s %(version)s")
def app() -> None:
    """Run any program as an isolated agent, see what it changed, and decide what to keep.

    \b
      agentctl run -- python my_agent.py
      agentctl init --template loop && agentctl run *.agent.toml

    Short for others: inbox (approvals), mem (memory), secret (secrets), suspend (pause).
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args:
        args = ["--help"]
    as_json = asks_for_json(args)
    failure = _failure_code(args)
    try:
        return app.main(args, prog_name="agentctl", standalone_mode=False) or 0
    except AgentOSError as error:
        errors.report(error, as_json=as_json)
        return failure or errors.exit_code(error)
    except click.exceptions.NoArgsIsHelpError as error:  # a group of verbs by itself, as agentctl by itself
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        _report_click(error, as_json)
        return failure or error.exit_code
    except click.Abort:  # Ctrl-C, or the end of input at a question
        return errors.EXIT_INTERRUPTED
    except Exception as error:  # the last line of defence: a bug of ours is one clear line, not a page
        _report_bug(error, as_json)
        return failure or errors.EXIT_FAILED


def asks_for_json(args: Sequence[str]) -> bool:
    """Read from the raw words, because a command line that click cannot parse still wants its error as JSON."""
    own = list(args[: args.index("--")] if "--" in args else args)
    if {"--json", "-ojson", "--output=json"} & set(own):
        return True
    return any(pair in {("-o", "json"), ("--output", "json")} for pair in pairwise(own))


def _failure_code(args: Sequence[str]) -> int | None:
    verb = _verb(args[0])
    return verb.failure if verb else None


def _report_click(error: click.ClickException, as_json: bool) -> None:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    errors.write(
        code="EINVAL",
        detail_code="usage",
        severity="low",
        reason=_said(error).rstrip("."),
        hint=f"{ctx.command_path if ctx else 'agentctl'} --help",
        as_json=as_json,
    )


def _said(error: click.ClickException) -> str:
    """What click says, with the word that was meant where it does not guess."""
    from agent_os.cli.naming import did_you_mean

    said = error.format_message()
    if (unknown := _NO_VERB.match(said)) and isinstance(error, click.UsageError) and error.ctx:
        group = error.ctx.command
        verbs = group.list_commands(error.ctx) if isinstance(group, click.Group) else []
        near = did_you_mean(unknown[1], verbs) or f": it has {', '.join(verbs)}"
        return f"{error.ctx.command_path} has no verb {unknown[1]!r}{near}"
    if isinstance(error, click.BadParameter) and error.param and isinstance(error.param.type, click.Choice):
        choices = [str(one) for one in error.param.type.choices]
        if wrong := _NO_CHOICE.match(error.message):
            return said.rstrip(".") + did_you_mean(wrong[1], choices)
    return said


def _report_bug(error: Exception, as_json: bool) -> None:
    if os.environ.get("AGENT_OS_LOG") == "debug":
        import traceback

        traceback.print_exception(error)
    errors.write(
        code="EIO",
        detail_code="internal",
        severity="high",
        reason=f"internal error, {type(error).__name__}: {error}",
        hint="the same command with AGENT_OS_LOG=debug prints where it happened",
        as_json=as_json,
    )


if __name__ == "__main__":
    entry(main)
