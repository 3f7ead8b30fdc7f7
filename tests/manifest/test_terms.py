"""What a manifest says of a model agent is what its program is bound by."""

import msgspec

from agent_os import AgentManifest
from agent_os.manifest.terms import terms
from agent_os.userland.loop_terms import Terms
from manifest.test_model_agents import RESEARCH


def test_the_program_takes_what_the_manifest_says() -> None:
    schema = {"type": "string"}
    found = msgspec.convert(terms(AgentManifest.from_toml(RESEARCH), schema, window=8000), Terms)
    assert found == Terms(
        model="anthropic/claude-sonnet",
        goal="Answer inputs.question with sources.",
        instructions="Name every page you opened.",
        tools=["http.fetch", "file.write", "memory.*"],
        turns=12,
        wall_secs=300,
        fallback=["ollama/qwen3"],
        output_schema=schema,
        window=8000,
    )


def test_the_defaults_of_a_manifest_are_those_of_its_program() -> None:
    bare = AgentManifest.from_toml('name = "a"\nrole = "worker"\n[program]\nmodel = "a/b"\n')
    assert msgspec.convert(terms(bare), Terms) == Terms(model="a/b", tools=[])


def test_another_model_takes_the_place_of_all_of_them() -> None:
    found = terms(AgentManifest.from_toml(RESEARCH), model="scripted/x")
    assert (found["model"], found["fallback"]) == ("scripted/x", [])


def test_a_tool_that_is_denied_is_not_offered() -> None:
    found = terms(AgentManifest.from_toml(RESEARCH.replace("[program]", 'tools_deny = ["file.write"]\n[program]', 1)))
    assert found["tools"] == ["http.fetch", "memory.*"]
