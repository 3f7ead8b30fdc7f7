"""What of a manifest says how its agent is watched."""

from typing import Any

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.supervisor import watched
from agent_os.kernel.supervisor.health import Settings
from agent_os.kernel.supervisor.readiness import Ready
from agent_os.manifest.model import AgentManifest

COMMAND: dict[str, Any] = {"argv": ["serve"]}
PROGRAM: dict[str, Any] = {"entry": "p.py:p"}


def of(program: dict[str, Any], **sections: Any) -> watched.Watched:
    return watched.of(AgentManifest.from_dict({"name": "a", "role": "worker", "program": program, **sections}))


def test_without_a_word_about_it_one_interval_of_30_s_and_no_deadline_but_that_of_the_start() -> None:
    found = of(PROGRAM)
    assert found.settings == Settings(30.0, 5.0, 3, 1, 60.0)
    assert (found.watchdog_secs, found.max_repeats, found.run_secs) == (None, None, None)


def test_a_program_of_ours_says_when_it_is_ready_and_a_command_is_at_once() -> None:
    assert of(PROGRAM).ready == Ready("notify")
    assert of(COMMAND).ready == Ready("immediate")


@pytest.mark.parametrize(("text", "asks"), [("exec:true", True), ("port:80", True), ("log:x", False)])
def test_commands_and_ports_are_asked_again_and_a_line_comes_once(text: str, asks: bool) -> None:
    assert of(COMMAND, health={"ready": text}).asks is asks


def test_every_number_comes_from_its_key() -> None:
    health = {
        "check_interval_secs": 1,
        "timeout_secs": 2,
        "failure_threshold": 4,
        "success_threshold": 5,
        "start_timeout_secs": 6,
        "watchdog_secs": 7,
        "max_repeat_calls": 8,
    }
    found = of(PROGRAM, health=health, resources={"max_runtime_secs": 9, "priority": "high"})
    assert found.settings == Settings(1.0, 2.0, 4, 5, 6.0)
    assert (found.watchdog_secs, found.max_repeats, found.run_secs, found.weight) == (7.0, 8, 9.0, 300)


@pytest.mark.parametrize("text", ["notify", "log:(", "log:(?=x)", "exec:'", "port:0", "port:99999"])
def test_what_cannot_be_is_refused_with_its_key(text: str) -> None:
    with pytest.raises(EINVAL, match=r"health\.ready") as caught:
        of(COMMAND, health={"ready": text})
    assert caught.value.reason.startswith("health.ready: ")
