"""What a manifest takes away is a rule about its agent's name, in the layer of manifests."""

from pathlib import Path

import pytest

from agent_os.abi.syscalls import Apply, Delete, Release
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority.policy import loading
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.rules import Effect, Layer
from agent_os.kernel.calls import Need
from agent_os.kernel.governing import texts
from agent_os.kernel.supervisor.admission import declared
from agent_os.kernel.table import Agent, Table
from agent_os.manifest.model import AgentManifest
from kernel.supervisor.declared import World, in_world

pytestmark = pytest.mark.uid_free("the kernel decides the same for every user")

WRITES = """
from agent_os import agent

@agent
async def writes(ctx):
    await ctx.write("/work/out", "1")
"""


def agent(name: str = "a", **keys: object) -> Agent:
    row = Table(SqliteStore(None)).admit(name, "native")
    row.order = declared(AgentManifest.from_dict({"name": "a", "role": "worker", "tools": ["*"], **keys}))
    return row


def policy(row: Agent) -> Policy:
    return Policy(loading.of_project(texts(row), "/project"))


@pytest.mark.parametrize("name", ["a", "lab/a", "a.b_c-d"])
def test_what_is_denied_is_refused_and_what_is_to_be_approved_is_asked_about(name: str) -> None:
    row = agent(name, tools_deny=["pay", "sys*"], capabilities={"approval": ["mail"]})
    rules = policy(row)
    effects = {
        tool: rules.decide(name, "worker", Need("tool", "call", tool)).effect
        for tool in ("pay", "system", "mail", "search")
    }
    assert effects == {
        "pay": Effect.FORBID,
        "system": Effect.FORBID,
        "mail": Effect.ASK,
        "search": Effect.ALLOW,
    }
    refused = rules.decide(name, "worker", Need("tool", "call", "pay"))
    assert (refused.layer, refused.violation, refused.reason) == (Layer.MANIFEST, "refuse", "it is among tools_deny")
    assert str(refused.where).startswith(f"manifest of {name}:")
    assert rules.decide("else", "worker", Need("tool", "call", "pay")).effect is Effect.ALLOW


def test_an_agent_without_a_manifest_or_without_such_lists_has_no_rules_of_its_own() -> None:
    assert texts(Table(SqliteStore(None)).admit("a", "native")) == []
    assert texts(agent()) == []


def test_a_strange_name_of_a_tool_is_a_name_and_no_toml() -> None:
    row = agent(tools_deny=['x"] # agents = ["nobody'])
    rules = policy(row)
    ((_, rule),) = [one for one in rules.rules() if one[0].layer is Layer.MANIFEST]
    assert [subject.text for subject in rule.agents] == ["a"]
    assert rules.decide("a", "", Need("tool", "call", 'x"] # agents = ["nobody')).effect is Effect.FORBID


@pytest.mark.integration
def test_a_declared_child_obeys_the_rules_of_its_own_project_beside_those_of_its_supervisor(tmp_path: Path) -> None:
    """The one without rules does what the other is ended for: the same program in two folders."""

    async def test(world: World) -> None:
        for name in ("ruled", "free"):
            folder = world.project / name
            folder.mkdir()
            (folder / "writes.py").write_text(WRITES)
            program = "[program]\nentry = 'writes.py:writes'\n[sandbox]\nworkspace = 'overlay'\n"
            world.manifest(name, program).rename(folder / f"{name}.agent.toml")
        (world.project / "ruled" / ".agents").mkdir()
        rule = "[[rule]]\nid = 'not-here'\neffect = 'forbid'\nwhat = ['file:/work/out:write']\nreason = 'no'\n"
        (world.project / "ruled" / ".agents" / "policy.toml").write_text(f"version = 1\ndefault = 'capability'\n{rule}")
        boss = world.manifest("boss", "[supervision]\nchildren = ['ruled', 'free']\n", role="supervisor")
        files = [boss, *world.project.glob("*/*.agent.toml")]
        for _ in range(2):  # declared again after they were forgotten, they obey as before
            await world.call(Apply(files={str(one): one.read_text() for one in files}))
            await world.state("free", "completed")
            await world.state("ruled", "quarantined")
            await world.call(Release(agent="ruled"))
            await world.call(Delete(agents=["boss", "ruled", "free"]))

    in_world(tmp_path, test)
