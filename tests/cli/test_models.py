"""`agentctl model` as an operator uses it: real processes, a real kernel, a provider on a loopback socket."""

import subprocess
from pathlib import Path

import pytest

from cli.desk import AGENTCTL, SECONDS, Desk
from models.provider import KEY, MockProvider, Say

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]


def test_a_provider_is_added_tried_priced_and_removed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with MockProvider(models=["small"]) as mock:
        desk.up()
        try:
            words = ("--dialect", "openai", "--base", f"{mock.url}/v1", "--key", "k")
            added = desk.good("model", "add", "mine", *words, "--json")
            assert added.json["missing"] == ["k"]
            listed = desk.good("model", "ls")
            assert [line.split()[-2:] for line in listed.out.splitlines()[1:3]] == [["no", "key"], ["no", "key"]]
            assert "mine has no key: agentctl secrets set k" in listed.err
            refused = desk.ask("model", "test", "mine/small")
            assert "agentctl secrets set k" in refused.err
            told = [*AGENTCTL, "secrets", "set", "k"]
            subprocess.run(told, env=desk.env, input=KEY.encode(), check=True, timeout=SECONDS, capture_output=True)
            desk.good("secrets", "bind", "k", "--host", f"127.0.0.1:{mock.port}")
            mock.then(Say("Hello.", input=12, output=2))
            desk.good("model", "price", "mine/small", "--input", "1", "--output", "2")
            tried = desk.good("model", "test", "mine/small", "--json").json
            assert (tried["text"], tried["cost_microusd"]) == ("Hello.", 16)
            assert desk.ask("model", "test", "mine").out == "mine/small\n"
            assert desk.ask("model", "alias", "fast", "mine/small").out == "fast = mine/small\n"
            moved = desk.ask("model", "add", "mine", "--base", "https://elsewhere.example/v1")
            assert moved.code != 0
            assert "is bound to 127.0.0.1" in moved.err
            unasked = desk.ask("model", "rm", "mine")
            assert (unasked.code, "agentctl model rm mine --yes" in unasked.err) == (2, True)
            assert "mine" in desk.good("model", "ls", "-o", "name").out.split()
            desk.good("model", "rm", "mine", "--yes")
            assert desk.ask("model", "rm", "mine").code == 3
            rows = desk.ask("model", "ls", "--json").json["providers"]
            assert [row["name"] for row in rows] == ["anthropic", "ollama", "openai", "scripted"]
        finally:
            desk.down()
