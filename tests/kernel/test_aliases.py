"""Every name that leads through links and that a rule is about is found, in however deep a maze, and no other."""

import os
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel import aliases as module
from agent_os.kernel import beneath
from agent_os.kernel.aliases import Alias, Inside, OtherNames, Place, Track, aliases
from agent_os.kernel.authority.patterns import Pattern


def patterns(*texts: str) -> list[Pattern]:
    return [Pattern.parse("file", text, rule=True) for text in texts]


def made(top: Path, *folders: str, **links: str) -> Place:
    for folder in folders:
        (top / folder).mkdir(parents=True, exist_ok=True)
    for name, target in links.items():
        (top / name.replace("__", "/")).symlink_to(target)
    return Place(top, "/in", ("/work",))


def found(place: Place, *texts: str) -> list[Alias]:
    links = [f"/in/{path.relative_to(place.source)}" for path in sorted(place.source.rglob("*")) if path.is_symlink()]
    return sorted(aliases([place], patterns(*texts), links))


def test_a_link_to_a_folder_gives_all_in_it_another_name(tmp_path: Path) -> None:
    place = made(tmp_path, "conf.d", config="conf.d")
    assert found(place, "/work/config/prod.key") == [Alias("/work/config", "/in/conf.d")]
    assert found(place, "/work/config/**") == [Alias("/work/config", "/in/conf.d")]
    assert found(place, "/work/*/prod.key") == []  # it means that by its own name as well
    assert found(place, "/work/**/prod.key") == []
    assert found(place, "/work/other/prod.key") == []


def test_a_link_to_a_link_and_one_in_a_linked_folder_are_followed(tmp_path: Path) -> None:
    place = made(tmp_path, "a/b", "real", way="a", a__next="../real", last="way/next")
    assert found(place, "/work/way/next/key") == [Alias("/work/way", "/in/a"), Alias("/work/way/next", "/in/real")]
    assert found(place, "/work/last/key") == [Alias("/work/last", "/in/real")]


def test_a_link_up_and_an_absolute_one_are_followed_as_the_run_sees_them(tmp_path: Path) -> None:
    place = made(tmp_path, "sub", "data", sub__up="..", absolute="/in/data", host=str(tmp_path / "data"))
    assert found(place, "/work/sub/up/data/key") == [Alias("/work/sub/up", "/in")]
    assert found(place, "/work/absolute/key") == [Alias("/work/absolute", "/in/data")]
    assert found(place, "/work/host/key") == [Alias("/work/host", "/in/data")]
    made(tmp_path, above="../..", away="/etc", gone="nothing", circle="circle")
    assert found(place, "/work/away/**", "/work/gone/**", "/work/circle/**") == []
    assert found(place, "/work/above/in/data/key") == [Alias("/work/above", "/")]


def test_a_maze_of_links_costs_no_more_than_the_rules_can_tell_apart(tmp_path: Path) -> None:
    """Thirty folders, each with a link to every other: more names than atoms."""
    folders = [f"p{number}" for number in range(30)]
    for one, other in product(folders, folders):
        made(tmp_path, one, **({f"{one}__{other}": f"../{other}"} if one != other else {}))
    place = made(tmp_path)
    begun = time.monotonic()
    got = found(place, "/work/p1/p2/p3/p4/p5/key", "/work/**/p7/p9/key", "/work/p0/**/end")
    assert Alias("/work/p1/p2/p3/p4/p5", "/in/p5") in got
    assert len(got) < 1000
    assert time.monotonic() - begun < 20


def test_a_tree_may_be_deeper_than_we_could_recurse(tmp_path: Path) -> None:
    top = os.open(made(tmp_path, "real").source, os.O_RDONLY)
    fd = os.dup(top)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.symlink(tmp_path / "real", "config", dir_fd=fd)
    os.close(fd)
    try:
        link = "/in/" + "d/" * 1500 + "config"
        (alias,) = aliases([made(tmp_path)], patterns("/work/**/config/key"), [link])
        assert alias.real == "/in/real"
        assert len(OtherNames(tmp_path, patterns("/work/**/config/key")).of("real/key")) == 3
    finally:
        beneath.remove_tree(top, "d")
        os.close(top)


def test_too_many_ways_are_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    place = made(tmp_path, *"abcde", **{f"l{one}": one for one in "abcde"})
    with pytest.raises(EINVAL, match="more than 3 ways") as refused:
        found(place, *(f"/work/l{one}/key" for one in "abcde"))
    assert refused.value.code == "policy.links"


NAMES = ("a", "b", "C")
SEGMENTS = st.sampled_from(("a", "b", "c", "*", "**", "a*"))


