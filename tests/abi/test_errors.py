"""The one list of errors: complete, numbered as Linux numbers them, and the same on both ends of a wire."""

import errno

import pytest

from agent_os.abi import errors, frames
from agent_os.abi.errors import AgentOSError, FailureSeverity
from agent_os.cli.errors import exit_code

# The promise to everybody who ever wrote a number down. It grows, and nothing in it changes.
NUMBERS = {
    1: "EPERM", 2: "ENOENT", 3: "ESRCH", 4: "EINTR", 5: "EIO", 9: "EBADF", 11: "EAGAIN", 13: "EACCES", 16: "EBUSY",
    17: "EEXIST", 20: "ENOTDIR", 21: "EISDIR", 22: "EINVAL", 28: "ENOSPC", 30: "EROFS", 32: "EPIPE", 35: "EDEADLK",
    38: "ENOSYS", 71: "EPROTO", 90: "EMSGSIZE", 110: "ETIMEDOUT", 113: "EHOSTUNREACH", 122: "EDQUOT", 125: "ECANCELED",
    200: "EPOLICY", 201: "EBUDGET", 202: "EAPPROVAL", 203: "ELABEL", 204: "ETRUST", 205: "EUNKNOWN", 206: "ENONDET",
    207: "ECONFLICT", 208: "EFENCED", 209: "EISOLATION", 210: "ETYPE",
}  # fmt: skip
RETRYABLE = {"EINTR", "EAGAIN", "EPIPE", "EHOSTUNREACH", "EAPPROVAL"}
SEVERE = {
    "EUNKNOWN": FailureSeverity.HIGH,
    "ENONDET": FailureSeverity.HIGH,
    "EISOLATION": FailureSeverity.HIGH,
    "EFENCED": FailureSeverity.HIGH,
    "EPOLICY": FailureSeverity.CRITICAL,
    "ETRUST": FailureSeverity.CRITICAL,
}


def test_the_list_is_complete() -> None:
    assert {number: kind.__name__ for number, kind in errors.BY_NUMBER.items()} == NUMBERS


def test_numbers_are_those_of_linux_where_it_has_one() -> None:
    for number, name in NUMBERS.items():
        if number < 200:
            assert getattr(errno, name) == number
        else:
            assert not hasattr(errno, name)


def test_what_may_succeed_again_is_exactly_what_is_promised() -> None:
    assert {kind.__name__ for kind in errors.BY_NUMBER.values() if kind.retryable} == RETRYABLE


def test_what_needs_a_person_and_what_is_a_violation_say_so() -> None:
    severe = {kind.__name__: kind.severity for kind in errors.BY_NUMBER.values()}
    assert {name: one for name, one in severe.items() if one >= FailureSeverity.HIGH} == SEVERE


def test_every_error_has_an_exit_code_and_a_status() -> None:
    assert set(errors.OUTCOMES) == set(NUMBERS.values())


@pytest.mark.parametrize("kind", errors.BY_NUMBER.values(), ids=lambda kind: kind.__name__)
def test_an_error_crosses_the_wire_whole(kind: type[AgentOSError]) -> None:
    sent = kind("finer.word", "a reason", hint="do this", retry_after_ms=7, retryable=True, rule="r-1", code_word=3)
    sent.severity = FailureSeverity.HIGH
    frame = frames.decode_from_kernel(frames.encode(frames.from_error(9, sent))[frames.LENGTH :])
    assert isinstance(frame, frames.Error)
    got = frames.to_error(frame)
    assert type(got) is kind
    assert (got.code, got.reason, got.hint, got.retry_after_ms, got.retryable, got.severity) == (
        "finer.word",
        "a reason",
        "do this",
        7,
        True,
        FailureSeverity.HIGH,
    )
    assert got.detail == {"rule": "r-1", "code_word": 3}
    assert exit_code(got) == exit_code(sent)


def test_a_path_that_is_no_utf8_does_not_keep_an_error_from_travelling() -> None:
    sent = errors.ENOENT("absent", "no \udcff here", path="\udcff")
    assert "\\udcff" in frames.to_error(frames.from_error(1, sent)).reason


def test_an_error_of_a_later_release_is_told_as_a_failure() -> None:
    got = frames.to_error((999, 2, False, "something new", None, {"code": "new"}))
    assert isinstance(got, errors.EIO)
    assert got.reason == "something new"
