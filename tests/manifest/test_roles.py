"""The words of seed 4 print as people write them and are read in every accepted spelling."""

import pytest

from agent_os import AgentPriority, AgentRestartPolicy, AgentRole, InterfaceProtocol, ResponseMode
from agent_os.manifest.problems import Flaw

ROLES = ["root", "supervisor", "service", "worker", "user"]


@pytest.mark.parametrize("word", ROLES)
def test_a_role_prints_as_its_word(word: str) -> None:
    role: AgentRole = getattr(AgentRole, word.upper())
    assert str(role) == word
    assert role is getattr(AgentRole, word.capitalize())
    assert role == AgentRole(word) == AgentRole.read(word.capitalize())


def test_a_custom_role_prints_with_its_label() -> None:
    assert str(AgentRole.Custom("analytics")) == "custom(analytics)"
    assert AgentRole.custom("analytics").is_custom
    assert not AgentRole.WORKER.is_custom


@pytest.mark.parametrize(
    "spelt", ["custom(analytics)", "custom:analytics", "Custom(analytics)", {"Custom": "analytics"}]
)
def test_every_spelling_of_a_custom_role_is_the_same_role(spelt: object) -> None:
    assert AgentRole.read(spelt) == AgentRole.custom("analytics") == AgentRole("custom(analytics)")


@pytest.mark.parametrize(
    "spelt", ["", "boss", "custom", "custom()", "custom:", 7, None, {"Custom": 1}, {"Boss": "x"}, {}]
)
def test_what_is_no_role_is_refused(spelt: object) -> None:
    with pytest.raises(Flaw):
        AgentRole.read(spelt)


def test_a_misspelt_role_names_the_nearest() -> None:
    with pytest.raises(Flaw) as caught:
        AgentRole.read("suprvisor")
    assert caught.value.hint == "did you mean `supervisor`?"


def test_roles_are_equal_by_value_and_can_be_keys() -> None:
    assert {AgentRole.custom("a"): 1}[AgentRole("custom", "a")] == 1
    assert AgentRole.custom("a") != AgentRole.custom("b")


def test_priorities_are_ordered() -> None:
    assert AgentPriority.Low < AgentPriority.Normal < AgentPriority.High < AgentPriority.Critical
    assert AgentPriority.CRITICAL >= AgentPriority.HIGH > AgentPriority.LOW <= AgentPriority.LOW
    assert [one.weight for one in AgentPriority] == [25, 100, 300, 800]


def test_seed_names_are_the_same_members() -> None:
    assert AgentRestartPolicy.OnFailure is AgentRestartPolicy.ON_FAILURE
    assert InterfaceProtocol.Ipc is InterfaceProtocol.IPC
    assert [str(one) for one in AgentRestartPolicy] == ["never", "on_failure", "always"]


@pytest.mark.parametrize(
    ("mode", "text", "seed"),
    [
        (ResponseMode.Direct, "direct", "Direct"),
        (ResponseMode.Broadcast, "broadcast", "Broadcast"),
        (ResponseMode.Topic("events"), "topic:events", {"Topic": "events"}),
    ],
)
def test_a_response_mode_is_read_as_it_is_written(mode: ResponseMode, text: str, seed: object) -> None:
    assert str(mode) == text
    assert mode.seed() == seed
    assert ResponseMode.read(text) == ResponseMode.read(seed) == mode


@pytest.mark.parametrize("spelt", ["topic", "topic:", "elsewhere", {"Topic": ""}, 1])
def test_what_is_no_response_mode_is_refused(spelt: object) -> None:
    with pytest.raises(Flaw):
        ResponseMode.read(spelt)
