"""A model provider on a loopback socket that speaks the real wire formats, well or badly, as a test says.

    with MockProvider() as mock:
        mock.then(Say("Hello"), Fail(429, retry_after="0"), Say(calls=[Called("file_read", {"path": "/a"})]))
        Endpoint(f"{mock.url}/v1")       # Chat Completions, Responses; for Messages: Endpoint(mock.url)

It answers `/v1/messages`, `/v1/messages/count_tokens`, `/v1/chat/completions`, `/v1/responses`, `/v1/embeddings`,
`/v1/models` and `/api/tags`, streamed or whole, and is as strict as the originals where a client could go wrong: keys,
versions, unknown models, names of tools, results without a call. Without a plan it says "ok". It runs in a thread of
its own, so that programs, kernels and guests in other processes can use it.
"""

import asyncio
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import h11

KEY = "sk-test-0123456789abcdef"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")


@dataclass(frozen=True)
class Called:
    name: str
    args: dict[str, Any] | str = field(default_factory=dict)  # a text: exactly that is written
    id: str = ""


@dataclass(frozen=True)
class Say:
    """A reply, and how it is put on the wire."""

    text: str = ""
    calls: Sequence[Called] = ()
    thinking: str = ""  # reasoning that comes with a signature
    refusal: str = ""
    stop: str = ""  # the dialect's own word; empty: what fits
    input: int = 25
    cached: int = 0
    cache_write: int = 0
    output: int = 12
    reasoning: int = 0
    usage: bool = True  # False: not told, as some servers do
    headers: dict[str, str] = field(default_factory=dict)
    piece: int = 0  # bytes of one HTTP chunk; 0: one event
    line: str = "\n"
    comments: bool = False  # keep-alive comments between events
    first_s: float = 0.0  # before the head
    between_s: float = 0.0  # between events
    cut_after: int | None = None  # events, then the connection is reset
    stop_after: int | None = None  # events, then the body ends as if it were whole
    hang_after: int | None = None  # events, then silence
    garble_after: int | None = None  # events, then something that is no JSON
    error_after: int | None = None  # events, then the dialect's error event
    error: str = "overloaded_error"
    extra: dict[str, Any] = field(default_factory=dict)  # merged into the dialect's first delta or call
    deltas: int = 7  # characters of one text delta


@dataclass(frozen=True)
class Fail:
    """An answer that is no reply, in the error shape of the dialect."""

    status: int
    message: str = ""
    word: str = ""  # the provider's own; empty: the usual one for the status
    retry_after: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None  # instead of the dialect's shape
    first_s: float = 0.0


@dataclass(frozen=True)
class Raw:
    """Any bytes at all as the answer, then the end of the connection."""

    data: bytes


Step = Say | Fail | Raw


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes
    gone: threading.Event = field(default_factory=threading.Event)  # no connection any more
    at: float = 0.0


