"""HTTP to a provider: where it may go, whom it trusts, what one wait can be interrupted by."""

import asyncio
import datetime
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent_os.abi.errors import EINVAL
from agent_os.drivers.models import Cancel, ModelFault
from agent_os.drivers.models.wire import Cancelled, Endpoint, Watch, Wire
from models.provider import KEY, MockProvider

pytestmark = pytest.mark.uid_free("asks for modules and HTTP, nothing of a user")


@pytest.mark.parametrize(
    "base",
    [
        "",
        "api.openai.com",
        "ftp://host",
        "file:///etc/passwd",
        "https://",
        "https://user:pw@host/",
        "https://host/?key=1",
        "https://host/#x",
        "https://host/a b",
        "https://host\r\nx: y/",
        "https://[::1/",
        "https://host:0/",
        "https://host:99999/",
    ],
)
def test_a_base_url_that_is_none_is_refused(base: str) -> None:
    with pytest.raises(EINVAL):
        Endpoint(base)


@pytest.mark.integration
def test_nothing_heavy_is_loaded_before_the_first_call() -> None:
    code = (
        "import sys\n"
        "from agent_os.drivers.models import anthropic, ollama, openai, scripted\n"
        "print([name for name in ('httpx2', 'httpcore2', 'anyio', 'pydantic', 'openai', 'anthropic', 'yaml')"
        " if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert, private = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert, private


def test_a_certificate_that_is_not_trusted_gets_no_request(tmp_path: Path) -> None:
    cert, private = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, private)
    got = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def send(trust: ssl.SSLContext | None, port: int) -> bytes:
        wire = Wire(Endpoint(f"https://localhost:{port}", trust=trust))
        try:
            answer = await wire.send("GET", "/x", {"x-api-key": KEY}, key=KEY)
            body = await answer.body()
            await answer.close()
            return body
        finally:
            await wire.close()

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ModelFault, match="certificate") as caught:
            await send(None, port)
        assert not caught.value.sent
        assert got == []
        assert await send(ssl.create_default_context(cafile=str(cert)), port) == b"ok"  # the positive control
        assert KEY.encode() in got[0]
        server.close()

    asyncio.run(work())


def test_the_body_of_an_error_is_read_to_a_bound() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 100000000\r\n\r\n")
        try:
            for _ in range(1500):
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        wire = Wire(Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        answer = await wire.send("GET", "/", {})
        assert len(await answer.body()) == 64 << 10
        await answer.close()
        await answer.close()
        await wire.close()
        server.close()

    asyncio.run(work())


def test_bytes_come_as_they_were_sent_even_if_they_claim_to_be_compressed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n"
            b"X-Two: a\r\nx-two: b\r\n\r\n\x1f\x8b\0\0"
        )
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        wire = Wire(Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        answer = await wire.send("GET", "/", {})
        assert await answer.body() == b"\x1f\x8b\0\0"
        assert answer.headers["x-two"] == "a, b"
        await answer.close()
        await wire.close()
        server.close()

    asyncio.run(work())


def test_a_wire_that_is_closed_keeps_nothing_open() -> None:
    with MockProvider() as mock:

        async def work() -> None:
            wire = Wire(Endpoint(mock.url))
            answers = [await wire.send("GET", "/v1/models", {"authorization": f"Bearer {KEY}"}) for _ in range(3)]
            await wire.close()
            for answer in answers:
                assert b"mock-small" in await answer.body()
                await answer.close()
            assert not [name for name in asyncio.all_tasks() if name is not asyncio.current_task()]

        asyncio.run(work())


def test_only_the_wait_is_interrupted_and_the_task_goes_on() -> None:
    async def work() -> str:
        cancel = Cancel()
        watch = Watch(cancel)
        assert await watch.wait(asyncio.sleep(0, "before")) == "before"
        asyncio.get_running_loop().call_later(0.01, cancel.set)
        with pytest.raises(Cancelled):
            await watch.wait(asyncio.sleep(60))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        with pytest.raises(Cancelled):
            await watch.wait(asyncio.sleep(60))
        watch.close()
        cancel.set()
        await asyncio.sleep(0)
        return "went on"

    assert asyncio.run(work()) == "went on"


def test_a_timeout_around_a_wait_stays_a_timeout() -> None:
    async def work() -> None:
        watch = Watch(Cancel())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await watch.wait(asyncio.sleep(60))

    asyncio.run(work())
