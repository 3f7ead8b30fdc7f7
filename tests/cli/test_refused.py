"""Every verb, given something that cannot be: it ends with the code that the table of exit codes gives the error, says
what is wrong on stderr, and prints nothing that could pass for a result."""

import json
import os
import signal
from collections.abc import Iterator

import click
import pytest

from agent_os.abi.errors import OUTCOMES
from agent_os.cli import main as cli
from cli.desk import Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
# Of each verb: words that are refused, and the error. `usage` is EINVAL before anybody was asked.
REFUSED: dict[str, tuple[str, str]] = {
    "run": ("--min-isolation S9 -- true", "usage"),
    "init": ("--template none", "usage"),
    "new": ("none", "usage"),
    "ps": ("--state nowhere", "usage"),
    "top": ("--sort colour", "usage"),
    "kill": ("nobody", "ESRCH"),
    "pause": ("nobody", "ESRCH"),
    "resume": ("nobody", "ESRCH"),
    "release": ("nobody", "ENOENT"),
    "signal": ("worker SIGWAVE", "EINVAL"),
    "logs": ("nobody", "ESRCH"),
    "wait": ("worker --timeout 0.1", "ETIMEDOUT"),
    "exec": ("nobody -- ls", "ESRCH"),
    "work commit": ("nobody", "ENOENT"),
    "work diff": ("nobody", "ENOENT"),
    "work rollback": ("nobody", "ENOENT"),
    "work snapshot": ("nobody name", "ENOENT"),
    "diff": ("nobody", "ENOENT"),
    "commit": ("nobody", "ENOENT"),
    "discard": ("nobody", "ENOENT"),
    "snapshot": ("nobody name", "ENOENT"),
    "events": ("--agent nobody", "ESRCH"),
    "trace": ("nobody", "ESRCH"),
    "memory cat": ("worker working/none", "ENOENT"),
    "memory export": ("nobody out.tar", "ESRCH"),
    "memory history": ("nobody working/none", "ESRCH"),
    "memory ls": ("nobody", "ESRCH"),
    "memory rm": ("worker working/none --yes", "ENOENT"),
    "memory search": ("nobody word", "ESRCH"),
    "inspect": ("nobody", "ESRCH"),
    "audit consistency": ("9999999", "ENOENT"),
    "audit export": ("none/out", "ENOENT"),
    "audit head": ("--wat", "usage"),
    "audit prove": ("9999999", "ENOENT"),
    "audit tail": ("--agent nobody", "ESRCH"),
    "audit verify": ("none.db", "ENOENT"),
    "checkpoint": ("nobody", "ESRCH"),
    "replay": ("nobody", "ESRCH"),
    "resolve": ("worker 999999 --done", "ENOENT"),
    "backup": ("none/out", "ENOENT"),
    "restore": ("none.backup", "EBUSY"),
    "token add": ("x --ttl forever", "EINVAL"),
    "token ls": ("--wat", "usage"),
    "token rm": ("nobody", "ENOENT"),
    "ui": ("", "EHOSTUNREACH"),
    "secrets bind": ("none --host api.example.com", "ENOENT"),
    "secrets get": ("none", "usage"),
    "secrets ls": ("--wat", "usage"),
    "secrets rm": ("none", "ENOENT"),
    "secrets rotate": ("none value", "usage"),
    "secrets set": ("none value", "usage"),
    "approvals": ("q-999", "ENOENT"),
    "approve": ("q-999", "ENOENT"),
    "answer": ("q-999 yes", "ENOENT"),
    "deny": ("q-999", "ENOENT"),
    "cap grant": ("worker nonsense", "EINVAL"),
    "cap ls": ("nobody", "ESRCH"),
    "cap revoke": ("c-999999", "ENOENT"),
    "cap tree": ("nobody", "ESRCH"),
    "can": ("worker nonsense", "EINVAL"),
    "explain": ("worker nonsense", "EINVAL"),
    "budget ls": ("nobody", "ESRCH"),
    "budget raise": ("worker cost=x", "EINVAL"),
    "budget set": ("worker wishes=3", "EINVAL"),
    "cost": ("--by colour", "usage"),
    "apply": ("-f none", "EINVAL"),
    "delete": ("nobody --yes", "ESRCH"),
    "start": ("nobody", "ESRCH"),
    "stop": ("nobody", "ESRCH"),
    "restart": ("nobody", "ESRCH"),
    "tree": ("nobody", "ESRCH"),
    "history": ("nobody", "ESRCH"),
    "submit": ("goal --priority someday", "usage"),
    "queue prioritize": ("g-999 high", "ESRCH"),
    "queue show": ("g-999", "ESRCH"),
    "queue withdraw": ("g-999", "ESRCH"),
    "send": ("nobody hello", "ESRCH"),
    "bus dead": ("--wat", "usage"),
    "bus drop": ("none", "ENOENT"),
    "bus ls": ("--wat", "usage"),
    "bus pub": ("not..a..topic x", "EINVAL"),
    "bus redeliver": ("none", "ENOENT"),
    "bus reliable": ("not..a..topic", "EINVAL"),
    "bus sub": ("not..a..topic", "EINVAL"),
    "bus topics": ("--wat", "usage"),
    "manifest explain": ("none.agent.toml", "ENOENT"),
    "manifest lint": ("--wat", "usage"),
    "manifest show": ("none.agent.toml", "EINVAL"),
    "model add": ("mine --base nonsense", "EINVAL"),
    "model alias": ("fast none/model", "ENOENT"),
    "model limit": ("none --requests 1", "ENOENT"),
    "model ls": ("--wat", "usage"),
    "model price": ("none/model", "usage"),
    "model rm": ("none", "ENOENT"),
    "model share": ("default -- -1", "EINVAL"),
    "model test": ("none/model", "ENOENT"),
    "tool call": ("no.such", "ENOENT"),
    "tool ls": ("--agent nobody", "ESRCH"),
    "tool show": ("no.such", "ENOENT"),
    "mcp add": ("x", "usage"),
    "mcp approve": ("none", "ENOENT"),
    "mcp clients": ("--wat", "usage"),
    "mcp ls": ("--wat", "usage"),
    "mcp register": ("x --cap nonsense", "EINVAL"),
    "mcp rm": ("none", "ENOENT"),
    "mcp serve": ("--as nobody", "ENOENT"),
    "mcp test": ("none", "ENOENT"),
    "mcp token": ("nobody", "ENOENT"),
    "mcp unregister": ("nobody", "ENOENT"),
    "policy apply": ("none.toml", "ENOENT"),
    "policy check": ("none.toml", "ENOENT"),
    "policy diff": ("none.toml --against 1d", "ENOENT"),
    "policy explain": ("worker nonsense", "EINVAL"),
    "policy rollback": ("", "ENOENT"),
    "policy show": ("--wat", "usage"),
    "policy test": ("none.toml", "ENOENT"),
    "up": ("--min-isolation S9", "usage"),
    "down": ("--grace long", "usage"),
    "status": ("--wat", "usage"),
    "doctor": ("--wat", "usage"),
    "config set": ("min_isolation S9", "EINVAL"),
    "config view": ("--wat", "usage"),
    "completion": ("tcsh", "usage"),
    "version": ("--wat", "usage"),
}
OF_MANY = ("kill", "pause", "resume", "start", "stop", "restart")  # these tell of whom it was done: of none
OWN_CODE = {"run": 125, "exec": 125}  # whatever it is that kept it from starting


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from verbs(found, (*path, name))
    else:
        yield " ".join(path), command


