"""Every key that grants becomes a capability that the kernel understands, and a false switch takes its kind away."""

import pytest

from agent_os import AgentManifest
from agent_os.kernel.authority.capability import parse
from agent_os.manifest.granting import wanted

HEAD = 'name = "a"\nrole = "service"\n'


def asked(text: str, parent: str | None = None) -> list[str]:
    return [str(parse(one.capability)) for one in wanted(AgentManifest.from_toml(HEAD + text), parent)]


@pytest.mark.parametrize(
    ("text", "capabilities"),
    [
        ("", []),
        ('tools = ["http.fetch", "web.*"]', ["tool:http.fetch:call", "tool:web.*:call"]),
        (
            'tools = ["memory.search", "memory.store"]',
            [
                *("tool:memory.search:call", "tool:memory.store:call"),
                *("mem:/mem/episodic/**:read", "mem:/mem/semantic/**:read"),
                *("mem:/mem/episodic/**:write", "mem:/mem/semantic/**:write"),
            ],
        ),
        ('topics_publish = ["a.b", "c.>"]', ["ipc:topic/a.b:publish", "ipc:topic/c.**:publish"]),
        ('topics_subscribe = ["a.*.b"]', ["ipc:topic/a.*.b:subscribe"]),
        ('topics_publish = ["news.*"]', ["ipc:topic/news.+:publish"]),
        ('filesystem_access = ["/data/in"]', ["file:/data/in:read", "file:/data/in/**:read"]),
        ('filesystem_access = ["rw:out/"]', ["file:/work/out/**:read,write"]),
        ('[capabilities]\nservices = ["s"]\nipc_peers = ["b"]', ["ipc:agent/b:send", "ipc:agent/s:send"]),
        ('[capabilities]\nipc_scope = "all"', ["ipc:agent/**:send"]),
        ('[capabilities]\nsecrets = ["KEY"]', ["secret:KEY:use"]),
        ('[capabilities]\nmodels = ["p/m"]', ["llm:p/m:call"]),
        ('[program]\nmodel = "p/m"\n[program.loop]\nfallback = ["p/n"]', ["llm:p/m:call", "llm:p/n:call"]),
        ('agency = "role"', ["agent:spawn{max:16}"]),
        ('[agency]\nmax_children = "unlimited"\nallowed_roles = ["worker"]', ["agent:spawn"]),
        ("[agency]\nmax_children = 3", []),
    ],
)
def test_keys_become_capabilities(text: str, capabilities: list[str]) -> None:
    assert asked(text) == capabilities


@pytest.mark.parametrize("name", ["a b", "100%", "what?", "a&b", "{x}", "ä", "a:b"])
def test_any_path_can_be_granted(name: str) -> None:
    one = AgentManifest.from_dict({"name": "a", "role": "worker", "filesystem_access": [f"rw:{name}"]})
    file, below = (parse(each.capability) for each in wanted(one))
    assert file.target.matches(f"/work/{name}")
    assert below.target.matches(f"/work/{name}/x")
    assert file.actions == below.actions == {"read", "write"}


def test_hosts_are_granted_for_one_port_and_all_methods() -> None:
    methods = "delete,get,head,options,patch,post,put"
    assert asked('[capabilities]\nnetwork = ["api.example.org:8443"]') == [
        f"http:api.example.org/**:{methods}{{port:8443}}"
    ]
    assert asked('[capabilities]\nnetwork = ["api.example.org", "api.example.org:443"]') == [
        f"http:api.example.org/**:{methods}"
    ]
    plain = parse(wanted(AgentManifest.from_toml(f'{HEAD}[capabilities]\nnetwork = ["a.example:80"]'))[0].capability)
    assert "http" in plain.constraints["scheme"]


def test_the_parent_is_named_once_it_is_known() -> None:
    assert asked('[capabilities]\nipc_scope = "parent"') == []
    assert asked('[capabilities]\nipc_scope = "parent"', "default/boss") == ["ipc:agent/default/boss:send"]


@pytest.mark.parametrize(
    ("switch", "text"),
    [
        ("can_exec_tools", 'tools = ["x"]\n[capabilities]\n'),
        ("can_ipc", 'topics_publish = ["x"]\n[capabilities]\nipc_scope = "all"\nservices = ["s"]\n'),
        ("can_network", '[capabilities]\nnetwork = ["a.example"]\n'),
        ("can_spawn", 'agency = "role"\n[capabilities]\n'),
    ],
)
def test_a_false_switch_takes_its_kind_away(switch: str, text: str) -> None:
    assert asked(text)
    assert asked(f"{text}{switch} = false\n") == []
    bare = AgentManifest.from_toml(f"{HEAD}[capabilities]\n{switch} = true\n")
    assert wanted(bare) == []


def test_a_star_adapts_and_a_name_does_not() -> None:
    text = 'tools = ["*", "x"]\ntopics_publish = ["*"]\nfilesystem_access = ["*"]\n[capabilities]\nnetwork = ["*"]\n'
    assert {
        one.key: one.adapts for one in wanted(AgentManifest.from_toml(HEAD + text)) if "x?" not in one.capability
    } == {
        "tools": True,
        "topics_publish": True,
        "filesystem_access": True,
        "capabilities.network": True,
    }
    assert not wanted(AgentManifest.from_toml(f'{HEAD}tools = ["x"]'))[0].adapts
