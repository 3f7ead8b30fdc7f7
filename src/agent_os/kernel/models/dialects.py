"""What a guest's body asks for, in the dialect that it speaks itself: read and judged.

In: a path and the bytes of a body. Out: a `Wish`: the model, how much output, whether it streams, and everything that
the provider would do outside our gate, as words that a capability may grant (`server_tools`): tools on its side,
sources by URL or file id, what it has stored, other models, and every kind of tool that is not known here. Plain fields
are not our business, known or not. Pure: it knows no agent, no provider and no socket.

What is judged must be what the provider reads. So a name that stands twice is refused, and so is one that differs from
a judged one only in its letters: servers written in Go take them for the same.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from agent_os.abi.errors import EINVAL
from agent_os.abi.strict_json import json_object
from agent_os.kernel.models.passage import CHAT, COUNT_TOKENS, DIALECTS, EMBEDDINGS, MESSAGES, RESPONSES, Dialect

MODELS = "/v1/models"
_LIMITS: Mapping[str, tuple[str, ...]] = {
    MESSAGES: ("max_tokens",),
    CHAT: ("max_completion_tokens", "max_tokens"),
    RESPONSES: ("max_output_tokens",),
}
# Tools that the guest itself runs when the model asks for them, and searching among those of the request.
_OWN_TOOLS: Mapping[Dialect, re.Pattern[str]] = {
    "anthropic": re.compile(
        r"custom|bash_\d+|text_editor_\d+|computer_\d+|computer_toolset_\d+|memory_\d+|tool_search_tool_(bm25|regex)(_\d+)?"
    ),
    "openai": re.compile(
        r"function|custom|local_shell|apply_patch|computer|computer_use_preview|tool_search|namespace"
    ),
}
# Fields that ask for something on the provider's side, unless they are empty.
_ASKING: Mapping[str, str] = {
    "mcp_servers": "mcp",
    "container": "code_execution",
    "thread": "stored",
    "fallbacks": "other_models",
    "models": "other_models",
    "plugins": "plugins",
    "web_search_options": "web_search",
    "background": "background",  # goes on after a kill
    "search_parameters": "web_search",
    "search_options": "web_search",
    "search_settings": "web_search",
    "enable_search": "web_search",
    "data_sources": "file_search",
    "datasources": "file_search",
    "connectors": "web_search",
    "compound_custom": "code_execution",
    "api_base": "other_servers",
    "api_key": "other_servers",
    "user_config": "other_servers",
    "extra_headers": "other_servers",
    "previous_response_id": "stored",
    "conversation": "stored",
    "prompt": "stored",
}
_READ = frozenset(
    ("model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "max_output_tokens")
)
_JUDGED = _READ | _ASKING.keys() | {"tools", "messages", "system", "input", "instructions"}
_INSIDE = frozenset(("type", "tools", "source", "definition"))  # the same in objects: `Type` is `type` to some
_NOT_CONTENT = frozenset(("input_schema", "parameters", "schema", "json_schema", "metadata", "functions"))
_SCHEMAS = frozenset(("schema", "json_schema", "input_schema"))
# Fields whose texts are words for the model. In any other an address is one that somebody goes to.
_SAID = frozenset("messages system input instructions tools tool_choice user stop stop_sequences prediction".split())
_PLAIN = _SAID | _NOT_CONTENT | _ASKING.keys() | {"documents"}
_DEARER = {"service_tier": ("priority",), "speed": ("fast",)}  # than the prices that a budget is kept by
_LINK = re.compile(r"(?i)[a-z][a-z0-9+.-]*://")
_MEDIA = frozenset(("image", "video", "audio", "document"))
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_SOURCES = frozenset(("base64", "text", "content"))  # that are part of the request itself
_VERSION = re.compile(r"(_\d+)+$")
_WORD = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_OUTPUT = 1 << 40
_MOST_VALUES = 1 << 19  # in a body: each takes a hundred bytes when it is read, and a large prompt has some thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    path: str
    model: str  # as the guest wrote it
    body: bytes = field(repr=False)
    stream: bool
    max_output: int | None  # of all answers together; 0: it writes nothing; None: it does not say
    limits: tuple[str, ...]  # the fields that said it, or the one that would
    answers: int  # that one request asks for
    hide_usage: bool  # a stream of Chat Completions that does not ask for usage
    server_tools: frozenset[str]

    def written(self, model: str, most: int | None = None) -> bytes:
        """The body to send: with the provider's own name of the model and, where less output is allowed, with that.
        Every other field keeps its own bytes; where nothing changes, so does the whole."""
        changes: dict[str, Any] = {} if model == self.model else {"model": model}
        if most is not None and most != self.max_output:
            changes |= dict.fromkeys(self.limits, max(1, most // self.answers))
        if not changes and not self.hide_usage:
            return self.body
        fields = msgspec.json.decode(self.body, type=dict[str, msgspec.Raw])
        if self.hide_usage:
            options = msgspec.json.decode(
                fields.get("stream_options", msgspec.Raw(b"null")), type=dict[str, Any] | None
            )
            changes["stream_options"] = {**(options or {}), "include_usage": True}
        return msgspec.json.encode(fields | {name: msgspec.Raw(msgspec.json.encode(changes[name])) for name in changes})


def read(path: str, body: bytes) -> Wish:
    """EINVAL `request`: nobody could make sense of it, or two would read it differently."""
    _require_few(body)
    fields = _object(body)
    for name in fields:
        if name not in _JUDGED and name.casefold() in _JUDGED:
            raise _unsound(f"it has a field {name!r}, which some servers take for {name.casefold()!r}")
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise _unsound("it names no model")
    if not isinstance(fields.get("stream"), bool | None):
        raise _unsound("stream is true or false")
    stream = fields.get("stream") is True
    answers = _count(fields, "n", 1) or 1
    limits = tuple(name for name in _LIMITS.get(path, ()) if fields.get(name) is not None)
    most = max((_count(fields, name, None) or 0 for name in limits), default=None)
    if path in (COUNT_TOKENS, EMBEDDINGS):
        most = 0
    options: object = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _unsound("stream_options is no object")
    plain = path == CHAT and stream and cast(dict[str, Any], options).get("include_usage") is not True
    return Wish(
        path=path,
        model=model,
        body=body,
        stream=stream,
        max_output=None if most is None else most * answers,
        limits=limits or _LIMITS.get(path, ())[:1],
        answers=answers,
        hide_usage=plain,
        server_tools=frozenset(_asked_for(DIALECTS[path], fields)),
    )


def _require_few(body: bytes) -> None:
    """Counted before it is read; marks inside of texts only where there are many."""
    if _marks(body) <= _MOST_VALUES:
        return
    texts = body.count(b'"') - body.count(b'\\"')
    if texts > 2 * _MOST_VALUES or _marks(_STRING.sub(b"", body)) > _MOST_VALUES:
        raise _unsound(f"it has more than {_MOST_VALUES} values")


def _marks(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _object(body: bytes) -> dict[str, Any]:
    try:
        return json_object(body)
    except ValueError as error:
        raise _unsound(f"it is not JSON that everybody reads alike: {error}") from None


def _count(fields: Mapping[str, Any], name: str, otherwise: int | None) -> int | None:
    value = fields.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_OUTPUT:
        raise _unsound(f"{name} is a whole number above 0")
    return value


# What happens on the provider's side.


def _asked_for(dialect: Dialect, fields: Mapping[str, Any]) -> Iterator[str]:
    for name, word in _ASKING.items():
        if fields.get(name) not in (None, False, "", []):  # an empty object asks, too
            yield word
    if any(fields.get(name) in words for name, words in _DEARER.items()):
        yield "priority"
    if str(fields["model"]).endswith(":online"):  # a suffix that asks for a search
        yield "web_search"
    yield from _of_tools(dialect, fields.get("tools"))
    for name, value in fields.items():
        if name != "tools" and name not in _NOT_CONTENT:
            yield from _within(dialect, name, value)
        if name not in _PLAIN and _links(value):
            yield "url"


def _links(value: object) -> bool:
    """Whether a field that says nothing to the model names an address somewhere."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str) and _LINK.match(one):
            return True
        if isinstance(one, dict):
            fields = cast(dict[str, object], one)
            waiting += [inner for name, inner in fields.items() if name not in _SCHEMAS]
        elif isinstance(one, list):
            waiting += cast(list[object], one)
    return False


