"""Why: what the gate says, or said, of one act, step by step, and what would make it possible.

In: an agent and an act written as the capability for exactly that, or the number of an entry. Out: a verdict, every
step with its answer, rule and place, and on a refusal the least capability that would do with the command that grants
it. Looks only: nothing is asked, counted or recorded here.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from shlex import quote
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agent_os.abi.entries import Entry, Kind, Verdict
from agent_os.abi.errors import BY_NUMBER as BY_ERROR
from agent_os.abi.errors import EAPPROVAL, EBUDGET, EINVAL, EIO, ENOENT, EPERM, EPOLICY, AgentOSError
from agent_os.abi.syscalls import BY_NAME, BY_NUMBER, Effect, Spawn
from agent_os.kernel import spawning
from agent_os.kernel.authority.capability import Capability, missing
from agent_os.kernel.authority.constraints import Argument
from agent_os.kernel.authority.handles import Handle
from agent_os.kernel.authority.marks import Marks
from agent_os.kernel.authority.patterns import compiled
from agent_os.kernel.authority.policy.loading import PROJECT_FILES
from agent_os.kernel.calls import CONNECTION, Act, Asked, Done, Need
from agent_os.kernel.passing import Passing
from agent_os.kernel.recorded import Recorded, decode_any
from agent_os.kernel.table import NAMESPACE, Agent

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

STEPS = ("identify", "capability", "policy", "labels", "budget", "approval")
SPAWN_STEPS = (
    *("caller", "manifest", "grant", "role", "place", "agency", "ceiling"),
    *("policy", "budget", "approval", "sandbox"),
)
_GO, _ASK, _NO, _NOT_REACHED = "go on", "ask", "refuse", "not reached"
# The call that such an act would be, and what it does to the world.
_CALLS: Mapping[tuple[str, str], tuple[str, Effect]] = {
    **{(kind, "read"): ("SYS_READ", Effect.PURE) for kind in ("file", "mem")},
    **{(kind, "write"): ("SYS_WRITE", Effect.IDEMPOTENT) for kind in ("file", "mem")},
    **{(kind, "delete"): ("SYS_REMOVE", Effect.IDEMPOTENT) for kind in ("file", "mem")},
    ("mem", "search"): ("SYS_LIST", Effect.PURE),
    ("mem", "share"): ("SYS_SHARE", Effect.IDEMPOTENT),
    **{("llm", action): ("SYS_THINK", Effect.PURE) for action in ("call", "embed")},
    ("agent", "spawn"): ("SYS_SPAWN", Effect.VERIFIABLE),
    ("agent", "signal"): ("SYS_SIGNAL", Effect.IDEMPOTENT),
    ("agent", "inspect"): ("SYS_STAT", Effect.PURE),
    ("ipc", "send"): ("SYS_SEND", Effect.IDEMPOTENT),
    ("ipc", "urgent"): ("SYS_SEND", Effect.IDEMPOTENT),
    ("ipc", "publish"): ("SYS_PUBLISH", Effect.IDEMPOTENT),
    ("ipc", "subscribe"): ("SYS_SUBSCRIBE", Effect.IDEMPOTENT),
    ("ipc", "replay"): ("SYS_SUBSCRIBE", Effect.IDEMPOTENT),
}


def act(kernel: "Kernel", agent: Agent, wanted: Capability) -> dict[str, Any]:
    """May it do that now?"""
    wanted = _one_thing(wanted)
    needs = [Need(wanted.kind, action, _target(wanted)) for action in sorted(wanted.actions)]
    name, effect = _CALLS.get((wanted.kind, needs[0].action), ("SYS_EXEC", Effect.OPAQUE))
    if wanted.kind == "tool":
        effect = _effect(kernel, needs[0].target)
    op = BY_NAME[name].number
    if wanted.kind == "http":
        op, effect = CONNECTION, Effect.PURE  # its method says what it does
    marks = Marks()
    marks.dry = True
    deed = Act(Done, needs, effect=effect, facts=_facts(wanted))
    passing = Passing(agent, Asked(op, b"\x80"), lambda body, error: None, deed, marks=marks)
    steps, error = _walk(kernel, passing)
    verdict = "allow" if error is None else _ASK if isinstance(error, EAPPROVAL) else "refuse"
    told: dict[str, Any] = {"verdict": verdict, "what": str(wanted), "agent": agent.name, "steps": steps}
    if error is not None:
        told |= _why(agent.name, error)
        if "missing" in told:
            told |= _grant(agent.name, [_least(need, wanted) for need in _not_held(agent, needs, deed.facts)])
    return told


def child(kernel: "Kernel", agent: Agent, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """May it spawn that now? The steps of admission, of which the gate's are some."""
    rows: list[dict[str, Any]] = []
    problem = asked = None
    try:
        _identify(agent, ())
        asked = spawning.understood(kernel, agent, Spawn(manifest=dict(manifest)))
    except AgentOSError as error:
        problem = error
    before = int(cast("int", problem.detail.get("step", 2))) if problem else len(SPAWN_STEPS)
    if asked is not None:
        marks = Marks()
        marks.dry = True
        deed = Act(Done, asked.needs, effect=Effect.VERIFIABLE)
        op = BY_NAME["SYS_SPAWN"].number
        passing = Passing(agent, Asked(op, b"\x80"), lambda body, error: None, deed, marks=marks)
        before, problem = _walk_on(kernel, passing, asked)
    for number, name in enumerate(SPAWN_STEPS, 1):
        answer = _GO if number < before or problem is None else _NOT_REACHED
        row = _refused(1, problem) if problem is not None and number == before else _row(1, answer)
        rows.append({**row, "step": number, "name": name})
    verdict = "allow" if problem is None else _ASK if isinstance(problem, EAPPROVAL) else "refuse"
    what = f"spawn {asked.manifest.id if asked else manifest.get('name', '')}".strip()
    told: dict[str, Any] = {"verdict": verdict, "what": what, "agent": agent.name, "steps": rows}
    if asked is not None:
        told["clamped"] = [one._asdict() for one in asked.clamped]
    return told | _why(agent.name, problem) if problem is not None else told


