"""OP_METRICS: what is counted is what was told, and no label grows without end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.doors import Metrics
from agent_os.abi.errors import EPERM, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Post, Read, Status, Tell
from agent_os.kernel.counting import MOST_WORDS, OTHER, Hour, Moments, Words
from agent_os.kernel.metrics import measured
from kernel.models.bench import MODEL, Bench, asked, bench
from kernel.serving import Caller, serving
from models.provider import Say

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")

RULE = """
version = 1
default = "capability"
[[rule]]
id = "no-notes"
effect = "forbid"
what = ["mem:/mem/working/secret:write"]
violation = "refuse"
reason = "not here"
"""
Sample = dict[str, Any]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    return sum(one["value"] for one in samples if one["name"] == name and labels.items() <= one["labels"].items())


def test_every_call_counts_once_by_its_name_and_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            agent = Caller(kernel, "busy")
            for number in range(5):
                await agent.write("/mem/working/note", f"{number}")
            with pytest.raises(EPERM):
                await agent.write("/mem/episodic/note", "no")
            with pytest.raises(AgentOSError):
                await agent.syscall(Read(path="/mem/working/nothing"))
            counters = (await client.call(Metrics()))["counters"]
            calls = {
                (one["labels"]["call"], one["labels"]["outcome"]): one["value"]
                for one in counters
                if one["name"] == "syscalls_total"
            }
            assert calls["SYS_WRITE", "allow"] == 5
            assert calls["SYS_WRITE", "refuse"] == 1
            assert calls["SYS_READ", "error"] == 1
            again = (await client.call(Metrics()))["counters"]
            assert value(again, "syscalls_total", call="OP_METRICS", outcome="allow") == 1, "the look before this one"

    asyncio.run(main())


def test_what_a_rule_forbids_counts_for_that_rule(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(RULE)
    (tmp_path / "policy.toml").chmod(0o600)

    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            agent = Caller(kernel, "curious")
            for _ in range(3):
                with pytest.raises(AgentOSError):
                    await agent.write("/mem/working/secret", "x")
            counters = (await client.call(Metrics()))["counters"]
            rules = {one["labels"]["rule"]: one["value"] for one in counters if one["name"] == "violations_total"}
            assert [count for rule, count in rules.items() if "no-notes" in rule] == [3]
            assert value(counters, "syscalls_total", call="SYS_WRITE", outcome="forbid") == 3
            assert (await client.call(Status()))["refused_hour"] == 3

    asyncio.run(main())


def test_agents_signals_and_messages_are_counted_and_no_label_names_an_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            _, other = Caller(kernel, "anna-the-agent"), Caller(kernel, "bert-the-agent")
            await client.call(Post(to=other.agent.name, payload=frames.body(1), lane="low"))
            await client.call(Tell(agent=other.agent.name, signal=AgentSignal.SIGUSR1))
            found = await client.call(Metrics())
            gauges = found["gauges"]
            assert value(gauges, "agents", isolation="none") == 2
            assert value(gauges, "bus_depth", lane="low") == 1
            assert value(gauges, "bus_depth", lane="high") == 0
            assert value(gauges, "approvals_pending") == 0
            assert value(found["counters"], "signals_total", signal="SIGUSR1") == 1
            assert value(found["counters"], "dead_letters_total") == 0
            assert "the-agent" not in str(found)

    asyncio.run(main())


def test_the_moments_of_the_gate_and_of_the_journal_are_cumulative(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            agent = Caller(kernel, "busy")
            for number in range(20):
                await agent.write("/mem/working/note", f"{number}")
            moments = {one["name"]: one for one in (await client.call(Metrics()))["histograms"]}
            assert set(moments) == {"policy_check_seconds", "journal_commit_seconds", "model_queue_seconds"}
            for name in ("policy_check_seconds", "journal_commit_seconds"):
                counts = [count for _, count in moments[name]["buckets"]]
                assert counts == sorted(counts)
                assert counts[-1] <= moments[name]["count"]
                assert moments[name]["sum"] > 0
            assert moments["policy_check_seconds"]["count"] >= 20
            assert moments["model_queue_seconds"]["count"] == 0

    asyncio.run(main())


def test_a_moment_falls_into_the_first_bucket_that_is_long_enough() -> None:
    moments = Moments()
    for ns in (0, 1023, 1024, 1 << 35, 1 << 60):
        moments.add(ns)
    told: Any = moments.told()
    bounds = dict(map(tuple, told["buckets"]))
    assert bounds[1024 / 1e9] == 2
    assert bounds[2048 / 1e9] == 3
    assert bounds[(1 << 36) / 1e9] == 4
    assert told["count"] == 5


def test_what_is_older_than_an_hour_is_forgotten() -> None:
    hour = Hour()
    for minute in range(100, 130):
        hour.add(minute * 60.0)
        hour.add(minute * 60.0 + 59)
    assert hour.count(129 * 60.0) == 60
    assert hour.count(160 * 60.0) == 2 * (129 - 100)  # the first minute is one too old now
    assert hour.count(189 * 60.0) == 0
    hour.add(10_000 * 60.0)
    assert hour.count(10_059 * 60.0) == 1
    assert hour.count(10_060 * 60.0) == 0


def test_words_beyond_the_bound_are_others() -> None:
    words = Words()
    for number in range(MOST_WORDS + 50):
        words.add(f"rule-{number}")
    words.add("rule-0")
    found = dict(words)
    assert len(found) == MOST_WORDS + 1
    assert found[OTHER] == 50
    assert found["rule-0"] == 2


def test_a_model_call_counts_by_its_model_and_its_lane_is_seen(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("x", input=1000, output=100))
        await one.agent().think(asked())
        found = measured(one.kernel)
        assert value(found["counters"], "model_tokens_total", model=MODEL, direction="input") == 1000
        assert value(found["counters"], "model_tokens_total", model=MODEL, direction="output") == 100
        assert value(found["counters"], "cost_usd_total", model=MODEL) == pytest.approx(0.0045)
        queued = next(each for each in found["histograms"] if each["name"] == "model_queue_seconds")
        assert queued["count"] == 1
        (lane,) = one.kernel.models.lanes()
        assert (lane["model"], lane["waiting"], lane["in_flight"]) == (MODEL, 0, 0)

    bench(tmp_path, work, prices={"small": {"input": 3.0, "output": 15.0}})
