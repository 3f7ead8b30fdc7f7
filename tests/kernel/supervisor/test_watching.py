"""Health of real processes: how they come up, are asked, fall silent, repeat themselves, and run out of time."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EINVAL
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import Incarnation
from agent_os.abi.syscalls import Decide, Tell
from agent_os.kernel import asking
from agent_os.kernel.running import Run
from agent_os.kernel.supervisor import watching
from agent_os.kernel.supervisor.terms import State
from agent_os.sandbox.hierarchies import detect
from kernel.serving import until
from kernel.supervisor.yard import PLAIN, POLICY, QUIET, Yard, drive, never, sh

pytestmark = pytest.mark.integration

# Coming up.


def test_a_command_is_ready_at_once_unless_its_manifest_says_otherwise(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(program=sh(QUIET))
        agent = await yard.ready()
        assert agent.life is Incarnation.RUNNING
        assert [one["by"] for one in yard.events("up")] == ["immediate"]

    drive(tmp_path, body)


def test_a_command_is_ready_when_its_line_comes(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        script = "while [ ! -e go ]; do sleep 0.05; done; echo listening on 80; sleep 600"
        health = {"ready": "log:^listening on [0-9]+$"}
        await yard.declare(program=sh(script), health=health, sandbox={"workspace": "bind"})
        agent = await yard.started()
        assert agent.life is Incarnation.STARTING
        assert not yard.kernel.fleet.is_ready(agent.id)
        (yard.base / "go").touch()
        await yard.ready()
        assert agent.life is Incarnation.RUNNING

    drive(tmp_path, body)


def test_a_command_is_ready_while_another_succeeds_beside_it_and_is_not_restarted_when_it_fails(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        health = {"ready": "exec:test -e /tmp/up", "check_interval_secs": 0.1, "timeout_secs": 2}
        script = "touch /tmp/up; while [ ! -e down ]; do sleep 0.05; done; rm /tmp/up down; sleep 1.5; touch /tmp/up; "
        await yard.declare(program=sh(script + QUIET), health=health, sandbox={"workspace": "bind"})
        agent = await yard.ready()
        (yard.base / "down").touch()
        await until(lambda: not yard.kernel.fleet.is_ready(agent.id))
        assert agent.life is Incarnation.RUNNING
        assert agent.watch
        assert str(agent.watch.health) == "degraded: test ended 1"
        await yard.ready()
        assert str(agent.watch.health) == "healthy"
        assert yard.record().incarnation == 1
        await until(lambda: [len(yard.events(one)) for one in ("unready", "ready")] == [1, 2])

    drive(tmp_path, body)


def test_a_command_beside_it_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        health = {"ready": "exec:sleep 599", "timeout_secs": 0.2, "start_timeout_secs": 30}
        await yard.declare(program=sh("exec sleep 600"), health=health)
        agent = await yard.started()
        assert isinstance(agent.running, Run)
        guest, seen = agent.running.guest, set[int]()

        def several_came() -> bool:
            seen.update(one.pid for one in guest.members())
            return len(seen) > 6

        await until(several_came)
        assert len(guest.members()) <= 4  # its init, itself, a probe, and perhaps one that is being buried

    drive(tmp_path, body)


def test_a_command_is_ready_when_it_listens(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        listen = "import socket, time; s = socket.create_server(('127.0.0.1', 8099)); time.sleep(600)"
        program = sh(f'while [ ! -e go ]; do sleep 0.05; done; exec python3 -c "{listen}"')
        await yard.declare(program=program, health={"ready": "port:8099"}, sandbox={"workspace": "bind"})
        agent = await yard.started()
        assert agent.watch
        assert not agent.watch.up
        (yard.base / "go").touch()
        await yard.ready()

    drive(tmp_path, body)


def test_an_author_s_agent_is_ready_by_its_first_call(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(sandbox={"workspace": "bind"})
        agent = await yard.started()
        await until(lambda: agent.line is not None)  # HELLO is no call of its program
        assert agent.watch
        assert not agent.watch.up
        (yard.base / "go").touch()
        await yard.ready()
        assert [one["by"] for one in yard.events("up")] == ["notify"]

    program = "import os\n@agent\nasync def p(ctx):\n    while not os.path.exists('go'):\n        time.sleep(0.05)\n"
    drive(tmp_path, body, program + "    await ctx.now()\n    await ctx.sleep(600)\n")


def test_an_agent_that_wants_to_says_itself_that_it_is_ready(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(sandbox={"workspace": "bind"})
        agent = await yard.started()
        await until(lambda: agent.delivered > 5)  # calls, and none of them counts
        assert agent.watch
        assert not agent.watch.up
        (yard.base / "go").touch()
        await yard.ready()

    program = "import os\n@agent(says_ready=True)\nasync def p(ctx):\n    while not os.path.exists('go'):\n"
    drive(tmp_path, body, program + "        await ctx.sleep(0.02)\n    await ctx.ready()\n    await ctx.sleep(600)\n")


def test_a_program_that_cannot_be_loaded_never_was_ready(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(health=never())
        assert (await yard.over())["class"] == "error"
        assert not yard.events("up")

    drive(tmp_path, body, "this is no python\n")


def test_an_agent_that_lives_again_is_ready_when_it_is_through_its_record(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(health={"backoff": {"base_ms": 1, "jitter": "none"}})
        agent = await yard.ready()
        await until(lambda: agent.delivered > 20)
        assert isinstance(agent.running, Run)
        agent.running.host_signal(signal.SIGKILL)
        await until(lambda: yard.record().incarnation == 2)
        again = await yard.ready()
        assert again is not agent
        assert (again.incarnation, again.life) == (2, Incarnation.RUNNING)

    program = "@agent(says_ready=True)\nasync def p(ctx):\n    await ctx.ready()\n    while True:\n"
    drive(tmp_path, body, program + "        await ctx.sleep(0.01)\n")


def test_what_cannot_be_understood_is_refused_with_its_key_before_anything_starts(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        for ready, runs in (("log:(", sh(QUIET)), ("notify", sh(QUIET)), ("port:70000", sh(QUIET))):
            with pytest.raises(EINVAL) as caught:
                await yard.declare(program=runs, health={"ready": ready})
            assert "ready" in str(caught.value)
        assert yard.record() is None

    drive(tmp_path, body)


# Deadlines.


def test_one_that_does_not_come_up_in_time_ends_for_that(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(program=sh(QUIET), health=never(ready="log:never", start_timeout_secs=0.3))
        ended = await yard.over()
        assert (ended["class"], ended["code"]) == ("start_timeout", -1)
        assert ended["reason"] == "it was not ready within 0.3 s"
        await until(lambda: yard.record().state is State.FAILED)
        assert [one["class"] for one in yard.events("deadline")] == ["start_timeout"]

    drive(tmp_path, body)


def test_one_that_runs_too_long_ends_for_that(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(program=sh(QUIET), health=never(), resources={"max_runtime_secs": 0.5})
        assert (await yard.over())["class"] == "run_timeout"

    drive(tmp_path, body)


@pytest.mark.parametrize("deaf", [False, True], ids=["hears", "deaf"])
def test_an_agent_that_falls_silent_is_aborted_and_then_killed(tmp_path: Path, deaf: bool) -> None:
    async def body(yard: Yard) -> None:
        began = time.monotonic()
        await yard.declare(health=never(watchdog_secs=0.5))
        ended = await yard.over()
        assert ended["class"] == "watchdog"
        assert ended["reason"].startswith("it was silent for 0.5 s")
        assert (time.monotonic() - began > 5) == deaf
        assert len(yard.events("deadline")) == (2 if deaf else 1)

    ignoring = "    signal.signal(signal.SIGABRT, signal.SIG_IGN)\n" if deaf else ""
    drive(tmp_path, body, f"@agent\nasync def p(ctx):\n{ignoring}    await ctx.now()\n    time.sleep(600)\n")


def test_no_watchdog_runs_while_the_kernel_works_on_a_call(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(health=never(watchdog_secs=0.4))
        assert (await yard.over())["class"] == "normal"

    program = "@agent\nasync def p(ctx):\n    for _ in range(3):\n        await ctx.sleep(1)\n        time.sleep(0.1)\n"
    drive(tmp_path, body, program)


def test_no_time_passes_for_an_agent_that_is_held(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(program=sh(QUIET), health=never(watchdog_secs=1), resources={"max_runtime_secs": 1})
        agent = await yard.ready()
        await yard.client.call(Tell(agent="one", signal=AgentSignal.SIGSTOP))
        await asyncio.sleep(2.5)  # longer than each limit: that nothing happens is what is claimed
        assert not agent.exit
        await yard.client.call(Tell(agent="one", signal=AgentSignal.SIGCONT))
        assert (await yard.over())["class"] in ("watchdog", "run_timeout")

    drive(tmp_path, body)


def test_an_agent_that_waits_for_a_person_longer_than_every_timeout_is_not_restarted(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        health = {"watchdog_secs": 0.3, "check_interval_secs": 0.1, "timeout_secs": 0.1, "start_timeout_secs": 2}
        await yard.declare(health=health, resources={"max_runtime_secs": 3})
        agent = await yard.ready()
        await until(lambda: bool(yard.kernel.approvals.pending()))
        assert agent.watch
        assert agent.watch.waiting
        await asyncio.sleep(4)
        assert not agent.exit
        assert yard.record().incarnation == 1
        told = asking.told(yard.kernel.approvals.pending()[0])
        await yard.client.call(Decide(approval=told["id"], outcome="approve", digest=told["digest"]))
        assert (await yard.over())["class"] == "normal"

    program = "@agent\nasync def p(ctx):\n    await ctx.now()\n    await ctx.write('/mem/working/asked', 'x')\n"
    ping = "@p.on_ping\ndef well(ctx):\n    return True\n"
    drive(tmp_path, body, program + ping, POLICY)


def test_one_that_starts_can_be_stopped_and_not_held(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(program=sh(QUIET), health={"ready": "log:never"})
        agent = await yard.started()
        with pytest.raises(EBUSY) as caught:
            await yard.client.call(Tell(agent="one", signal=AgentSignal.SIGSTOP))
        assert caught.value.code == "state"
        assert agent.life is Incarnation.STARTING
        await yard.kernel.fleet.stop("default/one", "test")
        assert agent.exit
        assert agent.exit.exit_class == "requested"

    drive(tmp_path, body)


# Asked, and repeating itself.


def test_an_agent_that_says_it_is_not_well_ends_after_the_third_time(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(health=never(check_interval_secs=0.2))
        ended = await yard.over()
        assert (ended["class"], ended["reason"]) == ("probe", "the database is gone")
        pings = [one for one in yard.told(Kind.DELIVER) if one["type"] == "ping"]
        assert len(pings) == 3

    ping = "@p.on_ping\nasync def well(ctx):\n    return 'the database is gone'\n"
    drive(tmp_path, body, PLAIN + ping)


def test_an_agent_that_does_not_answer_ends_and_one_that_does_goes_on(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        health = never(check_interval_secs=0.2, timeout_secs=0.2)
        await yard.declare("good", program={"entry": "p.py:good"}, health=health)
        await yard.declare("stuck", program={"entry": "p.py:stuck"}, health=health)
        ended = await yard.over("stuck")
        assert (ended["class"], ended["reason"]) == ("probe", "no answer within 0.2 s")
        await until(lambda: len(yard.told(Kind.DELIVER, "good")) > 5)
        assert yard.record("good").state is State.ACTIVE

    program = """
