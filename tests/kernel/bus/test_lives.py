"""Messages over the lives of real processes: none is lost or handled twice, one that kills is put aside, and one that
waits starts whoever it starts."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EAGAIN, ENOENT, ESRCH
from agent_os.abi.syscalls import Bus, DeadLetters, Post, Read, Stop
from agent_os.kernel.calls import Done
from kernel.bus.test_doors import body
from kernel.serving import until
from kernel.supervisor.declared import World, health, in_world

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]

READER = """
import os
from agent_os import agent

@agent
async def main(ctx):
    async for message in ctx.messages():
        STEP
        await ctx.append("/mem/working/seen", f"{message.payload}\\n")
"""


def native(world: World, name: str, program: str, manifest: str = "", **words: object) -> None:
    (world.project / f"{name}.py").write_text(program)
    out = world.project.parent / "out"
    out.mkdir(exist_ok=True)
    mount = f"[[mounts]]\npath = '/out'\nsource = '{out}'\nrights = 'rw'\n"
    world.manifest(name, f"[program]\nentry = '{name}.py:main'\n" + manifest + health(**words) + mount)


def seen(world: World, name: str = "n") -> list[str]:
    """The words that it wrote, in order."""
    root = world.kernel.vfs.root(world.record(name).id)
    try:
        done = world.kernel.vfs.read(root, Read(path="/mem/working/seen")).do()
    except ENOENT:
        return []
    assert isinstance(done, Done)
    return str(done.value["data"]).split()


async def post(world: World, payload: Any, to: str = "n", **more: Any) -> Any:
    return await world.call(Post(to=to, payload=body(payload), **more))


def test_a_message_that_kills_its_reader_is_put_aside_and_the_next_is_served(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        native(world, "n", READER.replace("STEP", "if message.payload == 'die': os._exit(9)"))
        await world.apply()
        await world.ready("n")
        await post(world, "one")
        await post(world, "die")
        await post(world, "two")
        await until(lambda: "two" in seen(world))
        (letter,) = (await world.call(DeadLetters()))["letters"]
        assert (letter["payload"], letter["reason"]) == ("die", "handler_error")
        assert letter["from"] == f"local:{os.getuid()}"
        assert "3 lives" in letter["detail"]
        assert len(world.exits("n")) == 3, "a life for each death, and no more"
        assert sorted(seen(world)) == ["one", "two"]

    in_world(tmp_path, test)


def test_whoever_is_killed_with_messages_in_hand_handles_each_once(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        program = READER.replace("ctx.messages()", "ctx.messages(batch=4)").replace("STEP", "await ctx.sleep(0.02)")
        native(world, "n", program, max_restarts=50)
        await world.apply()
        await world.ready("n")
        for number in range(24):
            await post(world, number)
            if number % 8 == 7:
                count = len(world.exits("n"))
                await until(lambda number=number: len(seen(world)) > number - 4)  # else one message has many deaths
                await until(lambda: world.kernel.table.find("n").running is not None)
                world.strike("n")
                await until(lambda count=count: len(world.exits("n")) > count)
        await until(lambda: len(seen(world)) >= 24)
        await until(lambda: not world.kernel.bus.broker.mailboxes())
        assert [int(one) for one in seen(world)] == list(range(24))

    in_world(tmp_path, test)


def test_an_asker_that_is_killed_gets_the_answer_in_its_next_life(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        asker = """
from agent_os import agent

@agent
async def main(ctx):
    answer = await ctx.request("n", "question", timeout=60)
    await ctx.append("/mem/working/seen", answer.payload)
    await ctx.sleep(1000)
"""
        server = """
from agent_os import agent

@agent
async def main(ctx):
    async def handle(message):
        await ctx.append("/mem/working/seen", "asked")
        await ctx.sleep(1.5)
        return "answer"
    await ctx.serve(handle)
"""
        native(world, "n", server)
        native(world, "a", asker, "[capabilities]\nipc_scope = 'peers'\nipc_peers = ['n']\n", max_restarts=9)
        await world.apply()
        await until(lambda: bool(seen(world)))
        world.strike("a")
        await until(lambda: len(world.exits("a")) == 1)
        await until(lambda: bool(seen(world, "a")))
        assert seen(world, "a") == ["answer"]
        assert seen(world) == ["asked"], "it was asked once"

    in_world(tmp_path, test)


def test_a_message_starts_whoever_it_starts_and_others_wait(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        once = """
from agent_os import agent

@agent
async def main(ctx):
    for message in await ctx.recv(wait=1):
        await ctx.append("/mem/working/seen", f"{message.payload}\\n")
        await message.ack()
