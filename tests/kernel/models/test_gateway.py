"""Model calls of agents in this process, on a real kernel, against a provider on a loopback socket."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import (
    EAGAIN,
    EBUDGET,
    EHOSTUNREACH,
    EINVAL,
    EIO,
    ELABEL,
    ENOENT,
    EPERM,
    ETIMEDOUT,
    ETYPE,
)
from agent_os.abi.signals import AgentSignal
from agent_os.kernel.authority.bindings import bind
from kernel.models.bench import CAP, MODEL, Bench, asked, bench
from models.provider import KEY, Fail, Say


def test_a_model_answers_and_what_it_cost_is_on_the_record(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("Hello yourself", input=30, output=4))
        reply = await one.agent().think(asked())
        assert (reply.text, reply.stop, reply.provider, reply.model) == ("Hello yourself", "end", "mock", "small")
        assert (reply.usage.input, reply.usage.output, reply.attempts) == (30, 4, 1)
        assert reply.cost_microusd is None
        assert not reply.scripted
        kinds = [(entry.kind, entry.cost) for entry in one.entries() if entry.op == 19]
        assert [kind for kind, _ in kinds] == [Kind.INTENT, Kind.OUTCOME]
        assert kinds[0][1]["held"]["tokens"] > 4096
        assert kinds[1][1]["spent"] == {"tokens": 34, "model_calls": 1}
        assert kinds[1][1]["model"] == MODEL
        assert one.held() == {}

    bench(tmp_path, work)


def test_without_the_capability_nothing_is_sent(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        with pytest.raises(EPERM) as refused:
            await one.agent(caps=[]).think(asked())
        assert refused.value.detail["missing"] == CAP
        assert one.mock.seen == []

    bench(tmp_path, work)


# Money.


PRICES = {"small": {"input": 3.0, "output": 15.0}}


def test_money_is_reserved_charged_and_given_back(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("x", input=1000, output=100))
        agent = one.agent()
        one.kernel.budgets.limit(one.kernel.table.find("a").id, {"cost": 1_000_000})
        reply = await agent.think(asked())
        assert reply.cost_microusd == 1000 * 3 + 100 * 15
        assert one.spent() == {"tokens": 1100, "cost": 4500, "model_calls": 1}
        assert one.held() == {}

    bench(tmp_path, work, prices=PRICES)


def test_what_a_budget_does_not_pay_for_is_not_asked(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        one.kernel.budgets.limit(one.kernel.table.find("a").id, {"tokens": 100})
        with pytest.raises(EBUDGET) as short:
            await agent.think(asked())
        assert short.value.detail["limit"] == 100
        assert (one.mock.seen, one.spent(), one.held()) == ([], {}, {})

    bench(tmp_path, work)


def test_a_budget_that_pays_for_some_output_lowers_what_is_asked_for(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        one.kernel.budgets.limit(one.kernel.table.find("a").id, {"tokens": 500})
        reply = await agent.think(asked())
        assert reply.clamped
        assert 256 <= one.mock.last["max_tokens"] < 500

    bench(tmp_path, work)


def test_a_model_without_a_price_is_refused_where_money_is_limited(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        one.kernel.budgets.limit(one.kernel.table.find("a").id, {"cost": 1_000_000})
        with pytest.raises(EBUDGET) as refused:
            await agent.think(asked())
        assert refused.value.code == "no_price"
        assert "agentctl model price mock/small" in (refused.value.hint or "")

    bench(tmp_path, work)


# Faults.


@pytest.mark.long
def test_a_full_key_is_waited_for_and_every_attempt_is_on_the_record(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Fail(429, retry_after="0"), Fail(503), Say("there", input=9, output=2))
        reply = await one.agent().think(asked())
        assert (reply.text, reply.attempts) == ("there", 3)
        outcome = one.recorded(Kind.OUTCOME)
        assert [told["status"] for told in outcome["failed"]] == [429, 503]
        assert one.spent()["tokens"] == 11

    bench(tmp_path, work)


@pytest.mark.parametrize(
    ("fail", "error", "code"),
    [
        (Fail(400, "no"), EINVAL, "request"),
        (Fail(401), EIO, "auth"),
        (Fail(404), ENOENT, "model"),
        (Fail(429, retry_after="3600"), EAGAIN, "rate"),
    ],
)
def test_what_cannot_pass_by_itself_is_told_at_once(tmp_path: Path, fail: Fail, error: type, code: str) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(fail)
        with pytest.raises(error) as told:
            await one.agent().think(asked())
        assert told.value.code == code
        assert len([seen for seen in one.mock.seen if seen.method == "POST"]) == 1
        assert (one.spent(), one.held()) == ({"tokens": 0, "model_calls": 1}, {})

    bench(tmp_path, work)


@pytest.mark.long
def test_a_provider_that_nobody_reaches_is_tried_four_times(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(*[Fail(503)] * 4)
        with pytest.raises(EHOSTUNREACH):
            await one.agent().think(asked())
        assert len(one.mock.seen) == 4

    bench(tmp_path, work)


def test_a_call_with_a_deadline_is_ended_and_paid(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("word " * 400, between_s=0.05, input=50))
        with pytest.raises(EIO) as late:
            await one.agent().think(asked(deadline_ms=1000))
        assert late.value.code == "timeout"
        assert one.spent()["tokens"] > 0
        assert await asyncio.to_thread(one.mock.seen[0].gone.wait, 10)

    bench(tmp_path, work)


@pytest.mark.long
def test_a_deadline_that_passed_in_the_queue_costs_nothing(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        one.mock.then(Say("slow", first_s=3.0))
        first = asyncio.create_task(agent.think(asked()))
        while not one.mock.seen:
            await asyncio.sleep(0.01)
        with pytest.raises(ETIMEDOUT):
            await agent.think(asked(deadline_ms=100))
        assert not first.done(), "it did not wait for its turn"
        await first
        assert len(one.mock.seen) == 1

    bench(tmp_path, work, slots=1)


# Keys.


def test_without_a_key_the_error_is_the_command_that_adds_one(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        with pytest.raises(EIO) as refused:
            await one.agent().think(asked())
        assert refused.value.code == "auth"
        expected = "agentctl secrets set mock-key < FILE && agentctl secrets bind mock-key --host 127.0.0.1:"
        assert (refused.value.hint or "").startswith(expected)

    bench(tmp_path, work, key="")


def test_a_key_that_is_bound_elsewhere_does_not_leave(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.kernel.safe.unbind("mock-key")
        one.kernel.safe.bind(bind("mock-key", ["api.example.com"]))
        with pytest.raises(EPERM):
            await one.agent().think(asked())
        assert one.mock.seen == []

    bench(tmp_path, work)


def test_a_key_that_a_provider_echoes_reaches_nobody(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say(f"your key is {KEY}"), Fail(400, f"bad key {KEY}"))
        agent = one.agent()
        reply = await agent.think(asked())
        assert KEY not in reply.text
        with pytest.raises(EINVAL) as told:
            await agent.think(asked())
        assert KEY not in str(told.value)
        for _, kept in one.kernel.journal.scan(one.kernel.table.find("a").id):
            assert kept is None or KEY.encode() not in kept

    bench(tmp_path, work)
    for path in (tmp_path / "kernel").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


# Cancelled, stopped, killed.


def test_a_call_that_is_given_up_closes_its_connection_and_pays_what_came(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("word " * 200, between_s=0.02, input=50))
        call = asyncio.create_task(one.agent().think(asked()))
        await one.until(lambda: bool(one.mock.seen))
        await asyncio.sleep(0.2)
        call.cancel()
        assert await asyncio.to_thread(one.mock.seen[0].gone.wait, 8)
        await one.until(lambda: one.held() == {} and bool(one.spent()))
        assert 0 < one.spent()["tokens"] < 1000

    bench(tmp_path, work)


def test_a_killed_agent_sends_nothing_any_more(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("word " * 500, between_s=0.02))
        agent = one.agent()
        calls = [asyncio.create_task(agent.think(asked(str(number)))) for number in range(5)]
        await one.until(lambda: bool(one.mock.seen))
        agent.signals.signal(AgentSignal.SIGKILL)
        assert await asyncio.to_thread(one.mock.seen[0].gone.wait, 8)
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(one.mock.seen) == 1
        assert one.kernel.models.places() == []
        assert one.held() == {}

    bench(tmp_path, work, slots=1)


def test_a_stopped_agents_calls_wait(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("one", first_s=1.0), Say("two"))
        agent = one.agent()
        first, second = (asyncio.create_task(agent.think(asked(text))) for text in ("1", "2"))
        await one.until(lambda: bool(one.mock.seen) and len(one.kernel.models.places()) == 1)
        agent.signals.signal(AgentSignal.SIGSTOP)
        assert (await first).text == "one"
        assert [place.reason for _, _, place in one.kernel.models.places()] == ["stopped"]
        agent.signals.signal(AgentSignal.SIGCONT)
        assert (await second).text == "two"

    bench(tmp_path, work, slots=1)


# What was asked for.

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
}


def test_a_value_that_fits_the_schema_is_parsed(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say('{"x": 1, "y": 2}'))
        reply = await one.agent().think(asked(output_schema=POINT))
        assert reply.parsed == {"x": 1, "y": 2}

    bench(tmp_path, work)


def test_one_that_does_not_is_repaired_once_on_the_same_budget(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say('{"x": "one"}', input=20, output=5), Say('{"x": 1, "y": 2}', input=40, output=6))
        reply = await one.agent().think(asked(output_schema=POINT))
        assert (reply.parsed, reply.attempts) == ({"x": 1, "y": 2}, 2)
        assert one.spent()["tokens"] == 71
        assert (reply.usage.input, reply.usage.output) == (60, 11)
        assert one.held() == {}

    bench(tmp_path, work)


def test_twice_wrong_is_an_error_with_the_text(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("no"), Say("still no"))
        with pytest.raises(ETYPE) as wrong:
            await one.agent().think(asked(output_schema=POINT))
        assert wrong.value.detail["text"] == "still no"
        assert (len(one.mock.seen), one.held()) == (2, {})

    bench(tmp_path, work)


def test_a_reply_can_be_used_again_and_costs_nothing_then(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("first", input=5, output=5))
        one_agent, other = one.agent(), one.agent("b")
        with pytest.raises(ENOENT) as none:
            await one_agent.think(asked(cache="replay_only"))
        assert none.value.code == "cache"
        await one_agent.think(asked(cache="reuse"))
        again = await other.think(asked(cache="reuse", deadline_ms=60_000))
        kept = await other.think(asked(cache="replay_only"))
        assert (again.text, again.cached, again.cost_microusd, kept.text) == ("first", True, 0, "first")
        assert (len(one.mock.seen), one.spent("b")) == (1, {})

    bench(tmp_path, work)


def test_a_prompt_that_was_cut_off_in_silence_is_noticed(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("x", input=10))
        await one.agent().think(asked("word " * 2000))
        assert one.events() == ["model.truncation_suspected"]

    bench(tmp_path, work)


# Labels.


def test_a_remote_provider_reads_and_a_local_one_does_not(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        one.kernel.authority.labels.take_in(one.kernel.table.find("a").id, _label("hr"))
        await agent.think(asked())
        one.add(local=False)
        one.kernel.models.changed("mock")
        await asyncio.sleep(0)
        with pytest.raises(ELABEL):
            await agent.think(asked())

    bench(tmp_path, work)


def _label(name: str) -> Any:
    from agent_os.kernel.authority.labels import Label

    return Label(classes=frozenset({name}))


def test_a_key_that_is_refused_is_left_alone_and_another_of_the_pool_serves(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.add(keys=("mock-key", "stale-key"))
        one.kernel.safe.add("stale-key", b"sk-stale-0123456789")
        one.kernel.safe.bind(bind("stale-key", [f"127.0.0.1:{one.mock.port}"]))
        for number in range(8):  # each is a program of its own, and stays on a key
            agent = one.agent(f"a{number}")
            with suppress(EIO):
                await agent.think(asked())
            assert (await agent.think(asked())).text == "ok"
        assert one.kernel.models.keys.is_bad("stale-key", 1)
        assert not one.kernel.models.keys.is_bad("mock-key", 1)

    bench(tmp_path, work)


def test_an_alias_stands_for_a_model_and_gives_no_authority(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.kernel.models.catalogue.alias("fast", MODEL)
        assert (await one.agent().think(asked(model="fast"))).model == "small"
        with pytest.raises(EPERM):
            await one.agent("b", caps=[]).think(asked(model="fast"))
        with pytest.raises(ENOENT) as unknown:
            await one.agent("c").think(asked(model="slow"))
        assert unknown.value.code == "model"

    bench(tmp_path, work)


def test_who_is_waited_for_is_as_urgent_as_who_waits(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("busy", first_s=0.5))
        busy, server, client = one.agent("busy"), one.agent("server"), one.agent("client")
        first = asyncio.create_task(busy.think(asked("busy")))
        await one.until(lambda: bool(one.mock.seen))
        waiting = asyncio.create_task(server.think(asked("server")))
        await one.until(lambda: len(one.kernel.models.places()) == 1)
        models, asker = one.kernel.models, one.kernel.table.find("client")
        models.priority_of = lambda agent: "high" if agent is asker else "normal"
        with models.lends(asker, [one.kernel.table.find("server").id]):
            assert [place.priority for _, _, place in models.places()] == ["high"]
        assert [place.priority for _, _, place in models.places()] == ["normal"]
        await asyncio.gather(first, waiting)
        assert client.agent

    bench(tmp_path, work, slots=1)
