"""What a rule forbids is covered under every name it has, and nothing else is."""

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel import hiding
from agent_os.kernel.authority.patterns import Pattern
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Effect, Layer
from agent_os.kernel.calls import Need
from agent_os.kernel.hiding import Covered, Place

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")

EVERY = [Pattern.parse("file", "/**", rule=True)]
HOWS: tuple[hiding.How, ...] = ("hide", "freeze", "keep")


def masks(places: Sequence[Place], policy: Policy) -> list[str]:
    def asked(path: str, folds: bool) -> bool:
        found = policy.forbidden("anna", "", Need("file", "read", path), folds=folds)
        return found is not None and found.effect is Effect.FORBID

    return [one.path for one in hiding.covered(places, asked, policy.hidden)]


def forbids(*what: str, mode: str = "strict", agents: str = "*") -> Policy:
    text = f'version = 1\ndefault = "capability"\nmode = "{mode}"\n[[rule]]\nid = "r"\neffect = "forbid"\n'
    return Policy([read(f"{text}what = {list(what)!r}\nagents = ['{agents}']\n".encode(), "p.toml", Layer.OPERATOR)])


def project(top: Path, *files: str) -> Place:
    for file in files:
        (top / file).parent.mkdir(parents=True, exist_ok=True)
        (top / file).write_text(file)
    return Place(top, str(top), ("/work", str(top)))


def found(place: Place, *what: str, **more: str) -> list[str]:
    return [os.path.relpath(path, place.at) for path in masks([place], forbids(*what, **more))]


def test_a_file_is_covered_wherever_it_lies_and_its_neighbours_are_not(tmp_path: Path) -> None:
    place = project(tmp_path, ".env", "a/.env", "a/b/.env", "a/.env.example", "env", "a/x.env")
    assert found(place, "file:/work/**/.env:read") == [".env", "a/.env", "a/b/.env"]


def test_a_rule_by_the_host_path_means_the_same_file(tmp_path: Path) -> None:
    place = project(tmp_path, ".env", "a/.env")
    assert found(place, f"file:{tmp_path}/a/.env:read") == ["a/.env"]


def test_a_folder_is_covered_as_a_whole_and_counts_once(tmp_path: Path) -> None:
    place = project(tmp_path, *(f"secret/{number}" for number in range(hiding.MOST + 5)), "secrets/x", "secretX")
    assert found(place, "file:/work/secret/**:read") == ["secret"]


def test_more_masks_than_a_sandbox_bears_refuse_the_run(tmp_path: Path) -> None:
    place = project(tmp_path, *(f"d{number}/.env" for number in range(hiding.MOST + 1)))
    with pytest.raises(EINVAL, match="more than 1,000 files") as refused:
        found(place, "file:/work/**/.env:read")
    assert refused.value.code == "policy.masks"
    assert "/work/DIR/**" in refused.value.hint
    (tmp_path / "d0/.env").unlink()
    assert len(found(place, "file:/work/**/.env:read")) == hiding.MOST


def test_another_hard_link_to_it_is_covered_too(tmp_path: Path) -> None:
    place = project(tmp_path, "a/.env", "b/plain", "secret/key")
    os.link(tmp_path / "a/.env", tmp_path / "b/innocent")
    os.link(tmp_path / "secret/key", tmp_path / "b/key")
    assert found(place, "file:/work/**/.env:read") == ["a/.env", "b/innocent"]
    assert found(place, "file:/work/secret/**:read") == ["b/key", "secret"]


def test_what_a_forbidden_link_leads_to_is_covered(tmp_path: Path) -> None:
    place = project(tmp_path, "config/real", "config/other")
    (tmp_path / ".env").symlink_to("config/real")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.env").symlink_to("/etc/hostname")  # nothing of ours
    assert found(place, "file:/work/**/.env:read") == ["config/real"]


def test_what_a_rule_names_through_a_link_to_its_folder_is_covered(tmp_path: Path) -> None:
    place = project(tmp_path, "conf.d/prod.key", "conf.d/other", "conf.d/deep/x")
    (tmp_path / "config").symlink_to("conf.d")
    assert found(place, "file:/work/config/prod.key:read") == ["conf.d/prod.key"]
    assert found(place, f"file:{tmp_path}/config/deep/**:read") == ["conf.d/deep"]
    assert found(place, "file:/work/config/**:read") == ["conf.d"]
    assert found(place, "file:/work/con*/prod.key:read") == ["conf.d/prod.key"]
    assert found(place, "file:/work/configs/prod.key:read") == []
    os.link(tmp_path / "conf.d/prod.key", tmp_path / "innocent")
    assert found(place, "file:/work/config/prod.key:read") == ["conf.d/prod.key", "innocent"]


