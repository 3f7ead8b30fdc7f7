"""Policy: what a decision costs with 10 rules and with 10,000, beside a walk over all of them.

The same calls are decided under both, in turn. The rules are of every sort that an index could stumble over: exact
names, subtrees, stars inside a segment, `**` in the middle, hosts, and rules about one agent, a role or everybody.
"""

import random
import time
from collections.abc import Callable

from benchmarks.measure import Report, Series

from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Layer
from agent_os.kernel.calls import Need

FEW, MANY = 10, 10_000
ROUNDS, CALLS = 30, 500
SHAPES = (
    "file:/work/p{n}/src/main.py:read",
    "file:/work/p{n}/**:read,write",
    "file:/work/logs/app-{n}-*.txt:read",
    "file:/work/p{n}/**/.env:read",
    "file:/work/**/secret-{n}/**:read",
    "http:api{n}.example.com/v1/*:get,post",
    "http:*.tenant{n}.example.com:get",
    "tool:tool-{n}:call",
    "tool:team{n}-*:call",
    "ipc:topic/news.t{n}.*:publish",
)


async def run(report: Report, long: bool) -> None:
    few, many = policy(FEW), policy(MANY)
    calls = requests()
    for one in (few, many):
        for name, role, need in calls:
            one.decide(name, role, need)
    series = {count: Series(f"decide, {count:,} rules", "µs") for count in (FEW, MANY)}
    for _ in range(ROUNDS * (4 if long else 1)):
        for count, one in ((FEW, few), (MANY, many)):
            series[count].samples.append(timed(lambda one=one: [one.decide(*call) for call in calls]) / CALLS)
    for each in series.values():
        report.add(each)
    least = {count: min(each.samples) for count, each in series.items()}
    walk = Series(f"a walk over {MANY:,} rules", "µs")
    for name, role, need in calls[:20]:
        walk.samples.append(timed(lambda name=name, role=role, need=need: walked(many, name, role, need)))
    report.add(walk)
    report.ratio(f"a walk / the index, {MANY:,} rules", walk, series[MANY])
    report.goal(f"{MANY:,} rules to {FEW}, least of each", least[MANY] / least[FEW], "≤", 1.5, "×")
    report.figure(f"to read and compile {MANY:,} rules", timed(lambda: policy(MANY)) / 1000, "ms")


def policy(count: int) -> Policy:
    agents = ('["*"]', '["role:worker"]', '["crawler"]')
    rules = (
        f'[[rule]]\nid = "r{n}"\neffect = "{("allow", "ask", "forbid")[n % 7 % 3]}"\n'
        f'what = ["{SHAPES[n % len(SHAPES)].format(n=n)}"]\nagents = {agents[n % 3]}\n'
        for n in range(count)
    )
    text = 'version = 1\ndefault = "capability"\n' + "".join(rules)
    return Policy([read(text.encode(), "bench.toml", Layer.OPERATOR)])


def requests() -> list[tuple[str, str, Need]]:
    """Half of them meet a rule that both policies have, half meet none."""
    chance = random.Random(5)
    made: list[tuple[str, str, Need]] = []
    for _ in range(CALLS):
        n = chance.choice((*range(FEW), *range(20_000, 20_000 + FEW)))
        made.append(
            (
                "crawler",
                "worker",
                chance.choice(
                    (
                        Need("file", "read", f"/work/p{n}/src/main.py"),
                        Need("file", "read", f"/work/p{n}/a/b/.env"),
                        Need("file", "read", f"/work/logs/app-{n}-7.txt"),
                        Need("http", "get", f"api{n}.example.com/v1/users"),
                        Need("http", "get", f"x.tenant{n}.example.com/"),
                        Need("tool", "call", f"tool-{n}"),
                        Need("tool", "call", f"team{n}-a"),
                        Need("ipc", "publish", f"topic/news.t{n}.x"),
                    )
                ),
            )
        )
    return made


def walked(policy: Policy, name: str, role: str, need: Need) -> int:
    return sum(
        any(subject.covers(name, role) for subject in rule.agents) and any(one.covers(need) for one in rule.what)
        for _, rule in policy.rules()
    )


def timed(work: Callable[[], object]) -> float:
    """Microseconds of this thread's CPU: neighbours do not count."""
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e6
