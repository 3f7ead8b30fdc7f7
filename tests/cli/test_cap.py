"""`agentctl cap`, `can`, `explain` and `run --cap` as real commands, with real agents and kernels that are killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
WRITER = """
from agent_os import agent

@agent
async def writer(ctx):
    written = 0
    while True:
        try:
            await ctx.write(f"/mem/semantic/{written}", "x")
            written += 1
            print("wrote", written, flush=True)
        except Exception as error:
            if "exhausted" in str(error):
                return written
        await ctx.sleep(0.2)
"""
FAMILY = """
from agent_os import agent

@agent
async def parent(ctx):
    manifest = {"name": "child", "program": {"runtime": "python", "entry": "family.py:child"}}
    await ctx.spawn(manifest, caps=["mem:/mem/semantic/**:write{count:5}"])
    try:
        await ctx.spawn({**manifest, "name": "second"})
    except Exception as error:
        print(error, flush=True)
    await ctx.sleep(3600)

@agent
async def child(ctx):
    await ctx.write("/mem/semantic/x", "y")
    await ctx.write("/work/own", "mine")
    await ctx.sleep(3600)
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.up()
    yield desk
    desk.down()


def handle(desk: Desk, agent: str, begins: str) -> str:
    rows = desk.good("cap", "ls", agent, "--json").json["capabilities"]
    return next(row["handle"] for row in rows if row["capability"].startswith(begins))


def state(desk: Desk, name: str) -> str:
    rows = desk.good("ps", "--all", "-o", "json").json["agents"]
    return next((row["state"] for row in rows if row["name"] == name), "gone")


def kill_kernel(desk: Desk) -> None:
    os.kill(desk.good("status", "--json").json["pid"], signal.SIGKILL)


def test_what_an_agent_holds_is_shown_explained_widened_and_taken_back(desk: Desk) -> None:
    (desk.project / "worker.py").write_text(WRITER)
    desk.good("run", "-d", "--name", "w", "--cap", "tool:pay:call{count:3}", "--budget", "0.50usd", "worker.py:writer")
    listed = desk.good("cap", "ls").out
    assert listed.splitlines()[0].split() == ["HANDLE", "AGENT", "CAPABILITY", "FROM", "TTL", "USES", "OPEN"]
    assert "tool:pay:call{count:3}" in listed
    assert "mem:/mem/working" not in listed
    assert "mem:/mem/working" in desk.good("cap", "ls", "w", "--all").out
    assert "$0.50" in desk.good("budget", "ls", "w").out

    refused = desk.ask("can", "w", "mem:/mem/semantic/0:write")
    assert (refused.code, refused.out.split(":")[0]) == (4, "no")
    why = desk.good("explain", "w", "mem:/mem/semantic/0:write").out
    assert why.startswith("REFUSED   mem:/mem/semantic/0:write\n")
    assert "2 capability  refuse" in why
    assert why.endswith("to allow  agentctl cap grant w mem:/mem/semantic/0:write --ttl 10m\n")
    until(lambda: "REFUSED" in desk.ask("events", "--agent", "w").out)
    entries = [line for line in desk.good("events", "--agent", "w").out.splitlines() if "REFUSED" in line]
    seq = entries[0].split()[0]
    past = desk.good("explain", f"d-{seq}").out
    assert f"audit #{seq}" in past
    assert past.endswith(why.splitlines()[-1] + "\n")
    assert desk.good("explain", "--seq", seq).out == past

    granted = desk.good("cap", "grant", "w", "mem:/mem/semantic/**:write", "--ttl", "10m").out
    number = granted.split()[1]
    assert desk.good("can", "w", "mem:/mem/semantic/0:write").out == "yes\n"
    assert f"{number} mem:/mem/semantic/**:write" in desk.good("cap", "tree", "w").out
    assert desk.good("cap", "revoke", number).out == f"revoked  {number}\n"
    told = desk.good("events", "--agent", "w", "-n", "1000").out
    assert f"{number} capability://mem/mem/semantic/**?action=write" in told
    assert any("revoke" in line and number in line for line in told.splitlines())
    assert desk.ask("can", "w", "mem:/mem/semantic/0:write").code == 4


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["cap", "grant", "w", "tool:x:dance"], 3, "no agent"),
        (["cap", "grant", "w", "tool:x:call", "--ttl", "soon"], 2, "10m"),
        (["cap", "revoke", "c-99"], 3, "c-99"),
        (["cap", "revoke", "nonsense"], 2, "c-12"),
        (["cap", "ls", "nobody"], 3, "nobody"),
        (["explain"], 2, "d-5512"),
        (["explain", "d-999999"], 3, "999999"),
        (["can", "nobody", "tool:x:call"], 3, "nobody"),
        (["run", "--cap", "tool:x:dance", "--", "true"], 125, "position 7"),
        (["run", "--budget", "much", "--", "true"], 125, "0.50usd"),
        (["run", "--budget", "bytes=1MB", "--budget", "bytes=2MB", "--", "true"], 125, "bytes is there twice"),
        (["run", "--cap", "file:/work/x:read{count:3", "--", "true"], 125, "file:/work/x:read{count:3}"),
        (["can", "w", ""], 2, "can what?"),
        (["can", "nobody", "tool:x:call"], 3, "no agent 'nobody'"),
    ],
)
def test_bad_words_are_refused_with_what_to_do(desk: Desk, words: list[str], code: int, says: str) -> None:
    said = desk.ask(*words)
    assert said.code == code, said
    assert says in said.err