def test_what_a_rule_names_through_several_links_is_covered(tmp_path: Path) -> None:
    place = project(tmp_path, "a/x", "real/key", "real/file")
    (tmp_path / "a/next").symlink_to("../real")
    (tmp_path / "way").symlink_to("a")
    (tmp_path / "real/up").symlink_to("..")
    (tmp_path / "real/alias").symlink_to("file")
    assert found(place, "file:/work/way/next/key:read") == ["real/key"]
    assert found(place, "file:/work/way/next/up/real/key:read") == ["real/key"]
    assert found(place, "file:/work/way/next/alias:read") == ["real/file"]


def test_a_link_from_one_mount_into_another_is_followed(tmp_path: Path) -> None:
    place = project(tmp_path / "project", "x")
    other = project(tmp_path / "data", "key", "more")
    (tmp_path / "project/inside").symlink_to("/mnt")
    (tmp_path / "project/outside").symlink_to(tmp_path / "data")
    for name in ("inside", "outside"):
        rules = forbids(f"file:/work/{name}/key:read")
        assert masks([place, Place(other.source, "/mnt", ("/mnt",))], rules) == ["/mnt/key"]


def test_a_link_of_an_earlier_run_over_the_project_is_followed(tmp_path: Path) -> None:
    place = project(tmp_path / "project", "conf.d/prod.key")
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "config").symlink_to("conf.d")
    rules = forbids("file:/work/config/prod.key:read")
    assert masks([place, place._replace(source=upper)], rules) == [f"{place.at}/conf.d/prod.key"]


def test_a_name_that_is_composed_in_another_way_is_the_same_name(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "schlüssel")
    place = project(tmp_path, f"{decomposed}/ä", "plain")
    assert found(place, "file:/work/schlüssel/**:read") == [decomposed]
    (tmp_path / unicodedata.normalize("NFD", "ö")).symlink_to(decomposed)
    assert found(place, "file:/work/ö/ä:read") == [f"{decomposed}/ä"]


def test_the_same_folder_mounted_twice_is_covered_twice(tmp_path: Path) -> None:
    place = project(tmp_path, "sub/.env", "sub/x")
    other = Place(tmp_path / "sub", "/data", ("/data",))
    assert masks([place, other], forbids("file:/work/**/.env:read")) == ["/data/.env", f"{tmp_path}/sub/.env"]


def test_a_file_that_was_mounted_by_itself_is_covered(tmp_path: Path) -> None:
    place = project(tmp_path, "key")
    only = Place(place.source / "key", "/data/key", ("/data/key",))
    assert masks([only], forbids("file:/data/**:read")) == ["/data/key"]
    assert masks([only], forbids("file:/data/other:read")) == []


def test_a_run_that_sees_nothing_of_the_host_needs_no_cover() -> None:
    assert masks([], forbids("file:/work/**/.env:read")) == []


def test_in_shadow_and_for_others_nothing_is_covered(tmp_path: Path) -> None:
    place = project(tmp_path, ".env")
    assert found(place, "file:/work/**/.env:read", mode="shadow") == []
    assert found(place, "file:/work/**/.env:read", agents="bob") == []
    assert found(place, "file:/work/**/.env:write") == []


def test_where_case_makes_no_difference_another_spelling_is_covered(tmp_path: Path) -> None:
    """A second link under the other spelling is what a folding file system looks like to whoever asks for both."""
    place = project(tmp_path, "folds/.ENV", "plain/.ENV")
    assert found(place, "file:/work/**/.eNv:read") == []
    os.link(tmp_path / "folds/.ENV", tmp_path / "folds/.env")
    assert found(place, "file:/work/**/.eNv:read") == ["folds/.ENV", "folds/.env"]


def test_names_that_are_no_text_are_walked_over(tmp_path: Path) -> None:
    place = project(tmp_path, "x")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    (tmp_path / os.fsdecode(b"\xff\xfe") / ".env").write_text("x")
    assert len(found(place, "file:/work/**/.env:read")) == 1


