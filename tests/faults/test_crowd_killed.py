"""A crowd of real agents under random kills, and kill -9 of their kernel in the middle of it: what was declared is so.

Every restart is within policy, over all kernels; nobody spends more than it may; nobody is lost, alive twice or left
over; a crash loop is not forgiven. 30 agents for 10 s; with AGENT_OS_SOAK 200 for 60 s.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import EBUSY, ESRCH
from agent_os.abi.syscalls import Apply, Budgets, Declared, Down, Inspect, Restart, Stop
from agent_os.client.wire import Client
from agent_os.kernel.recorded import decode_any
from faults.daemons import Daemon, together
from faults.ledger import Ledger
from faults.world import SOAK, VOUCHED
from journals import opened
from leftovers import adopt_orphans, becomes_true, cgroups, processes

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]
AGENTS, SECONDS, KERNELS = (200, 60.0, 2) if SOAK else (30, 10.0, 2)
FEWEST = 20  # strikes
STRIKERS = 4  # at a time: some wait for an agent to stop
PATIENCE = 120.0  # seconds; a limit, never a measure
MOST = 4  # restarts in a row
PURSE, SHARED = 20, 30  # tool calls: of one agent; of a supervisor with all below it
POLICIES = ("on_failure", "always", "never")
STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")
OVER = ("stopped", "completed", "failed", "quarantined")
LOOP_MS = int(SECONDS * 50)  # of the crash loop, so that it lasts beyond the first kernel
SCRIPT = Path(__file__).with_name("fleet_process.py")

SPENDER = """
import os
from agent_os import agent
from agent_os.abi.errors import EBUDGET

@agent
async def main(ctx):
    try:
        for number in range(1000):
            await ctx.call("verifiable", n=f"{os.environ['WHO']}-{number}")
            await ctx.sleep(0.02)
    except EBUDGET:
        await ctx.sleep(100_000)
