"""`agentctl memory rm --erase`: a word that was remembered is in no byte any more, and every proof still holds."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.abi.doors import Memory
from agent_os.client.wire import connect
from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
SMALL, LARGE, OTHER = "CANARY-small-7f3a", "CANARY-large-91bc", "CANARY-other-55d2"
AGENT = f"""
from agent_os import agent

@agent
async def writer(ctx):
    for number in range(12):  # more than are kept
        await ctx.write("/mem/semantic/note", f"{SMALL} {{number}}")
    await ctx.append("/mem/semantic/note", " and more")
    await ctx.write("/mem/semantic/large", "{LARGE} " + "x" * 5000)
    await ctx.write("/mem/semantic/twin", "{LARGE} " + "x" * 5000)
    await ctx.write("/mem/semantic/other", "{OTHER}")
    for path in ("note", "large", "other"):
        await ctx.read(f"/mem/semantic/{{path}}")
    return "done"

@agent
async def lives(ctx):
    await ctx.write("/mem/semantic/note", "{SMALL}")
    await ctx.sleep(3600)
"""
CAPS = ("--cap", "mem:/mem/semantic/**:read,write")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    (desk.project / "agent.py").write_text(AGENT)
    desk.up()
    desk.good("run", "--rm", "--name", "writer", *CAPS, "agent.py:writer")
    yield desk
    desk.down()


def bytes_of(desk: Desk) -> bytes:
    return b"".join(path.read_bytes() for path in desk.home.glob("journal.db*"))


def everywhere(desk: Desk, tmp_path: Path) -> bytes:
    """The database, its write-ahead file, a backup and exports that are made now."""
    backup = tmp_path / f"backup-{len(list(tmp_path.iterdir()))}"
    desk.good("backup", backup)
    exported = tmp_path / f"export-{len(list(tmp_path.iterdir()))}"
    desk.good("audit", "export", exported)
    memory = tmp_path / f"memory-{len(list(tmp_path.iterdir()))}.tar"
    desk.good("memory", "export", "writer", memory)
    return bytes_of(desk) + b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_an_erased_word_is_in_no_byte_and_the_journal_still_verifies(desk: Desk, tmp_path: Path) -> None:
    assert SMALL.encode() in bytes_of(desk)  # the control
    (first := tmp_path / "first").mkdir()
    assert SMALL.encode() in everywhere(desk, first)
    said = desk.good("memory", "rm", "writer", "semantic/note", "--erase", "--reason", "she asked for it", "--yes")
    assert "erased /mem/semantic/note of writer" in said.out
    (second := tmp_path / "second").mkdir()
    now = everywhere(desk, second)
    assert SMALL.encode() not in now
    assert OTHER.encode() in now  # and nothing else went
    assert "erased" in desk.good("audit", "verify").out
    assert desk.ask("memory", "cat", "writer", "semantic/note").code == 3
    record = desk.good("events", "-o", "json").out
    assert "she asked for it" in record
    again = desk.ask("memory", "rm", "writer", "semantic/note", "--erase", "--reason", "again", "--yes")
    assert again.code == 3, again


def test_a_body_that_another_entry_has_too_stays_there(desk: Desk) -> None:
    said = desk.good("memory", "rm", "writer", "semantic/large", "--erase", "--reason", "r", "--yes", "-o", "json").json
    assert said["shared"] == 1
    assert desk.good("memory", "cat", "writer", "semantic/twin").out.startswith(LARGE)
    last = desk.good("memory", "rm", "writer", "semantic/twin", "--erase", "--reason", "r", "--yes", "-o", "json").json
    assert (last["shared"], last["left"]) == (0, [])
    assert LARGE.encode() not in bytes_of(desk)


def test_what_an_operator_wrote_is_erased_where_it_was_asked_for_too(desk: Desk) -> None:
    word = "CANARY-operators-0c4e"

    async def write() -> None:
        async with connect(desk.home / "run/kernel.sock") as client:
            await client.call(Memory(do="write", agent="writer", path="/mem/semantic/theirs", data=word))

    asyncio.run(write())
    assert word.encode() in bytes_of(desk)
    desk.good("memory", "rm", "writer", "semantic/theirs", "--erase", "--reason", "r", "--yes")
    assert word.encode() not in bytes_of(desk)
    assert "erased" in desk.good("audit", "verify").out


def test_what_a_living_agent_is_replayed_from_is_not_erased(desk: Desk) -> None:
    desk.good("run", "--detach", "--name", "lives", *CAPS, "agent.py:lives")
    until(lambda: "SYS_SLEEP" in desk.ask("events", "--agent", "lives").out)
    words = ("memory", "rm", "lives", "semantic/note", "--erase", "--reason", "r", "--yes")
    refused = desk.ask(*words)
    assert (refused.code, "agentctl kill lives" in refused.err) == (9, True)
    assert desk.good("memory", "cat", "lives", "semantic/note").out == SMALL
    desk.good("kill", "lives")
    desk.good(*words)
    assert SMALL.encode() not in bytes_of(desk)


def test_it_wants_a_reason_and_a_yes(desk: Desk) -> None:
    words = ("memory", "rm", "writer", "semantic/other")
    assert desk.ask(*words, "--erase", "--yes").code == 2
    assert desk.ask(*words, "--reason", "r", "--yes").code == 2
    assert desk.ask(*words, "--erase", "--reason", "r").code == 2  # nobody is there to be asked
    assert "would erase /mem/semantic/other" in desk.good(*words, "--erase", "--reason", "r", "--dry-run").out
    assert desk.good("memory", "cat", "writer", "semantic/other").out == OTHER
