"""What a request to the network needs, which handles cover it, and who is asked before anything is resolved.

In: a request as `visit` understood it, and what its agent holds. Out: needs, facts and handles for the gate. Pure but
for whoever stands behind `Asking`; that is the gate, seen from here.
"""

import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import unquote

from msgspec import Struct

from agent_os.abi.errors import EACCES, EAGAIN, EIO, EPERM, AgentOSError
from agent_os.kernel.authority.capability import ACTIONS, missing
from agent_os.kernel.authority.handles import Handle, Holdings
from agent_os.kernel.authority.patterns import first_control
from agent_os.kernel.calls import Need
from agent_os.kernel.egress.addresses import (
    Address,
    Grant,
    Kind,
    endpoint,
    is_own_address,
    kind_of,
    printable,
    unwrap,
)
from agent_os.kernel.egress.attempt import Leave, Stop

TLS_PORT = 443  # whoever tunnels there speaks TLS, or is cut off
METHODS = ACTIONS["http"]
_EVERY = sorted(METHODS)
Own = Callable[[Address], bool]
# Also encoded twice. What follows a `;` is a part of the segment to some servers and a parameter beside it to others.
_BAD_PATH = re.compile(r"//|\\|;|%(?:25)*(?:2f|5c|00|0a|0d|2e|3b)|(?:^|/)\.\.?(?:/|$)", re.IGNORECASE)
Headers = Sequence[tuple[bytes, bytes]]
_TOLD = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"proxy-connection"})  # otherwise
_CREDENTIALS = frozenset({b"authorization", b"cookie", b"proxy-authorization", b"x-api-key"})
Body = Callable[[], Awaitable[bytes | None]]  # a request's body, read now; None: too large to be shown


class Wanted(Struct, frozen=True):
    """A request, as far as it is known before anything is resolved."""

    host: str | Address
    port: int
    method: str = ""  # in lower case; empty: a tunnel hides it, and the path
    path: str = "/"  # decoded, without its query
    written: str = ""  # path and query as they were sent, for whoever is asked
    routed: bool = False  # a door leads there, so that no other way should
    tls: bool = False  # the kernel itself speaks TLS there, so that method and path are known all the same
    headers: Headers = ()
    body: Body | None = None  # None: there is none, or nobody could see it

    def __repr__(self) -> str:
        return f"Wanted({self.host!r}, {self.port}, {self.method!r}, {self.path!r})"

    @property
    def tunnel(self) -> bool:
        return not self.method

    @property
    def name(self) -> str:
        return host_text(self.host)

    @property
    def needs(self) -> list[Need]:
        return self._needs_at(f"{self.name}{'/**' if self.tunnel else self.path}")

    def _needs_at(self, target: str) -> list[Need]:
        """Of what hides what it does, everything that it could."""
        return [Need("http", method, target) for method in ([self.method] if self.method in METHODS else _EVERY)]

    def leads(self, addresses: Iterable[Address] = ()) -> list[Need]:
        """The same under the other names that it has: without a slash at the end, and of every address, with those that
        are inside one."""
        hosts = (host_text(one) for address in addresses for one in (address, *unwrap(address)))
        paths = ("/**",) if self.tunnel else (self.path, self.path.rstrip("/") or "/")
        targets = dict.fromkeys(host + path for host in (self.name, *hosts) for path in paths)
        return [need for target in list(targets)[1:] for need in self._needs_at(target)]

    @property
    def facts(self) -> dict[str, Any]:
        """What is spoken in a tunnel is known only where nothing but TLS is let through."""
        plain = self.method and not self.tls
        known = {"scheme": "http"} if plain else {"scheme": "https"} if self.tls or self.port == TLS_PORT else {}
        return {"port": self.port, "tunnel": self.routed, **known}

    @property
    def shown(self) -> dict[str, Any]:
        """For a person, and for the digest of what they are asked."""
        what = {"method": self.method.upper(), "path": self.written or self.path} if self.method else {"tunnel": True}
        return {"host": self.name, "port": self.port, **what}


def shown_headers(headers: Headers) -> dict[str, str]:
    """For a person who is asked, and for the digest: a header can change what a request does. Of credentials, which
    are nobody else's business, only whether they are the same."""
    shown: dict[str, str] = {}
    for name, value in headers:
        if name in _TOLD:
            continue
        text = f"sha256:{sha256(value).hexdigest()[:16]}" if name in _CREDENTIALS else value.decode("latin-1")
        before = shown.get(name.decode("latin-1"))
        shown[name.decode("latin-1")] = text if before is None else f"{before}, {text}"
    return shown


