"""Shorter histories: what stays, what goes, and that a call and its result never part."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EBUDGET, EINTR, ENONDET
from agent_os.abi.models import ImageBlock, Message, OpaqueBlock, TextBlock, ToolCall, ToolResultBlock
from agent_os.userland import loop_compact
from agent_os.userland.loop_compact import KEPT_TURNS, SUMMARY, compact, flaw
from agent_os.userland.loop_history import calls_of, estimate, said, unpaired
from agent_os.userland.loop_terms import Entry


def turn_of(number: int, results: Sequence[str], *, text: str = "", extra: bool = False) -> list[Entry]:
    calls = [ToolCall(id=f"{number}-{n}", name="read", args={"n": n}) for n in range(len(results))]
    opaque = [OpaqueBlock(dialect="anthropic", data=b"{}")] if extra else []
    blocks: list[Any] = [*opaque, *([TextBlock(text=text)] if text else []), *calls]
    found = [Entry(message=Message(role="assistant", blocks=blocks), turn=number)]
    if calls:
        content = [
            ToolResultBlock(id=call.id, content=[TextBlock(text=result)])
            for call, result in zip(calls, results, strict=True)
        ]
        found.append(
            Entry(message=Message(role="tool", blocks=list(content)), turn=number, blobs={f"{number}-0": "ab" * 32})
        )
    return found


def a_history(turns: int, size: int = 2000) -> list[Entry]:
    beginning = [said("system", "system", pinned=True), said("user", "GOAL", pinned=True)]
    return beginning + [one for n in range(1, turns + 1) for one in turn_of(n, ["x" * size, "short"])]


async def summarised(text: str) -> str:
    return f"summary of {len(text)}"


def compacted(history: list[Entry], target: int, summarise: Any = summarised) -> list[Entry]:
    return asyncio.run(compact(history, target, estimate, summarise))


texts = st.text(max_size=3000) | st.integers(0, 40_000).map("y".__mul__)


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    found = [said("system", draw(st.text(max_size=50)), pinned=True), said("user", draw(texts), pinned=True)]
    for number in range(1, draw(st.integers(0, 14)) + 1):
        if draw(st.booleans()):
            found.append(said("user", draw(st.text(max_size=400)), turn=number, pinned=draw(st.booleans())))
        results = draw(st.lists(texts, max_size=4))
        found += turn_of(number, results, text=draw(st.text(min_size=1, max_size=300)), extra=draw(st.booleans()))
    return found


@settings(max_examples=60, deadline=None)
@given(histories(), st.integers(0, 20_000), st.booleans())
def test_calls_and_results_never_part_and_what_is_pinned_stays(history: list[Entry], target: int, can: bool) -> None:
    async def refused(_: str) -> str:
        raise EBUDGET("budget", "empty")

    before = [(entry.message.role, list(entry.message.blocks)) for entry in history]
    found = compacted(history, target, summarised if can else refused)
    assert unpaired(found) == ""
    assert [entry for entry in history if entry.pinned] == [entry for entry in found if entry.pinned]
    assert flaw(history, found) == ""
    assert before == [(entry.message.role, list(entry.message.blocks)) for entry in history], "the old one is untouched"
    assert estimate(found) <= max(target, estimate(history) + 200)
    last = max(entry.turn for entry in history)
    assert [calls_of(e) for e in found if e.turn == last] == [calls_of(e) for e in history if e.turn == last]


@settings(max_examples=30, deadline=None)
@given(histories())
def test_a_history_that_fits_stays_but_for_long_results_of_long_ago(history: list[Entry]) -> None:
    found = compacted(history, 10**9)
    last = max(entry.turn for entry in history)
    recent = [entry for entry in history if entry.turn > last - KEPT_TURNS]
    assert len(found) == len(history)
    assert [entry for entry in found if entry.turn > last - KEPT_TURNS] == recent


def test_old_results_become_references_and_the_last_six_turns_stay() -> None:
    found = compacted(a_history(10), 10**6)
    tools = [entry for entry in found if entry.message.role == "tool"]
    sizes = [estimate([entry]) for entry in tools]
    assert [size < 300 for size in sizes] == [True] * 4 + [False] * 6
    told = str(tools[0].message)
    assert "ab" * 32 in told
    assert "1800 characters" in told


def test_only_where_that_is_not_enough_is_a_summary_asked_for() -> None:
    asked: list[str] = []

    async def summarise(text: str) -> str:
        asked.append(text)
        return "what mattered"

    compacted(a_history(10), 10**6, summarise)
    assert asked == []
    found = compacted(a_history(10), 4600, summarise)
    assert len(asked) == 1
    assert "call: read" in asked[0]
    assert [entry.message.role for entry in found[:4]] == ["system", "user", "user", "assistant"]
    assert SUMMARY in str(found[2].message)
    assert found[3].turn == 5
    assert estimate(found) <= 4600


def test_a_summary_is_summarised_again_with_what_followed_it() -> None:
    first = compacted(a_history(10), 4600)
    for number in range(11, 19):
        first += turn_of(number, ["z" * 3000])
    asked: list[str] = []

    async def summarise(text: str) -> str:
        asked.append(text)
        return "again"

    found = compacted(first, 6800, summarise)
    assert SUMMARY in asked[0]
    assert sum(SUMMARY in str(entry.message) for entry in found) == 1


def test_results_that_the_model_has_not_seen_are_the_last_to_be_shortened() -> None:
    history = a_history(8, 9000)
    found = compacted(history, 4000)
    assert found[-1] == history[-1]
    tight = compacted(history, 1500)
    assert "left out" in str(tight[-1].message)
    assert estimate(tight) <= 1500


def test_pictures_of_long_ago_go() -> None:
    history = a_history(8, 10)
    block = history[3].message.blocks[0]
    assert isinstance(block, ToolResultBlock)
    block.content = [ImageBlock(blob="cd" * 32)]
    assert "1 images" in str(compacted(history, 10**6)[3].message)


@pytest.mark.parametrize("error", [EINTR("interrupted", "SIGINT"), ENONDET("replay", "differs")])
def test_what_ends_more_than_the_summary_goes_through(error: Exception) -> None:
    async def summarise(_: str) -> str:
        raise error

    with pytest.raises(type(error)):
        compacted(a_history(10), 3000, summarise)


def test_an_empty_summary_is_none() -> None:
    async def summarise(_: str) -> str:
        return "  "

    assert "call: read" in str(compacted(a_history(12), 4600, summarise)[2].message)


def test_what_is_not_ours_to_read_is_in_no_summary() -> None:
    entries = turn_of(1, ["r"], text="seen", extra=True)
    assert loop_compact.rendered(entries) == 'assistant: seen\ncall: read {"n":0}\nresult: r'


def without(history: list[Entry], *numbers: int) -> list[Entry]:
    return [entry for n, entry in enumerate(history) if n not in numbers]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: without(h, 3), "results of"),
        (lambda h: without(h, 2), "whose call is not before it"),
        (lambda h: h[:-1], "have no results"),
        (lambda h: without(h, 1), "pinned"),
        (lambda h: [*h[:3], said("user", "hello"), *h[3:]], "results of"),
        (lambda h: tuple(h), "no list"),
        (lambda h: ["text"], "no list"),
    ],
)
def test_a_torn_history_is_found_out(change: Any, words: str) -> None:
    history = a_history(2)
    assert flaw(history, history) == ""
    assert words in flaw(history, change(history))
