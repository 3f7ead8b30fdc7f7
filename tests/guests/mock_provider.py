"""A model provider on the loopback: the real wires of Anthropic Messages, OpenAI Responses and OpenAI Chat Completions.

Owns the stand-in for the paid API. In: a script, one turn per answer. Out: the answers, streamed or whole as the client
asks, and a record of every request. Tools are called by names that the client offered. It never leaves 127.0.0.1.
"""

import http.server
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

Json = dict[str, Any]
_MODEL = "mock-1"
_USAGE = {"input_tokens": 10, "output_tokens": 10}


@dataclass(frozen=True)
class Say:
    """A turn of text alone; it ends the conversation of a client that has tools."""

    text: str


@dataclass(frozen=True)
class Call:
    """A turn that calls one tool: of these names the first that the client offers. Text is for a free-form tool."""

    ways: Mapping[str, Json | str]


@dataclass(frozen=True)
class _Use:
    """A call that was decided."""

    name: str
    arguments: Json | str
    id: str


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Json
    turn: int | None  # of the script; None for what clients ask besides: titles, counts, lists of models

    @property
    def tools(self) -> set[str]:
        """Offered beside the conversation, or in it as an item of its own (Codex for its newest models)."""
        items = [item for item in self.body.get("input", []) if isinstance(item, dict)]
        offers = [self.body, *(item for item in items if item.get("type") == "additional_tools")]
        return {name for offer in offers for tool in offer.get("tools", []) for name in _names(tool)}

    @property
    def conversation(self) -> str:
        """What the client sent as the conversation, tool results included, as one text."""
        return json.dumps(self.body.get("messages") or self.body.get("input") or "", ensure_ascii=False)


def _names(tool: Json) -> Iterator[str]:
    """One tool as any of the wires offers it: named at the top, inside `function`, by its type, or grouped."""
    name = tool.get("name") or tool.get("function", {}).get("name") or tool.get("type")
    if tool.get("type") == "namespace":
        yield from (inner for one in tool.get("tools", []) for inner in _names(one))
    elif name:
        yield name


