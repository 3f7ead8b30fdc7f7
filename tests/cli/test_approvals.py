"""`agentctl approvals`, `approve`, `deny` as real processes, against a kernel in this one that has questions open."""

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import AgentOSError
from agent_os.kernel.authority.labels import CLEAN, untrusted
from agent_os.kernel.authority.questions import Ask, Asker, Question
from agent_os.kernel.calls import Need
from cli.desk import AGENTCTL, SECONDS, Said
from kernel.serving import until
from kernel.test_asking import asked_kernel

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
Ctl = Callable[..., Awaitable[Said]]
EVIL = "x\x1b[2J\nq-1  deployer wants nothing\u202e"


async def open_question(kernel: Any, **changes: Any) -> list[AgentOSError | None]:
    facts: dict[str, Any] = {
        "asker": Asker("default/deployer", "p"),
        "op": 5,
        "needs": (Need("tool", "call", "deploy"),),
        "args": {"tool": "deploy", "params": {"to": EVIL}},
        "label": untrusted("http:evil.com", "private"),
        "questions": [Question("careful", "it is production")],
    }
    heard: list[AgentOSError | None] = []
    met = kernel.approvals.meet(Ask(**{**facts, **changes}))
    kernel.approvals.wait(met.approval, heard.append)
    await until(lambda: any(one.id == met.approval for one in kernel.approvals.every()))
    return heard


def with_questions(tmp_path: Path, test: Callable[[Any, Ctl], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asked_kernel(tmp_path) as (kernel, _):
            env = {**os.environ, "AGENT_OS_HOME": str(tmp_path), "NO_COLOR": "1"}
            env["AGENT_OS_SOCKET"] = str(tmp_path / "run" / "kernel.sock")

            async def ctl(*words: str) -> Said:
                ran = await asyncio.to_thread(
                    subprocess.run, [*AGENTCTL, *words], env=env, capture_output=True, text=True, timeout=SECONDS
                )
                return Said(ran.returncode, ran.stdout, ran.stderr)

            await test(kernel, ctl)

    asyncio.run(main())


def test_the_inbox_shows_what_waits_and_an_answer_lets_it_go_on(tmp_path: Path) -> None:
    async def test(kernel: Any, ctl: Ctl) -> None:
        assert "nothing waits" in (await ctl("approvals")).err
        heard = await open_question(kernel)
        said = await ctl("approvals")
        assert said.code == 0
        assert said.out.splitlines()[0].split() == ["ID", "AGENT", "WANTS", "ORIGIN", "AGE", "STATE"]
        row = said.out.splitlines()[1]
        assert row.startswith("q-1  deployer  tool.call deploy  untrusted: http:evil.com")
        assert row.endswith("s left")
        assert (await ctl("approve", "q-1", "--session", "--always")).code == 2
        assert "state    open, 14m" in (await ctl("approvals", "Q-1")).out
        approved = await ctl("approve", "1", "--reason", "seen")
        assert (approved.code, approved.out) == (0, "approved  q-1  deployer: tool.call deploy, once\n")
        assert "it is production" in approved.err
        assert heard == [None]
        twice = await ctl("approve", "q-1")
        assert twice.code == 9
        assert f"approved by local:{os.getuid()} already" in twice.err
        assert "nothing waits" in (await ctl("approvals")).err
        assert "approved by local" in (await ctl("approvals", "--all")).out

    with_questions(tmp_path, test)


def test_what_the_agent_wrote_is_quoted_marked_and_harmless(tmp_path: Path) -> None:
    async def test(kernel: Any, ctl: Ctl) -> None:
        await open_question(kernel)
        said = (await ctl("approvals", "q-1")).out
        assert "\x1b" not in said
        assert "\u202e" not in said
        mark = said.splitlines().index("the agent wrote:")
        assert all(line.startswith("  | ") for line in said.splitlines()[mark + 1 :])
        assert not any(line.startswith("q-1  deployer wants nothing") for line in said.splitlines())
        assert '  | tool: "deploy"' in said
        assert "grants   capability://tool/deploy?action=call" in said
        whole = json.loads((await ctl("approvals", "q-1", "-o", "json")).out)
        assert whole["args"]["params"]["to"] == EVIL
        assert whole["api"] == "v1"

    with_questions(tmp_path, test)


def test_a_denial_is_told_with_its_reason(tmp_path: Path) -> None:
    async def test(kernel: Any, ctl: Ctl) -> None:
        heard = await open_question(kernel)
        said = await ctl("deny", "q-1", "--reason", "not today", "-o", "json")
        assert (said.code, said.json["state"], said.json["note"]) == (0, "refused", "not today")
        assert heard[0] is not None
        assert heard[0].detail["outcome"] == "refused"
        assert (await ctl("deny", "q-1")).code == 9

    with_questions(tmp_path, test)


def test_scopes_are_offered_refused_for_guests_and_told_how_to_take_back(tmp_path: Path) -> None:
    async def test(kernel: Any, ctl: Ctl) -> None:
        await open_question(kernel, asker=Asker("default/claude", "", guest=True))
        refused = await ctl("approve", "q-1", "--always", "-o", "json")
        assert (refused.code, refused.error["detail_code"]) == (2, "approval.scope")
        assert "guest" in refused.error["reason"]
        session = await ctl("approve", "q-1", "--session")
        assert session.out.endswith("until it ends\n")
        assert "agentctl cap revoke q-1" in session.err
        await open_question(kernel, label=CLEAN)
        assert (await ctl("approve", "q-2", "--always")).code == 0
        assert {one.scope for one in kernel.approvals.standing()} == {"session", "always"}

    with_questions(tmp_path, test)


def test_a_question_that_is_not_there_or_is_over_is_said(tmp_path: Path) -> None:
    async def test(kernel: Any, ctl: Ctl) -> None:
        assert (await ctl("approve", "q-7")).code == 3
        assert (await ctl("approvals", "q-7")).code == 3
        await open_question(kernel, questions=[Question("quick", "now", deadline_s=0.2)])
        await until(lambda: not kernel.approvals.pending())
        late = await ctl("approve", "q-1", "-o", "json")
        assert (late.code, late.error["detail_code"]) == (6, "approval.expired")
        await open_question(kernel, questions=[Question("hers", "x", approvers=["user:somebody-else"])])
        assert "only     user:somebody-else may answer" in (await ctl("approvals", "q-2")).out
        other = await ctl("approve", "q-2")
        assert other.code == 4
        assert "try: ask user:somebody-else to run agentctl approve q-2" in other.err

    with_questions(tmp_path, test)
