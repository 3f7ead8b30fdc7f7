"""A kernel as `agentctl up` starts it, with the tools that the conformance suite calls by name. Ran as a program.

python offering.py --home DIR --socket PATH --ready-fd N
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import Effect
from agent_os.abi.tools import ToolSpec
from agent_os.daemon import process as daemon
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tooling import Tool
from agent_os.kernel.tools.registry import Call, Deed

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
TEXT = {"type": "text", "text": "This is a simple text response for testing."}
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}
ANSWERS: dict[str, Any] = {
    "test_simple_text": TEXT["text"],
    "test_image_content": {"content": [IMAGE]},
    "test_audio_content": {"content": [AUDIO]},
    "test_embedded_resource": {
        "content": [
            {
                "type": "resource",
                "resource": {"uri": "test://embedded", "mimeType": "text/plain", "text": "This is embedded."},
            }
        ]
    },
    "test_logging_tool": "It has nothing to log.",
    "test_streaming_elicitation": "It has nothing to ask.",
    "test_multiple_content_types": {
        "content": [
            {"type": "text", "text": "Several contents:"},
            IMAGE,
            {
                "type": "resource",
                "resource": {"uri": "test://mixed", "mimeType": "application/json", "text": '{"test": "data"}'},
            },
        ]
    },
}
# A rule asks a person about these, so that calls of them wait.
ASKED = (
    "test_tool_with_progress",
    "test_input_required_result_elicitation",
    "test_input_required_result_request_state",
    "test_input_required_result_tampered_state",
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
    "test_custom_headers": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "query": {"type": "string"}},
        "required": ["region"],
    },
}


FAILING = "test_error_handling"
CHANGING, CHANGED = "test_trigger_tool_change", "test_that_is_held_and_let_go"
NAMES = (*ANSWERS, *ASKED, *SCHEMAS, FAILING, CHANGING, CHANGED)


async def fails(key: str, params: Mapping[str, Any]) -> Any:
    raise EINVAL("test.failed", "this tool fails for the test", hint="none")


def answering(answer: Any) -> Callable[[str, Mapping[str, Any]], Awaitable[Any]]:
    async def run(key: str, params: Mapping[str, Any]) -> Any:
        return answer

    return run


async def done(call: Call) -> Any:
    return "done"


def turning(kernel: Kernel) -> Callable[[str, Mapping[str, Any]], Awaitable[Any]]:
    """What there is to call is another after each call."""

    async def run(key: str, params: Mapping[str, Any]) -> Any:
        registry = kernel.tools.registry
        (tool,) = registry.versions_of(CHANGED)
        registry.suspend(CHANGED, "" if tool.suspended else "it is held for the test")
        return "turned"

    return run


def install(kernel: Kernel) -> None:
    for name, answer in {**ANSWERS, **dict.fromkeys(ASKED, "a person said yes")}.items():
        kernel.tools.register(Tool(name, answering(answer), Effect.PURE, summary=f"Answers as {name} should."))
    kernel.tools.register(Tool(CHANGING, turning(kernel), Effect.IDEMPOTENT, summary="Holds a tool, or lets it go."))
    kernel.tools.register(Tool(CHANGED, answering("here"), Effect.PURE, summary="Is held now and then."))
    kernel.tools.register(Tool(FAILING, fails, Effect.PURE, summary="Fails."))
    for name, schema in SCHEMAS.items():
        spec = ToolSpec(
            name=name,
            description="Has a schema.",
            input_schema=schema,
            effect="pure",
            requires=("tool:call",),
            sandbox="driver",
        )
        kernel.tools.registry.register(spec, Deed(done, plain=True), foreign=True, short=True)


if __name__ == "__main__":
    built_in = daemon._install

    def both(kernel: Kernel) -> None:
        built_in(kernel)
        install(kernel)

    daemon._install = both
    sys.exit(daemon.main())
