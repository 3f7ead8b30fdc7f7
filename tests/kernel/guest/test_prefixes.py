"""Layouts as they lie on disk, and the places that no layout can make visible."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.guest.prefixes import (
    Private,
    Shebang,
    candidates,
    hops,
    installation,
    origin_libraries,
    shebang,
    venv_pythons,
)

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


def test_hops_are_every_stage_of_a_chain_of_links(root: Path) -> None:
    (root / "real" / "bin").mkdir(parents=True)
    (root / "real" / "bin" / "x").touch()
    (root / "dir").symlink_to("real")
    (root / "a").mkdir()
    (root / "a" / "link").symlink_to("../dir/bin/x")
    assert list(hops(root / "a" / "link")) == [root / "a" / "link", root / "dir" / "bin" / "x", root / "real/bin/x"]


def test_dots_after_a_link_mean_the_links_target(root: Path) -> None:
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "x").touch()
    (root / "jump").symlink_to("deep/er")
    (root / "link").symlink_to("jump/../x")
    assert list(hops(root / "link"))[-1] == root / "deep" / "x"


def test_a_circle_of_links_ends(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert 2 <= len(list(hops(root / "a"))) < 50


@pytest.mark.parametrize("path", ["/opt/no-such/bin/x", "/opt/no-such/x", "/opt/no-such/lib/deep/x"])
def test_opt_belongs_to_its_first_directory(path: str) -> None:
    assert list(candidates(Path(path))) == [Path("/opt/no-such")]


def test_a_file_directly_below_opt_belongs_to_nothing() -> None:
    assert list(candidates(Path("/opt/no-such"))) == []


def test_an_existing_directory_below_opt_is_an_installation() -> None:
    below = [entry for entry in Path("/opt").glob("*") if entry.is_dir() and os.access(entry, os.R_OK)]
    if not below:
        pytest.skip("nothing is installed below /opt here")
    private = Private(Path("/home/op"))
    shown = [entry for entry in below if not private.refuses_directory(entry)]
    for entry in shown:
        assert installation(entry / "some-program", private).root == entry


def test_a_bin_without_a_sign_of_an_installation_belongs_to_nothing(root: Path) -> None:
    (root / "bin").mkdir()
    (root / "lib").mkdir()
    assert installation(root / "bin" / "x", Private(Path("/home/op"))).root is None


def test_a_jdk_is_known_by_its_image(root: Path) -> None:
    (root / "jdk" / "lib").mkdir(parents=True)
    (root / "jdk" / "lib" / "modules").write_bytes(b"image")
    assert installation(root / "jdk" / "bin" / "java", Private(Path("/home/op"))).root == root / "jdk"


def test_after_a_refusal_nothing_wider_is_taken(root: Path) -> None:
    outer, inner = root / "outer", root / "outer" / "lib" / "project"
    for place in (outer, inner):
        place.mkdir(parents=True)
        (place / "pyvenv.cfg").touch()
    (inner / ".git").mkdir()
    found = installation(inner / "bin" / "x", Private(Path("/home/op")))
    assert (found.root, found.refused) == (None, inner)


HOME = Path("/home/op")
SYSTEM_PLACES = "/ /home /root /etc /etc/ssl /var /var/lib /opt /tmp /usr /proc/self /dev/fd".split()
IN_A_HOME = ". .local .config .cache .local/bin .local/lib .local/share .ssh .ssh/deep .aws .config/gh .cargo".split()
IN_A_HOME += ".local/state/agent-os/x .docker .mozilla/firefox".split()
IN_ANY_HOME = ".local .config .cache .local/share .ssh .gnupg/x .kube".split()


@pytest.mark.parametrize("place", SYSTEM_PLACES)
def test_no_place_of_the_system_is_shown_whole(place: str) -> None:
    assert Private(HOME).refuses_directory(Path(place))


@pytest.mark.parametrize("place", IN_A_HOME)
def test_no_personal_place_is_shown_whole(root: Path, place: str) -> None:
    (root / "op" / place).mkdir(parents=True)
    assert Private(root / "op").refuses_directory(root / "op" / place)


@pytest.mark.parametrize("place", IN_ANY_HOME)
def test_nor_is_that_of_somebody_else(root: Path, place: str) -> None:
    (root / "other" / place).mkdir(parents=True)
    assert Private(root / "op").refuses_directory(root / "other" / place)


@given(st.lists(st.sampled_from(["home", "op", "other", ".local", ".ssh", "share", "etc", "x"]), max_size=5))
def test_nothing_that_holds_the_home_is_ever_shown(parts: list[str]) -> None:
    path = Path("/", *parts)
    if HOME.is_relative_to(path) or (HOME / ".ssh").is_relative_to(path) or path.is_relative_to(HOME / ".ssh"):
        assert Private(HOME).refuses_directory(path)


def test_an_ordinary_directory_is_shown(root: Path) -> None:
    (root / "py").mkdir()
    assert not Private(root).refuses_directory(root / "py")


def test_a_link_to_the_home_is_the_home(root: Path) -> None:
    (root / "home").mkdir()
    (root / "alias").symlink_to("home")
    assert Private(root / "home").refuses_directory(root / "alias")
    assert Private(root / "alias").refuses_directory(root / "home")


def test_credentials_moved_elsewhere_and_linked_are_still_private(root: Path) -> None:
    (root / "home").mkdir()
    (root / "vault" / "ssh").mkdir(parents=True)
    (root / "home" / ".ssh").symlink_to(root / "vault" / "ssh")
    private = Private(root / "home")
    assert private.refuses_directory(root / "vault")
    assert private.refuses_file(root / "vault" / "ssh" / "id")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can list every directory")
def test_what_cannot_be_listed_is_not_shown(root: Path) -> None:
    (root / "closed").mkdir(mode=0o311)
    assert Private(HOME).refuses_directory(root / "closed")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#!/bin/sh", Shebang("/bin/sh", None)),
        ("#! /usr/bin/python3 -I", Shebang("/usr/bin/python3", None)),
        ("#!/usr/bin/env node", Shebang("/usr/bin/env", "node")),
        ("#!/usr/bin/env -S node --no-warnings", Shebang("/usr/bin/env", "node")),
        ("#!/usr/bin/env -Snode -x", Shebang("/usr/bin/env", "node")),
        ("#!/usr/bin/env -S -i A=1 -u B 'my python' -x", Shebang("/usr/bin/env", "my python")),
        ("#!/usr/bin/env -S 'unclosed", Shebang("/usr/bin/env", None)),
        ("#!/usr/bin/env", Shebang("/usr/bin/env", None)),
        ('#!/bin/sh\n\'\'\'exec\' "/a b/python" "$0" "$@"\n', Shebang("/a b/python", None)),
        ("#!/bin/sh\n'''exec' /a/python \"$0\" \"$@\"\n", Shebang("/a/python", None)),
        ("#!", None),
        ("#!   \n", None),
        ("\x7fELF", None),
        ("", None),
    ],
)
def test_the_first_line_names_the_interpreter(root: Path, line: str, expected: Shebang | None) -> None:
    (root / "script").write_text(line)
    assert shebang(root / "script") == expected


@given(st.binary(max_size=300))
def test_any_bytes_after_the_mark_are_read_without_failing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    script = tmp_path_factory.getbasetemp() / "any"
    script.write_bytes(b"#!" + data)
    found = shebang(script)
    assert found is None or found.interpreter


def test_a_directory_a_pipe_and_a_missing_file_have_no_first_line(root: Path) -> None:
    os.mkfifo(root / "fifo")
    assert [shebang(root / name) for name in ("", "fifo", "absent")] == [None, None, None]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_an_unreadable_program_has_no_first_line(root: Path) -> None:
    (root / "x").write_text("#!/bin/sh\n")
    (root / "x").chmod(0o111)
    assert shebang(root / "x") is None
    assert origin_libraries(root / "x") is None


def test_a_venv_names_its_own_python_and_its_base(root: Path) -> None:
    for place in ("venv/bin", "base dir/bin"):
        (root / place).mkdir(parents=True)
        (root / place / "python3").touch()
    (root / "venv" / "pyvenv.cfg").write_text(f"version = 3.12\nhome = {root}/base dir/bin  \n")
    assert venv_pythons(root / "venv") == [root / "venv/bin/python3", root / "base dir/bin/python3"]


def test_a_relocatable_binary_brings_the_libraries_beside_it(root: Path) -> None:
    (root / "app" / "bin").mkdir(parents=True)
    (root / "app" / "lib").mkdir()
    binary = root / "app" / "bin" / "x"
    binary.write_bytes(b"\x7fELF...\0$ORIGIN/../lib\0")
    assert origin_libraries(binary) is None  # no library is there
    (root / "app" / "lib" / "libx.so.1").touch()
    assert origin_libraries(binary) == root / "app" / "lib"
    binary.write_bytes(b"#!/bin/sh\n# $ORIGIN/../lib\n")
    assert origin_libraries(binary) is None
    binary.write_bytes(b"")
    assert origin_libraries(binary) is None
