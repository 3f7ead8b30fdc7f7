"""OP_MEMORY: an agent's memory as an operator sees it, over a real control socket; what it was, and what is gone."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_os.abi.doors import Memory
from agent_os.abi.entries import Kind
from agent_os.abi.errors import (
    ECONFLICT,
    EINVAL,
    EISDIR,
    ENOENT,
    EROFS,
    ESRCH,
    AgentOSError,
)
from agent_os.abi.syscalls import Events, Grant, Open, Read, Remove, Share, Write
from agent_os.client.wire import Client
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.memories import Past, changes
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.vfs.stored import StoreBackend
from kernel.serving import Caller, entries, serving

ME = f"local:{os.getuid()}"
TEXTS = st.text(max_size=6)
NOTE = "/mem/working/note"


async def look(client: Client, do: str, path: str = "/mem", agent: str = "anna", **more: Any) -> Any:
    return await client.call(Memory(do=do, agent=agent, path=path, **more))  # pyright: ignore[reportArgumentType]


async def free(kernel: Kernel, client: Client) -> Caller:
    """An agent that may do anything in its memory."""
    anna = Caller(kernel, "anna")
    await client.call(Grant(agent="anna", capability="mem:/mem/**:read,write,delete,share"))
    return anna


async def streamed(client: Client, request: Memory) -> tuple[list[Any], Any]:
    stream = client.stream(request)
    found = [chunk async for chunk in stream]
    return found, await stream.result()


def test_a_list_tells_size_version_writer_and_age_in_order_and_in_pages(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            for number in range(7):
                await anna.write(f"/mem/working/n{number}", "x" * number)
            await anna.write("/mem/working/n3", "again")
            found: list[Any] = []
            page = await look(client, "list", max=3)
            while page["next"]:
                assert len(page["entries"]) == 3
                found += page["entries"]
                page = await look(client, "list", max=3, after=page["next"])
            found += page["entries"]
            assert [one["path"] for one in found] == [f"/mem/working/n{number}" for number in range(7)]
            third = found[3]
            assert (third["size"], third["version"], third["writer"], third["text"]) == (5, 2, "anna", True)
            assert third["modified"] > 0
            assert [one["path"] for one in (await look(client, "list", "/mem/working/n4"))["entries"]] == [
                "/mem/working/n4"
            ]
            assert (await look(client, "list", "/mem/semantic"))["entries"] == []

    asyncio.run(main())


def test_content_comes_back_as_it_was_written_large_or_small(tmp_path: Path) -> None:
    large = os.urandom(2_500_000)

    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            await anna.write(NOTE, "grüße")
            await anna.syscall(Write(path="/mem/semantic/raw", data=b"\x00\xff"))
            assert (await look(client, "read", NOTE))["data"] == "grüße"
            assert (await look(client, "read", "/mem/semantic/raw"))["data"] == b"\x00\xff"
            stream = client.stream(Memory(do="write", agent="anna", path="/mem/semantic/large", stream=True))
            for at in range(0, len(large), 60_000):
                await stream.send(large[at : at + 60_000])
            stream.end()
            assert (await stream.result())["size"] == len(large)
            pieces, told = await streamed(client, Memory(do="read", agent="anna", path="/mem/semantic/large"))
            assert b"".join(pieces) == large
            assert (told["streamed"], told["size"], told["writer"]) == (True, len(large), ME)
            assert (await anna.syscall(Read(path="/mem/semantic/large")))["data"] == large

    asyncio.run(main())


def test_what_an_operator_writes_is_read_by_the_agent_and_is_on_the_record_of_both(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            await anna.write(NOTE, "hers")
            with pytest.raises(ECONFLICT):
                await look(client, "write", NOTE, data="mine", if_version=7)
            assert await look(client, "write", NOTE, data="mine", if_version=1) == {"version": 2, "size": 4}
            assert (await anna.syscall(Read(path=NOTE)))["data"] == "mine"
            (row,) = (await look(client, "list"))["entries"]
            assert (row["writer"], row["version"], row["labels"]) == (ME, 2, ["trusted"])
            with pytest.raises(ECONFLICT):
                await look(client, "remove", NOTE, if_version=1)
            await look(client, "remove", NOTE, if_version=2)
            with pytest.raises(ENOENT):
                await anna.syscall(Read(path=NOTE))
            mine = [one for one in await entries(client, Events(agent=ME, bodies=True)) if one["op"] == "OP_MEMORY"]
            done = [one["body"]["request"]["do"] for one in mine if "code" not in one and one["kind"] == "outcome"]
            assert done == ["write", "remove"]
            told = [
                decode_any(body or b"\xc0")
                for entry, body in kernel.journal.scan(anna.agent.id)
                if entry.kind == Kind.CHANGE
            ]
            assert [(one["do"], one["by"], one["version"]) for one in told] == [("write", ME, 2), ("remove", ME, 3)]

    asyncio.run(main())


def test_a_look_leaves_no_second_copy_of_the_content_in_the_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await Caller(kernel, "anna").write(NOTE, "the-canary-word")
            before = [str(body).count("the-canary-word") for _, body in kernel.journal.scan() if body]
            await look(client, "read", NOTE)
            await look(client, "search", query="canary")
            await look(client, "list")
            after = [str(body).count("the-canary-word") for _, body in kernel.journal.scan() if body]
            assert sum(before) == sum(after) == 1

    asyncio.run(main())


def test_a_version_that_the_store_forgot_is_read_from_the_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            sizes = {1: 5, 2: 700}
            for number in range(1, 31):
                await anna.write(NOTE, f"{number:03}" + "." * sizes.get(number, 9))
            old = await look(client, "read", NOTE, version=2)
            assert (old["data"], old["source"]) == ("002" + "." * 700, "record")
            assert (await look(client, "read", NOTE, version=30))["source"] == "store"
            with pytest.raises(ENOENT, match="is gone"):
                await look(client, "read", NOTE, version=99)
            rows = (await look(client, "history", NOTE))["changes"]
            assert [one["version"] for one in rows] == list(range(30, 0, -1))
            assert {one["source"] for one in rows} == {"store", "record"}
            assert not any(one["gone"] for one in rows)
            then = rows[20]
            as_of = await look(client, "read", NOTE, as_of=then["seq"])
            assert as_of["version"] == then["version"] == 10
            before = await look(client, "read", NOTE, as_of=then["seq"] - 1)
            assert before["version"] == 9
            by_time = await look(client, "read", NOTE, as_of_ns=then["at_ns"])
            assert by_time["version"] == 10

    asyncio.run(main())


def test_what_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    """More than a mebibyte lies in several bodies, which the record does not name."""

    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            stream = client.stream(Memory(do="write", agent="anna", path=NOTE, stream=True))
            for _ in range(40):
                await stream.send(os.urandom(50_000))
            stream.end()
            await stream.result()
            for number in range(12):
                await anna.write(NOTE, f"{number}")
            rows = (await look(client, "history", NOTE))["changes"]
            assert [one["version"] for one in rows if one["gone"]] == [1]
            with pytest.raises(ENOENT, match="gone") as found:
                await look(client, "read", NOTE, as_of=rows[-1]["seq"])
            assert found.value.code == "memory.gone"
            listed = await look(client, "list", as_of=rows[-1]["seq"])
            assert [one["size"] for one in listed["entries"]] == [2_000_000], "that it was there is known"

    asyncio.run(main())


def test_the_tree_is_seen_as_it_was_also_through_appends_removals_and_shares(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna, bert = await free(kernel, client), Caller(kernel, "bert")
            await anna.write("/mem/semantic/plan", "one ")
            first = kernel.journal.size
            await anna.syscall(Write(path="/mem/semantic/plan", data="two", mode="append"))
            await anna.syscall(Share(path="/mem/semantic/plan", to="bert", rights="rw"))
            await bert.syscall(Write(path="/mem/shared/anna/plan", data="bert was here"))
            second = kernel.journal.size
            await anna.syscall(Remove(path="/mem/semantic/plan"))
            (row,) = (await look(client, "list", as_of=second))["entries"]
            assert (row["path"], row["version"], row["writer"]) == ("/mem/semantic/plan", 3, "bert")
            assert (await look(client, "read", "/mem/semantic/plan", as_of=first))["data"] == "one "
            assert (await look(client, "list"))["entries"] == []
            rows = (await look(client, "history", "/mem/semantic/plan"))["changes"]
            told = [(one["change"], one["version"], one["writer"]) for one in rows]
            assert told == [
                ("removed", 4, "anna"),
                ("written", 3, "bert"),
                ("appended", 2, "anna"),
                ("written", 1, "anna"),
            ]
            with pytest.raises(ENOENT):
                await look(client, "read", "/mem/semantic/plan")
            with pytest.raises(ENOENT, match="had no"):
                await look(client, "read", "/mem/semantic/plan", as_of=1)

    asyncio.run(main())


def test_words_are_found_in_paths_and_texts_and_shown_in_their_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            await anna.write("/mem/semantic/customers/miller", "prefers Tea over coffee; tea at five")
            await anna.write("/mem/semantic/customers/smith", "prefers coffee")
            await anna.syscall(Write(path="/mem/semantic/blob", data=b"tea"))
            found = (await look(client, "search", query="tea coffee"))["found"]
            assert [one["path"] for one in found] == ["/mem/semantic/customers/miller"]
            assert "Tea over coffee" in found[0]["excerpt"]
            assert [one["path"] for one in (await look(client, "search", query="SMITH"))["found"]] == [
                "/mem/semantic/customers/smith"
            ]
            assert (await look(client, "search", query="tea", path="/mem/working"))["found"] == []
            with pytest.raises(EINVAL, match="which words"):
                await look(client, "search", query="  ")

    asyncio.run(main())


def test_a_share_of_the_operator_holds_and_is_taken_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna, bert = await free(kernel, client), Caller(kernel, "bert")
            await anna.write("/mem/semantic/plan", "shared")
            assert (await look(client, "share", "/mem/semantic/plan", to="bert"))["path"] == "/mem/shared/anna/plan"
            assert (await bert.syscall(Read(path="/mem/shared/anna/plan")))["data"] == "shared"
            (row,) = (await look(client, "list", agent="bert"))["entries"]
            assert (row["path"], row["writer"]) == ("/mem/shared/anna/plan", "anna")
            with pytest.raises(EROFS):
                await look(client, "write", "/mem/shared/anna/plan", agent="bert", data="no")
            await look(client, "share", "/mem/semantic/plan", to="bert", end=True)
            with pytest.raises(AgentOSError):
                await bert.syscall(Read(path="/mem/shared/anna/plan"))

    asyncio.run(main())


def test_all_of_a_memory_is_taken_away_in_one_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            await anna.write("/mem/working/a", "small")
            await anna.syscall(Write(path="/mem/semantic/b", data=b"b" * 200_000))
            found, told = await streamed(client, Memory(do="export", agent="anna"))
            assert (told["count"], told["bytes"], told["gone"]) == (2, 200_005, [])
            whole: dict[str, bytes] = {}
            path = ""
            for sort, what in found:
                if sort == "entry":
                    path = what["path"]
                    whole[path] = b""
                else:
                    whole[path] += what
            assert whole == {"/mem/semantic/b": b"b" * 200_000, "/mem/working/a": b"small"}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Memory(agent="nobody"), "agent.unknown"),
        (Memory(agent="anna", path="/work/x"), "memory.path"),
        (Memory(agent="anna", path="/mem/../etc"), "path.dotdot"),
        (Memory(agent="anna", max=0), "memory.max"),
        (Memory(agent="anna", max=100_000), "memory.max"),
        (Memory(agent="anna", as_of=10**9), "memory.when"),
        (Memory(agent="anna", as_of=1, as_of_ns=1), "memory.when"),
        (Memory(agent="anna", do="read"), "memory.directory"),
        (Memory(agent="anna", do="read", path="/mem/working"), "memory.directory"),
        (Memory(agent="anna", do="read", path="/mem/working/no"), "vfs.absent"),
        (Memory(agent="anna", do="list", path="/mem/working/no"), "memory.none"),
        (Memory(agent="anna", do="write", path=NOTE, data=7), "body"),
        (Memory(agent="anna", do="remove", path="/mem/working/no"), "vfs.absent"),
        (Memory(agent="anna", do="share", path=NOTE), "memory.to"),
    ],
    ids=lambda one: one if isinstance(one, str) else f"{one.do} {one.path}",
)
def test_what_cannot_be_is_refused_with_its_reason(tmp_path: Path, request_: Memory, code: str) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await Caller(kernel, "anna").write("/mem/working/there", "x")
            with pytest.raises(AgentOSError) as found:
                await client.call(request_)
            assert found.value.code == code
            assert isinstance(found.value, EINVAL | ESRCH | ENOENT | EISDIR)

    asyncio.run(main())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write", "append", "remove", "operator"]), st.sampled_from("ab"), st.text(max_size=6)
        ),
        max_size=25,
    )
)
def test_every_moment_of_the_record_is_what_was_true_then(tmp_path_factory: Any, steps: list[Any]) -> None:
    """Against a plain list of all that was done."""

    async def main(home: Path) -> None:
        async with serving(home) as (kernel, client):
            anna = await free(kernel, client)
            await anna.write("/mem/semantic/first", "")
            true: dict[str, str] = {}
            moments: list[tuple[int, dict[str, str]]] = []
            for do, name, text in steps:
                path = f"/mem/semantic/{name}"
                if do == "remove" and path in true:
                    await anna.syscall(Remove(path=path))
                    del true[path]
                elif do == "append":
                    await anna.syscall(Write(path=path, data=text, mode="append"))
                    true[path] = true.get(path, "") + text
                elif do == "operator":
                    await look(client, "write", path, data=text)
                    true[path] = text
                else:
                    await anna.write(path, text)
                    true[path] = text
                moments.append((kernel.journal.size, dict(true)))
            for seq, then in moments:
                listed = (await look(client, "list", as_of=seq))["entries"]
                assert {one["path"] for one in listed} == {"/mem/semantic/first", *then}
                for path, text in then.items():
                    told = await look(client, "read", path, as_of=seq)
                    data = told["data"]
                    assert (data if isinstance(data, str) else data.decode()) == text
            last = Past()
            for one in changes(kernel.journal, anna.agent.id):
                last.take(one)
            now = {one["path"]: one["version"] for one in (await look(client, "list"))["entries"]}
            assert now == {path: state.version for path, state in last.entries.items()}

    asyncio.run(main(tmp_path_factory.mktemp("home")))


def test_a_file_of_the_workspace_is_read_as_its_agent_sees_it_and_nothing_else_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            project = tmp_path / "project"
            project.mkdir()
            (project / "shop").write_text("release 1\n")
            (project / "bytes").write_bytes(b"\xff\x00")
            (project / "out").symlink_to("/etc/passwd")
            with pytest.raises(ENOENT):
                await look(client, "read", "/work/shop")
            fd = os.open(project, os.O_PATH | os.O_DIRECTORY)
            anna.agent.files.mount_directory("/work", fd)
            os.close(fd)
            found = await look(client, "read", "/work/shop")
            assert (found["data"], found["text"], found["size"]) == ("release 1\n", True, 10)
            assert (await look(client, "read", "/work/bytes"))["data"] == b"\xff\x00"
            with pytest.raises(ENOENT):
                await look(client, "read", "/work/nothing")
            with pytest.raises(AgentOSError, match="lead"):
                await look(client, "read", "/work/out")
            for do in ("list", "search", "history"):
                with pytest.raises(EINVAL):
                    await look(client, do, "/work/shop", query="x")
            with pytest.raises(EINVAL):
                await look(client, "read", "/work/shop", version=1)

    asyncio.run(main())


def test_what_others_read_of_it_is_erased_with_it_and_what_they_made_of_it_is_told(tmp_path: Path) -> None:
    word = "CANARY-5d1c"

    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna, bob = await free(kernel, client), Caller(kernel, "bob")
            await anna.write("/mem/semantic/folder/note", word)
            await anna.syscall(Share(path="/mem/semantic/folder", to="bob"))
            there = "/mem/shared/anna/folder/note"
            assert (await bob.syscall(Read(path=there)))["data"] == word
            opened = await bob.syscall(Open(path=there))
            assert (await bob.syscall(Read(handle=opened["handle"])))["data"] == word
            await bob.write("/mem/working/mine", f"she said: {word}")
            told = await look(client, "erase", "/mem/semantic/folder/note", reason="asked for")
            assert (told["entries"], told["shared"], told["scrubbed"]) == (3, 0, True)
            assert {one["agent"] for one in told["left"]} == {"bob"}
            await look(client, "erase", "/mem/working/mine", agent="bob", reason="as well")
            assert word.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("journal.db*"))
            (redacted, *_) = [entry for entry, _ in kernel.journal.scan() if entry.kind == Kind.REDACT]
            assert redacted.agent == ME
            with pytest.raises(ENOENT):
                await bob.syscall(Read(path=there))

    asyncio.run(main())


def test_a_checkpoint_keeps_no_version_of_what_is_erased_and_a_new_one_begins_higher(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            anna = await free(kernel, client)
            for text in ("CANARY-77aa one", "CANARY-77aa two"):
                await anna.write("/mem/semantic/note", text)
            place = kernel.vfs.root("default/anna").find("/mem/semantic/note")
            assert place
            assert isinstance(place.backend, StoreBackend)
            taken = place.backend.snapshot("k-1")
            await kernel.journal.record(Draft("default/anna", Kind.CHECKPOINT), puts=taken.puts)
            await look(client, "erase", "/mem/semantic/note", reason="asked for")
            assert b"CANARY-77aa" not in b"".join(path.read_bytes() for path in tmp_path.glob("journal.db*"))
            await kernel.journal.record(Draft("default/anna", Kind.CHECKPOINT), puts=place.backend.release("k-1"))
            assert (await anna.write("/mem/semantic/note", "new"))["version"] == 3
            assert [one["change"] for one in (await look(client, "history", "/mem/semantic/note"))["changes"]] == [
                "written",
                "removed",
            ]

    asyncio.run(main())
