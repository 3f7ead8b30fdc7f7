"""The file tools over a real folder: ranges, hashes, edits that are told from a crash, searches that end."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import (
    EACCES,
    ECONFLICT,
    EEXIST,
    EINVAL,
    EISDIR,
    EMSGSIZE,
    ENOENT,
    EPERM,
    AgentOSError,
)
from agent_os.drivers.tools import files
from agent_os.kernel.supervisor.regex import Regex
from agent_os.kernel.tools.registry import Deed, Registry, Verified
from agent_os.kernel.tools.schema import Schema
from drivers.tools.means import Tree, run, tree


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Tree]:
    with tree(tmp_path) as found:
        yield found


def read(work: Tree, **params: Any) -> dict[str, Any]:
    found = run(files.read(params, work.files, work.keep))
    Schema(files.READ.output_schema).require(found, "it", ran=True)
    return found


def test_every_spec_can_be_registered_with_its_deed() -> None:
    async def nothing(call: Any) -> None: ...

    async def verify(call: Any) -> Verified:
        return Verified("unsure")

    there = Registry(lambda: 0.0)
    for spec in files.SPECS:
        there.register(spec, Deed(nothing, verify=verify if spec.effect == "verifiable" else None))
    assert [one.name for one in there.list()] == ["file.edit", "file.list", "file.read", "file.search", "file.write"]


def test_a_text_is_read_with_its_hash(work: Tree) -> None:
    (work.place / "a.txt").write_text("grüße\n")
    found = read(work, path="/work/a.txt")
    assert (found["text"], found["size"], found["more"]) == ("grüße\n", 8, False)
    assert found["hash"] == files.hash_of("grüße\n".encode())


def test_a_range_that_tears_characters_is_still_a_text(work: Tree) -> None:
    (work.place / "a.txt").write_text("äöü€")
    found = read(work, path="/work/a.txt", offset=1, limit=4)
    assert found["text"] == "\ufffdö\ufffd"
    assert found["more"]
    assert "hash" not in found


def test_what_is_no_text_comes_as_a_blob(work: Tree) -> None:
    raw = bytes(range(256))
    (work.place / "a.bin").write_bytes(raw)
    found = read(work, path="/work/a.bin")
    assert found["text"] == ""
    assert work.bodies[found["blob"]] == raw


def test_a_large_file_is_read_in_pieces(work: Tree) -> None:
    text = "line\n" * 400_000
    (work.place / "large.txt").write_text(text)
    found = run(work.files.read("/work/large.txt"))
    assert found.data.decode() == text
    assert read(work, path="/work/large.txt")["more"]


def test_what_is_not_there_is_not_a_file_or_lies_outside_is_refused(work: Tree, tmp_path: Path) -> None:
    (work.place / "folder").mkdir()
    (work.place / "out").symlink_to("/etc/passwd")
    os.mkfifo(work.place / "pipe")
    for path, error in (
        ("/work/none", ENOENT),
        ("/work/folder", EISDIR),
        ("/elsewhere", ENOENT),
        ("/work/../x", EINVAL),
    ):
        with pytest.raises(error):
            read(work, path=path)
    for path in ("/work/out", "/work/pipe"):
        with pytest.raises(AgentOSError) as caught:
            read(work, path=path)
        assert "root:" not in str(caught.value)


def test_what_a_link_leads_to_is_what_is_judged(work: Tree) -> None:
    (work.place / "secret").write_text("s")
    (work.place / "link").symlink_to("secret")
    work.forbidden.add("/work/secret")
    with pytest.raises(EPERM):
        read(work, path="/work/link")
    assert [need.target for need in work.touched] == ["/work/secret"]


# Writing.


def write(work: Tree, **params: Any) -> dict[str, Any]:
    return run(files.write(params, work.files))


def test_writing_replaces_creates_and_appends(work: Tree) -> None:
    assert write(work, path="/work/new/a.txt", content="one\n")["size"] == 4
    write(work, path="/work/new/a.txt", content="two\n", mode="append")
    assert (work.place / "new/a.txt").read_text() == "one\ntwo\n"
    with pytest.raises(EEXIST):
        write(work, path="/work/new/a.txt", content="", mode="create")
    write(work, path="/work/new/a.txt", content="three")
    assert (work.place / "new/a.txt").read_text() == "three"


def test_a_write_over_something_else_than_was_expected_changes_nothing(work: Tree) -> None:
    (work.place / "a.txt").write_text("mine")
    with pytest.raises(ECONFLICT) as caught:
        write(work, path="/work/a.txt", content="x", expect_hash=files.hash_of(b"yours"))
    assert caught.value.detail["hash"] == files.hash_of(b"mine")
    assert (work.place / "a.txt").read_text() == "mine"
    write(work, path="/work/a.txt", content="x", expect_hash=files.hash_of(b"mine"))
    assert (work.place / "a.txt").read_text() == "x"


def test_memory_is_not_written_as_a_file(work: Tree) -> None:
    with pytest.raises(EINVAL) as caught:
        write(work, path="/mem/working/a", content="x")
    assert caught.value.code == "file.memory"


def test_only_replacing_may_happen_twice() -> None:
    assert files.WRITE.effect_of({"path": "/a", "content": ""}) == "idempotent"
    assert files.WRITE.effect_of({"mode": "append"}) == "opaque"


# Editing.


def edit(work: Tree, **params: Any) -> dict[str, Any]:
    async def both() -> dict[str, Any]:
        return await files.edit(params, await files.plan_edit(params, work.files), work.files)

    return run(both())


def test_an_edit_changes_one_place(work: Tree) -> None:
    (work.place / "a.py").write_text("a = 1\nb = 2\n")
    found = edit(work, path="/work/a.py", old="b = 2", new="b = 3")
    assert (work.place / "a.py").read_text() == "a = 1\nb = 3\n"
    assert found["hash"] == files.hash_of(b"a = 1\nb = 3\n")


@pytest.mark.parametrize(("old", "count"), [("x", 0), ("a", 2), ("\n", 2)])
def test_what_is_not_there_once_is_refused_with_the_count(work: Tree, old: str, count: int) -> None:
    (work.place / "a.py").write_text("a\na\n")
    with pytest.raises(EINVAL) as caught:
        edit(work, path="/work/a.py", old=old, new="z")
    assert caught.value.detail["count"] == count
    assert (work.place / "a.py").read_text() == "a\na\n"


def test_overlapping_places_are_more_than_one(work: Tree) -> None:
    (work.place / "a").write_text("aaa")
    with pytest.raises(EINVAL):
        edit(work, path="/work/a", old="aa", new="b")


def test_an_edit_of_what_changed_since_its_plan_is_refused(work: Tree) -> None:
    params = {"path": "/work/a", "old": "one", "new": "two"}
    (work.place / "a").write_text("one")
    plan = run(files.plan_edit(params, work.files))
    (work.place / "a").write_text("one and more")
    with pytest.raises(ECONFLICT):
        run(files.edit(params, plan, work.files))
    assert (work.place / "a").read_text() == "one and more"


def test_after_a_crash_an_edit_tells_whether_it_happened(work: Tree) -> None:
    params = {"path": "/work/a", "old": "one", "new": "one two"}  # the new holds the old
    (work.place / "a").write_text("one")
    plan = run(files.plan_edit(params, work.files))
    assert run(files.verify_edit(params, plan, work.files)) == ("not_done", None)
    run(files.edit(params, plan, work.files))
    state, value = run(files.verify_edit(params, plan, work.files))
    assert (state, value["hash"]) == ("done", plan["after"])
    (work.place / "a").write_text("somebody else's")
    assert run(files.verify_edit(params, plan, work.files))[0] == "unsure"
    (work.place / "a").unlink()
    assert run(files.verify_edit(params, plan, work.files))[0] == "unsure"


def test_a_file_that_is_too_large_is_not_edited(work: Tree) -> None:
    with open(work.place / "a", "wb") as file:
        file.truncate(files.LARGEST_EDITED + 1)
    with pytest.raises(EMSGSIZE):
        edit(work, path="/work/a", old="a", new="b")


# Listing and searching.


def fill(work: Tree) -> None:
    for name in ("main.py", "lib/a.py", "lib/deep/b.py", "lib/deep/c.txt", "docs/x.md"):
        path = work.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\nneedle here\nlast line\n")


def listed(work: Tree, **params: Any) -> list[str]:
    found = run(files.list_({"path": "/work", **params}, work.files))
    return [one["path"].removeprefix("/work/") for one in found["entries"]]


def test_a_folder_is_listed_and_a_glob_goes_below(work: Tree) -> None:
    fill(work)
    assert listed(work) == ["docs", "lib", "main.py"]
    assert listed(work, glob="*.py") == ["main.py"]
    assert listed(work, glob="**/*.py") == ["main.py", "lib/a.py", "lib/deep/b.py"]
    assert listed(work, glob="lib/*/*.txt") == ["lib/deep/c.txt"]
    assert listed(work, path="/work/lib", glob="**") == ["lib/a.py", "lib/deep", "lib/deep/b.py", "lib/deep/c.txt"]


def test_a_limit_tells_that_there_is_more(work: Tree) -> None:
    fill(work)
    found = run(files.list_({"path": "/work", "limit": 2}, work.files))
    assert (len(found["entries"]), found["more"]) == (2, True)
    assert not run(files.list_({"path": "/work", "limit": 3}, work.files))["more"]


@pytest.mark.parametrize(
    ("path", "glob", "fits"),
    [
        ("a/b/c.py", "**/c.py", True),
        ("c.py", "**/c.py", True),
        ("a/b", "*", False),
        ("a/b/c", "a/**", True),
        ("a", "a/**", True),
        ("a/x/y/b", "a/**/b", True),
        ("a/b", "a/**/b", True),
        ("x/y", "**/**/y", True),
        ("a/b", "[ab]/?", True),
    ],
)
def test_globs(path: str, glob: str, fits: bool) -> None:
    assert files.fits(path, glob) is fits


def test_a_hostile_glob_is_matched_soon() -> None:
    began = time.process_time()
    assert not files.fits("a" * 255, "*a" * 120 + "b")
    assert not files.fits("/".join(["a"] * 60), "/".join(["**", "a"] * 60) + "/b")
    assert time.process_time() - began < 1


def search(work: Tree, **params: Any) -> dict[str, Any]:
    found = run(files.search({"path": "/work", **params}, work.files, Regex))
    Schema(files.SEARCH.output_schema).require(found, "it", ran=True)
    return found


def test_a_text_is_found_with_file_and_line(work: Tree) -> None:
    fill(work)
    found = search(work, pattern="needle", glob="**/*.py")
    assert [(one["path"], one["line"]) for one in found["matches"]] == [
        ("/work/main.py", 2),
        ("/work/lib/a.py", 2),
        ("/work/lib/deep/b.py", 2),
    ]
    assert found["matches"][0]["text"] == "needle here"
    assert not found["more"]
    assert search(work, path="/work/main.py", pattern="last")["matches"][0]["line"] == 3


def test_an_expression_finds_lines_and_a_wrong_one_says_where(work: Tree) -> None:
    fill(work)
    assert len(search(work, pattern="^need.e\\s+h", regex=True)["matches"]) == 5
    with pytest.raises(EINVAL) as caught:
        search(work, pattern="(unclosed", regex=True)
    assert caught.value.code == "regex"


def test_each_line_is_told_once_and_the_limit_holds(work: Tree) -> None:
    (work.place / "a").write_text("xx xx\n" * 50)
    assert len(search(work, pattern="x")["matches"]) == 50
    found = search(work, pattern="x", limit=7)
    assert (len(found["matches"]), found["more"]) == (7, True)
    assert "7 lines" in found["why"]


def test_binary_large_and_forbidden_files_are_passed_over(work: Tree) -> None:
    fill(work)
    (work.place / "a.bin").write_bytes(b"needle\0needle")
    with open(work.place / "huge", "wb") as file:
        file.write(b"needle\n")
        file.truncate(files.LARGEST_SEARCHED + 1)
    work.forbidden.add("/work/lib")
    found = search(work, pattern="needle")
    assert sorted(one["path"] for one in found["matches"]) == ["/work/docs/x.md", "/work/main.py"]


def test_a_folder_that_may_not_be_seen_is_an_error_where_it_was_asked_for(work: Tree) -> None:
    fill(work)
    work.forbidden.add("/work")
    with pytest.raises((EPERM, EACCES)):
        search(work, pattern="x")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a*)*b", "((a?){30}){2}b", "[^b]*[^c]*[^d]*[^e]*x"])
def test_an_expression_that_explodes_elsewhere_ends_here_and_others_go_on(work: Tree, pattern: str) -> None:
    (work.place / "bomb").write_text(("a" * 1999 + "!\n") * 200)
    gaps: list[float] = []

    async def beside(stop: asyncio.Event) -> None:
        while not stop.is_set():
            began = time.thread_time()
            await asyncio.sleep(0)
            gaps.append(time.thread_time() - began)

    async def both() -> dict[str, Any]:
        stop = asyncio.Event()
        other = asyncio.create_task(beside(stop))
        found = await files.search({"path": "/work", "pattern": pattern, "regex": True}, work.files, Regex)
        stop.set()
        await other
        return found

    began = time.process_time()
    run(both())
    assert time.process_time() - began < 60
    assert len(gaps) > 3
    assert max(gaps) < 1.0


def test_a_search_of_too_much_says_so(work: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(work)
    monkeypatch.setattr(files, "MOST_FILES", 2)
    found = search(work, pattern="nothing like it")
    assert found["more"]
    assert "2 files" in found["why"]
