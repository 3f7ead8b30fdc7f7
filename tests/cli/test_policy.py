"""`agentctl policy` reads rules as the kernel does, without one, and tells everything that is wrong with them."""

import json
from pathlib import Path

import pytest

from agent_os.cli.main import main

RULES = """version = 1
default = "capability"
[[rule]]
id = "no-env"
effect = "forbid"
what = ["file:/work/**/.env:read"]
[[rule]]
id = "vain"
effect = "allow"
what = ["file:/work/x/.env:read"]
agents = ["crawler"]
"""
CASES = """[[case]]
name = "closed"
agent = "crawler"
call = "file:/work/.env:read"
expect = "forbid"
[[case]]
name = "\\u001b[2Jopen"
agent = "crawler"
call = "file:/work/a:read"
expect = "EXPECTED"
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


def test_check_shows_what_holds_and_what_is_odd(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(rules), "--agent", "crawler:service", "--agent", "other"]) == 0
    out = capsys.readouterr().out
    assert f"{rules}  operator, default capability, strict" in out
    assert f"  forbid  file:/work/**/.env:read  no-env  {rules}:3" in out
    assert out.count("vain") == 2  # of crawler only, and as a finding
    assert f"odd  {rules}:7  vain: it never decides" in out
    assert "2 rules, 1 odd; digest " in out
    assert main(["policy", "check", str(rules), "--strict"]) == 1
    assert main(["policy", "check", str(rules), "--agent", ""]) == 2


def test_what_is_said_of_labels_is_shown_and_counted(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = '[[source]]\nwhat = ["file:/work/c/**:read"]\nintegrity = "trusted"\nclasses = ["custmer"]\n'
    rules.write_text('version = 1\ndefault = "capability"\n[[class]]\nname = "customer"\nreaders = []\n' + source)
    assert main(["policy", "check", str(rules)]) == 0
    out = capsys.readouterr().out
    words = [line.split() for line in out.splitlines()]
    assert ["class", "nobody", "customer", f"{rules}:3"] in words
    assert ["source", "file:/work/c/**:read", "trusted", "custmer", f"{rules}:6"] in words
    assert "did you mean 'customer'?" in out
    assert "0 rules and 2 about labels, 1 odd; " in out


def test_check_lists_every_problem_with_its_line(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules.write_text(RULES.replace("effect", "efect") + 'when = "x"\n')
    assert main(["policy", "check", str(rules)]) == 2
    said = capsys.readouterr()
    lines = [line.removeprefix(f"{rules}:").split(":")[0] for line in said.out.splitlines()]
    assert lines == ["3", "5", "7", "9", "12"]
    assert "5 problems: nothing of it would be in force" in said.err
    assert main(["policy", "check", str(rules), "-o", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["api"], told["ok"], told["problems"][0]["line"]) == ("v1", False, 3)


def test_check_tells_programs_the_same(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(rules), "--agent", "crawler", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["rule"] for one in told["agents"]["crawler"]] == ["no-env", "vain"]
    assert (told["ok"], told["rules"], told["findings"][0]["kind"]) == (True, 2, "unreachable")


def test_check_finds_the_files_in_force_by_itself(
    rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "check"]) in (0, 3)  # a machine may have an organisation's file
    (tmp_path / "home").mkdir()
    rules.rename(tmp_path / "home" / "policy.toml")
    (tmp_path / ".agents").mkdir()
    (tmp_path / ".agents" / "policy.toml").write_text('version = 1\ndefault = "deny"\n[[source]]\n')
    capsys.readouterr()
    assert main(["policy", "check"]) == 2
    assert ".agents/policy.toml:3: 'source' is accepted in the operator's" in capsys.readouterr().out


def test_a_project_s_markdown_is_checked_against_the_tools_that_there_are(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rules.with_name("security.md")
    path.write_text("policies:\n  - action: pay\n    mode: read_only\n")
    assert main(["policy", "check", str(path)]) == 2
    assert "2: there is no syscall and no registered tool 'pay'" in capsys.readouterr().out
    assert main(["policy", "check", str(path), "--tool", "pay=pure"]) == 0


@pytest.mark.parametrize(
    ("expected", "code", "tally"), [("allow", 0, "2 passed, 0 failed"), ("ask", 1, "1 passed, 1 failed")]
)
def test_test_decides_every_case(
    rules: Path, capsys: pytest.CaptureFixture[str], expected: str, code: int, tally: str
) -> None:
    path = rules.with_name("cases.toml")
    path.write_text(CASES.replace("EXPECTED", expected))
    assert main(["policy", "test", str(path), "--policy", str(rules)]) == code
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "ok    closed  forbid by no-env"
    assert out.splitlines()[-1] == tally
    assert "\x1b" not in out


def test_diff_lists_what_a_change_would_change(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after, calls = rules.with_name("after.toml"), rules.with_name("calls")
    after.write_text(RULES.replace(".env:read", "b:read"))
    call = {"seq": 7, "agent": "a", "role": "worker", "kind": "file", "action": "read"}
    calls.write_text("".join(json.dumps({**call, "target": f"/work/{name}"}) + "\n" for name in (".env", "b", "c")))
    assert main(["policy", "diff", str(rules), str(after), "--calls", str(calls)]) == 0
    said = capsys.readouterr()
    assert [line.split() for line in said.out.splitlines()[1:]] == [
        ["7", "a", "file:/work/.env:read", "forbid", "kill", "(no-env)", "→", "allow"],
        ["7", "a", "file:/work/b:read", "allow", "→", "forbid", "kill", "(no-env)"],
    ]
    assert "3 calls decided again, 2 otherwise" in said.err
    calls.write_text('no\n{"seq": 1}\n')
    assert main(["policy", "diff", str(rules), str(after), "--calls", str(calls)]) == 2
    said = capsys.readouterr()
    assert "1: this is no recorded call: one JSON object a line" in said.out
    assert "2: this is no recorded call: it lacks 'agent'" in said.out
    assert "2 problems: no call was decided" in said.err


def test_a_file_that_is_not_there_is_said_so(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["check", "none"],
        ["test", "none", "--policy", str(rules)],
        ["diff", str(rules), str(rules), "--calls", "none"],
    ):
        assert main(["policy", *words]) == 3
        assert "none" in capsys.readouterr().err
