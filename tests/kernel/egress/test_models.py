"""The door to models: programs that speak a dialect themselves get the provider's answer byte for byte, and no key."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from agent_os.abi.errors import (
    EAGAIN,
    EAPPROVAL,
    EBUDGET,
    EHOSTUNREACH,
    EINVAL,
    EIO,
    ELABEL,
    EMSGSIZE,
    ENOENT,
    EPERM,
    EPOLICY,
    AgentOSError,
)
from agent_os.drivers.models.anthropic import Anthropic
from agent_os.drivers.models.openai import OpenAI
from agent_os.drivers.models.wire import Endpoint
from agent_os.kernel.authority.redaction import Needles
from agent_os.kernel.egress.models import ModelDoor, environment
from agent_os.kernel.models.passage import CHAT, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, Dialect, Passage, Sink
from agent_os.kernel.table import Agent
from kernel.egress.proxies import Proxy, proxy
from models.provider import KEY, Fail, MockProvider, Raw, Say

_USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": "small", "max_tokens": 50, "messages": _USER},
    CHAT: {"model": "small", "messages": _USER, "stream_options": {"include_usage": True}},
    RESPONSES: {"model": "small", "input": "hi"},
}
AGENT = cast(Agent, None)  # only handed on


@dataclass
class Straight:
    """A gateway that has no gate and no queue: what it is asked goes to the drivers as it is."""

    mock: MockProvider
    refusal: AgentOSError | None = None
    passed: list[Passage] = field(default_factory=list[Passage])
    cancelled: int = 0

    def named(self, agent: Agent, dialect: Dialect, name: str) -> str:
        if name.startswith("un"):
            raise ENOENT("model", f"there is no {name}")
        return name if "/" in name else f"{dialect}/{name}"

    def models(self, agent: Agent) -> Sequence[str]:
        return ["anthropic/small", "openai/large"]

    async def pass_through(self, agent: Agent, passage: Passage, sink: Sink) -> None:
        self.passed.append(passage)
        if self.refusal:
            raise self.refusal
        anthropic = passage.path.startswith(MESSAGES)
        provider = Anthropic(Endpoint(self.mock.url)) if anthropic else OpenAI(Endpoint(f"{self.mock.url}/v1"))
        body = passage.written(passage.model.partition("/")[2], None)
        try:
            answer = await provider.forward(passage.target, passage.headers, body, KEY, hide_usage=passage.hide_usage)
            try:
                await sink.head(answer.status, answer.headers)
                while (data := await answer.chunk()) is not None:
                    await sink.chunk(data)
            except Exception as error:
                raise EHOSTUNREACH("provider", "it is lost") from error
            finally:
                await answer.close()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            await provider.close()


@dataclass
class Desk:
    mock: MockProvider
    gateway: Straight
    proxy: Proxy

    async def post(self, path: str, body: Mapping[str, Any] | bytes, *headers: str) -> "Answer":
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"Content-Length: {len(data)}", "x-api-key: placeholder", "Authorization: Bearer placeholder"]
        return Answer(await self.proxy.get(path, *lines, *headers, method="POST", body=data))


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        self.whole = True
        self.body = self._unchunked(body) if "chunked" in self.headers.get("transfer-encoding", "") else body

    def _unchunked(self, body: bytes) -> bytes:
        found = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            if int(size, 16) == 0:
                return found
            found, body = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        self.whole = False
        return found

    @property
    def error(self) -> dict[str, Any]:
        told = json.loads(self.body)
        assert told["type"] == "error"
        return told["error"]


@asynccontextmanager
async def desk(*steps: Say | Fail | Raw, needles: Needles | None = None, **options: Any) -> AsyncGenerator[Desk]:
    with MockProvider(**options) as mock:
        mock.then(*steps)
        gateway = Straight(mock)
        door = ModelDoor(AGENT, gateway, lambda: needles or Needles(()))
        async with proxy(doors=door) as running:
            yield Desk(mock, gateway, running)


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


async def straight(path: str, body: Mapping[str, Any], step: Say) -> bytes:
    """What a client without a door between gets."""
    with MockProvider() as mock:
        mock.then(step)
        reader, writer = await asyncio.open_connection("127.0.0.1", mock.port)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\nauthorization: Bearer {KEY}\r\n"
        head += f"anthropic-version: 2023-06-01\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        raw = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return Answer(raw).body


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "how",
    [
        Say("Grüße, 世界 🙂"),
        Say("Grüße, 世界 🙂", piece=1, comments=True, line="\r\n"),
        Say("words", piece=7, thinking="hm", comments=True),
    ],
    ids=["whole events", "byte by byte", "odd pieces"],
)
def test_an_answer_passes_byte_for_byte(path: str, stream: bool, how: Say) -> None:
    async def work() -> None:
        body = BODIES[path] | ({"stream": True} if stream else {})
        if not stream and path == CHAT:
            del body["stream_options"]
        async with desk(how) as here:
            answer = await here.post(path, body)
        assert (answer.status, answer.whole) == (200, True)
        assert answer.body == await straight(path, body, how)
        assert len(answer.body) > 100

    run(work)


@pytest.mark.parametrize("path", BODIES)
def test_the_key_takes_the_place_of_the_placeholder_and_the_body_stays_as_it_is(path: str) -> None:
    async def work() -> None:
        raw = json.dumps(BODIES[path] | {"brand_new": {"x": 1.5}}, indent=3).encode()
        async with desk() as here:
            answer = await here.post(path + "?beta=true", raw, "anthropic-beta: new-1", "Cookie: a=b", "X-Own: kept")
            assert answer.status == 200
            seen = here.mock.seen[0]
            assert seen.raw == raw
            assert seen.path == path + "?beta=true"
            assert (seen.headers["anthropic-beta"], seen.headers["x-own"]) == ("new-1", "kept")
            assert "placeholder" not in str(seen.headers)
            assert KEY in str(seen.headers)
            assert "cookie" not in seen.headers
            assert seen.headers["accept-encoding"] == "identity"
            assert here.proxy.records == []  # the gateway's own entries tell of it

    run(work)


def test_a_stream_that_did_not_ask_for_usage_gets_none_and_is_metered_all_the_same() -> None:
    async def work() -> None:
        body = {"model": "small", "messages": _USER, "stream": True}
        async with desk(Say("hello")) as here:
            answer = await here.post(CHAT, body)
            assert here.mock.last["stream_options"] == {"include_usage": True}
        assert b'"choices": []' not in answer.body
        assert answer.body.rstrip().endswith(b"data: [DONE]")

    run(work)


@pytest.mark.parametrize("path", [COUNT_TOKENS, EMBEDDINGS])
def test_counting_and_embedding_pass_too(path: str) -> None:
    async def work() -> None:
        async with desk() as here:
            body = {"model": "small", "input": "hi"} if path == EMBEDDINGS else {"model": "small", "messages": _USER}
            answer = await here.post(path, body)
            assert (answer.status, here.mock.seen[0].path) == (200, path)
            assert here.gateway.passed[0].max_output == 0
            assert here.gateway.passed[0].action == ("embed" if path == EMBEDDINGS else "call")

    run(work)


def test_what_would_happen_at_the_provider_is_told_to_the_gateway() -> None:
    async def work() -> None:
        async with desk() as here:
            await here.post(MESSAGES, BODIES[MESSAGES] | {"tools": [{"type": "web_search_20250305", "name": "s"}]})
            assert here.gateway.passed[0].server_tools == {"web_search"}

    run(work)


@pytest.mark.parametrize(
    ("error", "status", "kind", "wait"),
    [
        (EPERM("cap.missing", "no", missing="llm:anthropic/small:call"), 403, "permission_error", None),
        (EPOLICY("policy.forbid", "no"), 403, "permission_error", None),
        (EBUDGET("budget.cost", "no"), 403, "permission_error", None),
        (ELABEL("label", "no"), 403, "permission_error", None),
        (EAPPROVAL("approval.refused", "no"), 403, "permission_error", None),
        (EINVAL("request", "no"), 400, "invalid_request_error", None),
        (EMSGSIZE("context", "no"), 413, "request_too_large", None),
        (EIO("auth", "no", hint="agentctl secrets set anthropic"), 502, "api_error", None),
        (EHOSTUNREACH("provider", "no"), 502, "api_error", None),
        (EAGAIN("rate", "no", retry_after_ms=1500), 429, "rate_limit_error", "2"),
        (EAGAIN("queue", "no"), 529, "overloaded_error", "1"),
        (EHOSTUNREACH("provider", "no", retry_after_ms=9000), 529, "overloaded_error", "9"),
    ],
)
def test_a_refusal_is_told_in_the_shape_of_the_api_and_not_tried_again_in_vain(
    error: AgentOSError, status: int, kind: str, wait: str | None
) -> None:
    async def work() -> None:
        async with desk() as here:
            here.gateway.refusal = error
            answer = await here.post(MESSAGES, BODIES[MESSAGES])
            assert answer.status == status
            assert (answer.error["type"], answer.error["code"]) == (kind, error.code)
            assert "Agent OS: no" in answer.error["message"]
            assert error.hint in answer.error["message"]
            assert answer.headers.get("retry-after") == wait
            assert answer.headers.get("x-should-retry") == (None if wait else "false")
            assert (await here.proxy.last()).code == error.code

    run(work)


def test_the_flag_that_would_allow_it_is_on_the_record() -> None:
    async def work() -> None:
        async with desk() as here:
            here.gateway.refusal = EPERM("cap.missing", "no", missing="llm:anthropic/small:call")
            await here.post(MESSAGES, BODIES[MESSAGES])
            here.gateway.refusal = EPERM("cap.missing", "no", missing="llm:a/b:call{server_tools:web_search}")
            await here.post(MESSAGES, BODIES[MESSAGES])
            await here.proxy.last(2)
            flags = [one.allow_flag for one in here.proxy.records]
            assert flags == ["--model anthropic/small", "--cap 'llm:a/b:call{server_tools:web_search}'"]

    run(work)


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("POST /v1/messages/batches", [], 403),
        ("POST /v1/files", [], 403),
        ("GET /v1/files/f1", [], 403),
        ("POST /v1/batches", [], 403),
        ("POST /v1/responses/resp_1/cancel", [], 403),
        ("POST /v1/audio/speech", [], 404),
        ("POST /v1/chat/completions/", [], 404),
        ("POST /v1//messages", [], 404),
        ("POST /api/chat", [], 404),
        ("POST /v1/complete", [], 404),
        ("GET /v1/messages", [], 405),
        ("POST /v1/models", [], 405),
        ("POST /v1/messages", ["Host: evil.example"], 400),
        ("POST /v1/messages", ["Content-Encoding: gzip"], 415),
    ],
)
def test_every_other_target_is_closed(line: str, headers: list[str], status: int) -> None:
    async def work() -> None:
        async with desk() as here:
            own = [] if any(one.startswith("Host") for one in headers) else ["Host: 127.0.0.1:3128"]
            head = [f"{line} HTTP/1.1", *own, *headers, "Connection: close", "Content-Length: 2", "", ""]
            answer = Answer(await here.proxy.send("\r\n".join(head).encode() + b"{}"))
            assert answer.status == status
            assert answer.error["message"].startswith("Agent OS: ")
            assert (here.gateway.passed, here.mock.seen) == ([], [])

    run(work)


def test_a_body_that_two_could_read_differently_is_refused() -> None:
    async def work() -> None:
        async with desk() as here:
            answer = await here.post(CHAT, b'{"model": "small", "model": "large", "messages": []}')
            assert (answer.status, answer.error["code"]) == (400, "request")
            assert here.mock.seen == []

    run(work)


def test_models_are_listed_without_asking_anybody() -> None:
    async def work() -> None:
        async with desk() as here:
            ours = json.loads(Answer(await here.proxy.get("/v1/models")).body)
            assert [one["id"] for one in ours["data"]] == ["anthropic/small", "large"]
            theirs = json.loads(Answer(await here.proxy.get("/v1/models", "anthropic-version: 2023-06-01")).body)
            assert [one["id"] for one in theirs["data"]] == ["openai/large", "small"]
            assert theirs["has_more"] is False
            one = json.loads(Answer(await here.proxy.get("/v1/models/large")).body)
            assert one["object"] == "model"
            assert Answer(await here.proxy.get("/v1/models/other")).status == 404
            assert here.mock.seen == []

    run(work)


def test_a_provider_that_fails_is_heard_as_it_is() -> None:
    async def work() -> None:
        async with desk(Fail(400, "odd: message")) as here:
            answer = await here.post(MESSAGES, BODIES[MESSAGES])
            assert answer.status == 400
            assert answer.error["message"] == "odd: message"

    run(work)


@pytest.mark.parametrize("how", [Say("x" * 99, error_after=4), Say("x" * 99, garble_after=4)], ids=["error", "garbled"])
def test_what_goes_wrong_in_mid_stream_passes_as_it_is(how: Say) -> None:
    async def work() -> None:
        body = BODIES[MESSAGES] | {"stream": True}
        async with desk(how) as here:
            answer = await here.post(MESSAGES, body)
        assert answer.body == await straight(MESSAGES, body, how)

    run(work)


def test_a_stream_that_is_lost_breaks_off() -> None:
    async def work() -> None:
        async with desk(Say("x" * 99, cut_after=4)) as here:
            answer = await here.post(MESSAGES, BODIES[MESSAGES] | {"stream": True})
            assert answer.status == 200
            assert not answer.whole

    run(work)


@pytest.mark.parametrize("how", [Say("x", hang_after=2), Say("x", first_s=60)], ids=["in its stream", "before it"])
def test_a_program_that_goes_away_has_cancelled(how: Say) -> None:
    async def work() -> None:
        async with desk(how) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.proxy.port)
            data = json.dumps(BODIES[MESSAGES] | {"stream": True}).encode()
            head = f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            async with asyncio.timeout(10):
                while not here.mock.seen:
                    await asyncio.sleep(0.01)
                if how.hang_after:
                    await reader.readuntil(b"\r\n\r\n")
                writer.close()
                while not here.mock.seen[0].gone.is_set() or not here.gateway.cancelled:
                    await asyncio.sleep(0.01)
            assert here.gateway.cancelled == 1
            record = await here.proxy.last()
            assert (record.code, record.reason) == ("net.broken", "the client went away")

    run(work)


def test_one_connection_serves_one_request_after_the_other() -> None:
    async def work() -> None:
        async with desk(Say("first"), Say("second")) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.proxy.port)
            data = json.dumps(BODIES[MESSAGES]).encode()
            head = f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write((head.encode() + data) * 2)  # the second comes while the first is under way
            told = b""
            async with asyncio.timeout(10):
                while told.count(b"\r\n0\r\n\r\n") < 2:
                    told += await reader.read(65536)
            assert told.index(b"first") < told.index(b"second")
            writer.close()

    run(work)


def test_a_key_that_a_provider_quotes_is_masked() -> None:
    async def work() -> None:
        needles = Needles([KEY.encode()])
        async with desk(Say(f"it is {KEY}!", headers={"x-echo": KEY}, piece=3), needles=needles) as here:
            answer = await here.post(MESSAGES, BODIES[MESSAGES] | {"stream": True})
            assert KEY.encode() not in answer.body
            assert KEY not in str(answer.headers)

    run(work)


def test_programs_are_told_where_to_go() -> None:
    assert environment(()) == {}
    assert environment(("anthropic",)) == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:3128",
        "ANTHROPIC_API_KEY": "placeholder",
    }
    told = environment(("anthropic", "openai"))
    assert told["OPENAI_BASE_URL"] == told["OPENAI_API_BASE"] == "http://127.0.0.1:3128/v1"
    assert told["OLLAMA_HOST"] == "http://127.0.0.1:3128"
    assert told["OPENAI_API_KEY"] == "placeholder"
