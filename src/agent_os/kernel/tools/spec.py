"""What a tool may declare of itself, its digest, and the authority that one call of it needs.

In: a `ToolSpec` as somebody wrote it, and the parameters of a call. Out: the spec with its digest or EINVAL that names
the field; for a call the needs that its templates come to. A template is taken apart before anything is put in: what a
caller writes is only ever a target or an action, never a piece of a capability's text, and a path or a host has its one
spelling. Pure.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import EINVAL, ETYPE
from agent_os.abi.tools import LARGEST_OUTPUT, LONGEST_DESCRIPTION, LONGEST_TIMEOUT_S, ToolSpec
from agent_os.kernel.authority.capability import ACTIONS
from agent_os.kernel.authority.patterns import ROOTED, first_control
from agent_os.kernel.calls import Need
from agent_os.kernel.egress.addresses import LOCALHOST, canonical_host
from agent_os.kernel.egress.asking import facts_of, host_text, plain_path
from agent_os.kernel.egress.attempt import Stop
from agent_os.kernel.tools.versions import Version
from agent_os.kernel.vfs.paths import normalise

LONGEST_NAME = 128
MOST_TEMPLATES = 16
MOST_TAGS = 32
_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[A-Za-z0-9][A-Za-z0-9_-]*)+", re.ASCII)
_TAG = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}", re.ASCII)
_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_LOOPBACK = IPv4Address("127.0.0.1")
_METHODS = ACTIONS["http"]
_canonical = msgspec.json.Encoder(order="deterministic").encode
Resolve = Callable[[str, str], str]  # a kind and a target as it was written → its one spelling


class Wanted(Struct, frozen=True):
    """The authority that a call needs, and facts about it for constraints."""

    needs: list[Need]
    facts: dict[str, Any]


def checked(spec: ToolSpec, implementation: bytes = b"", *, program: bool = False, short: bool = False) -> ToolSpec:
    """With its digest. `implementation`: what it runs, as bytes; another one is another tool. `program`: it is a part
    of its agent's own program, which gives no new authority, so that it needs no template. `short`: its name may be
    one word."""
    named = _NAME.fullmatch(spec.name) or ((program or short) and spec.name.isidentifier())
    fits = named and len(spec.name) <= LONGEST_NAME
    _require(fits, spec, "name", "is ns.verb in letters, digits, _ and -", "as file.read")
    Version(spec.version)
    _require(bool(spec.description.strip()), spec, "description", "says in a sentence what it does")
    _require(len(spec.description) <= LONGEST_DESCRIPTION, spec, "description", f"has at most {LONGEST_DESCRIPTION}")
    _require(0 < spec.timeout_s <= LONGEST_TIMEOUT_S, spec, "timeout_s", f"is above 0 and at most {LONGEST_TIMEOUT_S}")
    _require(1024 <= spec.output_limit <= LARGEST_OUTPUT, spec, "output_limit", f"is 1024 to {LARGEST_OUTPUT} bytes")
    _require(1 <= spec.concurrency <= 1000, spec, "concurrency", "is 1 to 1000")
    _require(spec.cost_microusd >= 0, spec, "cost_microusd", "is not negative")
    _require(len(spec.tags) <= MOST_TAGS and all(map(_TAG.fullmatch, spec.tags)), spec, "tags", "are short words")
    _require(program == (spec.sandbox == "program"), spec, "sandbox", "is driver, tool or tool+net")
    if not program:
        _require(bool(spec.requires), spec, "requires", "names the capability that a call needs", "file:{path}:read")
    _require(len(spec.requires) <= MOST_TEMPLATES, spec, "requires", f"has at most {MOST_TEMPLATES}")
    for template in spec.requires:
        Template(template, spec.name)
    if spec.labels.source:
        _require(not _HOLE.sub("", spec.labels.source).count("{"), spec, "labels.source", "has a brace too many")
    return replace(spec, digest=digest(spec, implementation))


def digest(spec: ToolSpec, implementation: bytes = b"") -> str:
    body = _canonical(msgspec.to_builtins(replace(spec, digest="")))
    return sha256(sha256(body).digest() + sha256(implementation).digest()).hexdigest()


def _require(holds: object, spec: ToolSpec, what: str, why: str, hint: str = "") -> None:
    if not holds:
        raise _wrong(spec, what, why, hint)


def _wrong(spec: ToolSpec, what: str, why: str, hint: str = "") -> EINVAL:
    return EINVAL("tool.spec", f"tool {spec.name[:LONGEST_NAME]!r}: {what} {why}", hint=hint, field=what)


# Templates.


class Template:
    """`kind:target:action`, where target and action may hold `{name}` of a parameter. `tool:call` with no target stands
    for the tool itself."""

    def __init__(self, text: str, tool: str = "") -> None:
        kind, colon, rest = text.partition(":")
        target, between, action = rest.rpartition(":")
        self.text, self.kind = text, kind
        self.target, self.action = (target if between else tool if kind == "tool" else ""), action
        if not colon or kind not in ACTIONS or not self.action:
            raise EINVAL("tool.requires", f"{text!r} is not KIND:TARGET:ACTION", hint="as file:{path}:read")
        if not self.target and kind != "shell":
            raise EINVAL("tool.requires", f"{text!r} names no target", hint=f"as {kind}:{{path}}:{action}")
        for part in (self.target, self.action):
            if re.search(r"[{}]", _HOLE.sub("", part)):
                raise EINVAL("tool.requires", f"{text!r} has a brace that is no {{name}}", hint="as file:{path}:read")
        if "*" in _HOLE.sub("", self.target) and kind != "shell":
            raise EINVAL("tool.requires", f"{text!r} has a wildcard: a call is about one thing, by its name")
        if not _HOLE.search(self.action) and self.action not in ACTIONS[kind]:
            raise EINVAL("tool.requires", f"{kind} has no action {self.action!r}: {', '.join(sorted(ACTIONS[kind]))}")

    @property
    def names(self) -> set[str]:
        return set(_HOLE.findall(self.target)) | set(_HOLE.findall(self.action))

    def expand(self, params: Mapping[str, Any], resolve: Resolve | None = None) -> Wanted:
        """ETYPE: a parameter that it names is not there, or no text; EINVAL: what it says is no target."""
        target, action = self._filled(self.target, params), self._filled(self.action, params).lower()
        facts: dict[str, Any] = {}
        if self.kind == "http":
            target, facts = web(target)
            action = action if action in _METHODS else "request"  # nobody knows what it does: all of them
        elif self.kind in ROOTED:
            target = resolve(self.kind, target) if resolve else normalise(target)
        else:
            _require_plain(self, target)
        if action == "request" and self.kind == "http":
            return Wanted([Need("http", one, target) for one in sorted(_METHODS)], facts)
        if action not in ACTIONS[self.kind]:
            raise EINVAL("tool.action", f"{self.kind} has no action {action[:40]!r}")
        return Wanted([Need(self.kind, action, target)], facts)

    def _filled(self, text: str, params: Mapping[str, Any]) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1]
            given = params.get(name)
            if not isinstance(given, str):
                got = "nothing" if given is None else type(given).__name__
                reason = f"{self.text} needs the parameter {name!r} as a text, got {got}"
                raise ETYPE("tool.type", reason, pointer=f"/{name}", expected="string", got=got)
            return given

        return _HOLE.sub(value, text)


def _require_plain(template: Template, target: str) -> None:
    """A name that is only a name: no wildcard, which would be more than one, nor what separates."""
    bad = "*" in target and template.kind != "shell"
    if bad or first_control(target) >= 0 or len(target) > 4096 or (not target and template.kind != "shell"):
        raise EINVAL("tool.target", f"{target[:100]!r} is not one {template.kind} by its name")


def web(url: str) -> tuple[str, dict[str, Any]]:
    """A URL as targets have it, `host/path`, and the facts that constraints of http look at."""
    if len(url) > 8192 or first_control(url) >= 0 or any(char in url for char in " \\"):
        raise EINVAL("net.malformed", "a URL has no spaces, backslashes or control characters, and at most 8192 of all")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise EINVAL("net.malformed", f"{url[:200]!r} is not a URL: {problem}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise EINVAL("net.malformed", f"{url[:200]!r} is not an http or https URL", hint="https://example.com/path")
    if parts.username is not None or parts.password is not None:
        raise EINVAL("net.malformed", "a URL carries no user name", hint="a secret is attached by its binding")
    bare = parts.netloc.rpartition("@")[2]
    host = canonical_host(bare[: bare.rindex("]") + 1] if bare.startswith("[") else bare.partition(":")[0])
    if host == LOCALHOST:  # never resolved: the way out takes it for that endpoint of the machine, too
        host = _LOOPBACK
    try:
        path = plain_path(parts.path or "/")
    except Stop as stop:
        raise EINVAL(stop.code, stop.reason) from None
    facts: dict[str, Any] = {"scheme": parts.scheme, "port": port or _PORTS[parts.scheme]}
    if not isinstance(host, str):
        facts |= facts_of(host, facts["port"])
    return f"{host_text(host)}{path}", facts


def wanted(
    spec: ToolSpec, params: Mapping[str, Any], *, resolve: Resolve | None = None, more: Mapping[str, Any] | None = None
) -> Wanted:
    """All that one call needs: the tool itself, and what its templates come to. `more`: names besides the parameters,
    as its driver worked them out: the program of a command."""
    needs, facts = [Need("tool", "call", spec.name)], dict[str, Any]()
    values = {**params, **(more or {})}
    for template in templates(spec):
        if template.kind == "tool" and template.target == spec.name:
            continue
        came = template.expand(values, resolve)
        needs += came.needs
        facts |= came.facts
    return Wanted(list(dict.fromkeys(needs)), facts)


def templates(spec: ToolSpec) -> Sequence[Template]:
    return [_understood(text, spec.name) for text in spec.requires]


@lru_cache(maxsize=4096)
def _understood(text: str, tool: str) -> Template:
    return Template(text, tool)


def source(spec: ToolSpec, params: Mapping[str, Any]) -> str:
    """Where its output comes from, for its label."""
    if not spec.labels.source:
        return f"tool:{spec.name}"

    def value(found: re.Match[str]) -> str:
        given = params.get(found[1])
        if isinstance(given, str) and given.startswith(("http://", "https://")):
            return web(given)[0].partition("/")[0]
        return str(given)[:100] if given is not None else ""

    return _HOLE.sub(value, spec.labels.source)[:128]
