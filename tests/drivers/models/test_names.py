"""Names of tools, there and back."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.drivers.models.names import LONGEST, Names


def test_a_plain_name_stays_and_a_dot_becomes_a_line() -> None:
    names = Names(["file.read", "search"])
    assert (names.theirs("file.read"), names.theirs("search")) == ("file_read", "search")
    assert (names.ours("file_read"), names.ours("made_up")) == ("file.read", "made_up")


@settings(deadline=None)
@given(st.sets(st.text(min_size=1, max_size=90).filter(lambda name: name.isprintable()), max_size=20))
def test_every_name_goes_there_and_back(ours: set[str]) -> None:
    names = Names(ours)
    theirs = {names.theirs(name) for name in ours}
    assert len(theirs) == len(ours)
    for name in ours:
        assert names.ours(names.theirs(name)) == name
        assert 1 <= len(names.theirs(name)) <= LONGEST
        assert all(char.isascii() and (char.isalnum() or char in "_-") for char in names.theirs(name))


def test_names_that_would_be_alike_are_told_apart() -> None:
    names = Names(["a.b", "a_b"])
    assert names.theirs("a.b") != names.theirs("a_b")


def test_other_tools_do_not_change_a_name() -> None:
    assert Names(["file.read"]).theirs("file.read") == Names(["file.read", "file.write", "x"]).theirs("file.read")
