"""Agency says how many children an agent may have and in which roles: S-02 to S-08."""

import pytest

from agent_os import Agency, AgentCapabilities, AgentRole, ManifestError
from agent_os.manifest.capabilities import CapabilityCeiling


def test_root_has_no_limit_and_spawns_all_but_root() -> None:
    agency = Agency.root()
    assert agency.max_children is None
    assert agency.remaining_capacity() is None
    for role in (AgentRole.Supervisor, AgentRole.Service, AgentRole.Worker, AgentRole.User):
        assert agency.can_spawn(role)
    assert not agency.can_spawn(AgentRole.Root)


def test_a_supervisor_spawns_services_and_workers_only() -> None:
    agency = Agency.supervisor(10)
    assert agency.max_children == 10
    assert agency.can_spawn(AgentRole.Service)
    assert agency.can_spawn(AgentRole.Worker)
    assert not agency.can_spawn(AgentRole.Root)
    assert not agency.can_spawn(AgentRole.User)


def test_a_service_spawns_workers_only() -> None:
    assert Agency.service(5).can_spawn(AgentRole.Worker)
    assert not Agency.service(5).can_spawn(AgentRole.Service)


def test_a_worker_spawns_nothing() -> None:
    assert not Agency.none().can_spawn(AgentRole.Worker)
    assert Agency.none().remaining_capacity() == 0
    assert Agency() == Agency.none()


def test_a_full_family_takes_nobody_until_one_is_gone() -> None:
    agency = Agency.service(2)
    agency.add_child(100)
    agency.add_child(101)
    assert not agency.can_spawn(AgentRole.Worker)
    assert agency.remaining_capacity() == 0
    agency.remove_child(999)
    assert agency.remaining_capacity() == 0
    agency.remove_child(100)
    assert agency.can_spawn(AgentRole.Worker)
    assert agency.remaining_capacity() == 1


def test_more_children_than_allowed_leave_no_negative_capacity() -> None:
    agency = Agency(max_children=1, allowed_roles=[AgentRole.WORKER], children=[1, 2, 3])
    assert agency.remaining_capacity() == 0


def test_a_custom_role_is_admitted_by_its_label_or_by_its_base() -> None:
    custom = AgentRole.custom("analytics")
    assert not Agency.service(1).can_spawn(custom)
    assert Agency.service(1).can_spawn(custom, AgentRole.WORKER)
    assert not Agency.service(1).can_spawn(custom, AgentRole.SERVICE)
    assert Agency(max_children=1, allowed_roles=[custom]).can_spawn(custom)
    assert not Agency(max_children=1, allowed_roles=[custom]).can_spawn(AgentRole.custom("other"))


def test_the_role_preset_hands_on_all_that_the_agent_has() -> None:
    assert Agency.of_role(AgentRole.SUPERVISOR).max_children == 64
    assert Agency.of_role(AgentRole.SERVICE).max_children == 16
    assert Agency.of_role(AgentRole.SERVICE).capability_ceiling == CapabilityCeiling.root()
    assert Agency.of_role(AgentRole.WORKER) == Agency.none()
    assert Agency.of_role(AgentRole.custom("x"), AgentRole.SERVICE) == Agency.of_role(AgentRole.SERVICE)
    assert Agency.session().remaining_capacity() == 16


def test_agency_is_read_as_it_is_written() -> None:
    written = Agency.supervisor(8).to_json()
    restored = Agency.from_json(written)
    assert restored == Agency.supervisor(8)
    assert restored.max_children == 8
    assert AgentRole.Service in restored.allowed_roles
    assert '"max_children": null' in Agency.root().to_json()
    assert Agency.from_json(Agency.root().to_json()) == Agency.root()


def test_the_capabilities_of_seed_4_are_taken_as_a_ceiling() -> None:
    ceiling = Agency(capability_ceiling=AgentCapabilities.root()).capability_ceiling  # pyright: ignore
    assert ceiling.can_spawn
    assert ceiling.network == ["*"]
    assert ceiling.tools == []


@pytest.mark.parametrize("wrong", [{"max_children": -1}, {"max_children": True}, {"allowed_roles": ["root"]}])
def test_a_wrong_agency_is_refused_where_it_is_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ManifestError) as caught:
        Agency(**wrong)  # pyright: ignore
    assert caught.value.problems[0].key.startswith(next(iter(wrong)))
    assert (caught.value.name, caught.value.code) == ("EINVAL", "manifest")
