"""kernel/vfs/directory: nothing outside is reached, a write is whole or not there, special files are left alone."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.abi.errors import EACCES, EAGAIN, EBUSY, ECONFLICT, EINVAL, EISOLATION, ENOENT, AgentOSError
from agent_os.kernel import beneath
from agent_os.kernel.vfs.directory import DirectoryBackend
from agent_os.kernel.vfs.files import TEMPORARY, refusal
from agent_os.kernel.vfs.sources import Whole

pytestmark = pytest.mark.uid_free("an agent sees the same tree for every user")

SECRET = b"SECRET-91ab"


def mount(directory: Path, **more: object) -> DirectoryBackend:
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        return DirectoryBackend(fd, **more)  # pyright: ignore
    finally:
        os.close(fd)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "top").mkdir()
    return tmp_path / "top"


@pytest.fixture
def backend(top: Path) -> Iterator[DirectoryBackend]:
    made = mount(top)
    yield made
    made.close()


def read(backend: DirectoryBackend, path: str) -> bytes:
    content = backend.read(backend.real(path), None)
    try:
        return content.read(0, 1 << 20)
    finally:
        content.close()


@pytest.mark.parametrize("link", ["../secret", "/etc/passwd", "d/../../secret", "/proc/self/root/etc/passwd", "loop"])
def test_a_link_that_leads_out_is_refused(backend: DirectoryBackend, top: Path, link: str) -> None:
    (top / "d").mkdir()
    (top / "loop").symlink_to("loop")
    (top / "link").symlink_to(link)
    with pytest.raises(EACCES):
        read(backend, "link")
    with pytest.raises(EACCES):
        backend.real("link/below")


def test_links_inside_are_followed_and_written_through(backend: DirectoryBackend, top: Path) -> None:
    (top / "d" / "e").mkdir(parents=True)
    (top / "d" / "file").write_bytes(b"inside")
    (top / "d" / "e" / "up").symlink_to("../file")
    (top / "to").symlink_to("d/e")
    (top / "new").symlink_to("d/made")
    assert backend.real("to/up") == "d/file"
    assert read(backend, "to/up") == b"inside"
    backend.write(backend.real("new"), Whole(b"through"))
    assert (top / "d" / "made").read_bytes() == b"through"
    assert (top / "new").is_symlink()


def test_a_link_that_was_not_resolved_is_never_opened(backend: DirectoryBackend, top: Path) -> None:
    (top / "file").write_bytes(b"inside")
    (top / "link").symlink_to("file")
    for attempt in (
        lambda: backend.read("link", None),
        lambda: backend.write("link", Whole(b"x")),
        lambda: backend.append("link", Whole(b"x")),
    ):
        with pytest.raises(EINVAL):
            attempt()
    assert (top / "file").read_bytes() == b"inside"


class Swapper(threading.Thread):
    """Makes `d` a directory and a link to the outside, in turn, as fast as it can."""

    def __init__(self, top: Path) -> None:
        super().__init__(daemon=True)
        (top / "real").mkdir()
        (top / "real" / "secret").write_bytes(b"harmless")
        (top / "outward").symlink_to("..")
        (top / "d").symlink_to("real")
        self.root = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        self.over = threading.Event()
        self.swaps = 0

    def run(self) -> None:
        while not self.over.is_set():
            for target in ("..", "real"):
                os.symlink(target, "next", dir_fd=self.root)
                os.rename("next", "d", src_dir_fd=self.root, dst_dir_fd=self.root)
                self.swaps += 1

    def stop(self) -> None:
        self.over.set()
        self.join()
        os.close(self.root)


def _checked_then_opened(top: Path, path: str) -> bytes:
    """What everybody writes first: look where it leads, then open it."""
    if not os.path.realpath(top / path).startswith(os.path.realpath(top) + "/"):
        return b""
    return (top / path).read_bytes()


@pytest.mark.long
def test_a_link_swapped_during_the_open_never_leads_out(backend: DirectoryBackend, top: Path) -> None:
    swapper = Swapper(top)
    swapper.start()
    lost = opened = 0
    deadline = time.monotonic() + 20
    enough = time.monotonic() + 2
    try:
        # Until the naive way has lost: then the race was there to be lost by ours as well.
        while time.monotonic() < deadline and (not lost or time.monotonic() < enough or opened < 100):
            lost += _checked_then_opened(top, "d/secret") == SECRET
            for _ in range(10):
                try:
                    assert read(backend, "d/secret") == b"harmless"
                    opened += 1
                except (EACCES, EAGAIN, ENOENT, EINVAL):
                    continue
    finally:
        swapper.stop()
    assert swapper.swaps > 1000
    assert opened >= 100
    assert lost, "the positive control lost no race: this run proved nothing"


def test_writes_under_a_swapped_link_stay_inside(backend: DirectoryBackend, top: Path) -> None:
    swapper = Swapper(top)
    swapper.start()
    written = 0
    deadline = time.monotonic() + 10
    try:
        while written < 100 and time.monotonic() < deadline:
            for change in (backend.write, backend.append):
                try:
                    change(backend.real("d/mine"), Whole(b"x"))
                    written += 1
                except (EACCES, EAGAIN, ENOENT, EINVAL):
                    continue
    finally:
        swapper.stop()
    assert written >= 100
    assert not (top.parent / "mine").exists()
    assert (top.parent / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_special_files_are_not_opened_and_nobody_waits_for_them(
    backend: DirectoryBackend, top: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.chdir(top)  # a socket's path is short
    if kind == "fifo":
        os.mkfifo("special")
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("special")
    began = time.monotonic()
    for attempt in (
        lambda: backend.read("special", None),
        lambda: backend.write("special", Whole(b"x")),
        lambda: backend.append("special", Whole(b"x")),
    ):
        with pytest.raises(EINVAL, match="regular"):
            attempt()
    assert time.monotonic() - began < 5
    facts = backend.stat("special")
    assert facts
    assert facts.kind == "other"
    backend.remove("special")
    assert not os.path.lexists("special")


def test_a_replace_keeps_the_mode_and_leaves_no_temporary_file(backend: DirectoryBackend, top: Path) -> None:
    (top / "run.sh").write_text("old")
    (top / "run.sh").chmod(0o750)
    backend.write("run.sh", Whole("new"))
    assert (top / "run.sh").stat().st_mode & 0o777 == 0o750
    assert os.listdir(top) == ["run.sh"]


def test_a_change_behind_our_back_is_a_conflict(backend: DirectoryBackend, top: Path) -> None:
    version = backend.write("x", Whole(b"ours")).version
    (top / "x").write_bytes(b"theirs!")
    with pytest.raises(ECONFLICT):
        backend.write("x", Whole(b"again"), if_version=version)
    assert (top / "x").read_bytes() == b"theirs!"


def test_of_many_threads_with_one_version_one_wins(backend: DirectoryBackend, top: Path) -> None:
    version = backend.write("x", Whole(b"start")).version
    won: list[int] = []
    begin = threading.Barrier(8)

    def race(number: int) -> None:
        begin.wait()
        try:
            backend.write("x", Whole(str(number)), if_version=version)
            won.append(number)
        except ECONFLICT:
            pass

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (top / "x").read_bytes() == str(won[0]).encode()


def test_names_that_cannot_be_said_are_counted_not_shown(backend: DirectoryBackend, top: Path) -> None:
    for name in (b"fine", b"\xff\xfe", "cafe\u0301".encode(), b"a\nb", TEMPORARY.encode() + b"1"):
        (Path(os.fsdecode(os.fsencode(top) + b"/" + name))).touch()
    page = backend.list("", "", 100)
    assert [one.name for one in page.entries] == ["fine"]
    assert page.hidden == 3


def test_an_empty_directory_can_be_removed_and_a_full_one_not(backend: DirectoryBackend, top: Path) -> None:
    backend.write("d/x", Whole(b"1"))
    with pytest.raises(EBUSY):
        backend.remove("d")
    backend.remove("d/x")
    backend.remove("d")
    assert os.listdir(top) == []


def test_without_openat2_the_mount_is_refused(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(beneath, "open_beneath", missing)
    with pytest.raises(EISOLATION, match="openat2"):
        mount(top)


def test_what_is_no_directory_is_not_mounted(top: Path) -> None:
    (top / "f").touch()
    fd = os.open(top / "f", os.O_RDONLY)
    try:
        with pytest.raises(AgentOSError):
            DirectoryBackend(fd)
    finally:
        os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another owner")
def test_the_thread_has_the_rights_of_the_directorys_owner(top: Path) -> None:
    os.chmod(top, 0o755)
    os.chown(top, 12345, 12345)
    (top / "roots").write_bytes(SECRET)
    (top / "roots").chmod(0o600)
    backend = mount(top)
    try:
        backend.run(lambda: backend.write("mine", Whole(b"x"))).result()
        assert (top / "mine").stat().st_uid == 12345
        with pytest.raises(EACCES):
            backend.run(lambda: read(backend, "roots")).result()
        assert os.geteuid() == 0
        assert (top / "roots").read_bytes() == SECRET, "the calling thread keeps its rights"
    finally:
        backend.close()


KILLED = """
import os, sys
from agent_os.kernel.vfs.directory import DirectoryBackend
from agent_os.kernel.vfs.sources import Whole
backend = DirectoryBackend(os.open(sys.argv[1], os.O_PATH))
print("ready", flush=True)
n = 0
while True:
    n += 1
    backend.write("x", Whole(bytes([n % 251]) * 3_000_000))
    os.write(1, b"%d\\n" % n)
