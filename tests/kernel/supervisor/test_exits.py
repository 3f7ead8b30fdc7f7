"""Exit classes: what the operating system told and what the kernel did, made one class and one code."""

import signal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL, FailureSeverity
from agent_os.abi.failures import AgentFailure
from agent_os.abi.states import ExitClass
from agent_os.kernel.supervisor.exits import Classed, ExitReason, classify, graver, is_normal, read, reason, status_of

CLASSES = st.sampled_from(list(ExitClass))


@pytest.mark.parametrize(
    ("status", "success", "expected"),
    [
        (0, {0}, (ExitClass.NORMAL, 0)),
        (0, {3}, (ExitClass.NORMAL, 0)),
        (3, {0, 3}, (ExitClass.NORMAL, 3)),
        (3, {0}, (ExitClass.ERROR, 3)),
        (255, {0}, (ExitClass.ERROR, 255)),
        (-signal.SIGSEGV, {0}, (ExitClass.SIGNAL, -11)),
        (-signal.SIGKILL, {0}, (ExitClass.SIGNAL, -9)),
        (-signal.SIGTERM, {0, -15}, (ExitClass.NORMAL, -15)),
    ],
)
def test_an_exit_nobody_asked_for_is_classed_by_its_status(
    status: int, success: set[int], expected: tuple[ExitClass, int]
) -> None:
    assert classify(status, success=success) == expected


@pytest.mark.parametrize(
    ("code", "expected"), [(0, 0), (1, 1), (128, 128), (137, -9), (143, -15), (200, 200), (255, 255), (-15, -15)]
)
def test_a_code_is_a_signal_only_where_there_is_such_a_signal(code: int, expected: int) -> None:
    assert status_of(code) == expected


@pytest.mark.parametrize("fate", [ExitClass.REQUESTED, ExitClass.POLICY, ExitClass.WATCHDOG, ExitClass.BUDGET])
@pytest.mark.parametrize(
    ("status", "code"), [(42, 42), (0, 0), (-signal.SIGKILL, -1), (-signal.SIGTERM, -1), (-signal.SIGSEGV, -11)]
)
def test_what_the_kernel_was_doing_to_it_is_the_class_whatever_the_code(
    fate: ExitClass, status: int, code: int
) -> None:
    assert classify(status, fate=fate) == (fate, code)


def test_a_memory_limit_is_no_signal_of_a_stranger() -> None:
    assert classify(-signal.SIGKILL, oom=True) == (ExitClass.OOM, -1)
    assert classify(-signal.SIGKILL, oom=False).exit_class is ExitClass.SIGNAL


def test_a_violation_wins_over_a_stop_and_a_stop_over_a_deadline() -> None:
    assert graver(ExitClass.REQUESTED, ExitClass.POLICY) is ExitClass.POLICY
    assert graver(ExitClass.POLICY, ExitClass.REQUESTED) is ExitClass.POLICY
    assert graver(ExitClass.WATCHDOG, ExitClass.REQUESTED) is ExitClass.REQUESTED
    assert graver(ExitClass.REQUESTED, ExitClass.WATCHDOG) is ExitClass.REQUESTED
    assert graver(ExitClass.PROBE, ExitClass.WATCHDOG) is ExitClass.PROBE
    assert graver(None, ExitClass.WATCHDOG) is ExitClass.WATCHDOG


def test_only_an_end_that_was_meant_is_normal() -> None:
    assert {one for one in ExitClass if is_normal(one)} == {ExitClass.NORMAL, ExitClass.REQUESTED}


@pytest.mark.parametrize(
    ("exit_class", "code", "text"),
    [
        (ExitClass.NORMAL, 0, "normal"),
        (ExitClass.REQUESTED, 42, "normal"),
        (ExitClass.REQUESTED, -1, "killed"),
        (ExitClass.ERROR, 1, "crash(code 1)"),
        (ExitClass.SIGNAL, -11, "crash(signal 11)"),
        (ExitClass.OOM, -1, "crash(memory limit)"),
        (ExitClass.START_TIMEOUT, -1, "timeout"),
        (ExitClass.WATCHDOG, -1, "timeout"),
        (ExitClass.PROBE, -1, "timeout"),
        (ExitClass.TIMEOUT, -1, "timeout"),
        (ExitClass.POLICY, -1, "killed"),
        (ExitClass.NONDETERMINISTIC, -1, "crash(differs from its record)"),
        (ExitClass.BUDGET, -1, "killed"),
        (ExitClass.LOST, -1, "killed"),
    ],
)
def test_every_class_has_one_of_four_reasons(exit_class: ExitClass, code: int, text: str) -> None:
    assert str(reason(Classed(exit_class, code))) == text


def test_the_table_of_reasons_leaves_no_class_out() -> None:
    tabled = next(
        mark for mark in test_every_class_has_one_of_four_reasons.pytestmark if mark.name == "parametrize"
    ).args[1]
    assert {row[0] for row in tabled} == set(ExitClass)


@given(CLASSES, st.integers(-64, 255), st.text(max_size=40))
def test_a_reason_is_read_as_it_was_written(exit_class: ExitClass, code: int, text: str) -> None:
    told = reason(Classed(exit_class, code), text)
    assert read(str(told), exit_class) == told
    failure = AgentFailure("error", FailureSeverity.MEDIUM, text, [1, 2])
    full = reason(Classed(exit_class, code), text, failure)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(full), type=ExitReason) == full
    assert msgspec.json.decode(msgspec.json.encode(full), type=ExitReason) == full


@pytest.mark.parametrize("text", ["", "crash", "crash(x", "Normal", "shutdown"])
def test_a_word_that_is_no_reason_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(EINVAL, match="is no reason of an exit") as caught:
        read(text, ExitClass.ERROR)
    assert "crash(text)" in caught.value.hint