"""
        calls = "[lifecycle]\nactivation = 'on_message'\n"
        native(world, "n", once, calls + "[interface]\nmax_queue = 12\n")
        await world.apply()
        assert world.record("n").incarnation == 0
        await post(world, "one")
        await until(lambda: seen(world) == ["one"])
        await world.state("n", "completed")
        for number in range(3):
            await post(world, number)
        await until(lambda: sorted(seen(world)) == ["0", "1", "2", "one"])
        await world.state("n", "completed")
        await world.call(Stop(agent="n"))
        assert {one["decision"]["act"] for one in world.exits("n")} == {"complete"}

    in_world(tmp_path, test)


def test_whoever_ends_without_taking_what_waits_is_started_ever_more_slowly(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        idle = "from agent_os import agent\n@agent\nasync def main(ctx):\n    pass\n"
        native(world, "n", idle, "[lifecycle]\nactivation = 'on_message'\n")
        await world.apply()
        await post(world, "one")
        await until(lambda: world.record("n").incarnation == 1)
        await world.state("n", "completed")
        began = time.monotonic()
        await post(world, "two")
        await until(lambda: world.record("n").incarnation == 3)
        assert time.monotonic() - began > 2.5, "one second, then two"

    in_world(tmp_path, test)


def test_a_queue_is_as_long_as_its_manifest_says(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        sleeps = "from agent_os import agent\n@agent\nasync def main(ctx):\n    await ctx.sleep(1000)\n"
        native(world, "n", sleeps, "[interface]\nmax_queue = 4\n")
        await world.apply()
        await world.ready("n")
        for number in range(2):
            await post(world, number)
        with pytest.raises(EAGAIN):  # one sender has a quarter of it, above the half
            await post(world, 2)
        (box,) = (await world.call(Bus(agent="n")))["mailboxes"]
        assert (box["agent"], box["waiting"]) == ("n", 2)

    in_world(tmp_path, test)


def test_requests_in_hand_are_finished_before_it_stops_and_nothing_new_comes(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        server = """
from agent_os import agent

@agent
async def main(ctx):
    async def handle(message):
        await ctx.sleep(1.0)
        return "done"
    await ctx.serve(handle)
"""
        native(world, "n", server)
        await world.apply()
        await world.ready("n")
        asking = asyncio.create_task(post(world, "x", wait=True))
        await until(lambda: world.kernel.bus.broker.requests_in_hand("default/n") == 1)
        other = asyncio.create_task(post(world, "y", wait=True))
        await until(lambda: world.kernel.bus.broker.lag("default/n").waiting == 1)
        await world.call(Stop(agent="n"))
        assert (await asking)["payload"] == "done"
        with pytest.raises(ESRCH):
            await other
        with pytest.raises(ESRCH):
            await post(world, "z")

    in_world(tmp_path, test)


def test_one_request_at_a_time_unless_it_says_otherwise(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        greedy = """
from agent_os import agent

@agent
async def main(ctx):
    found = []
    while True:
        found += await ctx.recv(wait=0.3, max=10)
        await ctx.append("/mem/working/seen", f"{len(found)}\\n")
"""
        native(world, "n", greedy)
        several = "[interface]\nreentrant = true\n[resources]\nmax_concurrent_requests = 2\n"
        native(world, "m", greedy, several)
        await world.apply()
        await world.ready("n", "m")
        asking = [asyncio.create_task(post(world, 1, to, wait=True)) for to in ("n", "m") for _ in range(4)]
        in_hand = world.kernel.bus.broker.requests_in_hand
        await until(lambda: in_hand("default/n") == 1 and in_hand("default/m") == 2)
        await until(lambda: seen(world, "n").count("1") >= 2 and seen(world, "m").count("2") >= 2)
        assert (in_hand("default/n"), in_hand("default/m")) == (1, 2)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    in_world(tmp_path, test)


@pytest.mark.parametrize(("mode", "topic"), [("topic:answers", "answers"), ("broadcast", "event.response")])
def test_answers_are_published_where_the_manifest_says(tmp_path: Path, mode: str, topic: str) -> None:
    async def test(world: World) -> None:
        server = """
from agent_os import agent

@agent
async def main(ctx):
    async def handle(message):
        return "told"
    await ctx.serve(handle)
"""
        native(world, "n", server, f"[interface]\nresponse_mode = '{mode}'\n")
        path = world.project / "n.agent.toml"
        path.write_text(f"topics_publish = ['{topic}']\n" + path.read_text())
        await world.apply()
        await world.ready("n")
        assert (await post(world, "x", wait=True))["payload"] == "told"
        await until(lambda: any(one.message.to == topic for one in world.kernel.bus.broker._state.log.since(0)))

    in_world(tmp_path, test)


SERVER = """
from agent_os import agent

@agent
async def main(ctx):
    async def handle(message):
        return ctx.agent
    await ctx.serve(handle)
"""
ASKER = """
from agent_os import agent
from agent_os.abi.errors import EPERM, ESRCH

@agent
async def main(ctx):
    answers = [(await ctx.request("topic/work.ask", number)).payload for number in range(4)]
    await ctx.append("/mem/working/seen", " ".join(sorted(set(answers))) + "\\n")
    for topic in ("work.other", "work"):
        try:
            await ctx.request(f"topic/{topic}")
        except (EPERM, ESRCH) as refused:
            await ctx.append("/mem/working/seen", f"{refused.code}\\n")
    await ctx.sleep(1000)
"""


def test_a_request_to_a_topic_goes_to_one_who_serves_it(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        topic = "[interface]\nrequest_topic = 'work.ask'\n"
        for name, program, more, head in (
            ("n", SERVER, topic, "topics_subscribe = ['work.ask']\n"),
            ("deaf", SERVER, topic, ""),
            ("asker", ASKER, "", "topics_publish = ['work.*']\n"),
        ):
            native(world, name, program, more)
            path = world.project / f"{name}.agent.toml"
            path.write_text(head + path.read_text())
        await world.apply()
        await until(lambda: len(seen(world, "asker")) == 3)
        assert seen(world, "asker") == ["default/n", "bus.unserved", "cap.missing"]

    in_world(tmp_path, test)
