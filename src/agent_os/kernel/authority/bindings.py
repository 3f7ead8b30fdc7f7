"""Where a secret may be used: a binding names the hosts, the place in a request, the methods and the agents.

In: an operator's words. Out: a `Binding`, or EINVAL that says which word is wrong. Pure: it knows no value and asks
nobody. What no binding covers is no use of a secret; a place in a URL cannot be written at all.
"""

import re
from typing import Literal, get_args

from msgspec import Struct

from agent_os.abi.errors import EINVAL
from agent_os.kernel.egress.addresses import Address, canonical_host, endpoint, parse_port, printable

HTTPS = 443
Place = Literal["header", "field"]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
USUAL_METHODS = ("GET", "HEAD", "POST")
EVERY_AGENT = "*"
HERE = "{}"  # where in a template the value goes

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_FIELD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_AGENT = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9_.-]*\*?")
# Headers that say where a message goes or how long it is: a secret there would be read as something else.
_NEVER = frozenset("host content-length transfer-encoding connection te trailer upgrade expect cookie".split())


def require_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        reason = f"{printable(name)!r} is no name of a secret: up to 64 letters, digits, '_', '-' and '.'"
        raise EINVAL("secret.name", reason, hint="agentctl secrets set github-token")
    return name


class Target(Struct, frozen=True):
    """A bound host: exact, or with `below` every name below it; one port, 443 unless another is written."""

    host: str
    port: int = HTTPS
    below: bool = False

    def __str__(self) -> str:
        return endpoint(f"*.{self.host}" if self.below else self.host, None if self.port == HTTPS else self.port)

    def covers(self, host: str, port: int) -> bool:
        return port == self.port and (host.endswith("." + self.host) if self.below else host == self.host)


def parse_target(text: str) -> Target:
    below = text.startswith("*.")
    host, colon, port = (text[2:] if below else text).partition(":")
    if not host or host == "*":
        raise _wrong(
            f"host {printable(text)!r} is no host; a secret is bound to hosts by name", "--host api.example.com"
        )
    if "/" in text or "@" in text:
        raise _wrong(f"host {printable(text)!r} is a URL, or a part of one", "--host api.example.com")
    try:
        found = canonical_host(host)
        number = parse_port(port) if colon else HTTPS
    except EINVAL as error:
        raise _wrong(error.reason, "--host api.example.com, --host api.example.com:8443") from error
    if below and isinstance(found, Address):
        raise _wrong(f"host {printable(text)!r}: nothing is below an address", "--host '*.example.com'")
    return Target(str(found), number, below)


class Binding(Struct, frozen=True):
    name: str
    hosts: tuple[Target, ...]
    place: Place
    key: str  # of the header, in lower case, or of the field
    template: str = HERE
    methods: tuple[str, ...] = USUAL_METHODS
    agents: tuple[str, ...] = (EVERY_AGENT,)

    def covers_host(self, host: str, port: int) -> bool:
        return any(target.covers(host, port) for target in self.hosts)

    def covers_agent(self, agent: str) -> bool:
        return any(agent == one or (one.endswith("*") and agent.startswith(one[:-1])) for one in self.agents)

    def fill(self, value: bytes) -> bytes:
        """The value as it is sent."""
        before, _, after = self.template.partition(HERE)
        return before.encode() + value + after.encode()

    def require_fit(self, value: bytes) -> None:
        """A value that a header cannot hold is refused when it is bound or set, not when it is needed."""
        if self.place == "header" and not re.fullmatch(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", value):
            reason = f"the value of {self.name} has line breaks or other bytes that the header {self.key} cannot carry"
            raise EINVAL("secret.value", reason, hint="printf %s VALUE | agentctl secrets set NAME, or --field NAME")
        if self.place == "field":
            try:
                value.decode()
            except UnicodeDecodeError:
                reason = f"the value of {self.name} is no text, so the field {self.key} cannot carry it"
                raise EINVAL("secret.value", reason) from None

    def words(self) -> dict[str, object]:
        """What `bind` takes."""
        return {
            "name": self.name,
            "hosts": [str(host) for host in self.hosts],
            self.place: self.key,
            "template": self.template,
            "methods": list(self.methods),
            "agents": list(self.agents),
        }


def bind(
    name: str,
    hosts: list[str],
    header: str = "",
    field: str = "",
    template: str = "",
    methods: list[str] | None = None,
    agents: list[str] | None = None,
) -> Binding:
    """Read an operator's words. Without a header or field: `authorization: Bearer VALUE`."""
    require_name(name)
    if not hosts:
        raise _wrong(f"no host is named for {name}, and without one it cannot be used", "--host api.example.com")
    if header and field:
        raise _wrong("a binding has one place, a header or a field", "--header x-api-key")
    place, key = ("field", field) if field else ("header", (header or "authorization").lower())
    bearer = not field and key in ("authorization", "proxy-authorization") and not template
    return Binding(
        name=name,
        hosts=tuple(dict.fromkeys(parse_target(host) for host in hosts)),
        place=_place(place, key),
        key=key,
        template=_template("Bearer {}" if bearer else template or HERE),
        methods=_methods(methods or list(USUAL_METHODS)),
        agents=_agents(agents or [EVERY_AGENT]),
    )


def _wrong(problem: str, right: str) -> EINVAL:
    return EINVAL("secret.binding", problem, hint=right)


def _place(place: str, key: str) -> Place:
    kinds: tuple[Place, ...] = get_args(Place)
    right = _HEADER if place == "header" else _FIELD
    if not right.fullmatch(key):
        raise _wrong(f"{printable(key)!r} is no name of a {place}", f"--{place} x-api-key")
    if place == "header" and (key in _NEVER or key.startswith("proxy-")):
        raise _wrong(f"the header {key} is not for a secret", "--header authorization, --header x-api-key")
    return kinds[kinds.index(place)] if place in kinds else "header"


def _template(text: str) -> str:
    if text.count(HERE) != 1:
        raise _wrong(
            f"the template {printable(text)!r} needs {HERE} once, where the value goes", "--template 'Bearer {}'"
        )
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise _wrong(f"the template {printable(text)!r} has characters that a header cannot carry", "'Bearer {}'")
    return text


def _methods(words: list[str]) -> tuple[str, ...]:
    upper = [word.upper() for word in words]
    for word in upper:
        if word not in METHODS:
            raise _wrong(f"{printable(word)!r} is no method", f"--method {', --method '.join(METHODS)}")
    return tuple(dict.fromkeys(upper))


def _agents(words: list[str]) -> tuple[str, ...]:
    for word in words:
        if not _AGENT.fullmatch(word):
            raise _wrong(
                f"{printable(word)!r} is no name of an agent, or the beginning of one with '*'", "--agent build-*"
            )
    return tuple(dict.fromkeys(words))
