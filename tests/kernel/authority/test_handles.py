"""Handles: who holds what, derived from what, and that taking it back takes all of it."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from agent_os.abi.errors import EACCES, EINVAL, EPERM, AgentOSError
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.charges import reserve
from agent_os.kernel.authority.handles import Clock, Handle, Holdings, restore, revoke
from agent_os.kernel.calls import Need

READ = Need("file", "read", "/data/x")
WRITE = Need("file", "write", "/data/x")


class Time:
    """A clock that goes when it is told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now
        self.clock = Clock(lambda: self.now, lambda: self.now)


class Connection:
    def close(self) -> None: ...


def holdings(*texts: str, holder: str = "a", clock: Clock | None = None) -> Holdings:
    held = Holdings(holder, (), clock)
    for text in texts:
        held.grant(parse(text), "operator")
    return held


def refused(held: Holdings, needs: Sequence[Need], **how: Any) -> AgentOSError:
    with pytest.raises(AgentOSError) as caught:
        held.find(needs, **how)
    return caught.value


def test_what_every_agent_holds_is_little() -> None:
    held = Holdings("a")
    assert {str(one.capability) for one in held} == {
        "mem:/mem/working/**:delete,read,write",
        "mem:/state/checkpoints/**:read",
        "mem:/policy/**:read",
        "mem:/proc/self/**:read",
        "mem:/ipc/**:read",
    }
    assert held.find([Need("mem", "write", "/mem/working/x")])
    assert held.find([Need("mem", "read", "/mem/working")])
    assert refused(held, [READ]).code == "cap.missing"


def test_the_missing_capability_is_named_and_would_do() -> None:
    held = holdings("file:/data/**:read")
    error = refused(held, [READ, WRITE])
    assert (error.name, error.code, error.detail["missing"]) == ("EPERM", "cap.missing", "file:/data/x:write")
    assert error.detail["row"] == "actions"
    held.grant(parse(str(error.detail["missing"])), "approval")
    assert held.find([READ, WRITE])


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        ({"port": 443, "scheme": "https"}, "http:a.test/x:get"),
        ({"port": 8443}, "http:a.test/x:get{port:8443}"),
        ({"port": 80, "scheme": "http"}, "http:a.test/x:get{port:80,scheme:http}"),
        ({"port": 81, "loopback": "127.0.0.1:81"}, "http:a.test/x:get{loopback:127.0.0.1:81}"),
    ],
)
def test_a_missing_capability_says_port_and_scheme_where_they_are_not_the_usual_ones(
    facts: dict[str, Any], missing: str
) -> None:
    held, get = holdings(), [Need("http", "get", "a.test/x")]
    with pytest.raises(EPERM) as caught:
        held.find(get, facts=facts)
    assert caught.value.reason == f"you hold no capability that covers {missing}"
    held.grant(parse(str(caught.value.detail["missing"])), "operator")
    assert held.find(get, facts=facts)
    odd = [Need("http", "get", "a.test/x{y")]  # which only the URI form can hold
    with pytest.raises(EPERM) as caught:
        held.find(odd, facts=facts)
    held.grant(parse(str(caught.value.detail["missing"])), "operator")
    assert held.find(odd, facts=facts)


def test_several_needs_may_rest_on_several_handles() -> None:
    held = holdings("file:/data/**:read", "file:/data/**:write")
    reading, writing = held
    assert held.find([READ, WRITE]) is writing
    assert held.find([WRITE, READ]) is reading
    assert held.find([]) is None


def test_the_handle_named_by_the_caller_must_be_the_one() -> None:
    held = holdings("file:/data/**:read", "file:/data/x:read")
    wide, exact = held
    assert held.find([READ], cap=exact.id) is exact
    assert held.find([READ], cap=wide.id) is wide
    assert refused(held, [WRITE], cap=wide.id).code == "cap.missing"


def test_another_agents_number_is_as_good_as_none() -> None:
    rich, poor = holdings("file:/data/**:read", holder="rich"), holdings("file:/data/**:read", holder="poor")
    theirs = next(iter(rich))
    for number in (theirs.id, 0, 1 << 40):
        error = refused(poor, [READ], cap=number)
        assert (error.name, error.code) == ("EPERM", "cap.missing")
    with pytest.raises(EPERM, match="no capability"):
        poor.get(theirs.id)
    assert rich.get(theirs.id) is theirs


def test_a_remembered_handle_is_asked_every_time_whether_it_lives() -> None:
    held = holdings("file:/data/**:read", "file:/**:read")
    first = held.find([READ])
    assert first is not None
    assert held.find([READ]) is first
    revoke(first)
    assert held.find([READ]) not in (None, first)


