"""What a tool's spec asks beside its parameters: money, callers who carry nothing untrusted, secrets. And what is
counted of the calls that were refused."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUDGET, ELABEL, EPERM
from agent_os.abi.tools import ToolLabels, ToolSpec
from agent_os.kernel.authority import bindings
from agent_os.kernel.egress import fetching
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tools.health import Metrics
from agent_os.kernel.tools.registry import Call, Deed
from kernel.egress.certificates import Authority
from kernel.tools.workers import Worker, run

SECRET = b"canary-4f1d2c7e9a"


def add(kernel: Kernel, **terms: Any) -> list[dict[str, Any]]:
    """A tool of the operator's that remembers each call."""
    calls: list[dict[str, Any]] = []

    async def work(call: Call) -> str:
        calls.append(call.params)
        return "done"

    spec = ToolSpec(name="shop.order", description="Order.", requires=("tool:call",), sandbox="driver", **terms)
    kernel.tools.registry.register(spec, Deed(work))
    return calls


def counted(kernel: Kernel, name: str) -> Metrics:
    return kernel.tools.find(name).health.metrics


@pytest.mark.parametrize("effect", ["pure", "opaque"])
def test_what_a_tool_costs_is_reserved_before_it_runs_and_spent_afterwards(tmp_path: Path, effect: Any) -> None:
    async def test(kernel: Kernel) -> None:
        worker, calls = Worker(kernel, tmp_path), add(kernel, cost_microusd=700, effect=effect)
        kernel.budgets.limit(worker.agent.id, {"cost": 1000})
        assert await worker.call("shop.order") == "done"
        assert kernel.budgets.account(worker.agent.id).spent["cost"] == 700
        with pytest.raises(EBUDGET) as caught:
            await worker.call("shop.order")
        assert "$0.0003 left of $0.001" in caught.value.reason
        assert len(calls) == 1
        assert kernel.budgets.account(worker.agent.id).used("cost") == 700
        assert counted(kernel, "shop.order").denied == 1
        outcomes = [entry for entry, _ in kernel.journal.scan(worker.agent.id) if entry.kind == Kind.OUTCOME]
        assert outcomes[0].cost["spent"]["cost"] == 700

    run(test)


def test_a_tool_for_clean_callers_takes_nothing_from_one_who_read_a_strangers_words(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker, calls = Worker(kernel, tmp_path), add(kernel, labels=ToolLabels(accepts="trusted"))
        assert await worker.call("shop.order") == "done"
        (tmp_path / "letter").write_text("order two")
        await worker.call("file.read", path="/work/letter")
        with pytest.raises(ELABEL) as caught:
            await worker.call("shop.order")
        assert "untrusted" in caught.value.reason
        assert len(calls) == 1
        assert counted(kernel, "shop.order").denied == 1

    run(test)


def test_a_tool_that_uses_a_secret_is_for_those_who_may_use_it(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        calls = add(kernel, secrets=("shop-key",))
        without = Worker(kernel, tmp_path, "without")
        with pytest.raises(EPERM) as caught:
            await without.call("shop.order")
        assert caught.value.detail["missing"].startswith("secret:shop-key:use")
        holder = Worker(kernel, tmp_path, "holder", caps=("tool:*:call", "secret:shop-key:use"))
        assert await holder.call("shop.order") == "done"
        assert len(calls) == 1

    run(test)


def test_refused_calls_are_counted_and_do_not_make_a_tool_ill(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path, caps=("tool:*:call",))
        for _ in range(25):
            with pytest.raises(EPERM):
                await worker.call("file.read", path="/work/a")
        health = kernel.tools.find("file.read").health
        assert (health.metrics.denied, health.metrics.calls, health.state) == (25, 0, "ok")

    run(test)


# Secrets on requests: put on by the kernel, for whoever holds them, where they are bound.


class Site:
    def __init__(self) -> None:
        self.port, self.seen, self.elsewhere = 0, list[bytes](), ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen.append(head)
        away = f"302 Found\r\nLocation: {self.elsewhere}"
        first, body = (away, b"") if head.startswith(b"GET /away") else ("200 OK\r\nContent-Type: text/plain", head)
        writer.write(f"HTTP/1.1 {first}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def site(authority: Authority) -> AsyncGenerator[Site]:
    found = Site()
    server = await asyncio.start_server(found, "127.0.0.1", 0, ssl=authority.server("127.0.0.1"))
    async with server:
        found.port = server.sockets[0].getsockname()[1]
        yield found


def reaching(*sites: Site) -> tuple[str, ...]:
    return ("tool:*:call", *(f"http:127.0.0.1/**:get{{loopback:127.0.0.1:{one.port}}}" for one in sites))


def test_a_secret_goes_with_requests_of_its_holder_to_its_host_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.new(tmp_path / "authority")
    monkeypatch.setattr(fetching, "default_tls", authority.client)

    async def test(kernel: Kernel) -> None:
        async with site(authority) as shop, site(authority) as elsewhere:
            shop.elsewhere = f"https://127.0.0.1:{elsewhere.port}/"
            kernel.safe.add("shop-key", SECRET)
            kernel.safe.bind(bindings.bind("shop-key", [f"127.0.0.1:{shop.port}"]))
            caps, url = reaching(shop, elsewhere), f"https://127.0.0.1:{shop.port}"
            holder = Worker(kernel, tmp_path, "holder", caps=(*caps, "secret:shop-key:use"))
            told = await holder.call("http.fetch", url=f"{url}/")
            assert b"Bearer " + SECRET in shop.seen.pop()
            assert told["status"] == 200
            assert SECRET.decode() not in str(told), "the server told it, and it was taken out"
            uses = [
                body or b"" for entry, body in kernel.journal.scan(holder.agent.id) if entry.kind == Kind.SECRET_USE
            ]
            assert any(b"shop-key" in one for one in uses), "its use is on the record"

            await holder.call("http.fetch", url=f"{url}/away")
            assert SECRET in shop.seen.pop()
            assert SECRET not in elsewhere.seen.pop()

            other = Worker(kernel, tmp_path, "other", caps=caps)
            await other.call("http.fetch", url=f"{url}/")
            assert SECRET not in shop.seen.pop()
            assert all(SECRET not in (body or b"") for _, body in kernel.journal.scan())

    run(test, home=_home(tmp_path))


def _home(top: Path) -> Path:
    home = top / "home"
    home.mkdir(mode=0o700)
    return home
