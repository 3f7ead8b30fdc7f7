"""Manifests that are read together are checked against each other: N-10."""

from pathlib import Path

import pytest

from agent_os import ManifestError
from agent_os.manifest.fleet import read_fleet


def write(folder: Path, name: str, rest: str = "") -> Path:
    path = folder / f"{name}.agent.toml"
    path.write_text(f'name = "{name}"\nrole = "worker"\n{rest}\n[program]\nargv = ["x"]\n')
    return path


def test_a_directory_is_a_fleet(tmp_path: Path) -> None:
    write(tmp_path, "b", '[dependencies]\nrequires = ["a", "message-bus", "system/kernel-init"]')
    write(tmp_path, "a")
    (tmp_path / "notes.toml").write_text("x = ")
    fleet = read_fleet([tmp_path])
    assert [one.id for one in fleet.settle()] == ["default/a", "default/b"]
    assert fleet.warnings == []


def test_unknown_names_are_problems_where_they_are_needed_and_odd_where_not(tmp_path: Path) -> None:
    write(tmp_path, "archive")
    path = write(
        tmp_path, "b", '[dependencies]\nrequires = [\n"archiv"]\nbinds_to = ["x"]\nwants = ["y"]\nafter = ["z"]'
    )
    fleet = read_fleet([tmp_path])
    assert [(one.file, one.line, one.key) for one in sorted(fleet.problems)] == [
        (str(path), 5, "dependencies.requires.0"),
        (str(path), 6, "dependencies.binds_to.0"),
    ]
    assert sorted(fleet.problems)[0].hint == "did you mean `archive`?"
    assert sorted(one.key for one in fleet.warnings) == ["dependencies.after.0", "dependencies.wants.0"]
    assert read_fleet([tmp_path], known=["default/x", "default/archiv"]).problems == []
    assert read_fleet([path], whole=False).problems == []


def test_a_circle_is_told_with_its_members(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("e", "f"), ("f", "e")):
        write(tmp_path, name, f'[dependencies]\nafter = ["{other}"]')
    told = sorted(one.message for one in read_fleet([tmp_path]).problems)
    assert told == [
        "a circle: default/a waits for default/b waits for default/c waits for default/a",
        "a circle: default/e waits for default/f waits for default/e",
    ]


def test_wishes_make_no_circle(tmp_path: Path) -> None:
    write(tmp_path, "a", '[dependencies]\nwants = ["b"]')
    write(tmp_path, "b", '[dependencies]\nrequires = ["a"]')
    assert read_fleet([tmp_path]).problems == []


def test_two_agents_of_one_id_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path, "a")
    second = tmp_path / "other.agent.toml"
    second.write_text(first.read_text())
    (problem,) = read_fleet([first, second]).problems
    assert problem.file == str(second)
    assert str(first) in problem.message


def test_a_broken_fleet_is_refused_as_a_whole_with_every_problem(tmp_path: Path) -> None:
    write(tmp_path, "a", "colour = 1")
    write(tmp_path, "b", "[health]\nmax_restart = 1")
    write(tmp_path, "c")
    fleet = read_fleet([tmp_path])
    with pytest.raises(ManifestError) as caught:
        fleet.settle()
    assert [one.key for one in caught.value.problems] == ["colour", "health.max_restart"]
    assert [one.name for one in fleet.manifests] == ["c"]


def test_an_empty_directory_is_no_fleet(tmp_path: Path) -> None:
    assert "holds no manifest" in read_fleet([tmp_path]).problems[0].message