EVERY = dict(verbs(cli.app))


def test_no_verb_is_left_out() -> None:
    assert set(REFUSED) == set(EVERY)


@pytest.fixture
def signals() -> Iterator[None]:
    """A verb that follows an agent ignores signals in the end, for its process ends with it; this one does not."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("verb", REFUSED)
def test_what_a_verb_refuses_has_its_code_in_the_table(
    desk: Desk, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, error = REFUSED[verb]
    name = "EINVAL" if error == "usage" else error
    for key in [key for key in os.environ if key.startswith("AGENT_OS_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("AGENT_OS_HOME", str(desk.home))
    monkeypatch.chdir(desk.project)
    told = any("--json" in param.opts for param in EVERY[verb].params)
    first, dashes, rest = words.partition("-- ")
    args = [
        *verb.split(),
        *first.split(),
        *(["--json"] if told else []),
        *([dashes.strip()] if dashes else []),
        *rest.split(),
    ]
    code = cli.main(args)
    out, err = capsys.readouterr()
    assert out == (f'{{"api": "v1", "{verb}": []}}\n' if verb in OF_MANY else ""), out
    if told:
        said = json.loads(err)["error"]
        assert (said["code"], code) == (name, OUTCOMES[name][0]), said
        assert said["detail_code"] != "internal"
        assert said["reason"]
        assert (said["detail_code"] == "usage") == (error == "usage"), said
    else:
        assert code == OWN_CODE.get(verb, OUTCOMES[name][0]), err
        assert err.startswith("agentctl: ")
        assert "internal error" not in err
