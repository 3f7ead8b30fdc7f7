"""What a guest's files take on disk, named or not."""

import os
import threading
from pathlib import Path

import pytest

from agent_os.kernel.guest import disk

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")

MB = 1 << 20


def test_disk_use_counts_blocks_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(bytes(100_000))
    (tmp_path / "in" / "sparse").touch()
    os.truncate(tmp_path / "in" / "sparse", 1 << 30)
    (tmp_path / "out").write_bytes(bytes(1_000_000))
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    assert 100_000 <= disk.used(tmp_path / "in") < 200_000


def test_a_deleted_file_counts_while_it_is_open_and_once_however_often(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    before = disk.nameless([os.getpid()])[device]
    with open(tmp_path / "file", "wb") as file, open(tmp_path / "file", "rb"):
        file.write(os.urandom(3 * MB))
        file.flush()
        os.fsync(file.fileno())
        assert disk.nameless([os.getpid()])[device] == before  # it has a name: the walk of the tree counts it
        os.unlink(tmp_path / "file")
        assert 3 * MB <= disk.nameless([os.getpid()])[device] - before < 4 * MB
    assert disk.nameless([os.getpid()])[device] == before


def test_a_thread_cannot_hide_it_in_a_table_of_its_own(tmp_path: Path) -> None:
    import ctypes

    device = tmp_path.stat().st_dev
    before = disk.nameless([os.getpid()])[device]
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
        fd = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
        os.write(fd, os.urandom(2 * MB))
        os.fsync(fd)
        ready.set()
        done.wait(30)
        os.close(fd)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert ready.wait(30)
        assert disk.nameless([os.getpid()])[device] - before >= 2 * MB
    finally:
        done.set()
        thread.join()


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert disk.nameless([2**22 + 1]) == {}
