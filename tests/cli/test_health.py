"""`agentctl status`: every line, what it says where something is wrong, and the same for programs."""

import asyncio
from typing import Any

import pytest

from agent_os.cli import health
from agent_os.cli.health import lines, model_names
from cli.desk import Desk

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")

NOW = 1_800_000_000.0
FACTS: dict[str, Any] = {
    **{"version": "0.1.0", "pid": 4121, "seconds": 7300.0, "auto": False, "halting": False},
    **{"socket": "/run/kernel.sock", "home": "/home", "declared": 0, "left_out": [], "quarantined": []},
    "isolation": {"minimum": "S2", "found": "S3", "agents": {"S3": 2}},
    "states": {"running": 2},
    "approvals": 0,
    "spending": {"cost_usd": 0.92, "limit_usd": 2.0, "tokens": 10, "nearly": []},
    "violations": {},
    **{"journal": "ok", "entries": 12345},
    "head": {"size": 12345, "signed_ns": int((NOW - 2) * 1e9)},
    "gateway": {"url": "http://127.0.0.1:7700", "pid": 5},
    "models": {"ready": ["ollama", "scripted"], "local": ["ollama"], "without_key": ["openai"], "waiting": 0},
    "policy": {"files": [{"rules": 2}], "mode": "strict", "alarm": ""},
}
WELL = {
    "kernel": "0.1.0  pid 4121  up 2h  stays until agentctl down",
    "socket": "/run/kernel.sock",
    "home": "/home",
    "isolation": "S3 on this host, minimum S2  agents: 2 S3",
    "agents": "2 running",
    "approvals": "none waits",
    "spent": "$0.92 of $2.00, 46%",
    "violations": "none since the kernel began",
    "journal": "ok  12,345 entries",
    "head": "12,345 entries signed 2s ago",
    "dashboard": "http://127.0.0.1:7700   agentctl ui lets you in",
    "models": "ollama (local), scripted; no key for openai",
    "policy": "2 rules in 1 file, strict",
}


def told(**other: Any) -> dict[str, tuple[str, str]]:
    return {name: (how, text) for how, name, text in lines({**FACTS, **other}, NOW)}


def test_where_all_is_well_every_line_says_so() -> None:
    assert told() == {name: ("ok", text) for name, text in WELL.items()}


@pytest.mark.parametrize(
    ("line", "other", "how", "says"),
    [
        ("kernel", {"halting": True}, "warn", "stopping"),
        ("isolation", {"isolation": {"minimum": "S3", "found": "S2", "agents": {}}}, "fail", "agentctl doctor"),
        ("isolation", {"isolation": {"minimum": "S2", "found": None, "agents": {}}}, "ok", "not tried yet"),
        ("agents", {"states": {"running": 1, "failed": 1}}, "warn", "1 running, 1 failed"),
        ("agents", {"states": {}}, "ok", "none"),
        ("quarantine", {"quarantined": ["bad"]}, "warn", "bad   agentctl release"),
        ("left out", {"left_out": ["x.agent.toml:2: role"]}, "warn", "x.agent.toml:2"),
        ("approvals", {"approvals": 1}, "warn", "1 waits for you   agentctl approvals"),
        ("approvals", {"approvals": 2}, "warn", "2 wait for you"),
        ("violations", {"violations": {"a": 1, "b": 2}}, "warn", "3 since the kernel began: b 2×, a 1×"),
        ("journal", {"journal": "the disk is full"}, "fail", "the disk is full"),
        ("head", {"head": None}, "warn", "nothing is signed"),
        ("dashboard", {"gateway": None}, "ok", "none   agentctl up"),
        ("policy", {"policy": {**FACTS["policy"], "alarm": "it cannot be read"}}, "fail", "2 rules"),
        ("policy", {"policy": {**FACTS["policy"], "files": []}}, "ok", "no rules: what agents hold decides, strict"),
    ],
)
def test_what_is_wrong_is_marked_and_says_what_to_do(line: str, other: dict[str, Any], how: str, says: str) -> None:
    found = told(**other)[line]
    assert found[0] == how
    assert says in found[1]


