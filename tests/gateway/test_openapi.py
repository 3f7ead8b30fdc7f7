"""The document and the gateway say the same: schemathesis asks every operation, with every check and each role, and
nothing comes back that the document does not tell of, and no failure of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.house import ROLES, House

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]
# What the checks expect by themselves (401, 403, 404 and 409 for a request that fits its schema; not 400 or 422), and
# beside it what no schema can say, each with its reason.
ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "429"]
EVERYWHERE = {
    # A body above its limit is refused before anybody reads it: a document bounds fields, and not their sum.
    "positive_data_acceptance": [*ACCEPTED, "413"],
    "negative_data_rejection": ["400", "401", "403", "404", "405", "409", "413", "415", "422", "428", "429"],
    # Whoever does not say which version a change replaces gets 428 (RFC 6585).
    "missing_required_header": ["400", "401", "403", "415", "422", "428"],
}
# Fields that hold a text in a language of its own, which the kernel reads, or depend on what is there.
TEXTS = {
    "POST /api/v1/agents": ["400"],  # a manifest; paths, hosts and amounts of an order, which must be there to be named
    "POST /api/v1/agents/{agent}/invoke": ["400"],  # its manifest says what it takes, and whether it takes anything
    "POST /api/v1/capabilities": ["400"],  # the grammar of capabilities
    "POST /api/v1/capabilities/check": ["400"],
    "POST /api/v1/policies/test": ["400"],
    "POST /api/v1/messages": ["400"],  # the bytes of a topic are counted, not its characters
    "POST /api/v1/topics": ["400"],
    "PUT /api/v1/policies/{layer}": ["400", "412"],  # rules in TOML; the version that is in force
    "PUT /api/v1/secrets/{name}": ["400"],  # hosts, and a value that cannot be told from other text
    "GET /api/v1/audit/proofs": ["400"],  # one of two parameters; a size that no head has
}
PHASES = {"coverage": 2000, "examples,fuzzing,stateful": 250}  # each with what it asks at least
RUN = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


def config() -> str:
    lines = [f"[checks.{check}]\nexpected-statuses = {statuses}" for check, statuses in EVERYWHERE.items()]
    for name, more in TEXTS.items():
        lines.append(f'[[operations]]\ninclude-name = "{name}"\n[operations.checks.positive_data_acceptance]')
        lines.append(f"expected-statuses = {[*EVERYWHERE['positive_data_acceptance'], *more]}")
    return "\n".join(lines)


@pytest.mark.parametrize("phases", PHASES)
@pytest.mark.parametrize("role", ROLES)
def test_every_operation_does_what_the_document_says(house: House, role: str, phases: str, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(config())
    report = tmp_path / "report.json"
    command = [sys.executable, "-c", RUN, "run", f"{house.url}/openapi.json", "--checks", "all"]
    command += ["-H", f"Authorization: Bearer {house.tokens[role]}", "--phases", phases]
    command += ["--seed", "1", "--max-examples", "4"]
    command += ["--request-timeout", "60"]  # seconds: a safety limit; by itself it is 10
    command += ["--workers", "1", "--continue-on-failure", "--report-json-path", str(report), "--no-color"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, "CI": "1"}
    )
    told = json.loads(report.read_text())
    found = [(one["title"], one["count"], one["operations"]) for one in told["failures"]]
    assert (found, told["errors"]) == ([], []), ran.stdout[-20_000:]
    assert told["operations"]["tested"] == told["operations"]["total"] >= 60
    assert told["test_cases"]["generated"] > PHASES[phases], "it asked a great deal"
    assert house.get("status").status_code == 200
    assert "Traceback" not in house.log(), "and nothing failed behind it"
