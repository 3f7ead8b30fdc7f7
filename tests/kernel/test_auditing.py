"""What operators ask of the record, over a real control socket from a real kernel."""

import asyncio
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, ENOENT, EPERM, ESRCH, AgentOSError
from agent_os.abi.heads import parse_note
from agent_os.abi.tree import leaf_hash, verify_consistency, verify_inclusion
from agent_os.client import backups, sources
from agent_os.client.verify import verify
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import body
from kernel.serving import Caller, chunks, entries, serving, until

ME = f"local:{os.getuid()}"


async def busy(agent: Caller, calls: int = 3) -> None:
    for number in range(calls):
        await agent.write("/mem/working/note", f"{number}")


async def exported(client: Any, home: Path, **options: Any) -> Path:
    path = home / f"export-{len(list(home.iterdir()))}"
    path.write_bytes(b"".join(await chunks(client, abi.Export(**options))))
    return path


def public(home: Path) -> str:
    return (home / "keys" / "journal.pub").read_text()


def test_events_tell_every_entry_once_and_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await busy(Caller(kernel, "many"), 600)
            told = await entries(client, abi.Events())
            assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
            assert len(told) >= 600
            assert [one["kind"] for one in told[:2]] == ["key", "boot"]

    asyncio.run(main())


def test_an_event_is_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            agent = Caller(kernel, "writer")
            await agent.write("/mem/working/note", "hello")
            with pytest.raises(EPERM):
                await agent.write("/mem/episodic/note", "no")
            written, refused = await entries(client, abi.Events(agent="writer", bodies=True))
            assert (written["kind"], written["op"], written["verdict"]) == ("outcome", "SYS_WRITE", "allow")
            assert written["agent"] == "default/writer"
            assert "code" not in written
            assert written["time"].endswith("+00:00")
            assert written["body"]["request"]["path"] == "/mem/working/note"
            assert written["body"]["value"]["version"] == 1
            assert (refused["kind"], refused["verdict"], refused["code"]) == ("decision", "refuse", "EPERM")
            assert refused["body"]["error"]["name"] == "EPERM"

    asyncio.run(main())


