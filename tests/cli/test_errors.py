"""Exit codes: one table for every error name, present and future."""

import pytest

from agent_os.abi import errors as abi
from agent_os.cli import errors


def _family(cls: type[abi.AgentOSError]) -> list[type[abi.AgentOSError]]:
    return [sub for direct in cls.__subclasses__() for sub in (direct, *_family(direct))]


@pytest.mark.parametrize("cls", [c for c in _family(abi.AgentOSError) if c.__module__ == abi.__name__])
def test_every_error_of_the_family_has_its_exit_code_in_the_table(cls):
    assert cls.__name__ in abi.OUTCOMES
    assert errors.exit_code(cls("word", "reason")) == abi.OUTCOMES[cls.__name__][0]


@pytest.mark.parametrize(
    ("cls", "code"),
    [(abi.EIO, 1), (abi.EINVAL, 2), (abi.ENOENT, 3), (abi.EPERM, 4), (abi.EACCES, 4), (abi.ENOSPC, 7)]
    + [(abi.EBUSY, 9), (abi.ECONFLICT, 9), (abi.EISOLATION, 11), (abi.ETIMEDOUT, 124)],
)
def test_exit_codes_are_those_of_the_specification(cls, code):
    assert errors.exit_code(cls("word", "reason")) == code


# The table of interfaces.md §2.4, as it is written there.
PROMISED = {
    1: ("EIO EUNKNOWN ENONDET EINTR ECANCELED", {500}),
    2: ("EINVAL EMSGSIZE ETYPE ENOSYS EPROTO EBADF ENOTDIR EISDIR", {400, 413, 415, 422}),
    3: ("ENOENT ESRCH", {404}),
    4: ("EPERM EACCES EROFS", {401, 403}),
    5: ("EPOLICY ELABEL ETRUST", {403}),
    6: ("EAPPROVAL", {403}),
    7: ("EBUDGET EDQUOT ENOSPC", {402, 507}),
    8: ("EHOSTUNREACH EPIPE EFENCED", {503}),
    9: ("ECONFLICT EEXIST EBUSY EDEADLK", {409, 412}),
    11: ("EISOLATION", {503}),
    12: ("EAGAIN", {429}),
    124: ("ETIMEDOUT", {504}),
}


def test_the_table_is_that_of_the_specification():
    promised = {name: code for code, (names, _) in PROMISED.items() for name in names.split()}
    assert {name: code for name, (code, _) in abi.OUTCOMES.items()} == promised
    assert all(status in PROMISED[code][1] for code, status in abi.OUTCOMES.values())


def test_a_finer_class_inherits_the_code_of_its_parent():
    class Finer(abi.ENOENT):
        pass

    assert errors.exit_code(Finer("word", "reason")) == 3


def test_hostile_text_in_a_reason_cannot_steer_the_terminal(capsys):
    errors.report(abi.EINVAL("word", "name \x1b]0;owned\x07\nagentctl: all fine"), as_json=False)
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert err.count("\n") == 1


def test_an_undecodable_name_can_be_told_in_both_forms(capsys):
    for as_json in (False, True):
        errors.report(abi.ENOENT("path.missing", "no file a\udcff"), as_json=as_json)
        assert capsys.readouterr().err.encode()
