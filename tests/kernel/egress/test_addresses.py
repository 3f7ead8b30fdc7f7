"""The table of addresses, the canonical host and the grants, as tables. Nothing here touches a network."""

from ipaddress import ip_address
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.egress.addresses import (
    Address,
    Kind,
    canonical_host,
    decide,
    decide_addresses,
    decide_routed,
    is_own_address,
    kind_of,
    parse_grant,
    printable,
    unwrap,
)


def nobody(_: Address) -> bool:
    return False


def own_is(*texts: str):
    return lambda address: str(address) in texts


def judge(target: str, port: int, *grants: str, own=nobody):
    return decide([parse_grant(text) for text in grants], canonical_host(target), port, own)


def resolved(addresses: list[str], port: int, *grants: str, own=nobody):
    parsed = [ip_address(text) for text in addresses]
    return decide_addresses([parse_grant(text) for text in grants], f"name:{port}", parsed, port, own=own)


TABLE = [
    *[(text, Kind.UNSPECIFIED) for text in ("0.0.0.0", "0.1.2.3", "0.255.255.255", "::")],
    *[(text, Kind.OWN) for text in ("127.0.0.1", "127.1.2.3", "127.255.255.255", "::1")],
    *[(text, Kind.PRIVATE) for text in ("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255")],
    *[(text, Kind.PRIVATE) for text in ("192.168.0.1", "100.64.0.1", "100.127.255.255", "fc00::1", "fdff::1")],
    *[(text, Kind.LINK_LOCAL) for text in ("169.254.0.1", "169.254.169.254", "169.254.170.2", "fe80::1", "febf::1")],
    *[(text, Kind.LINK_LOCAL) for text in ("100.100.100.200", "fd00:ec2::254", "fd00:ec2::23", "168.63.129.16")],
    *[(text, Kind.LINK_LOCAL) for text in ("fd20:ce::254",)],
    *[(text, Kind.RESERVED) for text in ("224.0.0.1", "239.255.255.255", "255.255.255.255", "240.0.0.1", "ff02::1")],
    *[(text, Kind.RESERVED) for text in ("192.0.0.192", "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1")],
    *[(text, Kind.RESERVED) for text in ("192.88.99.1", "2001:db8::1", "3fff::1", "2001:2::1", "2001:10::1")],
    *[
        (text, Kind.RESERVED)
        for text in ("100::1", "fec0::1", "4000::1", "::7f00:1", "64:ff9b:1::1", "::ffff:0:7f00:1")
    ],
    *[(text, Kind.PUBLIC) for text in ("1.1.1.1", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0")],
    *[(text, Kind.PUBLIC) for text in ("100.63.255.255", "100.128.0.0", "169.253.0.1", "223.255.255.255")],
    *[(text, Kind.PUBLIC) for text in ("128.0.0.1", "2606:4700::1111", "2a00::1", "2001:4860::8888")],
]


@pytest.mark.parametrize(("text", "kind"), TABLE)
def test_every_row_of_the_table_holds_its_addresses(text: str, kind: Kind) -> None:
    assert kind_of(ip_address(text), nobody) is kind


def test_an_address_of_this_machine_is_this_machine_whatever_range_it_is_in() -> None:
    for text in ("10.1.2.3", "34.1.2.3", "2606:4700::5", "fd12::1"):
        assert kind_of(ip_address(text), nobody) is not Kind.OWN
        assert kind_of(ip_address(text), own_is(text)) is Kind.OWN


def test_the_machine_knows_its_own_addresses() -> None:
    assert is_own_address(ip_address("127.0.0.1"))
    assert is_own_address(ip_address("127.9.9.9"))
    assert not is_own_address(ip_address("1.1.1.1"))
    assert not is_own_address(ip_address("2606:4700::1111"))
    with open("/proc/net/fib_trie") as trie:  # the kernel's own list, read another way
        lines = [line.strip() for line in trie]
    listed = {before[4:] for before, line in pairwise(lines) if line == "/32 host LOCAL"}
    assert listed
    assert all(is_own_address(ip_address(text)) for text in listed)


WRAPPED = [
    ("::ffff:127.0.0.1", "127.0.0.1"),
    ("::ffff:a9fe:a9fe", "169.254.169.254"),
    ("64:ff9b::169.254.169.254", "169.254.169.254"),
    ("64:ff9b::10.0.0.1", "10.0.0.1"),
    ("2002:7f00:1::", "127.0.0.1"),
    ("2002:a9fe:a9fe::1", "169.254.169.254"),
    ("2001:0:102:304::5601:5601", "169.254.169.254"),  # Teredo: the client's address, inverted
    ("2001:0:a00:1::fefe:fefe", "10.0.0.1"),  # Teredo: the server's address
    ("2606:4700::5efe:10.0.0.1", "10.0.0.1"),  # ISATAP
    ("2606:4700::200:5efe:127.0.0.1", "127.0.0.1"),
]


@pytest.mark.parametrize(("wrapped", "inner"), WRAPPED)
def test_an_address_inside_another_is_found_and_refused(wrapped: str, inner: str) -> None:
    assert ip_address(inner) in unwrap(ip_address(wrapped))
    assert resolved([wrapped], 443).code == "net.address"


@pytest.mark.parametrize("wrapped", ["::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1", "2606:4700::1"])
def test_a_wrapped_public_address_passes(wrapped: str) -> None:
    assert resolved([wrapped], 443).allowed


CANONICAL = [
    ("Example.COM", "example.com"),
    ("example.com.", "example.com"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("a-b.c0", "a-b.c0"),
    ("localhost", "localhost"),
    ("1.2.3.4", "1.2.3.4"),
    ("1.2.3.4.", "1.2.3.4"),
    ("[::1]", "::1"),
    ("[::FFFF:10.0.0.1]", "10.0.0.1"),
    ("3com.example", "3com.example"),
    ("0x7f.example", "0x7f.example"),
]


@pytest.mark.parametrize(("text", "host"), CANONICAL)
def test_a_host_has_one_spelling(text: str, host: str) -> None:
    assert str(canonical_host(text)) == host


NO_HOST = [
    *("2130706433", "0x7f000001", "017700000001", "127.1", "127.0.1", "0177.0.0.1", "0x7f.0.0.1", "127.0.0.0x1"),
    *(
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "1.2.3.4.5",
        "256.1.1.1",
        "01.2.3.4",
        "1.2.3.4..",
    ),
    *("", ".", "..", "example.com..", ".example.com", "a..b", "-a.com", "a-.com", "a_b.com", "a b.com", "a\0b.com"),
    *("user@example.com", "example.com:80", "exämple.com", "a/b", "a\\b", "a%2eb", "a\nb", "*.example.com", "::1"),
    *(
        "[::1",
        "[fe80::1%eth0]",
        "[example.com]",
        "[1.2.3.4]",
        "[]",
        "x" * 64 + ".com",
        "a." * 127 + "com",
        "example.com\n",
    ),
    *("１２７.0.0.1", "example。com", "ⓔxample.com", "0x"),  # what normalising resolvers would turn into something else
]


@pytest.mark.parametrize("text", NO_HOST)
def test_any_other_spelling_of_a_host_is_refused(text: str) -> None:
    with pytest.raises(EINVAL) as caught:
        canonical_host(text)
    assert caught.value.code == "net.malformed"
    assert caught.value.reason.isprintable()


GRANTS = [
    ("example.com", "example.com"),
    (" Example.com. ", "example.com"),
    ("*.example.com", "*.example.com"),
    ("example.com:8443", "example.com:8443"),
    ("10.1.2.0/24", "10.1.2.0/24"),
    ("10.1.2.0/24:8443", "10.1.2.0/24:8443"),
    ("10.1.2.3", "10.1.2.3"),
    ("10.1.2.3:22", "10.1.2.3:22"),
    ("fd12::/64", "fd12::/64"),
    ("[fd12::/64]:8443", "[fd12::/64]:8443"),
    ("[fd12::1]", "fd12::1"),
    ("fd12::1", "fd12::1"),
    ("[fd12::1]:22", "[fd12::1]:22"),
    ("127.0.0.1:8080", "127.0.0.1:8080"),
    ("localhost:8080", "127.0.0.1:8080"),
    ("[::1]:8080", "[::1]:8080"),
]


@pytest.mark.parametrize(("text", "canonical"), GRANTS)
def test_a_grant_is_read_and_written_back(text: str, canonical: str) -> None:
    grant = parse_grant(text)
    assert str(grant) == canonical
    assert parse_grant(str(grant)) == grant


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "127.0.0.5:1"])
def test_a_loopback_grant_can_be_told_apart(text: str) -> None:
    assert parse_grant(text).is_loopback
    assert not parse_grant("10.0.0.1:8080").is_loopback


MALFORMED = [
    ("", "empty"),
    ("https://api.example.com/v1?x", "--net api.example.com"),
    ("http://user:pw@10.0.0.1:8080/", "--net 10.0.0.1:8080"),
    ("api.example.com/v1", "--net api.example.com"),
    ("user@example.com", "--net example.com"),
    ("example.com:", "port"),
    ("example.com:0", "port"),
    ("example.com:65536", "port"),
    ("example.com:https", "port"),
    ("*", "'*.example.com'"),
    ("ex*mple.com", "'*.example.com'"),
    ("*.*.com", "'*.example.com'"),
    ("*.1.2.3.4", "10.1.2.3"),
    ("bücher.example", "--net xn--bcher-kva.example"),
    ("a b", "letters"),
    ("10.1.2.3/24", "--net 10.1.2.0/24"),
    ("10.1.2.0/33", "10.1.2.0/24"),
    ("127.1:80", "10.1.2.3"),
    ("2130706433:80", "10.1.2.3"),
    ("[fd12::1", "bracket"),
    ("[fd12::1]443", "bracket"),
    ("127.0.0.1", "--net 127.0.0.1:8080"),
    ("localhost", "--net 127.0.0.1:8080"),
    ("::1", "--net [::1]:8080"),
    ("127.0.0.0/8:80", "--net 127.0.0.1:8080"),
    ("0.0.0.0:80", "never"),
    ("169.254.169.254", "never"),
    ("100.100.100.200:80", "never"),
    ("fd00:ec2::254", "never"),
    ("fe80::/10", "never"),
    ("224.0.0.0/4", "never"),
    ("203.0.113.7", "never"),
    ("::ffff:10.0.0.1", "--net 10.0.0.1"),
    ("64:ff9b::10.0.0.1", "--net 10.0.0.1"),
]


@pytest.mark.parametrize(("text", "says"), MALFORMED)
def test_a_malformed_grant_is_refused_with_a_right_form(text: str, says: str) -> None:
    with pytest.raises(EINVAL) as caught:
        parse_grant(text)
    assert caught.value.code == "net.malformed"
    assert says in f"{caught.value.reason} {caught.value.hint}"
    assert caught.value.hint


# target, port, grants, code, the flag that would allow it
GATE = [
    ("example.com", 443, ["example.com"], "net.allow", None),
    ("EXAMPLE.com.", 80, ["example.com"], "net.allow", None),
    ("example.com", 443, [], "net.host", "--net example.com"),
    ("example.com", 8443, [], "net.host", "--net example.com:8443"),
    ("example.com", 22, ["example.com"], "net.port", "--net example.com:22"),
    ("example.com", 25, ["example.com", "*.example.com"], "net.port", "--net example.com:25"),
    ("example.com", 443, ["example.com:8443"], "net.port", "--net example.com:443"),
    ("example.com", 8443, ["example.com", "example.com:8443"], "net.allow", None),
    ("a.example.com", 443, ["example.com"], "net.host", "--net a.example.com"),
    ("a.b.example.com", 443, ["*.example.com"], "net.allow", None),
    ("example.com", 443, ["*.example.com"], "net.host", "--net example.com"),
    ("badexample.com", 443, ["*.example.com", "example.com"], "net.host", "--net badexample.com"),
    ("example.com.evil.org", 443, ["*.example.com", "example.com"], "net.host", "--net example.com.evil.org"),
    ("1.1.1.1", 443, ["example.com"], "net.host", "--net 1.1.1.1"),
    ("1.1.1.1", 443, ["1.1.1.1"], "net.allow", None),
    ("1.1.1.1", 443, ["1.1.1.0/24"], "net.allow", None),
    ("1.1.1.1", 22, ["1.1.1.0/24"], "net.host", "--net 1.1.1.1:22"),
    ("10.1.2.3", 443, [], "net.address", "--net 10.1.2.3"),
    ("10.1.2.3", 443, ["10.1.2.0/24"], "net.allow", None),
    ("10.1.2.3", 8443, ["10.1.2.0/24:8443"], "net.allow", None),
    ("10.1.2.3", 443, ["10.1.2.0/24:8443"], "net.address", "--net 10.1.2.3"),
    ("10.1.3.3", 443, ["10.1.2.0/24"], "net.address", "--net 10.1.3.3"),
    ("10.1.2.3", 443, ["0.0.0.0/0"], "net.address", "--net 10.1.2.3"),  # a wide network does not *name* a private one
    ("1.1.1.1", 443, ["0.0.0.0/0"], "net.allow", None),
    ("[fd12::1]", 443, ["fd12::/64"], "net.allow", None),
    ("[fd12::1]", 8443, [], "net.address", "--net [fd12::1]:8443"),
    ("[::ffff:10.1.2.3]", 443, ["10.1.2.0/24"], "net.allow", None),
    ("169.254.169.254", 80, ["0.0.0.0/0"], "net.address", None),
    ("[::ffff:169.254.169.254]", 80, ["0.0.0.0/0"], "net.address", None),
    ("100.100.100.200", 80, ["100.64.0.0/10"], "net.address", None),
    ("100.100.100.201", 80, ["100.64.0.0/10"], "net.allow", None),
    ("[fd00:ec2::254]", 80, ["fc00::/7"], "net.address", None),
    ("[fd00:ec3::254]", 80, ["fc00::/7"], "net.allow", None),
    ("224.0.0.1", 80, ["0.0.0.0/0"], "net.address", None),
    ("0.0.0.0", 8080, ["127.0.0.1:8080", "0.0.0.0/0"], "net.address", None),
    ("127.0.0.1", 8080, [], "net.address", "--net 127.0.0.1:8080"),
    ("127.0.0.1", 80, ["0.0.0.0/0"], "net.address", "--net 127.0.0.1:80"),
    ("127.0.0.1", 8080, ["127.0.0.1:8080"], "net.allow", None),
    ("127.0.0.1", 8081, ["127.0.0.1:8080"], "net.address", "--net 127.0.0.1:8081"),
    ("127.0.0.2", 8080, ["127.0.0.1:8080"], "net.address", "--net 127.0.0.2:8080"),
    ("[::1]", 8080, ["127.0.0.1:8080"], "net.address", "--net [::1]:8080"),
    ("[::1]", 8080, ["[::1]:8080"], "net.allow", None),
    ("localhost", 8080, [], "net.address", "--net 127.0.0.1:8080"),
    ("localhost", 8080, ["127.0.0.1:8080"], "net.allow", None),
    ("localhost", 8080, ["[::1]:8080"], "net.allow", None),
    ("127.0.0.1", 8080, ["localhost:8080"], "net.allow", None),
]


@pytest.mark.parametrize(("target", "port", "grants", "code", "flag"), GATE)
def test_the_gate_decides_and_names_the_flag(
    target: str, port: int, grants: list[str], code: str, flag: str | None
) -> None:
    decision = judge(target, port, *grants)
    assert (decision.code, decision.allow_flag) == (code, flag)
    assert decision.allowed == (code == "net.allow")
    if flag is not None:  # the flag keeps its promise
        assert judge(target, port, *grants, flag.removeprefix("--net ")).allowed


# a host with a route, port, grants, whether they open it
ROUTED = [
    ("example.com", 443, ["example.com:443"], True),
    ("example.com", 443, ["example.com"], False),
    ("example.com", 443, ["*.com:443"], False),
    ("a.example.com", 443, ["*.example.com:443", "example.com:443"], False),
    ("example.com", 80, ["example.com:443"], False),
    ("1.1.1.1", 443, ["1.1.1.1:443"], True),
    ("1.1.1.1", 443, ["1.1.1.0/24:443", "1.1.1.1"], False),
    ("127.0.0.1", 8080, ["127.0.0.1:8080"], True),
    ("localhost", 8080, ["localhost:8080"], True),
    ("localhost", 8080, ["127.0.0.1:8081"], False),
]


@pytest.mark.parametrize(("target", "port", "grants", "opens"), ROUTED)
def test_a_host_with_a_route_needs_its_very_endpoint_granted(
    target: str, port: int, grants: list[str], opens: bool
) -> None:
    host = canonical_host(target)
    decision = decide_routed([parse_grant(text) for text in grants], host, port, nobody)
    assert decision.code == ("net.allow" if opens else "net.route")
    if decision.allow_flag is not None:  # the flag keeps its promise
        more = [*grants, decision.allow_flag.removeprefix("--net ")]
        assert decide_routed([parse_grant(text) for text in more], host, port, nobody).allowed


@pytest.mark.parametrize("grant", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080"])
def test_localhost_is_the_granted_endpoint_and_never_resolved(grant: str) -> None:
    expected = "::1" if "::" in grant else "127.0.0.1"
    assert [str(address) for address in judge("localhost", 8080, grant).addresses] == [expected]


def test_one_forbidden_address_refuses_all() -> None:
    assert resolved(["1.1.1.1", "2606:4700::1"], 443).allowed
    refused = resolved(["1.1.1.1", "10.0.0.1", "10.0.0.2"], 443)
    assert (refused.code, refused.allow_flag) == ("net.address", "--net 10.0.0.1 --net 10.0.0.2")
    assert resolved(["1.1.1.1", "10.0.0.1", "10.0.0.2"], 443, "10.0.0.0/8").allowed
    never = resolved(["1.1.1.1", "10.0.0.1", "169.254.169.254"], 443, "10.0.0.0/8")
    assert (never.code, never.allow_flag) == ("net.address", None)


def test_a_name_and_a_network_do_not_add_up_to_a_port_neither_opens() -> None:
    assert not resolved(["10.0.0.1"], 22, "name:22", "10.0.0.0/8").allowed
    assert resolved(["10.0.0.1"], 22, "name:22", "10.0.0.0/8:22").allowed


def test_this_machine_inside_a_granted_network_needs_its_own_endpoint() -> None:
    mine = own_is("10.0.0.5", "34.1.1.1")
    assert resolved(["10.0.0.6"], 443, "10.0.0.0/8", own=mine).allowed
    refused = resolved(["10.0.0.5"], 443, "10.0.0.0/8", own=mine)
    assert (refused.code, refused.allow_flag) == ("net.address", "--net 10.0.0.5:443")
    assert resolved(["10.0.0.5"], 443, "10.0.0.5:443", own=mine).allowed
    assert resolved(["34.1.1.1"], 443, own=mine).allow_flag == "--net 34.1.1.1:443"


@given(st.text(max_size=300))
def test_a_host_is_read_or_refused_never_anything_else(text: str) -> None:
    try:
        host = canonical_host(text)
    except EINVAL:
        return
    else:
        again = f"[{host}]" if not isinstance(host, str) and host.version == 6 else str(host)
        assert canonical_host(again) == host
        assert again.isascii()


@given(st.text(alphabet="abz.*:/[]0123456789@ %-x", max_size=40))
def test_a_grant_is_read_or_refused_never_anything_else(text: str) -> None:
    try:
        grant = parse_grant(text)
    except EINVAL:
        return
    else:
        assert parse_grant(str(grant)) == grant


@given(st.ip_addresses())
def test_no_grantless_address_but_a_public_one_is_dialled(address: Address) -> None:
    decision = resolved([str(address)], 443)
    inner = unwrap(address)
    assert decision.allowed == all(kind_of(one, nobody) is Kind.PUBLIC for one in inner)
    if decision.allowed:  # the standard library's own idea of what is private agrees
        assert all(not one.is_loopback and not one.is_link_local and not one.is_private for one in inner)


@given(st.text(max_size=400))
def test_text_of_an_agent_is_made_printable_and_short(text: str) -> None:
    assert printable(text, 50).isprintable()
    assert len(printable(text, 50)) <= 53
