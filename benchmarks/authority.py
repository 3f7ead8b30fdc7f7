"""Capabilities: a check beside one 64-byte round trip over a socketpair, delegating beside a check, revoking a tree.

A check is asked of 1, 3 and 10 handles, both again and again (which handle fitted is remembered) and for a new target
every time. Delegating is parsing a text that was not seen before, proving it and linking the handle.
"""

import statistics
import time
from socket import AF_UNIX, SOCK_STREAM, socketpair

from benchmarks.measure import ROW, Report, Series, Step, in_rows

from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.charges import reserve
from agent_os.kernel.authority.handles import Handle, Holdings, revoke
from agent_os.kernel.calls import Need

ROUNDS = 20
HELD = (1, 3, 10)
TREES = 7  # of 1 + 10 + 100 + 1,000 + 10,000 handles
MESSAGE = bytes(64)


async def run(report: Report, long: bool) -> None:
    rounds = ROUNDS * 5 if long else ROUNDS
    checks(report, rounds)
    revoking(report)


def checks(report: Report, rounds: int) -> None:
    """All subjects are sampled in turn, one call each, so that all meet the same neighbours."""
    subjects: dict[str, Step] = {"64-byte round trip over a socketpair": round_trip()}
    for count in HELD:
        subjects[f"check, {count} handles, known target"] = check(count, known=True)
        subjects[f"check, {count} handles, new target"] = check(count, known=False)
    subjects["delegate: parse, prove, link"] = delegate()
    subjects["delegate with three constraints"] = delegate("{count:5,rate:10/s,expiry:2099-01-01T00:00:00Z}")
    subjects["charge a chain of four handles, three limits"] = charge()
    series = in_rows(subjects, rounds)
    for each in series.values():
        report.add(each)
    wire = series["64-byte round trip over a socketpair"].p50
    for count in HELD:
        for target in ("known", "new"):
            slow = p99(series[f"check, {count} handles, {target} target"])
            report.goal(f"check of {count} handles, {target} target, p99 to a round trip", slow / wire, "≤", 1, "×")
    check_10 = series["check, 10 handles, new target"]
    ratio = report.ratio("delegate / check of 10, p50", series["delegate: parse, prove, link"], check_10)
    report.goal("delegate, to a check of 10 handles, p50", ratio, "≤", 10, "×")
    check_1 = series["check, 1 handles, new target"]
    report.ratio("delegate / check of 1, p50", series["delegate: parse, prove, link"], check_1)


def p99(series: Series) -> float:
    """Of each row of samples; the middle one of all rows, so that a neighbour's burst is not taken for ours."""
    rows = [sorted(series.samples[at : at + ROW]) for at in range(0, len(series.samples), ROW)]
    return statistics.median(row[round(ROW * 0.99) - 1] for row in rows)


def round_trip() -> Step:
    one, other = socketpair(AF_UNIX, SOCK_STREAM)

    def once(_: object) -> None:
        one.send(MESSAGE)
        other.send(other.recv(64))
        one.recv(64)

    return int, once


def holdings(count: int) -> Holdings:
    """The last one fits: every other is looked at before."""
    held = Holdings("a", ())
    held.grant(parse("file:/work/**:read,write"), "operator")
    for number in range(count - 1):
        held.grant(parse(f"file:/data/{number}/**:read"), "operator")
    return held


def check(count: int, *, known: bool) -> Step:
    """The need is made just before, as by the gate."""
    held = holdings(count)
    return lambda number: [Need("file", "read", f"/work/src/module_{0 if known else number}.py")], held.find


def delegate(constraints: str = "") -> Step:
    held, to = holdings(1), Holdings("b", ())

    def text(number: int) -> str:
        if number % 50 == 0:  # else the receiver grows without end, which nobody does
            to.revoke_all()
        return f"file:/work/part_{number}/**:read{constraints}"

    return text, lambda given: held.delegate(given, to)


def charge() -> Step:
    held = Holdings("a", ())
    held.grant(parse("llm:*:call{tokens:1000000000,cost:100000,rate:900000000/s}"), "operator")
    last: list[Handle] = []
    for name in "bcd":
        below = Holdings(name, ())
        last = held.delegate("llm:*:call", below)
        held = below
    return int, lambda _: reserve(last, {"tokens": 500, "cost": 0.01}).settle({"tokens": 300, "cost": 0.004})


def revoking(report: Report) -> None:
    series = Series("revoke 11,111 handles", "ms")
    for _ in range(TREES):
        root, count = tree()
        began = time.perf_counter()
        done = revoke(root)
        series.samples.append((time.perf_counter() - began) * 1000)
        if len(done.handles) != count or count != 11_111:
            report.fail("revoke", f"{len(done.handles)} of {count} handles were revoked")
    report.add(series)
    report.goal("revoke 11,111 handles, best", min(series.samples), "≤", 20, "ms")


def tree() -> tuple[Handle, int]:
    top = Holdings("a", ())
    root = top.grant(parse("file:/work/**:read{depth:8}"), "operator")
    level, count = [top], 1
    wanted = parse("file:/work/**:read")
    for _ in range(4):
        below: list[Holdings] = []
        for held in level:
            for _ in range(10):
                child = Holdings("b", ())
                held.delegate(wanted, child)
                below.append(child)
        level, count = below, count + len(below)
    return root, count