def _names(place: Place, deepest: int) -> Iterator[tuple[str, str]]:
    """By brute force: every name up to a depth, and what it leads to."""
    inside = Inside([place])
    for depth in range(1, deepest + 1):
        for parts in product(NAMES, repeat=depth):
            (real,) = inside.leads("/in/" + "/".join(parts)) or {""}
            if real.startswith("/in/") and os.path.lexists(inside.hosts(real)[0]):
                yield f"/work/{'/'.join(parts)}", real


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), st.sampled_from((*NAMES, ".", "..")), max_size=5
    ),
    st.lists(st.lists(SEGMENTS, min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_no_name_that_a_rule_is_about_is_overlooked(links: dict[tuple[str, str], str], rules: list[list[str]]) -> None:
    with TemporaryDirectory() as top:
        place = made(Path(top), *NAMES)
        for (folder, name), target in links.items():
            if not (Path(top) / folder / name).exists():
                made(Path(top), **{f"{folder}__{name}": f"../{target}" if target != "." else "."})
        texts = [text for text in ("/work/" + "/".join(parts) for parts in rules) if _is_rule(text)]
        known = found(place, *texts)
        for name, real in _names(place, 4):
            called = ["/work" + real.removeprefix("/in")]
            called += [alias.name + real[len(alias.real) :] for alias in known if real.startswith(f"{alias.real}/")]
            for rule in patterns(*texts):
                # A link is judged by its own name as well, and what it leads to is meant by that.
                if rule.matches(name) and not os.path.islink(Path(top) / name.removeprefix("/work/")):
                    assert any(map(rule.matches, called)), (name, real, texts, known)


def _is_rule(text: str) -> bool:
    try:
        Pattern.parse("file", text, rule=True)
    except EINVAL:
        return False
    return True


@settings(max_examples=300)
@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
def test_what_matches_below_a_name_is_known_at_that_name(parts: list[str], path: list[str]) -> None:
    text = "/" + "/".join(parts)
    if not _is_rule(text):
        return
    track = Track(patterns(text))
    if any(rule.matches("/" + "/".join(path)) for rule in patterns(text)):
        for end in range(len(path)):
            assert track.state("/" + "/".join(path[:end]) if end else ""), (text, path, end)


def test_a_change_is_called_by_every_name_that_it_would_have(tmp_path: Path) -> None:
    made(tmp_path, "conf.d", config="conf.d")
    names = OtherNames(tmp_path, patterns("/work/config/prod.key"))
    assert names.of("conf.d/new") == ["/work/conf.d/new", f"{tmp_path}/conf.d/new", "/work/config/new"]
    assert names.of("cafe\u0301")[0] == "/work/caf\u00e9"


def test_a_change_is_called_by_links_to_files_and_to_what_is_not_there_yet(tmp_path: Path) -> None:
    made(tmp_path, "docs", "way", prod="docs/real", folder="later", file="new", way__back="../prod", nowhere="nowhere")
    (tmp_path / "docs/real").touch()
    names = OtherNames(tmp_path, patterns("/work/prod", "/work/folder/**", "/work/file", "/work/way/*", "/work/**/env"))
    more = {path: names.of(path)[2:] for path in ("docs/real", "later", "later/x/y", "new", "docs", "docs/other")}
    assert more == {
        "docs/real": ["/work/way/back", "/work/prod"],
        "later": ["/work/folder"],
        "later/x/y": ["/work/folder/x/y"],
        "new": ["/work/file"],
        "docs": [],
        "docs/other": [],
    }


@pytest.mark.parametrize(
    ("links", "path", "protected"),
    [
        ({"CLAUDE.md": "docs/guide"}, "docs/guide", True),
        ({"CLAUDE.md": "docs/guide"}, "docs/other", False),
        ({"CLAUDE.md": "yet/to/come"}, "yet/to/come", True),
        ({".github": "gh"}, "gh/workflows/ci.yml", True),
        ({".github": "gh"}, "gh/readme", False),
        ({"docs/hooks": "../sh"}, "sh/update", True),
        ({"plain": "docs"}, "docs/guide", False),
        ({".claude": "conf", "conf/more": "../shared"}, "shared/x/y", True),  # by two links
        ({"a": "conf", "conf/.config": "../shared"}, "shared/fish/x", True),
        ({"loop": ".", "Makefile": "docs/guide"}, "docs/guide", True),
        ({".claude": "."}, "anything", True),
    ],
)
def test_what_a_link_calls_by_a_name_that_tools_look_for_is_protected(
    tmp_path: Path, links: dict[str, str], path: str, protected: bool
) -> None:
    made(tmp_path, "docs", "conf")
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    assert OtherNames(tmp_path, []).is_protected(path) is protected


@pytest.mark.parametrize(
    ("rule", "link", "gains"),
    [
        ("/work/.github/workflows/**", ".github/workflows", True),
        ("/work/.github/workflows/**", ".github", True),
        ("/work/.github/workflows/**", "docs", False),
        ("/work/**/.env", "node_modules", False),
        ("/work/**/secret/key", "a/secret", True),
        ("/work/**/secret/key", "a/other", False),
        ("/work/deploy.yml", "deploy.yml", False),  # judged by its own name
        ("HOST/ci/run", "ci", True),
        ("/work/Ci/run", "cI", True),
        ("/work/**", "x", False),
    ],
)
def test_a_link_where_a_rule_would_lead_through_it_is_known(tmp_path: Path, rule: str, link: str, gains: bool) -> None:
    names = OtherNames(tmp_path, patterns(rule.replace("HOST", str(tmp_path))))
    assert names.would_gain(link) is gains
