"""A new policy takes the old one's place whole, and the old one can be put back."""

from pathlib import Path

import pytest

from agent_os.abi.errors import ENOENT
from agent_os.kernel.authority.policy.placing import previous, put, put_back


def test_the_old_policy_is_kept_and_put_back(tmp_path: Path) -> None:
    target = tmp_path / "home" / "policy.toml"
    put(target, b"one")
    put(target, b"two")
    assert (target.read_bytes(), previous(target).read_bytes()) == (b"two", b"one")
    assert put_back(target) == b"one"
    assert (target.read_bytes(), previous(target).read_bytes()) == (b"one", b"two")
    assert put_back(target) == b"two"
    assert sorted(path.name for path in target.parent.iterdir()) == ["policy.toml", "policy.toml.previous"]


def test_before_the_first_there_was_none_and_that_can_be_put_back_as_well(tmp_path: Path) -> None:
    target = tmp_path / "policy.toml"
    put(target, b"one")
    assert put_back(target) == b""
    assert not target.exists()
    assert put_back(target) == b"one"
    assert target.read_bytes() == b"one"


def test_where_nothing_was_put_there_is_nothing_to_put_back(tmp_path: Path) -> None:
    target = tmp_path / "policy.toml"
    target.write_bytes(b"by hand")
    with pytest.raises(ENOENT):
        put_back(target)
    assert target.read_bytes() == b"by hand"


def test_what_nobody_could_understand_is_nothing_to_come_back_to(tmp_path: Path) -> None:
    target = tmp_path / "policy.toml"
    put(target, b"good")
    target.write_bytes(b"broken")
    put(target, b"better", b"good")
    assert (target.read_bytes(), previous(target).read_bytes()) == (b"better", b"good")
    put(target, b"better", b"better")
    assert previous(target).read_bytes() == b"good"  # nothing changed, so nothing is kept