"""


@pytest.mark.integration
def test_kill_9_during_a_write_leaves_old_or_new(top: Path) -> None:
    in_the_middle = 0
    for attempt in range(15):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(top)], stdout=subprocess.PIPE)
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        for _ in range(attempt % 3 + 1):
            child.stdout.readline()
        # Somewhere within a later write, at another place each time.
        deadline = time.monotonic() + 0.0007 * attempt
        while time.monotonic() < deadline:
            pass
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        in_the_middle += any(name.startswith(TEMPORARY) for name in os.listdir(top))
        data = (top / "x").read_bytes()
        assert len(data) == 3_000_000
        assert set(data) == {data[0]}
    assert in_the_middle, "no kill fell into a write: this run proved nothing"
    backend = mount(top)
    backend.write("x", Whole(b"after"))
    assert os.listdir(top) == ["x"], "what a killed write left is taken over by the next"
    backend.close()


def test_closing_waits_for_nobody_and_finishes_what_is_under_way(top: Path) -> None:
    backend = mount(top)
    go_on = threading.Event()
    slow = backend.run(lambda: go_on.wait(30))
    last = backend.run(lambda: backend.stat(""))
    began = time.monotonic()
    backend.close()
    assert time.monotonic() - began < 15, "it waited for what only the next line lets go on"
    go_on.set()
    assert slow.result(30)
    facts = last.result(30)
    assert facts is not None
    assert facts.kind == "directory"


def test_a_file_of_somebody_whom_agents_do_not_know_is_refused_in_words() -> None:
    refused = refusal(OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW)), "x")
    assert isinstance(refused, EACCES)
    assert "belongs to" in refused.reason
