"""The gate: its steps 1 to 6 for an ordinary read, beside one 64-byte round trip over a socketpair.

A read of a small entry of the agent's own memory, with a policy of ten rules and with none, for one target again and
again and for a new one every time; then each step alone. What comes after step 6 (the record, the deed, the answer) is
in the benchmark `kernel`.
"""

import statistics

from benchmarks.authority import ROUNDS, round_trip
from benchmarks.measure import ROW, WARM, Report, Series, Step, in_rows

from agent_os.abi import frames
from agent_os.abi.states import Incarnation
from agent_os.abi.syscalls import BY_REQUEST, Read
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Layer
from agent_os.kernel.boot import boot
from agent_os.kernel.calls import Asked
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.passing import Passing
from agent_os.kernel.table import Agent

OP = BY_REQUEST[Read].number
RULES = [
    ("forbid", "file:/work/**/.env:read"),
    ("forbid", "mem:/mem/episodic/**:read"),
    ("ask", "tool:pay:call"),
    ("allow", "file:/work/**:read"),
    ("allow", "mem:/mem/**:read"),
    *(("forbid", f"http:host{number}.example.com:get") for number in range(5)),
]
TRIP = "64-byte round trip over a socketpair"
NOTHING = "nothing: the clock alone"
STEPS = ("policy", "labels", "budget", "approval")


async def run(report: Report, long: bool) -> None:
    kernel = await boot(store=SqliteStore(None), home=None, agents=False)
    try:
        measure(kernel, report, ROUNDS * 5 if long else ROUNDS)
    finally:
        await kernel.close()


def measure(kernel: Kernel, report: Report, rounds: int) -> None:
    agent = kernel.table.admit("bench", "native")
    kernel.authority.begin(agent.id, None)
    agent.become(Incarnation.RUNNING)
    kernel.furnish(agent)
    passed: list[Passing] = []
    kernel.gate._acting.begin = passed.append  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    prepare, trip = round_trip()
    subjects: dict[str, Step] = {TRIP: (prepare, trip)}
    subjects["no rules, known target"] = entered(kernel, agent, known=True, rules=0)
    subjects["10 rules, known target"] = entered(kernel, agent, known=True, rules=10)
    subjects["10 rules, new target"] = entered(kernel, agent, known=False, rules=10)
    subjects[NOTHING] = (int, int)
    for step in STEPS:
        subjects[f"step {step} alone"] = alone(kernel, agent, step)
    series = in_rows(subjects, rounds, after=passed.clear)
    told(report, series)


def told(report: Report, series: dict[str, Series]) -> None:
    for each in series.values():
        report.add(each)
    for name in ("no rules, known target", "10 rules, known target"):
        report.ratio(f"gate / round trip, {name}, p50", series[name], series[TRIP])
        report.goal(f"gate, {name}, to a round trip, best row", best(series[name]) / best(series[TRIP]), "≤", 3, "×")
    # A path that was never seen is taken apart and looked at first, which is most of it.
    report.ratio("gate / round trip, 10 rules, new target, p50", series["10 rules, new target"], series[TRIP])
    steps = sum(best(series[f"step {step} alone"]) - best(series[NOTHING]) for step in STEPS)
    report.goal("steps 3 to 6 together, known target, best row", steps, "≤", 3, "µs")


def best(series: Series) -> float:
    """The middle of the quickest row: the one in which no neighbour had the caches."""
    rows = (series.samples[at : at + ROW] for at in range(0, len(series.samples), ROW))
    return min(map(statistics.median, rows))


def ruled(kernel: Kernel, count: int) -> None:
    rules = "".join(
        f'[[rule]]\nid = "r{number}"\neffect = "{effect}"\nwhat = ["{what}"]\n'
        for number, (effect, what) in enumerate(RULES[:count])
    )
    text = f'version = 1\ndefault = "capability"\n{rules}'
    kernel.authority.policies.current.take(Policy([read(text.encode(), "bench", Layer.OPERATOR)]))


def entered(kernel: Kernel, agent: Agent, *, known: bool, rules: int) -> Step:
    now: list[int] = []

    def make(number: int) -> Asked:
        if number % ROW == ROW - WARM or not now:  # before the first of a row that is looked at
            ruled(kernel, rules)
            now.append(rules)
        path = f"/mem/working/entry_{0 if known else number}"
        return Asked(OP, frames.encode_body(Read(path=path)))

    def refused(value: object, error: object) -> None:
        raise AssertionError(f"an ordinary read was refused: {error}")

    return make, lambda asked: kernel.gate.enter(agent, asked, refused)


def alone(kernel: Kernel, agent: Agent, step: str) -> Step:
    """One step of a call that has passed the others before."""
    asked = Asked(OP, frames.encode_body(Read(path="/mem/working/entry_0")))
    made: list[Passing] = []

    def make(number: int) -> Passing:
        if not made:
            ruled(kernel, 10)
            made.append(kernel.gate.enter(agent, asked, lambda value, error: None))
        return made[0]

    return make, getattr(kernel.gate.steps, step).check
