"""kernel/beneath: nothing outside is reached, nothing blocks, and anything can be removed."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_os.kernel import beneath

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")

SECRET = "SECRET-5f1c"


@pytest.fixture
def top(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    (tmp_path / "secret").write_text(SECRET)
    directory = tmp_path / "top"
    directory.mkdir()
    (directory / "file").write_text("inside")
    fd = beneath.open_root(directory)
    yield directory, fd
    os.close(fd)


def read(root: int, path: str, resolve: int = beneath.INSIDE) -> bytes:
    return beneath.read_beneath(root, path, 100, resolve=resolve)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "up/secret", "abs", "file/../../secret", "magic/secret"])
def test_no_path_leads_outside(top: tuple[Path, int], path: str) -> None:
    directory, root = top
    (directory / "up").symlink_to("..")
    (directory / "abs").symlink_to(directory.parent / "secret")
    (directory / "magic").symlink_to(f"/proc/self/fd/{root}/..")
    with pytest.raises(OSError, match=r"cross-device|Too many levels|Not a directory"):
        read(root, path)


def test_a_link_that_stays_inside_is_followed_only_when_asked(top: tuple[Path, int]) -> None:
    directory, root = top
    (directory / "link").symlink_to("file")
    assert read(root, "link") == b"inside"
    with pytest.raises(OSError, match="not a regular file"):
        read(root, "link", beneath.PHYSICAL)
    (directory / "here").symlink_to(".")
    with pytest.raises(OSError, match="symbolic links") as caught:
        read(root, "here/file", beneath.PHYSICAL)
    assert caught.value.errno == errno.ELOOP
    assert beneath.stat_beneath(root, "here/file") is None


def test_a_nul_in_a_name_is_refused_instead_of_cutting_it(top: tuple[Path, int]) -> None:
    with pytest.raises(OSError, match="NUL"):
        read(top[1], "file\0.txt")


def test_a_fifo_is_refused_and_not_waited_for(top: tuple[Path, int]) -> None:
    directory, root = top
    os.mkfifo(directory / "pipe")
    with ThreadPoolExecutor(1) as reader:
        refused = reader.submit(read, root, "pipe").exception
        try:
            assert "not a regular file" in str(refused(30))
        finally:
            os.close(os.open(directory / "pipe", os.O_RDWR))  # whoever waits for a writer waits no longer


# Swaps `door` between a link to the file inside and one to the secret outside, as fast as it can.
_SWAP = """
import os, sys
os.chdir(sys.argv[1])
print("go", flush=True)
while True:
    for target in ("file", "../secret"):
        os.symlink(target, "swap"); os.rename("swap", "door")
"""


@pytest.mark.integration
def test_a_link_swapped_in_a_race_never_reads_the_secret(top: tuple[Path, int]) -> None:
    directory, root = top
    (directory / "door").symlink_to("file")
    swapper = subprocess.Popen([sys.executable, "-c", _SWAP, str(directory)], stdout=subprocess.PIPE)
    try:
        assert swapper.stdout
        swapper.stdout.readline()
        lost, tries, answered = 0, 0, 0
        deadline = time.monotonic() + 10
        while (lost == 0 or tries < 3000) and time.monotonic() < deadline:
            tries += 1
            lost += _checked_then_opened(directory / "door", directory) == SECRET
            content, number = _read_or_errno(root, "door")
            assert content == b"inside" or number in (errno.EXDEV, errno.EAGAIN)
            answered += content is not None
        assert answered > 0
        assert lost > 0, "positive control: a check followed by an open must lose this race"
    finally:
        swapper.kill()
        swapper.communicate()


def _read_or_errno(root: int, path: str) -> tuple[bytes | None, int | None]:
    try:
        return read(root, path), None
    except OSError as error:
        return None, error.errno


def _checked_then_opened(path: Path, above: Path) -> str:
    if not os.path.realpath(path).startswith(f"{above.resolve()}/"):
        return ""
    return path.read_text()


def test_rename_without_replace_never_overwrites(top: tuple[Path, int]) -> None:
    directory, root = top
    (directory / "new").write_text("new")
    with pytest.raises(FileExistsError):
        beneath.rename(root, "new", "file", replace=False)
    assert (directory / "file").read_text() == "inside"
    beneath.rename(root, "new", "other", replace=False)
    assert (directory / "other").read_text() == "new"


def test_a_sparse_file_is_hashed_and_copied_with_its_holes(top: tuple[Path, int]) -> None:
    directory, root = top
    with (directory / "sparse").open("wb") as file:
        file.seek(5 << 20)
        file.write(b"data")
        file.truncate(9 << 20)
    expected = hashlib.sha256((directory / "sparse").read_bytes()).hexdigest()
    with beneath.closing(beneath.open_file(root, "sparse")) as fd, (directory / "copy").open("wb") as copy:
        assert beneath.sha256(fd, into=copy.fileno()) == expected
    assert hashlib.sha256((directory / "copy").read_bytes()).hexdigest() == expected
    assert (directory / "copy").stat().st_blocks * 512 < 1 << 20


def test_removal_of_a_hostile_tree_leaves_nothing_and_follows_nothing(top: tuple[Path, int]) -> None:
    directory, root = top
    outside = directory.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    bad = directory / "bad"
    bad.mkdir()
    (bad / "link").symlink_to(outside)
    (bad / "1").mkdir()
    (bad / "1" / "2").mkdir()
    (bad / "2").write_text("in the way of a moved directory")
    (bad / "new\nline\x1b[31m").mkdir()
    os.mkdir(os.fsencode(bad) + b"/\xff\xfe")
    os.mkfifo(bad / "1" / "pipe")
    (bad / "closed").mkdir()
    (bad / "closed" / "inner").mkdir()
    (bad / "closed" / "inner").chmod(0)
    (bad / "closed").chmod(0)
    beneath.remove_tree(root, "bad")
    assert sorted(os.listdir(directory)) == ["file"]
    assert (outside / "kept").read_text() == "kept"
    beneath.remove_tree(root, "never-there")


@pytest.mark.long
def test_a_tree_deeper_than_any_path_can_be_removed(top: tuple[Path, int]) -> None:
    directory, root = top
    fd = os.dup(root)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=fd)
        inner = os.open("deeper", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    before = len(os.listdir("/proc/self/fd"))
    beneath.remove_tree(root, "deeper")
    assert os.listdir(directory) == ["file"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_errors_leave_no_descriptor_open(top: tuple[Path, int]) -> None:
    directory, root = top
    os.mkfifo(directory / "pipe")
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for path in ["pipe", "../x", "missing", "file/x"]:
        assert _read_or_errno(root, path)[1]
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads
