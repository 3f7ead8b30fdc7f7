"""What a person and the rules are asked about a request is all of it: query, body, and wherever its name leads."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAPPROVAL
from agent_os.kernel.egress.addresses import canonical_host
from agent_os.kernel.egress.asking import Wanted
from agent_os.kernel.egress.routes import Use
from agent_os.kernel.egress.visit import MOST_SHOWN
from agent_os.kernel.outward import Outward
from kernel.authority.ruled import rule, ruled
from kernel.egress.proxies import OK, echo
from kernel.test_outward import Desk, desk, run, tainted

ASK = rule("ask", "http:site.test:post", id="ask-post")


class Shop:
    """A server that keeps the bodies it is sent; each ends as its head says."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"chunked" in head:
            self.bodies.append(await reader.readuntil(b"0\r\n\r\n"))
        else:
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self.bodies.append(await reader.readexactly(size))
        writer.write(OK)
        await writer.drain()


async def begin(here: Desk, *headers: str, path: str = "/pay") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A POST of which the head is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.proxy.port)
    here.proxy.writers.append(writer)
    lines = [f"POST http://{here.host}{path} HTTP/1.1", f"Host: {here.host}", "Connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    return reader, writer


def test_nobody_is_asked_before_the_body_is_there_and_then_about_it() -> None:
    async def work() -> None:
        shop = Shop()
        async with desk(net=["site.test:PORT"], handler=shop) as here:
            ruled(here.kernel, ASK)
            reader, writer = await begin(here, "Content-Length: 9")
            writer.write(b"to=")
            await writer.drain()
            await asyncio.sleep(0.02)
            assert not here.kernel.approvals.pending()
            writer.write(b"MALLET")
            question = await here.question()
            assert question.args["body"] == "to=MALLET"
            assert (here.site.connections, here.proxy.asked) == (0, [])
            here.answer(question, approve=True)
            assert (await reader.read()).endswith(b"hi")
            assert shop.bodies == [b"to=MALLET"]

    run(work)


def test_another_body_is_another_question() -> None:
    async def work() -> None:
        shop = Shop()
        async with desk(net=["site.test:PORT"], handler=shop) as here:
            ruled(here.kernel, ASK)
            for body, approve in ((b"to=ALICE", True), (b"to=MALLE", False)):
                reader, writer = await begin(here, f"Content-Length: {len(body)}")
                writer.write(body)
                question = await here.question()
                assert question.args["body"] == body.decode()
                here.answer(question, approve=approve)
                assert (b"approval.refused" in await reader.read()) is not approve
            assert shop.bodies == [b"to=ALICE"]
            assert len({one.digest for one in here.kernel.approvals.every()}) == 2

    run(work)


@pytest.mark.parametrize("expects", [False, True], ids=["at once", "100-continue"])
def test_a_body_in_pieces_is_put_together_and_sent_as_it_came(expects: bool) -> None:
    async def work() -> None:
        shop = Shop()
        async with desk(net=["site.test:PORT"], handler=shop) as here:
            ruled(here.kernel, ASK)
            more = ("Expect: 100-continue",) if expects else ()
            reader, writer = await begin(here, "Transfer-Encoding: chunked", *more)
            if expects:
                assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"3\r\nto=\r\n6\r\nMALLET\r\n0\r\n\r\n")
            question = await here.question()
            assert question.args["body"] == "to=MALLET"
            here.answer(question, approve=True)
            assert (await reader.read()).endswith(b"hi")
            assert shop.bodies == [b"9\r\nto=MALLET\r\n0\r\n\r\n"]

    run(work)


@pytest.mark.parametrize("framing", [f"Content-Length: {MOST_SHOWN + 1}", "Transfer-Encoding: chunked"])
def test_about_a_body_that_nobody_could_judge_nobody_is_asked(framing: str) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, ASK)
            reader, writer = await begin(here, framing)
            writer.write(b"%x\r\n" % (MOST_SHOWN + 1) + bytes(MOST_SHOWN + 1))
            assert (await reader.readline()).startswith(b"HTTP/1.1 403 Agent OS: approval.stream")
            ((entry, said),) = here.entries(Kind.DECISION)
            assert (entry.step, said["code"]) == (6, "approval.stream")
            assert (here.site.connections, here.kernel.approvals.every()) == (0, [])

    run(work)


