"""The frame of agentctl: the verbs it offers and how every kind of failure ends."""

import json
import subprocess
import sys
import types

import click
import pytest

from agent_os.abi.errors import EACCES, ECONFLICT, EINVAL
from agent_os.cli import main as cli

AGENTCTL = [sys.executable, "-m", "agent_os.cli.main"]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch):
    """Adds a verb `probe` whose body is the given function, found through the same table as the real ones."""

    def add(body, failure: int | None = None) -> None:
        module = types.ModuleType("agent_os_probe_verb")
        module.probe = click.command("probe")(click.option("-o", "--output")(body))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.VERBS, "probe", cli.Verb("agent_os_probe_verb:probe", "Probe", "Probe.", failure))

    return add


def test_help_lists_every_verb_with_its_summary(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, verb in cli.VERBS.items():
        assert name in text
        assert verb.summary in text
        assert f"{verb.group}:" in text


def test_no_arguments_show_the_help(capsys):
    assert cli.main([]) == 0
    assert "Usage: agentctl" in capsys.readouterr().out


@pytest.mark.integration
def test_help_imports_no_verb():
    script = (
        "import sys; from agent_os.cli import main as cli; cli.main(['--help'])\n"
        "print([m for m in sys.modules if m in {v.target.split(':')[0] for v in cli.VERBS.values()}], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_of_the_table_is_a_command_with_that_name_and_its_own_help(name, capsys):
    command = cli.app.get_command(click.Context(cli.app), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert cli.main([name, "--help"]) == 0
    assert f"Usage: agentctl {name}" in capsys.readouterr().out


def test_an_unknown_verb_gets_the_nearest_one_suggested(capsys):
    assert cli.main(["dictor"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "agentctl: there is no verb 'dictor'; did you mean 'doctor'?",
        "  try: agentctl --help",
    ]


def test_a_word_unlike_any_verb_gets_no_suggestion(capsys):
    assert cli.main(["xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_an_unknown_flag_is_a_usage_error_that_names_the_verbs_help(capsys):
    assert cli.main(["version", "--wat"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--wat" in err
    assert "try: agentctl version --help" in err


@pytest.mark.parametrize("words", [["-o", "json"], ["--json"], ["-ojson"], ["--output=json"], ["--output", "json"]])
def test_a_usage_error_is_one_object_when_json_is_asked_for(words, capsys):
    assert cli.main(["version", "--wat", *words]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], error["detail_code"]) == ("EINVAL", "usage")


def test_the_guests_own_words_do_not_ask_for_json():
    assert not cli.asks_for_json(["run", "--", "ls", "-o", "json", "--json"])
    assert cli.asks_for_json(["diff", "-o", "json", "--", "x"])


def test_an_error_is_told_with_its_next_step_and_its_exit_code(verb, capsys):
    def refuse(output):
        raise EACCES("path.refused", "the folder is not yours", hint="agentctl doctor")

    verb(refuse)
    assert cli.main(["probe"]) == 4
    assert capsys.readouterr().err == "agentctl: the folder is not yours\n  try: agentctl doctor\n"


def test_an_error_as_json_is_one_object_of_the_promised_shape(verb, capsys):
    def refuse(output):
        raise ECONFLICT("work.changed", "the file changed meanwhile", hint="agentctl diff x", rule="r-1", path="/x")

    verb(refuse)
    assert cli.main(["probe", "-o", "json"]) == 9
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err) == {
        "error": {
            "code": "ECONFLICT",
            "detail_code": "work.changed",
            "severity": "low",
            "reason": "the file changed meanwhile",
            "rule": "r-1",
            "decision": None,
            "hint": "agentctl diff x",
            "retryable": False,
            "trace": None,
        }
    }


def test_a_verb_with_a_failure_code_of_its_own_ends_every_failure_of_ours_with_it(verb, capsys):
    def refuse(output):
        raise EINVAL("workspace.refused", "no")

    verb(refuse, failure=125)
    assert cli.main(["probe"]) == 125
    assert cli.main(["probe", "--wat"]) == 125


def test_a_verbs_return_value_is_the_exit_code(verb):
    verb(lambda output: 7)
    assert cli.main(["probe"]) == 7
    verb(lambda output: None)
    assert cli.main(["probe"]) == 0


@pytest.mark.parametrize("group", ["cap", "policy", "secrets"])
def test_a_group_by_itself_shows_its_verbs_line_by_line(group, capsys):
    assert cli.main([group]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"Usage: agentctl {group}")
    assert len(said.out.splitlines()) > 8
    assert said.err == ""


def test_an_interrupt_ends_with_130(verb):
    def interrupt(output):
        raise KeyboardInterrupt

    verb(interrupt)
    assert cli.main(["probe"]) == 130


def test_a_bug_of_ours_is_one_clear_line_and_says_how_to_see_more(verb, capsys, monkeypatch):
    def broken(output):
        raise ZeroDivisionError("by\x1b[31m zero")

    verb(broken)
    monkeypatch.delenv("AGENT_OS_LOG", raising=False)
    assert cli.main(["probe"]) == 1
    err = capsys.readouterr().err
    assert "internal error, ZeroDivisionError" in err
    assert "AGENT_OS_LOG=debug" in err
    assert "Traceback" not in err
    assert "\x1b" not in err

    monkeypatch.setenv("AGENT_OS_LOG", "debug")
    assert cli.main(["probe"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.integration
def test_a_reader_that_goes_away_causes_no_noise():
    process = subprocess.Popen([*AGENTCTL, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=30)
    assert err == b""
    assert process.returncode == 1


def test_version_tells_the_same_as_text_and_as_json(capsys):
    import agent_os

    assert cli.main(["version"]) == 0
    assert agent_os.__version__ in capsys.readouterr().out
    assert cli.main(["version", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["api"] == "v1"
    assert told["version"] == agent_os.__version__
