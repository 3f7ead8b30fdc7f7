"""What a person names for a run becomes a capability, and a capability what the table of addresses asks for."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL, EPERM
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.handles import Holdings
from agent_os.kernel.egress.addresses import Address, decide, parse_grant
from agent_os.kernel.egress.asking import Wanted, covering
from agent_os.kernel.egress.naming import capability_of, granted, grants_of, named, require_endpoint
from agent_os.kernel.egress.routes import Route

ALL = "delete,get,head,options,patch,post,put"
NET = {
    "example.com": f"http:example.com/**:{ALL}{{port:443|80,scheme:http|https}}",
    "*.example.com": f"http:*.example.com/**:{ALL}{{port:443|80,scheme:http|https}}",
    "example.com:8443": f"http:example.com/**:{ALL}{{port:8443,scheme:http|https,tunnel:true}}",
    "10.1.2.3": f"http:10.1.2.3/**:{ALL}{{port:443|80,private:10.1.2.3/32,scheme:http|https}}",
    "10.1.2.0/24": f"http:*/**:{ALL}{{network:10.1.2.0/24,port:443|80,private:10.1.2.0/24,scheme:http|https}}",
    "93.184.216.0/24:80": f"http:*/**:{ALL}{{network:93.184.216.0/24,port:80,scheme:http|https,tunnel:true}}",
    "127.0.0.1:8080": f"http:127.0.0.1/**:{ALL}{{loopback:127.0.0.1:8080,tunnel:true}}",
    "localhost:8080": f"http:127.0.0.1/**:{ALL}{{loopback:127.0.0.1:8080,tunnel:true}}",
}


def nowhere(address: Address) -> bool:
    return False


def held(*net: str, caps: tuple[str, ...] = ()) -> Holdings:
    holdings = Holdings("default/a")
    for one in [*(capability_of(parse_grant(text)) for text in net), *map(parse, caps)]:
        holdings.grant(one, "operator")
    return holdings


def covers(holdings: Holdings, wanted: Wanted, *addresses: str) -> bool:
    try:
        return bool(covering(holdings, wanted, map(ip_address, addresses), nowhere))
    except EPERM:
        return False


@pytest.mark.parametrize(("text", "capability"), NET.items(), ids=NET)
def test_what_is_named_is_a_capability_that_can_be_read_again(text: str, capability: str) -> None:
    made = capability_of(parse_grant(text))
    assert parse(capability) == made, str(made)
    assert parse(made.canonical) == made


@pytest.mark.parametrize("text", NET)
@pytest.mark.parametrize("host", ["example.com", "a.example.com", "other.test", "10.1.2.3", "10.1.9.9", "93.184.216.7"])
@pytest.mark.parametrize("port", [80, 443, 8443])
def test_as_a_capability_it_names_the_same_hosts(text: str, host: str, port: int) -> None:
    grant = parse_grant(text)
    place = ip_address(host) if host[0].isdigit() else host
    before = decide([grant], place, port, nowhere)
    after = decide(grants_of(capability_of(grant)), place, port, nowhere)
    assert after.allowed == before.allowed
    for wanted in (Wanted(place, port), Wanted(place, port, "post", "/x"), Wanted(place, port, "propfind")):
        assert covers(held(text), wanted) == before.allowed


def test_a_capability_for_any_host_names_public_ones_only() -> None:
    grants = grants_of(parse("http:*:get{port:80,scheme:http}"))
    assert decide(grants, "any.test", 80, nowhere).allowed
    assert decide(grants, ip_address("93.184.216.34"), 80, nowhere).allowed
    assert not decide(grants, ip_address("10.0.0.1"), 80, nowhere).allowed
    assert not decide(grants, ip_address("169.254.169.254"), 80, nowhere).allowed


def test_a_name_that_leads_to_a_private_address_needs_both() -> None:
    wanted = Wanted("intra.test", 443)
    assert not covers(held("intra.test"), wanted, "10.1.2.3")
    assert not covers(held("10.1.2.0/24"), wanted, "10.1.2.3")
    assert covers(held("intra.test", "10.1.2.0/24"), wanted, "10.1.2.3")
    assert not covers(held("intra.test", "10.1.2.0/24"), wanted, "10.1.2.3", "10.9.9.9")
    own = "http:intra.test:request{private:10.1.0.0/16}"
    assert covers(held(caps=(own,)), wanted, "10.1.2.3")
    assert not covers(held("other.test", caps=(own,)), Wanted("other.test", 443), "10.1.2.3")
    assert covers(held(caps=(own, "http:intra.test:request")), wanted, "10.1.2.3")


def test_a_tunnel_needs_all_methods_and_all_paths_of_one_capability() -> None:
    tunnel = Wanted("site.test", 443)
    assert covers(held(caps=("http:site.test:request",)), tunnel)
    for less in ("http:site.test:get,post", "http:site.test/api:request", "http:site.test/%2A*:request"):
        text = less if "%" not in less else "capability://http/site.test/%2A*?action=request"
        assert not covers(held(caps=(text,)), tunnel), text
    assert not covers(held(caps=("http:site.test:get", "http:site.test:post,put,patch,delete,head,options")), tunnel)


def test_a_host_with_a_door_is_reached_directly_by_an_exact_endpoint_only() -> None:
    for wanted in (Wanted("api.test", 443, routed=True), Wanted("api.test", 80, "get", routed=True)):
        assert not covers(held("api.test"), wanted)
    assert covers(held("api.test:443"), Wanted("api.test", 443, routed=True))
    assert covers(held(caps=("http:api.test:request{tunnel:true}",)), Wanted("api.test", 443, routed=True))


def test_what_a_person_named_by_itself_counts_as_asked() -> None:
    net = [parse_grant(text) for text in ("a.test", "*.b.test", "10.0.0.0/8", "10.1.2.3", "127.0.0.1:80")]
    routes = [Route("key", "api.test", 443)]
    assert named(net, routes) == {"a.test", "10.1.2.3", "127.0.0.1", "api.test"}
    assert str(granted(net, routes)[-1]) == "secret:key:use"


names = st.sampled_from(["a.test", "*.a.test", "b.a.test", "10.0.0.0/8", "10.1.2.3", "93.184.216.0/24", "127.0.0.1"])


@given(st.lists(st.tuples(names, st.sampled_from(["", ":80", ":8443"])), max_size=4), names, st.integers(79, 81))
def test_no_mix_of_named_hosts_covers_what_the_table_would_refuse(
    net: list[tuple[str, str]], host: str, port: int
) -> None:
    texts = [name + (text or ":80" if name.startswith("127") else text) for name, text in net]
    texts = [text for text in texts if "/" not in text or ":" not in text]
    place = ip_address(host) if host[0].isdigit() and "/" not in host else host.removeprefix("*.").partition("/")[0]
    place = ip_address(place) if isinstance(place, str) and place[0].isdigit() else place
    grants = [parse_grant(text) for text in texts]
    allowed = decide(grants, place, port, nowhere).allowed
    assert covers(held(*texts), Wanted(place, port)) == allowed


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("http:127.0.0.1:get", "--net 127.0.0.1:PORT"),
        ("http:127.0.0.9/x:post{port:8080}", "--net 127.0.0.9:8080"),
        ("http:[::1]:get", "--net [::1]:PORT"),
        ("http:localhost:get", "--net localhost:PORT"),
    ],
)
def test_what_names_the_host_itself_without_a_port_covers_nothing_and_says_what_would(text: str, flag: str) -> None:
    loopback = Wanted(ip_address("127.0.0.1"), 443, "get")
    assert not covers(held(caps=(text,)), loopback)
    with pytest.raises(EINVAL, match="port by port") as caught:
        require_endpoint(parse(text))
    assert caught.value.hint == f"agentctl run {flag}"


@pytest.mark.parametrize(
    "text", ["http:127.0.0.1:get{loopback:127.0.0.1:80}", "http:10.0.0.1:get", "http:*:get", "tool:x:call"]
)
def test_what_may_cover_something_is_left_as_it_is(text: str) -> None:
    assert require_endpoint(parse(text)) == parse(text)
