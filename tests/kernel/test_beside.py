"""A command of an operator's in the sandbox of an agent that runs: who may, what it has, how it ends, what is told."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import doors
from agent_os.abi.errors import EBUSY, EINVAL, EMSGSIZE, ENOENT, EPERM, ESRCH, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Beside, Events, Hold, ListAgents, Run, Tell
from agent_os.client.wire import Client, Stream, connect
from agent_os.kernel import beside
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.running import Run as Life
from kernel.serving import Caller, entries, serving, until

pytestmark = pytest.mark.integration
Work = Callable[[Kernel, Client], Awaitable[None]]
AGENT = "box"


def run(tmp_path: Path, work: Work, script: str = "echo mine > mine.txt; echo up; while :; do sleep 1; done") -> None:
    """With a guest that has come as far as to say so."""
    project = tmp_path / "project"
    project.mkdir()

    async def main() -> None:
        async with asyncio.timeout(120), serving(tmp_path / "home") as (kernel, client):
            order = {"argv": ["sh", "-c", script], "cwd": str(project), "name": AGENT}
            order["environment"] = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
            await client.call(Run(order=order, detach=True))
            log = tmp_path / "home" / "logs" / f"{AGENT}.log"
            await until(lambda: log.exists() and b"up\n" in log.read_bytes())
            await work(kernel, client)

    asyncio.run(main())


class Ran:
    """One command, followed."""

    def __init__(self, client: Client, *argv: str, **more: Any) -> None:
        self.stream: Stream = client.stream(Beside(agent=AGENT, argv=list(argv), **more))
        self.out: dict[int, bytes] = {1: b"", 2: b""}
        self.notices: list[Any] = []

    async def begun(self) -> "Ran":
        value, size = await self.stream.receive()
        assert value == ["started", {"name": AGENT}]
        self.stream.give(size)
        return self

    async def heard(self, text: bytes) -> "Ran":
        """Returns when it has said that much."""
        while text not in self.out[1]:
            await self._next()
        return self

    async def _next(self) -> None:
        value, size = await self.stream.receive()
        self.stream.give(size)
        if isinstance(value[0], int):
            self.out[value[0]] += value[1]
        else:
            self.notices.append(value)

    async def ended(self) -> dict[str, Any]:
        try:
            while True:
                await self._next()
        except StopAsyncIteration:
            return await self.stream.result()


async def done(client: Client, *argv: str, said: bytes = b"", **more: Any) -> tuple[int, bytes]:
    """Its code, and what it wrote to its standard output."""
    ran = Ran(client, *argv, **more)
    if said:
        await ran.stream.send(said)
    await ran.stream.send(["close", 0])
    return (await ran.ended())["code"], ran.out[1]


async def refused(client: Client, kind: type[AgentOSError], *argv: str, agent: str = AGENT, **more: Any) -> Any:
    with pytest.raises(kind) as caught:
        await client.stream(Beside(agent=agent, argv=list(argv), **more)).result()
    return caught.value


# What it has.


def test_it_sees_the_agent_s_files_and_processes_and_carries_both_streams(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        assert await done(client, "cat", "mine.txt") == (0, b"mine\n")
        code, seen = await done(client, "sh", "-c", "cat /proc/2/cmdline | tr '\\0' ' '; exit 9")
        assert (code, b"mine.txt" in seen) == (9, True)
        assert await done(client, "sh", "-c", "cat > given.txt; cat given.txt", said=b"from outside") == (
            0,
            b"from outside",
        )
        assert await done(client, "sh", "-c", "echo $MORE", env=["MORE=more"]) == (0, b"more\n")
        assert not (tmp_path / "project" / "given.txt").exists()  # it wrote to the agent's layer

    run(tmp_path, work)


def test_it_has_the_agent_s_walls_and_no_more_rights(tmp_path: Path) -> None:
    """Each line of this is what the agent itself has, and differs from what this process has."""
    script = "grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp|Cpus_allowed):' /proc/$P/status; readlink /proc/$P/ns/pid"
    script += "; readlink /proc/$P/ns/net /proc/$P/ns/mnt /proc/$P/ns/user; cat /proc/$P/cgroup /proc/$P/limits"

    async def work(kernel: Kernel, client: Client) -> None:
        own = await done(client, "sh", "-c", f"P=2; {script}")
        assert own == await done(client, "sh", "-c", f"P=self; {script}")
        assert own[0] == 0
        assert b"Seccomp:\t2" in own[1]
        assert os.readlink("/proc/self/ns/pid").encode() not in own[1]
        assert (await done(client, "ls", str(tmp_path / "home")))[0] != 0
        assert (await done(client, "ls", str(tmp_path / "project")))[0] == 0

    run(tmp_path, work)


def test_it_goes_out_by_the_agent_s_proxy_and_is_refused_in_the_agent_s_name(tmp_path: Path) -> None:
    go = "import urllib.request as r\ntry: r.urlopen('http://203.0.113.1/', timeout=20)\n"
    go += "except OSError as e: print(e)"

    async def work(kernel: Kernel, client: Client) -> None:
        assert b"403" in (await done(client, "python3", "-c", go))[1]
        told = [
            one
            for one in await entries(client, Events(agent=AGENT, bodies=True))
            if (one.get("body") or {}).get("host")
        ]
        assert [one["body"]["host"] for one in told] == ["203.0.113.1"]

    run(tmp_path, work)


# Who may, and what is told.


def test_it_is_on_the_record_before_it_begins_and_after_it_has_ended(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        ran = await Ran(client, "sh", "-c", "read line; exit 5", env=["TOKEN=hidden"]).begun()
        told = await entries(client, Events(bodies=True))
        asked = [one for one in told if one.get("op") == "OP_EXEC"]
        assert [one["body"]["event"] for one in asked] == ["asked"]
        assert asked[0]["agent"].startswith("local:")
        assert asked[0]["body"]["request"]["argv"] == ["sh", "-c", "read line; exit 5"]
        before = [one for one in told if (one.get("body") or {}).get("event") == "exec"]
        assert [one["agent"] for one in before] == [f"default/{AGENT}"]
        facts = before[0]["body"]
        assert (facts["by"], facts["argv"], facts["env"]) == (
            asked[0]["agent"],
            ["sh", "-c", "read line; exit 5"],
            ["TOKEN"],
        )
        await ran.stream.send(b"go\n")
        assert (await ran.ended())["code"] == 5
        after = [
            one["body"] for one in await entries(client, Events(agent=AGENT, bodies=True)) if one["kind"] == "change"
        ]
        ended = [one for one in after if one["event"] == "exec ended"]
        assert [(one["entry"], one["code"], one["ending"]) for one in ended] == [(before[0]["seq"], 5, "exited")]

    run(tmp_path, work)


def test_only_an_operator_may(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        for role in ("viewer", "auditor", "operator"):
            token = (await client.call(doors.Tokens(do="add", name=f"the-{role}", role=role)))["token"]
            async with connect(tmp_path / "home" / "run" / "kernel.sock", token=token) as other:
                if role == "operator":
                    assert await done(other, "true") == (0, b"")
                else:
                    assert (await refused(other, EPERM, "touch", "seen")).code == "role.low"
        assert (await done(client, "ls", "seen"))[0] != 0
        told = [
            one["body"] for one in await entries(client, Events(agent=AGENT, bodies=True)) if one["kind"] == "change"
        ]
        assert [one["by"] for one in told if one["event"] == "exec"] == ["token:the-operator", told[-1]["by"]]

    run(tmp_path, work)


def test_whoever_follows_the_agent_is_told(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        order = {"argv": ["sleep", "600"], "cwd": str(tmp_path / "project"), "name": "followed"}
        order["environment"] = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        following = client.stream(Run(order=order))
        assert (await following.receive())[0][0] == "started"
        for argv, shown in ((["true"], "true"), (["echo", b"a\xffb", "x" * 100], f"echo a\ufffdb {'x' * 71}")):
            await client.stream(Beside(agent="followed", argv=argv)).result()
            said, _ = await following.receive()
            assert said == ["notice", f"{shown} is run in its sandbox by process {os.getpid()}"]
        await client.call(Tell(agent="followed", signal=AgentSignal.SIGKILL))

    run(tmp_path, work)


# Refused.


def test_what_cannot_be_run_says_why_and_leaves_no_word_of_having_begun(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        assert (await refused(client, EINVAL)).code == "command.none"
        assert (await refused(client, EINVAL, "")).code == "command.none"
        assert (await refused(client, EINVAL, "echo", "a\0b")).code == "command.malformed"
        assert (await refused(client, EINVAL, "true", timeout="soon")).code == "duration.malformed"
        assert (await refused(client, EINVAL, "true", env=["not a name=1"])).code == "env.malformed"
        assert (await refused(client, EINVAL, "true", env=[["x"]])).code == "order.malformed"
        assert (await refused(client, EMSGSIZE, "echo", "x" * 200_000)).code == "command.long"
        unknown = await refused(client, ESRCH, "true", agent="bux")
        assert (unknown.code, unknown.hint) == ("agent.unknown", "did you mean box?")
        await client.call(Hold(agent=AGENT))
        paused = await refused(client, EBUSY, "true")
        assert (paused.code, paused.hint) == ("agent.paused", "agentctl resume box")
        await client.call(Hold(agent=AGENT, hold=False))
        Caller(kernel, "mine")
        nowhere = await refused(client, ESRCH, "true", agent="mine")
        assert (nowhere.code, "in the program that made it" in nowhere.reason) == ("agent.process", True)
        assert not [one for one in await entries(client, Events(agent=AGENT, bodies=True)) if one["kind"] == "change"]
        assert await done(client, "true") == (0, b"")

    run(tmp_path, work)


def test_what_the_sandbox_does_not_have_is_told_and_recorded(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        missing = await refused(client, ENOENT, "no-such-program")
        assert missing.reason == "there is no no-such-program in the sandbox of box"
        assert (await refused(client, AgentOSError, "/etc/passwd")).code == "command.exec"
        assert (await refused(client, EMSGSIZE, "echo", "x" * 300_000)).code == "command.long"
        told = [
            one["body"] for one in await entries(client, Events(agent=AGENT, bodies=True)) if one["kind"] == "change"
        ]
        assert [one["error"] for one in told if one["event"] == "exec ended"] == [
            "No such file or directory",
            "Permission denied",
        ]

    run(tmp_path, work)


def test_there_is_a_bound_on_how_many_run_at_once(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        many = [await Ran(client, "cat").begun() for _ in range(beside.MOST_AT_ONCE)]
        assert (await refused(client, EBUSY, "true")).code == "exec.many"
        await many[0].stream.send(["close", 0])
        assert (await many[0].ended())["code"] == 0
        assert await done(client, "true") == (0, b"")
        for one in many[1:]:
            await one.stream.send(["close", 0])
        assert {(await one.ended())["code"] for one in many[1:]} == {0}

    run(tmp_path, work)


# How it ends.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_client_can_end_it_and_the_agent_goes_on(tmp_path: Path, number: int) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        ran = await Ran(client, "sh", "-c", "echo $$; exec sleep 600").begun()
        await ran.heard(b"\n")
        await ran.stream.send(["signal", number], urgent=True)
        ended = await ran.ended()
        assert (ended["code"], ended["ending"]) == (130, "interrupted")
        assert (await done(client, "kill", "-0", ran.out[1].decode().strip()))[0] != 0
        assert (await client.call(ListAgents()))["agents"][0]["state"] == "running"

    run(tmp_path, work)


def test_a_client_can_send_no_other_signal(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        ran = await Ran(client, "cat").begun()
        for number in (signal.SIGSTOP, signal.SIGUSR1, 0, -1, 1 << 40):
            await ran.stream.send(["signal", number], urgent=True)
        await ran.stream.send(["close", 0])
        assert (await ran.ended())["code"] == 0

    run(tmp_path, work)


def test_it_ends_with_its_client(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        async with connect(tmp_path / "home" / "run" / "kernel.sock") as other:
            ran = await Ran(other, "sh", "-c", "echo $$; exec sleep 600").begun()
            await ran.heard(b"\n")
        pid = ran.out[1].decode().strip()
        while (await done(client, "kill", "-0", pid))[0] == 0:
            await asyncio.sleep(0.01)
        told = [
            one["body"] for one in await entries(client, Events(agent=AGENT, bodies=True)) if one["kind"] == "change"
        ]
        ended = [one for one in told if one["event"] == "exec ended"]
        assert (ended[0]["code"], ended[0]["ending"]) == (130, "interrupted")

    run(tmp_path, work)


def test_it_ends_with_the_agent(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        ran = await Ran(client, "sh", "-c", "echo here; exec sleep 600").begun()
        await ran.heard(b"here\n")
        await client.call(Tell(agent=AGENT, signal=AgentSignal.SIGKILL))
        ended = await ran.ended()
        assert (ended["code"], ended["ending"]) == (137, "agent")
        assert (await refused(client, ESRCH, "true")).code == "agent.ended"

    run(tmp_path, work)


def test_an_agent_that_ends_by_itself_takes_it_along(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        ran = Ran(client, "sh", "-c", "touch go; exec sleep 600")
        ended = await ran.ended()
        assert (ended["code"], ended["ending"]) == (137, "agent")

    run(tmp_path, work, "echo up; until [ -e go ]; do sleep 0.02; done")


def test_it_is_held_with_the_agent(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        count = "i=0; while :; do i=$((i+1)); echo $i > count; done"
        ran = await Ran(client, "sh", "-c", f"echo $$; {count}").begun()
        await ran.heard(b"\n")
        await client.call(Hold(agent=AGENT))
        (upper,) = (tmp_path / "home").rglob("count")
        seen = upper.read_text()
        await asyncio.sleep(0.3)
        assert upper.read_text() == seen
        await client.call(Hold(agent=AGENT, hold=False))
        await until(lambda: upper.read_text() != seen)
        await ran.stream.send(["signal", signal.SIGKILL], urgent=True)
        assert (await ran.ended())["ending"] == "interrupted"

    run(tmp_path, work)


def test_while_the_agent_is_held_no_time_passes_for_it(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        running = kernel.table.find(AGENT).running
        assert isinstance(running, Life)
        await client.call(Hold(agent=AGENT))
        clock = asyncio.create_task(running.guest.run_on(0.1))
        over, _ = await asyncio.wait([clock], timeout=0.5)
        assert not over
        await client.call(Hold(agent=AGENT, hold=False))
        await clock

    run(tmp_path, work)


def test_one_that_takes_too_long_is_killed_with_its_group(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        ran = Ran(client, "sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait", timeout="0.3s")
        ended = await ran.ended()
        assert (ended["code"], ended["ending"]) == (124, "timeout")
        assert (await done(client, "kill", "-0", ran.out[1].decode().strip()))[0] != 0

    run(tmp_path, work)


# A hostile agent.


def test_nobody_who_keeps_its_output_open_keeps_it_from_ending(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        assert await done(client, "sh", "-c", "(sleep 600; echo late) & echo now") == (0, b"now\n")

    run(tmp_path, work)


def test_nor_does_somebody_who_writes_there_without_end(tmp_path: Path) -> None:
    """What was left behind goes on in the agent, and loses its reader."""
    flood = "trap '' PIPE; (while echo forged; do :; done; touch unread; exec sleep 600) & echo said; exit 3"

    async def work(kernel: Kernel, client: Client) -> None:
        code, out = await done(client, "sh", "-c", flood)
        assert (code, b"said\n" in out) == (3, True)
        assert await done(client, "sh", "-c", "until [ -e unread ]; do sleep 0.02; done; echo fine") == (0, b"fine\n")

    run(tmp_path, work)


def test_output_without_end_waits_for_its_reader_and_disturbs_nobody(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        flood = await Ran(client, "sh", "-c", "touch begun; exec cat /dev/zero").begun()  # nobody reads it
        assert await done(client, "sh", "-c", "until [ -e begun ]; do sleep 0.02; done; echo fine") == (0, b"fine\n")
        pid = (await done(client, "sh", "-c", "grep -ls ^cat /proc/[0-9]*/cmdline"))[1].split(b"/")[2].decode()
        written = f"until grep -q pipe_write /proc/{pid}/wchan || grep -q '^State:.S' /proc/{pid}/status; do :; done"
        assert (await done(client, "sh", "-c", f"{written}; grep ^wchar /proc/{pid}/io"))[0] == 0
        io = [int((await done(client, "sh", "-c", f"grep ^wchar /proc/{pid}/io"))[1].split()[1]) for _ in range(2)]
        assert io[0] == io[1] < 8 << 20  # it stands, with as much under way as pipes and credit hold
        await flood.stream.send(["signal", signal.SIGKILL], urgent=True)
        for number in (1, 2):
            await flood.stream.send(["close", number], urgent=True)
        assert (await flood.ended())["ending"] == "interrupted"

    run(tmp_path, work)


def test_input_that_is_not_read_waits_and_keeps_nobody(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client) -> None:
        ran = await Ran(client, "sleep", "600").begun()
        feeding = asyncio.create_task(ran.stream.send(bytes(4 << 20)))
        assert await done(client, "echo", "fine") == (0, b"fine\n")
        await ran.stream.send(["signal", signal.SIGTERM], urgent=True)
        assert (await ran.ended())["ending"] == "interrupted"
        await feeding

    run(tmp_path, work)