def _require_spelled(block: Mapping[str, object]) -> None:
    for name in block:
        if name not in _INSIDE and name.casefold() in _INSIDE:
            raise _unsound(f"it has a field {name!r}, which some servers take for {name.casefold()!r}")


def _of_tools(dialect: Dialect, tools: object) -> Iterator[str]:
    if tools is None:
        return
    if not isinstance(tools, list):
        raise _unsound("tools is no list")
    for tool in cast(list[object], tools):
        if not isinstance(tool, dict):
            raise _unsound("a tool is no object")
        yield from _of_tool(dialect, cast(dict[str, Any], tool))


def _of_tool(dialect: Dialect, tool: Mapping[str, Any]) -> Iterator[str]:
    _require_spelled(tool)
    kind = tool.get("type")
    if kind is None:
        if "name" not in tool and "function" not in tool:  # some servers tell their own tools by a name alone
            yield word_of(next(iter(tool), ""))
        if "tools" in tool:
            yield from _of_tools(dialect, tool["tools"])
        return
    if not isinstance(kind, str):
        raise _unsound("the type of a tool is no text")
    if kind == "shell" and dialect == "openai":  # of the guest, or in a container of the provider
        where = tool.get("environment")
        if not isinstance(where, dict) or cast(dict[str, Any], where).get("type") != "local":
            yield "code_execution"
    elif not _OWN_TOOLS[dialect].fullmatch(kind):
        yield word_of(kind)
    if "tools" in tool:  # a namespace of some
        yield from _of_tools(dialect, tool["tools"])


