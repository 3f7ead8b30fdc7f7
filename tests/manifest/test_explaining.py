"""Every key has a meaning, and a manifest is explained by what it says beyond the defaults."""

import pytest

from agent_os import AgentManifest
from agent_os.manifest.explaining import explained, reference
from agent_os.manifest.problems import Flaw

TEXT = 'name = "a"\nrole = "service"\nagency = "role"\ntools = ["x"]\n[health]\nmax_restarts = 2\n'


def test_every_key_has_a_meaning_and_says_what_it_takes() -> None:
    rows = reference()
    assert len(rows) > 100
    assert len({row.key for row in rows}) == len(rows)
    assert [row.key for row in rows if not row.about or not row.takes] == []
    assert {"name", "health.backoff.cap_ms", "mounts.path", "agency.capability_ceiling.tools"} <= {
        row.key for row in rows
    }


def test_a_table_or_one_key_can_be_asked_for() -> None:
    assert [row.key for row in reference("health.max_restarts")] == ["health.max_restarts"]
    assert {row.key.partition(".")[0] for row in reference("health")} == {"health"}
    for word, near in (("helth", "health"), ("max_restart", "health.max_restarts")):
        with pytest.raises(Flaw) as caught:
            reference(word)
        assert f"`{near}`" in caught.value.hint


def test_a_manifest_is_explained_by_what_differs() -> None:
    told = explained(AgentManifest.from_toml(TEXT))
    assert {row.key: row.value for row in told.keys} == {
        "agency": "role",
        "name": "a",
        "role": "service",
        "tools": ["x"],
        "capabilities.can_spawn": True,
        "capabilities.can_exec_tools": True,
        "health.max_restarts": 2,
    }
    assert [one.key for one in told.grants] == ["tools", "agency"]