@agent
async def good(ctx):
    await ctx.sleep(600)

@agent
async def stuck(ctx):
    await ctx.now()
    time.sleep(600)

good.on_ping(lambda ctx: True)
stuck.on_ping(lambda ctx: True)
"""
    drive(tmp_path, body, program)


def test_an_agent_that_repeats_a_call_is_told_and_then_ended(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        await yard.declare(health=never(max_repeat_calls=3))
        ended = await yard.over()
        assert ended["class"] == "probe"
        assert ended["reason"].startswith("loop: it called nothing with the same arguments 6 times")
        assert len(yard.events("repeats")) == 1
        assert [one["count"] for one in yard.told(Kind.DELIVER) if one["type"] == "repeats"] == [3]

    program = """
@agent
async def p(ctx):
    for number in range(600):
        try:
            await ctx.call("nothing", of=min(number, 5))  # differs at first
        except Exception:
            pass
"""
    drive(tmp_path, body, program)


# Its share of the machine.


def test_use_near_the_limit_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "memory" not in detect().controllers:
        pytest.skip("no memory controller that we may use")
    monkeypatch.setattr(watching, "SAMPLE_SECS", 0.05)

    async def body(yard: Yard) -> None:
        await yard.declare(health=never(), resources={"max_memory_mb": 128})
        await yard.ready()
        await until(lambda: bool(yard.events("resource_warning")))
        (warned,) = yard.events("resource_warning")
        assert (warned["resource"], warned["limit"]) == ("memory", 128 << 20)
        assert warned["value"] >= 128 * 4 // 5 << 20
        await until(lambda: any(one["type"] == "resource_warning" for one in yard.told(Kind.DELIVER)))
        await asyncio.sleep(0.3)  # several more samples: that nothing is told again is what is claimed
        assert len(yard.events("resource_warning")) == 1

    fill = "@agent\nasync def p(ctx):\n    await ctx.now()\n    block = bytearray(96 << 20)\n    await ctx.sleep(600)\n"
    drive(tmp_path, body, fill)


def test_a_disk_that_fills_up_is_told_before_it_is_full(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        fill = "head -c 9000000 /dev/zero > full; sleep 600"
        await yard.declare(program=sh(fill), sandbox={"workspace": "overlay"}, resources={"max_disk_mb": 10})
        await until(lambda: bool(yard.events("resource_warning")))
        (warned,) = yard.events("resource_warning")
        assert (warned["resource"], warned["limit"]) == ("disk", 10 << 20)
        assert yard.record().state is State.ACTIVE

    drive(tmp_path, body)


def test_a_higher_priority_is_a_larger_share(tmp_path: Path) -> None:
    if "cpu" not in detect().controllers:
        pytest.skip("no cpu controller that we may use")

    async def body(yard: Yard) -> None:
        found: dict[str, tuple[int, int]] = {}
        for priority in ("low", "normal", "high", "critical"):
            await yard.declare(priority, program=sh(QUIET), resources={"priority": priority})
            agent = await yard.ready(priority)
            assert isinstance(agent.running, Run)
            process = agent.running.guest.process
            assert process.group
            place = next(path for each, path in process.group.places if "cpu" in each.controllers)
            weight = place / "cpu.weight"
            share = (
                int(weight.read_text()) if weight.exists() else int((place / "cpu.shares").read_text()) * 100 // 1024
            )
            inside = agent.running.guest.members()[-1].pid
            found[priority] = share, int(Path(f"/proc/{inside}/oom_score_adj").read_text())
        own = int(Path("/proc/self/oom_score_adj").read_text())
        assert {name: share for name, (share, _) in found.items()} == {
            "low": 25,
            "normal": 100,
            "high": 300,
            "critical": 800,
        }
        ranks = [rank for _, rank in found.values()]
        assert ranks == sorted(ranks, reverse=True)
        assert ranks[-1] == own

    drive(tmp_path, body)


# Death.


def test_a_killed_agent_is_noticed_within_100_ms_and_nobody_looks_for_it(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        took: list[float] = []
        for number in range(5):
            name = f"k{number}"
            await yard.declare(name, program=sh(QUIET), health=never())
            agent = await yard.ready(name)
            assert isinstance(agent.running, Run)
            exited = agent.running.guest.process.exited
            began = time.monotonic()
            agent.running.host_signal(signal.SIGKILL)
            await asyncio.shield(exited)
            took.append(time.monotonic() - began)
            await yard.over(name)
        assert sorted(took)[1] < 0.1, took  # twice is no chance; others use the machine

    drive(tmp_path, body)
