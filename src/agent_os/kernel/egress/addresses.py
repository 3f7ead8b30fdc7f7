"""Which hosts and addresses an agent may reach: `--net` grants, the canonical host, the table of addresses.

In: the text of a grant, a host and a port as an agent wrote them, the addresses a name resolved to. Out: a `Decision`,
which is an allow, or a refusal with a stable code, a reason and the flag that would change it.
Never touches the network: it resolves nothing and dials nothing. The one question it asks the machine is whether an
address is its own (`is_own_address`), and callers may pass their own answer.
"""

import re
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from agent_os.abi.errors import EINVAL

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

DEFAULT_PORTS = (80, 443)  # what a grant without a port opens
LOCALHOST = "localhost"

_NAME = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
# The last label decides whether C libraries would read a host as a number: 2130706433, 127.1, 0x7f.0.0.1, 0177.0.0.1.
_NUMERIC_END = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_PORT = re.compile(r"[0-9]{1,5}")


# ---------------------------------------------------------------------------------------------- the table of addresses


class Kind(Enum):
    PUBLIC = "public"
    OWN = "this machine"  # only one endpoint, named with its port
    PRIVATE = "private"  # only where a grant names the network
    UNSPECIFIED = "unspecified"  # the rest: never
    LINK_LOCAL = "link-local or cloud metadata"
    RESERVED = "multicast, broadcast, reserved or documentation"


NEVER = frozenset({Kind.UNSPECIFIED, Kind.LINK_LOCAL, Kind.RESERVED})


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