def test_where_nobody_is_asked_a_large_body_passes_as_it_comes() -> None:
    async def work() -> None:
        shop, size = Shop(), 4 * MOST_SHOWN
        async with desk(net=["site.test:PORT"], handler=shop) as here:
            ruled(here.kernel, rule("ask", "http:site.test/other:post"))
            reader, writer = await begin(here, f"Content-Length: {size}")
            writer.write(bytes(size))
            assert (await reader.read()).endswith(b"hi")
            assert hashlib.sha256(shop.bodies[0]).digest() == hashlib.sha256(bytes(size)).digest()

    run(work)


def test_after_a_request_whose_body_was_read_before_the_next_one_is_read_afresh() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")  # and answers, whatever the body is
        writer.write(OK)
        await writer.drain()

    async def work() -> None:
        async with desk(net=["site.test:PORT"], handler=early) as here:
            ruled(here.kernel, ASK)
            reader, writer = await asyncio.open_connection("127.0.0.1", here.proxy.port)
            here.proxy.writers.append(writer)
            head = f"{{}} http://{here.host}/{{}} HTTP/1.1\r\nHost: {here.host}\r\n"
            writer.write((head.format("POST", "a") + "Content-Length: 2\r\n\r\nxy").encode())
            here.answer(await here.question(), approve=True)
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
            writer.write((head.format("GET", "b") + "\r\n").encode())
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")

    run(work)


def test_a_secrets_request_is_shown_with_its_query_and_its_body() -> None:
    async def work() -> None:
        async with desk("secret:K:use") as here:
            ruled(here.kernel, rule("ask", "http:api.test/transfer:post", id="ask-pay"))
            outward = Outward(here.kernel, here.agent)
            read: list[str] = []

            async def body() -> bytes | None:
                read.append("body")
                return b"amount=1000000"

            sent = [(b"x-http-method-override", b"DELETE"), (b"cookie", b"a=b"), (b"host", b"api.test")]
            use = Use("a", "K", 1, "api.test", 443, "POST", "/transfer", "/transfer?to=EVIL", sent, body)
            asking = asyncio.create_task(outward.use(use))
            question = await here.question()
            assert (question.args["path"], question.args["body"]) == ("/transfer?to=EVIL", "amount=1000000")
            assert question.args["headers"]["x-http-method-override"] == "DELETE"
            assert question.args["headers"]["cookie"].startswith("sha256:"), "a credential is nobody else's business"
            here.answer(question, approve=False)
            with pytest.raises(EAPPROVAL):
                await asking
            ((_, said),) = here.entries(Kind.DECISION)
            assert said["path"] == "/transfer?to=EVIL"
            (await outward.use(Use("a", "K", 1, "api.test", 443, "POST", "/other", "/other", (), body))).drop()
            assert read == ["body"]  # nobody asks about the other one

    run(work)


# Where a name leads.


@pytest.mark.parametrize("tunnel", [False, True], ids=["plain", "tunnel"])
@pytest.mark.parametrize("what", ["http:127.0.0.1:*", "http:127.0.0.1:get", "http:127.0.0.1/x/**:*"])
def test_a_rule_about_an_address_holds_for_every_name_that_leads_there(what: str, tunnel: bool) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"], handler=echo) as here:
            ruled(here.kernel, rule("forbid", what, id="near"))
            answer = (await here.proxy.connect(here.host))[0] if tunnel else await here.get("/x/y")
            assert answer.startswith(b"HTTP/1.1 403 Agent OS: policy.")
            assert here.site.connections == 0
            assert [(entry.step, entry.rule) for entry, _ in here.entries(Kind.DECISION)] == [(3, "near")]
            assert not here.agent.quarantined  # it never wrote that address

    run(work)


