"""The wire is not Python's: an agent in Node, with nothing but its own few lines, speaks it."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi import frames
from agent_os.abi.errors import EDQUOT
from agent_os.sandbox.spec import GUEST_LIMITS
from agents import drive, spec_of
from userland.fake_kernel import FakeKernel
from userland.sandboxed import in_sandbox

HERE = Path(__file__).resolve().parents[2] / "examples/node"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node, which is not on the PATH")


def run(answers: Any = None, **welcome: Any) -> tuple[Any, FakeKernel]:
    ours, theirs = socket.socketpair()
    with ours, FakeKernel(theirs, answers, **welcome) as kernel:
        into_place = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.argv[2], sys.argv[2:])"
        command = [sys.executable, "-c", into_place, str(ours.fileno()), str(NODE), str(HERE / "agent.mjs")]
        ended = subprocess.run(command, capture_output=True, text=True, pass_fds=[ours.fileno()], timeout=60)
    return ended, kernel


@pytest.mark.integration
def test_it_says_hello_writes_reads_and_leaves_with_a_result() -> None:
    ended, kernel = run(input=frames.body({"name": "Ädä"}))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Hello from Node, Ädä\n", "")
    assert kernel.hello == frames.Hello(1, 1, [])
    assert kernel.entries == {"/mem/working/greeting.txt": ("Hello from Node, Ädä", 1)}
    assert kernel.exit == {"status": 0, "result": {"greeting": "Hello from Node, Ädä", "version": 1}, "failure": None}
    assert [(call.pos, call.seen) for call in kernel.calls] == [("0:1", 0), ("0:2", 1), (None, None)]


@pytest.mark.integration
def test_it_hears_a_refusal_and_says_so() -> None:
    async def full(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        raise EDQUOT("vfs.quota", "64 of 64 MiB are used")

    ended, kernel = run({"SYS_WRITE": full})
    assert (ended.returncode, ended.stderr) == (1, "64 of 64 MiB are used\n")
    assert kernel.exit is not None
    assert (kernel.exit["status"], kernel.exit["failure"]) == (1, "64 of 64 MiB are used")


@pytest.mark.integration
@pytest.mark.parametrize("what", [b"\xff\xff\xff\xff", b"\x01\0\0\0\xc1", frames.encode(frames.Bye(71, "out"))])
def test_what_is_not_the_wire_ends_it(what: bytes) -> None:
    async def garbage(kernel: FakeKernel, call: frames.Call, body: Any) -> Any:
        await kernel.send_bytes(what)
        return {}

    ended, _ = run({"SYS_WRITE": garbage})
    assert ended.returncode == 1
    assert ended.stderr


@pytest.mark.integration
@pytest.mark.skipif(not str(NODE).startswith("/usr/"), reason="needs a node that every agent sees, in /usr")
def test_it_lives_in_the_sandbox(tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "node")
    spec = spec_of(
        "guest",
        [str(NODE), "/prog/agent.mjs"],
        isolation="exec",
        env={"AGENT_OS_FD": "3"},
        limits=GUEST_LIMITS,
        exec_memfd=True,
    )
    code, said, exit = drive(lambda launcher: in_sandbox(launcher, tmp_path / "node", spec))
    assert (code, said) == (0, "Hello from Node, default/probe\n")
    assert exit["result"] == {"greeting": "Hello from Node, default/probe", "version": 1}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=15,
)


@pytest.mark.integration
@settings(max_examples=10, deadline=None)
@given(st.lists(VALUES, max_size=8))
def test_its_msgpack_means_the_same_as_ours(values: list[Any]) -> None:
    """Through Node's decoder and encoder and back."""
    code = (
        f"import {{ decode, encode }} from {json.dumps(str(HERE / 'msgpack.mjs'))};"
        "const chunks = []; for await (const c of process.stdin) chunks.push(c);"
        "process.stdout.write(encode(decode(Buffer.concat(chunks))));"
    )
    values = [*values, "\ufeffmark", "x" * 70_000, list(range(70_000)), {str(n): n for n in range(300)}, b"\0" * 300]
    command = [str(NODE), "--input-type=module", "-e", code]
    ended = subprocess.run(command, input=msgspec.msgpack.encode(values), capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert comparable(msgspec.msgpack.decode(ended.stdout)) == comparable(values)


def comparable(value: Any) -> Any:
    """JavaScript has one kind of number, and moves keys that look like one; `__proto__` is no key there."""
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items() if key != "__proto__"}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
