"""The gate's step 3: everybody's policy and each agent's own, swapped whole; what many rules cost."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.errors import EAGAIN, EINVAL, EPOLICY
from agent_os.abi.syscalls import BY_REQUEST, Read
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.policy.layers import Current, Policy
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Layer, PolicyFile
from agent_os.kernel.authority.ruling import KEPT, Policies, rules_within
from agent_os.kernel.boot import boot
from agent_os.kernel.calls import Asked, Need
from agent_os.kernel.kernel import Kernel
from kernel.authority.ruled import rule, ruled
from kernel.serving import Caller, until

NOTE = "mem:/mem/working/note:read,write"


def file(*rules: str, mode: str = "strict", layer: Layer = Layer.OPERATOR) -> PolicyFile:
    text = f'version = 1\ndefault = "capability"\nmode = "{mode}"\n' + "".join(rules)
    return read(text.encode(), f"{layer.name.lower()}.toml", layer)


def many(count: int, mode: str = "enforce") -> Policy:
    """Rules of every shape about files and memory, of which the last is about a note."""
    shapes = (
        "file:/work/d{0}/**:read",
        "mem:/mem/semantic/k{0}:read",
        "file:/work/**/.secret{0}:read",
        "mem:/mem/working/x{0}-*:read",
        "mem:/mem/working/**/deep{0}:read",
        "tool:t{0}:call",
    )
    rules = [rule("forbid", shapes[n % len(shapes)].format(n), id=f"r{n}") for n in range(count - 1)]
    return Policy([file(*rules, rule("allow", NOTE, id="note"), mode=mode)])


def test_a_reload_swaps_everybodys_policy_and_keeps_each_agents_own() -> None:
    policies = Policies(Current(lambda: Policy([file(mode="enforce")])))
    policies.add("anna", [file(rule("forbid", NOTE), mode="enforce", layer=Layer.PROJECT)])
    new = Policy([file(rule("ask", NOTE))])
    together = policies.compiled(new)
    assert policies.of("anna").files[1].mode == "enforce"  # compiled beside, not yet in force
    policies.add("bob", [file(layer=Layer.PROJECT)])  # came in between
    policies.take(new, together)
    assert (policies.version, policies.of("carl")) == (2, new)
    assert policies.of("anna") is together["anna"][1]
    assert policies.of("bob").files[1] is new.files[1]
    decision = policies.of("anna").decide("anna", "", Need("mem", "read", "/mem/working/note"))
    assert (decision.effect, decision.mode) == ("forbid", "strict")  # a project is never milder than the operator


def test_what_a_project_says_must_fit_below_the_operators_when_it_is_new() -> None:
    policies = Policies(Current(lambda: Policy([file()])))
    with pytest.raises(EINVAL, match="milder"):
        policies.add("anna", [file(mode="shadow", layer=Layer.PROJECT)])
    assert policies.own("anna") == ()
    policies.keep("anna", [file(layer=Layer.PROJECT)])
    assert [put.bucket for put in policies.forget("anna")] == [KEPT]
    assert policies.forget("anna") == []


def test_what_is_tried_stays_so_when_the_common_policy_becomes_stricter() -> None:
    policies = Policies(Current(lambda: Policy([file(mode="enforce")])))
    own = file(rule("forbid", NOTE), mode="shadow", layer=Layer.PROJECT)
    policies.add("anna", [replace(own, tried=True)])
    policies.keep("bob", [own])  # the control: one that only says so itself is raised
    policies.take(new := Policy([file()]), policies.compiled(new))
    assert (policies.of("anna").files[2].mode, policies.of("bob").files[2].mode) == ("shadow", "strict")
    assert policies.trying == ["anna"]
    policies.forget("anna")
    assert policies.trying == []


def test_a_rate_counts_calls_and_says_when_to_come_again() -> None:
    async def test() -> None:
        store = SqliteStore(None)
        kernel = await boot(store=store, home=None, agents=False)
        anna, bob = Caller(kernel, "anna"), Caller(kernel, "bob")
        ruled(kernel, rule("allow", NOTE, rate='"2/hour"'))
        for _ in range(2):
            await anna.write("/mem/working/note", "x")
        with pytest.raises(EAGAIN) as refused:
            await anna.write("/mem/working/note", "x")
        assert refused.value.detail["rule"] == "r"
        assert refused.value.retry_after_ms
        await bob.write("/mem/working/note", "x")  # each has its own
        await kernel.close()

    asyncio.run(test())


# A child is bound by what binds those above it.


def family(test: Callable[[Kernel, list[Caller]], Awaitable[None]]) -> None:
    """Boss started helper, helper started x: the names are their own choice."""

    async def run() -> None:
        store = SqliteStore(None)
        kernel = await boot(store=store, home=None, agents=False)
        boss = Caller(kernel, "boss")
        helper = Caller(kernel, "helper", boss)
        await test(kernel, [boss, helper, Caller(kernel, "x", helper), Caller(kernel, "stranger")])
        await kernel.close()
        store.close()

    asyncio.run(run())


def test_a_rule_that_forbids_something_to_an_agent_forbids_it_to_all_that_descend_from_it() -> None:
    async def test(kernel: Kernel, everybody: list[Caller]) -> None:
        ruled(kernel, rule("forbid", NOTE, agents='["boss"]'), mode="enforce")
        *its, stranger = everybody
        for one in its:
            with pytest.raises(EPOLICY) as refused:
                await one.write("/mem/working/note", "x")
            assert refused.value.detail["rule"] == "r"
        await stranger.write("/mem/working/note", "x")

    family(test)


def test_a_rule_that_asks_about_an_agent_asks_about_all_that_descend_from_it() -> None:
    async def test(kernel: Kernel, everybody: list[Caller]) -> None:
        ruled(kernel, rule("ask", NOTE, agents='["helper"]'))
        boss, _, x, _ = everybody
        await boss.write("/mem/working/note", "x")  # who is above is not meant
        waits = asyncio.create_task(x.write("/mem/working/note", "x"))
        await until(lambda: bool(kernel.approvals.pending()))
        assert kernel.approvals.pending()[0].agent == x.agent.id
        waits.cancel()

    family(test)


def test_what_must_be_allowed_must_be_to_everybody_above_too() -> None:
    """Else whoever is not allowed it starts a child by a name that is."""

    async def test(kernel: Kernel, everybody: list[Caller]) -> None:
        must_allow = partial(ruled, kernel, mode="enforce", default="deny")
        _, helper, x, _ = everybody
        must_allow(rule("allow", "mem:/mem/semantic/**:*", agents='["x", "helper"]'))
        for one in (helper, x):
            one.agent.holdings.grant(capability.parse("mem:/mem/semantic/**:*"), "test")
            with pytest.raises(EPOLICY, match="no rule"):
                await one.write("/mem/semantic/a", "x")
        must_allow(rule("allow", "mem:/mem/semantic/**:*", agents='["x", "helper", "boss"]'))
        await x.write("/mem/semantic/a", "x")

    family(test)


def test_what_a_child_does_counts_for_the_rate_of_those_above_it() -> None:
    async def test(kernel: Kernel, everybody: list[Caller]) -> None:
        ruled(kernel, rule("allow", NOTE, rate='"2/hour"', agents='["boss"]'))
        boss, helper, x, stranger = everybody
        for one in (helper, x):
            await one.write("/mem/working/note", "x")
        for one in (boss, helper, x):
            with pytest.raises(EAGAIN):
                await one.write("/mem/working/note", "x")
        await stranger.write("/mem/working/note", "x")

    family(test)


def test_a_tunnel_of_a_child_hides_nothing_that_is_forbidden_to_those_above_it() -> None:
    async def test(kernel: Kernel, everybody: list[Caller]) -> None:
        *its, stranger = [one.agent for one in everybody]
        policy = Policy([file(rule("forbid", "http:site.test/admin:*", agents='["boss"]'))])
        for one in its:
            with pytest.raises(EPOLICY, match=r"a part of site\.test"):
                rules_within(policy, one, "site.test")
        assert rules_within(policy, stranger, "site.test") == []

    family(test)


@pytest.mark.long
def test_ten_thousand_rules_cost_the_gate_hardly_more_than_ten() -> None:
    """Steps 1 to 6 as they are wired; alternately, and the quickest of each."""
    few, lots = many(10), many(10_000)
    body = frames.encode_body(Read(path="/mem/working/note"))

    async def measure() -> tuple[float, float]:
        kernel = await boot(store=SqliteStore(None), home=None, agents=False)
        anna = Caller(kernel, "anna")
        dry = kernel.gate.dry
        current = kernel.authority.policies.current
        best = {id(few): 1e9, id(lots): 1e9}
        for _ in range(40):
            for policy in (few, lots):
                current.take(policy)
                best[id(policy)] = min(best[id(policy)], _took(lambda: dry(anna.agent, _asked(body))))
        assert dry(anna.agent, _asked(body))["verdict"] == "allow"
        with pytest.raises(EPOLICY):
            await anna.syscall(Read(path="/mem/working/x9-a"))
        await kernel.close()
        return best[id(few)], best[id(lots)]

    ten, ten_thousand = asyncio.run(measure())

    assert ten_thousand <= 1.5 * ten, f"{ten_thousand * 1e6:.1f} µs with 10,000 rules, {ten * 1e6:.1f} µs with 10"


def _asked(body: bytes) -> Asked:
    return Asked(BY_REQUEST[Read].number, body)


def _took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(50):
        work()
    return (time.perf_counter() - began) / 50
