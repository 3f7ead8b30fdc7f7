"""A kernel that nobody asked to stay: the next run finds it warm, it holds nothing meanwhile, and it ends by itself."""

import asyncio
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import leftovers
from agent_os.abi.doors import Gateway
from agent_os.abi.errors import EBUSY
from agent_os.abi.syscalls import ListAgents
from agent_os.client import start
from agent_os.client.start import build, session
from agent_os.kernel.authority import keys
from agent_os.kernel.authority.secrets import Safe
from guests.agentctl import AGENTCTL

SECONDS = 120  # a safety limit
AGENT = "from agent_os import agent\n\n@agent\nasync def hello(ctx):\n    await ctx.write('/mem/working/x', 'y')\n"
MANIFEST = 'name = "declared"\nrole = "worker"\n[program]\nargv = ["true"]\n'


class Place:
    """A project and a home of its own, whose kernel is left alone for ten minutes."""

    def __init__(self, top: Path) -> None:
        self.home, self.project = top / "state", top / "project"
        self.project.mkdir()

    def ctl(self, *words: str, code: int = 0, **env: str) -> str:
        env = {**os.environ, **env}
        done = subprocess.run(
            [*AGENTCTL, *words], cwd=self.project, env=env, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == code, done
        return done.stdout + done.stderr

    @property
    def kernel(self) -> int:
        return json.loads(self.ctl("status", "-o", "json"))["pid"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    leftovers.adopt_orphans()
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AGENT_OS_IDLE_EXIT", "10m")
    place = Place(tmp_path)
    yield place
    place.ctl("down")
    assert leftovers.becomes_true(lambda: not leftovers.processes()), leftovers.processes()


@pytest.mark.integration
def test_the_second_run_finds_the_kernel_of_the_first_whatever_it_runs(place: Place) -> None:
    (place.project / "hello.py").write_text(AGENT)
    (place.project / "declared.agent.toml").write_text(MANIFEST)
    told = place.ctl("run", "--", "true")
    kernel = place.kernel
    assert f"process {kernel}; it stops 10m after its last agent" in told
    for words in (["--", "true"], ["hello.py:hello"], ["declared.agent.toml"]):
        assert "started in the background" not in place.ctl("run", *words)
        assert place.kernel == kernel
        assert "stops 10m after its last agent" in place.ctl("status")
    place.ctl("up", "--detach", "--no-ui")
    assert place.kernel == kernel
    assert "stays until agentctl down" in place.ctl("status")


@pytest.mark.integration
@pytest.mark.parametrize("words", [("--", "true"), ("hello.py:hello",), ("declared.agent.toml",)])
def test_it_ends_so_long_after_its_last_agent(place: Place, words: tuple[str, ...]) -> None:
    (place.project / "hello.py").write_text(AGENT)
    (place.project / "declared.agent.toml").write_text(MANIFEST)
    place.ctl("run", *words, AGENT_OS_IDLE_EXIT="1")
    assert leftovers.becomes_true(lambda: not (place.home / "run/kernel.sock").exists())
    assert leftovers.becomes_true(lambda: not leftovers.processes())


@pytest.mark.integration
def test_while_idle_it_holds_no_gateway_and_listens_at_its_socket_alone(place: Place) -> None:
    async def with_a_gateway() -> tuple[int, int]:
        async with session() as (client, _):
            gateway = (await client.call(Gateway(do="start", port=0)))["gateway"]
            return client.pid, gateway["pid"]

    kernel, gateway = asyncio.run(with_a_gateway())
    assert leftovers.becomes_true(lambda: gateway not in leftovers.processes())
    (listener,) = listeners(kernel)
    assert re.fullmatch(rf"/proc/self/fd/\d+/\.kernel\.sock-{kernel}", listener)  # as it was bound


def listeners(pid: int) -> set[str]:
    """Where a process listens: paths of its sockets, and addresses of its ports."""
    links = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    inodes = {link[8:-1] for link in links if link.startswith("socket:")}
    found: set[str] = set()
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if inode in inodes and int(flags, 16) & 0x10000:
            found.add("".join(path))
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes and words[3] == "0A":
                found.add(words[1])
    return found


def test_a_key_that_can_be_read_again_is_forgotten(tmp_path: Path) -> None:
    safe = Safe.of_home(tmp_path, {})
    safe.add("token", b"0123456789")
    assert safe.is_open
    safe.lock()
    assert not safe.is_open
    assert [one.name for one in safe.listed()] == ["token"]


def test_a_passphrase_from_a_pipe_cannot_be_read_again_and_is_kept(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    safe = Safe(tmp_path, keys.Source("passphrase", pipe))
    giving = threading.Thread(target=pipe.write_bytes, args=(b"correct horse battery\n",))
    giving.start()
    safe.add("token", b"0123456789")
    giving.join()
    safe.lock()
    assert safe.is_open


@pytest.mark.integration
def test_other_code_replaces_an_idle_kernel_and_is_refused_by_a_busy_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.ctl("run", "--", "true")
    before = place.kernel
    monkeypatch.setattr(start, "build", lambda: "0.1.0-another")
    place.ctl("ps")  # the kernel's own code: taken as it is
    assert place.kernel == before

    async def kernel(*, same: bool) -> int:
        async with session(same=same) as (client, _):
            await client.call(ListAgents())
            return client.pid

    after = asyncio.run(kernel(same=True))
    assert after != before
    assert before not in leftovers.processes()

    place.ctl("run", "-d", "--name", "busy", "--", "sleep", "1000")
    with pytest.raises(EBUSY, match=f"process {after}, is in use and of another version") as refused:
        asyncio.run(kernel(same=True))
    assert "agentctl down" in refused.value.hint
    assert asyncio.run(kernel(same=False)) == after  # it can be looked at and stopped
    place.ctl("kill", "busy")
    place.ctl("up", "--detach", "--no-ui")
    with pytest.raises(EBUSY):  # nobody's work, but somebody asked it to stay
        asyncio.run(kernel(same=True))


def test_a_build_changes_with_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room/a.py").write_text("1")
    monkeypatch.setattr(start.agent_os, "__file__", str(tmp_path / "__init__.py"))
    first = build()
    assert re.fullmatch(r"[\d.]+-[0-9a-f]{8}", first)
    assert build() == first
    (tmp_path / "room/a.py").write_text("2 ")
    second = build()
    (tmp_path / "room/b.py").write_text("")
    assert len({first, second, build()}) == 3