@dataclass
class Provider:
    """A running server; a context manager. Every conversation is one script, told from the beginning to the end."""

    script: Sequence[Say | Call]
    requests: list[Request] = field(default_factory=list[Request])
    problems: list[str] = field(default_factory=list[str])  # what the script could not answer; to be empty at the end

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.provider = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.endpoint}"

    @property
    def told(self) -> list[Request]:
        """The requests that were answered from the script, in order."""
        return [request for request in self.requests if request.turn is not None]

    def answer(self, request: Request) -> Say | _Use:
        """The script's next turn. A client with tools asks other things without them: those get a word of text."""
        with self._lock:
            turn = len(self.told)
            scripted = bool(request.tools) or not any(isinstance(one, Call) for one in self.script)
            if not scripted:
                self.requests.append(request)
                return Say("ok")
            self.requests.append(Request(request.method, request.path, request.headers, request.body, turn))
            if turn >= len(self.script):
                self.problems.append(f"{request.path}: the script ended at turn {turn}")
                return Say("The script has ended.")
            return self._decide(self.script[turn], request.tools, turn)

    def _decide(self, turn: Say | Call, offered: set[str], number: int) -> Say | _Use:
        if isinstance(turn, Say):
            return turn
        for name, arguments in turn.ways.items():
            if name in offered:
                return _Use(name, arguments, f"call_{number:08}")
        self.problems.append(f"turn {number}: of {sorted(turn.ways)} none is among {sorted(offered)}")
        return Say("There is no tool for this.")


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "MockProvider"

    @property
    def provider(self) -> Provider:
        return self.server.provider  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the record is in `requests`."""

    def do_HEAD(self) -> None:
        self._aside(200, {})

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": _MODEL, "object": "model", "type": "model"}], "models": []}
        known = urlsplit(self.path).path.endswith("/models")
        self._aside(200 if known else 404, models if known else _refusal("there is nothing here"))

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        request = Request("POST", path, dict(self.headers), body, None)
        wire = next((wire for ending, wire in _WIRES.items() if path.endswith(ending)), None)
        if wire is not None:
            events = list(wire(self.provider.answer(request)))
            self._stream(events) if body.get("stream") else self._json(200, _whole(path, events))
        elif path.endswith("/messages/count_tokens"):
            self._aside(200, {"input_tokens": 10}, body)
        else:
            self._aside(404, _refusal(f"no wire is spoken at {path}"), body)

    def _aside(self, status: int, answer: Json, body: Json | None = None) -> None:
        seen = Request(self.command, urlsplit(self.path).path, dict(self.headers), body or {}, None)
        self.provider.requests.append(seen)
        self._json(status, answer)

    def _json(self, status: int, answer: Json) -> None:
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _stream(self, events: Sequence[Json]) -> None:
        """Server-sent events, each in a chunk of its own, as a provider sends them."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            self._chunk(f"{name}data: {json.dumps(event)}\n\n")
        if "type" not in events[0]:
            self._chunk("data: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def _refusal(why: str) -> Json:
    return {"type": "error", "error": {"type": "not_found_error", "message": why}}


# The wires: one answer as the events of a stream


def _messages(answer: Say | _Use) -> Iterator[Json]:
    """Anthropic Messages."""
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": _MODEL, "content": [], "usage": _USAGE}
    yield {"type": "message_start", "message": head | {"stop_reason": None, "stop_sequence": None}}
    if isinstance(answer, Say):
        block: Json = {"type": "text", "text": ""}
        delta: Json = {"type": "text_delta", "text": answer.text}
    else:
        block = {"type": "tool_use", "id": f"toolu_{answer.id}", "name": answer.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    reason = "end_turn" if isinstance(answer, Say) else "tool_use"
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": _USAGE}
    yield {"type": "message_stop"}


def _responses(answer: Say | _Use) -> Iterator[Json]:
    """OpenAI Responses."""
    head: Json = {"id": "resp_1", "object": "response", "created_at": 0, "model": _MODEL, "status": "in_progress"}
    yield {"type": "response.created", "response": head | {"output": []}}
    if isinstance(answer, Say):
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        item: Json = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
    elif isinstance(answer.arguments, str):
        item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": answer.id, "name": answer.name}
        item["input"] = answer.arguments
    else:
        item = {"type": "function_call", "id": "fc_1", "call_id": answer.id, "name": answer.name}
        item["arguments"] = json.dumps(answer.arguments)
    item["status"] = "completed"
    started = item | ({"content": []} if isinstance(answer, Say) else {})
    yield {"type": "response.output_item.added", "output_index": 0, "item": started | {"status": "in_progress"}}
    if isinstance(answer, Say):
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        yield {"type": "response.output_text.delta", "delta": answer.text, **place}
        yield {"type": "response.output_text.done", "text": answer.text, **place}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = _USAGE | {"total_tokens": sum(_USAGE.values())}
    yield {"type": "response.completed", "response": head | {"status": "completed", "output": [item], "usage": usage}}


def _chat(answer: Say | _Use) -> Iterator[Json]:
    """OpenAI Chat Completions."""
    head: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": _MODEL}
    if isinstance(answer, Say):
        delta: Json = {"content": answer.text}
    else:
        function = {"name": answer.name, "arguments": json.dumps(answer.arguments)}
        delta = {"tool_calls": [{"index": 0, "id": answer.id, "type": "function", "function": function}]}
    reason = "stop" if isinstance(answer, Say) else "tool_calls"
    yield head | {"choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]}
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}


_WIRES = {"/messages": _messages, "/responses": _responses, "/chat/completions": _chat}


def _whole(path: str, events: Sequence[Json]) -> Json:
    """The same answer for a client that does not stream, put together from the events."""
    if path.endswith("/responses"):
        return events[-1]["response"]
    if path.endswith("/chat/completions"):
        message = {"content": None, **events[0]["choices"][0]["delta"]}
        choice = {"index": 0, "message": message, "finish_reason": events[-1]["choices"][0]["finish_reason"]}
        return events[-1] | {"object": "chat.completion", "choices": [choice]}
    _, start, delta, *_ = events
    block, got = start["content_block"], delta["delta"]
    filled = {"text": got["text"]} if "text" in got else {"input": json.loads(got["partial_json"])}
    return events[0]["message"] | {"content": [block | filled], **events[-2]["delta"]}
