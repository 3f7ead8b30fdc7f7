"""The grammar of capabilities, their canonical text, and what they cover."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.capability import ACTIONS, Capability, missing, parse, together
from agent_os.kernel.authority.constraints import ROWS
from agent_os.kernel.calls import Need

ALL_HTTP = "delete,get,head,options,patch,post,put"

# The eight examples of the first design.
GOLDEN = [
    ("file:/home/user/data/*:read", "capability://file/home/user/data/**?action=read"),
    ("http:api.example.com:*", f"capability://http/api.example.com/**?action={ALL_HTTP}"),
    ("shell:*:execute{timeout:30s}", "capability://shell?action=execute&timeout=30000ms"),
    ("agent:spawn{max:5}", "capability://agent?action=spawn&max=5"),
    ("capability://file/Users/data/*?action=read", "capability://file/Users/data/**?action=read"),
    (
        "capability://http/api.anthropic.com/*?action=request&rate=100/min",
        f"capability://http/api.anthropic.com/**?action={ALL_HTTP}&rate=100/60000ms",
    ),
    (
        "capability://shell?action=execute&timeout=30s&allowlist=ls,cat,grep",
        "capability://shell?action=execute&allowlist=cat,grep,ls&timeout=30000ms",
    ),
    ("capability://agent?action=spawn&max=3", "capability://agent?action=spawn&max=3"),
]

SAME = [
    ("file:/a:write,read", "capability://file/a?action=read,write"),
    ("file:/a/b:c:read", "capability://file/a/b:c?action=read"),
    ("capability://file/a?action=read&constraint=timeout:30s", "file:/a:read{timeout:30s}"),
    ("capability://http/h.com:8443/x?action=get", "http:h.com/x:get{port:8443}"),
    ("capability://tool/pay?action=call&arg.to=a,b", "tool:pay:call{arg.to:b|a}"),
    ("tool:pay:call{arg.amount:1.50..10}", "tool:pay:call{arg.amount:1.5..10.0}"),
    ("llm:openai/*:call{cost:2.50}", "llm:openai/**:call{cost:2.5}"),
    ("file:/a:read{max_size:1MiB}", "file:/a:read{max_size:1048576}"),
    ("file:/a:read{expiry:2027-01-01T01:00:00+01:00}", "file:/a:read{expiry:2027-01-01T00:00:00Z}"),
    ("capability://file/a%20b?action=read", "file:/a b:read"),
    ("tool:x:call{rate:2/s}", "tool:x:call{rate:2/1000ms}"),
    ("http:h.com:get{private:10.0.0.0/8|fd00::/8,port:80|443,scheme:http|https}",
     "http:h.com/**:get{scheme:https|http,port:443|80,private:fd00::/8|10.0.0.0/8}"),
]  # fmt: skip

BAD = [
    ("", 0, "kind"),
    ("file", 4, "actions are missing"),
    ("disk:/a:read", 0, "no kind 'disk'"),
    ("file:read", 5, "needs a target"),
    ("file:/a:", 8, "no action ''"),
    ("file:/a:reed", 8, "no action 'reed'"),
    ("file:/a:read,fly", 13, "no action 'fly'"),
    ("file:/a:read,read", 13, "twice"),
    ("file:/a/../b:read", 8, "'..'"),
    ("file:/a**:read", 8, "one *"),
    ("file:/a:read{colour:red}", 13, "no constraint 'colour'"),
    ("file:/a:read{max:3}", 13, "no constraint 'max'"),
    ("file:/a:read{count:1,count:2}", 21, "twice"),
    ("file:/a:read{count}", 13, "name:value"),
    ("file:/a:read{}", 13, "name:value"),
    ("file:/a:read{count:many}", 19, "whole number"),
    ("file:/a:read{count:1}x", 12, "no place"),
    ("file:/a}:read", 7, "no place"),
    ("file:/a%41:read", 7, "URI form"),
    ("file:/a:read{timeout:30}", 21, "length of time"),
    ("file:/a:read{timeout:0s}", 21, "length of time"),
    ("file:/a:read{rate:0/s}", 18, "rate"),
    ("file:/a:read{rate:5}", 18, "rate"),
    ("file:/a:read{expiry:2027-01-01T00:00:00}", 20, "time zone"),
    ("file:/a:read{expiry:soon}", 20, "not a time"),
    ("file:/a:read{depth:9}", 19, "from 0 to 8"),
    ("http:h.com:8080:get", 5, "host name"),
    ("http:h.com:get{port:0}", 20, "from 1 to 65535"),
    ("http:h.com:get{scheme:ftp}", 22, "scheme"),
    ("http:h.com:get{private:10.0.0.1/8}", 23, "network"),
    ("http:h.com:get{tunnel:yes}", 22, "true nor false"),
    ("http:h.com:get{loopback:10.0.0.1:80}", 24, "loopback"),
    ("shell:ls:execute", 6, "no target"),
    ("shell:execute{allowlist:}", 24, "name"),
    ("shell:execute{allowlist:*}", 24, "name"),
    ("tool:x:call{arg.n:9..1}", 18, "empty"),
    ("tool:x:call{arg.n:a*|b}", 18, "one * in one text"),
    ("tool:x:call{arg.:1}", 12, "no constraint"),
    ("secret:KEY:read", 11, "no action 'read'"),
    ("file:/a\0:read", 7, "control"),
    ("capability://file/a", 19, "action is required"),
    ("capability://file/a?timeout=3s", 20, "action is required"),
    ("capability://file/a?action=read&", 32, "name=value"),
    ("capability://file/a?action=read&action=write", 32, "twice"),
    ("capability://file/a?action=read&timeout=3s&constraint=timeout:3s", 54, "twice"),
    ("capability://file/a?action=read&colour=red", 32, "no constraint"),
    ("capability://file/a%2Fb?action=read", 19, "%2F"),
    ("capability://file/a%2fb?action=read", 19, "%2f"),
    ("capability://file/a%00?action=read", 19, "%00"),
    ("capability://file/a%4?action=read", 19, "hexadecimal"),
    ("capability://file/a%FF?action=read", 19, "UTF-8"),
    ("capability://file/%41/../b?action=read", 22, "'..'"),
    ("capability://file/%2E%2E/b?action=read", 18, "'..'"),
    ("capability://file//b?action=read", 18, "empty"),
    ("capability://http/h.com:80/x?action=get&port=81", 40, "twice"),
    ("capability://nothing?action=read", 13, "no kind"),
    ("file:/" + "x" * 4096 + ":read", 4096, "4096 bytes"),
]


@pytest.mark.parametrize(("text", "canonical"), GOLDEN)
def test_the_examples_of_the_first_design_are_understood(text: str, canonical: str) -> None:
    one = parse(text)
    assert one.canonical == canonical
    assert parse(canonical) == one
    assert parse(str(one)) == one


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_spellings_are_one_capability(one: str, other: str) -> None:
    assert parse(one) == parse(other)
    assert parse(one).canonical == parse(other).canonical
    assert hash(parse(one)) == hash(parse(other))


@pytest.mark.parametrize(("text", "position", "words"), BAD)
def test_what_is_not_understood_is_refused_at_its_position(text: str, position: int, words: str) -> None:
    with pytest.raises(EINVAL) as caught:
        parse(text)
    assert caught.value.detail["position"] == position
    assert words in caught.value.reason


def test_a_star_among_actions_is_written_out_when_parsed() -> None:
    for kind, actions in ACTIONS.items():
        target = {"file": "/a", "mem": "/a", "ipc": "agent/x"}.get(kind, "*")
        assert parse(f"{kind}:{target}:*").actions == actions
        assert "action=*" not in parse(f"{kind}:{target}:*").canonical


def test_an_encoded_star_is_a_star_and_nothing_else() -> None:
    one = parse("capability://file/a%2Ab?action=read")
    assert one.covers(Need("file", "read", "/a*b"))
    assert not one.covers(Need("file", "read", "/axb"))
    assert parse(one.canonical) == one
    assert one != parse("file:/a*b:read")


def test_a_length_of_time_as_expiry_counts_from_now() -> None:
    one = parse("file:/a:read{expiry:1h}", now=1_800_000_000.0)
    assert one.canonical == "capability://file/a?action=read&expiry=2027-01-15T09:00:00Z"


COVERS = [
    ("file:/data/**:read", ("file", "read", "/data/x"), {}, None),
    ("file:/data/**:read", ("file", "read", "/data"), {}, None),  # listing what it hangs from
    ("file:/data/**:write", ("file", "write", "/data"), {}, "target"),
    ("file:/data/*/**:read", ("file", "read", "/data/x"), {}, None),
    ("file:/data/**:read", ("file", "read", "/dataX"), {}, "target"),
    ("file:/data/**:read", ("mem", "read", "/data/x"), {}, "kind"),
    ("file:/data/**:read", ("file", "write", "/data/x"), {}, "actions"),
    ("file:/d/**:read{max_size:10}", ("file", "read", "/d/x"), {"size": 11}, "max_size"),
    ("http:h.com:get", ("http", "get", "h.com/"), {}, None),
    ("http:h.com:get", ("http", "get", "h.com/"), {"port": 80, "scheme": "http"}, "port"),
    ("http:h.com:get{port:80}", ("http", "get", "h.com/"), {"port": 80, "scheme": "http"}, "scheme"),
    ("http:h.com:get{port:80}", ("http", "get", "h.com/"), {}, "port"),
    ("http:h.com:get", ("http", "get", "h.com/"), {"private": "10.0.0.1"}, "private"),
    ("http:h.com:get{private:10.0.0.0/8}", ("http", "get", "h.com/"), {"private": "10.0.0.1"}, None),
    ("http:h.com:get{private:10.0.0.0/8}", ("http", "get", "h.com/"), {"private": "192.168.0.1"}, "private"),
    ("http:*:get{network:93.0.0.0/8}", ("http", "get", "93.1.2.3/"), {"address": "93.1.2.3"}, None),
    ("http:*:get{network:93.0.0.0/8}", ("http", "get", "94.1.2.3/"), {"address": "94.1.2.3"}, "network"),
    ("http:*:get{network:93.0.0.0/8}", ("http", "get", "h.com/"), {}, "network"),
    ("http:h.com:get", ("http", "get", "h.com/"), {"tunnel": True}, "tunnel"),
    ("http:h.com:get{tunnel:true}", ("http", "get", "h.com/"), {"tunnel": True}, None),
    ("http:127.0.0.1:get", ("http", "get", "127.0.0.1/"), {"loopback": "127.0.0.1:8080", "port": 8080}, "port"),
    ("http:127.0.0.1:get{port:8080}", ("http", "get", "127.0.0.1/"),
     {"loopback": "127.0.0.1:8080", "port": 8080}, "loopback"),
    ("http:127.0.0.1:get{loopback:127.0.0.1:8080}", ("http", "get", "127.0.0.1/"),
     {"loopback": "127.0.0.1:8080", "port": 8080, "scheme": "http"}, None),
    ("http:127.0.0.1:get{loopback:127.0.0.1:8080}", ("http", "get", "127.0.0.1/"),
     {"loopback": "127.0.0.1:8081", "port": 8081}, "loopback"),
    ("shell:execute", ("shell", "execute", "/usr/bin/ls"), {}, None),
    ("shell:execute{allowlist:ls}", ("shell", "execute", "/usr/bin/ls"), {"program": {"ls", "/usr/bin/ls"}}, None),
    ("shell:execute{allowlist:ls}", ("shell", "execute", "/tmp/ls"), {"program": {"/tmp/ls"}}, "allowlist"),
    ("shell:execute{allowlist:ls}", ("shell", "execute", "/usr/bin/ls"), {}, "allowlist"),
    ("agent:signal", ("agent", "signal", "x"), {}, "target"),
    ("agent:signal", ("agent", "signal", "x"), {"descendant": True}, None),
    ("agent:spawn", ("agent", "spawn", "x"), {}, None),
    ("agent:*:signal", ("agent", "signal", "x"), {}, None),
    ("llm:openai/*:call", ("llm", "call", "openai/x"), {"server_tools": ["search"]}, "server_tools"),
    ("llm:openai/*:call{server_tools:search}", ("llm", "call", "openai/x"), {"server_tools": ["search"]}, None),
    ("tool:pay:call{arg.amount:1..100}", ("tool", "call", "pay"), {"args": {"amount": 100}}, None),
    ("tool:pay:call{arg.amount:1..100}", ("tool", "call", "pay"), {"args": {"amount": 100.01}}, "arg.amount"),
    ("tool:pay:call{arg.amount:1..100}", ("tool", "call", "pay"), {"args": {"amount": "5"}}, "arg.amount"),
    ("tool:pay:call{arg.amount:0..1}", ("tool", "call", "pay"), {"args": {"amount": True}}, "arg.amount"),
    ("tool:pay:call{arg.amount:0..1}", ("tool", "call", "pay"), {"args": {"amount": float("nan")}}, "arg.amount"),
    ("tool:pay:call{arg.amount:1..100}", ("tool", "call", "pay"), {"args": {}}, "arg.amount"),
    ("tool:pay:call{arg.amount:1..100}", ("tool", "call", "pay"), {}, "arg.amount"),
    ("tool:w:call{arg.path:/data/*}", ("tool", "call", "w"), {"args": {"path": "/data/x"}}, None),
    ("tool:w:call{arg.path:/data/*}", ("tool", "call", "w"), {"args": {"path": "/data/../etc/x"}}, "arg.path"),
    ("tool:w:call{arg.to:a|b}", ("tool", "call", "w"), {"args": {"to": "b"}}, None),
    ("tool:w:call{arg.to:a|b}", ("tool", "call", "w"), {"args": {"to": ["a"]}}, "arg.to"),
    ("tool:w:call{arg.to:a|b}", ("tool", "call", "w"), {"args": {"to": None}}, "arg.to"),
    ("tool:w:call{arg.yes:true}", ("tool", "call", "w"), {"args": {"yes": True}}, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "need", "facts", "row"), COVERS)
def test_what_covers_a_call(text: str, need: tuple[str, str, str], facts: dict[str, object], row: str | None) -> None:
    assert parse(text).misfit(Need(*need), facts) == row
    assert parse(text).covers(Need(*need), facts) is (row is None)


@pytest.mark.parametrize(
    ("text", "facts", "covered"),
    [
        ("http:h.com:*", {}, True),
        ("http:*.com:*", {}, True),
        ("http:h.com:get", {}, False),
        ("http:h.com/v1/*:*", {}, False),
        ("http:h.com:*", {"tunnel": True}, False),
        ("http:h.com:*{tunnel:true}", {"tunnel": True}, True),
        ("http:other.com:*", {}, False),
    ],
)
def test_a_tunnel_needs_all_methods_and_all_paths(text: str, facts: dict[str, object], covered: bool) -> None:
    assert parse(text).covers_host("h.com", facts) is covered


def test_the_least_that_would_do_can_be_written_and_covers_it() -> None:
    for need in (Need("mem", "read", "/mem/x"), Need("file", "write", "/a{b}?%/c"), Need("tool", "call", "web.search")):
        assert parse(missing(need)).covers(need)


NARROWER = [
    ("file:/a:read", "file:/**:*", None),
    ("mem:/a:read", "file:/**:*", "kind"),
    ("file:/a:read,write", "file:/**:read", "actions"),
    ("file:/b:read", "file:/a/**:read", "target"),
    ("file:/a:read{count:5}", "file:/a:read{count:5}", None),
    ("file:/a:read{count:6}", "file:/a:read{count:5}", "count"),
    ("file:/a:read", "file:/a:read{count:5}", None),
    ("file:/a:read{expiry:2028-01-01T00:00:00Z}", "file:/a:read{expiry:2027-01-01T00:00:00Z}", "expiry"),
    ("file:/a:read{rate:5/s}", "file:/a:read{rate:10/s}", None),
    ("file:/a:read{rate:10/h}", "file:/a:read{rate:5/s}", "rate"),  # slower, but ten at once
    ("file:/a:read{rate:5/s}", "file:/a:read{rate:10/m}", "rate"),  # fewer at once, but faster
    ("file:/a:read{timeout:2s}", "file:/a:read{timeout:1s}", "timeout"),
    ("shell:execute{allowlist:ls}", "shell:execute{allowlist:ls|cat}", None),
    ("shell:execute{allowlist:ls|rm}", "shell:execute{allowlist:ls|cat}", "allowlist"),
    ("agent:spawn{max:4}", "agent:spawn{max:3}", "max"),
    ("tool:p:call{arg.n:2..3}", "tool:p:call{arg.n:1..5}", None),
    ("tool:p:call{arg.n:0..3}", "tool:p:call{arg.n:1..5}", "arg.n"),
    ("tool:p:call{arg.n:a}", "tool:p:call{arg.n:a*}", None),
    ("tool:p:call{arg.n:ab*}", "tool:p:call{arg.n:a*}", None),
    ("tool:p:call{arg.n:a*}", "tool:p:call{arg.n:ab*}", "arg.n"),
    ("tool:p:call{arg.p:/d/../x}", "tool:p:call{arg.p:/d/*}", "arg.p"),
    ("tool:p:call{arg.m:x}", "tool:p:call{arg.n:a*}", None),  # and it keeps arg.n
    ("http:h.com:get", "http:h.com:get{port:80}", None),
    ("http:h.com:get{port:80}", "http:h.com:get", "port"),
    ("http:h.com:get{port:443}", "http:h.com:get", None),
    ("http:h.com:get{scheme:http}", "http:h.com:get", "scheme"),
    ("http:h.com:get{private:10.0.0.0/8}", "http:h.com:get", "private"),
    ("http:*:get{network:10.0.0.0/8}", "http:*:get{network:10.1.0.0/16}", "network"),
    ("http:h.com:get{private:10.1.0.0/16}", "http:h.com:get{private:10.0.0.0/8}", None),
    ("http:h.com:get{tunnel:true}", "http:h.com:get", "tunnel"),
    ("http:h.com:get{tunnel:false}", "http:h.com:get{tunnel:true}", None),
    ("http:127.0.0.1:get", "http:127.0.0.1:get{loopback:127.0.0.1:80}", "loopback"),
    ("http:127.0.0.1:get{loopback:127.0.0.1:80}", "http:127.0.0.1:get", "loopback"),
    ("llm:o/m:call{server_tools:search}", "llm:o/m:call", "server_tools"),
    ("file:/a:read{depth:2}", "file:/a:read", None),
    ("file:/a:read{depth:3}", "file:/a:read", "depth"),
    ("file:/a:read", "file:/a:read{depth:0}", "depth"),
    ("agent:x:spawn", "agent:spawn", None),
    ("agent:x:signal", "agent:signal", "target"),
]


@pytest.mark.parametrize(("child", "parent", "row"), NARROWER)
def test_a_proof_names_the_first_row_that_fails(child: str, parent: str, row: str | None) -> None:
    assert parse(child).wider_than(parse(parent)) == row


def test_what_a_child_does_not_write_it_inherits() -> None:
    parent = parse("tool:*:call{count:5,arg.n:1..5,depth:2}")
    child = parse("tool:pay:call{arg.m:x}").below(parent)
    assert child == parse("tool:pay:call{count:5,arg.n:1..5,arg.m:x,depth:1}")


def test_a_ceiling_may_be_as_deep_as_what_is_under_it() -> None:
    assert parse("file:/a:read{depth:3}").under(parse("file:/**:read"))
    assert not parse("file:/a:read{depth:4}").under(parse("file:/**:read"))
    assert not parse("file:/a:write").under(parse("file:/**:read"))


SEGMENT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=6)
WORD = st.from_regex(r"[a-z][a-z0-9._/-]{0,8}", fullmatch=True)
VALUES: dict[str, st.SearchStrategy[str]] = {
    "expiry": st.datetimes().map(lambda moment: f"{moment.replace(year=2032).isoformat()}Z"),
    "count": st.integers(0, 10**15).map(str),
    "bytes": st.sampled_from(["1", "20B", "3kB", "4MiB", "999GB", "1.5KiB"]),
    "tokens": st.integers(0, 10**9).map(str),
    "cost": st.decimals(0, 1000, places=6).map(lambda amount: f"{amount:f}"),
    "max": st.integers(0, 99).map(str),
    "rate": st.sampled_from(["1/s", "100/min", "7/5m", "3/hour", "999/day", "2/100ms"]),
    "timeout": st.tuples(st.integers(1, 999), st.sampled_from(["ms", "s", "m", "h"])).map(lambda t: f"{t[0]}{t[1]}"),
    "max_size": st.integers(1, 10**9).map(str),
    "allowlist": st.lists(WORD, min_size=1, max_size=3).map(",".join),
    "port": st.lists(st.integers(1, 65535).map(str), min_size=1, max_size=3).map(",".join),
    "scheme": st.sampled_from(["http", "https", "http,https"]),
    "private": st.sampled_from(["10.0.0.0/8", "fd00::/8", "10.0.0.0/8,192.168.1.0/24"]),
    "network": st.sampled_from(["10.0.0.0/8", "fd00::/8", "10.0.0.0/8,192.168.1.0/24"]),
    "tunnel": st.sampled_from(["true", "false"]),
    "server_tools": WORD,
    "loopback": st.integers(1, 65535).map(lambda port: f"127.0.0.1:{port}"),
    "depth": st.integers(0, 8).map(str),
}  # fmt: skip
ARGUMENT = st.one_of(
    st.tuples(st.decimals(-99, 0, places=2), st.decimals(0, 99, places=3)).map(lambda t: f"{t[0]}..{t[1]}"),
    WORD.map(lambda word: f"{word}*"),
    st.lists(SEGMENT.map(lambda text: "".join(f"%{byte:02X}" for byte in text.replace("/", "_").encode()))).map(
        lambda words: ",".join(words or ["x"])
    ),
)


@st.composite
def uris(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(sorted(ACTIONS)))
    actions = draw(st.lists(st.sampled_from(sorted(ACTIONS[kind])), min_size=1, unique=True))
    parts = draw(st.lists(SEGMENT.filter(lambda part: part not in (".", "..") and part.isprintable()), max_size=4))
    encoded = ["".join(f"%{byte:02X}" for byte in part.replace("/", "_").encode()) for part in parts]
    encoded += draw(st.sampled_from([[], ["*"], ["**"], ["a*b"], ["*", "x"]]))
    path = "/".join(encoded)
    target = {"shell": "", "http": f"h.example.com/{path}", "ipc": f"agent/{path or 'x'}"}.get(kind, path or "x")
    names = draw(st.lists(st.sampled_from([name for name, row in ROWS.items() if kind in row.kinds]), unique=True))
    params = [f"action={','.join(actions)}", *(f"{name}={draw(VALUES[name])}" for name in names)]
    if kind == "tool":
        params += [f"arg.{name}={draw(ARGUMENT)}" for name in draw(st.lists(st.sampled_from("abc"), unique=True))]
    return f"capability://{kind}{'/' if target else ''}{target}?{'&'.join(params)}"


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(uris())
def test_the_canonical_text_means_the_same_capability(text: str) -> None:
    try:
        one = parse(text)
    except EINVAL as error:  # a name that is not in NFC, at most
        assert "NFC" in error.reason or "segment" in error.reason  # noqa: PT017
        return
    assert parse(one.canonical) == one
    assert parse(one.canonical).canonical == one.canonical
    assert parse(str(one)) == one


@given(st.text(max_size=60))
def test_any_text_is_a_capability_or_refused_with_a_position(text: str) -> None:
    for start in ("", "file:", "tool:x:call{", "capability://http/"):
        try:
            assert isinstance(parse(start + text), Capability)
        except EINVAL as error:
            assert 0 <= int(str(error.detail["position"])) <= len(start + text)  # noqa: PT017


def test_costs_are_exact() -> None:
    assert (
        parse("llm:a/b:call{cost:0.1}").constraints["cost"] * 3 == parse("llm:a/b:call{cost:0.3}").constraints["cost"]
    )
    assert Decimal(parse("tool:x:call{arg.n:0.1..0.3}").constraints["arg.n"].range[1]) == Decimal("0.3")


def test_needs_of_the_same_target_are_written_as_one() -> None:
    several = [Need("http", method, "a.test/**") for method in sorted(ACTIONS["http"])]
    assert [missing(one) for one in together(several)] == ["http:a.test/**:request"]
    assert parse(missing(together(several)[0])).actions == ACTIONS["http"]
    mixed = [Need("file", "write", "/work/x"), Need("file", "read", "/work/y"), Need("file", "read", "/work/x")]
    assert [missing(one) for one in together(mixed)] == ["file:/work/x:read,write", "file:/work/y:read"]
