"""Semantic versions and ranges of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.tools.versions import Range, Version, reference

SEMVER_ORDER = "1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0"


def test_versions_order_as_semver_has_it() -> None:
    ordered = [Version(text) for text in SEMVER_ORDER.split()]
    assert sorted(reversed(ordered)) == ordered
    assert Version("1.0.0+one") == Version("1.0.0+two")


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "v1.2.3", "1.2.3.4", "1.2.x", "-1.0.0"]
)
def test_what_is_no_version_is_refused_with_a_right_form(text: str) -> None:
    with pytest.raises(EINVAL) as caught:
        Version(text)
    assert caught.value.code == "tool.version"
    assert "1.2.3" in caught.value.hint


@pytest.mark.parametrize(
    ("wanted", "takes", "leaves"),
    [
        ("^1.2", "1.2.0 1.9.9", "1.1.9 2.0.0 2.0.0-rc.1 1.5.0-beta"),
        ("^0.2.3", "0.2.3 0.2.9", "0.3.0 0.2.2"),
        ("^0.0.3", "0.0.3", "0.0.4 0.0.2"),
        ("^0", "0.0.0 0.9.9", "1.0.0"),
        ("~1.2.3", "1.2.3 1.2.9", "1.3.0 1.2.2"),
        ("~1", "1.0.0 1.9.0", "2.0.0"),
        (">=1.2 <2", "1.2.0 1.9.9", "1.1.9 2.0.0"),
        (">= 1.2 < 2", "1.2.0", "2.0.0"),
        (">1.2", "1.3.0", "1.2.0 1.2.9"),
        ("<=1.2", "1.2.9 0.1.0", "1.3.0"),
        ("<1.2.3", "1.2.2", "1.2.3 1.2.3-rc.1"),
        ("1.x || 3.*", "1.5.0 3.0.1", "2.0.0"),
        ("*", "0.0.1 9.9.9", "1.0.0-rc.1"),
        ("", "1.0.0", "1.0.0-rc.1"),
        ("=1.2.3", "1.2.3", "1.2.4"),
        ("1.0.0-rc.1", "1.0.0-rc.1", "1.0.0-rc.2 1.0.0"),
        ("^1.0.0-rc.1", "1.0.0-rc.2 1.4.0", "1.4.0-rc.1 2.0.0 1.0.0-alpha"),
    ],
)
def test_a_range_takes_what_npm_would(wanted: str, takes: str, leaves: str) -> None:
    found = Range(wanted)
    assert [text for text in takes.split() if not found.takes(Version(text))] == []
    assert [text for text in leaves.split() if found.takes(Version(text))] == []


@pytest.mark.parametrize("text", ["^^1", "banana", "1.2.3.4", ">*", "1 - 2", "^1.2.3-", "||", "x" * 200])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(EINVAL):
        Range(text)


def test_the_best_is_the_highest_that_fits() -> None:
    versions = [Version(text) for text in ("1.2.0", "1.10.0", "1.9.0", "2.0.0")]
    assert str(Range("^1").best(versions)) == "1.10.0"
    assert Range("^3").best(versions) is None


def test_a_reference_names_a_tool_and_a_range() -> None:
    name, wanted = reference("file.read@^1.2")
    assert (name, wanted.text) == ("file.read", "^1.2")
    assert reference("file.read")[1].text == "*"
    for wrong in ("@1", "file.read@", "", "file.read@ "):
        with pytest.raises(EINVAL):
            reference(wrong)


numbers = st.tuples(*[st.integers(0, 30)] * 3)


@given(numbers, numbers)
def test_caret_never_takes_another_first_number_that_counts(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    base, version = ".".join(map(str, one)), Version(".".join(map(str, other)))
    if Range(f"^{base}").takes(version):
        place = next((at for at, number in enumerate(one) if number), 2)
        assert other[: place + 1] == one[: place + 1]
        assert other >= one


@given(st.text(max_size=40))
def test_any_text_is_a_range_or_einval(text: str) -> None:
    try:
        Range(text)
    except EINVAL:
        return