def test_facts_are_not_remembered() -> None:
    held = holdings("tool:pay:call{arg.n:1..5}")
    need = Need("tool", "call", "pay")
    assert held.find([need], facts={"args": {"n": 3}})
    assert refused(held, [need], facts={"args": {"n": 6}}).detail["row"] == "arg.n"
    assert refused(held, [need]).code == "cap.missing"


def test_a_signal_to_somebody_elses_agent_needs_its_name() -> None:
    held = holdings("agent:signal")
    need = Need("agent", "signal", "other")
    assert held.find([need], facts={"descendant": True})
    assert (error := refused(held, [need])).code == "cap.missing"
    assert error.detail["missing"] == "agent:other:signal"


def test_what_has_expired_says_so() -> None:
    time = Time()
    held = holdings(clock=time.clock)
    held.grant(parse("file:/data/**:read{expiry:10s}", now=time.now), "operator")
    assert held.find([READ])
    time.now += 9.99
    assert held.find([READ])
    time.now += 0.01
    error = refused(held, [READ])
    assert (error.name, error.code) == ("EACCES", "cap.expired")
    held.grant(parse("file:/data/**:read"), "operator")
    assert held.find([READ])


def test_a_child_is_what_was_asked_for_and_inherits_the_rest() -> None:
    parent, child = holdings("file:/data/**:read,write{count:5}"), holdings(holder="b")
    (made,) = parent.delegate("file:/data/x/**:read{timeout:1s}", child)
    assert str(made.capability) == "file:/data/x/**:read{count:5,depth:2,timeout:1000ms}"
    assert (made.holder, made.origin, made.depth) == ("b", "delegation", 1)
    assert made.parent is next(iter(parent))
    assert list(made.parent.children) == [made]
    assert child.find([Need("file", "read", "/data/x/y")]) is made


def test_actions_may_come_from_two_parents_as_two_handles() -> None:
    parent, child = holdings("file:/data/**:read", "file:/data/x/**:write"), holdings(holder="b")
    made = parent.delegate("file:/data/x/**:read,write", child)
    assert [sorted(one.capability.actions) for one in made] == [["read"], ["write"]]
    assert {one.parent for one in made} == set(parent)


@pytest.mark.parametrize(
    ("held", "wanted", "row"),
    [
        ("mem:/a/**:read", "file:/a:read", "kind"),
        ("file:/a/**:read", "file:/a/b:read,delete", "actions"),
        ("file:/a/**:read", "file:/b:read", "target"),
        ("file:/a/**:read{count:3}", "file:/a/b:read{count:4}", "count"),
        ("file:/a/**:read{depth:0}", "file:/a/b:read", "depth"),
        ("http:127.0.0.1:get{loopback:127.0.0.1:80}", "http:127.0.0.1:get", "loopback"),
        ("tool:p:call{arg.n:1..5}", "tool:p:call{arg.n:1..6}", "arg.n"),
    ],
)
def test_what_is_not_proved_is_not_handed_on_and_the_first_failing_row_is_named(
    held: str, wanted: str, row: str
) -> None:
    parent, child = holdings(held), holdings(holder="b")
    with pytest.raises(EPERM) as caught:
        parent.delegate(wanted, child)
    assert (caught.value.code, caught.value.detail["row"]) == ("cap.missing", row)
    assert not list(child)
    assert not next(iter(parent)).children


def test_half_of_what_was_asked_for_is_not_handed_on() -> None:
    parent, child = holdings("file:/data/**:read"), holdings(holder="b")
    with pytest.raises(EPERM, match="actions"):
        parent.delegate("file:/data/**:read,write", child)
    assert not list(child)


def test_an_unknown_constraint_makes_no_handle() -> None:
    parent, child = holdings("file:/data/**:read"), holdings(holder="b")
    with pytest.raises(EINVAL, match="no constraint"):
        parent.delegate("file:/data/x:read{colour:red}", child)
    assert not list(child)


def test_a_chain_ends_where_the_depth_does() -> None:
    line = [holdings("file:/data/**:read{depth:3}"), *(holdings(holder=name) for name in "bcde")]
    for one, other in pairwise(line[:4]):
        one.delegate("file:/data/**:read", other)
    with pytest.raises(EPERM, match="depth"):
        line[3].delegate("file:/data/**:read", line[4])


def test_ones_own_descendants_are_not_somebody_elses() -> None:
    parent, other = holdings("agent:signal"), holdings(holder="b")
    with pytest.raises(EPERM, match="target"):
        parent.delegate("agent:signal", other, descendant=False)
    assert parent.delegate("agent:signal", other, descendant=True)


