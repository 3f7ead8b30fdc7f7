"""A run followed over the death of its kernel: nothing is said twice, nothing is lost, and the end is told."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.cli.following import Unsaid
from cli.desk import AGENTCTL, SECONDS, Desk, until

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")

POLICY = """
version = 1
default = "capability"

[[rule]]
id = "gate"
effect = "ask"
what = ["file:/work/gate:write"]
"""
COUNTER = """
from agent_os import agent

@agent
async def counter(ctx):
    for n in range(1, 7):
        print("line", n, flush=True)
        await ctx.write("/work/gate" if n == 4 else "/work/n", str(n))
    return "done"
"""


def shown(said: bytes, *pieces: bytes) -> bytes:
    unsaid = Unsaid(said)
    return b"".join(unsaid(piece) for piece in pieces)


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(1, 9))
def test_what_was_said_is_left_out_however_it_comes(said: bytes, more: bytes, size: int) -> None:
    again = said + more
    assert shown(said, *(again[at : at + size] for at in range(0, len(again), size))) == more


@pytest.mark.parametrize(
    ("pieces", "rest"),
    [
        ([b"one\nt", b"wo\nthree\n"], b"three\n"),
        ([b"one\nt", b"en\n", b"two\n"], b"ten\ntwo\n"),
        ([b"other\n", b"one\n"], b"other\none\n"),
        ([b"one\n"], b""),
    ],
)
def test_from_the_first_other_line_on_all_is_shown(pieces: list[bytes], rest: bytes) -> None:
    assert shown(b"one\ntwo\n", *pieces) == rest


@pytest.mark.integration
def test_a_run_whose_kernel_is_killed_goes_on_where_it_was_and_ends_with_a_summary(tmp_path: Path) -> None:
    desk, out, err = Desk(tmp_path), tmp_path / "out", tmp_path / "err"
    desk.home.mkdir(mode=0o700)
    (desk.home / "policy.toml").write_text(POLICY)
    (desk.project / "counter.py").write_text(COUNTER)
    desk.good("run", "--discard", "--name", "counter", "--", "echo", "of an earlier one that had this name")
    command = [*AGENTCTL, "run", "--name", "counter", "counter.py:counter"]
    with err.open("wb") as errors, out.open("wb") as output:
        run = subprocess.Popen(command, env=desk.env, cwd=desk.project, stdout=output, stderr=errors)
    until(lambda: "waits for you" in err.read_text() and "line 4" in out.read_text())
    desk.kill_kernel()
    until(lambda: "counter goes on from its record" in err.read_text())
    until(lambda: desk.ask("approve", "q-1").code == 0)
    assert run.wait(SECONDS) == 0
    said = out.read_text() + err.read_text()
    assert "earlier" not in said
    assert [said.count(f"line {n}\n") for n in range(1, 7)] == [1] * 6, said
    summary = said[said.index("counter  ended 0 after ") :].splitlines()
    assert summary[1:4] == ["A  gate  1 B  protected", "A  n     1 B", "2 changes: 2 added; 1 protected"]
    assert "agentctl commit counter" in summary[4]
