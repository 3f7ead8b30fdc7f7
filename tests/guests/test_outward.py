"""What a person names with `--net` is a capability of that run: it is listed, taken back, and ruled by the policy."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from guests.agentctl import AGENTCTL, Machine

pytestmark = pytest.mark.integration

# It opens a connection, tells what ends it, and tries again.
VISITOR = """
import socket, sys
def visit(greeting):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30) as sock:
        sock.sendall(greeting)
        return sock.recv(100)
print(visit(b"first"), flush=True)
try:
    print(visit(b"second"), flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        yield listening


def ctl(machine: Machine, *words: str) -> str:
    ran = subprocess.run([*AGENTCTL, *words], cwd=machine.project, env=machine.env, capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.decode()


def test_taking_back_what_was_named_ends_the_open_connection(machine: Machine, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    (machine.project / "visitor.py").write_text(VISITOR)
    flags = ["--net", f"127.0.0.1:{port}", "--name", "visitor", "--timeout", "60s"]
    with machine.start("/usr/bin/python3", "visitor.py", str(port), flags=flags) as run:
        first, _ = listener.accept()
        with first:
            first.settimeout(60)
            assert first.recv(100) == b"first"
            (named,) = [one for one in capabilities(machine) if one["capability"].startswith("http:127.0.0.1")]
            assert (named["origin"], named["open"]) == ("operator", 1)
            ctl(machine, "cap", "revoke", named["handle"])
            assert first.recv(100) == b"", "it is over when revoke returns"
        out, err = run.communicate(timeout=60)
    first_end, second_end = out.decode().split()
    assert first_end == "b''", err
    assert second_end in ("b''", "ConnectionResetError"), "the door stays shut"
    assert not [one for one in capabilities(machine) if one["capability"].startswith("http:127.0.0.1")]
    codes = [entry["code"] for entry in machine.records("connect")]
    assert codes == ["net.allow", "cap.revoked", "cap.revoked"]


def capabilities(machine: Machine) -> list[dict[str, str]]:
    return json.loads(ctl(machine, "cap", "ls", "--json"))["capabilities"]


def test_a_connection_that_a_rule_forbids_is_the_last_thing_an_agent_does(
    machine: Machine, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    (machine.project / "visitor.py").write_text(VISITOR)
    rules = machine.state / "policy.toml"
    rules.write_text(
        'version = 1\ndefault = "capability"\nmode = "strict"\n'
        '[[rule]]\nid = "no-host"\neffect = "forbid"\nwhat = ["http:127.0.0.1:*"]\n'
    )
    rules.chmod(0o600)
    flags = ["--net", f"127.0.0.1:{port}", "--name", "visitor", "--timeout", "60s"]
    with machine.start("/usr/bin/python3", "visitor.py", str(port), flags=flags) as run:
        out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (137, b""), err
    assert b"no-host" in err
    assert b"quarantined" in err
    assert f"refused  connect 127.0.0.1:{port}".encode() in err
    assert [(entry["verdict"], entry["code"]) for entry in machine.records("connect")] == [("deny", "policy.forbid")]
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
