"""kill -9 of kernel, sender and receiver, in turn: nothing acknowledged is lost, no effect happens twice, and order per
sender and lane is kept. All of them are real processes."""

import os
import signal
from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]

SENDER = """
from agent_os import agent

@agent
async def main(ctx):
    for number in range(COUNT):
        await ctx.send("receiver", number, lane="low" if number % 2 else "normal")
        await ctx.sleep(0.1)
    answer = await ctx.request("receiver", "all", timeout=300)
    await ctx.write("/mem/working/all", answer.payload)
    await ctx.sleep(1000)
"""
RECEIVER = """
from agent_os import agent
from agent_os.abi.errors import ENOENT

@agent
async def main(ctx):
    async for message in ctx.messages(batch=3):
        if not message.is_request:
            await ctx.append("/mem/working/log", f"{message.payload} ")
            await ctx.sleep(0.05)
            continue
        try:
            await message.reply(await ctx.read("/mem/working/log"))
        except ENOENT:
            await message.reply("")
"""
MANIFEST = """
name = "NAME"
role = "worker"
[program]
entry = "NAME.py:main"
[health]
max_restarts = 100
backoff = { base_ms = 20, cap_ms = 100, jitter = "none" }
[interface]
max_deaths = 50
[capabilities]
ipc_scope = "peers"
ipc_peers = ["receiver"]
"""
COUNT = 300
KILLED = ("receiver", "sender", "kernel", "receiver", "kernel", "sender")


def test_every_message_has_its_effect_once_and_in_order_over_kills_of_everybody(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for name, program in (("sender", SENDER), ("receiver", RECEIVER)):
        (desk.project / f"{name}.py").write_text(program.replace("COUNT", str(COUNT)))
        (desk.project / f"{name}.agent.toml").write_text(MANIFEST.replace("NAME", name))
    desk.up()
    try:
        desk.good("apply", "-f", "receiver.agent.toml", "-f", "sender.agent.toml")
        for who in KILLED:
            before = len(_effects(desk))
            assert before < COUNT, "the kill comes in the midst of it"
            until(lambda before=before: len(_effects(desk)) > before)
            _kill(desk, who)
        until(lambda: len(_effects(desk)) >= COUNT)
        until(lambda: "SYS_WRITE" in desk.good("events", "-n", "200", "--agent", "sender").out)
        effects = _effects(desk)
        for lane in (0, 1):
            mine = [number for number in effects if number % 2 == lane]
            assert mine == list(range(lane, COUNT, 2)), f"lost, doubled or out of order: {mine}"
        for name in ("sender", "receiver"):
            lives = desk.good("history", name, "--json").json["lives"]
            assert [one["class"] for one in lives].count("signal") == 2
            assert [one["class"] for one in lives].count("lost") == 2
        assert desk.good("bus", "dead", "--json").json["letters"] == []
        assert desk.ask("audit", "verify").code == 0
    finally:
        desk.down()


def _kill(desk: Desk, who: str) -> None:
    if who == "kernel":
        desk.kill_kernel()
        desk.up()
    else:
        os.kill(desk.good("inspect", who, "--json").json["pid"], signal.SIGKILL)


def _effects(desk: Desk) -> list[int]:
    """As the receiver has them in its memory."""
    said = desk.ask("send", "receiver", "all", "--wait", "--timeout", "100", "--json")
    assert said.code == 0, said
    return [int(word) for word in said.json["payload"].split()]
