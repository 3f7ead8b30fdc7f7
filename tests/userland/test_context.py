"""What an author holds: every method is a call, and none of it depends on which answer came first."""

import asyncio
import datetime
import random
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.errors import EBUSY, ECONFLICT, EINVAL, EPROTO
from agent_os.abi.signals import AgentSignal
from agent_os.userland.context import Context, Interrupted
from agent_os.userland.session import Delivered
from userland.fake_kernel import FakeKernel, forever, played


def test_text_stays_text_and_bytes_stay_bytes() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        await ctx.write("/mem/working/a", "ä")
        await ctx.append("/mem/working/a", "ö")
        await ctx.write("/mem/working/b", b"\xff")
        return await ctx.read("/mem/working/a"), await ctx.read("/mem/working/b")

    assert played(program)[0] == ("äö", b"\xff")


def test_a_lost_race_names_the_version_that_is_there() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        await ctx.write("/mem/working/a", "1", if_version=0)
        with pytest.raises(ECONFLICT) as lost:
            await ctx.write("/mem/working/a", "2", if_version=0)
        found = await ctx.content("/mem/working/a")
        return lost.value.detail, (await ctx.write("/mem/working/a", "3", if_version=found.version)).version

    assert played(program)[0] == ({"version": 1}, 2)


def test_a_directory_is_listed_over_all_its_pages() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        for n in range(8):
            await ctx.write(f"/mem/working/{n}", "")
        await ctx.remove("/mem/working/4")
        return [item.name for item in await ctx.list("/mem/working")], (await ctx.stat("/mem/working/1")).kind

    assert played(program)[0] == (["0", "1", "2", "3", "5", "6", "7"], "file")