def test_money_is_held_against_its_cap() -> None:
    without = {**FACTS["spending"], "limit_usd": None}
    assert "no cap for all" in told(spending=without)["spent"][1]
    none = {**FACTS["spending"], "limit_usd": 0.0}
    assert told(spending=none)["spent"][1].endswith("of $0.00, 100%")
    nearly = {**FACTS["spending"], "nearly": ["worker tokens"]}
    assert told(spending=nearly)["spent"] == ("warn", "$0.92 of $2.00, 46%   nearly all: worker tokens")


def test_a_head_that_is_late_is_told_and_one_that_had_nothing_to_sign_is_not() -> None:
    old = {"size": 12000, "signed_ns": int((NOW - 3600) * 1e9)}
    assert told(head=old)["head"] == ("warn", "12,000 entries signed 1h ago   without a signature: 345")
    assert told(head=old, entries=12000)["head"][0] == "ok"


def test_an_idle_kernel_is_not_behind_because_somebody_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle:
        """Its newest head is an hour old; what is recorded from now on is signed at once."""

        entries = signed = 100
        at = NOW - 3600

        async def call(self, request: Any, deadline: float) -> Any:
            told = {
                "Status": {**FACTS, "entries": self.entries},
                "Head": {"size": self.signed, "wall_ns": self.at * 1e9},
            }
            self.entries += 1
            self.signed, self.at = self.entries, NOW
            return told.get(type(request).__name__, {"counters": [], "approvals": []})

    async def nothing(client: Any) -> Any:
        return []

    monkeypatch.setattr(health, "members", nothing)
    monkeypatch.setattr(health, "_spending", nothing)
    monkeypatch.setattr(health, "_models", lambda found: FACTS["models"])
    facts = asyncio.run(health.gathered(Idle()))  # type: ignore[arg-type]
    found = {name: how for how, name, _ in lines({**facts, "spending": FACTS["spending"]}, NOW)}
    assert found["head"] == "ok"
    assert facts["entries"] >= facts["head"]["size"]


def test_models_are_told_by_what_they_need() -> None:
    one = {"name": "openai", "base": "https://api.openai.com", "missing": ["openai"]}
    assert model_names({"providers": [one], "waiting": []}) == "none; no key for openai"
    assert model_names({"providers": [{**one, "missing": []}], "waiting": [{}]}) == "openai; 1 call waits"


@pytest.mark.integration
def test_a_kernel_with_an_agent_is_shown_on_one_screen(desk: Desk) -> None:
    desk.good("budget", "set", "operator", "cost=5usd")
    shown = desk.good("status").out.splitlines()
    assert len(shown) <= 24
    assert [line.split()[1] for line in shown] == list(WELL)
    text = "\n".join(shown)
    assert "1 running" in text
    assert "$0.00 of $5.00" in text
    facts = desk.good("status", "-o", "json").json
    assert facts["api"] == "v1"
    assert facts["states"] == {"running": 1}
    assert facts["isolation"]["found"] in facts["isolation"]["agents"]
    assert facts["spending"]["limit_usd"] == 5.0
    assert 0 < facts["head"]["size"] <= facts["entries"]
    assert "scripted" in facts["models"]["ready"]
    assert facts["gateway"] is None


@pytest.mark.integration
def test_a_viewer_sees_the_same_screen(desk: Desk) -> None:
    file = desk.project / "viewer.token"
    file.touch(mode=0o600)
    file.write_text(desk.good("token", "add", "looks", "--role", "viewer").out)
    desk.env["AGENT_OS_TOKEN_FILE"] = str(file)
    try:
        assert [line.split()[1] for line in desk.good("status").out.splitlines()] == list(WELL)
    finally:
        del desk.env["AGENT_OS_TOKEN_FILE"]


@pytest.mark.integration
def test_up_says_which_models_there_are(desk: Desk) -> None:
    assert (
        "ok    models      ollama (local), scripted; no key for anthropic, openai\n"
        in desk.good("up", "-d", "--no-ui").out
    )
