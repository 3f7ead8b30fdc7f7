"""One call, in each dialect, with a provider that behaves and with one that does not."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator

import pytest

from agent_os.abi.errors import EAGAIN, EHOSTUNREACH, EINVAL, EIO, EMSGSIZE, ENOENT
from agent_os.abi.models import (
    Block,
    Finished,
    Message,
    ModelRequest,
    Started,
    TextBlock,
    TextDelta,
    ToolCall,
    ToolResultBlock,
    Usage,
)
from agent_os.drivers.models import Cancel, LimitSample, LimitsSeen, ModelFault
from agent_os.drivers.models.anthropic import Anthropic
from agent_os.drivers.models.openai import OpenAI
from agent_os.drivers.models.remote import Remote
from agent_os.drivers.models.wire import Endpoint
from models.asking import FILE_READ, ask, events, request, run, user
from models.provider import KEY, Called, Fail, MockProvider, Raw, Say

Make = Callable[..., Remote]
SAID = "Grüße, 世界 🌍: “ok” — fertig."


@pytest.fixture
def mock() -> Iterator[MockProvider]:
    with MockProvider() as provider:
        yield provider


@pytest.fixture(params=["messages", "chat", "responses"])
def make(request: pytest.FixtureRequest, mock: MockProvider) -> Make:
    def made(**fields: float) -> Remote:
        if request.param == "messages":
            return Anthropic(Endpoint(mock.url, **fields))
        return OpenAI(Endpoint(f"{mock.url}/v1", **fields), api=request.param)

    return made


def refused(provider: Remote, asked: ModelRequest | None = None, key: str | None = KEY) -> ModelFault:
    with pytest.raises(ModelFault) as caught:
        events(provider, asked or request(), key)
    return caught.value


@pytest.mark.parametrize("piece", [0, 1, 2, 3, 5, 7, 64, 1000])
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_a_reply_is_the_same_however_it_is_cut(make: Make, mock: MockProvider, piece: int, line: str) -> None:
    calls = [Called("file_read", {"path": '/ä"\\'}), Called("file_read", {"path": "/b"})]
    mock.then(Say(SAID, calls=calls, piece=piece, line=line, comments=True, cached=5, deltas=3))
    reply = ask(make(), request(tools=[FILE_READ]))
    assert reply.text == SAID
    assert [(call.name, call.args) for call in reply.tool_calls] == [
        ("file.read", {"path": '/ä"\\'}),
        ("file.read", {"path": "/b"}),
    ]
    assert reply.stop == "tool"
    assert reply.usage == Usage(input=25, cached_read=5, output=12)
    assert reply.model == "mock-small"


def test_text_comes_as_it_is_written(make: Make, mock: MockProvider) -> None:
    mock.then(Say("one two three", deltas=4))
    seen = events(make(), request())
    assert isinstance(seen[0], LimitsSeen)
    assert isinstance(seen[1], Started)
    assert [event.text for event in seen if isinstance(event, TextDelta)] == ["one ", "two ", "thre", "e"]
    assert isinstance(seen[-1], Finished)


def test_the_limits_of_an_answer_come_first(make: Make, mock: MockProvider) -> None:
    mock.then(Say("ok", headers={"x-ratelimit-limit-tokens": "900", "x-ratelimit-remaining-requests": "-1"}))
    provider = make()
    first = events(provider, request())[0]
    assert first == LimitsSeen([LimitSample("tokens", 900)])
    assert provider.ignored == 1


@pytest.mark.parametrize(
    ("status", "kind", "code", "again", "breaks"),
    [
        (400, EINVAL, "request", "no", False),
        (401, EIO, "auth", "no", False),
        (402, EIO, "auth", "no", False),
        (403, EIO, "auth", "no", False),
        (404, ENOENT, "model", "no", False),
        (408, EAGAIN, "rate", "yes", False),
        (413, EMSGSIZE, "context", "no", False),
        (422, EINVAL, "request", "no", False),
        (429, EAGAIN, "rate", "yes", False),
        (500, EHOSTUNREACH, "provider", "yes", True),
        (502, EHOSTUNREACH, "provider", "yes", True),
        (529, EHOSTUNREACH, "provider", "yes", True),
        (302, EIO, "redirect", "no", False),
        (204, EIO, "garbled", "once", False),
    ],
)
def test_a_status_becomes_one_of_our_errors(
    make: Make, mock: MockProvider, status: int, kind: type, code: str, again: str, breaks: bool
) -> None:
    mock.then(
        Fail(status, "no luck", headers={"location": f"{mock.url}/elsewhere"}, body=b"" if status == 204 else None)
    )
    fault = refused(make())
    assert (type(fault.error), fault.error.code, fault.again, fault.breaks) == (kind, code, again, breaks)
    assert fault.status == status
    assert fault.sent
    assert [seen.path for seen in mock.seen if "elsewhere" in seen.path] == []


def test_retry_after_and_limits_travel_with_a_refusal(make: Make, mock: MockProvider) -> None:
    mock.then(Fail(429, retry_after="7", headers={"x-ratelimit-remaining-tokens": "0"}))
    fault = refused(make())
    assert fault.error.retry_after_ms == 7000
    assert fault.samples == [LimitSample("tokens", None, 0)]


def test_an_unknown_model_is_told_with_the_known_ones(make: Make, mock: MockProvider) -> None:
    mock.models = ["mock-large", "other"]
    fault = refused(make())
    assert fault.error.detail["known"] == ["mock-large", "other"]
    assert "mock-large, other" in fault.error.reason


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "This model's maximum context length is 200000 tokens. However, your messages resulted in 210000 tokens.",
        "Input tokens exceed the limit of 200000 tokens: 210000 tokens do not fit the context window",
    ],
)
def test_a_prompt_that_is_too_long_is_told_with_both_numbers(make: Make, mock: MockProvider, message: str) -> None:
    mock.then(Fail(400, message))
    fault = refused(make())
    assert (type(fault.error), fault.error.detail) == (EMSGSIZE, {"asked": 210_000, "limit": 200_000})


def test_a_key_that_is_echoed_is_masked(make: Make, mock: MockProvider) -> None:
    mock.keys = {"another"}
    fault = refused(make())
    assert KEY not in fault.error.reason
    assert "[key]" in fault.error.reason
    mock.keys = {KEY}
    mock.then(Raw(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {{{KEY}\n\n".encode()))
    fault = refused(make())
    assert KEY.encode() not in fault.raw
    assert b"[key]" in fault.raw


@pytest.mark.parametrize("key", ["with\nline", "with space", "schlüssel", ""])
def test_a_key_that_no_header_can_carry_is_not_sent_and_not_told(make: Make, mock: MockProvider, key: str) -> None:
    fault = refused(make(), key=key)
    assert (fault.error.code, fault.sent, mock.seen) == ("auth", False, [])
    assert not key or key not in str(fault)


def test_no_key_says_how_to_set_one() -> None:
    for provider in (Anthropic(Endpoint("https://provider.invalid")), OpenAI()):
        fault = refused(provider, key=None)
        assert (fault.error.code, fault.sent) == ("auth", False)
        assert fault.error.hint.startswith(f"agentctl secrets set {provider.name} < FILE && agentctl secrets bind")
        assert fault.error.hint.endswith(f"--host {provider.endpoint.host}")


def test_nobody_there_was_never_sent(make: Make, mock: MockProvider) -> None:
    provider = Anthropic(Endpoint("http://127.0.0.1:1"))
    fault = refused(provider)
    assert (fault.error.code, fault.again, fault.sent, fault.breaks) == ("provider", "yes", False, True)


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    fault = refused(OpenAI(Endpoint("https://provider.invalid/v1", connect_s=5)))
    assert (fault.error.code, fault.sent) == ("provider", False)


def test_a_connection_lost_in_the_middle_is_retryable_and_charged(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 300, cut_after=12, deltas=30))
    fault = refused(make())
    assert (fault.error.code, fault.again, fault.breaks) == ("provider", "yes", True)
    assert fault.usage is not None
    assert fault.usage.estimated
    assert fault.usage.output >= 30


def test_a_stream_that_ends_too_early_is_not_a_reply(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 300, stop_after=8, deltas=30))
    fault = refused(make())
    assert (fault.error.code, fault.again) == ("provider", "yes")
    assert "broke off" in fault.error.reason


def test_silence_ends_a_call(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 300, hang_after=8, deltas=30), Say("late", first_s=30))
    for _ in range(2):
        fault = refused(make(idle_s=0.3))
        assert (fault.error.code, fault.again) == ("provider", "yes")
        assert "silent" in fault.error.reason


def test_a_stream_that_never_ends_is_ended(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 10_000, between_s=0.05, deltas=1))
    fault = refused(make(longest_s=0.5))
    assert "takes longer" in fault.error.reason


def test_a_slow_stream_is_only_slow(make: Make, mock: MockProvider) -> None:
    mock.then(Say("slow and steady", first_s=0.2, between_s=0.02, deltas=2))
    assert ask(make(idle_s=1), request()).text == "slow and steady"


def test_what_is_no_json_is_garbled_and_kept(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 300, garble_after=6))
    fault = refused(make())
    assert (fault.error.code, fault.again) == ("garbled", "once")
    assert fault.raw.startswith(b'{"type": "content_block_delta"')


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>login</html>",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: [1, 2]\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: \xff\xfe{}\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: " + b"[" * 100_000 + b"\n\n",
    ],
)
def test_another_kind_of_answer_is_garbled(make: Make, mock: MockProvider, answer: bytes) -> None:
    mock.then(Raw(answer))
    fault = refused(make())
    assert (fault.error.code, fault.again) == ("garbled", "once")
    assert 0 < len(fault.raw) <= 2048


@pytest.mark.parametrize("answer", [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nbroken", b"", b"\x16\x03\x01\x02\x00"])
def test_what_is_no_http_is_unreachable(make: Make, mock: MockProvider, answer: bytes) -> None:
    mock.then(Raw(answer))
    assert refused(make()).error.code == "provider"


def test_an_error_under_a_good_status_is_an_error(make: Make, mock: MockProvider) -> None:
    mock.then(Fail(200, "slow down", word="rate_limit_error"), Fail(200, "gone", word="not_found_error"))
    assert refused(make()).error.code == "rate"
    assert refused(make()).error.code == "model"


@pytest.mark.parametrize(
    ("word", "code", "again"),
    [
        ("overloaded_error", "provider", "yes"),
        ("server_error", "provider", "yes"),
        ("rate_limit_exceeded", "rate", "yes"),
        ("rate_limit_error", "rate", "yes"),
        ("invalid_request_error", "request", "no"),
        ("context_length_exceeded", "context", "no"),
        ("authentication_error", "auth", "no"),
        ("never_heard_of", "provider", "yes"),
    ],
)
def test_an_error_in_the_middle_is_told_as_one(
    make: Make, mock: MockProvider, word: str, code: str, again: str
) -> None:
    mock.then(Say("x" * 300, error_after=10, error=word, deltas=30))
    fault = refused(make())
    assert (fault.error.code, fault.again) == (code, again)
    assert fault.usage is not None
    assert fault.usage.output > 0


def test_cancelling_closes_the_connection_at_once(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 300, hang_after=10, deltas=30))
    provider, cancel = make(), Cancel()

    async def work() -> tuple[Finished, float]:
        stream, last = provider.stream(request(), KEY, cancel), None
        async for event in stream:
            last = event
            if isinstance(event, TextDelta) and not cancel.done:
                asyncio.get_running_loop().call_later(0.05, cancel.set)
                begun = asyncio.get_running_loop().time() + 0.05
        assert isinstance(last, Finished)
        return last, asyncio.get_running_loop().time() - begun

    finished, took = run(provider, work)
    assert finished.stop == "cancelled"
    assert finished.usage.estimated
    assert finished.usage.output >= 20
    assert took < 5, "the server would have hung on"
    assert mock.seen[-1].gone.wait(5)


def test_cancelling_before_the_answer_closes_too(make: Make, mock: MockProvider) -> None:
    mock.then(Say("late", first_s=60))
    provider, cancel = make(), Cancel()

    async def work() -> list[object]:
        asyncio.get_running_loop().call_later(0.2, cancel.set)
        return [event async for event in provider.stream(request(), KEY, cancel)]

    assert [type(event) for event in run(provider, work)] == [Finished]
    assert mock.seen[-1].gone.wait(5)


def test_a_call_that_was_cancelled_before_it_began_is_not_sent(make: Make, mock: MockProvider) -> None:
    cancel = Cancel()
    cancel.set()
    seen = events(make(), request(), KEY, cancel)
    assert [event.stop for event in seen if isinstance(event, Finished)] == ["cancelled"]
    assert mock.seen == []


def test_a_task_that_is_cancelled_leaves_no_connection(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 300, hang_after=10))
    provider = make()

    async def work() -> None:
        async def read() -> None:
            async for _ in provider.stream(request(), KEY):
                pass

        task = asyncio.create_task(read())
        while not mock.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(mock.seen[-1].gone.wait, 5)

    run(provider, work)


def test_a_reader_that_goes_away_leaves_no_connection(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 300, hang_after=10))
    provider = make()

    async def work() -> None:
        stream = provider.stream(request(), KEY)
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await stream.aclose()
        assert await asyncio.to_thread(mock.seen[-1].gone.wait, 5)

    run(provider, work)


def test_whoever_cancels_a_call_and_its_task_gets_both(make: Make, mock: MockProvider) -> None:
    mock.then(Say("x" * 300, hang_after=10))
    provider, cancel = make(), Cancel()

    async def work() -> None:
        async def read() -> None:
            async for _ in provider.stream(request(), KEY, cancel):
                pass

        task = asyncio.create_task(read())
        while not mock.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        cancel.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(provider, work)


def test_no_log_holds_the_key(make: Make, mock: MockProvider, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(make(), request())
    assert caplog.records  # the HTTP client does log
    assert KEY not in caplog.text


def test_calls_cancelled_at_any_moment_leave_nothing_open(make: Make, mock: MockProvider) -> None:
    mock.answer = lambda _: Say("x" * 60, first_s=0.01, between_s=0.005, deltas=10)
    provider = make()

    async def one(after: float) -> object:
        cancel, last = Cancel(), None
        asyncio.get_running_loop().call_later(after, cancel.set)
        async for event in provider.stream(request(), KEY, cancel):
            last = event
        return last

    async def work() -> None:
        await one(60)
        before = len(os.listdir("/proc/self/fd"))
        ends = await asyncio.gather(*(one(number * 0.002) for number in range(60)))
        assert all(isinstance(end, Finished) for end in ends)
        assert "cancelled" in {end.stop for end in ends if isinstance(end, Finished)}
        again = await one(60)
        assert isinstance(again, Finished)
        assert again.stop == "end"
        await provider.close()
        async with asyncio.timeout(10):  # the mock's own ends are among them, and notice a little later
            while len(os.listdir("/proc/self/fd")) > before:
                await asyncio.sleep(0.01)

    run(provider, work)


def test_connections_are_used_again(make: Make, mock: MockProvider) -> None:
    provider = make()

    async def work() -> None:
        for _ in range(10):
            async for _ in provider.stream(request(), KEY):
                pass

    run(provider, work)
    assert len(mock.seen) == 10
    assert mock.connections == 1


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(make: Make, mock: MockProvider) -> None:
    answer = b"HTTP/1.1 500 No\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n"
    mock.then(Raw(answer))
    provider = make()

    async def work() -> None:
        with pytest.raises(ModelFault):
            await anext(provider.stream(request(), KEY))
        assert await asyncio.to_thread(mock.seen[-1].gone.wait, 5)
        async for _ in provider.stream(request(), KEY):
            pass

    run(provider, work)


def test_many_calls_at_once_do_not_wait_for_each_other(make: Make, mock: MockProvider) -> None:
    mock.answer = lambda _: Say("ok", first_s=0.3)
    provider = make()

    async def one() -> int:
        return len([event async for event in provider.stream(request(), KEY)])

    async def work() -> float:
        await one()
        begun = time.monotonic()
        assert all(await asyncio.gather(*(one() for _ in range(50))))
        return time.monotonic() - begun

    assert run(provider, work) < 12  # one after the other they would take 15


def test_nothing_of_the_environment_is_used(make: Make, mock: MockProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert ask(make(), request()).text == "ok"


def test_no_cookie_is_kept(make: Make, mock: MockProvider) -> None:
    mock.then(Say("one", headers={"set-cookie": "session=1; Path=/"}), Say("two"))
    provider = make()

    async def work() -> None:
        for _ in range(2):
            async for _ in provider.stream(request(), KEY):
                pass

    run(provider, work)
    assert "cookie" not in mock.seen[1].headers


def test_arguments_that_are_no_json_are_a_call_with_an_error(make: Make, mock: MockProvider) -> None:
    calls = [Called("file_read", '{"path": "/a'), Called("file_read", "[1]"), Called("file_read", "")]
    mock.then(Say(calls=calls))
    first, second, third = ask(make(), request(tools=[FILE_READ])).tool_calls
    assert (first.args, first.raw) == ({}, '{"path": "/a')
    assert "not JSON" in (first.args_error or "")
    assert "list" in (second.args_error or "")
    assert (third.args, third.args_error) == ({}, None)


def test_a_broken_call_can_be_sent_back(make: Make, mock: MockProvider) -> None:
    mock.then(Say(calls=[Called("file_read", '{"path": "/a')]))
    provider = make()
    broken = ask(provider, request(tools=[FILE_READ])).blocks
    again = [user("go"), Message(role="assistant", blocks=broken), _result(broken[0], "no JSON")]
    assert ask(make(), request(*again, tools=[FILE_READ])).text == "ok"


def _result(call: Block, said: str) -> Message:
    assert isinstance(call, ToolCall)
    return Message(role="tool", blocks=[ToolResultBlock(id=call.id, content=[TextBlock(text=said)], error=True)])


def test_a_request_that_cannot_be_written_is_not_sent(make: Make, mock: MockProvider) -> None:
    fault = refused(make(), request(user("half a \ud800 character")))
    assert (fault.error.code, fault.sent, mock.seen) == ("request", False, [])


def test_the_operators_own_fields_are_sent_and_never_win(make: Make, mock: MockProvider) -> None:
    provider = make(extra={"service_tier": "auto", "model": "dearer", "stream": False}, headers={"x-team": "a"})
    ask(provider, request())
    assert (mock.last["service_tier"], mock.last["model"], mock.last["stream"]) == ("auto", "mock-small", True)
    assert mock.seen[-1].headers["x-team"] == "a"
