"""The link to a helper: what an honest one answers arrives, and what a dishonest one says ends it."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import Raw, Struct

from agent_os.abi import frames
from agent_os.abi.errors import (
    EACCES,
    EBUDGET,
    ECANCELED,
    EINVAL,
    EIO,
    EMSGSIZE,
    ENOSYS,
    EPIPE,
    EPOLICY,
    EPROTO,
    ETIMEDOUT,
    EUNKNOWN,
    AgentOSError,
)
from agent_os.abi.frames import Chunk, Push, Reply
from agent_os.abi.helpers import Part
from agent_os.kernel.helpers import link as room
from agent_os.kernel.helpers.link import Answered, Link
from agent_os.userland.answering import Answer, Kernel, Operation

SECONDS = 60.0


class Word(Struct):
    text: str = ""
    size: int = 0


async def _answer(word: Word) -> Answer:
    match word.text:
        case "refuse":
            raise EINVAL("word.refused", "not this one", hint="another", by="me")
        case "break":
            raise ZeroDivisionError("oops")
        case "hang":
            await asyncio.Event().wait()
        case "huge":
            return Answer(Word("x" * frames.MAX_FRAME))
        case _:
            pass
    return Answer(Word(word.text.upper(), word.size), b"z" * word.size)


def with_helper(body: Callable[[Link, Kernel], Awaitable[Any]], notices: list[str] | None = None) -> Any:
    """Both ends of the real wire in one loop."""

    async def run() -> Any:
        ours, theirs = socket.socketpair()
        kernel = Kernel(theirs, {1: Operation(Word, _answer)})
        serving = asyncio.create_task(kernel.serve())
        link = await Link.over(ours, notices.append if notices is not None else None)
        try:
            async with asyncio.timeout(SECONDS):
                return await body(link, kernel)
        finally:
            link.end("over")
            await serving

    return asyncio.run(run())


def test_an_answer_brings_its_struct_and_its_bytes() -> None:
    async def body(link: Link, _: Kernel) -> None:
        answers = await asyncio.gather(
            *(link.ask(1, Word("tea", size), Word, seconds=SECONDS, limit=1 << 20) for size in (0, 5, 700_000))
        )
        assert [(one.value.text, one.value.size, len(one.data)) for one in answers] == [
            ("TEA", 0, 0),
            ("TEA", 5, 5),
            ("TEA", 700_000, 700_000),
        ]

    with_helper(body)


@pytest.mark.parametrize(
    ("op", "word", "kind", "code"),
    [
        (1, "refuse", EINVAL, "word.refused"),
        (1, "break", EIO, "helper.failed"),
        (1, "huge", EMSGSIZE, "helper.reply"),
        (2, "tea", ENOSYS, "helper.op"),
    ],
)
def test_a_failed_call_fails_alone(op: int, word: str, kind: type[AgentOSError], code: str) -> None:
    async def body(link: Link, _: Kernel) -> None:
        with pytest.raises(kind) as caught:
            await link.ask(op, Word(word), Word, seconds=SECONDS)
        assert caught.value.code == code
        assert (await link.ask(1, Word("tea"), Word, seconds=SECONDS)).value.text == "TEA"

    with_helper(body)


def test_a_request_of_another_shape_is_refused_by_the_helper() -> None:
    class Number(Struct):
        text: int

    async def body(link: Link, _: Kernel) -> None:
        with pytest.raises(EINVAL, match="cannot read its request"):
            await link.ask(1, Number(1), Word, seconds=SECONDS)

    with_helper(body)


def test_a_deadline_ends_a_call_and_not_the_helper() -> None:
    async def body(link: Link, _: Kernel) -> None:
        with pytest.raises(ETIMEDOUT, match=r"no answer within 0\.05 s"):
            await link.ask(1, Word("hang"), Word, seconds=0.05)
        assert (await link.ask(1, Word("tea"), Word, seconds=SECONDS)).value.text == "TEA"

    with_helper(body)


def test_a_cancelled_call_is_cancelled_there_and_its_answer_is_thrown_away() -> None:
    async def body(link: Link, kernel: Kernel) -> None:
        call = asyncio.create_task(link.ask(1, Word("hang"), Word, seconds=SECONDS))
        while not kernel._tasks:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while kernel._tasks:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0)
        assert (await link.ask(1, Word("tea"), Word, seconds=SECONDS)).value.text == "TEA"
        assert not link.ended.done()

    with_helper(body)


def test_a_notice_arrives_unasked() -> None:
    heard: list[str] = []

    async def body(link: Link, kernel: Kernel) -> None:
        await link.ask(1, Word("tea"), Word, seconds=SECONDS)
        kernel.notice("mcp.tools_changed")
        await link.ask(1, Word("tea"), Word, seconds=SECONDS)

    with_helper(body, heard)
    assert heard == ["mcp.tools_changed"]


def test_a_helper_that_ends_fails_all_that_waits_and_all_that_comes() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        link = await Link.over(ours)
        waiting = asyncio.create_task(link.ask(1, Word("tea"), Word, seconds=SECONDS))
        await asyncio.sleep(0)
        theirs.close()
        for call in (waiting, link.ask(1, Word("tea"), Word, seconds=SECONDS)):
            with pytest.raises(EPIPE):
                await call

    asyncio.run(run())


NESTED: list[Any] = []
for _ in range(100):
    NESTED = [NESTED]
BYTES = Raw(frames.encode_body(b"abcd"))
HOSTILE: dict[str, list[frames.Frame | bytes]] = {
    "more bytes than were asked for": [Chunk(1, 0, BYTES), Chunk(1, 1, BYTES), Chunk(1, 2, BYTES)],
    "chunks out of order": [Chunk(1, 1, BYTES)],
    "a chunk that is no bytes": [Chunk(1, 0, Raw(frames.encode_body("text")))],
    "an answer to nothing": [Reply(7, frames.body(Word()))],
    "a chunk of nothing": [Chunk(7, 0, BYTES)],
    "an answer of another shape": [Reply(1, frames.body([1, 2]))],
    "an answer that is nested too deep": [Reply(1, frames.body({"text": "", "more": NESTED}))],
    "no frame": [b"\x05\x00\x00\x00hello"],
    "a frame beyond all bounds": [b"\xff\xff\xff\xff"],
    "a call of its own": [frames.Call(1, 1)],
    "an error of another shape": [frames.Error(1, 5, 99, False, "no", None, {"self": 1})],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_dishonest_helper_ends_its_link(what: str) -> None:
    async def run() -> str:
        ours, theirs = socket.socketpair()
        link = await Link.over(ours)
        call = asyncio.create_task(link.ask(1, Word("tea"), Word, seconds=SECONDS, limit=10))
        await asyncio.sleep(0)
        for one in HOSTILE[what]:
            theirs.sendall(one if isinstance(one, bytes) else frames.encode(one))
        with pytest.raises((EPIPE, EPROTO)):
            await call
        theirs.close()
        return link.why

    assert asyncio.run(run())


def test_silence_past_the_deadline_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "GRACE", 0.05)

    async def run() -> None:
        ours, theirs = socket.socketpair()
        link = await Link.over(ours)
        with pytest.raises(ETIMEDOUT, match="did not answer"):
            await link.ask(1, Word("tea"), Word, seconds=0.05)
        assert link.ended.done()
        theirs.close()

    asyncio.run(run())


def test_notices_of_any_shape_are_bounded_or_ignored() -> None:
    heard: list[str] = []

    async def run() -> None:
        ours, theirs = socket.socketpair()
        link = await Link.over(ours, heard.append)
        theirs.sendall(frames.encode(Push(1, "notice", frames.body([1]))))
        theirs.sendall(frames.encode(Push(2, "notice", frames.body("x" * 5000))))
        call = asyncio.create_task(link.ask(1, Word(), Word, seconds=SECONDS))
        await asyncio.sleep(0)
        theirs.sendall(frames.encode(Reply(1, frames.body(Word()))))
        await call
        link.end("over")
        theirs.close()

    asyncio.run(run())
    assert heard == ["x" * 200]


def test_parts_are_cut_from_exactly_what_came() -> None:
    answered = Answered(Word(), b"abcdef")
    assert answered.cut([Part("text", 2), Part("image", 0), Part("text", 4)]) == [b"ab", b"", b"cdef"]
    for sizes in ([2], [4, 4], [-1, 7]):
        with pytest.raises(EPROTO):
            answered.cut([Part("text", size) for size in sizes])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (EPOLICY("policy.forbid", "no", violation="kill"), EIO),
        (EUNKNOWN("outcome", "who knows"), EIO),
        (ECANCELED("cancelled", "it is over"), EIO),
        (EBUDGET("budget", "all is spent"), EIO),
        (EACCES("browser.net", "not that host", violation="kill"), EACCES),
        (EIO("x" * 1000, "\x1b[2J" * 10_000, hint="y" * 1000, retryable=True), EIO),
    ],
    ids=lambda one: one.name if isinstance(one, AgentOSError) else one.__name__,
)
def test_a_helper_cannot_speak_for_the_kernel(said: AgentOSError, told: type[AgentOSError]) -> None:
    """A violation would end the agent that called, an unknown outcome would park it."""

    async def run() -> AgentOSError:
        ours, theirs = socket.socketpair()
        link = await Link.over(ours)
        call = asyncio.create_task(link.ask(1, Word("tea"), Word, seconds=SECONDS))
        await asyncio.sleep(0)
        theirs.sendall(frames.encode(frames.from_error(1, said)))
        with pytest.raises(AgentOSError) as caught:
            await call
        link.end("enough")
        theirs.close()
        return caught.value

    error = asyncio.run(run())
    assert type(error) is told
    assert error.detail == {}
    assert not error.retryable
    assert len(error.reason) <= 4000
    assert len(error.code + error.hint) <= 300
