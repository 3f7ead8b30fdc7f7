"""`agentctl memory`: what an agent remembers, as people and programs read it."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
WRITER = """
from agent_os import agent

@agent
async def writer(ctx):
    for number in range(1, 14):
        await ctx.write("/mem/working/note", f"draft {number} of the canary")
    await ctx.write("/mem/working/odd\\u202ename", "x")
    await ctx.write("/mem/working/raw", b"\\x00\\xff\\x1b[2J")
    await ctx.sleep(3600)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("memory"))
    desk.up()
    try:
        (desk.project / "writer.py").write_text(WRITER)
        desk.good("run", "--detach", "--name", "writer", "writer.py:writer")
        until(lambda: "/mem/working/raw" in desk.good("memory", "ls", "writer").out)
        yield desk
    finally:
        desk.down()


def test_a_list_has_the_columns_of_the_manual(home: Desk) -> None:
    lines = home.good("memory", "ls", "writer").out.splitlines()
    assert lines[0].split() == ["PATH", "SIZE", "VERSION", "WRITER", "AGE"]
    note = next(one.split() for one in lines if one.startswith("/mem/working/note"))
    assert note[1:4] == ["22", "13", "writer"]
    assert "\u202e" not in "".join(lines)
    scoped = home.good("mem", "ls", "writer", "--scope", "working").out.splitlines()
    assert [one.split()[:-1] for one in scoped] == [one.split()[:-1] for one in lines], "all but the age"
    assert home.good("memory", "ls", "writer", "--scope", "semantic").err.strip().endswith("remembers nothing there")
    rows = home.good("memory", "ls", "writer", "-o", "json").json["entries"]
    assert {one["path"] for one in rows} >= {"/mem/working/note", "/mem/working/raw"}
    assert "/mem/working/note" in home.good("memory", "ls", "writer", "-o", "name").out.split()


def test_content_is_printed_as_it_is_now_and_as_it_was(home: Desk) -> None:
    assert home.good("memory", "cat", "writer", "working/note").out == "draft 13 of the canary"
    changes = home.good("memory", "history", "writer", "working/note", "-o", "json").json["changes"]
    assert [one["version"] for one in changes] == list(range(13, 0, -1))
    second = changes[-2]
    assert home.good("memory", "cat", "writer", "working/note", "--as-of", str(second["seq"])).out.startswith("draft 2")
    assert home.good("memory", "cat", "writer", "working/note", "--version", "1").out.startswith("draft 1 ")
    told = home.good("memory", "cat", "writer", "working/note", "--version", "1", "-o", "json").json
    assert (told["source"], told["version"], told["data"]) == ("record", 1, "draft 1 of the canary")
    lines = home.good("memory", "history", "writer", "working/note").out.splitlines()
    assert lines[0].split() == ["ENTRY", "CHANGE", "VERSION", "SIZE", "WRITER", "AGE", "CONTENT"]
    assert (lines[1].endswith("kept"), lines[-1].endswith("in the record")) == (True, True)
    then = home.good("memory", "ls", "writer", "--as-of", str(second["seq"]), "-o", "json").json["entries"]
    assert [(one["path"], one["version"]) for one in then] == [("/mem/working/note", 2)]


def test_words_are_found(home: Desk) -> None:
    found = home.good("memory", "search", "writer", "CANARY", "draft").out.splitlines()
    assert found[0].split() == ["PATH", "HITS", "TEXT"]
    assert found[1].startswith("/mem/working/note")
    assert "nothing" in home.good("memory", "search", "writer", "elephant").err


def test_all_of_it_goes_into_an_archive(home: Desk, tmp_path: Path) -> None:
    file = tmp_path / "memory.tar"
    told = home.good("memory", "export", "writer", file, "-o", "json").json
    assert told["entries"] == 3
    with tarfile.open(file) as archive:
        names = {one.name for one in archive}
        raw = archive.extractfile("mem/working/raw")
        assert raw
        assert raw.read() == b"\x00\xff\x1b[2J"
    assert {"mem/working/note", "mem/working/raw"} <= names
    assert home.ask("memory", "export", "writer", file).code == 9


def test_what_is_removed_is_gone_for_the_agent_and_stays_in_the_record(home: Desk) -> None:
    unsure = home.ask("memory", "rm", "writer", "working/raw")
    assert (unsure.code, "--yes" in unsure.err) == (2, True)
    assert "would remove" in home.good("memory", "rm", "writer", "working/raw", "--dry-run").out
    assert home.ask("memory", "rm", "writer", "working/raw", "--if-version", "7", "--yes").code == 9
    assert home.good("memory", "rm", "writer", "working/raw", "--yes").out.startswith("removed /mem/working/raw")
    assert "/mem/working/raw" not in home.good("memory", "ls", "writer").out
    newest = home.good("memory", "history", "writer", "working/raw", "-o", "json").json["changes"][0]
    assert newest["change"] == "removed"
    assert newest["writer"].startswith("local:")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("ls", "nobody"), 3, "no agent 'nobody'"),
        (("ls", "writer", "/work"), 2, "not below /mem"),
        (("ls", "writer", "--as-of", "yesterday"), 2, "no entry of the journal"),
        (("ls", "writer", "--as-of", "999999999"), 2, "the newest is"),
        (("ls", "writer", "working", "--scope", "working"), 2, "one of them"),
        (("cat", "writer", "working"), 2, "is a directory"),
        (("cat", "writer", "working/nothing"), 3, "no entry"),
        (("rm", "writer", "working", "--yes"), 2, "is a directory"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)
def test_mistakes_are_told_with_the_way_out(home: Desk, words: tuple[str, ...], code: int, says: str) -> None:
    said = home.ask("memory", *words)
    assert (said.code, says in said.err) == (code, True), said