"""
HEAD = 'name = "{name}"\nrole = "{role}"\n'
TOOLS = 'tools = ["verifiable"]\n'
MAY = "[capabilities]\ncan_exec_tools = true\n"
SLEEPS = '[program]\nargv = ["/bin/sleep", "100000"]\n'
SPENDS = '[program]\nentry = "spender.py:main"\nenv = {{ WHO = "{name}" }}\n[budget]\ntool_calls = {purse}\n'
HEALTH = """
[health]
restart_policy = "{policy}"
max_restarts = {most}
stable_secs = 0.5
backoff = {{ base_ms = 20, cap_ms = 200, jitter = "none" }}
"""
CRASHER = f"""
name = "crasher"
role = "worker"
[program]
argv = ["/bin/sh", "-c", "exit 3"]
[health]
max_restarts = {MOST}
backoff = {{ base_ms = {LOOP_MS}, cap_ms = 100_000, jitter = "none" }}
"""


def spends(name: str) -> bool:
    return int(name[1:]) % 3 == 0


def crowd(rng: random.Random) -> dict[str, str]:
    """Manifests by name. The first twelve have supervisors, one of which has little to spend."""
    texts: dict[str, str] = {"crasher": CRASHER}
    names = [f"a{number}" for number in range(AGENTS)]
    for name in names:
        head, health = HEAD.format(name=name, role="worker"), HEALTH.format(policy=rng.choice(POLICIES), most=MOST)
        if spends(name):
            texts[name] = head + TOOLS + SPENDS.format(name=name, purse=PURSE) + health + MAY
        else:
            texts[name] = head + SLEEPS + health
    for number, strategy in enumerate(STRATEGIES):
        name, below = f"boss{number}", names[number * 4 : number * 4 + 4]
        head = HEAD.format(name=name, role="supervisor") + 'agency = "role"\n' + TOOLS + MAY
        group = f"[supervision]\nstrategy = '{strategy}'\nintensity = 1000\nchildren = {below}\n"
        texts[name] = head + group + f"[budget]\ntool_calls = {SHARED}\n"
    return texts


class Struck:
    """What was done to a crowd, one kernel after the other."""

    def __init__(self, daemon: Daemon, rng: random.Random) -> None:
        self.daemon, self.rng = daemon, rng
        self.texts = crowd(rng)
        self.names = [name for name in self.texts if name[0] == "a"]
        self.stopped: set[str] = set()
        self.strikes = 0

    async def declare(self, client: Client) -> None:
        (self.daemon.project / "spender.py").write_text(SPENDER)
        files = {str(self.daemon.project / f"{name}.agent.toml"): text for name, text in self.texts.items()}
        await client.call(Apply(files=files))

    async def strike_for(self, client: Client, seconds: float) -> None:
        await asyncio.gather(*(self._strike_for(client, seconds) for _ in range(STRIKERS)))

    async def _strike_for(self, client: Client, seconds: float) -> None:
        end, tasks = time.monotonic() + seconds, list[asyncio.Task[None]]()
        enough = self.strikes + FEWEST // KERNELS  # a busy host needs longer for them
        while time.monotonic() < end or self.strikes < enough:
            name = self.rng.choice(self.names)
            match self.rng.random():
                case chance if chance < 0.94:
                    await self._kill(client, name)
                case chance if chance < 0.95:
                    self.stopped.add(name)  # from here on no other striker restarts it: the last word counts
                    await client.call(Stop(agent=name, force=self.rng.random() < 0.5))
                case _ if name not in self.stopped:
                    tasks.append(asyncio.create_task(_restarted(client, name)))
                case _:
                    pass
            await asyncio.sleep(self.rng.uniform(0.0, 0.2))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _kill(self, client: Client, name: str) -> None:
        """By the host, which asks nobody. Only what descends from the kernel: pids are used again."""
        with suppress(ESRCH, ProcessLookupError, FileNotFoundError):
            pid = (await client.call(Inspect(agent=name)))["pid"]
            if pid is None:
                return
            handle = os.pidfd_open(pid)
            try:
                if self.daemon.pids[-1] in _ancestors(pid):
                    signal.pidfd_send_signal(handle, self.rng.choice((signal.SIGKILL, signal.SIGSEGV)))
                    self.strikes += 1
            finally:
                os.close(handle)

    async def settled(self, client: Client) -> list[dict[str, Any]]:
        """Their rows, once everybody is what is wanted of it."""
        deadline = time.monotonic() + PATIENCE
        while (rows := (await client.call(Declared()))["agents"]) and (wrong := [one for one in rows if not _is(one)]):
            assert time.monotonic() < deadline, "\n".join(str(one) for one in wrong)
            await asyncio.sleep(0.1)
        return rows


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


async def _restarted(client: Client, name: str) -> None:
    with suppress(EBUSY):  # it failed, was stopped, or its supervisor went meanwhile
        await client.call(Restart(agent=name))


def _is(row: dict[str, Any]) -> bool:
    """As wanted: it lives and is ready, or it has ended for good and nothing of it lives. One in a crash loop is ready
    as well, as often as it is begun again."""
    loops = row["id"] == "default/crasher"
    if row["wanted"] and not loops and row["state"] not in OVER:
        return row["state"] == "active" and row["ready"]
    return row["state"] in OVER and row["pid"] is None


def with_client(daemon: Daemon, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(2 * PATIENCE), daemon.client() as client:
            return await work(client)

    return asyncio.run(main())


def test_a_crowd_under_kills_of_agents_and_kernels_is_as_declared_and_within_policy_and_budget(tmp_path: Path) -> None:
    adopt_orphans()
    daemon = Daemon(tmp_path, (str(SCRIPT),))
    daemon.home.mkdir(mode=0o700)
    (daemon.home / "policy.toml").write_text(VOUCHED)
    struck = Struck(daemon, random.Random(int(os.environ.get("SEED", "1"))))
    daemon.start()
    with_client(daemon, struck.declare)
    for last in [*[False] * (KERNELS - 1), True]:
        with_client(daemon, lambda client: struck.strike_for(client, SECONDS / KERNELS))
        if not last:
            daemon.kill()
            assert becomes_true(lambda: processes() == {}, 20), f"outlived its kernel: {processes()}"
            daemon.start()
    rows = with_client(daemon, struck.settled)
    accounts = with_client(daemon, lambda client: client.call(Budgets()))
    with_client(daemon, lambda client: client.call(Down(grace_s=2)))
    assert daemon.process is not None
    daemon.process.wait(PATIENCE)

    assert {row["id"] for row in rows} == {"system/root", *(f"default/{name}" for name in struck.texts)}
    states = {row["id"].partition("/")[2]: row["state"] for row in rows}
    assert all(states[name] != "active" for name in struck.stopped)
    assert states["crasher"] == "failed"
    assert becomes_true(lambda: processes() == {}, 20), processes()
    assert [group for pid in daemon.pids for group in cgroups(pid)] == []
    with opened(daemon.home) as journal:
        entries = list(journal.scan())
    lives = [entry for entry, _ in entries if entry.kind == Kind.SPAWN]
    spent = spendings(Ledger(daemon.home / "ledger"))
    print(f"{struck.strikes} strikes, {len(lives)} lives of {len(rows) - 1} agents, {spent.total()} spent")
    assert struck.strikes >= FEWEST, "nothing was struck, so nothing was shown"
    assert together(entry for entry, _ in entries) == []
    assert max(Counter((entry.agent, entry.inc) for entry in lives).values()) == 1, "a number was given to two lives"
    assert out_of_policy(entries) == []
    assert crash_loop_over_kernels(entries) <= MOST
    assert over_budget(spent) == {}
    assert max(spent.values()) == PURSE, "nobody came to the end of its purse, so nothing was shown"
    assert [one for one in accounts["accounts"] if _overdrawn(one)] == []


def spendings(ledger: Ledger) -> Counter[str]:
    """By agent: what really happened, counted outside of the kernel."""
    counts = ledger.counts()
    assert max(counts.values()) == 1, "an effect happened twice"
    return Counter(name.partition(":")[2].rpartition("-")[0] for name in counts)


def over_budget(spent: Counter[str]) -> dict[str, int]:
    groups = {f"boss{number}": [f"a{one}" for one in range(number * 4, number * 4 + 4)] for number in range(3)}
    below = {boss: sum(spent[name] for name in names) for boss, names in groups.items()}
    return {name: count for name, count in spent.items() if count > PURSE} | {
        boss: count for boss, count in below.items() if count > SHARED
    }


def _overdrawn(account: dict[str, Any]) -> bool:
    return any(use["limit"] is not None and use["spent"] + use["held"] > use["limit"] for use in account["uses"])


def out_of_policy(entries: list[tuple[Entry, bytes | None]]) -> list[object]:
    """Restarts that no policy allows: of one that is never restarted, or more in a row than allowed."""
    wrong: list[object] = []
    for entry, body in entries:
        if entry.kind == Kind.EXIT and body and (told := decode_any(body)).get("decided_on"):
            policy, decision = told["decided_on"]["child"]["terms"]["policy"], told["decision"]
            if decision["act"] == "restart" and (policy == "never" or decision["consecutive"] > MOST):
                wrong.append(told)
    return wrong


def crash_loop_over_kernels(entries: list[tuple[Entry, bytes | None]]) -> int:
    """How often the crasher was restarted. A kernel has begun in the middle of that, or nothing was shown."""
    acts = [
        (entry.seq, decode_any(body)["decision"]["act"])
        for entry, body in entries
        if entry.agent == "default/crasher" and entry.kind == Kind.EXIT and body
    ]
    boots = [entry.seq for entry, _ in entries if entry.kind == Kind.BOOT]
    assert any(acts[0][0] < boot < acts[-1][0] for boot in boots), "no kernel died during the crash loop"
    return [act for _, act in acts].count("restart")