def test_a_person_is_asked_about_an_address_when_it_is_known() -> None:
    async def work() -> None:
        shop = Shop()
        async with desk(net=["site.test:PORT"], handler=shop) as here:
            ruled(here.kernel, rule("ask", "http:127.0.0.1:post", id="near"))
            for approve in (True, False):
                reader, writer = await begin(here, "Content-Length: 2", path=f"/{approve}")
                writer.write(b"xy")
                question = await here.question()
                assert (question.args["addresses"], question.args["body"]) == (["127.0.0.1"], "xy")
                assert question.rules[0].endswith("near")
                here.answer(question, approve=approve)
                assert (await reader.read()).endswith(b"hi") is approve
            assert shop.bodies == [b"xy"]
            assert here.kernel.budgets.account(here.agent.id).held.get("bytes", 0) == 0

    run(work)


def test_whoever_was_asked_about_the_name_is_not_asked_again_about_the_address() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, rule("ask", "http:*:post", id="ask"))
            asking = asyncio.create_task(here.get("/", "POST"))
            here.answer(await here.question(), approve=True)
            assert (await asking).endswith(b"hi")
            assert [str(one.state) for one in here.kernel.approvals.every()] == ["used"]
            assert "approval:" in here.entries(Kind.CONNECT)[0][0].rule

    run(work)


def test_where_only_what_is_allowed_may_be_done_the_name_is_enough() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"], handler=OK) as here:
            ruled(here.kernel, rule("allow", "http:site.test:*"), default="deny")
            assert (await here.get()).endswith(b"hi")
            assert b"policy.unmatched" in await here.get(host=f"127.0.0.1:{here.site.port}")

    run(work)


def test_a_new_rule_about_an_address_closes_what_a_name_has_opened_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"], handler=echo, home=tmp_path) as here:
            _, reader, writer = await here.proxy.connect(here.host)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            text = f'version = 1\ndefault = "capability"\nmode = "enforce"\n{rule("forbid", "http:127.0.0.1/x:get")}'
            await here.kernel.governing.apply(text.encode(), "local:0")
            assert here.proxy.done[-1].code == "policy.forbid"
            assert await reader.read() == b""

    run(work)


def test_what_a_sink_does_not_take_does_not_go_there_by_a_name() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, '[[sink]]\nwhat = ["http:127.0.0.1:*"]\nintegrity = "trusted"\nelse = "deny"\n')
            tainted(here)
            assert b"label.sink" in await here.get()
            assert here.site.connections == 0

    run(work)


def test_an_address_inside_another_is_meant_as_well() -> None:
    there = canonical_host("[64:ff9b::93.184.216.34]")
    assert not isinstance(there, str)
    targets = [need.target for need in Wanted(there, 443, "get", "/x").leads([there])]
    assert targets == ["93.184.216.34/x"]
    names = [need.target for need in Wanted("site.test", 443, "get", "/x").leads([there])]
    assert names == ["[64:ff9b::5db8:d822]/x", "93.184.216.34/x"]


# Paths that servers read in more than one way.

STRANGE = ["/admin;x=1", "/admin;x=1/users", "/public/..;/admin", "/admin%3bx", "/admin%3Bx", "/admin%253Bx"]


@pytest.mark.parametrize("path", [*STRANGE, "/a/%252e%252e/admin", "/%c0%ae%c0%ae/admin", "/admin%ff", "/%EF%BF%BD"])
def test_a_path_that_is_not_the_same_to_everybody_is_refused(path: str) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            assert (await here.get(path)).startswith(b"HTTP/1.1 400 Agent OS: net.malformed")
            assert here.site.connections == 0

    run(work)


def test_a_slash_at_the_end_is_no_way_round_a_rule() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, rule("forbid", "http:site.test/admin:*"))
            assert b"policy.forbid" in await here.get("/admin/")
            assert not here.agent.quarantined
            for path in ("/admin/x", "/", "/C%23", "/%C3%A4", "/a?b;c=%3b"):
                assert (await here.get(path)).endswith(b"hi"), path

    run(work)
