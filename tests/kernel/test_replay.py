"""A program that is run again meets the same world in the same order, or is told that it is not the same program."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import ENONDET
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Now, Write
from agent_os.kernel import replay as module
from agent_os.kernel.calls import Asked
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import body, decode_any
from agent_os.kernel.replay import Replay, deliveries
from agent_os.kernel.signals import KERNEL
from faults.inprocess import acks, kernel_with_processes, started
from faults.processes import Processes
from peer import until

pytestmark = pytest.mark.uid_free("the kernel decides the same for every user")

CALL = frames.encode_body(Now())


def answer(seq: int, pos: str, seen: int, raw: bytes = CALL, op: int = 28) -> tuple[Entry, bytes]:
    kept = body(raw, frames.body(seq), None)
    return Entry(seq, "default/a", seq, 1, 0, 0, Kind.RESULT, op, pos=pos, seen=seen), kept


def push(seq: int) -> tuple[Entry, bytes]:
    said = {"signal": int(AgentSignal.SIGUSR2), "value": seq, "sender": "kernel"}
    return Entry(seq, "default/a", seq, 1, 0, 0, Kind.SIGNAL), frames.encode_body(said)


class Stage:
    """A replay, and what came out of it in order."""

    def __init__(self, *history: tuple[Entry, bytes]) -> None:
        self.out: list[Any] = []
        self.difference: ENONDET | None = None
        self.live: list[str | None] | None = None
        self.replay = Replay(deliveries(history), live=self._live, push=self._push, differs=self._differs)

    def call(self, pos: str, raw: bytes = CALL, op: int = 28) -> None:
        self.replay.call(Asked(op, raw, pos=pos), lambda value, error: self.out.append(decode_any(value)))

    def _live(self, held: Any) -> None:
        self.live = [asked.pos for asked, _ in held]

    def _push(self, what: str, said: Any) -> None:
        self.out.append(f"push {said['value']}")

    def _differs(self, error: ENONDET) -> None:
        self.difference = error


def on_stage(*history: tuple[Entry, bytes]) -> Any:
    """Decorates what happens on it."""

    def run(test: Any) -> None:
        async def main() -> None:
            stage = Stage(*history)
            stage.replay.start()
            test(stage)
            stage.replay.stop()

        asyncio.run(main())

    return run


def test_answers_come_in_the_recorded_order_whatever_the_order_of_the_calls() -> None:
    @on_stage(answer(1, "0.1:1", 0), answer(2, "0.0:1", 0))
    def _(stage: Stage) -> None:
        stage.call("0.0:1")
        assert stage.out == []
        stage.call("0.1:1")
        assert stage.out == [1, 2]
        assert stage.live == []


def test_a_push_waits_for_every_call_that_had_not_seen_it() -> None:
    @on_stage(answer(1, "0:1", 0), push(2), answer(3, "0:2", 1), answer(4, "0:3", 2))
    def _(stage: Stage) -> None:
        stage.call("0:1")
        assert stage.out == [1]
        stage.call("0:2")
        assert stage.out == [1, "push 2"]
        stage.call("0:3")  # which was made before the answer to the one before it
        assert stage.out == [1, "push 2", 3, 4]


def test_a_call_that_the_record_does_not_know_waits_until_it_is_live() -> None:
    @on_stage(answer(1, "0:1", 0))
    def _(stage: Stage) -> None:
        stage.call("0.5:1")
        assert (stage.out, stage.live) == ([], None)
        stage.call("0:1")
        assert (stage.out, stage.live) == ([1], ["0.5:1"])


@pytest.mark.parametrize("other", [(frames.encode_body(Write(path="/x")), 2), (frames.encode_body({"n": 1}), 28)])
def test_another_call_at_the_same_place_is_shown_beside_the_record(other: tuple[bytes, int]) -> None:
    @on_stage(answer(1, "0:1", 0))
    def _(stage: Stage) -> None:
        stage.call("0:1", *other)
        assert stage.difference
        facts = stage.difference.detail
        assert (facts["pos"], facts["entry"], facts["recorded"], facts["recorded_body"]) == ("0:1", 1, "SYS_NOW", "{}")
        assert facts["called"] == {2: "SYS_WRITE", 28: "SYS_NOW"}[other[1]]
        assert facts["called_body"] != facts["recorded_body"]
        assert (stage.out, stage.live) == ([], None)


def test_a_program_that_does_not_come_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)

    async def main() -> None:
        stage = Stage(answer(1, "0:1", 0), answer(2, "0:2", 1))
        stage.replay.start()
        stage.call("0:1")
        await until(lambda: stage.difference is not None)
        assert stage.difference
        assert (stage.difference.code, stage.difference.detail["entry"]) == ("replay.stuck", 2)

    asyncio.run(main())


@pytest.mark.integration
def test_fifty_calls_at_once_with_shuffled_answers_killed_half_way_replay_clean(tmp_path: Path) -> None:
    async def test(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "shuffled", tmp_path, STEPS=50)
        ended = await kernel.wait_for(agent)
        assert ended["state"] == "completed", ended
        assert len(processes.started) == 2
        assert sorted(ended["result"]) == list(range(50))
        assert ended["result"] != list(range(50)), "nothing was shuffled"
        places = {name: set(told) for name, told in acks(tmp_path).items()}
        assert {len(told) for told in places.values()} == {1}, "the same call was answered at another place"
        assert sum(len(told) for told in acks(tmp_path).values()) == 75, "half of them came twice"

    kernel_with_processes(test, tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("program", "recorded", "called"),
    [
        ("clock_of_its_own", "SYS_WRITE", "SYS_WRITE"),
        ("changed_code", "SYS_WRITE", "SYS_REMOVE"),
        ("shorter", "SYS_WRITE", None),
    ],
)
def test_a_program_that_is_not_the_same_fails_and_nothing_runs(
    tmp_path: Path, program: str, recorded: str, called: str | None
) -> None:
    async def test(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, program, tmp_path, QUIET=1)
        ended = await kernel.wait_for(agent)
        again = kernel.table.find(agent.id)
        assert (ended["state"], again.exit and again.exit.exit_class) == ("failed", ExitClass.NONDETERMINISTIC)
        assert again.exit
        assert again.exit.difference
        assert (again.exit.difference["recorded"], again.exit.difference["called"]) == (recorded, called)
        _, kept = list(kernel.journal.scan(agent.id))[-1]
        assert decode_any(kept)["difference"] == again.exit.difference, "it is on the record, too"
        assert len(processes.started) == 2
        counts = kernel_with_processes.ledger.counts()
        assert counts["opaque:0"] == (0 if program == "shorter" else 1), "a driver was touched in a replay"

    kernel_with_processes(test, tmp_path)


@pytest.mark.integration
def test_no_driver_is_touched_and_random_is_the_same(tmp_path: Path) -> None:
    async def test(kernel: Kernel, processes: Processes) -> None:
        jitter = await started(kernel, "jitter", tmp_path)
        assert (await kernel.wait_for(jitter))["state"] == "completed"
        agent = await started(kernel, "effects", tmp_path, STEPS=3)
        await until(lambda: "random:2" in acks(tmp_path))
        before = kernel_with_processes.ledger.counts()
        os.kill(processes.started[-1].pid, signal.SIGKILL)
        assert (await kernel.wait_for(agent))["state"] == "completed"
        assert kernel_with_processes.ledger.counts() == before

    kernel_with_processes(test, tmp_path)


@pytest.mark.integration
def test_a_signal_that_comes_during_a_replay_comes_after_it(tmp_path: Path) -> None:
    """And is met again at the same place when the program is run once more."""

    async def test(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "counting", tmp_path)
        await until(lambda: len(acks(tmp_path)["count"]) > 200)
        os.kill(processes.started[0].pid, signal.SIGKILL)
        await agent.gone.wait()
        await until(lambda: len(processes.started) == 2 and kernel.table.find("counting").detail == "replaying")
        again = kernel.table.find("counting")
        sent = asyncio.create_task(kernel.signals.send(KERNEL, again, AgentSignal.SIGUSR2))
        ended = await kernel.wait_for(again)
        assert await sent
        assert ended["state"] == "completed", ended
        assert ended["result"] >= 200

    kernel_with_processes(test, tmp_path)
