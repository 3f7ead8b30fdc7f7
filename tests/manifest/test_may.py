"""What a manifest alone lets through: S-18 to S-20, S-24 to S-28."""

import pytest

from agent_os import AgentCapabilities, AgentManifest, IpcScope
from agent_os.manifest.may import send_refusal, tool_refusal, topic_refusal


def agent(**keys: object) -> AgentManifest:
    return AgentManifest(name="a", role="worker", **keys)  # pyright: ignore


def step(refused: object) -> str | None:
    return getattr(refused, "step", None)


def test_a_tool_without_lists_is_refused() -> None:
    assert step(tool_refusal(agent(), "x")) == "capability"
    assert step(tool_refusal(agent(capabilities=AgentCapabilities(can_exec_tools=True)), "x")) == "allow"


def test_deny_beats_allow() -> None:
    assert step(tool_refusal(agent(tools=["x"], tools_deny=["x"]), "x")) == "deny"
    assert step(tool_refusal(agent(tools=["*"], tools_deny=["file.*"]), "file.read")) == "deny"
    assert tool_refusal(agent(tools=["*"], tools_deny=["file.*"]), "http.get") is None


def test_the_first_step_is_the_reason() -> None:
    off = AgentCapabilities(can_exec_tools=False)
    wrong = {"tools_deny": ["x"], "tools": ["y"]}
    assert step(tool_refusal(agent(capabilities=off, **wrong), "x", ["shell"])) == "capability"
    assert step(tool_refusal(agent(**wrong), "x", ["shell"])) == "deny"
    assert step(tool_refusal(agent(tools=["y"]), "x", ["shell"])) == "allow"
    assert step(tool_refusal(agent(tools=["x"]), "x", ["shell"])) == "sandbox"


def test_declared_effects_count_and_names_do_not() -> None:
    one = agent(tools=["harmless", "shell"])
    assert step(tool_refusal(one, "harmless", ["shell"])) == "sandbox"
    assert tool_refusal(one, "harmless", ["shell"], allowed=["shell"]) is None
    assert tool_refusal(one, "shell") is None
    assert step(tool_refusal(one, "harmless", ["magic"], allowed=["magic"])) == "sandbox"


def test_a_tool_that_needs_the_network_needs_the_switch() -> None:
    assert step(tool_refusal(agent(tools=["x"]), "x", ["network"])) == "sandbox"
    reaching = agent(tools=["x"], capabilities=AgentCapabilities(network=["a.example"]))
    assert tool_refusal(reaching, "x", ["network"]) is None


@pytest.mark.parametrize("scope", [IpcScope.ALL, IpcScope.PARENT, IpcScope.restricted(["b"]), IpcScope.TOPICS])
def test_a_topic_is_open_only_where_it_is_listed(scope: IpcScope) -> None:
    one = agent(topics_publish=["a.b", "c.*.d", "e.>"], capabilities=AgentCapabilities(ipc_scope=scope))
    for topic in ("a.b", "c.x.d", "e.f", "e.f.g"):
        assert topic_refusal(one, "publish", topic) is None
        assert step(topic_refusal(one, "subscribe", topic)) == "allow"
    for topic in ("a", "a.b.c", "c.d", "c.x.y.d", "e", "z"):
        assert step(topic_refusal(one, "publish", topic)) == "allow"


def test_messages_switched_off_close_everything() -> None:
    off = AgentCapabilities(can_ipc=False, ipc_scope=IpcScope.ALL, services=["s"])
    one = agent(topics_publish=["a"], topics_subscribe=["a"], capabilities=off)
    assert step(topic_refusal(one, "publish", "a")) == "capability"
    assert step(topic_refusal(one, "subscribe", "a")) == "capability"
    for kind in ("process", "service", "broadcast", "kernel"):
        assert step(send_refusal(one, kind, "s")) == "capability"


def test_an_empty_list_of_services_reaches_none() -> None:
    everybody = AgentCapabilities(ipc_scope=IpcScope.ALL)
    assert step(send_refusal(agent(capabilities=everybody), "service", "s")) == "scope"
    listed = AgentCapabilities(services=["s"])
    assert send_refusal(agent(capabilities=listed), "service", "s") is None
    assert step(send_refusal(agent(capabilities=listed), "service", "t")) == "scope"


def test_every_kind_of_target_is_checked() -> None:
    all_of_them = agent(capabilities=AgentCapabilities(ipc_scope=IpcScope.ALL))
    assert send_refusal(all_of_them, "process", "x") is None
    assert send_refusal(all_of_them, "broadcast") is None
    assert step(send_refusal(all_of_them, "kernel")) == "scope"
    child = agent(capabilities=AgentCapabilities(ipc_scope=IpcScope.PARENT))
    assert send_refusal(child, "process", "boss", parent="boss") is None
    assert step(send_refusal(child, "process", "stranger", parent="boss")) == "scope"
    assert step(send_refusal(child, "broadcast", parent="boss")) == "scope"
