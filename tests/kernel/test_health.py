"""What is asked and said about health, over a real control socket."""

from pathlib import Path

import pytest

from agent_os.abi.errors import ESRCH
from agent_os.abi.syscalls import Alive, Health, Ready
from agent_os.kernel.supervisor.terms import State
from kernel.serving import Caller, until
from kernel.supervisor.yard import QUIET, Yard, drive, never, sh

pytestmark = pytest.mark.integration


def test_the_health_of_all_is_told_with_the_names_of_the_bad_ones(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        nobody = await yard.client.call(Health())
        assert (nobody["overall"], nobody["agents"]) == ("down", [])
        await yard.declare("good", program=sh(QUIET))
        await yard.ready("good")
        assert (await yard.client.call(Health()))["overall"] == "healthy"
        await yard.declare("bad", program=sh("exit 3"), health=never())
        await until(lambda: yard.record("bad").state is State.FAILED)
        told = await yard.client.call(Health())
        assert told["overall"] == "degraded (bad)"
        rows = {row["agent"]: row for row in told["agents"]}
        assert (rows["good"]["ready"], rows["good"]["health"], rows["good"]["startup"]) == (
            True,
            "healthy",
            "immediate",
        )
        assert rows["bad"]["health"].startswith("unhealthy: failed")
        alone = await yard.client.call(Health(agents=["bad"]))
        assert alone["overall"] == "down"
        with pytest.raises(ESRCH, match="no manifest declares 'nobody'"):
            await yard.client.call(Health(agents=["nobody"]))

    drive(tmp_path, body)


def test_the_word_of_an_agent_that_nobody_watches_is_heard_and_means_nothing(tmp_path: Path) -> None:
    async def body(yard: Yard) -> None:
        caller = Caller(yard.kernel, "plain")
        assert await caller.syscall(Ready()) is None
        assert await caller.syscall(Alive(ok=False, why="who asks?")) is None
        assert not caller.agent.exit

    drive(tmp_path, body)
