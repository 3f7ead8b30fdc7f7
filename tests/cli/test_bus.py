"""`agentctl send` and `agentctl bus` against a real kernel with a real agent."""

from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]

CLERK = """
from agent_os import agent

@agent
async def main(ctx):
    await ctx.subscribe("news.>")
    async def handle(message):
        if message.payload == "fail":
            raise ValueError("not that \\x1b[2J")
        return {"got": message.payload, "from": message.sender}
    await ctx.serve(handle)
"""
MANIFEST = """
name = "clerk"
role = "worker"
topics_subscribe = ["news.>"]
[program]
entry = "clerk.py:main"
"""


def test_messages_from_the_command_line(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (desk.project / "clerk.py").write_text(CLERK)
    (desk.project / "clerk.agent.toml").write_text(MANIFEST)
    desk.up()
    try:
        desk.good("apply", "-f", "clerk.agent.toml")
        until(lambda: "news.>" in desk.good("bus", "topics").out)
        answer = desk.good("send", "clerk", '{"x": 1}', "--wait", "--json").json
        assert answer["payload"]["got"] == {"x": 1}
        assert desk.good("send", "clerk", "plain words", "--wait").out.startswith('{"got": "plain words"')
        failed = desk.ask("send", "clerk", "fail", "--wait")
        assert (failed.code, "not that" in failed.err, "\x1b" in failed.err) == (1, True, False)
        desk.good("send", "clerk", "fail")
        until(lambda: "handler_error" in desk.good("bus", "dead").out)
        letter = desk.good("bus", "dead", "clerk", "--json").json["letters"][0]
        assert (letter["payload"], letter["tries"], letter["reason"]) == ("fail", 5, "handler_error")
        assert [row.split()[:4] for row in desk.good("bus", "dead").out.splitlines()] == [
            ["ID", "RECEIVER", "TOPIC", "FROM"],
            [letter["id"], "clerk", "-", letter["from"]],
        ]
        assert "handler_error" in desk.good("bus", "ls").err
        assert "sent again as" in desk.good("bus", "redeliver", letter["id"]).out
        until(lambda: desk.good("bus", "dead", "--json").json["letters"] not in ([], [letter]))
        again = desk.good("bus", "dead", "--json").json["letters"][0]["id"]
        unasked = desk.ask("bus", "drop", again)
        assert (unasked.code, f"agentctl bus drop {again} --yes" in unasked.err) == (2, True)
        assert desk.good("bus", "dead", "-o", "name").out == f"{again}\n"
        desk.good("bus", "drop", again, "--yes")
        assert desk.good("bus", "dead").err.strip() == "no dead letter"
        assert desk.ask("bus", "drop", again).code == 3
        with desk.follow("bus", "sub", "news.*", "-n", "2") as follower:
            until(lambda: "listener" in desk.good("bus", "topics").out)
            for word in ("one", "two"):
                desk.good("bus", "pub", "news.today", word)
            assert follower.stdout
            assert [line.split()[-1] for line in follower.stdout] == ["one", "two"]
            assert follower.wait(60) == 0
        until(lambda: "listener" not in desk.good("bus", "topics").out)
        unknown = desk.ask("send", "nobody", "x")
        assert (unknown.code != 0, "nobody" in unknown.err, "agentctl ps" in unknown.err) == (True, True, True)
        for wrong in (["send", "clerk", "x", "--wait", "--timeout", "-3"], ["bus", "sub", "x", "-n", "0"]):
            assert desk.ask(*wrong).code == 2
        assert "cannot be sent" in desk.ask("send", "clerk", "1" * 30).err
        assert "--off needs a topic" in desk.ask("bus", "reliable", "--off").err
        assert desk.ask("bus", "pub", "a..b", "x").code != 0
        assert desk.good("bus", "reliable").out == "no topic is reliable\n"
        assert desk.good("bus", "reliable", "news.>").out == "news.>\n"
        assert desk.good("bus", "reliable", "--json").json["reliable"] == ["news.>"]
        assert desk.ask("bus", "reliable", "a..b").code != 0
        assert desk.good("bus", "reliable", "news.>", "--off").out == "no topic is reliable\n"
    finally:
        desk.down()