class MockProvider:
    def __init__(
        self,
        *,
        keys: Sequence[str] = (KEY,),
        models: Sequence[str] | None = None,
        strict: bool = True,
        answer: Callable[[Seen], Step] | None = None,
    ) -> None:
        self.keys, self.models, self.strict = set(keys), models, strict
        self.answer = answer
        self.seen: list[Seen] = []
        self.connections = 0
        self._plan: list[Step] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> Any:
        """The body of the newest request."""
        return self.seen[-1].body

    def then(self, *steps: Step) -> None:
        """What the next requests get, in order."""
        self._plan += steps

    def __enter__(self) -> "MockProvider":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        await asyncio.sleep(0)  # whoever has just come is begun, so that it is ended properly
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        http = h11.Connection(h11.SERVER)
        try:
            while await self._one(http, reader, writer):
                http.start_next_cycle()
        except (ConnectionError, h11.RemoteProtocolError, h11.LocalProtocolError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head, body = None, b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        assert head is not None
        headers = {name.decode().lower(): value.decode() for name, value in head.headers}
        seen = Seen(head.method.decode(), head.target.decode(), headers, _json(body), body, at=time.monotonic())
        self.seen.append(seen)
        step = self._step(seen)
        return await _Answering(http, reader, writer, seen, self).give(step)

    def _step(self, seen: Seen) -> Step:
        if self.strict and (wrong := self._wrong(seen)) is not None:
            return wrong
        if seen.method == "GET" or seen.path.endswith("count_tokens"):
            return Say("ok")
        if self._plan:
            return self._plan.pop(0)
        return self.answer(seen) if self.answer is not None else Say("ok")

    def _wrong(self, seen: Seen) -> Fail | None:
        """What the original would refuse."""
        key = seen.headers.get("x-api-key") or seen.headers.get("authorization", "").removeprefix("Bearer ")
        if self.keys and key not in self.keys and not seen.path.startswith("/api/"):
            return Fail(401, f"invalid x-api-key {key}")
        if seen.method == "GET":
            return None
        if not isinstance(seen.body, dict):
            return Fail(400, "the body is not a JSON object")
        if self.models is not None and seen.body.get("model") not in self.models:
            return Fail(404, f"model: {seen.body.get('model')}")
        checks = {"messages": _wrong_messages, "completions": _wrong_chat, "responses": _wrong_responses}
        check = checks.get(seen.path.split("?")[0].rsplit("/", 1)[-1])
        if check is None:
            return None
        wrong = check(seen)
        return Fail(400, wrong) if wrong else None


def _wrong_messages(seen: Seen) -> str | None:
    body = seen.body
    if "anthropic-version" not in seen.headers:
        return "anthropic-version: header is required"
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        return "max_tokens: Field required"
    if any(not _NAME.fullmatch(tool["name"]) for tool in body.get("tools", [])):
        return "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
    open_calls: set[str] = set()
    for number, message in enumerate(body["messages"]):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks or any(block["type"] == "text" and not block["text"] for block in blocks):
            return f"messages.{number}: text content blocks must be non-empty"
        results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if results != open_calls:
            return f"messages.{number}: `tool_use` ids were found without `tool_result` blocks, or the other way round"
        if any(block["type"] == "tool_use" and not isinstance(block["input"], dict) for block in blocks):
            return f"messages.{number}.content: tool_use.input: Input should be a valid dictionary"
        open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
        if any(not _ID.fullmatch(id) for id in open_calls):
            return f"messages.{number}: tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    return "`tool_use` ids were found without `tool_result` blocks" if open_calls else None


def _wrong_chat(seen: Seen) -> str | None:
    open_calls: set[str] = set()
    for number, message in enumerate(seen.body["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            return "an assistant message with 'tool_calls' must be followed by tool messages"
        for call in message.get("tool_calls") or []:
            if not isinstance(call["function"]["arguments"], str) or _json(call["function"]["arguments"]) is None:
                return f"messages[{number}].tool_calls: arguments must be JSON"
            open_calls.add(call["id"])
    names = [tool["function"]["name"] for tool in seen.body.get("tools", [])]
    if any(not _NAME.fullmatch(name) for name in names):
        return "Invalid 'tools[0].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'"
    return None


def _wrong_responses(seen: Seen) -> str | None:
    if "stop" in seen.body or "seed" in seen.body:
        return "Unknown parameter: 'stop'."
    items = seen.body["input"]
    calls: set[str] = set()
    for item in items if isinstance(items, list) else []:
        if item.get("type") == "function_call":
            calls.add(item["call_id"])
        elif item.get("type") == "function_call_output" and item["call_id"] not in calls:
            return f"No tool call found for function call output with call_id {item['call_id']}."
    if any(tool["type"] == "function" and not _NAME.fullmatch(tool["name"]) for tool in seen.body.get("tools", [])):
        return "Invalid 'tools[0].name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
    return None


class _Answering:
    """One answer on its way out."""

    def __init__(
        self,
        http: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        seen: Seen,
        mock: MockProvider,
    ) -> None:
        self._http, self._reader, self._writer, self._seen, self._mock = http, reader, writer, seen, mock

    async def give(self, step: Step) -> bool:
        if isinstance(step, Raw):
            self._writer.write(step.data)
            self._writer.close()
            await self._writer.wait_closed()
            self._seen.gone.set()
            return False
        if step.first_s:
            await self._silence(step.first_s)
        path = self._seen.path.split("?")[0]
        if isinstance(step, Fail):
            return await self._whole(step.status, _error_of(path, step), _fail_headers(step))
        if (made := _plain(path, self._seen, self._mock)) is not None:
            return await self._whole(*made, {})
        if not self._seen.body.get("stream"):
            return await self._whole(200, json.dumps(_whole_of(path, step, self._seen.body)).encode(), step.headers)
        return await self._stream(path, step)

    async def _whole(self, status: int, body: bytes, headers: dict[str, str]) -> bool:
        head = {"content-type": "application/json", "request-id": "req_1", **headers, "content-length": str(len(body))}
        await self._send(h11.Response(status_code=status, headers=list(head.items())), h11.Data(data=body))
        await self._send(h11.EndOfMessage())
        return True

    async def _stream(self, path: str, step: Say) -> bool:
        head = {"content-type": "text/event-stream; charset=utf-8", "x-request-id": "req_2", **step.headers}
        head["transfer-encoding"] = "chunked"
        await self._send(h11.Response(status_code=200, headers=list(head.items())))
        events = _events_of(path, step, self._seen.body)
        for number, (name, data) in enumerate(events):
            if number == step.stop_after:
                break
            if number == step.cut_after:
                return self._reset()
            if number == step.hang_after:
                await self._silence(3600)
            if number == step.garble_after:
                data = '{"type": "content_block_delta", "ind\x00'
            if number == step.error_after:
                name, data = _error_event(path, step.error)
            await self._event(step, name, data)
            if step.between_s:
                await self._silence(step.between_s)
        await self._send(h11.EndOfMessage())
        return True

    async def _event(self, step: Say, name: str, data: str) -> None:
        lines = [*([": keep-alive", ""] if step.comments else []), *([f"event: {name}"] if name else [])]
        raw = step.line.join([*lines, f"data: {data}", "", ""]).encode()
        size = step.piece or len(raw)
        for at in range(0, len(raw), size):
            await self._send(h11.Data(data=raw[at : at + size]))

    async def _silence(self, seconds: float) -> None:
        """Waits, and notices that the other side went away meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                if not await self._reader.read(1):
                    raise ConnectionResetError
        except TimeoutError:
            pass
        except ConnectionError:
            self._seen.gone.set()
            raise

    async def _send(self, *events: Any) -> None:
        try:
            self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
            await self._writer.drain()
        except ConnectionError:
            self._seen.gone.set()
            raise

    def _reset(self) -> bool:
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()
        return False


def _json(data: bytes | str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _plain(path: str, seen: Seen, mock: MockProvider) -> tuple[int, bytes] | None:
    """What is no reply of a model."""
    names = list(mock.models or ("mock-small", "mock-large"))
    if path == "/v1/models" and "anthropic-version" in seen.headers:
        data = [
            {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"} for name in names
        ]
        return 200, json.dumps({"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}).encode()
    if path == "/v1/models":
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "mock"} for name in names]
        return 200, json.dumps({"object": "list", "data": data}).encode()
    if path == "/api/tags":
        return 200, json.dumps({"models": [{"name": name, "model": name} for name in names]}).encode()
    if path == "/v1/messages/count_tokens":
        return 200, json.dumps({"input_tokens": len(seen.raw) // 4}).encode()
    if path == "/v1/embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}]
        usage = {"prompt_tokens": 5, "total_tokens": 5}
        return 200, json.dumps({"object": "list", "data": data, "model": "mock", "usage": usage}).encode()
    if path in ("/v1/messages", "/v1/chat/completions", "/v1/responses"):
        return None
    return 404, _error_of(path, Fail(404, f"unknown path {path}"))


_WORDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_OPENAI_WORDS = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


def _error_of(path: str, step: Fail) -> bytes:
    if step.body is not None:
        return step.body
    message = step.message or f"status {step.status}"
    if path.startswith("/v1/messages"):
        error = {"type": step.word or _WORDS.get(step.status, "api_error"), "message": message}
        return json.dumps({"type": "error", "error": error, "request_id": "req_1"}).encode()
    kind, code = _OPENAI_WORDS.get(step.status, ("server_error", None))
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": step.word or code}}).encode()


def _fail_headers(step: Fail) -> dict[str, str]:
    return {**({"retry-after": step.retry_after} if step.retry_after else {}), **step.headers}


def _error_event(path: str, word: str) -> tuple[str, str]:
    if path == "/v1/messages":
        return "error", json.dumps({"type": "error", "error": {"type": word, "message": "Overloaded"}})
    if path == "/v1/responses":
        error = {"code": word, "message": "The model failed.", "param": None, "type": "error", "sequence_number": 9}
        return "error", json.dumps(error)
    return "", json.dumps({"error": {"message": "The server had an error", "type": word, "code": None}})


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _written(call: Called) -> str:
    return call.args if isinstance(call.args, str) else json.dumps(call.args, ensure_ascii=False)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _events_of(path: str, step: Say, body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if path == "/v1/messages":
        for event in _messages_events(step, body):
            yield event["type"], _dump(event)
    elif path == "/v1/responses":
        for number, event in enumerate(_responses_events(step, body)):
            yield event["type"], _dump({**event, "sequence_number": number})
    else:
        for chunk in _chat_chunks(step, body):
            yield "", _dump(chunk)
        yield "", "[DONE]"


def _whole_of(path: str, step: Say, body: dict[str, Any]) -> dict[str, Any]:
    if path == "/v1/messages":
        return _messages_whole(step, body)
    return _response(step, body, "completed") if path == "/v1/responses" else _chat_whole(step, body)


# Anthropic's Messages.


def _messages_usage(step: Say) -> dict[str, Any]:
    return {
        "input_tokens": step.input - step.cached - step.cache_write,
        "cache_creation_input_tokens": step.cache_write,
        "cache_read_input_tokens": step.cached,
        "output_tokens": step.output,
        "output_tokens_details": {"thinking_tokens": step.reasoning},
        "service_tier": "standard",
    }


def _messages_blocks(step: Say) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if step.thinking:
        blocks.append({"type": "thinking", "thinking": step.thinking, "signature": "EqQBCkYIAhgCIkA/+=" * 3})
        blocks.append({"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4="})
    if step.text:
        blocks.append({"type": "text", "text": step.text})
    for number, call in enumerate(step.calls):
        written = _json(_written(call))
        args = written if isinstance(written, dict) else {}
        blocks.append({"type": "tool_use", "id": call.id or f"toolu_{number:02}", "name": call.name, "input": args})
    return blocks


def _messages_whole(step: Say, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": _messages_blocks(step),
        "stop_reason": step.stop or ("refusal" if step.refusal else "tool_use" if step.calls else "end_turn"),
        "stop_sequence": None,
        "usage": _messages_usage(step),
    }


def _messages_events(step: Say, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whole = _messages_whole(step, body)
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    calls = iter(step.calls)
    for index, block in enumerate(whole["content"]):
        yield from _messages_block(index, block, step, calls)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": step.output, **_details(step)}}
    yield {"type": "message_stop"}


def _details(step: Say) -> dict[str, Any]:
    return {"output_tokens_details": {"thinking_tokens": step.reasoning}} if step.reasoning else {}


def _messages_block(index: int, block: dict[str, Any], step: Say, calls: Iterator[Called]) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            begin = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"], step.deltas)]
        case "tool_use":
            begin = {**block, "input": {}}
            pieces = ["", *_pieces(_written(next(calls)), step.deltas)]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        case "thinking":
            begin = {"type": "thinking", "thinking": "", "signature": ""}
            pieces = _pieces(block["thinking"], step.deltas)
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case _:
            begin, deltas = block, []
    yield {"type": "content_block_start", "index": index, "content_block": begin}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


# Chat Completions.


def _chat_usage(step: Say) -> dict[str, Any]:
    return {
        "prompt_tokens": step.input,
        "completion_tokens": step.output,
        "total_tokens": step.input + step.output,
        "prompt_tokens_details": {"cached_tokens": step.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": step.reasoning, "audio_tokens": 0},
    }


def _chat_calls(step: Say) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id or f"call_{number:02}",
            "type": "function",
            "function": {"name": call.name, "arguments": _written(call)},
            **step.extra,
        }
        for number, call in enumerate(step.calls)
    ]


def _chat_stop(step: Say) -> str:
    return step.stop or ("tool_calls" if step.calls else "stop")


def _chat_whole(step: Say, body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None, "refusal": step.refusal or None}
    if step.calls:
        message["tool_calls"] = _chat_calls(step)
    if step.thinking:
        message["reasoning_content"] = step.thinking
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_770_000_000,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": _chat_stop(step), "logprobs": None}],
        "usage": _chat_usage(step),
    }


def _chat_chunks(step: Say, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    base = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_770_000_000,
        "model": body["model"],
        "system_fingerprint": "fp_1",
    }
    asked = step.usage and (body.get("stream_options") or {}).get("include_usage")

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**base, "choices": [choice], **({"usage": None} if asked else {})}

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for piece in _pieces(step.thinking, step.deltas):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(step.text, step.deltas):
        yield chunk({"content": piece})
    for piece in _pieces(step.refusal, step.deltas):
        yield chunk({"refusal": piece})
    for index, call in enumerate(_chat_calls(step)):
        function = call["function"]
        yield chunk({"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]})
        for piece in _pieces(function["arguments"], step.deltas):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _chat_stop(step))
    if asked:
        yield {**base, "choices": [], "usage": _chat_usage(step)}


# Responses.


def _response(step: Say, body: dict[str, Any], status: str) -> dict[str, Any]:
    done = status != "in_progress"
    stop = {"length": "max_output_tokens", "max_output_tokens": "max_output_tokens", "content_filter": "content_filter"}
    incomplete = stop.get(step.stop) if done else None
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_770_000_000,
        "status": "incomplete" if incomplete else status,
        "error": None,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "instructions": None,
        "model": body["model"],
        "output": _items(step) if done else [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "store": body.get("store", True),
        "metadata": {},
        "usage": _responses_usage(step) if done and step.usage else None,
    }


def _responses_usage(step: Say) -> dict[str, Any]:
    return {
        "input_tokens": step.input,
        "input_tokens_details": {"cached_tokens": step.cached, "cache_write_tokens": step.cache_write},
        "output_tokens": step.output,
        "output_tokens_details": {"reasoning_tokens": step.reasoning},
        "total_tokens": step.input + step.output,
    }


def _items(step: Say) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if step.thinking:
        items.append({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA/" * 5 + "=="})
    said = [{"type": "output_text", "text": step.text, "annotations": [], "logprobs": []}] if step.text else []
    if step.refusal:
        said.append({"type": "refusal", "refusal": step.refusal})
    if said:
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": said}
        items.append({**message, **step.extra})
    for number, call in enumerate(step.calls):
        items.append(
            {
                "id": f"fc_{number}",
                "type": "function_call",
                "status": "completed",
                "call_id": call.id or f"call_{number:02}",
                "name": call.name,
                "arguments": _written(call),
            }
        )
    return items


def _responses_events(step: Say, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _response(step, body, "in_progress")}
    yield {"type": "response.in_progress", "response": _response(step, body, "in_progress")}
    for index, item in enumerate(_items(step)):
        at = {"output_index": index}
        yield {"type": "response.output_item.added", **at, "item": _begun(item)}
        if item["type"] == "message":
            yield from _message_events(item, at, step)
        elif item["type"] == "function_call":
            at_item = {**at, "item_id": item["id"]}
            for piece in _pieces(item["arguments"], step.deltas):
                yield {"type": "response.function_call_arguments.delta", **at_item, "delta": piece}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **at_item, **done}
        yield {"type": "response.output_item.done", **at, "item": item}
    whole = _response(step, body, "completed")
    yield {"type": f"response.{whole['status']}", "response": whole}


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    empty: dict[str, dict[str, Any]] = {"message": {"content": []}, "function_call": {"arguments": ""}}
    status = {} if item["type"] == "reasoning" else {"status": "in_progress"}
    return {**item, **empty.get(item["type"], {}), **status}


def _message_events(item: dict[str, Any], at: dict[str, int], step: Say) -> Iterator[dict[str, Any]]:
    for number, part in enumerate(item["content"]):
        place = {**at, "item_id": item["id"], "content_index": number}
        field_name, kind = ("text", "output_text") if part["type"] == "output_text" else ("refusal", "refusal")
        yield {"type": "response.content_part.added", **place, "part": {**part, field_name: ""}}
        for piece in _pieces(part[field_name], step.deltas):
            logprobs = {"logprobs": []} if kind == "output_text" else {}
            yield {"type": f"response.{kind}.delta", **place, "delta": piece, **logprobs}
        yield {"type": "response.content_part.done", **place, "part": part}
