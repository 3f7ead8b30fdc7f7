"""Goals as operators ask about them, over the control socket."""

import asyncio
from pathlib import Path

import pytest

from agent_os.abi.errors import EINVAL, ESRCH
from agent_os.abi.syscalls import Finish, LookAtGoal, Prioritize, Queue, Submit, Take, Withdraw
from faults.inprocess import forget_peers
from kernel.serving import serving
from peer import greeted


def test_operators_submit_look_prioritize_and_wait(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            _, peer = await greeted(kernel)
            said = await client.call(Submit(goal={"text": "do it", "agent": "a"}))
            assert (said["agent"], said["picked_by"]) == ("default/a", "named")
            shown = await client.call(Queue())
            assert [(one["id"], one["position"], one["waiting_for"]) for one in shown["waiting"]] == [
                (said["id"], 1, "agent")
            ]
            changed = await client.call(Prioritize(target=said["id"], priority="critical"))
            assert [one["priority"] for one in changed["goals"]] == ["critical"]
            other = await client.call(Submit(goal={"text": "not this", "agent": "a"}))
            gone = await client.call(Withdraw(goal=other["id"], reason="a mistake"))
            assert (gone["state"], gone["reason"]) == ("withdrawn", "a mistake")
            waiting = asyncio.create_task(client.call(LookAtGoal(goal=said["id"], wait=True)))
            await peer.ask(Take())
            assert [one["id"] for one in (await client.call(Queue()))["working"]] == [said["id"]]
            await peer.ask(Finish(goal=said["id"], result=[1, 2]))
            assert ((await waiting)["state"], (await waiting)["result"]) == ("done", [1, 2])
            everything = await client.call(Queue(all=True))
            assert {one["id"] for one in everything["ended"]} == {said["id"], other["id"]}
            with pytest.raises(EINVAL, match="text"):
                await client.call(Submit(goal=7))
            with pytest.raises(ESRCH):
                await client.call(LookAtGoal(goal="g-0"))
            await forget_peers()

    asyncio.run(test())
