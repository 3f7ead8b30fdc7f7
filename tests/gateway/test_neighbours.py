"""Another user of the machine, beside a kernel and its gateway: they know every path, every process and the port."""

import json
import os
import shutil
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent_os.abi import frames
from cli.desk import SECONDS
from gateway.house import House

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="another-uid: only root can act as somebody else"),
]
NEIGHBOUR = 65_521  # nobody's
OF_A_PROCESS = ("environ", "mem", "maps", "fd", "cwd")


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """In a folder that is open to all, as a home often is: what keeps anybody out must be ours."""
    top = Path(tempfile.mkdtemp(prefix="aos-"))
    top.chmod(0o755)
    house = House(top)
    try:
        house.desk.start("worker")
        yield house
    finally:
        house.close()
        shutil.rmtree(top)


def as_neighbour(work: Callable[[], Any]) -> Any:
    """What it returns, done by a process of another user; by fork, because they may not read our interpreter."""
    theirs, ours = os.pipe()
    if not (pid := os.fork()):
        try:
            os.setgroups([])
            os.setresgid(NEIGHBOUR, NEIGHBOUR, NEIGHBOUR)
            os.setresuid(NEIGHBOUR, NEIGHBOUR, NEIGHBOUR)
            os.write(ours, json.dumps(work()).encode())
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(0)
    os.close(ours)
    with open(theirs, "rb") as said:
        text = said.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def below(home: Path) -> list[str]:
    return [str(path) for path in (home, *home.rglob("*")) if path.is_file() or path.is_dir()]


def opened(paths: list[str]) -> list[str]:
    """Those of them that can be read or, as a folder, listed."""
    found: list[str] = []
    for path in paths:
        try:
            if os.path.isdir(path):
                os.listdir(path)
            else:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        found.append(path)
    return found


def heard(path: str, word: str | None) -> str:
    """What a control socket says to one who shows that word: the name of its frame, a reason to part, or an error."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SECONDS)
            line.connect(path)
            line.sendall(frames.encode(frames.Hello(frames.ABI_MIN, frames.ABI_MAX, [], word)))
            said = frames.decode_from_kernel(frames.Splitter().feed(line.recv(65536))[0])
    except OSError as problem:
        return type(problem).__name__
    return said.reason if isinstance(said, frames.Bye) else type(said).__name__


def may_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    return True


def statuses(url: str, paths: list[str]) -> dict[str, int]:
    with httpx2.Client(base_url=url, timeout=SECONDS, trust_env=False) as client:
        return {path: client.get(path).status_code for path in paths}


def test_nothing_of_a_home_can_be_read(house: House) -> None:
    paths = below(house.desk.home)
    names = {Path(path).name for path in paths}
    assert {"operator.token", "journal.db", "keys", "gateway.log"} <= names
    assert opened(paths) == paths, "by its owner all of it is"
    assert as_neighbour(lambda: opened(paths)) == []
    modes = {path: os.stat(path).st_mode for path in paths}
    try:
        for path in paths:
            os.chmod(path, 0o755)
        assert as_neighbour(lambda: opened(paths)) == paths, "so it would be without its modes"
    finally:
        for path, mode in modes.items():
            os.chmod(path, mode)


def test_the_control_socket_knows_its_owner_even_where_everybody_may_write_to_it(house: House) -> None:
    path, token = str(house.socket), house.tokens["operator"]
    assert [heard(path, word) for word in (None, token)] == ["Welcome", "Welcome"]
    assert as_neighbour(lambda: [heard(path, word) for word in (None, token)]) == ["PermissionError"] * 2
    ways = (house.desk.home, house.socket.parent, house.socket)
    modes = [way.stat().st_mode for way in ways]
    try:
        for way in ways:
            way.chmod(0o777)
        said = as_neighbour(lambda: [heard(path, word) for word in (None, token)])
        assert [f"uid {NEIGHBOUR} is not the operator" in one for one in said] == [True, True], said
    finally:
        for way, mode in zip(ways, modes, strict=True):
            way.chmod(mode)


def test_its_processes_are_neither_looked_into_nor_signalled_and_tell_no_word_in_public(house: House) -> None:
    pids = [house.status()["pid"], house.gateway["pid"]]
    private = [f"/proc/{pid}/{name}" for pid in pids for name in OF_A_PROCESS]
    assert opened(private) == private
    assert as_neighbour(lambda: opened(private)) == []
    assert all(map(may_signal, pids))
    assert as_neighbour(lambda: [*map(may_signal, pids)]) == [False, False]
    words = [*house.tokens.values(), (house.desk.home / "operator.token").read_text().strip()]
    public = as_neighbour(lambda: [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids])
    assert all("agent_os" in line for line in public)
    assert not [word for word in words for line in public if word in line]


def test_at_the_port_everything_but_signs_of_life_and_the_page_itself_needs_a_word(house: House) -> None:
    paths = [path for path, ways in house.get("/openapi.json").json()["paths"].items() if "get" in ways]
    paths = [path.replace("{", "").replace("}", "") for path in paths] + ["/metrics", "/mcp"]
    assert len(paths) > 30
    told = as_neighbour(lambda: statuses(house.url, ["/", *paths]))
    assert {path for path, status in told.items() if status != 401} == {"/", "/healthz", "/readyz"}
    assert house.get("status").status_code == 200
