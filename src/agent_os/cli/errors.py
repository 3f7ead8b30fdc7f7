"""How an error leaves agentctl: the sentence a person reads, the object a program reads, and the exit code.

In: an `AgentOSError`, or the parts of one for failures that have no class (usage, internal). Out: lines on stderr and
a number, which `abi.errors` owns with the names. Never decides what is an error.
"""

import json

import click

from agent_os.abi.errors import AgentOSError, outcome
from agent_os.cli.output import plain

EXIT_FAILED = 1
EXIT_TAMPERED = 10  # a check of integrity failed
EXIT_NOT_STARTED = 125  # of a verb that otherwise returns the guest's own code
EXIT_INTERRUPTED = 130


def exit_code(error: AgentOSError) -> int:
    return outcome(error)[0]


def report(error: AgentOSError, *, as_json: bool) -> None:
    """Write one error to stderr. Facts such as the rule or decision appear when the error carries them."""
    write(
        code=error.name,
        detail_code=error.code,
        severity=error.severity.name.lower(),
        reason=error.reason,
        hint=error.hint,
        retryable=error.retryable,
        facts=error.detail,
        as_json=as_json,
    )


def write(
    *,
    code: str,
    detail_code: str,
    severity: str,
    reason: str,
    hint: str,
    as_json: bool,
    retryable: bool = False,
    facts: dict[str, object] | None = None,
) -> None:
    """The two shapes of an error: what and why, then the next command; or the one object programs read."""
    if as_json:
        shape: dict[str, object] = {
            "code": code,
            "detail_code": detail_code,
            "severity": severity,
            "reason": reason,
            **{fact: (facts or {}).get(fact) for fact in ("rule", "decision")},
            "hint": hint or None,
            "retryable": retryable,
            "trace": (facts or {}).get("trace"),
        }
        click.echo(json.dumps({"error": shape}, default=str), err=True)
        return
    click.echo(f"agentctl: {plain(reason)}", err=True)
    if hint:
        click.echo(f"  try: {plain(hint)}", err=True)
