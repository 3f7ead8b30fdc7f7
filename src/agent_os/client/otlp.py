"""Spans to a collector of OpenTelemetry, by OTLP over HTTP. The extra `otel` brings what it takes.

In: exported spans. Out: whether the collector took them. Configured by the standard variables alone (`OTEL_*`). Blocks:
whoever must not wait sends from a thread.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from agent_os.abi.errors import EINVAL
from agent_os.client.spans import Exported

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_TRACES, _ALL = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
_PLACE = "http://localhost:4318"
INSTALL = "pip install 'agent-os[otel]'"
HINT = f"{_ALL}={_PLACE} names a collector that speaks OTLP over HTTP"


def wanted(env: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces."""
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return bool(env.get(_TRACES) or env.get(_ALL))


def installed() -> bool:
    try:
        return (
            find_spec("opentelemetry.exporter.otlp.proto.http") is not None
            and find_spec("opentelemetry.sdk") is not None
        )
    except ModuleNotFoundError:  # not even the package above it
        return False


def require() -> None:
    """EINVAL, one line: the extra is not installed, or nobody said where to send."""
    if not installed():
        raise EINVAL("otel.missing", "this needs OpenTelemetry, which is not installed", hint=INSTALL)
    if not wanted(os.environ):
        raise EINVAL("otel.where", f"where to? {_ALL} is not set", hint=HINT)


class Sender:
    def __init__(self, version: str, timeout: float | None = None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # we say ourselves what was lost
        self.endpoint = os.environ.get(_TRACES) or os.environ.get(_ALL, "")
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "agent-os"}
        self._resource = Resource.create({**named, "service.version": version})
        self._scope = InstrumentationScope("agent_os", version)
        self._exporter = OTLPSpanExporter(timeout=timeout)

    def send(self, spans: Sequence[Exported]) -> bool:
        """Whether they arrived. Tries for as long as the standard timeout says, and raises nothing."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            return self._exporter.export([self._readable(one) for one in spans]) is SpanExportResult.SUCCESS
        except Exception:  # a library's: whatever it is, the spans are lost and nothing else
            return False

    def close(self) -> None:
        self._exporter.shutdown()

    def _readable(self, one: Exported) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(span_id: int) -> SpanContext:
            return SpanContext(one.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            one.name,
            context=context(one.span_id),
            parent=None if one.parent_id is None else context(one.parent_id),
            resource=self._resource,
            attributes=one.attributes,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, one.error) if one.error else Status(),
            start_time=one.start_ns,
            end_time=one.end_ns,
            instrumentation_scope=self._scope,
        )
