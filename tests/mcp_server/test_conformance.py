"""The official conformance suite, in both eras, against our server on a real kernel.

What does not pass is in `expected.toml` with its reason, check by check; one that passes although it is listed fails
the test, so the list can only shrink.
"""

import json
import re
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_server import offering, programs
from mcp_server.stand import Porter, Stand

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("needs Node, which the other user's copy lacks")]
REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
EXPECTED = Path(__file__).with_name("expected.toml")
SECONDS = 280  # a safety limit: a run takes half a minute at most
RULE = """
version = 1
default = "capability"

[[rule]]
id = "ask"
effect = "ask"
what = [{}]
"""
LOOKS_S = 0.5
THINKS_S = {  # how long somebody has a question before it is answered; about other tools nobody says anything
    "test_input_required_result_request_state": 4.0,  # by then the client was told that it has to wait
    "test_tool_with_progress": 11.5,  # by then there were three notices, which come every 5 seconds
}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """Its client's token is `tokens["suite"]`."""
    programs.modules()
    asked = ", ".join(f'"tool:{name}:call"' for name in offering.ASKED)
    stand = Stand(tmp_path_factory.mktemp("stand"), RULE.format(asked))
    caps = [word for name in offering.NAMES for word in ("--cap", f"tool:{name}:call")]
    stand.desk.good("mcp", "register", "suite", *caps)
    stand.tokens["suite"] = stand.desk.good("mcp", "token", "suite", "--json").json["token"]
    yield stand
    stand.close()


@contextmanager
def person(stand: Stand) -> Iterator[None]:
    """Somebody who answers some of the questions, and lets the others lie."""
    enough = threading.Event()

    def look() -> None:
        while not enough.wait(LOOKS_S):
            for row in stand.get("approvals").json()["items"]:
                if row["seconds"] >= THINKS_S.get(row["args"]["tool"], float("inf")):
                    answer = {"outcome": "approve", "args_hash": row["digest"]}
                    stand.post(f"approvals/{row['id']}/decision", answer)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join(60)


def failed(results: Path) -> dict[str, str]:
    """Of each scenario's checks those that neither passed nor were left out, with what was said."""
    found: dict[str, str] = {}
    for path in results.glob("*/checks.json"):
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT.*", "", path.parent.name.removeprefix("server-"))
        for check in json.loads(path.read_text()):
            if check["status"] in ("FAILURE", "WARNING"):
                found[f"{scenario}/{check['id']}"] = f"{check['status']} {check.get('errorMessage', '')}"
    return found


def expected(revision: str) -> set[str]:
    rows: list[dict[str, Any]] = tomllib.loads(EXPECTED.read_text())["expected"]
    assert all(row["why"] for row in rows)
    return {check for row in rows if revision in row.get("revisions", REVISIONS) for check in row["checks"]}


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_suite_finds_what_is_expected_and_nothing_else(stand: Stand, tmp_path: Path, revision: str) -> None:
    suite = programs.modules() / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    known = expected(revision)
    listed = tmp_path / "expected.yaml"
    listed.write_text(json.dumps({"server": sorted({check.partition("/")[0] for check in known})}))
    results = tmp_path / "results"
    with Porter(stand, stand.tokens["suite"]) as porter, person(stand):
        ran = subprocess.run(
            [programs.node(), suite, "server", "--url", porter.url, "--suite", "all", "--spec-version", revision]
            + ["--expected-failures", listed, "-o", results, "--timeout", "60000"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    found = failed(results)
    passed = ran.stdout.count("✓") + ran.stderr.count("✓")
    assert set(found) - known == set(), {name: found[name] for name in set(found) - known}
    assert known - set(found) == set(), "these pass: take them off the list"
    assert passed >= 10, ran.stdout
    assert ran.returncode == 0, ran.stdout + ran.stderr
