"""The gateway with TLS, as `agentctl up --cert --key` starts it: a real listener with a certificate made here."""

import asyncio
import ipaddress
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from cli.desk import SECONDS, Desk
from gateway.listening import PROTOCOL

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]
API = "/api/v1"


@dataclass
class Pair:
    cert: Path
    key: Path


def made(folder: Path) -> Pair:
    """A certificate for loopback that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agent os test")])
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pair = Pair(folder / "cert.pem", folder / "key.pem")
    pair.cert.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    pair.key.touch(mode=0o600)
    pair.key.write_bytes(key.private_bytes(*plain))
    return pair


class Walled:
    """A kernel whose gateway speaks TLS. `address` and `code` are what `up` printed."""

    def __init__(self, top: Path) -> None:
        self.pair = made(top)
        self.desk = Desk(top / "desk")
        said = self.desk.good("up", "--detach", "--port", "0", "--cert", self.pair.cert, "--key", self.pair.key).out
        printed = next(line.split()[2] for line in said.splitlines() if line.startswith("ok    dashboard"))
        self.address, _, self.code = printed.partition("/#code=")
        self.trust = ssl.create_default_context(cafile=str(self.pair.cert))
        self.http = httpx2.Client(base_url=self.address, verify=self.trust, timeout=SECONDS, trust_env=False)
        entered = self.http.post(f"{API}/session", json={"code": self.code})
        assert entered.status_code == 200, entered.text
        self.known = {"Authorization": f"Bearer {entered.json()['session']}"}

    @property
    def host(self) -> str:
        return self.address.removeprefix("https://")

    @property
    def port(self) -> int:
        return int(self.host.rpartition(":")[2])

    def close(self) -> None:
        self.http.close()
        self.desk.down()


@pytest.fixture(scope="module")
def walled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walled]:
    walled = Walled(tmp_path_factory.mktemp("walled"))
    yield walled
    walled.close()


def test_the_address_is_https_and_whoever_trusts_the_certificate_is_served(walled: Walled) -> None:
    assert walled.address.startswith("https://127.0.0.1:")
    assert walled.desk.good("status", "--json").json["gateway"]["url"] == walled.address
    assert walled.http.get(f"{API}/status", headers=walled.known).status_code == 200
    assert walled.http.get(f"{API}/status").status_code == 401
    with (
        httpx2.Client(base_url=walled.address, trust_env=False, timeout=SECONDS) as stranger,
        pytest.raises(httpx2.ConnectError, match=r"(?i)certificate"),
    ):
        stranger.get("/healthz")


def test_events_come_over_wss_with_a_ticket(walled: Walled) -> None:
    ticket = walled.http.post(f"{API}/session/tickets", json={}, headers=walled.known).json()["ticket"]

    async def work() -> None:
        async with (
            asyncio.timeout(SECONDS),
            connect(
                f"wss://{walled.host}{API}/events",
                ssl=walled.trust,
                origin=walled.address,  # type: ignore[arg-type]
                subprotocols=[PROTOCOL, f"ticket.{ticket}"],  # type: ignore[list-item]
                proxy=None,
            ) as stream,
        ):
            assert stream.subprotocol == PROTOCOL
            await stream.send(json.dumps({"cursor": None}))
            seen = {json.loads(await stream.recv())["type"]}
            while "stream.live" not in seen:
                seen.add(json.loads(await stream.recv())["type"])

    asyncio.run(work())


def test_a_page_of_another_origin_or_of_the_plain_one_hears_nothing(walled: Walled) -> None:
    async def refused(origin: str) -> int:
        with pytest.raises(InvalidStatus) as shut:
            async with connect(
                f"wss://{walled.host}{API}/events",
                ssl=walled.trust,
                origin=origin,  # type: ignore[arg-type]
                subprotocols=[PROTOCOL],  # type: ignore[list-item]
                proxy=None,
            ):
                pass
        return shut.value.response.status_code

    assert asyncio.run(refused("https://evil.example")) == 403
    assert asyncio.run(refused(f"http://{walled.host}")) == 403  # what is not protected is not ours


def test_plain_http_gets_no_answer_in_the_clear(walled: Walled) -> None:
    with socket.create_connection(("127.0.0.1", walled.port), timeout=SECONDS) as line:
        line.sendall(f"GET /healthz HTTP/1.1\r\nHost: {walled.host}\r\n\r\n".encode())
        said = b""
        while piece := _received(line):
            said += piece
    assert b"HTTP/1.1" not in said
    assert walled.http.get("/healthz").status_code == 200  # the same question, behind the wall


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(4096)
    except ConnectionError:
        return b""


@pytest.mark.parametrize(("host", "status"), [("evil.example", 421), ("localhost", 200), ("127.0.0.1", 200)])
def test_the_host_is_checked_behind_tls_as_well(walled: Walled, host: str, status: int) -> None:
    answer = walled.http.get(f"{API}/status", headers={**walled.known, "Host": f"{host}:{walled.port}"})
    assert answer.status_code == status, answer.text


def test_a_certificate_that_cannot_be_used_is_told_and_leaves_no_kernel(tmp_path: Path) -> None:
    pair, desk = made(tmp_path), Desk(tmp_path / "desk")
    (tmp_path / "other").mkdir()
    foreign = made(tmp_path / "other")
    empty = tmp_path / "empty.pem"
    empty.touch()
    for cert, key in ((pair.cert, foreign.key), (empty, pair.key)):
        said = desk.ask("up", "--detach", "--port", "0", "--cert", cert, "--key", key)
        assert said.code == 2, said
        assert "certificate" in said.err
        assert desk.ask("status").code == 8, said


def test_another_address_than_loopback_is_refused_without_tls(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for words in (("--host", "0.0.0.0"), ("--host", "0.0.0.0", "--public-name", "os.example"), ("--host", "::")):
        said = desk.ask("up", "--detach", "--port", "0", *words)
        assert said.code == 2, said
        assert "TLS" in said.err
    assert desk.ask("status").code == 8
