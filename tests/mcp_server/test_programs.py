"""Official programs written for Node: the Inspector's command line and the TypeScript client, over stdio and HTTP."""

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.desk import AGENTCTL, SECONDS, until
from gateway.house import House
from mcp_server import programs
from mcp_server.door import ERROR, MEMORY

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("needs Node, which the other user's copy lacks")]
NAMES = {"memory_store", "memory_retrieve"}
WAYS = ("stdio", "http")
MODES = (("legacy", "2025-11-25"), ({"pin": "2026-07-28"}, "2026-07-28"))

ASKS = """
version = 1
default = "capability"

[[rule]]
id = "ask-patient"
effect = "ask"
agents = ["patient"]
what = ["tool:memory.store:call"]
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    programs.modules()
    house = House(tmp_path_factory.mktemp("house"))
    yield house
    house.close()


def test_the_lock_names_no_address() -> None:
    text = (programs.NODE / "package-lock.json").read_text()
    assert '"resolved"' not in text
    assert "://" not in re.sub(r'"url": "[^"]*"', "", text)
    assert text.count('"integrity"') > 100


def registered(house: House, name: str) -> dict[str, dict[str, Any]]:
    """How a program reaches the server as a new client: by its command, and by its address."""
    house.desk.good("mcp", "register", name, *(word for cap in MEMORY for word in ("--cap", cap)))
    token = house.desk.good("mcp", "token", name, "--json").json["token"]
    command, *args = AGENTCTL
    return {
        "stdio": {"command": command, "args": [*args, "mcp", "serve", "--as", name], "env": house.desk.env},
        "http": {"url": f"{house.url}/mcp", "headers": {"Authorization": f"Bearer {token}"}},
    }


class Inspector:
    """One command is one connection."""

    def __init__(self, way: dict[str, Any], place: Path) -> None:
        self._config = place / "mcp.json"
        kind = "stdio" if "command" in way else "streamable-http"
        self._config.write_text(json.dumps({"mcpServers": {"door": {"type": kind, **way}}}))

    def ask(self, *words: str) -> dict[str, Any]:
        start = programs.modules() / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        ran = subprocess.run(
            [programs.node(), start, "--cli", "--config", self._config, "--server", "door", *words],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.stdout.strip().startswith("{"), ran
        return json.loads(ran.stdout)

    def tools(self) -> set[str]:
        return {tool["name"] for tool in self.ask("--method", "tools/list")["tools"]}

    def call(self, name: str, **arguments: str) -> dict[str, Any]:
        given = [word for key, value in arguments.items() for word in ("--tool-arg", f"{key}={value}")]
        return self.ask("--method", "tools/call", "--tool-name", name, *given)


@pytest.mark.parametrize("way", WAYS)
def test_the_inspector_lists_and_calls_governed_tools(house: House, tmp_path: Path, way: str) -> None:
    client = f"inspector-{way}"
    inspector = Inspector(registered(house, client)[way], tmp_path)
    assert inspector.tools() == NAMES
    assert not inspector.call("memory_store", key="a", value="hello").get("isError")
    assert inspector.call("memory_retrieve", key="a")["structuredContent"]["data"] == "hello"
    revoke(house, client, "memory.store")
    assert inspector.tools() == NAMES - {"memory_store"}


@contextmanager
def visiting(way: dict[str, Any], mode: Any) -> Iterator["Visit"]:
    script = programs.NODE / "visit.mjs"
    said = subprocess.Popen(
        [programs.node(), script, programs.modules(), json.dumps({**way, "mode": mode})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with said:
        try:
            yield Visit(said)
        finally:
            assert said.stdin
            said.stdin.close()
            try:
                said.wait(SECONDS)
            except subprocess.TimeoutExpired:
                said.kill()
                raise


class Visit:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.about = self._hear()

    def _hear(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def ask(self, **step: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(step) + "\n")
        self._process.stdin.flush()
        return self._hear()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("mode", "revision"), MODES, ids=[revision for _, revision in MODES])
def test_the_typescript_client_lists_and_calls_governed_tools(house: House, way: str, mode: Any, revision: str) -> None:
    client = f"typescript-{way}-{revision}"
    with visiting(registered(house, client)[way], mode) as visit:
        assert visit.about == {"revision": revision, "server": "agent-os"}
        assert set(visit.ask(list=True)) == NAMES
        assert not visit.ask(call="memory_store", **{"with": {"key": "a", "value": "hello"}}).get("isError")
        found = visit.ask(call="memory_retrieve", **{"with": {"key": "a"}})
        assert found["structuredContent"]["data"] == "hello"
        denied = visit.ask(call="http_fetch", **{"with": {"url": "https://example.com/"}})
        assert denied["_meta"][ERROR]["detail_code"] == "cap.missing"
        revoke(house, client, "memory.store")
        assert set(visit.ask(list=True)) == NAMES - {"memory_store"}
        refused = visit.ask(call="memory_store", **{"with": {"key": "a", "value": "again"}})
        assert refused["isError"]
        assert refused["_meta"][ERROR]["detail_code"] == "cap.revoked"


def test_the_typescript_client_comes_again_until_a_person_has_decided(house: House) -> None:
    ways = registered(house, "patient")
    rules = house.desk.project / "rules.toml"
    rules.write_text(ASKS)
    house.desk.good("policy", "apply", rules)

    def decide() -> None:
        until(lambda: bool(house.desk.good("approvals", "--json").json["approvals"]))
        (asked,) = house.desk.good("approvals", "--json").json["approvals"]
        until(lambda: seconds(house, asked["id"]) > 4)  # by then it was told that it has to wait
        house.desk.good("approve", asked["id"])

    with visiting(ways["http"], {"pin": "2026-07-28"}) as visit, ThreadPoolExecutor() as people:
        deciding = people.submit(decide)
        done = visit.ask(call="memory_store", **{"with": {"key": "a", "value": "hello"}})
        deciding.result()
        assert not done.get("isError"), done
        assert "thrown" not in done
        found = visit.ask(call="memory_retrieve", **{"with": {"key": "a"}})
        assert found["structuredContent"]["data"] == "hello"


def seconds(house: House, approval: str) -> float:
    rows = house.get("approvals").json()["items"]
    return next(row["seconds"] for row in rows if row["id"] == approval)


def revoke(house: House, client: str, tool: str) -> None:
    held = house.desk.good("cap", "ls", client, "--json").json["capabilities"]
    handle = next(row["handle"] for row in held if tool in json.dumps(row))
    house.desk.good("cap", "revoke", handle)