def test_what_has_expired_or_was_revoked_is_not_handed_on() -> None:
    time = Time()
    parent, child = holdings(clock=time.clock), holdings(holder="b")
    parent.grant(parse("file:/data/**:read{expiry:10s}", now=time.now), "operator")
    time.now += 11
    with pytest.raises(EPERM, match="expiry"):
        parent.delegate("file:/data/x:read", child)
    gone = parent.grant(parse("file:/data/**:read"), "operator")
    revoke(gone)
    with pytest.raises(EPERM):
        parent.delegate("file:/data/x:read", child, cap=gone.id)


def test_only_the_operator_grants_an_endpoint_of_the_host() -> None:
    held = holdings()
    with pytest.raises(EPERM, match="operator"):
        held.grant(parse("http:127.0.0.1:get{loopback:127.0.0.1:80}"), "manifest")
    assert held.grant(parse("http:127.0.0.1:get{loopback:127.0.0.1:80}"), "operator")


def test_revoking_takes_back_all_that_was_derived_and_says_what_is_open() -> None:
    top, middle, leaf = holdings("file:/data/**:read"), holdings(holder="b"), holdings(holder="c")
    (second,) = top.delegate("file:/data/**:read", middle)
    (third,) = middle.delegate("file:/data/**:read", leaf)
    assert leaf.find([READ]) is third
    connection = Connection()
    third.opened.add(connection)
    first = next(iter(top))
    done = top.revoke(first)
    assert set(done.handles) == {first, second, third}
    assert done.opened == [(third, connection)]
    for held in (top, middle, leaf):
        error = refused(held, [READ])
        assert (error.name, error.code) == ("EACCES", "cap.revoked")
        assert not list(held)
    assert top.revoke(first) == ([], [])
    with pytest.raises(EACCES, match="revoked"):
        third.require_live(leaf.clock)


def test_revoking_a_branch_leaves_the_rest() -> None:
    top, left, right = holdings("file:/data/**:read"), holdings(holder="b"), holdings(holder="c")
    (one,) = top.delegate("file:/data/**:read", left)
    (other,) = top.delegate("file:/data/**:read", right)
    revoke(one)
    assert refused(left, [READ]).code == "cap.revoked"
    assert right.find([READ]) is other
    assert list(next(iter(top)).children) == [other]


def test_all_that_somebody_holds_is_taken_back_at_once() -> None:
    top, below = holdings("file:/data/**:read", "tool:x:call"), holdings(holder="b")
    top.delegate("tool:x:call", below)
    assert len(top.revoke_all().handles) == 3
    assert not list(top)
    assert not list(below)


def test_of_what_was_revoked_only_the_latest_is_kept() -> None:
    held = holdings()
    for _ in range(500):
        revoke(held.grant(parse("file:/data/**:read"), "operator"))
    assert sum(len(several) for several in held._by_kind.values()) < 200  # pyright: ignore[reportPrivateUsage]
    assert refused(held, [READ]).code == "cap.revoked"


def test_a_narrower_ceiling_names_what_no_longer_fits() -> None:
    held = Holdings("a")
    kept = held.grant(parse("file:/data/x:read"), "manifest")
    lost = held.grant(parse("file:/data/**:write"), "manifest")
    assert held.outside([parse("file:/data/**:read")]) == [lost]
    assert kept in list(held)


def test_grants_survive_a_restart() -> None:
    top, below, other = holdings("file:/data/**:read{count:10}"), holdings(holder="b"), holdings(holder="c")
    (child,) = top.delegate("file:/data/x:read", below)
    (gone,) = top.delegate("file:/data/x:read", other)
    revoke(gone)
    reserve([child])
    first = next(iter(top))
    records = json.loads(json.dumps([one.to_record() for one in (gone, child, first)]))
    homes: dict[str, Holdings] = {name: Holdings(name, ()) for name in "abc"}
    back = {one.id: one for one in restore(records, homes.__getitem__)}
    again, its_parent = back[child.id], back[first.id]
    assert (again.parent, again.capability, again.depth) == (its_parent, child.capability, 1)
    assert its_parent.used == {"count": 1}
    assert homes["b"].find([Need("file", "read", "/data/x")]) is again
    assert refused(homes["c"], [Need("file", "read", "/data/x")]).code == "cap.revoked"
    assert homes["a"].grant(parse("tool:x:call"), "operator").id > max(back)
    revoke(its_parent)
    assert again.revoked


def test_a_record_without_its_parent_comes_back_as_revoked() -> None:
    top, below = holdings("file:/data/**:read"), holdings(holder="b")
    (child,) = top.delegate("file:/data/x:read", below)
    (back,) = restore([child.to_record()], lambda name: Holdings(name, ()))
    assert back.revoked


def test_a_handle_is_known_by_the_digest_of_its_canonical_text() -> None:
    one, other = Handle(1, "a", parse("file:/a/*:read"), "x"), Handle(2, "b", parse("file:/a/**:read"), "y")
    assert one.digest == other.digest
    assert len(one.digest) == 32
