"""More than one's grant: only by a person, who sees what is held, asked for and why; and only for a time."""

import asyncio
import time
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EAPPROVAL, EINVAL, EPERM, AgentOSError
from agent_os.abi.syscalls import Effect, Elevate, Exec
from agent_os.kernel import elevation
from agent_os.kernel.asking import told
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.answers import Approval
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Actor
from agent_os.kernel.tooling import Tool
from peer import Peer, greeted, until, with_kernel

PERSON = Actor("local:1000")
PAY = Exec(tool="pay")


async def run(key: str, params: Any) -> str:
    return "ran"


async def begin(kernel: Kernel) -> Peer:
    for name in ("search", "pay"):
        kernel.tools.register(Tool(name, run, Effect.PURE))
    _, peer = await greeted(kernel, "a", caps=("tool:search:call",))
    return peer


async def asked(kernel: Kernel) -> Approval:
    await until(lambda: bool(kernel.approvals.pending()))
    (one,) = kernel.approvals.pending()
    return one


def decisions(kernel: Kernel) -> list[str]:
    found = [decode_any(body) for entry, body in kernel.journal.scan() if entry.kind == Kind.APPROVAL and body]
    return [one["state"] for one in found]


@pytest.mark.long
def test_a_person_sees_what_is_held_asked_for_and_why_and_what_they_grant_expires() -> None:
    """S-30, S-40."""

    async def test(kernel: Kernel) -> None:
        peer = await begin(kernel)
        with pytest.raises((EPERM, EACCES)):
            await peer.ask(PAY)
        wants = Elevate(caps=["tool:pay:call"], reason="the invoice is due", ttl_ms=1500)
        answer = asyncio.create_task(peer.ask(wants))
        question = told(await asked(kernel))
        assert question["holds"] == ["tool:search:call"]
        assert (question["args"]["caps"], question["args"]["reason"]) == (["tool:pay:call"], "the invoice is due")
        assert question["reasons"] == ["it asks for more than it holds"], "its own words are not the kernel's"
        assert question["scopes"] == ["once"]
        assert not answer.done()
        kernel.approvals.decide(question["id"], PERSON, approve=True, digest=question["digest"])
        granted = await answer
        assert len(granted["granted"]) == 1
        assert await peer.ask(PAY) == "ran"
        (handle,) = [one for one in kernel.table.find("a").holdings if one.origin == "elevation"]
        assert handle.capability.constraints["expiry"] * 1_000_000 == granted["expires_ns"]
        await until(lambda: handle.expired(kernel.table.find("a").holdings.clock))
        with pytest.raises(AgentOSError) as over:
            await peer.ask(PAY)
        assert isinstance(over.value, EACCES | EPERM)
        assert decisions(kernel) == ["pending", "approved"]
        assert [entry.handle for entry, _ in kernel.journal.scan("default/a") if entry.kind == Kind.GRANT][
            -1
        ] == handle.id

    with_kernel(test)


def test_a_refusal_is_on_the_record_and_grants_nothing() -> None:
    async def test(kernel: Kernel) -> None:
        peer = await begin(kernel)
        answer = asyncio.create_task(peer.ask(Elevate(caps=["tool:pay:call"], reason="please")))
        question = await asked(kernel)
        kernel.approvals.decide(question.id, PERSON, approve=False, digest=question.digest, note="no")
        with pytest.raises(EAPPROVAL) as refused:
            await answer
        assert refused.value.detail["outcome"] == "refused"
        with pytest.raises((EPERM, EACCES)):
            await peer.ask(PAY)
        assert decisions(kernel) == ["pending", "refused"]
        with pytest.raises(EAPPROVAL):
            await peer.ask(Elevate(caps=["tool:pay:call"], reason="please"))
        assert not kernel.approvals.pending(), "asking the same again is no way round"

    with_kernel(test)


def test_nobody_is_asked_about_what_is_held() -> None:
    async def test(kernel: Kernel) -> None:
        peer = await begin(kernel)
        answer = await peer.ask(Elevate(caps=["tool:search:call"], reason="to be sure"))
        assert answer == {"granted": [], "expires_ns": None}
        assert not kernel.approvals.every()

    with_kernel(test)


@pytest.mark.parametrize(
    "wrong",
    [
        Elevate(caps=[], reason="r"),
        Elevate(caps=["tool:pay:call"], reason=" "),
        Elevate(caps=["tool:pay:call"], reason="r", ttl_ms=0),
        Elevate(caps=["tool:pay:call"], reason="r", ttl_ms=1 << 40),
        Elevate(caps=["tool:pay:fly"], reason="r"),
        Elevate(caps=["tool:pay:call"] * 33, reason="r"),
    ],
)
def test_what_cannot_be_granted_is_not_asked_about(wrong: Elevate) -> None:
    async def test(kernel: Kernel) -> None:
        peer = await begin(kernel)
        with pytest.raises(EINVAL):
            await peer.ask(wrong)
        assert not kernel.approvals.every()

    with_kernel(test)


def test_what_a_rule_forbids_stays_forbidden_whatever_was_granted() -> None:
    from kernel.authority.ruled import ruled

    async def test(kernel: Kernel) -> None:
        peer = await begin(kernel)
        ruled(kernel, '[[rule]]\nid = "no-pay"\neffect = "forbid"\nwhat = ["tool:pay:call"]\nviolation = "refuse"\n')
        answer = asyncio.create_task(peer.ask(Elevate(caps=["tool:pay:call"], reason="please")))
        question = await asked(kernel)
        kernel.approvals.decide(question.id, PERSON, approve=True, digest=question.digest)
        await answer
        with pytest.raises(AgentOSError) as refused:
            await peer.ask(PAY)
        assert refused.value.name == "EPOLICY"

    with_kernel(test)


def test_what_ends_between_the_question_and_the_deed_is_not_granted_without_a_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(kernel: Kernel) -> None:
        peer = await begin(kernel)
        now = int(time.time() * 1000)
        moments = iter([now, now + 60_000])  # as the call is understood, and as it is done
        soon = capability.parse("tool:pay:call{expiry:30s}")
        await kernel.authority.grant("default/a", soon, "local:1000")
        monkeypatch.setattr(elevation, "_now_ms", lambda: next(moments))
        answer = await peer.ask(Elevate(caps=["tool:pay:call"], reason="for ever", ttl_ms=9000))
        assert answer["granted"] == []
        assert not kernel.approvals.pending()
        assert not [one for one in kernel.table.find("a").holdings if one.origin == "elevation"]

    with_kernel(test)
