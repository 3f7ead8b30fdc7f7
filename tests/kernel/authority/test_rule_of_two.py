"""The rule of two on real processes, with an empty policy: a program in a project that nobody vouched for is tainted
from its first moment, so is its child, and neither acts outside unasked."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.kernel.authority.labels import PRIVATE, of_words, untrusted
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Actor
from agent_os.kernel.tooling import Tool
from kernel.serving import serving, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]

WORK = untrusted("file:/work", PRIVATE)
CAPS = ["tool:pay:call", "agent:*:spawn"]
PROGRAM = """
from agent_os import agent

@agent
async def worker(ctx):
    await ctx.write("/mem/working/note", "mine")
    return await ctx.call("pay", amount=5)

@agent
async def family(ctx):
    manifest = {"name": "child", "program": {"entry": "worker.py:worker"}}
    child = await ctx.spawn(manifest, caps=["tool:pay:call"])
    return (await ctx.wait(child)).result
"""


def order(project: Path, function: str) -> dict[str, Any]:
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    file = project / "worker.py"
    file.write_text(PROGRAM)
    about = {"cwd": str(project), "environment": env, "name": "worker", "caps": CAPS}
    return {**about, "file": str(file), "function": function, "python": sys.executable}


class Till:
    """What lies outside."""

    def __init__(self, kernel: Kernel) -> None:
        self.paid: list[Any] = []
        kernel.tools.register(Tool("pay", self._pay))

    async def _pay(self, key: str, params: Any) -> str:
        self.paid.append(params)
        return "paid"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    return place


@pytest.mark.parametrize(("function", "who"), [("worker", "default/worker"), ("family", "default/child")])
def test_it_is_asked_about_and_goes_on_with_the_answer(tmp_path: Path, project: Path, function: str, who: str) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            till = Till(kernel)
            await client.call(abi.Run(order=order(project, function), detach=True))
            await until(lambda: bool(kernel.approvals.pending()))
            question = kernel.approvals.pending()[0]
            assert (question.agent, list(question.rules)) == (who, ["rule-of-two"])
            assert till.paid == []
            assert kernel.authority.labels.of(who) == WORK
            kernel.approvals.decide(question.id, Actor("local:0"), approve=True, digest=question.digest)
            ended = await client.call(abi.Await(agent="worker"), deadline=120)
            assert (ended["state"], ended["result"]) == ("completed", "paid"), ended
            assert till.paid == [{"amount": 5}]
            ends = [one.label for one, _ in kernel.journal.scan(who, 1) if one.kind == Kind.EXIT]
            assert [of_words(words) for words in ends] == [WORK.join(untrusted("tool:pay"))]

    asyncio.run(main())


def test_where_nobody_can_be_asked_it_is_refused(tmp_path: Path, project: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            till = Till(kernel)
            kernel.approvals.anybody = False
            await client.call(abi.Run(order=order(project, "worker"), detach=True))
            ended = await client.call(abi.Await(agent="worker"), deadline=120)
            assert ended["state"] == "failed"
            assert "EAPPROVAL" in ended["reason"]
            assert till.paid == []

    asyncio.run(main())


def test_it_is_not_asked_about_where_the_operator_vouches_for_the_project(tmp_path: Path, project: Path) -> None:
    async def main() -> None:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        vouched = '[[source]]\nwhat = ["file:/work:read"]\nintegrity = "trusted"\nclasses = ["private"]\n'
        (home / "policy.toml").write_text(f'version = 1\ndefault = "capability"\n{vouched}')
        async with serving(home) as (kernel, client):
            till = Till(kernel)
            kernel.approvals.anybody = False
            await client.call(abi.Run(order=order(project, "worker"), detach=True))
            ended = await client.call(abi.Await(agent="worker"), deadline=120)
            assert (ended["state"], ended["result"]) == ("completed", "paid"), ended
            assert till.paid == [{"amount": 5}]

    asyncio.run(main())
