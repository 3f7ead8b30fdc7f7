"""What the kernel and its Ring 3 helpers say to each other: an MCP client, a browser. Both read what strangers wrote.

The frames are those of the one wire with the roles turned: the kernel sends Call and Cancel, the helper answers with
Reply or Error. What is long travels as chunks before the reply, which tells how to cut them into parts. A helper's word
is a stranger's word: shapes and sizes are checked again by whoever reads it, and a fingerprint is computed there.
"""

import hashlib
import json
from enum import IntEnum
from typing import Any, Literal

from msgspec import Struct

CHUNK = 256 << 10  # bytes of one chunk
PART_LIMIT = 1 << 20  # bytes of a result, unless a call says otherwise
LARGEST_LIMIT = 32 << 20
LOAD_SECONDS = 15.0  # that a page may take to load; what is there by then is the page
MOST_TOOLS = 512  # of one server
LONGEST_DESCRIPTION = 16 << 10  # characters; what a model gets to read of it is less
LARGEST_SCHEMA = 64 << 10  # bytes, as JSON


class Op(IntEnum):
    OPEN = 1
    CLOSE = 2
    MCP_TOOLS = 10
    MCP_CALL = 11
    NAVIGATE = 20
    READ = 21
    CLICK = 22
    TYPE = 23
    SCREENSHOT = 24


class Nothing(Struct):
    """What an operation takes that needs no more than its name."""


class Part(Struct, omit_defaults=True):
    """One piece of a result. Its bytes are the next `size` of what was streamed."""

    kind: Literal["text", "json", "image", "audio", "link", "resource"]
    size: int
    media: str = ""
    uri: str = ""
    name: str = ""
    whole: int = 0  # bytes that there were, if it was cut


class Outcome(Struct, omit_defaults=True):
    """What a tool of a server gave. `failed` is the tool's own word; its parts say why."""

    parts: list[Part]
    failed: bool = False
    left_out: int = 0  # parts for which there was no room


class OpenMcp(Struct, omit_defaults=True):
    """Where the server is. `pipes`: a guest of its own, its output our descriptor 0 and its input our descriptor 1;
    `child`: a process of ours; `http`: its address, reached through the proxy that the environment names."""

    transport: Literal["pipes", "child", "http"]
    argv: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    era: str = "auto"  # or "legacy", or a protocol version: see `mcp.Client`


class McpServer(Struct, omit_defaults=True):
    protocol: str
    name: str = ""
    version: str = ""
    instructions: str = ""


class McpTool(Struct, omit_defaults=True):
    name: str  # as the server calls it
    alias: str  # as we do, after `mcp.<server>.`
    description: str = ""
    title: str = ""
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    hints: dict[str, bool] = {}  # read_only, destructive, idempotent, open_world: they inform and grant nothing


class McpTools(Struct, omit_defaults=True):
    tools: list[McpTool]
    left_out: dict[str, str] = {}  # name → why


class CallMcp(Struct, omit_defaults=True):
    tool: str
    arguments: dict[str, Any] = {}
    limit: int = PART_LIMIT


class OpenBrowser(Struct, omit_defaults=True):
    program: str = ""  # empty: $AGENT_OS_CHROMIUM, then what PATH has
    profile: str = ""  # a folder of its own; empty: one below HOME
    proxy: str = ""  # empty: $HTTP_PROXY
    width: int = 1280
    height: int = 800


class Navigate(Struct, omit_defaults=True):
    url: str
    seconds: float = LOAD_SECONDS


class Read(Struct, omit_defaults=True):
    form: Literal["text", "html"] = "text"
    selector: str = ""
    limit: int = PART_LIMIT


class Click(Struct, omit_defaults=True):
    """What to click: a number that `read` gave of this page, or a CSS selector."""

    ref: int = 0
    selector: str = ""
    seconds: float = LOAD_SECONDS


class Type(Struct, omit_defaults=True):
    text: str
    ref: int = 0
    selector: str = ""
    clear: bool = True
    submit: bool = False
    seconds: float = LOAD_SECONDS


class Screenshot(Struct, omit_defaults=True):
    full: bool = False
    media: Literal["image/png", "image/jpeg"] = "image/png"
    limit: int = LARGEST_LIMIT


class Element(Struct, omit_defaults=True):
    """Something on a page that can be clicked or typed into."""

    ref: int
    kind: str  # link, button, text, checkbox, select …
    name: str = ""
    value: str = ""
    url: str = ""


class Page(Struct, omit_defaults=True):
    """The page after a verb. The parts are what was asked for: its text, its HTML, its picture."""

    url: str = ""
    title: str = ""
    status: int = 0  # of the last navigation, if HTTP had one
    complete: bool = True  # it had finished loading
    parts: list[Part] = []
    elements: list[Element] = []
    more: int = 0  # elements beyond those
    notices: list[str] = []  # dialogs dismissed, downloads refused, a page that was lost


def fingerprint(tool: McpTool) -> str:
    """All of a tool that a person approves of or a model reads, as a digest. Another one is another tool."""
    told = [tool.name, tool.title, tool.description, tool.input_schema, tool.output_schema, tool.hints]
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
