"""What a program that lives again is taken through: all that happened, and no end of an earlier life."""

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.signals import AgentSignal
from agent_os.kernel.resuming import Found, resumable

EXIT = 8


def entry(
    seq: int, kind: Kind, *, inc: int = 1, op: int = 1, code: int = 0, effect: str = "p", seen: int | None = None
) -> Found:
    pos = str(seq) if kind != Kind.SIGNAL and op != EXIT else None
    seen = seq - 1 if seen is None else seen  # it asks for one thing after the other
    made = Entry(seq, "default/a", seq, inc, 0, 0, kind, op, effect, code=code, pos=pos, seen=seen)
    body = {"signal": int(AgentSignal.SIGTERM if op == 0 else AgentSignal.SIGUSR1)} if kind == Kind.SIGNAL else {}
    return made, frames.encode_body(body)


def call(seq: int, **facts: int | str) -> Found:
    return entry(seq, Kind.RESULT, **facts)  # type: ignore[arg-type]


def failed(seq: int, kind: Kind = Kind.RESULT, **facts: int | str) -> Found:
    return entry(seq, kind, code=5, **facts)  # type: ignore[arg-type]


def term(seq: int, inc: int = 1) -> Found:
    return entry(seq, Kind.SIGNAL, inc=inc, op=0)


def other(seq: int) -> Found:
    return entry(seq, Kind.SIGNAL)


def left(seq: int, inc: int = 1) -> Found:
    return entry(seq, Kind.OUTCOME, inc=inc, op=EXIT)


@pytest.mark.parametrize(
    ("lived", "told"),
    [
        ([call(1), call(2)], [1, 2]),
        ([call(1), left(2), call(3, inc=2)], [1, 3]),
        ([call(1), failed(2), left(3), call(4, inc=2)], [1, 4]),
        ([call(1), failed(2), other(3), left(4), call(5, inc=2)], [1, 3, 5]),
        ([failed(1), call(2), left(3)], [1, 2]),  # that failure was survived
        ([failed(1), failed(2), left(3)], [1]),
        ([failed(1), call(2, inc=2)], [1, 2]),  # struck down: it may have survived that
        ([failed(1)], [1]),
        ([failed(1, Kind.OUTCOME, effect="o"), left(2)], [1]),
        ([failed(1, Kind.OUTCOME, effect="i"), left(2)], []),
        ([failed(1, Kind.DECISION), left(2)], []),
        ([call(1), term(2), call(3), other(4), left(5), call(6, inc=2)], [1, 6]),
        ([failed(1), term(2), left(3)], [1]),
        ([call(1), term(2), left(3), failed(4), call(5, inc=2)], [1, 5]),  # what it gave up as it left
        ([call(1), left(2), call(3), call(4, inc=2)], [1, 3, 4]),
        # What it had asked for before it knew, and what it asked for because it knew.
        ([call(1), term(2), call(3, seen=1), call(4, seen=2), left(5), call(6, inc=2)], [1, 3, 6]),
        ([call(1), term(2), left(3), call(4, seen=1), call(5, seen=2), call(6, inc=2)], [1, 4, 6]),
        ([call(1), term(2), failed(3, seen=1), left(4)], [1]),
        ([call(1), term(2), failed(3, Kind.OUTCOME, effect="o", seen=1), left(4)], [1, 3]),
        ([failed(1), term(2), call(3, seen=0), left(4), call(5, inc=2, seen=2), term(6, inc=2)], [1, 3, 5, 6]),
    ],
)
def test_ends_are_not_repeated_and_all_else_is(lived: list[Found], told: list[int]) -> None:
    assert [one.seq for one, _ in resumable(lived)] == told


@pytest.mark.parametrize(("unasked", "told"), [(False, [1, 2, 3, 4]), (True, [1, 4])])
def test_whoever_was_asked_to_end_and_struck_down_hears_it_again_only_if_it_is_still_to_end(
    unasked: bool, told: list[int]
) -> None:
    lived = [call(1), term(2), call(3), call(4, inc=2)]
    assert [one.seq for one, _ in resumable(lived, unasked=unasked)] == told
    early = [call(1), term(2), call(3, seen=1), call(4, inc=2)]
    assert [one.seq for one, _ in resumable(early, unasked=unasked)] == ([1, 3, 4] if unasked else [1, 2, 3, 4])
    last = [call(1), term(2)]
    assert [one.seq for one, _ in resumable(last, unasked=unasked)] == ([1] if unasked else [1, 2])