def _walk_on(kernel: "Kernel", passing: Passing, asked: spawning.Understood) -> tuple[int, AgentOSError | None]:
    """From the policy on: the step that refuses, and why."""
    steps, agent = kernel.gate.steps, cast("Agent", passing.caller)
    checks: Sequence[tuple[int, Callable[[], object]]] = (
        (3, lambda: kernel.gate.weighing.hold(passing)),
        (8, lambda: steps.policy.check(passing)),
        (8, lambda: steps.labels.check(passing)),
        (9, lambda: steps.budget.check(passing)),
        (10, lambda: steps.approval.check(passing)),
        (11, lambda: spawning.require_walls(kernel, agent, asked)),
    )
    for number, check in checks:
        try:
            check()
        except AgentOSError as error:
            return number, error
    return len(SPAWN_STEPS), None


def _walk(kernel: "Kernel", passing: Passing) -> tuple[list[dict[str, Any]], AgentOSError | None]:
    """Steps 1 to 6, without consequence, up to the first that says no."""
    steps, agent = kernel.gate.steps, cast("Agent", passing.caller)
    checks: Sequence[Callable[[], object]] = (
        lambda: _identify(agent, passing.act.needs),
        lambda: kernel.gate.weighing.hold(passing),
        lambda: steps.policy.check(passing),
        lambda: steps.labels.check(passing),
        lambda: steps.budget.check(passing),
        lambda: steps.approval.check(passing),
    )
    rows: list[dict[str, Any]] = []
    problem: AgentOSError | None = None
    for number, check in enumerate(checks, 1):
        if problem is not None:
            rows.append(_row(number, _NOT_REACHED))
            continue
        try:
            check()
        except AgentOSError as error:
            problem = error
            rows.append(_refused(number, error))
        else:
            rows.append(_row(number, _GO, **_found(number, passing)))
    return rows, problem


def _identify(agent: Agent, needs: Sequence[Need]) -> None:
    """Who it is, and whether there is such a thing for it at all."""
    if agent.quarantined:
        raise EPERM("quarantined", "this agent is quarantined for a violation", hint=f"agentctl release {agent.name}")
    for need in needs:
        if need.kind in ("file", "mem") and agent.root is not None:
            agent.root.find(need.target)  # ENOENT: nothing is mounted there


