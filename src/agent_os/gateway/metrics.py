"""`/metrics`: what OP_METRICS counts, as Prometheus reads it.

In: samples of the kernel. Out: text. Nothing is counted here, so a gateway that was restarted lost nothing.
"""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agent_os.abi.doors import Metrics
from agent_os.gateway import problems
from agent_os.gateway.asking import Caller

PREFIX = "agent_os_"
MEANING: dict[str, str] = {
    "syscalls_total": "Calls that came to their end, and how",
    "violations_total": "Calls that a rule forbids",
    "signals_total": "Signals that were sent",
    "model_tokens_total": "Tokens that models took in and gave",
    "cost_usd_total": "What model calls cost, in US dollars",
    "dead_letters_total": "Messages that could not be delivered",
    "agents": "Agents that are alive",
    "approvals_pending": "Calls that wait for a person",
    "bus_depth": "Messages that wait to be handled",
    "policy_check_seconds": "How long the rules took to decide about one call",
    "journal_commit_seconds": "How long a group of entries took to be on disk",
    "model_queue_seconds": "How long a model call waited for its turn",
}
Sample = dict[str, Any]
router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={**problems.RESPONSES, 200: {"description": "So it is", "content": {"text/plain": {}}}},
    summary="Counters, gauges and histograms, as Prometheus reads them.",
)
async def metrics(caller: Caller) -> Response:
    return Response(text(await caller.ask(Metrics())), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def text(measured: dict[str, list[Sample]]) -> bytes:
    return generate_latest(_Once(measured))


class _Once(Collector):
    """One answer of the kernel."""

    def __init__(self, measured: dict[str, list[Sample]]) -> None:
        self._measured = measured

    def collect(self) -> Iterable[Metric]:
        yield from _families(self._measured["counters"], CounterMetricFamily)
        yield from _families(self._measured["gauges"], GaugeMetricFamily)
        for one in self._measured["histograms"]:
            name = str(one["name"])
            buckets = [(repr(float(bound)), count) for bound, count in one["buckets"]]
            labels = sorted(one["labels"])
            family = HistogramMetricFamily(PREFIX + name, MEANING.get(name, name), labels=labels)
            values = [str(one["labels"][label]) for label in labels]
            family.add_metric(values, [*buckets, ("+Inf", one["count"])], one["sum"])
            yield family


def _families(
    samples: Iterable[Sample], kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
) -> list[CounterMetricFamily | GaugeMetricFamily]:
    found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for one in samples:
        name, labels = str(one["name"]), one["labels"]
        if name not in found:
            found[name] = kind(PREFIX + name, MEANING.get(name, name), labels=list(labels))
        found[name].add_metric([str(value) for value in labels.values()], one["value"])
    return list(found.values())
