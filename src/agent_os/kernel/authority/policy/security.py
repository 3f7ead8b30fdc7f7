"""Import of a project's `.agents/security.md`: YAML, as front matter or as the whole file, made into rules.

Owns what of that format can be enforced here, key by key. Goes in: bytes, and which tools there are with the class that
each declares. Comes out: a `PolicyFile` of the project's layer with the default deny, or one EINVAL that lists every
key that cannot be enforced, with its line. All or nothing: what holds only in part is worse than none, being believed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from agent_os.abi.errors import AgentOSError
from agent_os.abi.signals import UNMASKABLE, AgentSignal
from agent_os.abi.syscalls import BY_NAME
from agent_os.abi.syscalls import Effect as Class
from agent_os.kernel.authority.capability import ACTIONS, Capability
from agent_os.kernel.authority.policy.conditions import held_to, not_held, rule_capability
from agent_os.kernel.authority.policy.problems import Problems, nearest
from agent_os.kernel.authority.policy.rules import Effect, Layer, Mode, PolicyFile, Rate, Rule, Subject

if TYPE_CHECKING:
    from agent_os.kernel.authority.policy.marked import Part

T = TypeVar("T")
Tools = Mapping[str, str | None]  # name → effect class as declared, None where none is
_RULED: dict[str, tuple[tuple[str, str], ...]] = {
    "SYS_READ": (("file", "read"), ("mem", "read")),
    "SYS_WRITE": (("file", "write"), ("mem", "write")),
    "SYS_REMOVE": (("file", "delete"), ("mem", "delete")),
    "SYS_SHARE": (("mem", "share"),),
    "SYS_EXEC": (("tool", "call"), ("shell", "execute")),
    "SYS_SIGNAL": (("agent", "signal"),),
    "SYS_SPAWN": (("agent", "spawn"),),
}
# These ask for the authority of another: a rule on one would silently be a rule on both.
_SAME_AS = {
    "SYS_OPEN": "SYS_READ or SYS_WRITE",
    "SYS_LIST": "SYS_READ",
    "SYS_STAT": "SYS_READ",
    "SYS_WATCH": "SYS_READ",
}
_READS = {
    "file": {"read"},
    "mem": {"read", "search"},
    "http": {"get", "head", "options"},
    "agent": {"inspect"},
    "ipc": {"subscribe"},
}
_ABOUT = {"paths": ("file", "mem"), "hosts": ("http",), "methods": ("http",), "max_tokens": ("llm",)}
_LIMITS = {"timeout": "timeout", "max_size": "max_size", "max_tokens": "tokens"}
_CONSTRAINTS = ("paths", "hosts", "methods", *_LIMITS)
_KEYS = {
    "": ("kernel", "signals", "policies", "observability"),
    "kernel": ("version", "mode"),
    "policies": ("action", "effect", "mode", "requires_approval", "rate_limit", "constraints"),
    "observability": ("metrics", "traces", "flight_recorder"),
}
_MILDER = "a project may only be stricter than what the operator says, so {!r} is refused: strict, or no mode at all"
Table = Mapping[str, "Part"]
Wanted = tuple[str, Collection[str], Sequence[str]]  # kind, actions, targets


def read_security(data: bytes, file: str, tools: Tools) -> PolicyFile:
    from agent_os.kernel.authority.policy.marked import read_marked  # the one reader of YAML, not needed by most

    problems = Problems(file)
    root = read_marked(data, problems)
    policy = _Import(problems, tools).file(root, file, data) if root else None
    problems.settle()
    if policy is None:
        raise AssertionError("nothing was read and nothing was wrong")
    return policy


class _Import:
    def __init__(self, problems: Problems, tools: Tools) -> None:
        self._problems, self._tools = problems, tools

    def file(self, root: "Part", file: str, data: bytes) -> PolicyFile:
        top = self._table(root, "")
        self._kernel(top.get("kernel"))
        seen: Table = self._table(top["observability"], "observability") if "observability" in top else {}
        if "flight_recorder" in seen and not self._flag(seen, "flight_recorder", True):
            self._problems.add(seen["flight_recorder"].line, "the flight recorder is never off: true, or no such key")
        return PolicyFile(
            file,
            Layer.PROJECT,
            "deny",
            Mode.STRICT,
            rules=tuple(self._policies(top.get("policies"))),
            signals=self._signals(top.get("signals")),
            metrics=self._flag(seen, "metrics", True) if "metrics" in seen else None,
            traces=self._flag(seen, "traces", True) if "traces" in seen else None,
            text=data,
        )

    def _kernel(self, part: "Part | None") -> None:
        if part is None:
            return
        table = self._table(part, "kernel")
        if "version" in table and self._text(table["version"], "kernel.version") != "1.0":
            self._problems.add(table["version"].line, 'kernel.version is "1.0"; another is not known')
        if "mode" in table and (mode := self._text(table["mode"], "kernel.mode")) != "strict":
            known = mode in ("permissive", "audit")
            self._problems.add(table["mode"].line, _MILDER.format(mode) if known else f"there is no mode {mode!r}")

    def _signals(self, part: "Part | None") -> frozenset[str] | None:
        if part is None:
            return None
        names: set[str] = {signal.name for signal in UNMASKABLE}
        for one in self._items(part, "signals"):
            name = self._text(one, "signals")
            if name not in AgentSignal.__members__:
                self._problems.add(one.line, f"there is no signal {name!r}{nearest(name, AgentSignal.__members__)}")
            names.add(name)
        return frozenset(names)

    def _policies(self, part: "Part | None") -> list[Rule]:
        items = self._items(part, "policies") if part else []
        rules = [self._policy(one, number) for number, one in enumerate(items, 1)]
        return [rule for rule in rules if rule is not None]

    def _policy(self, part: "Part", number: int) -> Rule | None:
        table = self._table(part, "policies")
        if "action" not in table:
            self._problems.add(part.line, "a policy needs an 'action'")
            return None
        action = self._text(table["action"], "action")
        effect = self._effect(table)
        limits = self._constraints(table.get("constraints"), effect)
        mode = self._word(table, "mode", ("read_only", "read_write"))
        if mode and effect is Effect.FORBID:
            self._problems.add(table["mode"].line, "'mode' limits what is allowed; it says nothing on what is denied")
        wanted = self._wanted(action, mode, limits, table)
        rate = self._rate(table.get("rate_limit"), effect)
        if wanted is None:
            return None
        what = [one for kind, actions, targets in wanted for one in self._what(kind, actions, targets, limits, effect)]
        where = self._problems.where(part.line)
        everybody = (Subject.parse("*"),)
        rule = Rule(f"security-{number}", effect, tuple(what), everybody, where, rate=rate, layer=Layer.PROJECT)
        return rule if what else None

    def _effect(self, table: Table) -> Effect:
        word = self._word(table, "effect", ("allow", "deny"))
        asks = "requires_approval" in table and self._flag(table, "requires_approval", False)
        if asks and word == "deny":
            self._problems.add(table["requires_approval"].line, "what is denied is not asked about: one of the two")
        return Effect.FORBID if word == "deny" else Effect.ASK if asks else Effect.ALLOW

    def _rate(self, part: "Part | None", effect: Effect) -> Rate | None:
        if part is None:
            return None
        if effect is Effect.FORBID:
            self._problems.add(part.line, "rate_limit says nothing on what is denied")
        return self._parsed(part, Rate.parse, self._text(part, "rate_limit"))

    def _constraints(self, part: "Part | None", effect: Effect) -> "Table":
        if part is None:
            return {}
        table = self._pairs(part, "constraints")
        for key, one in table.items():
            if key not in _CONSTRAINTS and not key.startswith("arg."):
                self._problems.add(
                    one.line, f"constraints has no key {key!r}{nearest(key, (*_CONSTRAINTS, 'arg.NAME'))}"
                )
            elif key in _LIMITS and effect is Effect.FORBID:
                self._problems.add(one.line, f"{key!r} limits what is allowed; it says nothing on what is denied")
        return table

    def _wanted(self, action: str, mode: str, limits: Table, table: Table) -> list[Wanted] | None:
        """Kind, actions and targets that a policy is about; None if it cannot be enforced."""
        line = table["action"].line
        if action == "*":
            return self._everything(mode, limits)
        if action in self._tools:
            return self._tool(action, mode, limits, line)
        if action in _SAME_AS:
            self._problems.add(line, f"{action} needs the same authority as {_SAME_AS[action]}: name that")
        elif action in BY_NAME and action not in _RULED:
            bare = set(table) <= {"action", "effect"} and self._effect(table) is Effect.ALLOW
            if bare:
                return []  # it is always allowed
            self._problems.add(line, f"{action} needs no authority, so no rule can take it away or limit it")
        elif action not in _RULED:
            known = (*self._tools, *_RULED, "*")
            self._problems.add(line, f"there is no syscall and no registered tool {action!r}{nearest(action, known)}")
        else:
            return self._syscall(action, mode, limits, line)
        return None

    def _everything(self, mode: str, limits: Table) -> list[Wanted]:
        for key in limits:
            if key.startswith("arg."):
                self._problems.add(limits[key].line, f"{key!r} is about one tool: name it as the action")
        about = {kind for key in limits for kind in _ABOUT.get(key, ())}
        kept = [_LIMITS[key] for key in _LIMITS if key in limits]
        wanted: list[Wanted] = []
        for kind in (kind for kind in ACTIONS if not about or kind in about):
            actions = _READS.get(kind, set()) if mode == "read_only" else ACTIONS[kind]
            if not about:  # what cannot be held to a limit is not allowed; what is named is, and then that is said
                actions = set(actions).intersection(*(held_to(limit, kind) for limit in kept))
            if kind == "http" and "methods" in limits:
                actions = set(actions) & self._methods(limits["methods"])
            if kind == "tool" and mode == "read_only":
                pure = [name for name, declared in self._tools.items() if declared == Class.PURE]
                wanted += [("tool", {"call"}, pure)] if pure else []
            elif actions:
                wanted.append((kind, actions, self._targets(kind, limits)))
        return wanted

    def _tool(self, name: str, mode: str, limits: Table, line: int) -> list[Wanted]:
        if mode and self._tools[name] is None:
            self._problems.add(line, f"the tool {name!r} declares no class, so nobody knows whether it only reads")
        elif mode == "read_only" and self._tools[name] != Class.PURE:
            self._problems.add(
                line, f"the tool {name!r} does not only read, so read_only leaves nothing of it: deny it"
            )
        for key in ("paths", "hosts", "methods", "max_tokens"):
            if key in limits:
                self._problems.add(limits[key].line, f"{key!r} of a tool cannot be known: limit its argument, arg.NAME")
        return [("tool", {"call"}, [name])]

    def _syscall(self, action: str, mode: str, limits: Table, line: int) -> list[Wanted]:
        ruled = _RULED[action]
        kinds = {kind for kind, _ in ruled}
        for key, part in limits.items():
            if key in _ABOUT and not kinds & set(_ABOUT[key]):
                self._problems.add(part.line, f"{key!r} says nothing of {action}")
            elif key.startswith("arg."):
                self._problems.add(part.line, f"{key!r} is about one tool: name it as the action")
        if mode == "read_only" and not any(verb in _READS.get(kind, ()) for kind, verb in ruled):
            self._problems.add(line, f"{action} does not only read, so read_only leaves nothing of it: deny it")
        return [(kind, {verb}, self._targets(kind, limits)) for kind, verb in ruled]

    def _targets(self, kind: str, limits: Table) -> Sequence[str]:
        key = {"file": "paths", "mem": "paths", "http": "hosts"}.get(kind, "")
        if key in limits:
            return self._named(limits[key], key)
        return ["/**"] if kind in ("file", "mem") else [""] if kind == "shell" else ["*"]

    def _named(self, part: "Part", key: str) -> list[str]:
        items = self._items(part, key)
        if not items:
            self._problems.add(part.line, f"{key!r} names nothing, so the policy would hold for nothing: leave it out")
        for one in items:
            if key == "paths" and not self._text(one, key).startswith("/"):
                self._problems.add(one.line, f"{self._text(one, key)!r} is no path from the root, as /work/… is")
        return [self._text(one, key) for one in items]

    def _methods(self, part: "Part") -> set[str]:
        methods = [(one, self._text(one, "methods").lower()) for one in self._items(part, "methods")]
        for one, method in methods:
            if method not in ACTIONS["http"]:
                self._problems.add(one.line, f"there is no method {method!r}{nearest(method, ACTIONS['http'])}")
        return {method for _, method in methods}

    def _what(
        self, kind: str, actions: Collection[str], targets: Sequence[str], limits: Table, effect: Effect
    ) -> list[Capability]:
        """Written out in the URI form, which has an escape for everything, and read like any other rule."""
        about = {key: part for key, part in limits.items() if key in _LIMITS or key.startswith("arg.")}
        loose = {key: not_held(_LIMITS[key], kind, actions) for key in about if key in _LIMITS}
        for key in (key for key, why in loose.items() if why and kind in _ABOUT.get(key, (kind,))):
            self._problems.add(about.pop(key).line, loose[key])
        tail = "".join(self._parameter(key, part) for key, part in about.items() if kind in _ABOUT.get(key, (kind,)))
        found: list[Capability] = []
        for target in targets:
            place = quote(target.removeprefix("/"), safe="/*:.[]@+~-_,=!$'() ", encoding="utf-8")
            text = f"capability://{kind}{'/' if place else ''}{place}?action={','.join(sorted(actions))}{tail}"
            part = limits.get("paths" if kind in ("file", "mem") else "hosts", next(iter(about.values()), None))
            one = self._parsed(part, lambda text: rule_capability(text, effect), text)
            found += [one] if one else []
        return found

    def _parameter(self, key: str, part: "Part") -> str:
        items = part.value if isinstance(part.value, list) else [part]
        values = [self._text(one, key) for one in items]
        return f"&{_LIMITS.get(key, key)}={','.join(quote(value, safe='*./:@ ') for value in values)}"

    def _parsed(self, part: "Part | None", parse: Callable[[str], T], text: str) -> T | None:
        try:
            return parse(text)
        except AgentOSError as error:
            self._problems.add(
                part.line if part else 0, f"{error.reason} ({error.hint})" if error.hint else error.reason
            )
            return None

    def _word(self, table: Table, key: str, known: Sequence[str]) -> str:
        if key not in table:
            return ""
        word = self._text(table[key], key)
        if word not in known:
            line = table[key].line
            self._problems.add(line, f"{key!r} is {word!r}, which is none of {', '.join(known)}{nearest(word, known)}")
        return word

    def _flag(self, table: Table, key: str, default: bool) -> bool:
        if isinstance(value := table[key].value, bool):
            return value
        self._problems.add(table[key].line, f"{key!r} is true or false")
        return default

    def _text(self, part: "Part", key: str) -> str:
        if isinstance(part.value, bool):
            return "true" if part.value else "false"
        if isinstance(part.value, str):
            return part.value
        self._problems.add(part.line, f"{key!r} is one text here, not a list, a table or nothing")
        return ""

    def _items(self, part: "Part", key: str) -> list["Part"]:
        if isinstance(part.value, list):
            return part.value
        self._problems.add(part.line, f"{key!r} is a list")
        return []

    def _table(self, part: "Part", name: str) -> Table:
        table = self._pairs(part, name)
        known = _KEYS[name]
        for key, one in table.items():
            if key not in known:
                inside = name or "the file"
                self._problems.add(one.line, f"{inside} has no key {key!r} that can be enforced{nearest(key, known)}")
        return {key: one for key, one in table.items() if key in known}

    def _pairs(self, part: "Part", name: str) -> Table:
        if isinstance(part.value, dict):
            return part.value
        self._problems.add(part.line, f"{name!r} is a table of keys" if name else "there are no keys in it")
        return {}
