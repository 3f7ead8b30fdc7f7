"""Pipes as an author has them: what `|` builds, what goes through, and what ends it. Contexts in process stand for
agents; `tests/faults/test_pipes_killed.py` has them isolated."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from agent_os import KernelSpace, PipeError, Pipeline, PolicyCheckPipe, agent
from agent_os.abi.errors import EINVAL, EPERM
from agent_os.userland.pipes import Stage
from agent_os.userland.schemas import register


@register
class Finding(msgspec.Struct):
    text: str
    count: int = 0


class Summary(msgspec.Struct):
    line: str


@register
class Other(msgspec.Struct):
    text: str


@agent
async def finder(ctx: Any, query: str) -> Finding:
    return Finding(query)


CAPS = ["ipc:agent/*:send"]


class World:
    """A caller, and agents that answer by a function each."""

    def __init__(self, kernel: KernelSpace) -> None:
        self.kernel, self.seen, self._tasks = kernel, dict[str, list[Any]](), list[asyncio.Task[None]]()
        self.caller = kernel.create_agent_context("caller", caps=CAPS)

    def serve(self, name: str, answer: Callable[[Any], Any], **reply: Any) -> Any:
        ctx = self.kernel.create_agent_context(name, caps=CAPS)
        self.seen[name] = []

        async def handle(message: Any) -> Any:
            self.seen[name].append(message.payload)
            await message.reply(answer(message.payload), **reply)

        self._tasks.append(asyncio.create_task(ctx.serve(handle)))
        return ctx

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


def in_a_world(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with KernelSpace() as kernel, asyncio.timeout(60):
            world = World(kernel)
            try:
                await test(world)
            finally:
                world.end()

    asyncio.run(main())


def test_any_grouping_is_the_same_pipeline_and_none_changes() -> None:
    check = PolicyCheckPipe(["Finding"])
    one, other = (finder | check) | "b" | finder, finder | (check | ("c" and Stage("b") | finder))
    assert repr(one) == repr(other) == "finder | PolicyCheckPipe(['Finding']) | b | finder"
    part = finder | check
    assert len(part.parts) == 2
    assert part | finder is not part
    assert len(part.parts) == 2
    with pytest.raises(AttributeError):
        part.parts = ()  # type: ignore[misc]
    assert isinstance(part, Pipeline)


def test_a_name_that_nobody_knows_fails_when_it_is_built() -> None:
    with pytest.raises(EINVAL) as caught:
        PolicyCheckPipe(allowed_types=["Findnig"])
    assert caught.value.code == "type.unknown"
    with pytest.raises(TypeError):
        finder | 3


def test_values_go_through_and_come_out_as_their_type() -> None:
    async def test(world: World) -> None:
        a = world.serve("a", lambda query: {"text": query, "count": 2})
        b = world.serve("b", lambda found: {"line": found["text"].upper()})
        pipe = Stage(a, Finding) | PolicyCheckPipe(["Finding"]) | Stage(b, Summary)
        assert await pipe.execute("hello", ctx=world.caller) == Summary("HELLO")
        assert world.seen == {"a": ["hello"], "b": [{"text": "hello", "count": 2}]}
        several = [pipe.execute(str(number), ctx=world.caller) for number in range(5)]
        assert await asyncio.gather(*several) == [Summary(str(number)) for number in range(5)]

    in_a_world(test)


@pytest.mark.parametrize(
    ("gives", "allowed", "code"),
    [
        ({"text": 1}, ["Finding"], "type.value"),
        ({"text": "a", "more": "smuggled"}, ["Finding"], "type.value"),
        ("free text", ["Finding"], "type.value"),
        ("free text", None, "type.value"),
        ({"text": "a"}, ["Other"], "pipe.refused"),
        ({"text": "a"}, [], "pipe.refused"),
    ],
)
def test_what_does_not_fit_reaches_nobody(gives: Any, allowed: Any, code: str) -> None:
    async def test(world: World) -> None:
        a, b = world.serve("a", lambda query: gives), world.serve("b", lambda found: found)
        pipe = Stage(a, Finding) | PolicyCheckPipe(allowed) | b
        with pytest.raises(PipeError) as caught:
            await pipe.execute("q", ctx=world.caller)
        assert (caught.value.stage, caught.value.errno, caught.value.code) == (0, "ETYPE", code)
        assert world.seen == {"a": ["q"], "b": []}

    in_a_world(test)


def test_an_agents_own_word_for_its_type_counts_nothing() -> None:
    async def test(world: World) -> None:
        forger = world.serve("forger", lambda query: {"text": "a"}, schema="Finding")
        b = world.serve("b", lambda found: found)
        with pytest.raises(PipeError) as caught:
            await (Stage(forger, Other) | PolicyCheckPipe(["Finding", "Other"]) | b).execute("q", ctx=world.caller)
        assert (caught.value.errno, caught.value.code) == ("ETYPE", "pipe.forged")
        with pytest.raises(PipeError) as caught:
            await (forger | PolicyCheckPipe(None) | b).execute("q", ctx=world.caller)
        assert caught.value.errno == "ETYPE"
        mute = world.serve("mute", lambda query: {"text": "a"})
        with pytest.raises(PipeError) as caught:
            await (mute | PolicyCheckPipe(None) | b).execute("q", ctx=world.caller)
        assert caught.value.code == "pipe.untyped"
        assert world.seen["b"] == []
        assert await (mute | b).execute("q", ctx=world.caller) == {"text": "a"}, "without a check it is a message"

    in_a_world(test)


def test_the_stage_that_fails_is_named_and_ends_it() -> None:
    def broken(found: Any) -> Any:
        raise ValueError("cannot")

    async def test(world: World) -> None:
        a, b = world.serve("a", lambda query: query), world.serve("b", broken)
        c = world.serve("c", lambda found: found)
        with pytest.raises(PipeError, match=r"stage 1 \(b\).*cannot") as caught:
            await (a | b | c).execute(1, ctx=world.caller)
        assert caught.value.code == "pipe.stage"
        with pytest.raises(PipeError) as caught:
            await (a | "nobody" | c).execute(1, ctx=world.caller)
        assert (caught.value.stage, caught.value.errno) == (1, "ESRCH")
        with pytest.raises(PipeError) as caught:
            await (a | world.caller | c).execute(1, ctx=world.caller)
        assert (caught.value.stage, caught.value.errno) == (1, "EDEADLK")
        silent = world.kernel.create_agent_context("silent", caps=CAPS)
        with pytest.raises(PipeError) as caught:
            await (a | silent | c).execute(1, 0.1, ctx=world.caller)
        assert (caught.value.stage, caught.value.errno) == (1, "ETIMEDOUT")
        assert world.seen["c"] == []

    in_a_world(test)


def test_every_stage_needs_a_capability_before_the_first_is_asked() -> None:
    async def test(world: World) -> None:
        a, b = world.serve("a", lambda query: query), world.serve("b", lambda query: query)
        poor = world.kernel.create_agent_context("poor", caps=["ipc:agent/a:send"])
        with pytest.raises(EPERM):
            await (a | b).execute(1, ctx=poor)
        assert world.seen == {"a": [], "b": []}

    in_a_world(test)


def test_a_name_stands_for_one_schema_while_somebody_lives_who_said_so() -> None:
    class Elsewhere(msgspec.Struct):
        text: int

    Elsewhere.__name__ = "Summary2"

    async def test(world: World) -> None:
        from agent_os.abi import syscalls

        a = world.serve("a", lambda query: query)
        stages = [{"agent": "a", "returns": "Bound"}]
        other = world.kernel.create_agent_context("other", caps=CAPS)
        await world.caller.syscall(syscalls.Pipe(stages=stages, types={"Bound": {}}))
        with pytest.raises(Exception, match="another schema"):
            await other.syscall(syscalls.Pipe(stages=stages, types={"Bound": {"type": "null"}}))
        await other.syscall(syscalls.Pipe(stages=stages))
        with pytest.raises(EINVAL, match="would not be checked"):
            await other.syscall(syscalls.Pipe(stages=stages, types={"New": {"pattern": "a"}}))
        assert a

    in_a_world(test)


def test_a_pipe_without_an_agent_is_told_so() -> None:
    async def test(world: World) -> None:
        check = PolicyCheckPipe(["Finding"])
        for pipe, code in ((check | finder, "pipe.first"), (check | check, "pipe.first")):
            with pytest.raises(EINVAL) as caught:
                await pipe.execute(1, ctx=world.caller)
            assert caught.value.code == code
        with pytest.raises(EINVAL, match="nobody is there"):
            await (finder | check).execute(1)

    in_a_world(test)