def word_of(kind: str) -> str:
    """A kind of tool as a capability names it: without its version."""
    bare = _VERSION.sub("", kind)
    known = {"web_search_preview": "web_search", "code_interpreter": "code_execution", "mcp_toolset": "mcp"}
    return known.get(bare) or _WORD.sub("_", bare)[:64] or "unnamed"


def _within(dialect: Dialect, name: str, value: object) -> Iterator[str]:
    """Sources and tools anywhere in what is said to the model."""
    waiting: list[tuple[str, object]] = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        name = name.casefold()
        yield from _of_value(name, value)
        if isinstance(value, list):
            waiting += [(name, one) for one in cast(list[object], value)]
        elif isinstance(value, dict):
            block = cast(dict[str, object], value)
            _require_spelled(block)
            yield from _of_block(dialect, name, block)
            args = "input" if str(block.get("type")).endswith("tool_use") else ""  # what a model wrote, not a source
            waiting += [(key, one) for key, one in block.items() if key not in _NOT_CONTENT and key != args]


def _of_value(name: str, value: object) -> Iterator[str]:
    if not value:
        return
    if name in ("file_id", "file_ids", "vector_store_ids"):
        yield "file_id"
        return
    named = name.endswith(("url", "uri")) and name not in ("url", "uri") and not _is_inside(value)
    if named or (name in _MEDIA and isinstance(value, str) and _LINK.match(value)):
        yield "url"


def _is_inside(value: object) -> bool:
    """A URL that holds its data itself."""
    if isinstance(value, dict):
        value = cast(dict[str, object], value).get("url")
    return isinstance(value, str) and value.startswith("data:")


def _of_block(dialect: Dialect, name: str, block: Mapping[str, Any]) -> Iterator[str]:
    kind = block.get("type")
    if name == "source" and kind not in _SOURCES:
        yield {"url": "url", "file": "file_id"}.get(str(kind), "source")
    if kind == "item_reference" or (name == "input" and block.keys() <= {"id", "type"} and block.get("id")):
        yield "stored"
    if kind != "mcp_list_tools" and isinstance(block.get("tools"), list):
        yield from _of_tools(dialect, block["tools"])
    if kind == "tool_definition" and isinstance(block.get("definition"), dict):
        yield from _of_tool(dialect, block["definition"])


def _unsound(why: str) -> EINVAL:
    return EINVAL("request", f"the request is not sound: {why}")