def test_an_answer_of_another_shape_is_eproto() -> None:
    async def odd(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        return {"version": "new"}

    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await ctx.write("/mem/working/a", "1")

    assert isinstance(played(program, {"SYS_WRITE": odd})[0], EPROTO)


async def tree(ctx: Context, kernel: FakeKernel) -> None:
    """Tasks within tasks, by every way that makes them."""

    async def leaf(name: str) -> None:
        await ctx.call("a", leaf=name)
        await ctx.call("b", leaf=name)

    async def branch(name: str) -> None:
        await ctx.gather(*(leaf(f"{name}{n}") for n in range(3)))
        async with asyncio.TaskGroup() as group:
            group.create_task(leaf(f"{name}x"))
        await asyncio.create_task(leaf(f"{name}y"))

    await ctx.call("first")
    await asyncio.gather(branch("l"), branch("r"))
    await ctx.call("last")


def test_places_do_not_depend_on_which_answer_came_first() -> None:
    def shuffled(seed: int) -> Any:
        order = random.Random(seed)

        async def late(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
            await asyncio.sleep(order.random() / 100)

        _, kernel = played(tree, {"SYS_EXEC": late})
        return kernel.trace()

    traces = [shuffled(seed) for seed in range(4)]
    assert any(one != traces[0] for one in traces[1:])  # they did come in another order
    assert all(sorted(map(str, one)) == sorted(map(str, traces[0])) for one in traces)
    places = [pos for pos, _, _ in traces[0]]
    assert len(set(places)) == len(places) == 1 + 2 + 2 * 2 * 5 + 1
    assert {"r:1", "0:1", "0:2", "0.0.0:1", "0.1.4:2"} <= set(places)


def test_a_failure_ends_what_was_gathered_with_it() -> None:
    async def answer(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        if body["tool"] == "bad":
            await kernel.until_now(lambda: len(kernel.named("SYS_EXEC")) == 2)
            raise EINVAL("bad", "no")
        return await forever(kernel, call, body)

    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        with pytest.raises(EINVAL):
            await ctx.gather(ctx.call("slow"), ctx.call("bad"))
        return len(asyncio.all_tasks())

    result, kernel = played(program, {"SYS_EXEC": answer})
    assert result == 2  # the program, and the test that runs it
    assert len(kernel.cancelled) == 1


def test_each_call_tells_what_had_been_handled_before_it() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await ctx.call("one")
        await ctx.call("two")
        await kernel.push("notice", {"type": "live"})
        await ctx.call("three")

    _, kernel = played(program, replaying=True)
    assert [call.seen for call in kernel.named("SYS_EXEC")] == [1, 2, 3]  # the first answer was the seed


def test_random_is_what_the_kernel_made_it() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        return random.random(), str(await ctx.uuid()), await ctx.random(3)

    one, two = played(program)[0], played(program)[0]
    assert one == two
    assert one[2] == b"\0\1\2"


def test_now_and_sleep_are_the_kernels() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        before = await ctx.now()
        await ctx.sleep(0.01)
        with pytest.raises(EINVAL):
            await ctx.sleep(until=datetime.datetime(2030, 1, 1))
        return (await ctx.now()) - before

    result, kernel = played(program)
    assert result >= datetime.timedelta(milliseconds=10)
    assert [name for _, name, _ in kernel.trace()[1:]] == ["SYS_NOW", "SYS_SLEEP", "SYS_NOW", "SYS_EXIT"]


def test_replaying_ends_with_the_notice_and_what_was_logged_is_not_said_twice(capsys: Any) -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        ctx.log("again")
        was = ctx.replaying
        await kernel.push("notice", {"type": "live"})
        await ctx.now()
        ctx.log("new")
        return was, ctx.replaying

    assert played(program, replaying=True)[0] == (True, False)
    assert capsys.readouterr().err == "new\n"


def test_a_watch_gives_changes_also_those_that_came_with_its_answer() -> None:
    async def watch(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        if body["end"]:
            return None
        seen = frames.body({"type": "watch", "watch": 7, "path": "/mem/working/a", "kind": "written", "version": 3})
        gap = frames.body({"type": "watch", "watch": 7, "kind": "gap", "count": 12})
        reply = frames.Reply(call.id, frames.body({"watch": 7}))
        await kernel.send(reply, frames.Push(1, "notice", seen), frames.Push(2, "notice", gap))
        return await forever(kernel, call, body)

    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        async with await ctx.watch("/mem/working") as changes:
            first, second = await anext(changes), await anext(changes)
        with pytest.raises(StopAsyncIteration):
            await anext(changes)
        return first.path, first.version, second.kind, second.count

    result, kernel = played(program, {"SYS_WATCH": watch})
    assert result == ("/mem/working/a", 3, "gap", 12)
    assert [body["end"] for _, name, body in kernel.trace() if name == "SYS_WATCH"] == [False, True]


# Signals


def test_sigint_raises_interrupted_in_the_waiting_call_and_the_agent_lives() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        ends: list[bool] = []
        for call in (ctx.sleep(600), ctx.call("slow")):
            waiting = asyncio.ensure_future(call)
            count = len(kernel.calls)
            await kernel.until(lambda count=count: len(kernel.calls) > count)
            await kernel.signal(AgentSignal.SIGINT)
            with pytest.raises(Interrupted) as raised:
                await waiting
            ends.append(raised.value.retryable)
        return ends, await ctx.random(1)

    result, kernel = played(program, {"SYS_EXEC": forever})
    assert result == ([True, False], b"\0")  # a sleep had no effect; nobody knows what the tool did
    assert len(kernel.cancelled) == 2


def test_a_handler_runs_between_calls_and_one_at_a_time() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        happened: list[str] = []

        async def handle(delivered: Delivered) -> None:
            happened.append(f"begin {delivered.value}")
            await ctx.call("in handler")
            happened.append(f"end {delivered.value}")

        ctx.on(AgentSignal.SIGUSR2, handle)
        await kernel.signal(AgentSignal.SIGUSR2, "a")
        await kernel.signal(AgentSignal.SIGUSR2, "b")
        while not happened:
            await asyncio.sleep(0)
        await ctx.call("in program")
        happened.append("program")
        return happened

    result, kernel = played(program)
    assert result == ["begin a", "end a", "begin b", "end b", "program"]
    assert [pos for pos, name, _ in kernel.trace() if name == "SYS_EXEC"] == ["s1:1", "s2:1", "0:1"]


def test_a_handler_that_fails_is_told_and_the_default_follows(capsys: Any) -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        def broken(delivered: Delivered) -> None:
            raise ValueError("not today")

        ctx.on(AgentSignal.SIGTERM, broken)
        await kernel.signal(AgentSignal.SIGTERM)
        await ctx.call("slow")  # cancelled here, or before

    result, _ = played(program, {"SYS_EXEC": forever})
    assert isinstance(result, asyncio.CancelledError)
    told = capsys.readouterr().err
    assert "the handler of SIGTERM failed; its default action follows" in told
    assert "ValueError: not today" in told


def test_sigterm_ends_the_program_which_may_still_tidy_up() -> None:
    async def told(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        await kernel.push_now("signal", {"signal": int(AgentSignal.SIGTERM)})
        return await forever(kernel, call, body)

    async def program(ctx: Context, kernel: FakeKernel) -> None:
        try:
            await ctx.sleep(600)
        finally:
            await ctx.write("/mem/working/last", "words")

    result, kernel = played(program, {"SYS_SLEEP": told})
    assert isinstance(result, asyncio.CancelledError)
    assert kernel.entries["/mem/working/last"][0] == "words"


def test_sigint_ends_the_handler_that_runs_and_not_the_program() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        ctx.on(AgentSignal.SIGUSR2, lambda delivered: ctx.call("never"))
        await kernel.signal(AgentSignal.SIGUSR2)
        await kernel.until(lambda: kernel.named("SYS_EXEC"))
        await kernel.signal(AgentSignal.SIGINT)
        return (await ctx.write("/mem/working/x", "x")).version

    assert played(program, {"SYS_EXEC": forever})[0] == 1


@pytest.mark.parametrize("signal", [AgentSignal.SIGKILL, AgentSignal.SIGPOLICY, AgentSignal.SIGTRUST])
def test_nobody_handles_what_cannot_be_masked(signal: AgentSignal) -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        ctx.on(signal, lambda delivered: None)

    assert isinstance(played(program)[0], EINVAL)


def test_a_child_that_ended_is_sigchld() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        came: list[Delivered] = []
        ctx.on(AgentSignal.SIGCHLD, came.append)
        await kernel.push("notice", {"type": "child", "agent": "worker", "state": "failed", "reason": "oom"})
        while not came:
            await asyncio.sleep(0)
        return came[0].sender, came[0].value["reason"]

    assert played(program)[0] == ("worker", "oom")


# Ready and well


async def _async_trouble(ctx: Any) -> str:
    return "the shelves are gone"


def _raising(ctx: Any) -> None:
    raise KeyError("shelf")


@pytest.mark.parametrize(
    ("check", "ok", "why"),
    [
        (lambda ctx: None, True, ""),
        (lambda ctx: True, True, ""),
        (lambda ctx: False, False, ""),
        (_async_trouble, False, "the shelves are gone"),
        (_raising, False, "KeyError: 'shelf'"),
    ],
)
def test_whether_it_is_well_is_what_its_author_s_function_says(check: Any, ok: bool, why: str) -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await kernel.push("notice", {"type": "ping"})
        await kernel.until(lambda: kernel.named("SYS_ALIVE"))

    _, kernel = played(program, check=check)
    assert kernel.hello == frames.Hello(1, 1, ["ping"])
    assert ("s1:1", "SYS_ALIVE", {"ok": ok, "why": why}) in kernel.trace()


def test_without_such_a_function_it_is_not_asked() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await kernel.push("notice", {"type": "ping"})
        await ctx.alive()

    _, kernel = played(program)
    assert kernel.hello == frames.Hello(1, 1, [])
    assert len(kernel.named("SYS_ALIVE")) == 1


def test_it_says_itself_that_it_is_ready() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await ctx.ready()

    _, kernel = played(program, says_ready=True)
    assert kernel.hello == frames.Hello(1, 1, ["ready"])
    assert len(kernel.named("SYS_READY")) == 1


# Checkpoints


def test_sigusr1_without_a_hook_keeps_what_the_kernel_knows() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        await kernel.signal(AgentSignal.SIGUSR1, "nightly")
        await kernel.until(lambda: kernel.named("SYS_CHECKPOINT"))

    _, kernel = played(program)
    assert kernel.hello == frames.Hello(1, 1, [])
    assert ("s1:1", "SYS_CHECKPOINT", {"name": "nightly", "state": None, "work": True}) in kernel.trace()


def test_sigusr1_asks_the_hook_between_two_calls_and_places_are_counted_anew() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        ctx.state = {"done": 0}
        for n in range(3):
            if n == 1:
                await kernel.signal(AgentSignal.SIGUSR1)
            await ctx.call("step", n=n)
            ctx.state["done"] = n + 1

    _, kernel = played(program, hook=lambda ctx: dict(ctx.state))
    assert kernel.hello == frames.Hello(1, 1, ["checkpoint"])
    # the signal may come before or after the second call left; the state always fits the calls before it
    names = [(pos, name) for pos, name, _ in kernel.trace()]
    at = next(index for index, (_, name) in enumerate(names) if name == "SYS_CHECKPOINT")
    [state] = [body["state"] for _, name, body in kernel.trace() if name == "SYS_CHECKPOINT"]
    steps_before = [name for _, name in names[:at]].count("SYS_EXEC")
    assert state == {"done": steps_before}
    assert names[at + 1 : at + 3] == [("sigusr1@r:1", "SYS_RANDOM"), ("sigusr1@0:1", "SYS_EXEC")]
    assert kernel.calls[at + 1].seen == 0


def test_a_run_that_begins_from_a_state_asks_what_came_after_it() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        steps = ctx.state or []
        for n in range(len(steps), 4):
            if n == 2 and not ctx.state:
                await ctx.checkpoint("half", steps)
            await ctx.call("step", n=n, luck=random.random())
            steps.append(n)
        return steps

    first, whole = played(program)
    second, rest = played(program, checkpoint="half", state=frames.body([0, 1]))
    assert first == second == [0, 1, 2, 3]
    assert rest.trace() == whole.trace()[-len(rest.trace()) :]
    assert [call.seen for call in rest.calls] == [call.seen for call in whole.calls[-len(rest.calls) :]]


def test_a_program_that_says_when_it_rests_is_asked_there_only() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        for n in range(2):
            await ctx.at_rest()
            ctx.state = None
            await kernel.signal(AgentSignal.SIGUSR1)
            await ctx.gather(*(ctx.call("part", n=n, part=part) for part in range(3)))
            await ctx.call("whole", n=n)
            ctx.state = {"next": n + 1}

    _, kernel = played(program, hook=lambda ctx: ctx.state)
    names = [(pos, name) for pos, name, _ in kernel.trace()]
    at = names.index(("s1:1", "SYS_CHECKPOINT"))
    assert names[at - 1 : at + 3] == [
        ("0:1", "SYS_EXEC"),
        ("s1:1", "SYS_CHECKPOINT"),
        ("sigusr1@r:1", "SYS_RANDOM"),
        ("sigusr1@0.0:1", "SYS_EXEC"),
    ]
    assert [body["state"] for _, name, body in kernel.trace() if name == "SYS_CHECKPOINT"] == [{"next": 1}]


def test_a_state_is_refused_while_tasks_run() -> None:
    async def program(ctx: Context, kernel: FakeKernel) -> None:
        waiting = asyncio.ensure_future(ctx.sleep(600))
        try:
            await ctx.checkpoint("now", {"x": 1})
        finally:
            waiting.cancel()

    assert isinstance(played(program)[0], EBUSY)


def test_a_hook_that_fails_costs_the_state_only(capsys: Any) -> None:
    def broken(ctx: Context) -> Any:
        raise ValueError("no state today")

    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        await kernel.signal(AgentSignal.SIGUSR1)
        for n in range(3):
            await ctx.call("step", n=n)
        return "done"

    result, kernel = played(program, hook=broken)
    assert result == "done"
    assert [body["state"] for _, name, body in kernel.trace() if name == "SYS_CHECKPOINT"] == [None]
    assert "no state today" in capsys.readouterr().err
