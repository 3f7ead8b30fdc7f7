"""A manifest is complete when it is made: defaults, and what follows from the rest. S-09, S-11 to S-16, S-31."""

import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import pytest

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
    InterfaceProtocol,
    IpcScope,
    ManifestError,
    ResourceLimits,
    ResponseMode,
)
from agent_os.manifest.model import Budget, Program

pytestmark = pytest.mark.uid_free("asks for modules, nothing of a user")


def test_a_name_and_a_role_are_a_manifest() -> None:
    one = AgentManifest.from_json('{"name":"worker-1","role":"Worker"}')
    assert one == AgentManifest(name="worker-1", role=AgentRole.WORKER)
    assert (one.name, one.role, one.version, one.namespace) == ("worker-1", AgentRole.Worker, "0.1.0", "default")
    assert one.id == "default/worker-1"
    assert one.tools == one.mounts == one.skills == []
    assert one.agency == Agency.none()
    assert one.sandbox.min_level == "S2"
    assert (one.health.ready, one.lifecycle.activation, one.supervision.intensity) == ("notify", "always", 10)


def test_health_has_the_defaults_of_seed_4() -> None:
    health = AgentHealth()
    assert (health.check_interval_secs, health.timeout_secs, health.max_restarts) == (30, 5, 5)
    assert health.restart_policy == AgentRestartPolicy.OnFailure
    assert (health.watchdog_secs, health.max_repeat_calls, health.success_exit_codes) == (None, None, [0])


def test_resources_have_the_defaults_of_seed_4() -> None:
    resources = AgentResources()
    assert (resources.max_memory_mb, resources.max_concurrent_requests) == (256, 100)
    assert resources.priority == AgentPriority.Normal
    assert resources.max_disk_mb == 1024


def test_the_interface_has_the_defaults_of_seed_4() -> None:
    interface = AgentInterface()
    assert interface.protocol == InterfaceProtocol.Ipc
    assert interface.request_topic is None
    assert interface.response_mode == ResponseMode.Direct


def test_dependencies_hold_what_they_were_given() -> None:
    needs = AgentDependencies(requires=["message-bus"], after=["kernel-init", "message-bus"])
    assert needs.requires == ["message-bus"]
    assert len(needs.after) == 2


def test_disk_is_limited_unless_the_word_says_otherwise_and_zero_is_zero() -> None:
    assert AgentResources().max_disk_mb == 1024
    assert AgentResources(max_disk_mb="unlimited").max_disk_mb is None  # pyright: ignore
    assert AgentResources(max_disk_mb=0).max_disk_mb == 0
    nothing = AgentManifest(name="a", role=AgentRole.WORKER, resources=AgentResources(max_disk_mb=0))
    assert not nothing.capabilities.resource_limits.allows("disk_bytes", 1)


def test_switches_follow_their_lists() -> None:
    can = AgentManifest(name="a", role=AgentRole.WORKER).capabilities
    assert not any([can.can_spawn, can.can_ipc, can.can_exec_tools, can.can_network])
    assert AgentManifest(name="a", role=AgentRole.WORKER, tools=["x"]).capabilities.can_exec_tools
    assert AgentManifest(name="a", role=AgentRole.WORKER, topics_publish=["x"]).capabilities.can_ipc
    spawning = AgentManifest(name="a", role=AgentRole.SERVICE, agency=Agency.service(1))
    assert spawning.capabilities.can_spawn
    reaching = AgentCapabilities(network=["a.example"], ipc_scope=IpcScope.PARENT)
    both = AgentManifest(name="a", role=AgentRole.WORKER, capabilities=reaching).capabilities
    assert both.can_network
    assert both.can_ipc
    assert not reaching.can_network  # the value that was handed in is somebody else's


def test_a_switch_that_is_set_stays() -> None:
    off = AgentCapabilities(can_exec_tools=False)
    assert not AgentManifest(name="a", role=AgentRole.WORKER, tools=["x"], capabilities=off).capabilities.can_exec_tools
    on = AgentCapabilities(can_network=True)
    assert AgentManifest(name="a", role=AgentRole.WORKER, capabilities=on).capabilities.can_network


def test_the_two_sets_of_limits_are_the_same_numbers() -> None:
    one = AgentManifest(
        name="a",
        role=AgentRole.WORKER,
        resources=AgentResources(max_memory_mb=512),
        budget=Budget(tool_calls="unlimited"),  # pyright: ignore
    )
    limits = one.capabilities.resource_limits
    assert limits.max_memory_bytes == 512 << 20
    assert limits.max_tool_calls == ResourceLimits.unlimited().max_tool_calls
    assert limits.max_messages == 5000


def test_of_two_limits_the_tighter_one_holds() -> None:
    seed = AgentCapabilities(
        resource_limits=ResourceLimits(max_memory_bytes=128 << 20, max_tool_calls=9, max_messages=0)
    )
    one = AgentManifest(
        name="a",
        role=AgentRole.WORKER,
        capabilities=seed,
        resources=AgentResources(max_memory_mb=512),
        budget=Budget(tool_calls=3),
    )
    assert one.resources.max_memory_mb == 128
    assert one.budget.tool_calls == 3
    assert one.budget.messages == 0
    assert one.capabilities.resource_limits.max_tool_calls == 3


def test_a_guest_has_more_room_unless_it_is_told() -> None:
    guest = AgentManifest(name="a", role=AgentRole.WORKER, program=Program(argv=["x"]))
    assert (guest.resources.max_memory_mb, guest.resources.max_tasks, guest.health.ready) == (None, 512, "immediate")
    told = AgentManifest(
        name="a",
        role=AgentRole.WORKER,
        program=Program(argv=["x"]),
        resources=AgentResources(max_memory_mb=256),
        health=AgentHealth(ready="log:^up"),
    )
    assert (told.resources.max_memory_mb, told.resources.max_tasks, told.health.ready) == (256, 512, "log:^up")


def test_a_manifest_can_be_copied_and_changed() -> None:
    one = AgentManifest(name="a", role=AgentRole.SERVICE, agency=Agency.service(2), tools=["x"])
    assert deepcopy(one) == one
    other = replace(one, name="b", resources=AgentResources(max_memory_mb=1))
    assert (other.name, other.tools, other.resources.max_memory_mb) == ("b", ["x"], 1)
    assert other.capabilities.resource_limits.max_memory_bytes == 1 << 20
    assert one.resources.max_memory_mb == 256


def test_a_program_reads_as_a_file_does() -> None:
    one = AgentManifest(name="a", role="custom:x", health=AgentHealth(timeout_secs="500ms"))  # pyright: ignore
    assert one.role == AgentRole.custom("x")
    assert one.health.timeout_secs == 0.5


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ManifestError) as caught:
        AgentManifest(name="", role="boss", tools="x", version="one")  # pyright: ignore
    assert [one.key for one in caught.value.problems] == ["name", "version", "role", "tools"]
    assert caught.value.detail["problems"][0]["key"] == "name"  # pyright: ignore


@pytest.mark.integration
@pytest.mark.parametrize("word", ["agent_os", "agent_os.manifest.model", "agent_os.manifest.reading"])
def test_a_manifest_needs_no_framework(word: str) -> None:
    script = f"import sys, {word}; print(sorted({{'pydantic', 'click', 'msgspec', 'cronsim'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
