"""`tool.output`: ranges of what a result could not hold.

Needs `Keep`, which knows what was kept for which agent: nobody reads another's.
"""

from collections.abc import Mapping
from typing import Any

from agent_os.abi.tools import ToolSpec
from agent_os.drivers.tools import Keep
from agent_os.drivers.tools.shapes import flag, record, text, whole

MOST = 48 << 10

OUTPUT = ToolSpec(
    name="tool.output",
    description="Read a part of an earlier result that was too long to be shown, by the blob that it named.",
    input_schema=record(
        "blob",
        blob=text("as the result named it", most=64, pattern="^[0-9a-f]{64}$"),
        offset=whole("first byte; 0 if not given"),
        limit=whole("bytes; 48 KiB if not given", least=1, most=MOST),
    ),
    output_schema=record(
        "text offset size more",
        text=text("what is no UTF-8 is replaced"),
        offset=whole(),
        size=whole("bytes of all of it"),
        more=flag(),
        replaced=flag("it is no text"),
    ),
    effect="pure",
    requires=("tool:call",),
    sandbox="driver",
    concurrency=1000,
    tags=("output",),
)


async def output(params: Mapping[str, Any], keep: Keep) -> dict[str, Any]:
    offset, limit = int(params.get("offset", 0)), int(params.get("limit", MOST))
    found = await keep.part(params["blob"], offset, limit)
    shown = found.data.decode(errors="replace")
    more = offset + len(found.data) < found.size
    row: dict[str, Any] = {"text": shown, "offset": offset, "size": found.size, "more": more}
    return row if shown.encode() == found.data else {**row, "replaced": True}
