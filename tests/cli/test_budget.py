"""`agentctl budget`, `cost`: amounts as people write them, and what a kernel says of them."""

import csv
import io
from pathlib import Path
from typing import Any

import click
import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL
from agent_os.cli.budget import parse_limit, shown, since_ns
from agent_os.kernel.journal import Draft
from cli.test_approvals import Ctl, with_questions

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("0.50usd", ("cost", 500_000)),
        ("$2", ("cost", 2_000_000)),
        ("cost=0.000001", ("cost", 1)),
        ("cost=1 USD", ("cost", 1_000_000)),
        ("tokens=10k", ("tokens", 10_000)),
        ("tokens=1.5M", ("tokens", 1_500_000)),
        ("bytes=20MB", ("bytes", 20_000_000)),
        ("bytes=10MiB", ("bytes", 10 << 20)),
        ("calls=0", ("calls", 0)),
        ("calls=unlimited", ("calls", None)),
    ],
)
def test_limits_as_people_write_them(text: str, limit: tuple[str, int | None]) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    "text",
    [
        "",
        "usd",
        "-1usd",
        "0.0000001usd",
        "1e9",
        "gold=1",
        "cost",
        "tokens=",
        "tokens=1.5",
        "tokens=-1",
        "tokens=nan",
        "tokens=1x",
    ],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(EINVAL):
        parse_limit(text)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [("cost", 6_400, "$0.0064"), ("cost", 0, "$0.00"), ("bytes", 2_000, "2.0 kB"), ("calls", 1_204, "1,204")],
)
def test_amounts_as_people_read_them(resource: str, amount: int, text: str) -> None:
    assert shown(resource, amount) == text


@pytest.mark.integration
def test_budgets_are_set_raised_and_listed(tmp_path: Path) -> None:
    async def test(kernel: Any, ctl: Ctl) -> None:
        assert "nobody has a limit" in (await ctl("budget")).err
        assert (await ctl("budget", "set", "spender", "1usd")).code == 3
        kernel.budgets.open("default/spender", None, {"calls": 4})
        said = await ctl("budget", "set", "spender", "cost=0.50usd", "tokens=10k")
        assert said.code == 0, said
        assert (await ctl("budget", "raise", "spender", "cost=0.25usd")).code == 0
        kernel.budgets.reserve("default/spender", {"cost": 600_000, "calls": 1})
        lines = (await ctl("budget", "ls", "spender")).out.splitlines()
        assert lines[0].split() == ["ACCOUNT", "PARENT", "RESOURCE", "SPENT", "HELD", "LIMIT", "USED"]
        assert lines[1].split() == ["spender", "operator", "cost", "$0.00", "$0.60", "$0.75", "80%"]
        assert lines[2].split()[-2:] == ["10,000", "0%"]
        assert (await ctl("budget", "set", "spender", "cost=1usd", "cost=2usd")).code == 2
        assert (await ctl("budget", "set", "spender", "bytes=10MB")).err == ""
        assert (await ctl("budget", "raise", "spender", "bytes=5")).err == "exactly 10,000,005 bytes\n"
        told = (await ctl("budget", "-o", "json")).json
        cost = {"resource": "cost_usd", "spent": 0.0, "held": 0.6, "limit": 0.75}
        assert told["accounts"][0]["uses"][0] == cost, "in dollars, and named so"
        assert {one["account"] for one in told["accounts"]} == {"spender", "operator"}
        assert (await ctl("budget", "set", "spender", "gold=1")).code == 2

    with_questions(tmp_path, test)


@pytest.mark.integration
def test_whoever_is_above_a_budget_is_listed_and_whoever_has_none_is_not(tmp_path: Path) -> None:
    async def test(kernel: Any, ctl: Ctl) -> None:
        kernel.budgets.open("default/idle", "default/parent")
        assert "nobody has a limit" in (await ctl("budget", "ls")).err
        kernel.budgets.open("default/child", "default/parent", {"calls": 4})
        told = (await ctl("budget", "ls", "-o", "json")).json
        assert [one["account"] for one in told["accounts"]] == ["child", "parent", "operator"]
        rows = [line.split() for line in (await ctl("budget", "ls")).out.splitlines()[1:]]
        assert rows == [
            ["child", "parent", "calls", "0", "-", "4", "0%"],
            ["parent", "operator", *"-----"],
            ["operator", *"------"],
        ]

    with_questions(tmp_path, test)


@pytest.mark.integration
def test_cost_is_a_table_an_object_or_a_sheet(tmp_path: Path) -> None:
    async def test(kernel: Any, ctl: Ctl) -> None:
        assert "nothing was spent" in (await ctl("cost")).err
        for name, cost in (("a", 500_000), ("b", 1)):
            spent = {"on": [f"default/{name}"], "spent": {"cost": cost, "calls": 1}, "model": "=evil()"}
            await kernel.journal.record(Draft(f"default/{name}", Kind.RESULT, cost=spent))
        lines = (await ctl("cost")).out.splitlines()
        assert [line.split() for line in lines] == [
            ["AGENT", "COST", "CALLS"],
            ["a", "$0.50", "1"],
            ["b", "$0.000001", "1"],
            ["total", "$0.500001", "2"],
        ]
        sheet = list(csv.reader(io.StringIO((await ctl("cost", "--by", "model,agent", "-o", "csv")).out)))
        assert sheet[0] == [
            "model",
            "agent",
            "cost_usd",
            "tokens",
            "bytes",
            "count",
            "calls",
            "messages",
            "model_calls",
        ]
        assert sheet[1][:3] == ["'=evil()", "a", "0.500000"]
        assert (await ctl("cost", "-o", "json")).json["total"] == {"cost_usd": 0.500001, "calls": 2}
        assert "nothing was spent" in (await ctl("cost", "--since", "2100-01-01")).err
        assert (await ctl("cost", "--since", "7d")).out
        assert (await ctl("cost", "--by", "colour")).code == 2
        assert (await ctl("cost", "--since", "yesterday")).code == 2

    with_questions(tmp_path, test)


@pytest.mark.parametrize("text", ["lately", "0001-01-01", "99999999999d", "10000-01-01", "5", "-3d"])
def test_a_time_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.UsageError, match="so long ago"):
        since_ns(text)


def test_a_time_that_the_clock_cannot_count_is_its_first_or_last() -> None:
    assert since_ns("1960-01-01") == 0
    assert since_ns("2999-01-01") == 2**63 - 1
    assert since_ns("2026-01-31T00:00+00:00") == 1_769_817_600 * 10**9
