"""What is written reads back as an equal value, in TOML and in JSON: S-10."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os import (
    Agency,
    AgentCapabilities,
    AgentDependencies,
    AgentHealth,
    AgentInterface,
    AgentManifest,
    AgentPriority,
    AgentResources,
    AgentRestartPolicy,
    AgentRole,
    IpcScope,
    ResourceLimits,
    ResponseMode,
)
from agent_os.manifest.capabilities import CapabilityCeiling
from agent_os.manifest.model import Backoff, Budget, Hooks, Lifecycle, Loop, Mount, Program, Sandbox, Supervision

FULL = AgentManifest(
    name="memory-service",
    namespace="team",
    version="1.2.3-rc.1",
    description='Says "hé\n\\\x7f"',
    role=AgentRole.SERVICE,
    tools=["memory_store", "memory_retrieve"],
    tools_deny=["shell"],
    topics_publish=["memory.stored"],
    topics_subscribe=["memory.request", "a.>"],
    skills=["memory"],
    filesystem_access=["data/memory/", "rw:out"],
    mounts=[Mount(path="/data", source="/srv/data", rights="rw"), Mount(path="/s", kind="store", source="s")],
    program=Program(entry="memory.py:serve", env={"A.b": "1", "C": ""}, loop=Loop(turns=3)),
    sandbox=Sandbox(min_level="S3", workspace="overlay"),
    capabilities=AgentCapabilities(
        can_network=False,
        ipc_scope=IpcScope.restricted(["b", "team/c"]),
        services=["memory-service"],
        network=["api.example.org:443"],
        secrets=["KEY"],
        approval=["memory_store"],
    ),
    agency=Agency(
        max_children=None,
        allowed_roles=[AgentRole.WORKER, AgentRole.custom("x")],
        capability_ceiling=CapabilityCeiling(tools=["a"], resource_limits=ResourceLimits(max_messages=7)),
    ),
    resources=AgentResources(max_memory_mb=64, priority=AgentPriority.HIGH, max_cpu_secs=1.5, max_disk_mb=None),
    budget=Budget(tool_calls=None, usd=0.5, per="run"),
    interface=AgentInterface(request_topic="memory.request", response_mode=ResponseMode.topic("e"), reentrant=True),
    health=AgentHealth(
        restart_policy=AgentRestartPolicy.ALWAYS, watchdog_secs=5, ready="log:^up", backoff=Backoff(jitter="none")
    ),
    dependencies=AgentDependencies(requires=["b"], after=["kernel-init"], wants=["c"], binds_to=["d"]),
    supervision=Supervision(strategy="rest_for_one", children=["x", "y"]),
    lifecycle=Lifecycle(activation="on_schedule", schedule="0 6 * * *", hooks=Hooks(on_stop="bye")),
    labels={"team.name": "x", "e": ""},
)
GUEST = AgentManifest(
    name="g",
    role=AgentRole.WORKER,
    program=Program(argv=["x"]),
    resources=AgentResources(max_memory_mb=256, max_tasks=64),
)
ROLE = AgentManifest(name="s", role=AgentRole.SUPERVISOR, agency=Agency.of_role(AgentRole.SUPERVISOR))
OFF = AgentManifest(name="o", role=AgentRole.WORKER, tools=["x"], capabilities=AgentCapabilities(can_exec_tools=False))


@pytest.mark.parametrize("one", [FULL, GUEST, ROLE, OFF], ids=lambda one: one.name)
def test_what_is_written_reads_back_equal(one: AgentManifest) -> None:
    assert AgentManifest.from_toml(one.to_toml()) == one
    assert AgentManifest.from_toml(one.to_toml(full=True)) == one
    assert AgentManifest.from_json(one.to_json()) == one
    assert AgentManifest.from_dict(json.loads(one.to_json())) == one


def test_toml_has_only_what_matters() -> None:
    one = AgentManifest(name="a", role=AgentRole.WORKER, tools=["x"], health=AgentHealth(max_restarts=2))
    assert one.to_toml() == 'name = "a"\nrole = "worker"\ntools = ["x"]\n\n[health]\nmax_restarts = 2\n'
    assert 'agency = "role"' in ROLE.to_toml()
    assert "can_exec_tools = false" in OFF.to_toml()


def test_everything_can_be_written() -> None:
    tree = tomllib.loads(AgentManifest(name="a", role=AgentRole.WORKER).to_toml(full=True))
    assert tree["health"]["watchdog_secs"] == "off"
    assert tree["budget"]["usd"] == "unlimited"
    assert tree["resources"]["max_memory_mb"] == 256
    assert "resource_limits" not in tree["capabilities"]


def test_json_has_the_shape_of_seed_4() -> None:
    tree = json.loads(FULL.to_json())
    assert tree["role"] == "Service"
    assert tree["health"]["restart_policy"] == "Always"
    assert tree["resources"]["priority"] == "High"
    assert tree["interface"]["response_mode"] == {"Topic": "e"}
    assert tree["agency"]["allowed_roles"] == ["Worker", {"Custom": "x"}]
    assert tree["agency"]["max_children"] is None
    assert tree["capabilities"]["resource_limits"]["max_memory_bytes"] == 64 << 20
    bare = json.loads(AgentManifest(name="a", role=AgentRole.WORKER).to_json())
    assert "request_topic" not in bare["interface"]  # an absent option is left out
    assert bare["agency"]["children"] == []


def test_living_children_are_written_and_not_read() -> None:
    agency = Agency.service(3)
    agency.add_child(41)
    one = AgentManifest(name="a", role=AgentRole.SERVICE, agency=agency)
    assert json.loads(one.to_json())["agency"]["children"] == [41]
    for read in (AgentManifest.from_json(one.to_json()), AgentManifest.from_toml(one.to_toml())):
        assert read.agency == Agency.service(3)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
IDS = st.lists(st.sampled_from(["b", "c", "team/d"]), max_size=2, unique=True)
COUNT = st.none() | st.integers(0, 2**40)
SECONDS = st.integers(1, 10**6) | st.floats(0.001, 1e6)


@st.composite
def manifests(draw: st.DrawFn) -> AgentManifest:
    role = draw(st.sampled_from([AgentRole.SERVICE, AgentRole.SUPERVISOR, AgentRole.WORKER, AgentRole.custom("x")]))
    keys: dict[str, Any] = {
        "description": TEXT,
        "tools": st.lists(TEXT, max_size=2),
        "topics_publish": st.lists(st.sampled_from(["a", "a.b", "c.>", "*"]), max_size=2),
        "labels": st.dictionaries(TEXT, TEXT, max_size=2),
        "program": st.builds(Program, argv=st.lists(TEXT, max_size=2), env=st.dictionaries(TEXT, TEXT, max_size=2)),
        "capabilities": draw(st.sampled_from([_capabilities(), _root()])),
        "resources": _some(AgentResources, max_memory_mb=COUNT, max_cpu_secs=st.none() | SECONDS, max_disk_mb=COUNT),
        "budget": _some(Budget, tool_calls=COUNT, messages=COUNT, usd=st.none() | st.floats(0, 1e6)),
        "health": _some(AgentHealth, timeout_secs=SECONDS, ready=st.sampled_from(["notify", "exec:x"]), on_failure=IDS),
        "dependencies": _some(AgentDependencies, requires=IDS, wants=IDS),
    }
    parts = {key: draw(how) for key, how in keys.items() if draw(st.booleans())}
    if draw(st.booleans()):
        parts["agency"] = draw(st.sampled_from([Agency.none(), Agency.of_role(role, AgentRole.WORKER)]))
    return AgentManifest(name="a", role=role, **parts)


def _capabilities() -> st.SearchStrategy[AgentCapabilities]:
    scopes = st.sampled_from([IpcScope.ALL, IpcScope.NONE, IpcScope.TOPICS, IpcScope.restricted(["b"])])
    limits = _some(ResourceLimits, max_memory_bytes=st.integers(0, 2**50), max_cpu_time_ms=st.integers(0, 10**9))
    switch = st.booleans()
    return _some(
        AgentCapabilities,
        can_ipc=switch,
        can_exec_tools=switch,
        can_spawn=switch,
        ipc_scope=scopes,
        resource_limits=limits,
    )


def _root() -> st.SearchStrategy[AgentCapabilities]:
    return st.builds(AgentCapabilities.root)


def _some(kind: type[Any], **keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=keys).map(lambda given: kind(**given))


@settings(max_examples=60, deadline=None)
@given(manifests())
def test_any_manifest_reads_back_equal(one: AgentManifest) -> None:
    assert AgentManifest.from_toml(one.to_toml()) == one
    assert AgentManifest.from_toml(one.to_toml(full=True)) == one
    assert AgentManifest.from_json(one.to_json()) == one
