"""Capabilities grant nothing by default, and scopes reach whom they name: S-15 to S-17, S-21 to S-23, S-76."""

import json

import pytest

from agent_os import AgentCapabilities, IpcScope, ManifestError, ResourceLimits
from agent_os.manifest.capabilities import CapabilityCeiling, access, endpoint, topic
from agent_os.manifest.problems import Flaw
from agent_os.manifest.values import U64_MAX

SWITCHES = ("can_spawn", "can_ipc", "can_exec_tools", "can_network")


def test_nothing_is_granted_by_default() -> None:
    for can in (AgentCapabilities(), AgentCapabilities.from_json("{}"), CapabilityCeiling()):
        assert not any(getattr(can, switch) for switch in SWITCHES)
        assert can.ipc_scope == IpcScope.NONE
        assert can.services == can.network == can.secrets == can.models == []


def test_the_default_limits_are_those_of_the_specification() -> None:
    limits = ResourceLimits()
    assert limits.max_memory_bytes == 256 * 1024 * 1024
    assert limits.max_cpu_time_ms == 300_000
    assert (limits.max_tool_calls, limits.max_messages) == (1000, 5000)
    assert limits.max_disk_bytes == 1024 * 1024 * 1024


def test_root_may_everything_without_limit() -> None:
    can = AgentCapabilities.root()
    assert all(getattr(can, switch) for switch in SWITCHES)
    assert can.ipc_scope == IpcScope.All
    assert can.resource_limits.max_memory_bytes == U64_MAX == 18446744073709551615
    assert can.resource_limits == ResourceLimits.unlimited()
    assert can.resource_limits.allows("memory_bytes", 2**70)


@pytest.mark.parametrize(
    "can",
    [
        AgentCapabilities(),
        AgentCapabilities.root(),
        CapabilityCeiling.root(),
        AgentCapabilities(can_ipc=True, ipc_scope=IpcScope.Restricted(["a", "default/b"])),
        AgentCapabilities(ipc_scope=IpcScope.ParentOnly, resource_limits=ResourceLimits(max_tool_calls=0)),
    ],
)
def test_capabilities_are_read_as_they_are_written(can: AgentCapabilities) -> None:
    assert type(can).from_json(can.to_json()) == can


def test_the_object_of_seed_4_is_read() -> None:
    text = """{"can_spawn": true, "can_ipc": true, "can_exec_tools": false, "can_network": false,
      "ipc_scope": {"Restricted": ["a"]},
      "resource_limits": {"max_memory_bytes": 1, "max_cpu_time_ms": 2, "max_tool_calls": 3, "max_messages": 4}}"""
    can = AgentCapabilities.from_json(text)
    assert can.can_spawn
    assert can.ipc_peers == ["a"]
    assert can.resource_limits.max_messages == 4
    assert json.loads(can.to_json())["ipc_scope"] == {"Restricted": ["a"]}


@pytest.mark.parametrize("word", ["peers", "explicit", "Explicit", "Restricted"])
def test_the_words_for_listed_peers_are_one(word: str) -> None:
    assert IpcScope.read(word).word == "peers"


def test_seed_words_of_scopes_are_read() -> None:
    assert IpcScope.read("ParentOnly") == IpcScope.PARENT
    assert IpcScope.read("Topic") == IpcScope.TOPICS
    assert IpcScope.read("All") == IpcScope.ALL


def test_listed_peers_are_reached_and_others_are_not() -> None:
    can = AgentCapabilities(can_ipc=True, ipc_scope=IpcScope.restricted(["a", "b", "c"]))
    assert can.can_message("a")
    assert can.can_message("b")
    assert not can.can_message("d")


def test_the_scope_parent_reaches_the_parent_and_nobody_else() -> None:
    can = AgentCapabilities(can_ipc=True, ipc_scope=IpcScope.PARENT)
    assert can.can_message("boss", parent="boss")
    assert not can.can_message("sibling", parent="boss")
    assert not can.can_message("boss")


def test_the_switch_beats_the_scope() -> None:
    assert not AgentCapabilities(can_ipc=False, ipc_scope=IpcScope.ALL).can_message("a")
    assert AgentCapabilities(can_ipc=True, ipc_scope=IpcScope.ALL).can_message("a")


@pytest.mark.parametrize("scope", [IpcScope.TOPICS, IpcScope.NONE])
def test_other_scopes_reach_nobody_directly(scope: IpcScope) -> None:
    assert not AgentCapabilities(can_ipc=True, ipc_scope=scope).can_message("a", parent="a")


def test_use_that_equals_the_limit_is_within_it() -> None:
    limits = ResourceLimits(max_tool_calls=3, max_disk_bytes=0)
    assert limits.allows("tool_calls", 3)
    assert not limits.allows("tool_calls", 4)
    assert limits.allows("disk_bytes", 0)
    assert not limits.allows("disk_bytes", 1)


def test_pids_are_refused_as_peers() -> None:
    with pytest.raises(ManifestError, match="does not outlive a restart"):
        AgentCapabilities.from_json('{"ipc_scope": {"Restricted": [12]}}')


def test_a_ceilings_switch_follows_its_list() -> None:
    assert CapabilityCeiling(tools=["x"]).can_exec_tools
    assert not CapabilityCeiling(tools=["x"], can_exec_tools=False).can_exec_tools
    assert CapabilityCeiling(network=["a.example"]).can_network
    assert CapabilityCeiling(topics_publish=["a"]).can_ipc


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:80",
        "localhost",
        "LOCALHOST:1",
        "a.localhost",
        "[::1]:80",
        "[::]",
        "0.0.0.0:1",
        "127.9.9.9",
        "localhost.:1",
        "127.0.0.1.:1",
    ],
)
def test_no_manifest_gives_the_loopback(text: str) -> None:
    with pytest.raises(Flaw, match="loopback"):
        endpoint(text)


@pytest.mark.parametrize(
    "text", ["", ":80", "a:0", "a:65536", "a:x", "https://a", "a/b", "a b", "u@h", 7, "a:99999999999"]
)
def test_what_is_no_host_is_refused(text: object) -> None:
    with pytest.raises(Flaw):
        endpoint(text)


@pytest.mark.parametrize(
    "text", ["api.example.org", "api.example.org:443", "*.example.org:8443", "*", "[2001:db8::1]:443"]
)
def test_hosts_are_read(text: str) -> None:
    assert endpoint(text) == text


def test_paths_stay_below_where_they_begin() -> None:
    assert access("rw:out") == "rw:out"
    for text in ("../x", "ro:/a/../b", "rw:", ""):
        with pytest.raises(Flaw):
            access(text)


def test_topics_know_one_level_and_the_rest() -> None:
    for text in ("a", "a.b", "a.*.b", "a.*", "a.>", ">", "*"):
        assert topic(text) == text
    for text in ("", "a..b", ".a", "a.>.b", "a b", "a.+"):
        with pytest.raises(Flaw, match="no topic"):
            topic(text)
