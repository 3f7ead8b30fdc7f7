"""Requests and answers are held to the schemas that a manifest names, and a door is open only where it says so."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EINVAL, ETYPE
from agent_os.abi.syscalls import Bus, Post
from kernel.bus.test_doors import body
from kernel.bus.test_lives import native
from kernel.supervisor.declared import World, in_world

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]

SERVER = """
from agent_os import agent

@agent
async def main(ctx):
    async def handle(message):
        return message.payload["say"]
    await ctx.serve(handle)
"""
ASK = {"type": "object", "required": ["say"], "properties": {"n": {"type": "integer"}}}
INTERFACE = "[interface]\nprotocol = 'rest'\nrequest_schema = 'ask.json'\nresponse_schema = 'answer.json'\n"


async def ask(world: World, payload: Any, to: str = "n", protocol: Any = "rest") -> Any:
    return await world.call(Post(to=to, payload=body(payload), wait=True, protocol=protocol))


def test_a_request_and_its_answer_are_held_to_their_schemas(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        (world.project / "ask.json").write_text(json.dumps(ASK))
        (world.project / "answer.json").write_text(json.dumps({"type": "string"}))
        native(world, "n", SERVER, INTERFACE)
        await world.apply()
        await world.ready("n")
        assert (await ask(world, {"say": "hello"}))["payload"] == "hello"
        with pytest.raises(ETYPE) as unfit:
            await ask(world, {"say": "x", "n": "three"})
        assert (unfit.value.code, unfit.value.detail["field"]) == ("interface.request", "/n")
        with pytest.raises(ETYPE) as unfit:
            await ask(world, {"say": 17})
        assert unfit.value.code == "interface.response"
        assert "17" not in unfit.value.reason, "what an agent wrote is not in an error"
        with pytest.raises(ETYPE, match="the request to n"):  # whoever asks, and however
            await ask(world, "hello", protocol="")
        assert (await world.call(Bus()))["requests"] == [], "what did not fit is over as well"

    in_world(tmp_path, test)


def test_only_an_agent_that_offers_a_door_is_asked_through_it(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        native(world, "plain", SERVER)
        native(world, "broken", SERVER, INTERFACE)
        await world.apply()
        await asyncio.gather(world.ready("plain"), world.ready("broken"))
        assert (await ask(world, {"say": "hello"}, "plain", ""))["payload"] == "hello"
        with pytest.raises(EINVAL, match=r"its interface\.protocol is 'ipc'") as closed:
            await ask(world, {"say": "hello"}, "plain")
        assert closed.value.hint == 'interface.protocol = "rest" in its manifest'
        with pytest.raises(EINVAL, match=r"interface\.request_schema: .*No such file"):
            await ask(world, {"say": "hello"}, "broken")

    in_world(tmp_path, test)