def _found(number: int, passing: Passing) -> dict[str, Any]:
    """What a step that said yes rests on."""
    decision = passing.marks.decision
    if number == 2:
        own = [one if one and one.holder == passing.caller.id else None for one in passing.handles]
        held = [f"c-{one.id} {one.capability}" if one else "it is shared" for one in own]
        return {"why": ", ".join(dict.fromkeys(held))}
    if number == 3 and decision:
        where = str(decision.where or "")
        return {"why": decision.reason or f"{decision.effect}", "rule": decision.told, "where": where}
    if number == 4 and passing.marks.label.words():
        return {"why": " ".join(passing.marks.label.words())}
    return {}


def _row(number: int, answer: str, **more: Any) -> dict[str, Any]:
    return {"step": number, "name": STEPS[number - 1], "answer": answer, "why": "", "rule": "", "where": "", **more}


def _refused(number: int, error: AgentOSError) -> dict[str, Any]:
    answer = _ASK if error.code == "approval.asks" else _NO
    rule, where = str(error.detail.get("rule", "")), str(error.detail.get("where", ""))
    return _row(number, answer, why=_to_operators(error.reason), rule=rule, where=where)


def _why(agent: str, error: AgentOSError) -> dict[str, Any]:
    told: dict[str, Any] = {"code": error.name, "number": error.number, "detail_code": error.code}
    told["because"] = _to_operators(error.reason)
    if error.detail.get("missing"):
        told |= _grant(agent, [str(error.detail["missing"])])
    elif error.name == "EACCES":
        told["missing"] = []
    elif isinstance(error, EBUDGET):
        row = error.detail.get("row") or error.detail.get("resource") or "cost"
        told["allow"] = [f"agentctl budget raise {agent} {row}=AMOUNT"]
    elif isinstance(error, EPOLICY) and error.detail.get("where"):
        told["allow"] = [_changing(agent, str(error.detail["where"]))]
    elif error.code == "quarantined":
        told["allow"] = [f"agentctl release {agent}"]
    return told


def _to_operators(reason: str) -> str:
    """A refusal speaks to the agent."""
    return reason.replace("you hold", "it holds").replace("you carry", "it carries")


def _changing(agent: str, where: str) -> str:
    """A project's rules are read when an agent starts, and kept; all others are read again when asked to."""
    own = where.rpartition(":")[0].endswith(PROJECT_FILES)
    return f"change the rule at {where}, then: " + (f"start {agent} again" if own else "agentctl policy apply")


def _grant(agent: str, texts: Sequence[str]) -> dict[str, Any]:
    return {"missing": list(texts), "allow": [f"agentctl cap grant {agent} {quote(one)} --ttl 10m" for one in texts]}


def _not_held(agent: Agent, needs: Sequence[Need], facts: Mapping[str, Any]) -> list[Need]:
    def lacks(need: Need) -> bool:
        try:
            agent.holdings.find((need,), None, facts)
        except AgentOSError:
            return True
        return False

    return [need for need in needs if lacks(need)]


def _least(need: Need, wanted: Capability) -> str:
    """What would do, with the same conditions that were asked about."""
    return str(wanted.only(frozenset({need.action}))) if wanted.constraints else missing(need)


def _one_thing(wanted: Capability) -> Capability:
    """Of a host alone, its first page is meant."""
    target = wanted.target
    if wanted.kind == "http" and target.exact is None and not target.segments and "*" not in target.host:
        return Capability("http", compiled("http", f"{target.host}/"), wanted.actions, wanted.constraints)
    return wanted


def _target(wanted: Capability) -> str:
    """The one thing that is meant."""
    target = wanted.target
    if target.exact is not None:
        return target.exact
    if target.own or (wanted.kind in ("agent", "shell") and target.anything):
        return "*"
    raise EINVAL("cap.pattern", f"{wanted} is more than one thing", hint="name one target, without a star")


def _facts(wanted: Capability) -> dict[str, Any]:
    """What is said about the call beside its target: `{port:8443}`, `{arg.n:3}`, `{max_size:10kB}`."""
    constraints, facts = wanted.constraints, dict[str, Any]()
    for name in ("port", "scheme"):
        if name in constraints:
            facts[name] = min(constraints[name])
    if "max_size" in constraints:
        facts["size"] = constraints["max_size"]
    args = {name[4:]: _one(value) for name, value in constraints.items() if name.startswith("arg.")}
    return {**facts, "args": args} if args else facts


