"""Policy files without a kernel: what `agentctl policy` reads, checks and compares offline.

A composition root beside the daemon, because both need the same rules read by the same code, and a file that keeps the
kernel from starting must be explained while none runs. In: paths and what is known of agents and tools. Out: plain
values to print. Decides nothing that holds anywhere.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.kernel import governing, rules
from agent_os.kernel.authority.capability import parse as parse_capability
from agent_os.kernel.authority.policy import cases, placing
from agent_os.kernel.authority.policy.findings import findings
from agent_os.kernel.authority.policy.layers import Decision, Policy
from agent_os.kernel.authority.policy.loading import (
    OPERATOR,
    ORGANISATION,
    PROJECT_FILES,
    Place,
    common,
    load,
    operators,
    problems_of,
)
from agent_os.kernel.authority.policy.rules import Layer

LAYERS = tuple(layer.name.lower() for layer in Layer if layer is not Layer.BUILTIN)
Tools = Mapping[str, str | None]


def places(home: Path, project: Path | None) -> list[Path]:
    """The policy files that there are, from the top."""
    usual = [ORGANISATION, home / OPERATOR]
    if project:
        usual += [project / name for name in PROJECT_FILES]
    return [path for path in usual if path.exists()]


def layer_of(path: Path) -> Layer:
    """Where a file lies says whose it is; anything else is tried as the operator's."""
    if path == ORGANISATION:
        return Layer.ORGANISATION
    return Layer.PROJECT if path.suffix in (".md", ".yaml", ".yml") or path.parent.name == ".agents" else Layer.OPERATOR


def opened(files: Sequence[Path], layer: str | None = None, tools: Tools | None = None) -> Policy:
    """EINVAL: everything that is wrong with them."""
    for path in files:
        if not path.exists():
            raise ENOENT("policy.file", f"there is no file {path}")
    chosen = Layer[layer.upper()] if layer else None
    return load([Place(layer_of(path) if chosen is None else chosen, path) for path in files], tools)


def replaced(files: Sequence[Path], new: Path, layer: str | None = None, tools: Tools | None = None) -> Policy:
    """The rules of those files with the new ones in the place of what their layer says. EINVAL: as `opened`."""
    if not new.exists():
        raise ENOENT("policy.file", f"there is no file {new}")
    own = Layer[layer.upper()] if layer else layer_of(new)
    others = [Place(layer_of(path), path) for path in files if layer_of(path) is not own]
    return load(sorted([*others, Place(own, new)], key=lambda place: place.layer), tools)


def apply(home: Path, data: bytes) -> Policy:
    """Put new rules in the place of the operator's own, where no kernel runs that could. EINVAL: they do not load."""
    policy = _in_force(home, data)
    placing.put(home / OPERATOR, data)
    return policy


def roll_back(home: Path) -> Policy:
    """The operator's rules before the newest ones."""
    policy = _in_force(home, placing.before(home / OPERATOR))
    placing.put_back(home / OPERATOR)
    return policy


def would_be(home: Path, data: bytes | None) -> Policy:
    """What would be in force with other rules in the place of the operator's, or (None) with those before the newest.
    Changes nothing. EINVAL: they do not load."""
    return _in_force(home, placing.before(home / OPERATOR) if data is None else data)


def _in_force(home: Path, data: bytes) -> Policy:
    return Policy(operators(data, home / OPERATOR), load(common(None)))


def about(policy: Policy) -> dict[str, Any]:
    return governing.about(policy)


def problems(error: EINVAL) -> list[dict[str, Any]]:
    return [{"file": one.where.file, "line": one.where.line, "what": one.what} for one in problems_of(error)]


def described(
    policy: Policy, agents: Mapping[str, str], tools: Tools | None, held: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """What holds for whom, and what is odd about it. `held`: the capabilities of agents, where they are known."""
    known = agents or None
    holding = {name: [parse_capability(text) for text in texts] for name, texts in (held or {}).items()}
    return {
        "digest": policy.digest.hex(),
        "files": [
            {"file": file.file, "layer": file.layer.name.lower(), "default": file.default, "mode": str(file.mode)}
            for file in policy.files[1:]
        ],
        "rules": sum(1 for _ in policy.rules()),
        "agents": {name: list(rules.shown(policy, [(name, role)])) for name, role in (agents or {"*": ""}).items()},
        "labels": list(rules.labels(policy)),
        "findings": [
            {"file": one.where.file, "line": one.where.line, "kind": one.kind, "rule": one.rule, "what": one.what}
            for one in findings(policy, agents=known, tools=tools, classes=tools, held=holding)
        ],
    }


def outcomes(policy: Policy, path: Path, tools: Tools | None = None) -> list[dict[str, Any]]:
    done = cases.run_cases(policy, cases.read_cases(_bytes(path), str(path)), tools)
    return [
        {
            "name": one.case.name,
            "where": str(one.case.where),
            "passed": one.passed,
            "expected": str(one.case.expect),
            "expected_rule": one.case.rule,
            "effect": str(one.effect),
            "rule": one.rule,
            "why": one.why,
        }
        for one in done
    ]


def compared(before: Policy, after: Policy, path: Path) -> tuple[int, list[dict[str, Any]]]:
    """How many calls were decided again, and which of them otherwise."""
    calls = cases.read_recorded(_bytes(path), str(path))
    changes = cases.diff(calls, before, after)
    return len(calls), [
        {
            "seq": one.call.seq,
            "agent": one.call.agent,
            "call": ":".join((one.call.need.kind, one.call.need.target, one.call.need.action)),
            "before": _verdict(one.before),
            "after": _verdict(one.after),
        }
        for one in changes
    ]


def _verdict(decision: Decision) -> dict[str, Any]:
    return {
        "effect": str(decision.effect),
        "violation": decision.violation,
        "rule": decision.rule.id if decision.rule else "",
        "where": str(decision.where) if decision.where else "",
        "reason": decision.reason,
    }


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ENOENT("policy.file", f"cannot read {path}: {error.strerror}") from None