class Asking(Protocol):
    """Whoever decides about an agent's requests."""

    def grants(self, *, live: bool = True) -> Sequence[Grant]:
        """What the agent holds, for the table of addresses; not `live`: with what it held until it was taken back."""
        ...

    async def ask(self, wanted: Wanted) -> Leave | None:
        """It may be done when this returns, perhaps after a person agreed. An error of the family: it may not."""
        ...


class Granted:
    """Grants alone, with no gate behind them."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self._grants = tuple(grants)

    def grants(self, *, live: bool = True) -> Sequence[Grant]:
        return self._grants

    async def ask(self, wanted: Wanted) -> Leave | None:
        return None


def host_text(host: str | Address) -> str:
    """As targets have it."""
    return f"[{host}]" if not isinstance(host, str) and host.version == 6 else str(host)


def plain_path(path: str) -> str:
    """A path as rules see it: decoded once, without its query. Stop where servers would read it differently."""
    bare = path.partition("?")[0]
    try:
        decoded = unicodedata.normalize("NFC", unquote(bare, errors="strict"))
    except UnicodeDecodeError:
        raise Stop("net.malformed", f"the path {printable(bare)} is not UTF-8", status=400) from None
    if _BAD_PATH.search(bare) or first_control(decoded) >= 0 or "\ufffd" in decoded:
        reason = f"the path {printable(bare)} has empty, dotted or encoded segments that servers read differently"
        raise Stop("net.malformed", reason, status=400)
    return decoded.replace("*", "%2A")  # a star would grant more than itself


def stopped(error: AgentOSError, allow_flag: str | None = None) -> Stop:
    """A refusal of the gate, as the agent's client is told."""
    status = 500 if isinstance(error, EIO) else 429 if isinstance(error, EAGAIN) else 403
    return Stop(error.code, error.reason, allow_flag=allow_flag, status=status)


# Which handles cover a request.


def covering(
    held: Holdings, wanted: Wanted, addresses: Iterable[Address] = (), own: Own = is_own_address
) -> list[Handle]:
    """The handle for what is named and, where a name leads to addresses that are not for everybody, what names those:
    the same handle by its constraints, or one for the address itself. EPERM, EACCES where there is none."""
    if not isinstance(wanted.host, str):
        return [_find(held, wanted, wanted.name, facts_of(wanted.host, wanted.port, own))]
    first = _find(held, wanted, wanted.name, {})
    found = {first: None}
    for address in dict.fromkeys(inner for one in addresses for inner in unwrap(one)):
        facts = facts_of(address, wanted.port, own)
        if {"private", "loopback"} & facts.keys() and not _fits(first, wanted, wanted.name, facts):
            found[_find_near(held, wanted, host_text(address), facts)] = None
    return list(found)


def _find_near(held: Holdings, wanted: Wanted, address: str, facts: dict[str, Any]) -> Handle:
    """Another handle for the name, which has the address in its constraints; or one for the address itself."""
    try:
        return _find(held, wanted, wanted.name, facts)
    except (EPERM, EACCES):
        return _find(held, wanted, address, facts)


def facts_of(address: Address, port: int, own: Own = is_own_address) -> dict[str, Any]:
    """What constraints look at of an address that is not for everybody."""
    facts: dict[str, Any] = {"address": str(address)}
    kind = kind_of(address, own)
    if address.is_loopback:
        facts["loopback"] = endpoint(address, port)
    elif kind in (Kind.PRIVATE, Kind.OWN):
        facts["private"] = str(address)
    return facts


def _find(held: Holdings, wanted: Wanted, host: str, more: dict[str, Any]) -> Handle:
    facts = {**wanted.facts, **more}
    if wanted.method in METHODS:
        found = held.find((Need("http", wanted.method, f"{host}{wanted.path}"),), facts=facts)
        assert found is not None
        return found
    ended: Handle | None = None
    for handle in held.of_kind("http"):
        if _fits(handle, wanted, host, more):
            if not handle.revoked and not handle.expired(held.clock):
                return handle
            ended = handle
    if ended is not None:
        raise ended.ended()
    target = f"{host}/**" if wanted.tunnel else f"{host}{wanted.path}"
    what = "a tunnel hides method and path" if wanted.tunnel else f"nobody knows what {wanted.method.upper()} does"
    reason = f"{what}, so it needs a capability for all methods{f' and all of {host}' if wanted.tunnel else ''}"
    raise EPERM("cap.missing", reason, missing=missing(Need("http", "request", target), facts))


def _fits(handle: Handle, wanted: Wanted, host: str, more: dict[str, Any]) -> bool:
    facts, has = {**wanted.facts, **more}, handle.capability
    if wanted.tunnel:
        return has.covers_host(host, facts)
    if wanted.method in METHODS:
        return has.covers(Need("http", wanted.method, f"{host}{wanted.path}"), facts)
    return has.actions == METHODS and has.covers(Need("http", "get", f"{host}{wanted.path}"), facts)