def _one(value: Argument) -> Any:
    if value.literals is None or len(value.literals) != 1:
        raise EINVAL("cap.pattern", "an argument is one value here", hint="{arg.NAME:VALUE}")
    (text,) = value.literals
    try:
        number = Decimal(text)
    except ArithmeticError:
        return text
    return int(number) if number == number.to_integral_value() else float(number)


def _effect(kernel: "Kernel", tool: str) -> Effect:
    try:
        return kernel.tools.find(tool).effect
    except ENOENT:
        return Effect.OPAQUE


# What was decided.

_CALL_KINDS = (Kind.DECISION, Kind.RESULT, Kind.INTENT, Kind.OUTCOME)


def entry(kernel: "Kernel", seq: int) -> dict[str, Any]:
    """A decision of the past, as the record has it."""
    if not 0 < seq <= kernel.journal.size:
        raise ENOENT("entry.none", f"there is no entry {seq}", hint=f"the last one is {kernel.journal.size}")
    found, kept = kernel.journal.read(seq)
    if found.kind not in (*_CALL_KINDS, Kind.CONNECT):
        word = Kind(found.kind).name.lower()
        raise EINVAL("entry.kind", f"entry {seq} is no decision of the gate but a {word}", hint="agentctl events")
    name = found.agent.removeprefix(f"{NAMESPACE}/")
    error, what = _said(found, kept)
    refused = found.kind == Kind.DECISION or found.verdict in (Verdict.REFUSE, Verdict.FORBID)
    verdict = "refuse" if refused else "allow"
    handle = _holder(kernel, found.handle)
    told: dict[str, Any] = {
        "verdict": verdict,
        "seq": seq,
        "agent": name,
        "what": what,
        "handle": f"c-{found.handle}" if found.handle else "",
        "capability": str(handle.capability) if handle else "",
        "mode": found.mode,
        "label": list(found.label),
        "steps": _recorded_steps(found, error if refused else None),
    }
    return told | _why(name, error) if error is not None and refused else told


def _said(found: Entry, kept: bytes | None) -> tuple[AgentOSError | None, str]:
    """The error that was answered, and what was asked for in a few words."""
    call = BY_NUMBER[found.op].name if found.op in BY_NUMBER else Kind(found.kind).name.lower()
    if kept is None:
        return None, f"{call} (the body of this entry was erased)"
    try:
        recorded = Recorded.of(kept)
        request: Any = decode_any(recorded.request)
        error = recorded.error
    except (EIO, msgspec.DecodeError, msgspec.ValidationError):  # not a call of an agent's but a fact of the kernel's
        request, error = decode_any(kept), None
    words = cast("Mapping[str, Any]", request if isinstance(request, Mapping) else {})
    if words.get("host"):
        method = str(words.get("method") or "connect").upper()
        call, words = f"http {method}", {**words, "path": "", "host": f"{words['host']}{words.get('path') or ''}"}
    about = next((words[key] for key in ("path", "tool", "agent", "host", "target", "event") if words.get(key)), "")
    if error is None and (words.get("reason") or words.get("error")):
        error = _told(found.code, words)
    return error, f"{call} {about}".strip()


def _told(number: int, words: Mapping[str, Any]) -> AgentOSError:
    """The error of a refusal that is kept as facts."""
    kind = BY_ERROR.get(number, EPERM)
    more = {name: words[name] for name in ("missing", "where") if words.get(name)}
    return kind(str(words.get("code") or "refused"), str(words.get("reason") or words.get("error")), **more)


def _recorded_steps(found: Entry, error: AgentOSError | None) -> list[dict[str, Any]]:
    last = found.step if error is not None and 1 <= found.step <= len(STEPS) else len(STEPS) + 1
    rows: list[dict[str, Any]] = []
    for number in range(1, len(STEPS) + 1):
        if error is not None and number == last:
            rows.append(_refused(number, error) | ({"rule": found.rule} if found.rule else {}))
        elif number > last:
            rows.append(_row(number, _NOT_REACHED))
        else:
            more: dict[str, Any] = {}
            if number == 2 and found.handle:
                more = {"why": f"c-{found.handle}"}
            elif number == 3 and found.rule and error is None:
                more = {"rule": found.rule}
            elif number == 4 and found.label:
                more = {"why": " ".join(found.label)}
            rows.append(_row(number, _GO, **more))
    return rows


def _holder(kernel: "Kernel", number: int) -> Handle | None:
    try:
        return kernel.authority.find(number) if number else None
    except ENOENT:  # revoked since
        return None
