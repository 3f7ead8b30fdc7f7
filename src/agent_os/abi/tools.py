"""Tools as they are told of over the wire: what one declares of itself, and what a call of one gave.

Data only. `ToolSpec` is what is registered, listed to models and recorded by its digest; `ToolResult` is the answer of
SYS_EXEC; `ToolInfo` is what a listing shows. What a spec may say is checked by whoever registers it.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from agent_os.abi.syscalls import Effect

EffectClass = Literal["pure", "idempotent", "verifiable", "opaque"]
Place = Literal["driver", "tool", "tool+net", "program"]
HealthState = Literal["ok", "degraded", "down"]

EFFECTS: Mapping[EffectClass, Effect] = {
    "pure": Effect.PURE,
    "idempotent": Effect.IDEMPOTENT,
    "verifiable": Effect.VERIFIABLE,
    "opaque": Effect.OPAQUE,
}
LONGEST_DESCRIPTION = 1024  # characters
LONGEST_TIMEOUT_S = 3600.0
OUTPUT_LIMIT = 64 << 10  # bytes that an agent gets of one result
LARGEST_OUTPUT = 64 << 20  # bytes at which a run is killed


class When(Struct, frozen=True, forbid_unknown_fields=True):
    """A milder effect for some values of one parameter: a GET among requests, a replacement among writes."""

    param: str
    among: tuple[Any, ...]
    effect: EffectClass
    default: bool = False  # also where the parameter is not given


class ToolLabels(Struct, frozen=True, forbid_unknown_fields=True):
    """What its output carries, and what it takes in. Without a word of its own: untrusted, from the tool."""

    integrity: Literal["trusted", "untrusted"] = "untrusted"
    source: str = (
        ""  # a template as in `requires`, e.g. "http:{url}", of which the host is taken; empty: the tool itself
    )
    classes: tuple[str, ...] = ()  # whose readers are named by policy
    accepts: Literal["trusted", "untrusted"] = "untrusted"  # the least that a caller's label may be


class ToolSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str  # ns.verb
    version: str = "1.0.0"
    description: str = ""
    input_schema: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    output_schema: dict[str, Any] | None = None  # None: anything
    effect: EffectClass = "opaque"  # the worst that it can be
    milder: tuple[When, ...] = ()
    requires: tuple[str, ...] = ()  # capability templates, as "file:{path}:read"; {name} is a parameter
    labels: ToolLabels = ToolLabels()
    timeout_s: float = 30.0
    output_limit: int = OUTPUT_LIMIT
    concurrency: int = 8
    sandbox: Place = "tool"  # driver: ours, in the kernel; tool: one-shot; program: in its agent's own process
    secrets: tuple[str, ...] = ()
    cost_microusd: int = 0
    tags: tuple[str, ...] = ()
    deprecated: str | None = None  # why, and what to use instead
    digest: str = ""  # SHA-256 of spec and implementation; given by the registry

    def effect_of(self, params: Mapping[str, Any]) -> EffectClass:
        """Of one call. Several milder words about it: the first."""
        for one in self.milder:
            if one.param in params:
                if any(type(params[one.param]) is type(value) and params[one.param] == value for value in one.among):
                    return one.effect
            elif one.default:
                return one.effect
        return self.effect


class ToolResult(Struct, kw_only=True, omit_defaults=True):
    """What a call gave. A value whose long texts were cut is still one; what could not be cut is told as `text`."""

    value: Any = None
    text: str = ""  # in place of a value that is too large: its beginning, how much there was, its end
    size: int = 0  # bytes of all of it
    cut: bool = False
    blob: str = ""  # SHA-256 of all of it, for tool.output
    tool: str = ""  # name@version, as it was resolved
    digest: str = ""
    duration_ms: int = 0


class ToolInfo(Struct, kw_only=True, omit_defaults=True):
    """One row of a listing."""

    name: str
    version: str
    description: str = ""
    effect: EffectClass = "opaque"
    tags: tuple[str, ...] = ()
    deprecated: str | None = None
    digest: str = ""
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    owner: str = ""  # the agent that registered it for itself and its children; empty: everybody
    health: HealthState = "ok"
