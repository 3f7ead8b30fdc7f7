"""OP_METRICS: how much of everything, as plain data that a door can render.

In: an operator, or whoever may look. Out: counters since the kernel began, gauges of this moment, histograms of
moments. What is counted is what the record was told; nothing here names an agent, and nothing here is changed.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_os.abi.doors import Metrics
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_NUMBER, BY_REQUEST
from agent_os.kernel.bus.message import ALL_LANES, LANES
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.counting import Moments
from agent_os.kernel.table import Actor

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Sample = dict[str, Any]
_DONE = (Kind.RESULT, Kind.OUTCOME)
_MICRO = 1e6


def _metrics(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    return Act(lambda: Done(measured(kernel)))


def measured(kernel: "Kernel") -> dict[str, list[Sample]]:
    models = kernel.models.used
    moments = {
        "policy_check_seconds": kernel.gate.policy_checks,
        "journal_commit_seconds": kernel.journal.commits,
        "model_queue_seconds": models.queued,
    }
    return {
        "counters": [*_counters(kernel)],
        "gauges": [*_gauges(kernel)],
        "histograms": [_histogram(name, one) for name, one in moments.items()],
    }


def _counters(kernel: "Kernel") -> Iterator[Sample]:
    for (op, outcome), count in sorted(_calls(kernel.journal.told).items()):
        yield _sample("syscalls_total", count, call=op, outcome=outcome)
    for rule, count in kernel.journal.forbidden:
        yield _sample("violations_total", count, rule=rule)
    for number, count in sorted(kernel.signals.sent.items()):
        yield _sample("signals_total", count, signal=AgentSignal(number).name)
    models = kernel.models.used
    for direction, counts in (("input", models.input), ("output", models.output)):
        for model, count in counts:
            yield _sample("model_tokens_total", count, model=model, direction=direction)
    for model, micro in models.cost:
        yield _sample("cost_usd_total", micro / _MICRO, model=model)
    yield _sample("dead_letters_total", kernel.bus.broker.buried)


def _gauges(kernel: "Kernel") -> Iterator[Sample]:
    agents: dict[tuple[str, str], int] = {}
    for agent in kernel.table.alive():
        kind = (str(agent.state), agent.isolation or "none")
        agents[kind] = agents.get(kind, 0) + 1
    for (state, isolation), count in sorted(agents.items()):
        yield _sample("agents", count, state=state, isolation=isolation)
    yield _sample("approvals_pending", len(kernel.approvals.pending()))
    depth = kernel.bus.broker.depth()
    for lane in ALL_LANES:
        yield _sample("bus_depth", depth[lane], lane=LANES[lane])


def _calls(told: Mapping[int, int]) -> dict[tuple[str, str], int]:
    """Of all entries those that end a call."""
    found: dict[tuple[str, str], int] = {}
    for packed, count in list(told.items()):
        kind, verdict, failed, op = unpacked(packed)
        if op not in BY_NUMBER or (kind not in _DONE and kind != Kind.DECISION):
            continue
        outcome = "error" if failed else "allow"
        if kind == Kind.DECISION:
            outcome = "forbid" if verdict == Verdict.FORBID else "refuse"
        name = (BY_NUMBER[op].name, outcome)
        found[name] = found.get(name, 0) + count
    return found


def unpacked(packed: int) -> tuple[int, int, bool, int]:
    """What `Journal.told` counts by: kind, verdict, whether it has an error, and the syscall."""
    return packed & 0xFF, packed >> 8 & 0xF, bool(packed >> 12 & 1), packed >> 16


def _sample(name: str, value: float, **labels: str) -> Sample:
    return {"name": name, "labels": labels, "value": value}


def _histogram(name: str, moments: Moments) -> Sample:
    return {"name": name, "labels": {}, **moments.told()}


PREPARE = {BY_REQUEST[Metrics].number: _metrics}
