"""Who may have which child: every step before the policy, and that no tree of manifests ever widens anything."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EACCES, EDQUOT, EEXIST, EINVAL, AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority.capability import Capability, parse
from agent_os.kernel.authority.handles import Holdings
from agent_os.kernel.supervisor import admission
from agent_os.kernel.supervisor.admission import Above, Ceiling, admit, ceiling_of, require_place
from agent_os.kernel.table import Ended, Table
from agent_os.manifest.agency import Agency
from agent_os.manifest.capabilities import CapabilityCeiling
from agent_os.manifest.model import AgentManifest
from agent_os.manifest.roles import AgentRole

ENDED = Ended(ExitClass.REQUESTED, -1)
PROGRAM = {"entry": "a.py:main"}


def who(agency: Agency, *held: str, name: str = "default/boss") -> Above:
    holdings = Holdings(name)
    for text in held:
        holdings.grant(parse(text), "test")
    return Above(name, agency, holdings, ceiling_of(agency.capability_ceiling, name))


def manifest(role: str = "worker", **keys: Any) -> AgentManifest:
    return AgentManifest.from_dict({"name": "child", "role": role, "program": PROGRAM, **keys})


def texts(capabilities: list[Capability]) -> list[str]:
    return [str(one) for one in capabilities]


def service(**ceiling: Any) -> Agency:
    return Agency(max_children=4, allowed_roles=[AgentRole.WORKER], capability_ceiling=CapabilityCeiling(**ceiling))


BOSS = Agency.of_role(AgentRole.SUPERVISOR)


# Roles.


@pytest.mark.parametrize(
    ("agency", "role", "more", "passes"),
    [
        (Agency.root(), "supervisor", {}, True),
        (Agency.root(), "user", {}, True),
        (BOSS, "worker", {}, True),
        (BOSS, "user", {}, False),
        (BOSS, "supervisor", {}, False),
        (Agency.of_role(AgentRole.SERVICE), "service", {}, False),
        (Agency.none(), "worker", {}, False),
        (Agency.session(), "worker", {}, True),
        (Agency.session(), "custom(x)", {}, True),  # by its base role
        (Agency.session(), "custom(x)", {"base_role": "service"}, False),
        (Agency(max_children=1, allowed_roles=[AgentRole.custom("x")]), "custom(x)", {"base_role": "service"}, True),
    ],
)
def test_a_role_is_spawned_by_whose_agency_lists_it(agency: Agency, role: str, more: Any, passes: bool) -> None:
    child = manifest(role, **more)
    if passes:
        assert admit(who(agency), child).roles[0] == str(child.role)
        return
    with pytest.raises(EACCES) as refused:
        admit(who(agency), child)
    assert (refused.value.code, refused.value.detail["step"]) == ("role", admission.ROLE)


def test_nobody_spawns_a_root_even_with_an_agency_that_says_so() -> None:
    agency = Agency.root()
    agency.allowed_roles.append(AgentRole.ROOT)
    child = manifest()
    child.role = AgentRole.ROOT  # no text can say it
    with pytest.raises(EACCES, match="not a root"):
        admit(who(agency), child)


def test_a_custom_role_is_known_by_its_base_as_well() -> None:
    assert admission.roles_of(manifest("custom(analytics)", base_role="service")) == ["custom(analytics)", "service"]
    assert admission.roles_of(manifest()) == ["worker"]


# What a child hands in.


@pytest.mark.parametrize(
    ("tree", "problem", "code"),
    [
        ({"program": {}}, EINVAL, "manifest"),
        ({"program": PROGRAM, "parent": "somebody"}, EINVAL, "manifest"),
        ({"program": PROGRAM, "namespace": "other"}, EACCES, "namespace"),
        ({"program": PROGRAM, "role": "root"}, EINVAL, "manifest"),
        ({"program": PROGRAM, "role": {}}, EINVAL, "manifest"),
        ({"program": PROGRAM, "agent": 7}, EINVAL, "manifest"),
        ({"program": PROGRAM, "tools": ["a\nb"]}, EINVAL, "manifest"),
        ({"program": PROGRAM, "tools_deny": ["a*b*c"]}, EINVAL, "manifest"),
        ({"program": PROGRAM, "filesystem_access": ["/a/**/b"]}, EINVAL, "manifest"),
    ],
)
def test_what_cannot_be_a_child_is_refused_in_words(tree: dict[str, Any], problem: type, code: str) -> None:
    with pytest.raises(problem) as refused:
        admission.read(tree, "default", "child")
    assert refused.value.code == code


def test_a_child_may_leave_out_its_name_its_namespace_and_its_role() -> None:
    child = admission.read({"program": PROGRAM}, "lab", "child-1")
    assert (child.id, child.role) == ("lab/child-1", AgentRole.WORKER)
    inside = admission.read({"agent": {"name": "own", "role": "worker"}, "program": PROGRAM}, "lab", "child-1")
    assert inside.id == "lab/own"


# Places.


def test_a_finished_child_frees_its_place_when_it_is_gone_and_not_before() -> None:
    """S-07, S-08."""
    table = Table(SqliteStore(None))
    parent = table.admit("parent", "native")
    first = table.admit("a", "native", parent=parent.id)
    table.admit("b", "native", parent=parent.id)
    for fate in (None, ENDED):  # asked to stop, and not gone yet
        first.fate = fate
        with pytest.raises(EDQUOT, match="2 live children") as refused:
            require_place(table, parent.id, 2)
        assert (refused.value.code, refused.value.detail["step"]) == ("children", 5)
    first.exit = ENDED
    require_place(table, parent.id, 2)


def test_only_so_many_agents_are_alive_at_once() -> None:
    """S-35."""
    table = Table(SqliteStore(None))
    table.most = 2
    parent = table.admit("parent", "native")
    child = table.admit("child", "native", parent=parent.id)
    with pytest.raises(EDQUOT, match="2 agents are alive, and 2 are the most") as refused:
        require_place(table, parent.id, None)
    assert refused.value.code == "limit"
    child.exit = ENDED
    require_place(table, parent.id, None)


def test_who_is_being_started_has_its_id_and_its_place_already() -> None:
    table = Table(SqliteStore(None))
    parent = table.admit("parent", "native")
    with table.claimed("default/child", parent.id):
        with pytest.raises(EEXIST) as refused, table.claimed("default/child", parent.id):
            pass
        assert refused.value.code == "id"
        assert table.family(parent.id) == 1
        with pytest.raises(EDQUOT):
            require_place(table, parent.id, 1)
        table.admit("child", "native", parent=parent.id)
        assert table.family(parent.id) == 1, "it counts once"
    assert table.family(parent.id) == 1
    with pytest.raises(EEXIST), table.claimed("default/child", parent.id):
        pass


def test_a_start_that_fails_leaves_no_place_taken() -> None:
    table = Table(SqliteStore(None))
    parent = table.admit("parent", "native")
    with pytest.raises(ValueError), table.claimed("default/child", parent.id):  # noqa: PT011
        raise ValueError
    assert table.family(parent.id) == 0
    with table.claimed("default/child", parent.id):
        pass


# Agency.


def test_whoever_may_have_no_children_gives_no_leave_to_have_some() -> None:
    own = {"max_children": 2, "allowed_roles": ["worker"]}
    boss = who(BOSS, "agent:*:spawn")
    assert texts(admit(boss, manifest("service", agency=own)).capabilities) == ["agent:spawn{max:2}"]
    held = Agency(max_children=4, allowed_roles=[AgentRole.SERVICE, AgentRole.WORKER])
    for above in (who(BOSS), who(held, "agent:*:spawn")):  # without leave of its own; with an empty ceiling
        with pytest.raises(EACCES, match="agency asks for agent:spawn") as refused:
            admit(above, manifest("service", agency=own))
        assert refused.value.code == "ceiling"


def test_what_is_written_as_role_adapts_and_what_is_written_out_does_not() -> None:
    narrow = Agency(max_children=3, allowed_roles=[AgentRole.SERVICE], capability_ceiling=CapabilityCeiling.root())
    boss = who(narrow, "agent:*:spawn")
    admitted = admit(boss, manifest("service", agency="role"))
    assert (admitted.manifest.agency.max_children, admitted.manifest.agency.allowed_roles) == (3, [])
    keys = {one.key: one for one in admitted.clamped}
    assert keys["agency.max_children"][1:] == (16, 3)
    assert keys["agency.allowed_roles"][1:] == (["worker"], [])
    with pytest.raises(EACCES) as refused:
        admit(boss, manifest("service", agency={"max_children": 2, "allowed_roles": ["worker"]}))
    assert (refused.value.code, refused.value.detail["step"]) == ("agency", admission.AGENCY)


def test_an_unlimited_number_of_children_is_clamped_by_the_parents() -> None:
    boss = who(BOSS, "agent:*:spawn{max:5}")
    own = {"max_children": "unlimited", "allowed_roles": ["worker"]}
    admitted = admit(boss, manifest("service", agency=own))
    assert admitted.manifest.agency.max_children == 64
    assert texts(admitted.capabilities) == ["agent:spawn{max:5}"]
    assert [one.got for one in admitted.clamped] == [64, 5]


def test_a_ceiling_above_the_parents_is_refused() -> None:
    supervisors = Agency(
        max_children=4,
        allowed_roles=[AgentRole.SERVICE, AgentRole.WORKER],
        capability_ceiling=CapabilityCeiling(tools=["search"], can_spawn=True),
    )
    boss = who(supervisors, "agent:*:spawn", "tool:*:call")
    own = {"max_children": 2, "allowed_roles": ["worker"]}
    assert admit(boss, manifest("service", agency={**own, "capability_ceiling": {"tools": ["search"]}}))
    with pytest.raises(EACCES, match="tool:pay:call, which is above") as refused:
        admit(boss, manifest("service", agency={**own, "capability_ceiling": {"tools": ["pay"]}}))
    assert refused.value.code == "agency"


# Ceilings.


def test_a_tool_above_the_ceiling_is_refused_by_name_and_a_star_gets_what_there_is() -> None:
    """S-41."""
    boss = who(service(tools=["search", "fetch"]), "tool:search:call", "tool:pay:call")
    with pytest.raises(EACCES, match="tools asks for tool:pay:call") as refused:
        admit(boss, manifest(tools=["search", "pay"]))
    assert (refused.value.code, refused.value.detail["step"]) == ("ceiling", admission.CEILING)
    with pytest.raises(EACCES, match="tool:fetch:call"):  # under the ceiling, and not its parent's own
        admit(boss, manifest(tools=["fetch"]))
    assert texts(admit(boss, manifest(tools=["search"])).capabilities) == ["tool:search:call"]
    admitted = admit(boss, manifest(tools=["*"]))
    assert texts(admitted.capabilities) == ["tool:search:call"]
    assert [one[:] for one in admitted.clamped] == [("tools", "tool:*:call", ["tool:search:call"])]


def test_an_empty_ceiling_gives_nothing_and_says_so() -> None:
    boss = who(service(), "tool:*:call")
    assert admit(boss, manifest()).capabilities == []
    assert admit(boss, manifest(tools=["*"])).capabilities == []
    with pytest.raises(EACCES, match="tool:search:call"):
        admit(boss, manifest(tools=["search"]))
    with pytest.raises(EACCES, match="caps asks for tool:search:call"):
        admit(boss, manifest(), [parse("tool:search:call")])


def test_a_star_takes_the_part_of_each_action_and_path_that_is_there() -> None:
    boss = who(service(filesystem_access=["/data", "rw:/out"]), "file:/data/in/**:read,write", "file:/out/**:read")
    admitted = admit(boss, manifest(filesystem_access=["*"]))
    # What a pattern could only be cut out of is not given: the handle writes, and the ceiling does not.
    assert texts(admitted.capabilities) == ["file:/out/**:read"]


def test_a_network_ceiling_keeps_ports_apart() -> None:
    boss = who(service(network=["*"]), "http:*:*", "capability://http/api.example.org?action=*&port=8443")
    admitted = admit(boss, manifest(capabilities={"network": ["api.example.org"]}))
    assert [str(one.target) for one in admitted.capabilities] == ["api.example.org/**"]
    with pytest.raises(EACCES, match="8443"):
        admit(boss, manifest(capabilities={"network": ["api.example.org:8443"]}))


def test_the_parent_that_a_scope_names_is_whoever_spawns() -> None:
    """S-42: nothing in a manifest says who that is."""
    boss = who(service(ipc_scope="parent"), "ipc:agent/**:send", name="lab/boss")
    admitted = admit(boss, manifest(capabilities={"ipc_scope": "parent"}))
    assert texts(admitted.capabilities) == ["ipc:agent/lab/boss:send"]


# Trees.

TOOLS = ["search", "fetch", "pay", "sys*", "*"]
PATHS = ["/data", "/data/in", "rw:/out", "rw:/data/in/x", "*"]
HOSTS = ["api.example.org", "*.example.org", "example.net:8443", "*"]
some = st.lists


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(st.sampled_from(["supervisor", "service", "worker"]))
    lists = {
        "tools": draw(some(st.sampled_from(TOOLS), max_size=2)),
        "filesystem_access": draw(some(st.sampled_from(PATHS), max_size=2)),
    }
    tree: dict[str, Any] = {"name": "child", "role": role, "program": PROGRAM, **lists}
    tree["capabilities"] = {"network": draw(some(st.sampled_from(HOSTS), max_size=1))}
    if role != "worker":
        ceiling = {
            "can_spawn": draw(st.booleans()),
            "tools": draw(some(st.sampled_from(TOOLS), max_size=3)),
            "filesystem_access": draw(some(st.sampled_from(PATHS), max_size=3)),
            "network": draw(some(st.sampled_from(HOSTS), max_size=2)),
        }
        roles = draw(some(st.sampled_from(["service", "worker"] if role == "supervisor" else ["worker"]), max_size=2))
        table = {"max_children": draw(st.integers(1, 4)), "allowed_roles": roles, "capability_ceiling": ceiling}
        tree["agency"] = draw(st.sampled_from(["role", "none", table]))
    return tree


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), manifests()), max_size=12))
def test_in_every_tree_what_a_descendant_holds_is_within_every_ancestors(
    plan: list[tuple[int, dict[str, Any]]],
) -> None:
    """N-02: random trees of random manifests."""
    agency = Agency.root()
    agency.max_children = 3
    top = who(agency, "agent:*:spawn{depth:8}", "tool:search:call{depth:8}", "tool:sys*:call{depth:8}")
    for text in ("file:/data/**:read{depth:8}", "file:/out/**:read,write{depth:8}", "http:*.example.org:*{depth:8}"):
        top.holdings.grant(parse(text), "test")
    line: list[tuple[Above, ...]] = [(top,)]  # each with all above it
    for number, (place, tree) in enumerate(plan):
        above = line[place % len(line)]
        try:
            admitted = admit(above[-1], AgentManifest.from_dict(tree))
        except AgentOSError:
            continue
        child = Holdings(f"default/c{number}")
        for one in admitted.capabilities:
            above[-1].holdings.delegate(one, child)  # what was admitted can be given, always
        own = admitted.manifest.agency
        made = Above(child.holder, own, child, ceiling_of(own.capability_ceiling, child.holder))
        _require_narrower(made, above)
        line.append((*above, made))


def _require_narrower(child: Above, above: tuple[Above, ...]) -> None:
    for ancestor in above:
        held = [one.capability for one in ancestor.holdings]
        for handle in child.holdings:
            assert any(handle.capability.under(one) for one in held), f"{handle} is more than {ancestor.id} has"
            assert handle.starting or ancestor.ceiling.allows(handle.capability)
        most, own = ancestor.agency.max_children, child.agency.max_children
        assert most is None or (own is not None and own <= most)
        assert set(child.agency.allowed_roles) <= set(ancestor.agency.allowed_roles)


def test_the_property_can_fail() -> None:
    """A child that was given more is found."""
    top = who(service(tools=["search"]), "tool:search:call", "tool:pay:call")
    for text in ("tool:pay:call", "tool:other:call"):
        child = Holdings("default/c")
        child.grant(parse(text), "test")
        with pytest.raises(AssertionError):
            _require_narrower(Above("default/c", Agency.none(), child, Ceiling()), (top,))
