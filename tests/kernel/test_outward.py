"""Every connection of an agent's proxy passes the gate: capability, policy, labels, budget, a person; then a record."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Entry, Kind, Verdict
from agent_os.abi.errors import EPERM, EPOLICY
from agent_os.abi.frames import Call
from agent_os.abi.syscalls import BY_REQUEST, Write
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.handles import Handle
from agent_os.kernel.authority.labels import PRIVATE, untrusted
from agent_os.kernel.egress import Connection, parse_grant
from agent_os.kernel.egress.naming import capability_of, named
from agent_os.kernel.egress.routes import Use
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.outward import Outward
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.records import Records
from agent_os.kernel.table import Actor, Agent
from kernel.authority.ruled import rule, ruled
from kernel.egress.proxies import HERE, OK, Proxy, Server, echo, proxy, server
from peer import agent as adopted
from peer import greeted, running, until

PERSON = Actor("local:0")


class Desk:
    """An agent, its proxy, and a server on loopback that the name site.test leads to."""

    def __init__(self, kernel: Kernel, agent: Agent, site: Server) -> None:
        self.kernel, self.agent, self.site = kernel, agent, site
        self.proxy: Proxy

    @property
    def host(self) -> str:
        return f"site.test:{self.site.port}"

    async def get(self, path: str = "/", method: str = "GET", host: str = "") -> bytes:
        return await self.proxy.get(f"http://{host or self.host}{path}", method=method)

    @property
    def held(self) -> list[Handle]:
        return list(self.agent.holdings.of_kind("http"))

    def entries(self, *kinds: Kind) -> list[tuple[Entry, dict[str, Any]]]:
        self.kernel.journal.put_now(Draft("kernel", Kind.STATE), sync=False)  # with all that was put before
        found = self.kernel.journal.scan(self.agent.id, 1)
        return [(entry, decode_any(body or b"\x80")) for entry, body in found if entry.kind in kinds]

    async def question(self) -> Any:
        async with asyncio.timeout(10):
            while not (waiting := self.kernel.approvals.pending()):
                await asyncio.sleep(0.005)
        return waiting[0]

    def answer(self, question: Any, *, approve: bool, scope: str = "once") -> None:
        self.kernel.approvals.decide(question.id, PERSON, approve=approve, digest=question.digest, scope=scope)


@asynccontextmanager
async def desk(
    *caps: str,
    net: Collection[str] = (),
    routed: Collection[str] = (),
    handler: Any = OK,
    end: bool = True,
    home: Path | None = None,
    name: str = "a",
) -> AsyncGenerator[Desk]:
    """`PORT` in what it holds is that of the server; the endpoint itself is named by the operator, unless not `end`."""
    async with running(home) as kernel, server(handler) as site:
        agent, _ = await adopted(kernel, name)
        here = Desk(kernel, agent, site)
        grants = [parse_grant(one.replace("PORT", str(site.port))) for one in net]
        ends = [parse_grant(f"127.0.0.1:{site.port}")] if end else []
        wanted = [*(parse(one.replace("PORT", str(site.port))) for one in caps), *map(capability_of, [*grants, *ends])]
        for one in wanted:
            agent.holdings.grant(one, "operator")
        agent.named_hosts = named(grants, ())
        records = Records(kernel.journal, agent.incarnation)

        def saw(connection: Connection) -> Awaitable[None] | None:
            unsaid = ("agent", "time", "leave")
            facts = {name: getattr(connection, name) for name in connection.__struct_fields__ if name not in unsaid}
            if connection.done:
                return records.connected(agent.name, facts, connection.leave)
            return records.connecting(agent.name, facts, connection.leave)

        asking = Outward(kernel, agent)
        async with proxy(names=HERE, routed=routed, asking=asking, record=saw) as here.proxy:
            yield here


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


READS = "capability://http/site.test:PORT?action=get&scheme=http"
ANY = "capability://http/site.test:PORT?action=request&scheme=http,https"


def test_a_method_that_is_not_granted_is_refused_and_what_is_granted_is_recorded_with_its_handle() -> None:
    async def work() -> None:
        async with desk(READS) as here:
            assert (await here.get("/x?q=1")).endswith(b"hi")
            refused = await here.get("/x", "POST")
            assert refused.startswith(b"HTTP/1.1 403 Agent OS: cap.missing")
            assert b"http:site.test/x:post" in refused
            assert b"agentctl run --cap" in refused
            assert here.site.connections == 1
            (begun, told), (ended, end), (denied, why) = here.entries(Kind.CONNECT)
            assert (told["done"], told["host"], begun.verdict) == (False, "site.test", Verdict.ALLOW)
            assert begun.handle == ended.handle
            assert begun.handle in [one.id for one in here.held]
            assert begun.capability_digest
            assert (ended.ref, ended.cost["spent"]) == (begun.seq, {"bytes": end["bytes_up"] + end["bytes_down"]})
            assert (why["code"], denied.verdict) == ("cap.missing", Verdict.REFUSE)
            ((decision, said),) = here.entries(Kind.DECISION)
            assert (decision.step, decision.op, said["method"], said["code"]) == (2, 0, "POST", "cap.missing")

    run(work)


def test_an_unknown_method_needs_all_of_them() -> None:
    async def work() -> None:
        async with desk(READS) as here:
            assert b"nobody knows what PROPFIND does" in await here.get("/", "PROPFIND")
        async with desk(ANY) as here:
            assert (await here.get("/", "PROPFIND")).startswith(b"HTTP/1.1 200")

    run(work)


def test_a_tunnel_needs_all_methods_and_all_of_the_host() -> None:
    async def work() -> None:
        async with desk(READS, handler=echo) as here:
            head, _, _ = await here.proxy.connect(here.host)
            assert head.startswith(b"HTTP/1.1 403 Agent OS: cap.missing")
            assert (here.site.connections, here.proxy.asked) == (0, [])
        async with desk(ANY, handler=echo) as here:
            head, reader, writer = await here.proxy.connect(here.host)
            assert head.startswith(b"HTTP/1.1 200")
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"

    run(work)


def test_where_only_tls_is_granted_only_tls_passes() -> None:
    async def work() -> None:
        async with desk("capability://http/site.test:PORT?action=request", handler=echo) as here:
            _, reader, writer = await here.proxy.connect(here.host)
            writer.write(b"plain text")
            assert await reader.read() == b""
            assert (await here.proxy.last()).code == "net.sni"

    run(work)


def test_revoking_ends_the_connection_before_it_returns() -> None:
    async def work() -> None:
        async with desk(ANY, handler=echo) as here:
            _, reader, writer = await here.proxy.connect(here.host)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            (handle,) = [one for one in here.held if one.capability.target.host == "site.test"]
            assert len(handle.opened) == 1
            await here.kernel.authority.revoke([handle], "local:0")
            assert here.proxy.done[-1].code == "cap.revoked"
            assert here.entries(Kind.CONNECT)[-1][1]["code"] == "cap.revoked"
            assert await reader.read() == b""
            assert b"Agent OS: cap.revoked" in await here.get()
            assert here.site.connections == 1

    run(work)


def test_a_childs_connection_ends_with_what_it_was_derived_from() -> None:
    async def work() -> None:
        async with desk(end=False, handler=echo) as here:
            above = here.kernel.authority.holdings("default/above")
            port = here.site.port
            handle = above.grant(parse(f"capability://http/127.0.0.1:{port}?action=request&scheme=http"), "operator")
            above.delegate(handle.capability, here.agent.holdings)
            head, _, _ = await here.proxy.connect(f"127.0.0.1:{port}")
            assert head.startswith(b"HTTP/1.1 403")  # that was written like any host, and is the host's own loopback
            wide = above.grant(parse(ANY.replace("PORT", str(port))), "operator")
            above.delegate(wide.capability, here.agent.holdings)
            here.agent.holdings.grant(capability_of(parse_grant(f"127.0.0.1:{port}")), "operator")
            head, reader, _ = await here.proxy.connect(here.host)
            assert head.startswith(b"HTTP/1.1 200")
            await here.kernel.authority.revoke([wide], "local:0")
            assert await reader.read() == b""
            assert here.proxy.done[-1].code == "cap.revoked"

    run(work)


@pytest.mark.parametrize("tunnel", [False, True], ids=["plain", "tunnel"])
def test_what_a_rule_forbids_is_not_even_resolved_and_in_strict_mode_ends_the_agent(tunnel: bool) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, rule("forbid", "http:site.test:*", id="no-site"))
            answer = (await here.proxy.connect(here.host))[0] if tunnel else await here.get()
            assert answer.startswith(b"HTTP/1.1 403 Agent OS: policy.forbid")
            ((entry, _),) = here.entries(Kind.DECISION)
            assert (entry.step, entry.rule, entry.verdict) == (3, "no-site", Verdict.FORBID)
            assert (here.proxy.asked, here.site.connections) == ([], 0)
            async with asyncio.timeout(10):
                await here.agent.gone.wait()
            assert here.agent.quarantined
            assert here.agent.exit
            assert here.agent.exit.exit_class == "policy"

    run(work)


def test_a_rule_about_a_part_of_a_host_forbids_the_tunnel_and_ends_nobody() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            for what in ("http:site.test/admin/**:*", "http:site.test:post"):
                ruled(here.kernel, rule("forbid", what, id="part"))
                head, _, _ = await here.proxy.connect(here.host)
                assert head.startswith(b"HTTP/1.1 403 Agent OS: policy.tunnel"), what
                assert (await here.get()).endswith(b"hi")
            assert not here.agent.quarantined

    run(work)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_is_spoken_in_a_tunnel_is_unknown_and_counts_against_the_agent(scheme: str) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, rule("forbid", f"http:site.test:*{{scheme:{scheme}}}"), mode="enforce")
            head, _, _ = await here.proxy.connect(here.host)
            assert head.startswith(b"HTTP/1.1 403 Agent OS: policy.forbid")
            assert (await here.get()).endswith(b"hi") == (scheme == "https")

    run(work)


@pytest.mark.parametrize("path", ["/admin/x", "/%61dmin/x", "/adm%69n/x?y"])
def test_a_path_is_read_as_its_server_reads_it(path: str) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, rule("forbid", "http:site.test/admin/**:*"), mode="enforce")
            assert b"policy.forbid" in await here.get(path)
            assert (await here.get("/other")).endswith(b"hi")

    run(work)


@pytest.mark.parametrize("path", ["/a/%2e%2e/admin", "/a/../admin", "/a%2fb", "/a%5Cb", "//admin", "/./admin", "/a%00"])
def test_a_path_that_servers_read_differently_is_refused(path: str) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            assert (await here.get(path)).startswith(b"HTTP/1.1 400 Agent OS: net.malformed")
            assert here.site.connections == 0

    run(work)


@pytest.mark.parametrize("approve", [True, False])
def test_a_connection_waits_for_a_person(approve: bool) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, rule("ask", "http:site.test:post", id="ask-post"))
            asking = asyncio.create_task(here.get("/order?n=1", "POST"))
            question = await here.question()
            assert question.args["host"] == "site.test"
            assert question.args["path"] == "/order?n=1"
            assert (here.site.connections, here.proxy.asked) == (0, [])
            here.answer(question, approve=approve)
            answer = await asking
            if approve:
                assert answer.endswith(b"hi")
                assert "approval:" in here.entries(Kind.CONNECT)[0][0].rule
            else:
                assert answer.startswith(b"HTTP/1.1 403 Agent OS: approval.refused")
                assert here.site.connections == 0

    run(work)


def test_whoever_goes_away_while_a_person_is_asked_leaves_no_question() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            ruled(here.kernel, rule("ask", "http:site.test:post", id="ask-post"))
            asking = asyncio.create_task(here.get("/", "POST"))
            await here.question()
            await here.proxy.egress.close()
            assert not here.kernel.approvals.pending()
            asking.cancel()

    run(work)


def tainted(here: Desk) -> None:
    here.kernel.authority.labels.take_in(here.agent.id, untrusted("file:/work", PRIVATE))


def test_what_was_opened_clean_carries_nothing_out_that_would_be_asked_about() -> None:
    got: list[bytes] = []

    async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            got.append(data)

    async def work() -> None:
        async with desk(ANY, handler=sink) as here:
            _, _, tunnel = await here.proxy.connect(here.host)
            posting, post = await asyncio.open_connection("127.0.0.1", here.proxy.port)
            here.proxy.writers.append(post)
            head = f"POST http://{here.host}/ HTTP/1.1\r\nHost: {here.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
            post.write(head.encode() + b"5\r\nclean\r\n")
            tunnel.write(b"clean")
            await until(lambda: b"".join(got).count(b"clean") == 2)
            tainted(here)
            post.write(b"6\r\nsecret\r\n0\r\n\r\n")
            tunnel.write(b"secret")
            await posting.read()
            await until(lambda: [one.code for one in here.proxy.done].count("label.changed") == 2)
            assert b"secret" not in b"".join(got)

    run(work)


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_a_body_is_sent_outward_whatever_the_method_promises(method: str) -> None:
    async def work() -> None:
        async with desk(ANY) as here:
            tainted(here)
            head = f"{method} http://{here.host}/ HTTP/1.1\r\nHost: {here.host}\r\nContent-Length: 2\r\n\r\n"
            asking = asyncio.create_task(here.proxy.send(head.encode() + b"hi"))
            await until(lambda: bool(here.kernel.approvals.every()))
            assert here.site.connections == 0
            asking.cancel()

    run(work)


def test_a_person_who_said_no_to_a_tunnel_is_not_asked_again() -> None:
    async def work() -> None:
        async with desk(ANY, handler=echo) as here:
            tainted(here)
            asking = asyncio.create_task(here.proxy.connect(here.host))
            here.answer(await here.question(), approve=False)
            for head, _, _ in (await asking, await here.proxy.connect(here.host)):
                assert head.startswith(b"HTTP/1.1 403 Agent OS: approval.refused")
            assert len(here.kernel.approvals.every()) == 1
            assert here.site.connections == 0

    run(work)


def test_the_rule_of_two_asks_once_about_a_tunnel_to_a_host() -> None:
    async def work() -> None:
        async with desk(ANY, handler=echo) as here:
            tainted(here)
            asking = asyncio.create_task(here.proxy.connect(here.host))
            question = await here.question()
            assert question.rules == ["rule-of-two"]
            assert len(question.reasons) == 1
            assert question.capability.startswith("capability://http/site.test/**?action=delete,get,")
            here.answer(question, approve=True)
            head, _, _ = await asking
            assert head.startswith(b"HTTP/1.1 200")
            head, _, _ = await here.proxy.connect(here.host)
            assert head.startswith(b"HTTP/1.1 200")

    run(work)


def test_about_a_host_that_a_person_named_nobody_is_asked() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            tainted(here)
            assert (await here.get("/", "POST")).endswith(b"hi")
        async with desk(ANY) as here:
            tainted(here)
            assert (await here.get("/")).endswith(b"hi")  # it only reads there
            asking = asyncio.create_task(here.get("/", "POST"))
            here.answer(await here.question(), approve=False)
            assert b"approval.refused" in await asking

    run(work)


def test_what_a_host_sends_is_part_of_the_agent_before_it_arrives() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            assert not here.kernel.authority.labels.of(here.agent.id).untrusted
            await here.get()
            label = here.kernel.authority.labels.of(here.agent.id)
            assert (label.untrusted, label.sources) == (True, {"http:site.test"})
            assert here.entries(Kind.CONNECT)[0][0].label

    run(work)


def test_uses_are_counted_and_bytes_are_cut_at_the_limit() -> None:
    async def work() -> None:
        once = f"{READS}&count=1"
        async with desk(once) as here:
            assert (await here.get()).endswith(b"hi")
            assert b"budget.count" in await here.get()
        async with desk(f"{ANY}&bytes=3MiB", handler=echo) as here:
            _, reader, writer = await here.proxy.connect(here.host)
            writer.write(bytes(4 << 20))
            assert len(await reader.read()) < 3 << 20
            record = await here.proxy.last()
            assert record.code == "budget.bytes"
            assert (3 << 20) - (1 << 18) < record.bytes_up + record.bytes_down < (3 << 20) + (1 << 18)
            assert b"budget.bytes" in (await here.proxy.connect(here.host))[0]

    run(work)


def test_what_an_account_has_left_is_shared_by_all_its_connections() -> None:
    async def work() -> None:
        async with desk(ANY, handler=echo) as here:
            here.kernel.budgets.open(here.agent.id, None, {"bytes": 3 << 20})
            tunnels = [await here.proxy.connect(here.host) for _ in range(3)]
            for _, _, writer in tunnels:
                writer.write(bytes(4 << 20))
            for _, reader, _ in tunnels:
                await reader.read()
            async with asyncio.timeout(10):
                while len(here.proxy.done) < 3:
                    await asyncio.sleep(0.01)
            moved = sum(one.bytes_up + one.bytes_down for one in here.proxy.done)
            assert moved < (3 << 20) + 3 * (1 << 18)
            assert moved > 1 << 20
            assert {one.code for one in here.proxy.done} == {"budget.exhausted"}
            assert here.kernel.budgets.account(here.agent.id).held.get("bytes", 0) == 0

    run(work)


def test_the_hosts_loopback_opens_for_the_operators_word_alone() -> None:
    async def work() -> None:
        async with desk(end=False) as here:
            port, held = here.site.port, here.agent.holdings
            there = f"http://127.0.0.1:{port}/"
            assert b"net.address" in await here.proxy.get(there)
            wanted = capability_of(parse_grant(f"127.0.0.1:{port}"))
            with pytest.raises(EPERM):
                held.grant(wanted, "manifest")
            above = here.kernel.authority.holdings("default/above")
            above.grant(wanted, "operator")
            with pytest.raises(EPERM):
                above.delegate(wanted, held)
            assert b"net.address" in await here.proxy.get(there)
            held.grant(wanted, "operator")
            assert (await here.proxy.get(there)).endswith(b"hi")
            assert (await here.proxy.get(f"http://localhost:{port}/")).endswith(b"hi")
            for other in (f"http://127.0.0.1:{port + 1}/", f"http://127.0.0.2:{port}/", f"http://[::1]:{port}/"):
                assert b"net.address" in await here.proxy.get(other), other
            assert here.site.connections == 2

    run(work)


def test_a_host_with_a_route_is_not_tunnelled_whatever_key_is_inside() -> None:
    async def work() -> None:
        async with desk(ANY, routed=["site.test"], handler=echo) as here:
            head, _, _ = await here.proxy.connect(here.host)
            assert head.startswith(b"HTTP/1.1 403")
            assert here.site.connections == 0
        async with desk(f"{ANY}&tunnel=true", routed=["site.test"], handler=echo) as here:
            assert (await here.proxy.connect(here.host))[0].startswith(b"HTTP/1.1 200")

    run(work)


def test_whoever_is_quarantined_reaches_nothing() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            here.agent.quarantined = True
            assert b"Agent OS: quarantined" in await here.get()
            assert here.site.connections == 0

    run(work)


def test_a_policy_that_changes_while_a_name_is_looked_up_is_heeded() -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"]) as here:
            find = here.proxy.resolve

            async def slow(host: str, port: int) -> Any:
                ruled(here.kernel, rule("forbid", "http:site.test:*", id="late"), mode="enforce")
                return await find(host, port)

            here.proxy.egress._resolve = slow  # pyright: ignore[reportPrivateUsage]
            assert b"policy.forbid" in await here.get()
            assert here.site.connections == 0
            assert [entry.rule for entry, _ in here.entries(Kind.DECISION)] == ["late"]

    run(work)


@pytest.mark.parametrize("what", ["http:site.test:*", "http:site.test:post", "http:site.test/x/**:get"])
def test_what_is_open_and_forbidden_by_a_new_policy_is_closed(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        async with desk(net=["site.test:PORT"], handler=echo, home=tmp_path) as here:
            _, reader, writer = await here.proxy.connect(here.host)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            rules = f'version = 1\ndefault = "capability"\nmode = "enforce"\n{rule("forbid", what)}'
            await here.kernel.governing.apply(rules.encode(), "local:0")
            assert here.proxy.done[-1].code == "policy.forbid"
            assert await reader.read() == b""
            assert not here.agent.quarantined

    run(work)


def test_a_lock_down_closes_connections_before_it_waits_for_what_cannot_be_stopped(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "work").mkdir()
        async with desk(net=["site.test:PORT"], handler=echo, home=tmp_path) as here:
            _, reader, _ = await here.proxy.connect(here.host)
            slow, peer = await greeted(here.kernel, "slow", ("file:/work/**:write",))
            busy, fd = threading.Event(), os.open(tmp_path / "work", os.O_PATH)
            backend = slow.files.mount_directory("/work", fd)
            try:
                walk = backend.run(lambda: busy.wait(30))  # as a walk over a large tree
                peer.say(Call(9, BY_REQUEST[Write].number, frames.body(Write(path="/work/x", data="y"))))
                await until(lambda: any(one.opened for one in slow.holdings))
                rules = [rule("forbid", "file:/work/**:write", id="f"), rule("forbid", "http:*:*", id="h")]
                text = f'version = 1\ndefault = "capability"\nmode = "enforce"\n{"".join(rules)}'
                applying = asyncio.create_task(here.kernel.governing.apply(text.encode(), "local:0"))
                assert await asyncio.wait_for(reader.read(), 20) == b""
                assert not walk.done()
                assert not applying.done()
                busy.set()
                await applying
                await until(lambda: not any(one.opened for one in slow.holdings))
            finally:
                busy.set()
                os.close(fd)

    run(work)


def test_a_secret_needs_its_capability_and_heeds_the_policy() -> None:
    async def work() -> None:
        async with desk() as here:
            outward = Outward(here.kernel, here.agent)
            use = Use("a", "key", 1, "api.test", 443, "POST", "/v1/chat")
            with pytest.raises(EPERM) as caught:
                await outward.use(use)
            assert caught.value.detail["missing"] == "secret:key:use"
            handle = here.agent.holdings.grant(parse("secret:key:use"), "operator")
            here.agent.named_hosts = frozenset({"api.test"})
            tainted(here)
            permission = await outward.use(use)
            assert permission.handles == [handle]
            permission.drop()
            for what in ("secret:key:use", "http:api.test/v1/**:post"):
                ruled(here.kernel, rule("forbid", what), mode="enforce")
                with pytest.raises(EPOLICY):
                    await outward.use(use)
            assert [entry.step for entry, _ in here.entries(Kind.DECISION)] == [2, 3, 3]

    run(work)
