"""Tools registered, found, listed and called; who sees whose."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agent_os.abi.errors import EBUSY, EDQUOT, EEXIST, EINVAL, ENOENT, EPERM, ETYPE
from agent_os.abi.syscalls import Effect
from agent_os.abi.tools import ToolSpec, When
from agent_os.kernel.calls import Need
from agent_os.kernel.tools import registry as module
from agent_os.kernel.tools.registry import Call, Deed, Registry, Tool, Verified

SPEC = ToolSpec(
    name="doc.read",
    description="Read a document.",
    input_schema={
        "type": "object",
        "properties": {"path": {"type": "string"}, "mode": {"enum": ["look", "take"]}},
        "required": ["path"],
    },
    output_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    effect="opaque",
    milder=(When("mode", ("look",), "pure", default=True),),
    requires=("file:{path}:read",),
    tags=("doc",),
)
FAMILY = {"kid": ["parent", "grandparent"], "parent": ["grandparent"]}


async def run(call: Call) -> Any:
    return {"text": f"what {call.params['path']} holds"}


def registry(*specs: ToolSpec) -> Registry:
    made = Registry(lambda: 0.0, lambda agent: FAMILY.get(agent, []))
    for spec in specs or (SPEC,):
        made.register(spec, Deed(run))
    return made


def own(name: str = "notes.count", **change: Any) -> ToolSpec:
    return replace(SPEC, name=name, **change)


def test_the_same_again_changes_nothing_and_another_of_that_version_is_refused() -> None:
    there = registry()
    assert there.register(SPEC, Deed(run)) is there.get("doc.read")
    with pytest.raises(EEXIST) as caught:
        there.register(replace(SPEC, description="Something else."), Deed(run))
    assert caught.value.detail["digest"] == there.get("doc.read").spec.digest
    with pytest.raises(EEXIST):
        there.register(SPEC, Deed(run, digest=b"other code"))


def test_versions_live_side_by_side() -> None:
    there = registry(*(replace(SPEC, version=one) for one in ("1.2.0", "1.10.1", "2.0.0-rc.1", "2.1.0")))
    assert there.get("doc.read@^1.2").spec.version == "1.10.1"
    assert there.get("doc.read@1.2.0").spec.version == "1.2.0"
    assert there.get("doc.read").spec.version == "2.1.0"
    with pytest.raises(ENOENT) as caught:
        there.get("doc.read@^3")
    assert "2.1.0" in caught.value.hint


def test_a_deprecated_one_is_taken_only_where_no_other_fits() -> None:
    there = registry(SPEC, replace(SPEC, version="1.1.0", deprecated="use 1.0.0: this one lies"))
    assert there.get("doc.read").spec.version == "1.0.0"
    assert there.get("doc.read@1.1").spec.version == "1.1.0"


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(ENOENT) as caught:
        registry().get("doc.raed")
    assert caught.value.detail["near"] == ["doc.read"]
    assert "doc.read" in caught.value.hint


def test_listing_by_words_tag_and_right() -> None:
    there = registry(SPEC, own("doc.write", description="Write a DOCUMENT down.", tags=("doc", "effect")))
    assert [one.name for one in there.list()] == ["doc.read", "doc.write"]
    assert [one.name for one in there.list("document write")] == ["doc.write"]
    assert [one.name for one in there.list(tag="effect")] == ["doc.write"]
    assert [one.name for one in there.list(may=lambda tool: tool.spec.name == "doc.read")] == ["doc.read"]
    assert there.list()[0].input_schema == SPEC.input_schema


def test_an_agents_tool_is_for_itself_and_its_descendants() -> None:
    there = registry()
    there.register(own(), Deed(run), owner="parent")
    for agent in ("parent", "kid"):
        assert there.get("notes.count", agent).owner == "parent"
        assert "notes.count" in [one.name for one in there.list(agent=agent)]
    for agent in ("grandparent", "stranger", ""):
        with pytest.raises(ENOENT):
            there.get("notes.count", agent)
        assert "notes.count" not in [one.name for one in there.list(agent=agent)]
    there.forget("parent")
    with pytest.raises(ENOENT):
        there.get("notes.count", "kid")


def test_an_agents_tool_never_stands_in_for_another() -> None:
    there = registry()
    with pytest.raises(EEXIST):
        there.register(own("doc.read", version="9.0.0"), Deed(run), owner="parent")
    for name in ("file.read", "shell.run", "mcp.x.y", "agent.spawn", "tool.output"):
        with pytest.raises(EPERM) as caught:
            there.register(own(name), Deed(run), owner="parent")
        assert caught.value.code == "tool.reserved"
    with pytest.raises(EPERM):
        there.register(own(sandbox="driver"), Deed(run), owner="parent")


def test_an_agent_registers_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OWN", 2)
    there = registry()
    for name in ("n.a", "n.b"):
        there.register(own(name), Deed(run), owner="parent")
    with pytest.raises(EDQUOT):
        there.register(own("n.c"), Deed(run), owner="parent")
    there.register(own("n.c"), Deed(run), owner="kid")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"requires": ("file:{place}:read",)}, "tool.requires"),
        ({"input_schema": {"type": "array"}, "requires": ("tool:call",)}, "tool.schema"),
        ({"input_schema": {"$ref": "https://example.com/x"}, "requires": ("tool:call",)}, "tool.schema"),
        ({"output_schema": {"type": "nonsense"}}, "tool.schema"),
        ({"effect": "verifiable"}, "tool.verify"),
        ({"version": "1"}, "tool.version"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_registered(change: dict[str, Any], code: str) -> None:
    with pytest.raises(EINVAL) as caught:
        registry(replace(SPEC, **change))
    assert caught.value.code == code


def test_a_verifiable_tool_has_a_way_to_tell() -> None:
    async def verify(call: Call) -> Verified:
        return Verified("done", call.plan)

    there = Registry(lambda: 0.0)
    there.register(replace(SPEC, effect="verifiable"), Deed(run, verify=verify))
    with pytest.raises(EINVAL):
        there.register(own(), Deed(run, verify=verify))


def test_a_suspended_tool_is_neither_called_nor_listed() -> None:
    there = registry()
    assert there.suspend("doc.read", "its description has changed") == 1
    with pytest.raises(EBUSY) as caught:
        there.get("doc.read")
    assert "description has changed" in caught.value.reason
    assert there.list() == []
    there.suspend("doc.read", "")
    assert there.get("doc.read")


def test_one_that_is_withdrawn_is_gone() -> None:
    there = registry(SPEC, replace(SPEC, version="2.0.0"))
    assert there.withdraw("doc.read", "1.0.0") == 1
    assert there.get("doc.read").spec.version == "2.0.0"
    assert there.withdraw("doc.read") == 1
    with pytest.raises(ENOENT):
        there.get("doc.read")


# One call.


def test_a_call_says_what_it_needs_and_how_it_is_recorded() -> None:
    call = registry().prepare("doc.read@^1", {"path": "/data/a"}, "kid", key="k1")
    assert list(call.needs) == [Need("tool", "call", "doc.read"), Need("file", "read", "/data/a")]
    assert call.effect is Effect.PURE
    assert call.facts["args"] == {"path": "/data/a"}
    assert call.record == {
        "tool": "doc.read@1.0.0",
        "digest": call.tool.spec.digest,
        "params": {"path": "/data/a"},
        "key": "k1",
    }
    taking = registry().prepare("doc.read", {"path": "/data/a", "mode": "take"})
    assert taking.effect is Effect.OPAQUE


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({}, "/path"),
        ({"path": 1}, "/path"),
        ({"path": "/a", "force": True}, "/force"),
        ({"path": "/a", "mode": "x"}, "/mode"),
    ],
)
def test_parameters_that_do_not_fit_run_nothing(params: dict[str, Any], pointer: str) -> None:
    there = registry()
    with pytest.raises(ETYPE) as caught:
        there.prepare("doc.read", params)
    assert caught.value.detail["pointer"] == pointer
    assert caught.value.detail["ran"] is False
    assert there.get("doc.read").health.metrics.errors["ETYPE"] == 1


def finished(value: Any, tool: Tool | None = None) -> Any:
    call = registry().prepare("doc.read", {"path": "/a"})
    return call.finish(value, duration_ms=5)


def test_a_result_is_bounded_checked_and_signed() -> None:
    call = registry().prepare("doc.read", {"path": "/a"})
    done = call.finish(asyncio.run(call.tool.deed.run(call)), duration_ms=5)
    assert done.result.value == {"text": "what /a holds"}
    assert (done.result.tool, done.result.duration_ms, done.error) == ("doc.read@1.0.0", 5, None)
    assert done.result.digest == call.tool.spec.digest


def test_a_result_that_breaks_its_schema_is_an_error_that_says_it_ran() -> None:
    done = finished({"txt": "s3cret"})
    assert done.error is not None
    assert done.error.detail["ran"] is True
    assert done.error.detail["raw"] == {"txt": "s3cret"}
    assert "s3cret" not in done.error.reason


def test_a_long_result_still_fits_its_schema() -> None:
    done = finished({"text": "x" * 500_000})
    assert done.error is None
    assert done.result.cut
    assert len(done.blob) > 500_000
    assert "left out" in done.result.value["text"]


def test_what_a_driver_works_out_is_among_needs_and_facts() -> None:
    def names(params: Any) -> dict[str, Any]:
        return {"program": "/usr/bin/ls", "programs": ("ls", "/usr/bin/ls")}

    there = Registry(lambda: 0.0)
    there.register(own(requires=("shell:{program}:execute",)), Deed(run, names=names))
    call = there.prepare("notes.count", {"path": "/a"})
    assert Need("shell", "execute", "/usr/bin/ls") in call.needs
    assert call.facts["program"] == ("ls", "/usr/bin/ls")


def test_a_parameter_cannot_pretend_to_be_what_the_driver_works_out() -> None:
    schema = {"type": "object", "properties": {"program": {"type": "string"}}}
    there = Registry(lambda: 0.0)
    spec = own(requires=("shell:{program}:execute",), input_schema=schema)
    there.register(spec, Deed(run, names=lambda params: {"program": "/usr/bin/true"}))
    call = there.prepare("notes.count", {"program": "*"})
    assert Need("shell", "execute", "/usr/bin/true") in call.needs
