"""A manifest as the store keeps it reads back as the same manifest, and supervision reads the same terms from both."""

import msgspec
import pytest

from agent_os.kernel.supervisor.specs import Spec
from agent_os.kernel.supervisor.terms import RestartPolicy, Strategy
from agent_os.manifest.model import AgentManifest

FULL = """
name = "boss"
namespace = "team"
role = "supervisor"
agency = "role"
[program]
argv = ["x"]
[resources]
priority = "high"
max_memory_mb = "unlimited"
[health]
restart_policy = "always"
max_restarts = 2
stable_secs = "500ms"
success_exit_codes = [0, 3]
no_restart_exit_codes = [4]
force_restart_exit_codes = [5]
backoff = { base_ms = 1, cap_ms = 2, jitter = "none" }
on_failure = ["medic"]
[dependencies]
requires = ["a"]
after = ["b"]
wants = ["c"]
binds_to = ["d"]
[supervision]
strategy = "rest_for_one"
intensity = 3
period_secs = 4
children = ["w"]
[lifecycle]
grace_secs = "1500ms"
"""


@pytest.mark.parametrize("text", [FULL, 'name = "a"\nrole = "worker"\n', 'name = "a"\nrole = "custom:x"\n'])
def test_what_is_stored_reads_back_as_the_same_manifest(text: str) -> None:
    manifest = AgentManifest.from_toml(text)
    made = Spec.of(manifest, "/srv", "/srv/a.agent.toml")
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Spec)
    assert again == made
    assert again.manifest == manifest
    assert again.same(made)
    assert (again.id, again.role) == (manifest.id, str(manifest.role))
    assert (again.terms, again.needs, again.supervision) == (made.terms, made.needs, made.supervision)


def test_the_terms_are_those_of_the_manifest() -> None:
    made = Spec.of(AgentManifest.from_toml(FULL), "/srv")
    terms, group, needs = made.terms, made.supervision, made.needs
    assert (terms.policy, terms.max_restarts, terms.stable_secs) == (RestartPolicy.ALWAYS, 2, 0.5)
    assert (terms.success_codes, terms.no_restart_codes, terms.force_restart_codes) == ({0, 3}, {4}, {5})
    assert (terms.backoff.base_ms, terms.backoff.cap_ms, terms.backoff.jitter) == (1, 2, "none")
    assert (group.strategy, group.intensity, group.period_secs) == (Strategy.REST_FOR_ONE, 3, 4.0)
    assert (needs.requires, needs.after, needs.wants, needs.binds_to) == (("a",), ("b",), ("c",), ("d",))
    assert (made.priority, made.children, made.on_failure, made.grace_secs) == ("high", ["w"], ["medic"], 1.5)
    assert (made.id, made.role, made.runtime, made.activation) == ("team/boss", "supervisor", "exec", "always")


def test_another_folder_is_another_declaration() -> None:
    manifest = AgentManifest.from_toml(FULL)
    assert not Spec.of(manifest, "/srv").same(Spec.of(manifest, "/other"))