# First match wins, so the metadata addresses stand before the private ranges that contain them.
_TABLE: tuple[tuple[Kind, tuple[Network, ...]], ...] = (
    (Kind.UNSPECIFIED, _networks("0.0.0.0/8", "::/128")),
    (Kind.OWN, _networks("127.0.0.0/8", "::1/128")),
    (
        Kind.LINK_LOCAL,
        # 100.100.100.200 is Alibaba's metadata, 168.63.129.16 Azure's, fd00:ec2:: Amazon's, fd20:ce:: Google's.
        _networks(
            *("169.254.0.0/16", "fe80::/10", "100.100.100.200/32", "168.63.129.16/32"),
            *("fd00:ec2::/32", "fd20:ce::/64"),
        ),
    ),
    (Kind.PRIVATE, _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")),
    (
        Kind.RESERVED,
        _networks(
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4", "ff00::/8"),
            *("2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
        ),
    ),
)
_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")  # everything outside it that the table does not name is reserved
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP_MARKS = (0x00005EFE, 0x02005EFE)


def is_own_address(address: Address) -> bool:
    """Ask the machine's own routing table: would a packet to this address be delivered here?

    A route lookup, not a list of interfaces: it is never stale, and it knows addresses that sit on no interface.
    """
    raw = address.packed
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    route = struct.pack("=8BI", family, len(raw) * 8, 0, 0, 0, 0, 0, 0, 0)  # struct rtmsg
    body = route + struct.pack("=HH", 4 + len(raw), 1) + raw  # attribute RTA_DST
    header = struct.pack("=IHHII", 16 + len(body), 26, 1, 1, 0)  # RTM_GETROUTE, NLM_F_REQUEST
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as netlink:
        netlink.settimeout(1)
        netlink.send(header + body)
        answer = netlink.recv(4096)
    if struct.unpack_from("=H", answer, 4)[0] != 24:  # not RTM_NEWROUTE: no route at all, so nowhere, so not here
        return False
    return answer[16 + 7] in (2, 3)  # rtm_type: local, broadcast


def kind_of(address: Address, own: Callable[[Address], bool] = is_own_address) -> Kind:
    """The row of the table for one address, wrapped forms not considered (see `unwrap`)."""
    for kind, networks in _TABLE:
        if any(address in network for network in networks):
            # An address of this machine inside a private range is the machine, not the private network.
            return Kind.OWN if kind is Kind.PRIVATE and own(address) else kind
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST_V6 and address not in _NAT64:
        return Kind.RESERVED
    return Kind.OWN if own(address) else Kind.PUBLIC


def unwrap(address: Address) -> tuple[Address, ...]:
    """The addresses that decide about this one: itself, or the IPv4 addresses carried inside an IPv6 form."""
    if isinstance(address, IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64:
        return (IPv4Address(address.packed[12:]),)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if int.from_bytes(address.packed[8:12]) in _ISATAP_MARKS:
        return (address, IPv4Address(address.packed[12:]))
    return (address,)


# ---------------------------------------------------------------------------------------------------- hosts and ports


def canonical_host(text: str) -> str | Address:
    """The one spelling of a host that is matched, resolved and recorded; EINVAL `net.malformed` for anything else."""
    if text.startswith("[") and text.endswith("]"):
        return _literal(text, text[1:-1], IPv6Address)
    host = text.lower().removesuffix(".")
    if _NUMERIC_END.fullmatch(host):
        return _literal(text, host, IPv4Address)
    if not _NAME.fullmatch(host):
        raise EINVAL("net.malformed", f"{printable(text)!r} is not a host name: only letters, digits, '-' and '.'")
    return host


def _literal(text: str, inner: str, form: type[IPv4Address] | type[IPv6Address]) -> Address:
    try:
        address = form(inner)
    except ValueError as error:
        reason = f"{printable(text)!r} is a number that is not a plain IP address"
        raise EINVAL("net.malformed", reason, hint="write it as 192.168.1.10 or [2606:4700::1]") from error
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            raise EINVAL("net.malformed", f"{printable(text)!r} has a zone; zones belong to one machine only")
        return address.ipv4_mapped or address
    return address


def parse_port(text: str) -> int:
    if not _PORT.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise EINVAL("net.malformed", f"{printable(text)!r} is not a port: a number from 1 to 65535")
    return int(text)


def printable(text: str, limit: int = 200) -> str:
    """Text of an agent made safe for a record or a terminal: no control or odd characters, bounded length."""
    clean = "".join(char if char.isascii() and char.isprintable() else "?" for char in text[:limit])
    return clean if len(text) <= limit else clean + "..."


def endpoint(host: str | Address, port: int | None) -> str:
    """`host:port` as a person writes it, IPv6 in brackets; without a port the bare host."""
    if port is None:
        return str(host)
    return f"[{host}]:{port}" if isinstance(host, IPv6Address) else f"{host}:{port}"


# -------------------------------------------------------------------------------------------------------------- grants


class Grant(Struct, frozen=True):
    """One `--net` value: either a name (perhaps with everything below it) or a network, and perhaps one port. Of a
    capability also any host."""

    name: str = ""
    below: bool = False  # `*.name`: every name below it, not the name itself
    network: Network | None = None
    port: int | None = None  # None: the default ports
    anything: bool = False  # every name, and every public address

    def __str__(self) -> str:
        if self.anything:
            return endpoint("*", self.port)
        if self.network is None:
            return endpoint(("*." if self.below else "") + self.name, self.port)
        if self._is_one_address:
            return endpoint(self.network.network_address, self.port)
        if self.port is None:
            return str(self.network)
        return f"[{self.network}]:{self.port}" if self.network.version == 6 else f"{self.network}:{self.port}"

    @property
    def _is_one_address(self) -> bool:
        return self.network is not None and self.network.num_addresses == 1

    @property
    def is_endpoint(self) -> bool:
        """One address and one port: the only form that reaches this machine itself."""
        return self._is_one_address and self.port is not None

    @property
    def is_loopback(self) -> bool:
        """A door to the host's loopback. Only a person's own flag may open one, never a manifest or a delegation."""
        return self.network is not None and self.network.is_loopback

    @property
    def opens_private(self) -> bool:
        """The whole network is private, so that naming it opens what is in it."""
        return self.network is not None and _kind_of_network(self.network) is Kind.PRIVATE

    def opens_port(self, port: int) -> bool:
        return port in DEFAULT_PORTS if self.port is None else port == self.port

    def names_host(self, host: str) -> bool:
        if not self.name:
            return self.anything
        return host.endswith("." + self.name) if self.below else host == self.name

    def names_exactly(self, host: str | Address, port: int) -> bool:
        """Written for this very endpoint: no wildcard, no network, no default port."""
        if self.port != port:
            return False
        if isinstance(host, Address):
            return self._is_one_address and self.network is not None and host in self.network
        if host == LOCALHOST:
            return self.is_loopback
        return host == self.name and not self.below

    def names_address(self, address: Address, kind: Kind) -> bool:
        """Does this grant name the address, given what kind it is? A wide network names no private one inside it."""
        network = self.network
        if network is None or kind in NEVER or address not in network:
            return self.anything and kind is Kind.PUBLIC
        if kind is Kind.OWN:
            return self.is_endpoint
        return kind is Kind.PUBLIC or self.opens_private


def _kind_of_network(network: Network) -> Kind:
    """The row of the table a whole network lies in; PUBLIC if it lies in none (it may still contain some)."""
    for kind, rows in _TABLE:
        for row in rows:
            if isinstance(network, IPv4Network) and isinstance(row, IPv4Network) and network.subnet_of(row):
                return kind
            if isinstance(network, IPv6Network) and isinstance(row, IPv6Network) and network.subnet_of(row):
                return kind
    return Kind.PUBLIC


_FORMS = "right forms: example.com, *.example.com, example.com:8443, 10.1.2.0/24, 127.0.0.1:8080"


def parse_grant(text: str) -> Grant:
    """Read one `--net` value. EINVAL `net.malformed` says what is wrong and shows a right form."""
    value = text.strip().lower()
    _refuse_pasted_url(value)
    host, port = _split_port(value)
    if host.removesuffix(".") == LOCALHOST:
        return _network_grant(value, ip_network("127.0.0.1"), port)
    network = _as_network(value, host)
    if network is not None:
        return _network_grant(value, network, port)
    return _name_grant(value, host, port)


def _malformed(value: str, problem: str, right: str = _FORMS) -> EINVAL:
    return EINVAL("net.malformed", f"--net {printable(value)}: {problem}", hint=right)


def _refuse_pasted_url(value: str) -> None:
    if not value:
        raise _malformed(value, "the value is empty")
    scheme, separator, rest = value.partition("://")
    if separator:
        authority = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
        raise _malformed(value, f"a URL with {scheme}:// is not a host", f"write --net {printable(authority)}")
    if "@" in value:
        bare = printable(value.rpartition("@")[2])
        raise _malformed(value, "a user name does not belong here", f"write --net {bare}")


def _split_port(value: str) -> tuple[str, int | None]:
    """Host or network, and the port if one is written; brackets keep an IPv6 address apart from its port."""
    if value.startswith("["):
        host, bracket, rest = value[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _malformed(value, "the bracket is not closed", "write it as [2001:4860::1] or [2001:4860::1]:443")
        return host, _grant_port(value, rest[1:]) if rest else None
    if value.count(":") > 1:
        return value, None
    host, colon, port = value.partition(":")
    return host, _grant_port(value, port) if colon else None


def _grant_port(value: str, text: str) -> int:
    try:
        return parse_port(text)
    except EINVAL as error:
        raise _malformed(value, error.reason, "write the port as a number: example.com:8443") from error


def _as_network(value: str, host: str) -> Network | None:
    base, slash, _ = host.partition("/")
    if ":" not in base and not _NUMERIC_END.fullmatch(base):
        if slash:
            raise _malformed(value, "a path does not belong here", f"write --net {printable(base)}")
        return None
    try:
        ip_address(base)
        loose = ip_network(host, strict=False)
    except ValueError as error:
        problem = f"{printable(host)} is not an IP address or network"
        raise _malformed(value, problem, "write it as 10.1.2.3 or 10.1.2.0/24") from error
    if str(loose.network_address) != str(ip_address(base)):
        raise _malformed(value, "the address has bits outside its mask", f"write --net {loose}")
    return loose


def _network_grant(value: str, network: Network, port: int | None) -> Grant:
    if isinstance(network, IPv6Network) and unwrap(network.network_address) != (network.network_address,):
        plain = endpoint(unwrap(network.network_address)[-1], port)
        raise _malformed(value, "this is an IPv4 address inside an IPv6 one", f"write --net {plain}")
    kind = _kind_of_network(network)
    if kind in NEVER:
        raise _malformed(value, f"{kind.value} addresses are never reachable from an agent")
    grant = Grant(network=network, port=port)
    if network.is_loopback and not grant.is_endpoint:
        right = endpoint(network.network_address if network.num_addresses == 1 else IPv4Address("127.0.0.1"), 8080)
        raise _malformed(value, "loopback is granted one endpoint at a time, with its port", f"write --net {right}")
    return grant


def _name_grant(value: str, host: str, port: int | None) -> Grant:
    below = host.startswith("*.")
    name = host[2:] if below else host
    if "*" in name:
        raise _malformed(value, "'*' stands only for everything below a name", "write --net '*.example.com'")
    if not name.isascii():
        raise _malformed(value, "write an international name in its ASCII form", _ascii_form(name))
    try:
        canonical = canonical_host(name)
    except EINVAL as error:
        raise _malformed(value, error.reason) from error
    return Grant(name=str(canonical), below=below, port=port)


_DISPUTED = frozenset("ßẞς\u200c\u200d")  # what the two standards of international names read differently


def _ascii_form(name: str) -> str:
    if not _DISPUTED.isdisjoint(name):
        return "write it as its registrar does, beginning with xn--"
    try:
        return f"write --net {name.encode('idna').decode('ascii')}"
    except UnicodeError:
        return _FORMS


# ----------------------------------------------------------------------------------------------------------- decisions


class Decision(Struct, frozen=True):
    allowed: bool
    code: str
    reason: str
    allow_flag: str | None = None  # the flag that would allow a refused one; None: nothing would
    addresses: tuple[Address, ...] = ()  # the host is a literal: dial these, ask no resolver


def decide(
    grants: Sequence[Grant], host: str | Address, port: int, own: Callable[[Address], bool] = is_own_address
) -> Decision:
    """The gate for one (canonical host, port), before anything is resolved."""
    if isinstance(host, Address):
        return decide_addresses(grants, endpoint(host, port), (host,), port, literal=True, own=own)
    if host == LOCALHOST:
        return _decide_localhost(grants, port)
    named = [grant for grant in grants if grant.names_host(host)]
    if any(grant.opens_port(port) for grant in named):
        return Decision(True, "net.allow", f"{endpoint(host, port)} is granted")
    if named:
        ports = ", ".join(sorted({str(grant.port or "80 and 443") for grant in named}))
        reason = f"{host} is granted on port {ports}, not on {port}"
        return Decision(False, "net.port", reason, f"--net {endpoint(host, port)}")
    return Decision(False, "net.host", f"no grant names {host}", _flag(host, port))


def decide_routed(
    grants: Sequence[Grant], host: str | Address, port: int, own: Callable[[Address], bool] = is_own_address
) -> Decision:
    """A host that a door leads to, with a key that the agent never sees. Whoever also reached it directly could bring
    a key of somebody else's and leave data with that account, so only a grant of exactly this endpoint opens it."""
    if any(grant.names_exactly(host, port) for grant in grants):
        return decide(grants, host, port, own)
    reason = f"{host} has a model route: use its door http://127.0.0.1:3128/_api/, which brings the key"
    return Decision(False, "net.route", reason, f"--net {endpoint(host, port)}")


def _decide_localhost(grants: Sequence[Grant], port: int) -> Decision:
    """`localhost` is never resolved: it is whichever loopback endpoint the operator named with this port."""
    for grant in grants:
        if grant.is_loopback and grant.port == port and grant.network is not None:
            address = grant.network.network_address
            return Decision(True, "net.allow", f"--net {grant} grants it", addresses=(address,))
    reason = f"{LOCALHOST}:{port} is this machine, and no grant names that endpoint"
    return Decision(False, "net.address", reason, f"--net 127.0.0.1:{port}")


def decide_addresses(
    grants: Sequence[Grant],
    target: str,
    addresses: Iterable[Address],
    port: int,
    *,
    literal: bool = False,
    own: Callable[[Address], bool] = is_own_address,
) -> Decision:
    """The table for every address of an allowed target: one forbidden address refuses them all.

    A `literal` address was never named, so a public one needs a grant that names it, too.
    """
    addresses = tuple(addresses)
    missing: list[tuple[Address, Kind]] = []
    for address in addresses:
        for inner in unwrap(address):
            kind = kind_of(inner, own)
            if kind in NEVER:
                return Decision(False, "net.address", f"{target} is {address}: {kind.value}, never reachable")
            if kind is Kind.PUBLIC and not literal:
                continue
            if not any(grant.names_address(inner, kind) and grant.opens_port(port) for grant in grants):
                missing.append((inner, kind))
    if missing:
        return _refuse_missing(target, missing, port)
    return Decision(True, "net.allow", f"{target} is granted", addresses=addresses)


def _refuse_missing(target: str, missing: Sequence[tuple[Address, Kind]], port: int) -> Decision:
    address, kind = missing[0]
    flags = " ".join(dict.fromkeys(_flag(inner, port, always=inner_kind is Kind.OWN) for inner, inner_kind in missing))
    if kind is Kind.PUBLIC:
        return Decision(False, "net.host", f"no grant names the address {endpoint(address, port)}", flags)
    reason = f"{target} is {address}: {kind.value}, and no grant names it on port {port}"
    return Decision(False, "net.address", reason, flags)


def _flag(host: str | Address, port: int, *, always: bool = False) -> str:
    """The shortest `--net` that would do; the port is left out where a grant without one opens it anyway."""
    return f"--net {endpoint(host, port if always or port not in DEFAULT_PORTS else None)}"
