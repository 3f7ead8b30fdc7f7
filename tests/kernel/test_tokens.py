"""Tokens, codes, sessions and tickets over a real control socket: who is let in, how often, for how long, and that no
text of one is ever kept."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_os import first_token
from agent_os.abi import doors
from agent_os.abi import syscalls as abi
from agent_os.abi.doors import Clients, Session, Tokens, Whoami
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EEXIST, EINVAL, ENOENT, EPERM
from agent_os.client import credentials
from agent_os.client.wire import Client, connect
from agent_os.kernel import tokens
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from guests.canary import files_below, sought
from kernel.serving import serving

Work = Callable[[Kernel, Client], Awaitable[None]]


def run(home: Path, work: Work) -> None:
    async def main() -> None:
        async with serving(home) as (kernel, client):
            await work(kernel, client)

    asyncio.run(main())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def door(home: Path, word: str) -> Any:
    return connect(home / "run" / "kernel.sock", token=word)


async def who(home: Path, word: str) -> dict[str, Any]:
    async with door(home, word) as client:
        return await client.call(Whoami())


async def shut_out(home: Path, word: str, why: str) -> None:
    with pytest.raises(EPERM, match=why or None):
        await who(home, word)


async def token(client: Client, name: str, **words: Any) -> str:
    return (await client.call(Tokens(do="add", name=name, **words)))["token"]


async def session(client: Client, home: Path, role: Any = "") -> str:
    code = (await client.call(Session(do="code", role=role)))["code"]
    async with door(home, f"code:{code}") as guest:
        return (await guest.call(Session(do="enter")))["session"]


def test_a_token_gives_its_role_and_no_more_also_after_a_restart(home: Path) -> None:
    texts = list[str]()

    async def first(kernel: Kernel, client: Client) -> None:
        assert (await client.call(Whoami()))["name"] == f"local:{os.getuid()}"
        texts.append(await token(client, "anna", role="auditor"))
        told = await who(home, texts[0])
        assert (told["name"], told["role"], told["via"], told["boot"]) == (
            "anna",
            "auditor",
            "token",
            kernel.tokens.boot,
        )
        with pytest.raises(EEXIST):
            await token(client, "anna")

    async def second(kernel: Kernel, client: Client) -> None:
        assert (await who(home, texts[0]))["role"] == "auditor"
        (row,) = (await client.call(Tokens()))["tokens"]
        assert row["last_ns"]

    run(home, first)
    run(home, second)


@pytest.mark.parametrize("word", ["", "aos_", "aos_" + "x" * 43, "code:", "ticket:", "aoss_x", "ä", "aos_" + "x" * 500])
def test_a_word_that_nobody_gave_lets_nobody_in(home: Path, word: str) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        right = await token(client, "anna")
        await shut_out(home, word, "")
        await shut_out(home, right[:-1], "token.unknown")
        assert (await who(home, right))["name"] == "anna"  # the positive control

    run(home, work)


def test_a_removed_token_closes_its_connections_and_all_that_rests_on_it(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        text, other = await token(client, "anna", role="operator"), await token(client, "bert")
        async with door(home, text) as anna, door(home, other) as bert:
            theirs = await session(anna, home)
            ticket = (await anna.call(Session(do="ticket")))["ticket"]
            code = (await anna.call(Session(do="code")))["code"]
            async with door(home, theirs) as page:
                await client.call(Tokens(do="remove", name="anna"))
                for gone in (anna, page):
                    with pytest.raises(EPERM, match=r"token.removed"):
                        await gone.call(Whoami())
            assert (await bert.call(Whoami()))["name"] == "bert"
        for word in (text, theirs, f"ticket:{ticket}", f"code:{code}"):
            await shut_out(home, word, "")
        with pytest.raises(ENOENT):
            await client.call(Tokens(do="remove", name="anna"))

    run(home, work)


def test_a_token_that_expires_is_closed_by_the_clock(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        text = await token(client, "anna", ttl_s=0.5)
        async with door(home, text) as anna:
            stream = anna.stream(abi.Events(follow=True, start=10**9))
            with pytest.raises(EPERM, match=r"token.expired"):
                await asyncio.wait_for(stream.result(), 30)
        await shut_out(home, text, "token.expired")
        assert (await who(home, await token(client, "anna")))["name"] == "anna"  # its name is free again

    run(home, work)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e18])
def test_a_length_of_time_that_is_none_is_refused(home: Path, ttl: float) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        with pytest.raises(EINVAL, match=r"token.ttl"):
            await token(client, "anna", ttl_s=ttl)
        with pytest.raises(EINVAL, match=r"token.name"):
            await token(client, "no/name")

    run(home, work)


def test_a_code_is_good_once_and_only_for_a_session(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        code = (await client.call(Session(do="code", role="viewer")))["code"]
        async with door(home, f"code:{code.lower()}") as guest:
            with pytest.raises(EPERM, match="only gives a session"):
                await guest.call(abi.ListAgents())
            entered = await guest.call(Session(do="enter"))
            assert (entered["role"], entered["boot"]) == ("viewer", kernel.tokens.boot)
            with pytest.raises(EPERM):
                await guest.call(Session(do="enter"))
        await shut_out(home, f"code:{code}", "code.wrong")
        assert (await who(home, entered["session"]))["via"] == "session"

    run(home, work)


def test_five_wrong_codes_end_every_code_and_nothing_else(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        kept = await session(client, home)
        code = (await client.call(Session(do="code")))["code"]
        for _ in range(tokens.WRONG_CODES - 1):
            await shut_out(home, "code:AAAA-AAAA", "code.wrong")
        spare = (await client.call(Session(do="code")))["code"]
        await shut_out(home, "code:AAAA-AAAA", "code.wrong")
        await shut_out(home, f"code:{code}", "code.wrong")
        assert (await who(home, kept))["role"] == "operator"
        assert (await who(home, f"code:{spare}"))["via"] == "code"  # the positive control: one wrong try is none

    run(home, work)


def test_old_codes_and_tickets_are_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        monkeypatch.setattr(tokens, "CODE_S", 0.0)
        monkeypatch.setattr(tokens, "TICKET_S", 0.0)
        code = (await client.call(Session(do="code")))["code"]
        ticket = (await client.call(Session(do="ticket")))["ticket"]
        await shut_out(home, f"code:{code}", "code.wrong")
        await shut_out(home, f"ticket:{ticket}", "ticket.over")

    run(home, work)


def test_a_ticket_is_used_up_and_has_its_sessions_role(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        async with door(home, await session(client, home, "viewer")) as page:
            ticket = (await page.call(Session(do="ticket")))["ticket"]
            assert (await who(home, f"ticket:{ticket}"))["role"] == "viewer"
            await shut_out(home, f"ticket:{ticket}", "ticket.over")

    run(home, work)


def test_whoever_leaves_ends_the_session_with_all_its_connections(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        text = await session(client, home)
        async with door(home, text) as page, door(home, text) as other:
            assert (await page.call(Session(do="leave")))["role"] == "operator"
            with pytest.raises(EPERM, match=r"session.over"):
                await other.call(Whoami())
        await shut_out(home, text, "session.over")

    run(home, work)


def test_sessions_codes_and_tickets_end_with_the_kernel(home: Path) -> None:
    words = list[str]()

    async def first(kernel: Kernel, client: Client) -> None:
        words.append(await session(client, home))
        words.append("code:" + (await client.call(Session(do="code")))["code"])
        words.append("ticket:" + (await client.call(Session(do="ticket")))["ticket"])
        assert (await who(home, words[0]))["via"] == "session"

    async def second(kernel: Kernel, client: Client) -> None:
        for word in words:
            await shut_out(home, word, "")

    run(home, first)
    run(home, second)


def test_nobody_gives_out_a_higher_role_than_its_own(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        async with door(home, await token(client, "anna")) as anna:
            with pytest.raises(EPERM, match="no code for the role operator"):
                await anna.call(Session(do="code", role="operator"))
            async with door(home, await session(anna, home)) as page:
                assert (await page.call(Whoami()))["role"] == "viewer"

    run(home, work)


def test_connections_and_sessions_of_one_owner_are_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        monkeypatch.setattr(tokens, "MOST_CONNECTIONS", 2)
        monkeypatch.setattr(tokens, "MOST_SESSIONS", 2)
        text = await token(client, "anna")
        async with door(home, text), door(home, text):
            with pytest.raises(Exception, match="the most there may be"):
                await who(home, text)
            assert (await client.call(Whoami()))["via"] == "local"
        texts = [await session(client, home) for _ in range(3)]
        await shut_out(home, texts[0], "session.over")  # the one that was not used for longest
        assert (await who(home, texts[2]))["via"] == "session"

    run(home, work)


def test_no_text_is_kept_anywhere_and_wrong_ones_leave_one_line(home: Path) -> None:
    words = list[str]()

    async def work(kernel: Kernel, client: Client) -> None:
        words.append(await token(client, "anna", role="operator"))
        words.append(await session(client, home))
        words.append((await client.call(Session(do="code")))["code"])
        words.append((await client.call(Session(do="ticket")))["ticket"])
        before = kernel.store.size()
        for _ in range(50):
            await shut_out(home, "aos_" + "wrong" * 8, "token.unknown")
        await client.call(Whoami())
        assert kernel.store.size() - before < 10
        words.append("wrong" * 8)

    run(home, work)
    for word in words:
        assert sought(word.encode(), files_below(home)) == []
    assert sought(b"token add", files_below(home))  # the positive control: the search finds what is there


# The files.


def test_the_first_token_is_made_once_and_lets_an_operator_in(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        await first_token.ensure(kernel, home)
        path = home / first_token.FILE
        assert path.stat().st_mode & 0o777 == 0o600
        assert (await who(home, credentials.read(path)))["role"] == "operator"
        before = path.read_bytes()
        await first_token.ensure(kernel, home)
        assert path.read_bytes() == before
        await client.call(Tokens(do="remove", name="operator"))
        path.unlink()
        await first_token.ensure(kernel, home)  # who removed it meant it
        assert not path.exists()

    run(home, work)


def test_a_first_token_that_a_crash_left_on_disk_is_taken_up(home: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        path = home / first_token.FILE
        path.write_text(f"{doors.TOKEN}{'x' * 43}\n")
        path.chmod(0o600)
        await first_token.ensure(kernel, home)
        assert (await who(home, credentials.read(path)))["name"] == "operator"

    run(home, work)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o610])
def test_a_token_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(f"{doors.TOKEN}{'x' * 43}\n")
    path.chmod(0o600)
    assert credentials.read(path)  # the positive control
    path.chmod(mode)
    with pytest.raises(EACCES, match=r"token.mode") as told:
        credentials.read(path)
    assert "chmod 600" in told.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_a_token_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{doors.TOKEN}{'x' * 43}\n")
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(EACCES, match=r"token.owner"):
        credentials.read(path)


@pytest.mark.parametrize("text", ["", "hello", "aos_ x", "aos_" + "x" * 300])
def test_a_file_without_a_token_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(EINVAL, match="no token in"):
        credentials.read(path)
    began = time.monotonic()
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(EACCES, match="no plain file"):
        credentials.read(tmp_path / "pipe")
    assert time.monotonic() - began < 60  # it does not wait for a writer


def test_a_token_that_is_made_while_its_client_ends_lets_nobody_in(home: Path) -> None:
    """Not even another client that is registered under that name later."""

    async def work(kernel: Kernel, client: Client) -> None:
        await client.call(Clients(do="register", name="near"))
        making = asyncio.create_task(kernel.tokens.add("local:0", "near-1", "client", client="near"))
        await asyncio.sleep(0)  # it has been handed to the journal
        ended = Draft("default/near", Kind.EXIT)
        kernel.journal.put(ended, sync=True, puts=kernel.outside.buried("default/near"))
        with pytest.raises(ENOENT, match="near has just ended"):
            await making
        assert (await client.call(Tokens()))["tokens"] == []  # which is recorded, so that what came before is stored
        assert kernel.store.get(tokens.BUCKET, "near-1") is None

    run(home, work)
