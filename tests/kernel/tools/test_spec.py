"""What a tool may declare, and the authority that a call of it comes to: no parameter makes it more than one thing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent_os.abi.errors import EINVAL, ETYPE, AgentOSError
from agent_os.abi.tools import ToolLabels, ToolSpec
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.calls import Need
from agent_os.kernel.tools.spec import Template, checked, digest, source, wanted, web

GOOD = ToolSpec(name="doc.read", description="Read a document.", requires=("file:{path}:read",))


def test_a_good_spec_gets_a_digest_that_any_change_changes() -> None:
    first = checked(GOOD)
    assert len(first.digest) == 64
    assert checked(first).digest == first.digest
    others = [
        checked(GOOD, b"another implementation"),
        checked(replace(GOOD, description="Read a document!")),
        checked(replace(GOOD, input_schema={"type": "object", "properties": {"path": {}}})),
        checked(replace(GOOD, effect="pure")),
    ]
    assert len({one.digest for one in (first, *others)}) == 5
    assert digest(replace(GOOD, digest="lie")) == first.digest


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "read"}, "name"),
        ({"name": "Doc.read"}, "name"),
        ({"name": "doc..read"}, "name"),
        ({"name": "doc.read\n"}, "name"),
        ({"name": f"doc.{'x' * 200}"}, "name"),
        ({"description": ""}, "description"),
        ({"description": "x" * 1025}, "description"),
        ({"requires": ()}, "requires"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 3601}, "timeout_s"),
        ({"output_limit": 1}, "output_limit"),
        ({"concurrency": 0}, "concurrency"),
        ({"cost_microusd": -1}, "cost_microusd"),
        ({"tags": ("Not a tag",)}, "tags"),
        ({"sandbox": "program"}, "sandbox"),
    ],
)
def test_what_is_wrong_with_a_spec_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(EINVAL) as caught:
        checked(replace(GOOD, **change))
    assert caught.value.detail["field"] == field


@pytest.mark.parametrize(
    "text",
    [
        *("file", "file:read", "nothing:/x:read", "file:/x:fly", "file:{path:read", "file:{pa th}:read", "file:}:read"),
        *("file:/data/**:read", "tool:*:call", "http:*:get", "file::read", ":x:read", "file:{{path}}:read"),
    ],
)
def test_a_template_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(EINVAL):
        Template(text)


def needs(template: str, **params: Any) -> list[Need]:
    return Template(template, "a.b").expand(params).needs


def test_templates_come_to_needs() -> None:
    assert needs("file:{path}:read", path="/data//a/./b") == [Need("file", "read", "/data/a/b")]
    assert needs("file:/out/{name}:write", name="x.txt") == [Need("file", "write", "/out/x.txt")]
    assert needs("http:{url}:{method}", url="https://EXAMPLE.com/a?q=1", method="GET") == [
        Need("http", "get", "example.com/a")
    ]
    assert needs("tool:call") == [Need("tool", "call", "a.b")]
    assert needs("shell:{program}:execute", program="*") == [Need("shell", "execute", "*")]
    assert needs("agent:{name}:signal", name="worker") == [Need("agent", "signal", "worker")]


@pytest.mark.parametrize(
    ("template", "params"),
    [
        ("file:{path}:read", {"path": "/data/../etc/passwd"}),
        ("file:{path}:read", {"path": "relative"}),
        ("file:{path}:read", {"path": "/a\0b"}),
        ("file:/out/{name}:write", {"name": "../../etc/cron.d/x"}),
        ("file:{path}:read", {"path": ["/a"]}),
        ("file:{path}:read", {}),
        ("agent:{name}:signal", {"name": "*"}),
        ("agent:{name}:signal", {"name": ""}),
        ("agent:{name}:signal", {"name": "a\nb"}),
        ("secret:{name}:use", {"name": "A*"}),
        ("file:{path}:{what}", {"path": "/a", "what": "read,write"}),
        ("file:{path}:{what}", {"path": "/a", "what": "read:/b:write"}),
        ("http:{url}:get", {"url": "https://user:pw@example.com/"}),
        ("http:{url}:get", {"url": "https://example.com\\@evil.com/"}),
        ("http:{url}:get", {"url": "https://example.com/a/../b"}),
        ("http:{url}:get", {"url": "https://example.com/%2e%2e/b"}),
        ("http:{url}:get", {"url": "file:///etc/passwd"}),
        ("http:{url}:get", {"url": "https://0x7f.1/"}),
        ("http:{url}:get", {"url": "https://example.com:99999/"}),
        ("http:{url}:get", {"url": "https://exa mple.com/"}),
        ("http:{url}:get", {"url": "https:///nohost"}),
        ("http:{url}:get", {"url": "javascript:alert(1)"}),
    ],
)
def test_a_parameter_that_would_be_more_or_something_else_is_refused(template: str, params: dict[str, Any]) -> None:
    with pytest.raises((EINVAL, ETYPE)):
        Template(template, "a.b").expand(params)


def test_a_star_in_a_file_name_is_a_letter_of_it() -> None:
    [need] = needs("file:{path}:read", path="/data/**")
    assert need == Need("file", "read", "/data/**")
    assert not parse("file:/data/a:read").covers(need)
    assert parse("file:/data/**:read").covers(need)


def test_a_method_that_nobody_knows_needs_all_of_them() -> None:
    assert {need.action for need in needs("http:{url}:{method}", url="https://a.de/", method="BREW")} >= {
        "post",
        "delete",
    }


def test_facts_say_scheme_and_port() -> None:
    assert web("http://example.com:8080/x")[1] == {"scheme": "http", "port": 8080}
    assert web("https://[2606:4700::1]/x") == (
        "[2606:4700::1]/x",
        {"scheme": "https", "port": 443, "address": "2606:4700::1"},
    )


def test_a_call_needs_the_tool_and_what_its_templates_name_each_once() -> None:
    spec = replace(GOOD, requires=("file:{path}:read", "file:{path}:write", "tool:call", "file:{path}:read"))
    assert wanted(spec, {"path": "/a"}).needs == [
        Need("tool", "call", "doc.read"),
        Need("file", "read", "/a"),
        Need("file", "write", "/a"),
    ]


def test_whoever_knows_links_says_what_a_path_really_is() -> None:
    came = wanted(GOOD, {"path": "/work/link"}, resolve=lambda kind, path: "/work/secret")
    assert came.needs[1] == Need("file", "read", "/work/secret")


def test_where_output_comes_from() -> None:
    assert source(GOOD, {}) == "tool:doc.read"
    named = replace(GOOD, labels=ToolLabels(source="http:{url}"))
    assert source(named, {"url": "https://Example.com/long/path?q"}) == "http:example.com"


@given(st.text(max_size=60), st.text(max_size=60))
def test_whatever_is_put_in_the_kind_and_action_stay(path: str, name: str) -> None:
    for template, kind, action in (("file:{path}:read", "file", "read"), ("secret:{name}:use", "secret", "use")):
        try:
            came = Template(template).expand({"path": path, "name": name})
        except AgentOSError:
            continue
        assert [(need.kind, need.action) for need in came.needs] == [(kind, action)]
        if kind == "file":
            assert came.needs[0].target.startswith("/")
            assert ".." not in came.needs[0].target.split("/")
        else:
            assert "*" not in came.needs[0].target
