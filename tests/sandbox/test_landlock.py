"""Landlock alone, applied to a process that is otherwise free: what each ABI still holds."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_os.sandbox import landlock, syscalls
from agent_os.sandbox.landlock import Rule

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(landlock.abi() == 0, reason="landlock: this kernel has none"),
]
ABIS = range(1, landlock.abi() + 1)


def alone(rules: list[Rule], attempt: Callable[[], object], use_abi: int, deny_tcp: bool = True) -> str:
    """What an attempt comes to in a child that has nothing but Landlock on."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
            landlock.restrict(rules, deny_tcp=deny_tcp, use_abi=use_abi)
            try:
                attempt()
                answer = "succeeded"
            except OSError as refusal:
                answer = type(refusal).__name__
            os.write(write, answer.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as result:
        return result.read()


@pytest.mark.parametrize("use_abi", ABIS)
def test_files_without_a_rule_are_out_of_reach(use_abi: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    read = (tmp_path / "file").read_text
    assert alone([], read, use_abi) == "PermissionError"
    assert alone([Rule(str(tmp_path), landlock.READ)], read, use_abi) == "succeeded"


@pytest.mark.parametrize("use_abi", ABIS)
def test_reading_does_not_allow_writing(use_abi: int, tmp_path: Path) -> None:
    write = lambda: (tmp_path / "new").write_text("x")  # noqa: E731
    assert alone([Rule(str(tmp_path), landlock.READ)], write, use_abi) == "PermissionError"
    assert alone([Rule(str(tmp_path), landlock.WRITE)], write, use_abi) == "succeeded"


@pytest.mark.parametrize("use_abi", ABIS)
def test_truncating_is_writing_where_the_abi_knows_it(use_abi: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    answer = alone([Rule(str(tmp_path), landlock.READ)], lambda: os.truncate(tmp_path / "file", 0), use_abi)
    assert answer == ("PermissionError" if use_abi >= 3 else "succeeded")


@pytest.mark.parametrize("use_abi", ABIS)
def test_tcp_is_out_of_reach_where_the_abi_knows_it(use_abi: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        dial = lambda: socket.socket().connect(server.getsockname())  # noqa: E731
        assert alone([], dial, use_abi) == ("PermissionError" if use_abi >= 4 else "succeeded")
        assert alone([], dial, use_abi, deny_tcp=False) == "succeeded"


@pytest.mark.parametrize("use_abi", ABIS)
def test_other_processes_cannot_be_signalled_where_the_abi_knows_it(use_abi: int) -> None:
    parent = os.getpid()
    answer = alone([], lambda: os.kill(parent, 0), use_abi)
    assert answer == ("PermissionError" if use_abi >= 6 else "succeeded")


def test_a_rule_for_something_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    assert alone([Rule(str(tmp_path / "absent"), landlock.READ)], lambda: None, landlock.abi()) == "succeeded"
