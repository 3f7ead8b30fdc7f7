"""Prompts and answers that no frame could hold, over a real socket, from an agent to a provider and back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_os import model_drivers
from agent_os.abi import frames
from agent_os.abi.errors import EMSGSIZE
from agent_os.abi.frames import Call, Part
from agent_os.abi.models import Message, TextBlock
from agent_os.abi.syscalls import Random, Think
from agent_os.kernel import connection
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.models.catalogue import Provider
from agent_os.userland.wire import Wire
from models.provider import MockProvider, Say
from peer import Peer, agent, greeted, until, with_kernel

THINK = 19
EPROTO_NUMBER, EMSGSIZE_NUMBER = 71, 90
LONG = "result of a tool, which may be long " * 40_000  # 1.4 MB, some 400,000 tokens


def asked(text: str, **fields: Any) -> Think:
    return Think(model="mock/small", messages=[Message(role="user", blocks=[TextBlock(text=text)])], **fields)


def with_model(test: Callable[[Kernel, MockProvider, Wire], Awaitable[None]]) -> None:
    with MockProvider() as mock:

        async def whole(kernel: Kernel) -> None:
            kernel.models.makes = model_drivers.Drivers(kernel.store.blob, kernel.authority.labels.written_by)
            provider = Provider(name="mock", dialect="openai", base=f"{mock.url}/v1")
            kernel.models.catalogue.keep(kernel.models.catalogue.added(provider))
            mock.strict = False  # it has no key
            _, theirs = await agent(kernel, "a", caps=("llm:mock/small:call",))
            wire, welcome = await Wire.connect(theirs)
            wire.listen(lambda what, body: True, lambda error: None)
            assert welcome.limits["body"] == frames.MAX_BODY
            await test(kernel, mock, wire)
            await wire.close()

        with_kernel(whole)


def test_a_prompt_of_more_than_a_frame_reaches_the_provider_and_is_on_record() -> None:
    async def test(kernel: Kernel, mock: MockProvider, wire: Wire) -> None:
        mock.then(Say("read it", input=400_000))
        reply = await wire.ask(asked(LONG), pos="0:1")
        assert reply["blocks"][0]["text"] == "read it"
        assert mock.last["messages"][0]["content"] == LONG
        [intent, _] = [entry for entry, _ in kernel.journal.scan("default/a") if entry.op == THINK]
        assert intent.pos == "0:1"
        assert (await wire.ask(Random(n=4), pos="0:2")) is not None, "the wire must be as before"

    with_model(test)


def test_an_answer_of_more_than_a_frame_reaches_the_agent_whole_and_streamed() -> None:
    async def test(kernel: Kernel, mock: MockProvider, wire: Wire) -> None:
        answer = "word " * 250_000
        mock.then(Say(answer, output=250_000, deltas=20_000), Say(answer, output=250_000, deltas=20_000))
        reply = await wire.ask(asked("Say much.", max_output=300_000))
        assert reply["blocks"][0]["text"] == answer
        parts = [one async for one in wire.stream(asked("Again.", max_output=300_000, stream=True), last=True)]
        assert "".join(one["text"] for one in parts[:-1] if one["event"] == "text") == answer
        assert parts[-1]["reply"]["blocks"][0]["text"] == answer

    with_model(test)


def test_more_than_any_model_reads_is_refused_before_it_leaves() -> None:
    async def test(kernel: Kernel, mock: MockProvider, wire: Wire) -> None:
        with pytest.raises(EMSGSIZE) as refused:
            await wire.ask(asked("x" * frames.MAX_BODY))
        assert "leave out" in (refused.value.hint or "")
        assert mock.seen == []
        assert (await wire.ask(asked("short")))["blocks"]

    with_model(test)


def test_calls_in_parts_beyond_what_one_agent_may_have_open_wait_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "LARGE_BYTES", 1 << 20)

    async def test(kernel: Kernel, mock: MockProvider, wire: Wire) -> None:
        mock.then(*[Say(str(number), first_s=0.3, input=400_000) for number in range(3)])
        calls = [asyncio.create_task(wire.ask(asked(LONG))) for _ in range(3)]
        await until(lambda: bool(mock.seen), "the first call")
        [peer] = [one for one in kernel.connections if one.caller]
        assert len(peer._open) == 1
        assert sorted([(await one)["blocks"][0]["text"] for one in calls]) == ["0", "1", "2"]

    with_model(test)


async def farewell(kernel: Kernel, *said: frames.Frame) -> frames.Bye:
    _, peer = await greeted(kernel, "rude")
    peer.say(*said)
    return await peer.hear_bye()


PIECE = b"x" * frames.PART
RUDE: dict[str, tuple[int, list[frames.Frame]]] = {
    "parts of two bodies at once": (EPROTO_NUMBER, [Part(1, b"x"), Part(2, b"y")]),
    "a call between parts": (EPROTO_NUMBER, [Part(1, b"x"), Call(2, 29, frames.body({"n": 1}))]),
    "parts of a call that takes none": (EPROTO_NUMBER, [Part(1, b"\x81\xa1n\x01"), Call(1, 29)]),
    "more than a body may have": (EMSGSIZE_NUMBER, [Part(1, PIECE)] * 17),
}


@pytest.mark.parametrize("what", RUDE)
def test_a_peer_that_breaks_the_rules_of_parts_is_let_go(what: str) -> None:
    number, said = RUDE[what]

    async def test(kernel: Kernel) -> None:
        assert (await farewell(kernel, *said)).code == number
        _, other = await greeted(kernel, "other")
        assert isinstance(other, Peer)
        assert await other.ask(Random(n=8)) is not None

    with_kernel(test)


def test_parts_that_are_no_request_are_only_an_error_and_their_bytes_are_not_kept() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        peer.say(*[Part(1, PIECE)] * 3, Call(1, THINK))
        heard = await peer.hear()
        assert isinstance(heard, frames.Error)
        assert heard.detail["code"] == "body"
        kept = [body or b"" for entry, body in kernel.journal.scan(row.id) if entry.op == THINK]
        assert [len(one) < 2_000 for one in kept] == [True]

    with_kernel(test)
