"""What a person reads when a model cannot be called: `agentctl run` and `agentctl model test`, as real processes."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.desk import AGENTCTL, SECONDS, Desk
from models.provider import KEY, Fail, MockProvider, Say

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
MANIFEST = """
name = "asker"
role = "worker"
[program]
runtime = "model"
model = "mine/small"
goal = "Say hello."
[budget]
usd = 1.0
model_calls = 5
"""
TOO_LONG = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    (desk.project / "asker.agent.toml").write_text(MANIFEST)
    desk.up()
    yield desk
    desk.ask("down")


def keep(desk: Desk, mock: MockProvider) -> None:
    told = [*AGENTCTL, "secrets", "set", "k"]
    subprocess.run(told, env=desk.env, input=KEY.encode(), check=True, timeout=SECONDS, capture_output=True)
    desk.good("secrets", "bind", "k", "--host", f"127.0.0.1:{mock.port}")


def test_every_way_in_which_a_model_cannot_be_called_says_what_to_do(desk: Desk) -> None:
    with MockProvider(models=["small"]) as mock:
        unknown = desk.ask("model", "test", "mine/small")
        assert "there is no provider 'mine'" in unknown.err
        assert "agentctl model add" in unknown.err

        desk.good("model", "add", "mine", "--dialect", "openai", "--base", f"{mock.url}/v1", "--key", "k")
        bind = f"agentctl secrets set k < FILE && agentctl secrets bind k --host 127.0.0.1:{mock.port}"
        assert bind in desk.ask("model", "test", "mine/small").err
        priceless = desk.ask("run", "asker.agent.toml")
        assert "agentctl model price mine/small" in priceless.err
        desk.good("model", "price", "mine/small", "--input", "1", "--output", "2")
        ran = desk.ask("run", "asker.agent.toml")
        assert ran.code != 0
        assert bind in ran.err
        assert mock.seen == []

        keep(desk, mock)
        other = desk.ask("model", "test", "mine/tiny")
        assert "small" in other.err, "it must name the models that there are"
        mock.then(Fail(400, TOO_LONG, word="context_length_exceeded"))
        long = desk.ask("model", "test", "mine/small")
        assert "8192" in long.err
        assert "9000" in long.err

        mock.then(Say("Hello."))
        assert desk.good("run", "asker.agent.toml").out.strip() == "Hello."
        refused = desk.ask("model", "limit", "mine")
        assert "--tokens" in refused.err
        limited = desk.good("model", "limit", "mine", "--requests", "50", "--tokens", "400000")
        assert limited.out == "mine  50 calls, 400,000 tokens a minute, for each key and model\n"
        assert desk.good("model", "share", "acme", "2").out == "acme has 2 times the share of others\n"
        listed = desk.good("model", "ls").out
        assert limited.out in listed
        assert "acme has 2 times the share of others" in listed


def test_a_provider_that_is_down_is_named_with_its_address(desk: Desk) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        port = closed.getsockname()[1]
        desk.good("model", "add", "mine", "--dialect", "openai", "--base", f"http://127.0.0.1:{port}/v1")
        tried = desk.ask("model", "test", "mine/small")
        assert tried.code != 0
        assert f"127.0.0.1:{port}" in tried.err
        desk.good("model", "price", "mine/small", "--input", "1", "--output", "2")
        ran = desk.ask("run", "asker.agent.toml")
        assert ran.code != 0
        assert "no model can be reached" in ran.err
        assert "agentctl model test mine/small" in ran.err
        assert f"127.0.0.1:{port}" not in ran.err, "an agent was told where its provider is"
