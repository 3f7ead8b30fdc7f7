"""`mcp.<server>.<tool>`: tools of MCP servers, called through a sandboxed helper that has one server each.

Needs `Helper` (that server's `userland/mcp_client`) and `Keep`. A tool as its server lists it becomes a `ToolSpec`
here; what becomes of one that is not as it was approved is for whoever registers it. Opaque and untrusted whatever it
says of itself: hints become tags, by which a list can be sorted, and grant nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from agent_os.abi.frames import UNREADABLE
from agent_os.abi.helpers import LARGEST_LIMIT, CallMcp, McpTool, Op, Outcome, Part, fingerprint
from agent_os.abi.tools import LONGEST_DESCRIPTION, OUTPUT_LIMIT, ToolLabels, ToolSpec
from agent_os.drivers.tools import Keep
from agent_os.drivers.tools.helpers import Helper
from agent_os.drivers.tools.shapes import flag, record, rows, text, whole

SECONDS = 60.0  # of one call
_PARTS = {  # of a tool, what its fingerprint covers
    "name": "name",
    "title": "title",
    "description": "description",
    "input_schema": "parameters",
    "output_schema": "result",
    "hints": "hints",
}
_PART = record(
    "kind size",
    kind=text(),
    size=whole("bytes that there were"),
    text=text(),
    blob=text("all of it, for tool.output"),
    media=text(),
    uri=text(),
    name=text(),
)
OUTPUT = record(
    "parts",
    parts=rows(_PART),
    structured={"description": "as the server's own schema says"},
    failed=flag("the tool says that it did not work; its parts say why"),
    left_out=whole("parts for which there was no room"),
)


def spec(server: str, tool: McpTool, seconds: float = SECONDS) -> ToolSpec:
    """As it is registered. Its version is a server's business; another fingerprint is another tool. `seconds`: for a
    call, with the start of its server where it does not run."""
    about = tool.description or tool.title or f"A tool of the MCP server {server}."
    if len(about) > LONGEST_DESCRIPTION:
        about = about[: LONGEST_DESCRIPTION - 1] + "…"
    hints = tuple(f"hint.{name}" for name, is_so in sorted(tool.hints.items()) if is_so)
    return ToolSpec(
        name=f"mcp.{server}.{tool.alias}",
        description=about,
        input_schema=tool.input_schema,
        output_schema=OUTPUT,
        effect="opaque",
        requires=("tool:call",),
        labels=ToolLabels(source=f"mcp:{server}"),
        sandbox="driver",
        timeout_s=seconds,
        tags=("mcp", *hints),
    )


def changed(approved: Sequence[McpTool], listed: Sequence[McpTool]) -> dict[str, str]:
    """Of what a person approved: what is another one now, or is no longer there, and why. A tool that was never
    approved is not in it, and must not be registered either."""
    now, why = {tool.alias: tool for tool in listed}, dict[str, str]()
    for before in approved:
        after = now.get(before.alias)
        if after is None:
            why[before.alias] = "the server no longer lists it"
        elif fingerprint(before) != fingerprint(after):
            others = [said for part, said in _PARTS.items() if getattr(before, part) != getattr(after, part)]
            why[before.alias] = f"not as it was approved: its {', '.join(others)}"
    return why


async def call(
    name: str, params: Mapping[str, Any], helper: Helper, keep: Keep, seconds: float = SECONDS
) -> dict[str, Any]:
    """`name`: what we call it, without `mcp.<server>.`."""
    request = CallMcp(name, dict(params), LARGEST_LIMIT)
    answer = await helper.ask(Op.MCP_CALL, request, Outcome, seconds=seconds, limit=LARGEST_LIMIT)
    outcome, result = answer.value, dict[str, Any]()
    parts: list[dict[str, Any]] = []
    share = OUTPUT_LIMIT * 3 // 4 // max(1, len(outcome.parts))
    for part, data in zip(outcome.parts, answer.cut(outcome.parts), strict=True):
        if part.kind == "json" and not part.whole and len(data) <= share:
            with suppress(*UNREADABLE):  # what is no JSON is a text like any other
                result["structured"] = msgspec.json.decode(data)
                continue
        parts.append(await _told(part, data, share, keep))
    result |= {"parts": parts, "failed": outcome.failed}
    return {**result, "left_out": outcome.left_out} if outcome.left_out else result


async def _told(part: Part, data: bytes, share: int, keep: Keep) -> dict[str, Any]:
    said = {"media": part.media, "uri": part.uri, "name": part.name}
    told: dict[str, Any] = {"kind": part.kind, "size": part.whole or len(data)}
    told |= {name: value for name, value in said.items() if value}
    textual = part.kind in ("text", "json") or part.media.startswith("text/")
    if data:
        shown = await keep.show(data, share if textual else 0)
        told |= {"text": shown.text} if textual else {}
        told |= {"blob": shown.blob} if shown.blob else {}
    return told
