"""Which tools there are, who sees which, and one call of one from its name to its result.

In: specs with what runs them, references (`name@^1.2`), parameters. Out: a `Call` that says what authority it needs and
how it is recorded; later, from what the tool gave, a `Finished` with the bounded result. The life of a call is
resolve → check input (`prepare`) → gate, intent, run (whoever holds the call) → limit and check output (`finish`).

A tool that an agent registers is for itself and its descendants, and never stands in for one that is there for all.
Runs nothing, records nothing, has no clock but the one passed in.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from threading import RLock
from typing import Any, Literal

from msgspec import Struct, field

from agent_os.abi.errors import EBUSY, EDQUOT, EEXIST, EINVAL, ENOENT, EPERM, ETYPE, AgentOSError
from agent_os.abi.syscalls import Effect
from agent_os.abi.tools import EFFECTS, ToolInfo, ToolResult, ToolSpec
from agent_os.kernel.authority.labels import CLEAN, Label
from agent_os.kernel.calls import Need
from agent_os.kernel.tools.health import Health
from agent_os.kernel.tools.output import bound
from agent_os.kernel.tools.schema import Schema
from agent_os.kernel.tools.spec import Resolve, checked, source, templates, wanted
from agent_os.kernel.tools.versions import Range, Version, reference

MOST = 10_000
MOST_OWN = 256  # that one agent registers
MOST_OWN_BYTES = 4 << 20  # of all that it registers: they lie in memory as long as it lives
MOST_LISTED = 1000
# What comes with the kernel; nobody else's tool is called so.
RESERVED = frozenset("agent browser file http mcp memory python shell tool".split())
LONGEST_QUERY = 200  # characters
_NEAR = 3
_COMPARED, _MOST_COMPARED = 48, 200  # characters of a name, names


class Verified(Struct, frozen=True):
    """What a look at the world showed of an effect."""

    state: Literal["done", "not_done", "unsure"]
    value: Any = None


class Deed(Struct, frozen=True):
    """What carries a tool out. `plan` looks at the world after the gate and before the intent: what it gives is in the
    record, and `run` and `verify` get it again. `names`: what templates may name besides parameters; `programs` among
    them is what an allow list may call the program that runs."""

    run: Callable[["Call"], Awaitable[Any]]
    plan: Callable[["Call"], Awaitable[dict[str, Any]]] | None = None
    verify: Callable[["Call"], Awaitable[Verified]] | None = None
    names: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    digest: bytes = b""  # of the implementation
    carries: Label = CLEAN  # what whoever wrote it had taken in
    weight: int = 0  # bytes that an agent has put into it
    act: Callable[..., Any] | None = None  # it is a syscall under another name: makes the `Act` of that
    plain: bool = False  # what it gives is answered as it is: a tool of the program around the kernel


class Tool(Struct, eq=False):
    spec: ToolSpec
    deed: Deed
    input: Schema
    output: Schema | None
    health: Health
    owner: str = ""  # an agent; empty: it is there for all
    suspended: str = ""  # why nobody may call it

    @property
    def id(self) -> str:
        return f"{self.spec.name}@{self.spec.version}"

    @property
    def effect(self) -> Effect:
        """The worst that it can be."""
        return EFFECTS[self.spec.effect]

    @property
    def info(self) -> ToolInfo:
        spec = self.spec
        return ToolInfo(
            name=spec.name,
            version=spec.version,
            description=spec.description,
            effect=spec.effect,
            tags=spec.tags,
            deprecated=spec.deprecated,
            digest=spec.digest,
            input_schema=spec.input_schema,
            output_schema=spec.output_schema,
            owner=self.owner,
            health=self.health.state,
        )


class Finished(Struct, frozen=True):
    result: ToolResult
    blob: bytes | None  # to be kept under `result.blob`
    error: ETYPE | None  # it ran, and what it gave is not what it promised


class Call(Struct, eq=False):
    """One call that was understood. Nothing has happened."""

    tool: Tool
    params: dict[str, Any]
    agent: str
    needs: Sequence[Need]
    facts: Mapping[str, Any]
    effect: Effect
    source: str  # of its output, for the label
    key: str = ""  # the same after a crash
    plan: dict[str, Any] = field(default_factory=dict[str, Any])
    under: Any = None  # whatever whoever carries it out needs for that

    @property
    def record(self) -> dict[str, Any]:
        """What the journal keeps of it."""
        kept = {"tool": self.tool.id, "digest": self.tool.spec.digest, "params": self.params, "key": self.key}
        return {**kept, "plan": self.plan} if self.plan else kept

    def finish(self, value: Any, *, raw: bytes | None = None, duration_ms: int = 0) -> Finished:
        """EMSGSIZE, EIO: what it gave is too large, or no value at all."""
        spec = self.tool.spec
        small = bound(value, spec.output_limit, raw)
        result, error = small.result, None
        result.tool, result.digest, result.duration_ms = self.tool.id, spec.digest, duration_ms
        if self.tool.output is not None and not result.text:
            try:
                self.tool.output.require(result.value, f"the result of {spec.name}", tell=False, ran=True)
            except ETYPE as problem:
                problem.detail |= {"blob": result.blob} if result.blob else {"raw": result.value}
                error = problem
        return Finished(result, small.blob, error)


class Registry:
    """`line`: an agent's ancestors, nearest first, itself not among them. `sees`: whether it may know of a tool of one
    of them."""

    def __init__(
        self,
        clock: Callable[[], float],
        line: Callable[[str], Sequence[str]] = lambda agent: (),
        sees: Callable[[str, Tool], bool] = lambda agent, tool: True,
    ) -> None:
        self._clock, self._line, self._sees = clock, line, sees
        self.changed: Callable[[], None] = lambda: None  # what there is, or may be called, is another now
        self.fill: Callable[[], None] | None = None  # registers more when somebody first looks, be it in a thread
        self._filling = RLock()
        self._made: dict[str, dict[str, dict[Version, Tool]]] = {}  # owner → name → version

    @property
    def _tools(self) -> dict[str, dict[str, dict[Version, Tool]]]:
        with self._filling:
            if self.fill:
                fill, self.fill, changed, self.changed = self.fill, None, self.changed, lambda: None
                fill()
                self.changed = changed  # nothing has: whoever had looked would have seen them
            return self._made

    # What there is.

    def register(
        self, spec: ToolSpec, deed: Deed, *, owner: str = "", foreign: bool = False, short: bool = False
    ) -> Tool:
        """The very same again changes nothing. `foreign`: the schemas are a stranger's (see `Schema`). `short`: its
        name may be one word."""
        spec = checked(spec, deed.digest, short=short)
        if (spec.effect == "verifiable" or any(one.effect == "verifiable" for one in spec.milder)) != bool(deed.verify):
            raise EINVAL("tool.verify", f"{spec.name}: a verifiable tool, and no other, can verify")
        self._require_names(spec, deed)
        version = Version(spec.version)
        there = self._tools.get(owner, {}).get(spec.name, {}).get(version)
        if there is not None:
            if there.spec.digest != spec.digest:
                reason = f"{spec.name}@{version} is there already and is another one"
                raise EEXIST("tool.exists", reason, hint="give it a new version", digest=there.spec.digest)
            return there
        self._require_room(spec, owner, deed.weight)
        closed = Schema(spec.input_schema, foreign=foreign, closed=True)
        if spec.input_schema.get("type", "object") != "object":
            raise EINVAL("tool.schema", f"{spec.name}: parameters are an object", hint='{"type": "object", …}')
        output = None if spec.output_schema is None else Schema(spec.output_schema, foreign=foreign)
        tool = Tool(spec, deed, closed, output, Health(spec.concurrency, self._clock), owner)
        self._tools.setdefault(owner, {}).setdefault(spec.name, {})[version] = tool
        self.changed()
        return tool

    def _require_names(self, spec: ToolSpec, deed: Deed) -> None:
        """A template about a parameter that cannot be given would refuse every call."""
        known = set(spec.input_schema.get("properties", {}))
        if deed.names is not None:
            return
        for template in templates(spec):
            if unknown := sorted(template.names - known):
                raise EINVAL("tool.requires", f"{spec.name}: {template.text} names {unknown[0]!r}, no parameter of it")

    def _require_room(self, spec: ToolSpec, owner: str, weight: int) -> None:
        if owner:
            if spec.name.partition(".")[0] in RESERVED:
                there = ", ".join(sorted(RESERVED))
                raise EPERM("tool.reserved", f"{spec.name}: these are the kernel's own: {there}")
            if spec.sandbox == "driver":
                raise EPERM("tool.sandbox", f"{spec.name}: an agent's tool runs in a sandbox of its own, not in ours")
            if spec.name in self._tools.get("", {}):
                raise EEXIST("tool.exists", f"{spec.name} is there for all", hint="choose another name")
            if self._count(owner) >= MOST_OWN:
                raise EDQUOT("tool.many", f"an agent registers at most {MOST_OWN} tools", used=MOST_OWN, limit=MOST_OWN)
            used = sum(
                tool.deed.weight for versions in self._tools.get(owner, {}).values() for tool in versions.values()
            )
            if used + weight > MOST_OWN_BYTES:
                reason = f"an agent's tools have at most {MOST_OWN_BYTES >> 20} MiB together"
                raise EDQUOT("tool.room", reason, hint="keep data in files", used=used, limit=MOST_OWN_BYTES)
        if sum(map(self._count, self._tools)) >= MOST:
            raise EDQUOT("tool.many", f"{MOST} tools are the most there are", used=MOST, limit=MOST)

    def _count(self, owner: str) -> int:
        return sum(map(len, self._tools.get(owner, {}).values()))

    def forget(self, owner: str) -> None:
        """The agent is over."""
        with self._filling:
            if owner and self._made.pop(owner, None):
                self.changed()

    def withdraw(self, name: str, version: str | None = None) -> int:
        """Of those there for all, as when a server is gone; how many that were."""
        versions = self._tools.get("", {}).get(name, {})
        gone = [one for one in versions if version is None or one == Version(version)]
        for one in gone:
            del versions[one]
        if not versions:
            self._tools.get("", {}).pop(name, None)
        if gone:
            self.changed()
        return len(gone)

    # Finding one.

    def get(self, text: str, agent: str = "") -> Tool:
        """The highest version that a reference takes. EBUSY: it is suspended; ENOENT says what there is."""
        name, wanted_range = reference(text)
        versions = self._versions(name, agent)
        if not versions:
            near = _near(name, {tool.spec.name for tool in self._seen(agent)})
            hint = f"there is {', '.join(near)}" if near else "list the tools to see what there is"
            raise ENOENT("tool.unknown", f"there is no tool {name[:100]!r}", hint=hint, near=near)
        best = _best(wanted_range, versions)
        if best is None:
            there = ", ".join(str(one) for one in sorted(versions, reverse=True)[:10])
            raise ENOENT("tool.version", f"no version of {name} fits {wanted_range}", hint=f"there is {there}")
        tool = versions[best]
        if tool.suspended:
            raise EBUSY("tool.suspended", f"{tool.id} is suspended: {tool.suspended}", hint="an operator must agree")
        return tool

    def list(
        self,
        query: str = "",
        tag: str = "",
        agent: str = "",
        *,
        may: Callable[[Tool], bool] | None = None,
        all_versions: bool = False,
    ) -> "list[ToolInfo]":
        """By name. `may`: whether this agent could call it; what it could not is not shown to it."""
        words = _words(query)
        found: list[Tool] = []
        for tool in self._seen(agent, all_versions=all_versions):
            spec = tool.spec
            text = f"{spec.name} {spec.description} {' '.join(spec.tags)}".casefold()
            shown = not tool.suspended and (not tag or tag in spec.tags) and all(word in text for word in words)
            if shown and (may is None or may(tool)):
                found.append(tool)
        found.sort(key=lambda tool: (tool.spec.name, Version(tool.spec.version)))
        return [tool.info for tool in found[:MOST_LISTED]]

    def all(self, query: str = "", tag: str = "") -> "list[Tool]":
        """Everybody's, in all versions, also those that are suspended."""
        found = [tool for names in self._tools.values() for versions in names.values() for tool in versions.values()]
        words = _words(query)
        shown = [
            tool
            for tool in found
            if (not tag or tag in tool.spec.tags)
            and all(word in f"{tool.spec.name} {tool.spec.description}".casefold() for word in words)
        ]
        return sorted(shown, key=lambda tool: (tool.owner, tool.spec.name, Version(tool.spec.version)))

    def versions_of(self, text: str) -> "list[Tool]":
        """Everybody's of one name. ENOENT says what is near."""
        found = [tool for tool in self.all() if text in (tool.spec.name, tool.id)]
        return found or [self.get(text)]

    def suspend(self, name: str, why: str, version: str | None = None) -> int:
        """From now on calls of it are refused; an empty `why` lets them pass again."""
        count = 0
        for one, tool in self._tools.get("", {}).get(name, {}).items():
            if version is None or one == Version(version):
                tool.suspended = why
                count += 1
        if count:
            self.changed()
        return count

    def _versions(self, name: str, agent: str) -> dict[Version, Tool]:
        """Of the nearest who has one of that name: its own, an ancestor's, that of all."""
        for owner in self._owners(agent):
            if versions := self._of(owner, name, agent):
                return versions
        return {}

    def _of(self, owner: str, name: str, agent: str) -> dict[Version, Tool]:
        versions = self._tools.get(owner, {}).get(name, {})
        if owner in ("", agent):
            return versions
        return {version: tool for version, tool in versions.items() if self._sees(agent, tool)}

    def _owners(self, agent: str) -> "list[str]":
        return [agent, *self._line(agent), ""] if agent else [""]

    def _seen(self, agent: str, *, all_versions: bool = False) -> Iterator[Tool]:
        names: set[str] = set()
        for owner in self._owners(agent):
            for name in self._tools.get(owner, {}):
                if name not in names and (versions := self._of(owner, name, agent)):
                    names.add(name)
                    best = _best(Range("*"), versions) or max(versions)
                    yield from versions.values() if all_versions else [versions[best]]

    # Calling one.

    def prepare(
        self, text: str, params: Mapping[str, Any], agent: str = "", *, key: str = "", resolve: Resolve | None = None
    ) -> Call:
        """ETYPE: the parameters do not fit; nothing ran. Changes nothing but counters."""
        tool = self.get(text, agent)
        spec, given = tool.spec, dict(params)
        try:
            tool.input.require(given, f"the parameters of {spec.name}", ran=False)
            more = tool.deed.names(given) if tool.deed.names else None
            came = wanted(spec, given, resolve=resolve, more=more)
        except AgentOSError as error:
            tool.health.metrics.errors[error.name] += 1
            raise
        effect = EFFECTS[spec.effect_of(given)]
        facts = {**came.facts, "args": given, **({"program": more["programs"]} if more and "programs" in more else {})}
        return Call(tool, given, agent, came.needs, facts, effect, source(spec, given), key)


def _words(query: str) -> "list[str]":
    if len(query) > LONGEST_QUERY:
        raise EINVAL("tool.query", f"a query has at most {LONGEST_QUERY} characters")
    return query.casefold().split()


def _near(name: str, names: Iterable[str]) -> "list[str]":
    """Among some short ones: to compare two takes the product of their lengths at least, and everybody waits."""
    if len(name) > _COMPARED:
        return []
    short = sorted(one for one in names if len(one) <= _COMPARED)[:_MOST_COMPARED]
    return get_close_matches(name, short, n=_NEAR, cutoff=0.5)


def _best(wanted_range: Range, versions: Mapping[Version, Tool]) -> Version | None:
    """One that is not deprecated, where there is one."""
    fresh = [one for one, tool in versions.items() if tool.spec.deprecated is None]
    return wanted_range.best(fresh) or wanted_range.best(versions)
