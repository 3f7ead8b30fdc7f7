"""kernel/vfs/paths: one spelling for each name, and no way to another agent's."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL, ENOENT, AgentOSError
from agent_os.kernel.vfs import paths
from agent_os.kernel.vfs.paths import below, normalise, speakable


@pytest.mark.parametrize(
    ("given_path", "expected"),
    [
        ("/", "/"),
        ("//", "/"),
        ("/mem/working/x", "/mem/working/x"),
        ("//mem///working/./x/", "/mem/working/x"),
        ("/./././", "/"),
        ("/work/caf\u00e9", "/work/caf\u00e9"),
        ("/work/...", "/work/..."),
        ("/work/..a", "/work/..a"),
        ("/work/a b", "/work/a b"),
        ("/MEM/Working", "/MEM/Working"),
        ("/agent/default/a/mem/working/x", "/mem/working/x"),
        ("/agent/a/mem/working/x", "/mem/working/x"),
        ("/agent/a", "/"),
        ("/agents/a", "/agents/a"),
        ("/" + "/".join("x" * 32), "/" + "/".join("x" * 32)),
        ("/" + "x" * 255, "/" + "x" * 255),
    ],
)
def test_a_path_has_one_spelling(given_path: str, expected: str) -> None:
    assert normalise(given_path, "default/a") == expected


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "path.relative"),
        ("mem/working/x", "path.relative"),
        ("/mem/../policy", "path.dotdot"),
        ("/..", "path.dotdot"),
        ("/agent/a/..", "path.dotdot"),
        ("/mem/\0x", "path.character"),
        ("/mem/\nx", "path.character"),
        ("/mem/\x7f", "path.character"),
        ("/mem/\x85", "path.character"),
        ("/mem/\ud800", "path.character"),
        ("/work/cafe\u0301", "path.nfc"),
        ("/" + "x" * 256, "path.name"),
        ("/" + "é" * 128, "path.name"),
        ("/x" * 33, "path.deep"),
        ("/" + "x" * 5000, "path.long"),
        ("/é" * 1500, "path.long"),
    ],
)
def test_a_bad_path_is_refused_with_the_rule_it_broke(path: str, code: str) -> None:
    with pytest.raises(EINVAL) as caught:
        normalise(path, "default/a")
    assert caught.value.code == code


@pytest.mark.parametrize("path", ["/agent", "/agent/b/mem", "/agent/default/b", "/agent/default", "/agent/other/a/mem"])
def test_another_agents_id_is_not_there(path: str) -> None:
    with pytest.raises(ENOENT):
        normalise(path, "default/a")


@pytest.mark.parametrize(
    ("base", "path", "expected"),
    [
        ("/mem/working", "/mem/working", ""),
        ("/mem/working", "/mem/working/x/y", "x/y"),
        ("/mem/working", "/mem/workingX", None),
        ("/mem/working", "/mem", None),
        ("/", "/mem", "mem"),
        ("/", "/", ""),
    ],
)
def test_only_whole_components_count(base: str, path: str, expected: str | None) -> None:
    assert below(base, path) == expected


@given(st.text(st.characters(codec=None), max_size=60))
def test_what_is_accepted_is_clean_and_stable(text: str) -> None:
    try:
        found = normalise("/" + text, "default/a")
    except AgentOSError:
        return
    assert found.startswith("/")
    assert normalise(found, "") == found
    assert unicodedata.is_normalized("NFC", found)
    assert not {"", ".", ".."} & set(found.split("/")[1:]) or found == "/"
    found.encode()


def test_names_on_a_disk_that_no_path_can_say_are_known() -> None:
    assert speakable("plain.txt")
    assert not speakable("cafe\u0301")
    assert not speakable("a\nb")
    assert not speakable(b"\xff".decode(errors="surrogateescape"))


def test_owners_of_two_namespaces_never_share_a_name() -> None:
    assert paths.owner_name("default/bob") == "bob"
    assert paths.owner_name("team/bob") != paths.owner_name("default/team")
    assert "/" not in paths.owner_name("team/bob")