def test_revoking_a_mount_kills_who_has_it_and_its_next_life_is_without(desk: Desk, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_text("there")
    (desk.project / "looker.py").write_text(
        "import os\nfrom agent_os import agent\n\n@agent\nasync def looker(ctx):\n"
        f"    print('sees', os.path.exists('{data}/x'), flush=True)\n    await ctx.sleep(3600)\n"
    )
    desk.good("run", "-d", "--name", "looker", "--mount", str(data), "looker.py:looker")
    desk.good("run", "-d", "--name", "guest", "--mount", f"rw:{data}", "--", "sleep", "3600")
    until(lambda: "sees True" in desk.ask("logs", "looker").out)

    spared = desk.good("cap", "revoke", "--future-only", handle(desk, "guest", f"file:{data}"))
    assert "killed" not in spared.out
    assert "keeps its mount" in spared.err
    assert state(desk, "guest") == "running"

    told = desk.good("cap", "revoke", handle(desk, "looker", f"file:{data}"))
    assert "killed   looker" in told.out
    until(lambda: "sees False" in desk.ask("logs", "looker").out)

    assert "killed   guest" in desk.good("cap", "revoke", handle(desk, "guest", "file:/work")).out
    assert state(desk, "guest") in ("failed", "gone"), "it is over when revoke returns"
    desk.good("cap", "revoke", handle(desk, "looker", "file:/work"))
    until(lambda: state(desk, "looker") in ("failed", "gone"))  # its program lies in what was taken back


def test_a_grant_and_its_uses_survive_a_killed_kernel(desk: Desk) -> None:
    in_time = WRITER.replace("sleep(0.2)", "sleep(8 if written == 2 else 0.2)")  # for the kill after its second
    (desk.project / "worker.py").write_text(in_time)
    desk.good("run", "-d", "--name", "w", "worker.py:writer")
    until(lambda: "REFUSED" in desk.ask("events", "--agent", "w").out)
    granted = desk.good("cap", "grant", "w", "mem:/mem/semantic/**:write", "--uses", "6").out.split()[1]
    kill_kernel(desk)  # between the grant and its use, or in the middle of it
    until(lambda: "wrote 2" in desk.ask("logs", "w").out)
    kill_kernel(desk)
    ended = desk.ask("wait", "w", "--json")
    assert ended.json["result"] == 6, ended
    assert granted not in desk.good("cap", "ls").out, "it has ended, and nothing of it is left"


def test_children_hold_part_of_what_their_parent_does_and_go_with_it(desk: Desk) -> None:
    (desk.project / "family.py").write_text(FAMILY)
    caps = ("--cap", "mem:/mem/semantic/**:write{count:9}", "--cap", "agent:*:spawn{max:1}")
    desk.good("run", "-d", "--name", "top", *caps, "family.py:parent")
    until(lambda: "exhausted: max 1 of 1" in desk.ask("logs", "top").out)
    until(lambda: "/work/own" in desk.ask("events", "--agent", "child").out)
    tree = desk.good("cap", "tree", "top").out.splitlines()
    spent = next(line for line in tree if "count:9" in line)
    assert spent.rstrip().endswith("uses 1/9"), "what the child uses is charged to its parent"
    assert any(line.startswith("└") and "top → child" in line for line in tree), tree
    kill_kernel(desk)
    desk.good("events", "--agent", "child")  # a kernel is started for it, and goes on with them
    until(lambda: state(desk, "child") == "running")
    row = next(row for row in desk.good("cap", "tree", "top", "--json").json["capabilities"] if row["agent"] == "child")
    assert row["parent"]
    told = desk.good("cap", "revoke", handle(desk, "top", "file:/work")).out
    assert "killed   child" in told
    assert "killed   top" in told


def test_whether_an_agent_may_spawn_what_a_manifest_says(desk: Desk) -> None:
    (desk.project / "family.py").write_text(FAMILY)
    caps = ("--cap", "agent:*:spawn", "--cap", "mem:/mem/semantic/**:write{count:5}")
    desk.good("run", "-d", "--name", "p", *caps, "family.py:parent")
    good, bad, broken = (desk.project / f"{name}.agent.toml" for name in ("good", "bad", "broken"))
    program = '[program]\nentry = "family.py:child"\n'
    good.write_text(f'name = "good"\nrole = "worker"\n{program}')
    bad.write_text(f'name = "bad"\nrole = "worker"\ntools = ["pay"]\n{program}')
    broken.write_text('name = "broken"\nrole = "worker"\n[helth]\n')
    assert desk.good("can", "p", str(good)).out == "yes\n"
    refused = desk.ask("can", "p", str(bad))
    assert (refused.code, refused.out) == (4, "no: tools asks for tool:pay:call, which is more than you may give\n")
    lines = desk.good("explain", "p", str(bad)).out.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("  7")] == [["7", "ceiling", "refuse"]]
    unread = desk.ask("can", "p", str(broken))
    assert unread.code == 2
    assert "broken.agent.toml:3: helth" in unread.err
    assert desk.ask("can", "p", str(desk.project / "none.agent.toml")).code != 0
