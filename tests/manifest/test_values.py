"""Amounts, words and lists are read in every accepted form, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os import AgentRestartPolicy
from agent_os.manifest.problems import Flaw
from agent_os.manifest.values import OFF, UNLIMITED, Above, Flag, List, Mebibytes, Number, Seconds, Whole, Word, snake


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (30, 30),
        ("30s", 30),
        ("5m", 300),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("2d", 172800),
        (0.25, 0.25),
        ("30 s", 30),
        (0, 0),
    ],
)
def test_durations(given: object, seconds: float) -> None:
    assert Seconds("").read(given) == seconds


@pytest.mark.parametrize(
    ("given", "size"), [(256, 256), ("256MiB", 256), ("2GiB", 2048), ("1024KiB", 1), ("1 gib", 1024)]
)
def test_sizes(given: object, size: int) -> None:
    assert Mebibytes("").read(given) == size


@pytest.mark.parametrize(
    "given", ["soon", "5 fortnights", "-5s", "", True, None, [], float("nan"), float("inf"), -1, "1e9s"]
)
def test_what_is_no_duration_is_refused(given: object) -> None:
    with pytest.raises(Flaw):
        Seconds("").read(given)


@pytest.mark.parametrize("given", ["1KiB", "0.3MiB", 1.5, "256MB!", True, -1, 2**63])
def test_what_is_no_size_is_refused(given: object) -> None:
    with pytest.raises(Flaw):
        Mebibytes("").read(given)


@pytest.mark.parametrize("kind", [Whole, Number, Seconds, Mebibytes])
def test_unlimited_is_a_word_and_zero_is_zero(kind: type[Whole]) -> None:
    limited = kind("", none=UNLIMITED)
    for word in ("unlimited", "Unlimited", None, 2**64 - 1):
        assert limited.read(word) is None
    assert limited.read(0) == 0
    assert limited.write(None) == "unlimited"
    with pytest.raises(Flaw):
        kind("").read("unlimited")


def test_off_is_a_word_and_zero_is_off() -> None:
    watchdog = Seconds("", none=OFF)
    assert watchdog.read("off") is None
    assert watchdog.read(0) is None
    assert watchdog.read("5s") == 5
    assert watchdog.write(None) == "off"


def test_some_durations_cannot_be_nothing() -> None:
    with pytest.raises(Flaw):
        Above("").read(0)
    assert Above("").read("1ms") == 0.001


@pytest.mark.parametrize("given", [0, 1, "true", None])
def test_a_switch_is_true_or_false(given: object) -> None:
    with pytest.raises(Flaw):
        Flag("").read(given)


@pytest.mark.parametrize(
    "spelt", ["on_failure", "OnFailure", "on-failure", "ON_FAILURE", AgentRestartPolicy.ON_FAILURE]
)
def test_words_are_read_in_every_case(spelt: object) -> None:
    assert Word("", AgentRestartPolicy).read(spelt) is AgentRestartPolicy.ON_FAILURE


def test_an_unknown_word_names_the_nearest_and_a_later_one_says_so() -> None:
    strategy = Word("", ("one_for_one", "one_for_all"), later=["pool"])
    with pytest.raises(Flaw) as caught:
        strategy.read("one_for_al")
    assert caught.value.hint == "did you mean `one_for_all`?"
    with pytest.raises(Flaw, match="not supported yet"):
        strategy.read("pool")


def test_a_list_says_which_element_is_wrong() -> None:
    with pytest.raises(Flaw) as caught:
        List("").read(["a", 1])
    assert caught.value.at == (1,)
    with pytest.raises(Flaw, match="is a list of texts"):
        List("").read("a")


@pytest.mark.parametrize(
    ("written", "read"),
    [("maxRestarts", "max_restarts"), ("MaxMemoryMB", "max_memory_mb"), ("on-failure", "on_failure")],
)
def test_camel_case(written: str, read: str) -> None:
    assert snake(written) == read


@given(st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.none(), st.lists(st.integers())))
def test_a_number_is_what_was_given_or_a_flaw(value: object) -> None:
    for kind in (Whole(""), Number(""), Seconds("", none=OFF), Mebibytes("", none=UNLIMITED)):
        try:
            number = kind.read(value)
        except Flaw:
            continue
        assert number is None or 0 <= number < 2**63
        assert kind.read(kind.write(number)) == number