def test_a_folder_behind_the_longest_path_is_covered_as_a_whole(tmp_path: Path) -> None:
    place = project(tmp_path, "deep/.env", "plain/x")
    name, here = "d" * 200, os.open(tmp_path, os.O_RDONLY)
    for _ in range(25):
        os.mkdir(name, dir_fd=here)
        here, above = os.open(name, os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.rename(tmp_path / "deep", "deep", dst_dir_fd=here)
    os.close(here)
    (one,) = found(place, "file:/work/**/.env:read")
    assert one.startswith(f"{name}/{name}/")
    assert len(f"{tmp_path}/{one}") >= 4096
    assert found(place, "file:/work/plain/**:read") == [one, "plain"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can look into every folder")
def test_a_folder_that_we_may_not_look_into_is_covered_as_a_whole(tmp_path: Path) -> None:
    place = project(tmp_path, "closed/.env", "open/x")
    (tmp_path / "closed").chmod(0o100)
    try:
        assert found(place, "file:/work/**/.env:read") == ["closed"]
        assert found(place, "file:/elsewhere/**:read") == []
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_a_cover_knows_what_it_lies_on_unless_something_else_may_be_seen_there(tmp_path: Path) -> None:
    place = project(tmp_path / "project", ".env", "data/.env")
    other = Place(tmp_path / "other", f"{place.at}/data", ("/data",))
    project(tmp_path / "other", ".env")
    covers = {one.path: one for one in hiding.covered([place, other], lambda path, _: path.endswith(".env"), EVERY)}
    info = (tmp_path / "project/.env").stat()
    assert covers[f"{place.at}/.env"][2:] == (f"{place.source}/.env", info.st_dev, info.st_ino)
    assert covers[f"{place.at}/data/.env"].inode in (0, (tmp_path / "other/.env").stat().st_ino)


def test_a_cover_falls_off_when_another_file_takes_the_place(tmp_path: Path) -> None:
    place = project(tmp_path, ".env", "new")
    (cover,) = hiding.covered([place], lambda path, _: path.endswith(".env"), EVERY)
    assert not cover.fell_off
    (tmp_path / ".env").write_text("changed")
    assert not cover.fell_off
    (tmp_path / "new").rename(tmp_path / ".env")
    assert cover.fell_off
    (tmp_path / ".env").unlink()
    assert not cover.fell_off  # there is nothing to see


def test_a_folder_is_frozen_as_a_whole_if_whatever_is_made_in_it_is_forbidden(tmp_path: Path) -> None:
    place = project(tmp_path, "a/x", "a/b/x", "c/x")

    def frozen(*what: str) -> list[str]:
        policy = forbids(*what)

        def asked(path: str, folds: bool) -> bool:
            return policy.forbidden("anna", "", Need("file", "write", path), folds=folds) is not None

        some = hiding.covered([place], asked, policy.forbids("write"), "freeze")
        return [os.path.relpath(one.path, place.at) for one in some]

    assert frozen("file:/work/a/**:write") == ["a"]
    assert frozen("file:/work/a/*/x:write") == ["a/b/x"]
    assert frozen("file:/work/**:write") == ["."]
    assert frozen("file:/work/**/x:write") == ["a/b/x", "a/x", "c/x"]
    assert frozen("file:/work/a/**:read") == []


def test_the_strictest_of_several_covers_holds_and_none_is_laid_where_nobody_sees_it() -> None:
    hide, freeze = Covered("/w/a"), Covered("/w/b", "freeze")
    more = [Covered("/w/a/x", "freeze"), Covered("/w/a", "keep"), Covered("/w/b/x", "keep"), Covered("/w/b/y")]
    kept = Covered("/w/c", "keep")
    assert hiding.together([hide, freeze, *more, kept]) == (hide, freeze, more[3], kept)


def test_what_a_running_sandbox_does_not_cover_is_told() -> None:
    done = [Covered("/w/a"), Covered("/w/b", "freeze"), Covered("/w/c", "keep")]
    wanted = [Covered(f"/w/{name}{rest}", how) for name in "abc" for rest in ("", "/x") for how in HOWS]
    left = [(one.path, one.how) for one in wanted if hiding.uncovered([one], done)]
    assert left == [
        *[(path, "hide") for path in ("/w/b", "/w/b/x")],
        *[("/w/c", how) for how in ("hide", "freeze")],
        *[("/w/c/x", how) for how in HOWS],
    ]