def test_events_are_chosen_by_number_by_count_and_by_who_acted(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await busy(Caller(kernel, "one"), 5)
            await busy(Caller(kernel, "two"), 5)
            assert [one["seq"] for one in await entries(client, abi.Events(start=4, end=6))] == [4, 5, 6]
            size = kernel.journal.size
            assert [one["seq"] for one in await entries(client, abi.Events(last=2))] == [size - 1, size]
            last = await entries(client, abi.Events(agent="one", last=2))
            assert [one["aseq"] for one in last] == [4, 5]
            assert {one["agent"] for one in last} == {"default/one"}
            assert [one["aseq"] for one in await entries(client, abi.Events(agent="two", end=last[-1]["seq"] + 2))] == [
                1,
                2,
            ]
            mine = [one["seq"] for one in await entries(client, abi.Events(agent="one"))]
            for end in range(1, kernel.journal.size + 1):
                told = await entries(client, abi.Events(agent="one", end=end, last=2))
                assert [one["seq"] for one in told] == [seq for seq in mine if seq <= end][-2:]
            assert await entries(client, abi.Events(agent="one", end=mine[-1], last=0)) == []
            assert (await entries(client, abi.Events(agent="kernel")))[0]["kind"] == "key"
            assert (await entries(client, abi.Events(agent=ME)))[0]["op"] == "OP_EVENTS"
            assert await entries(client, abi.Events(last=0)) == []
            with pytest.raises(ESRCH):
                await chunks(client, abi.Events(agent="nobody"))

    asyncio.run(main())


def test_following_events_misses_nothing_and_ends_when_it_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            agent = Caller(kernel, "live")
            await busy(agent)
            stream = client.stream(abi.Events(agent="live", follow=True))
            seen: list[int] = []

            async def read() -> None:
                async for page in stream:
                    seen.extend(one["aseq"] for one in page)

            reader = asyncio.create_task(read())
            await until(lambda: len(seen) == 3)
            listeners = len(kernel.journal.after_group)
            for _ in range(20):
                await busy(agent)
            await until(lambda: len(seen) == 63)
            kernel.journal.put_now(Draft("default/live", Kind.STATE), sync=False)  # committed without a word
            await until(lambda: len(seen) == 64)
            assert seen == list(range(1, 65))
            stream.cancel()
            await reader
            await until(lambda: len(kernel.journal.after_group) == listeners - 1)

    asyncio.run(main())


def test_a_body_that_fits_no_frame_is_told_by_its_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await kernel.journal.record(Draft("default/big", Kind.STATE, body=frames.encode_body("x" * 900_000)))
            await kernel.journal.record(Draft("default/big", Kind.STATE, body=b"\xc1"))
            big, broken = await entries(client, abi.Events(agent="big", bodies=True))
            assert big["body"] == {"size": 900_005}
            assert broken["body"] == {"unreadable": 1}

    asyncio.run(main())


@pytest.mark.long
def test_a_proof_leads_from_an_entry_to_a_signed_head(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await busy(Caller(kernel, "one"), 20)
            for seq in (1, 7, 20):
                said = await client.call(abi.Prove(seq=seq))
                head = parse_note(said["head"].encode()).head
                assert (head.size, head.root) == (said["size"], said["root"])
                assert verify_inclusion(leaf_hash(said["entry"]), seq - 1, said["size"], said["proof"], said["root"])
                assert not verify_inclusion(leaf_hash(b"other"), seq - 1, said["size"], said["proof"], said["root"])
            newest = (await client.call(abi.Head()))["size"] + 1
            assert (await client.call(abi.Prove(seq=newest)))["size"] >= newest  # waits for the next head
            with pytest.raises(ENOENT):
                await client.call(abi.Prove(seq=10_000))

    asyncio.run(main())


def test_a_proof_shows_that_one_head_continues_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            old = await client.call(abi.Head())
            await busy(Caller(kernel, "one"), 20)
            said = await client.call(abi.Consistency(first=old["size"]))
            assert said["first_root"] == old["root"]
            second = await client.call(abi.Consistency(first=old["size"], second=kernel.store.size()))
            for one in (said, second):
                roots = one["first_root"], one["second_root"]
                assert verify_consistency(one["first"], one["second"], one["proof"], *roots)
            with pytest.raises(ENOENT):
                await client.call(abi.Consistency(first=9, second=3))

    asyncio.run(main())


@pytest.mark.long
def test_every_signed_head_is_listed_page_by_page(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            caller = Caller(kernel, "one")
            for _ in range(3):
                await busy(caller, 5)
                await client.call(abi.Prove(seq=kernel.store.size()))  # waits until a head covers it
            kept = [parse_note(note).head for _, note in kernel.store.items("heads")]
            assert len(kept) >= 3
            listed: list[Any] = []
            below = kept[-1].size + 1
            while page := (await client.call(abi.Head(most=2, below=below)))["heads"]:
                assert len(page) <= 2
                listed += page
                below = page[-1]["size"]
            assert [(one["size"], one["root"]) for one in listed] == [(one.size, one.root) for one in reversed(kept)]
            assert all(kernel.journal.root(one["size"]) == one["root"] for one in listed)
            assert "heads" not in await client.call(abi.Head()), "who asks for the newest gets that alone"
            assert len((await client.call(abi.Head(most=1)))["heads"]) == 1
            for wrong in (-1, 501):
                with pytest.raises(EINVAL, match="head"):
                    await client.call(abi.Head(most=wrong))

    asyncio.run(main())


def test_an_export_is_what_the_offline_exporter_writes(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            await busy(Caller(kernel, "one"), 600)
            await kernel.journal.record(Draft("default/big", Kind.STATE, body=frames.encode_body("x" * 5000)))
            size = kernel.journal.size
            taken = await exported(client, tmp_path, end=size)
        offline = tmp_path / "offline"
        sources.export(tmp_path / "home" / "journal.db", offline)
        ours, theirs = sources.open_source(taken), sources.open_source(offline)
        assert ours.facts() == theirs.facts()._replace(size=size)
        ours_rows = [row for run in ours.runs(1, size) for row in run]
        assert ours_rows == [row for run in theirs.runs(1, size) for row in run if row[0] <= size]
        assert dict(ours.bodies()) == dict(theirs.bodies())
        assert ours.leaves(0) == theirs.leaves(0)
        ours.close(), theirs.close()

    asyncio.run(main())


def test_an_export_verifies_whole_as_of_an_entry_and_without_bodies(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await busy(Caller(kernel, "one"), 300)
            await kernel.journal.record(Draft("default/big", Kind.STATE, body=frames.encode_body("x" * 5000)))
            whole = await exported(client, tmp_path)
            part = await exported(client, tmp_path, end=100)
            bare = await exported(client, tmp_path, bodies=False)
            for path, size in ((whole, 303), (part, 100), (bare, 303)):
                report = verify(path, key=public(tmp_path))
                assert report.ok, report.findings
                assert report.entries >= size
                assert report.pinned
            assert verify(part).entries == 100
            assert b"x" * 5000 in whole.read_bytes()
            assert b"x" * 5000 not in bare.read_bytes()
            with pytest.raises(ENOENT):
                await exported(client, tmp_path, end=100_000)

    asyncio.run(main())


def test_a_changed_export_names_the_first_bad_entry(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await busy(Caller(kernel, "one"), 30)
            await client.call(abi.Prove(seq=30))  # a head covers them
            path = await exported(client, tmp_path)
        found = path.read_bytes()
        at = found.index(b"\xa4none")  # the isolation of the first call
        path.write_bytes(found[:at] + b"\xa4some" + found[at + 5 :])
        assert verify(path).first_bad == 4  # after the key, the boot and the policy

    asyncio.run(main())


def keep(pieces: list[Any], path: Path) -> Path:
    with path.open("wb") as file:
        writer = backups.Writer(file)
        for piece in pieces:
            if isinstance(piece, bytes):
                writer.add(piece)
            else:
                writer.begin(*piece)
        writer.finish()
    return path


@pytest.mark.long
def test_a_backup_under_load_is_whole_and_leaves_nothing_in_the_home(tmp_path: Path) -> None:
    async def main() -> None:
        home = tmp_path / "home"
        async with serving(home) as (kernel, client):
            agent = Caller(kernel, "one")
            await busy(agent, 500)
            before = kernel.journal.size
            load = asyncio.create_task(busy(agent, 100_000))
            files = [keep(await chunks(client, abi.Backup()), tmp_path / f"{number}.tar") for number in range(3)]
            assert not load.done()
            load.cancel()
            assert [path.name for path in home.iterdir() if path.name.startswith(".")] == []
        sizes = [before]
        for path in files:
            with tarfile.open(path) as archive:
                assert sorted(archive.getnames()) == sorted(backups.NAMES)
            with backups.unpacked(path, tmp_path) as (_, report):
                assert report.ok, report.findings
                assert report.pinned
                sizes.append(report.entries)
        assert sizes == sorted(sizes)

    asyncio.run(main())


def test_checkpoints_are_numbered_and_say_where_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            await busy(Caller(kernel, "one"))
            first = await client.call(abi.CheckpointOf(agent="one"))
            second = await client.call(abi.CheckpointOf(agent="one"))
            named = await client.call(abi.CheckpointOf(agent="one", name="before lunch"))
            assert [one["checkpoint"] for one in (first, second, named)] == ["k-1", "k-2", "before lunch"]
            entry = (await entries(client, abi.Events(start=named["at"], end=named["at"], bodies=True)))[0]
            assert (entry["kind"], entry["body"]["name"]) == ("checkpoint", "before lunch")
            facts = await client.call(abi.Inspect(agent="one"))
            assert [one["name"] for one in facts["checkpoints"]] == ["k-1", "k-2", "before lunch"]
            with pytest.raises(ESRCH):
                await client.call(abi.CheckpointOf(agent="nobody"))

    asyncio.run(main())


async def parked(kernel: Kernel, name: str) -> int:
    """An effect whose outcome is unknown."""
    asked = frames.encode_body({"tool": "pay", "params": {}, "dry_run": False})
    intent = Draft(f"default/{name}", Kind.INTENT, op=5, effect="o", body=body(asked, frames.NIL, None))
    seq = await kernel.journal.record(intent)
    await kernel.recovery.park(kernel.journal.read(seq)[0])
    return seq


@pytest.mark.parametrize("verdict", ["done", "fail"])
def test_an_operator_says_what_became_of_an_effect(tmp_path: Path, verdict: Any) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            Caller(kernel, "payer")
            seq = await parked(kernel, "payer")
            facts = await client.call(abi.Inspect(agent="payer"))
            assert [one["seq"] for one in facts["parked"]] == [seq]
            assert facts["parked"][0]["body"]["request"]["tool"] == "pay"
            await client.call(abi.Resolve(agent="payer", seq=seq, verdict=verdict, result={"receipt": 7}))
            told = await entries(client, abi.Events(agent="payer", bodies=True))
            outcome = next(one for one in told if one["kind"] == "outcome")
            assert outcome["ref"] == seq
            if verdict == "done":
                assert outcome["body"]["value"] == {"receipt": 7}
            else:
                assert outcome["code"] == "EIO"
            assert any(one["kind"] == "resolve" and one["body"]["by"] == ME for one in told)
            assert (await client.call(abi.Inspect(agent="payer")))["parked"] == []
            with pytest.raises(ENOENT):
                await client.call(abi.Resolve(agent="payer", seq=seq, verdict=verdict))

    asyncio.run(main())


def test_what_waits_of_one_agent_cannot_be_resolved_as_anothers(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, client):
            Caller(kernel, "payer")
            await busy(Caller(kernel, "other"))
            seq = await parked(kernel, "payer")
            with pytest.raises(ENOENT, match="does not wait"):
                await client.call(abi.Resolve(agent="other", seq=seq, verdict="done"))
            assert kernel.recovery.parked("default/payer")

    asyncio.run(main())


def test_agents_cannot_ask_any_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (kernel, _):
            agent = Caller(kernel, "curious")
            for request in (abi.Events(), abi.Export(), abi.Backup(), abi.Head(), abi.CheckpointOf(agent="curious")):
                with pytest.raises(AgentOSError) as refused:
                    await agent.syscall(request)
                assert isinstance(refused.value, EPERM)

    asyncio.run(main())
