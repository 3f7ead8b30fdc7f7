"""Policy as a whole: files in layers, one verdict.

Owns how layers weigh against each other. Goes in: checked files; then, per call, who and what it needs. Comes out: a
`Decision` that names the rule, its file and line, and what follows. The verdict is the strictest over all layers:
forbid, then "no rule of a layer that must allow did", then ask, then allow. A lower layer can therefore only narrow,
and its mode may only be equal or stricter; a file that tries anything else does not load.

A policy never changes. What an agent's project and manifest add is another policy on top of the common one, which they
share; a reload makes a new one beside the old and swaps one pointer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from hashlib import sha256
from typing import Literal

from msgspec import Struct, field

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.capability import STARTING_SET, Capability
from agent_os.kernel.authority.constraints import NO_FACTS, Facts
from agent_os.kernel.authority.patterns import ROOTED, Pattern
from agent_os.kernel.authority.policy.conditions import Judge, judge_of, limits_of
from agent_os.kernel.authority.policy.problems import Problem, Where, refuse
from agent_os.kernel.authority.policy.rules import (
    SCOPES,
    ClassRule,
    DeclassifyRule,
    Effect,
    Layer,
    Mode,
    PolicyFile,
    Rule,
    SinkRule,
    SourceRule,
    Subject,
)
from agent_os.kernel.authority.policy.trie import Trie
from agent_os.kernel.calls import Need

_MOST_TABLES = 4096  # agents whose tables are remembered


# The compiled rules: which of them are about a call, found in time that does not grow with their number. Owns the
# index. Goes in, once: rules, each with the place of its file. Then, per call: who, and what it needs. Comes out:
# the rules that match, unweighed (`layers` does that). Hashed by kind and action, then a trie along the target, at
# whose ends the rules lie by whom they are about; each knows its file. So one walk serves all layers, roles and
# names, with the answer of a trie for each. Nothing is parsed or compiled per call.


class Hit(Struct, frozen=True):
    """One `what` of one rule."""

    rule: Rule
    slot: int  # the place of its file among all, from the top
    order: int  # its place among all rules, from the top
    judge: Judge | None
    limits: dict[str, int]


class Index:
    def __init__(self, rules: Iterable[tuple[int, Rule]]) -> None:
        self._exact: dict[tuple[str, str], Trie[Hit]] = {}  # by kind and action
        self._folded: dict[tuple[str, str], Trie[Hit]] = {}  # what restricts, where case makes no difference
        self._subjects: dict[str, Subject] = {}
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}  # what an agent goes by, remembered
        self._cased: set[tuple[str, str]] = set()  # where a rule that restricts is written with capitals
        for order, (slot, rule) in enumerate(rules):
            for what in rule.what:
                hit = Hit(rule, slot, order, judge_of(what, rule.effect), limits_of(what))
                for subject in rule.agents:
                    self._add(subject, what, hit)

    def _add(self, subject: Subject, what: Capability, hit: Hit) -> None:
        key = _key(subject)
        self._subjects.setdefault(key, subject)
        for action in what.actions:
            place = (what.kind, action)
            # Who reads what is below a folder, lists it.
            base = action == "read" and what.kind in ROOTED and what.target.middle is None
            _trie(self._exact, place).add(what.target, key, hit, base=base)
            if what.kind in ROOTED and hit.rule.effect is not Effect.ALLOW:
                folded = what.target.folded()
                _trie(self._folded, place).add(folded, key, hit, base=base)
                if folded != what.target:
                    self._cased.add(place)

    def find(self, name: str, role: str, need: Need, facts: Facts = NO_FACTS, *, folds: bool = False) -> Sequence[Hit]:
        """Every rule that is about this, from the top. `folds`: the target lies on a file system without regard to
        case, so what restricts is compared without, too."""
        kind, action, target = need
        trie = self._exact.get((kind, action))
        if trie is None:
            return ()
        subjects = self._known.get((name, role)) or self._remember(name, role)
        found = trie.find(target, subjects)
        if folds and (trie := self._folded.get((kind, action))):
            found += trie.find(target.casefold(), subjects)
        if not found:
            return found
        if len(found) > 1:
            found = sorted({id(hit): hit for hit in found}.values(), key=_order)
        return [hit for hit in found if hit.judge is None or hit.judge(facts)]

    def sees_case(self, need: Need) -> bool:
        """Whether `folds` could make a difference for it."""
        place = (need.kind, need.action)
        return place in self._folded and (place in self._cased or need.target != need.target.casefold())

    def _remember(self, name: str, role: str) -> tuple[str, ...]:
        keys = tuple(key for key, subject in self._subjects.items() if subject.covers(name, role))
        if len(self._known) >= _MOST_TABLES:
            self._known.clear()
        self._known[name, role] = keys
        return keys


def _key(subject: Subject) -> str:
    return subject.text if subject.names is None or not subject.names.anything else "*"


def _order(hit: Hit) -> int:
    return hit.order


def _trie(tries: dict[tuple[str, str], Trie[Hit]], place: tuple[str, str]) -> Trie[Hit]:
    if place not in tries:
        tries[place] = Trie(place[0])
    return tries[place]


BUILTIN = PolicyFile("built-in", Layer.BUILTIN, "capability")
DEADLINE_S = 900.0
_MOST_KNOWN = 1024  # decisions that are remembered, of what and of which rules
STRICTNESS = {Mode.SHADOW: 0, Mode.ENFORCE: 1, Mode.STRICT: 2}


class Would(Struct, frozen=True):
    """What a layer in shadow mode would have said."""

    effect: Effect
    rule: Rule | None  # None: none of its rules allowed it
    layer: Layer


class Decision(Struct, frozen=True):
    effect: Effect
    rule: Rule | None = None  # which decided; None: no rule did
    layer: Layer | None = None
    mode: Mode = Mode.STRICT
    violation: Literal["", "kill", "refuse"] = ""  # of a forbid: what becomes of the agent
    reason: str = ""
    asks: tuple[Rule, ...] = ()  # every rule that asks; an approval must satisfy them all
    rates: tuple[Rule, ...] = ()  # every rule whose rate counts this call
    limits: Mapping[str, int] = field(default_factory=dict[str, int])  # timeout in ms, max_size in bytes, tokens
    would: tuple[Would, ...] = ()

    @property
    def where(self) -> Where | None:
        return self.rule.where if self.rule else None

    @property
    def told(self) -> str:
        """The rule as the record names it; one that only would have decided is marked."""
        if self.rule:
            return self.rule.id
        return next((f"would {one.effect}: {one.rule.id if one.rule else 'default'}" for one in self.would), "")

    @property
    def approvers(self) -> frozenset[str] | None:
        """Who may agree, named by every rule that names anybody; None: the operators. Empty: nobody can."""
        named = [frozenset(rule.approvers) for rule in self.asks if rule.approvers]
        return reduce(frozenset[str].intersection, named) if named else None

    @property
    def deadline_s(self) -> float:
        return min((rule.deadline_s for rule in self.asks if rule.deadline_s is not None), default=DEADLINE_S)

    @property
    def scopes(self) -> tuple[str, ...]:
        return tuple(scope for scope in SCOPES if all(scope in rule.scopes for rule in self.asks if rule.scopes))


class Policy:
    """Some files, weighed together, on top of `base`."""

    def __init__(self, files: Iterable[PolicyFile] = (), base: "Policy | None" = None) -> None:
        self._base = base
        below = base.files if base else (BUILTIN,)
        own = tuple(sorted(files, key=lambda file: file.layer))
        self.files: tuple[PolicyFile, ...] = (*below, *own)
        _check_order(below, own)
        _check_ids(own)
        _check_modes(self.files)
        self._modes = tuple(file.mode for file in self.files)
        self._must_allow = tuple(slot for slot, file in enumerate(self.files) if file.default == "deny")
        self._indexes = base._indexes if base else ()
        if rules := [(slot, rule) for slot, file in enumerate(own, len(below)) for rule in file.rules]:
            self._indexes = (*self._indexes, Index(rules))
        self._decided: dict[tuple[str, str, Need], Decision] = {}  # without facts: who asks for the same hears the same
        self._weighed: dict[tuple[int, ...], Decision] = {}  # by the rules that are about it
        self._quiet = Decision(Effect.ALLOW, mode=self.mode, reason="no rule is about it: the capability decides")

    @property
    def silent(self) -> bool:
        """No rule says anything about anybody."""
        return not self._indexes and not self._must_allow

    @cached_property
    def shadows(self) -> bool:
        """Some file's rules are recorded and not enforced."""
        return Mode.SHADOW in self._modes

    @property
    def mode(self) -> Mode:
        """The strictest there is, but for the built-in layer, which has no say in it."""
        return max(self._modes[1:], key=STRICTNESS.__getitem__, default=Mode.STRICT)

    @property
    def allow_in_process(self) -> bool:
        """Every layer that is there must agree."""
        files = [file for file in self.files if file.layer in (Layer.ORGANISATION, Layer.OPERATOR)]
        return bool(files) and all(file.allow_in_process for file in files)

    @cached_property
    def digest(self) -> bytes:
        """Of what the files say, not of where they lie."""
        parts = (bytes([file.layer]) + sha256(file.text).digest() for file in self.files[1:])
        return sha256(b"".join(parts)).digest()

    def rules(self) -> Iterable[tuple[PolicyFile, Rule]]:
        return ((file, rule) for file in self.files for rule in file.rules)

    @property
    def classes(self) -> tuple[ClassRule, ...]:
        return tuple(one for file in self.files for one in file.classes)

    @property
    def sources(self) -> tuple[SourceRule, ...]:
        return tuple(one for file in self.files for one in file.sources)

    @property
    def sinks(self) -> tuple[SinkRule, ...]:
        return tuple(one for file in self.files for one in file.sinks)

    @property
    def declassify(self) -> tuple[DeclassifyRule, ...]:
        return tuple(one for file in self.files for one in file.declassify)

    @cached_property
    def hidden(self) -> tuple[Pattern, ...]:
        """What rules take out of somebody's sight, now or if their layer were not in shadow mode."""
        return self.forbids("read")

    def forbids(self, action: str) -> tuple[Pattern, ...]:
        """Which files rules forbid somebody to read, write or delete."""
        return tuple(
            what.target
            for _, rule in self.rules()
            if rule.effect is Effect.FORBID
            for what in rule.what
            if what.kind == "file" and action in what.actions
        )

    def measures(self, kind: str) -> bool:
        """Some rule says how much one call of this kind may move."""
        return kind in self._sized

    @cached_property
    def _sized(self) -> frozenset[str]:
        every = (what for file, rule in self.rules() if file.mode is not Mode.SHADOW for what in rule.what)
        return frozenset(what.kind for what in every if "max_size" in what.constraints)

    def forbidden(
        self, name: str, role: str, need: Need, facts: Facts = NO_FACTS, *, folds: bool = False
    ) -> Decision | None:
        """Only what a rule says in so many words: the decision, if one forbids it. Not what no rule allows. In shadow
        mode it is an allow that tells what would have been."""
        found = self.find(name, role, need, facts, folds=folds)
        return self._held_against([hit for hit in found if hit.rule.effect is Effect.FORBID])

    def restricted(
        self, name: str, role: str, need: Need, facts: Facts = NO_FACTS, *, folds: bool = False
    ) -> Decision | None:
        """The same of rules that forbid or ask."""
        found = self.find(name, role, need, facts, folds=folds)
        return self._held_against([hit for hit in found if hit.rule.effect is not Effect.ALLOW])

    def _held_against(self, hits: "Sequence[Hit]") -> Decision | None:
        if not hits:
            return None
        holding = [hit for hit in hits if self._modes[hit.slot] is not Mode.SHADOW]
        would = [Would(hit.rule.effect, hit.rule, self.files[hit.slot].layer) for hit in hits if hit not in holding]
        if forbids := [hit for hit in holding if hit.rule.effect is Effect.FORBID]:
            return self._forbidden(next(filter(self._kills, forbids), forbids[0]), would)
        if holding:
            return self._passed(holding, (), would)
        return Decision(Effect.ALLOW, mode=Mode.SHADOW, reason=self._quiet.reason, would=tuple(would))

    def sees_case(self, need: Need) -> bool:
        """Whether a spelling with other case could be meant by a rule that restricts."""
        return any(index.sees_case(need) for index in self._indexes)

    def find(self, name: str, role: str, need: Need, facts: Facts = NO_FACTS, *, folds: bool = False) -> "list[Hit]":
        """Every rule that is about it, unweighed."""
        return [hit for index in self._indexes for hit in index.find(name, role, need, facts, folds=folds)]

    def decide(
        self,
        name: str,
        role: str,
        need: Need,
        facts: Facts = NO_FACTS,
        *,
        folds: bool = False,
    ) -> Decision:
        """`folds`: the target lies on a file system without regard to case."""
        if facts or folds:
            return self._decide(name, role, need, facts, folds)
        key = (name, role, need)
        known = self._decided.get(key)
        if known is None:
            known = self._decide(name, role, need, facts, folds)
            if len(self._decided) >= _MOST_KNOWN:
                self._decided.clear()
            self._decided[key] = known
        return known

    def _decide(self, name: str, role: str, need: Need, facts: Facts, folds: bool) -> Decision:
        hits: list[Hit] = []
        for index in self._indexes:
            hits += index.find(name, role, need, facts, folds=folds)
        if not hits and not self._must_allow:
            return self._quiet
        # The same rules say the same of everything, unless a layer without one of them has to allow it.
        key = tuple(map(id, hits))
        known = self._weighed.get(key)
        if known is None:
            known = self._weigh(hits, need)
            if not self._must_allow or {hit.slot for hit in hits}.issuperset(self._must_allow):
                if len(self._weighed) >= _MOST_KNOWN:
                    self._weighed.clear()
                self._weighed[key] = known
        return known

    def decide_all(
        self, name: str, role: str, needs: Sequence[Need], facts: Facts = NO_FACTS, *, folds: bool = False
    ) -> Decision:
        """Of a call that needs several things: the strictest."""
        if len(needs) == 1:
            return self.decide(name, role, needs[0], facts, folds=folds)
        return (
            strictest([self.decide(name, role, need, facts, folds=folds) for need in needs]) if needs else self._quiet
        )

    def _weigh(self, hits: "Sequence[Hit]", need: Need) -> Decision:
        forbid: Hit | None = None
        asks: list[Hit] = []
        allows: list[Hit] = []
        would: list[Would] = []
        for hit in hits:
            effect = hit.rule.effect
            if effect is Effect.ALLOW:
                allows.append(hit)
            elif self._modes[hit.slot] is Mode.SHADOW:
                would.append(Would(effect, hit.rule, self.files[hit.slot].layer))
            elif effect is Effect.ASK:
                asks.append(hit)
            elif forbid is None or (self._kills(hit) and not self._kills(forbid)):
                forbid = hit
        if forbid is not None:
            return self._forbidden(forbid, would)
        spoken = {hit.slot for hit in hits}
        silent = [slot for slot in self._must_allow if slot not in spoken]
        # What every agent holds from the start needs no rule; only an explicit one takes it away.
        if silent and not any(one.covers(need) for one in STARTING_SET):
            for slot in silent:
                if self._modes[slot] is not Mode.SHADOW:
                    return self._unmatched(slot, would)
                would.append(Would(Effect.FORBID, None, self.files[slot].layer))
        return self._passed(asks, allows, would)

    def _kills(self, hit: "Hit") -> bool:
        return hit.rule.violation == "kill" or (not hit.rule.violation and self._modes[hit.slot] is Mode.STRICT)

    def _forbidden(self, hit: "Hit", would: Sequence[Would]) -> Decision:
        rule, slot = hit.rule, hit.slot
        return Decision(
            Effect.FORBID,
            rule,
            self.files[slot].layer,
            self._modes[slot],
            "kill" if self._kills(hit) else "refuse",
            rule.reason or f"the rule {rule.id!r} forbids it",
            would=tuple(would),
        )

    def _unmatched(self, slot: int, would: Sequence[Would]) -> Decision:
        file = self.files[slot]
        reason = f"no rule of {file.file} allows it, and its default is deny"
        return Decision(Effect.FORBID, None, file.layer, file.mode, "refuse", reason, would=tuple(would))

    def _passed(self, asks: "Sequence[Hit]", allows: "Sequence[Hit]", would: Sequence[Would]) -> Decision:
        through = [*asks, *allows]
        if not through:
            return Decision(Effect.ALLOW, mode=self.mode, reason=self._quiet.reason, would=tuple(would))
        first = through[0]
        limits: dict[str, int] = {}
        holding = [hit for hit in through if self._modes[hit.slot] is not Mode.SHADOW]
        for hit in holding:
            for name, most in hit.limits.items():
                limits[name] = min(most, limits.get(name, most))
        return Decision(
            first.rule.effect,
            first.rule,
            self.files[first.slot].layer,
            self._modes[first.slot],
            reason=first.rule.reason or f"the rule {first.rule.id!r} {'asks' if asks else 'allows it'}",
            asks=tuple({id(hit.rule): hit.rule for hit in asks}.values()),
            rates=tuple({id(hit.rule): hit.rule for hit in holding if hit.rule.rate}.values()),
            limits=limits,
            would=tuple(would),
        )


def strictest(decisions: Sequence[Decision]) -> Decision:
    """One for all: the first that forbids (those that kill before others), else all questions together."""
    worst = max(decisions, key=_weight)
    if worst.effect is Effect.FORBID or len(decisions) == 1:
        return worst
    limits: dict[str, int] = {}
    for one in decisions:
        for name, most in one.limits.items():
            limits[name] = min(most, limits.get(name, most))
    return Decision(
        worst.effect,
        worst.rule,
        worst.layer,
        worst.mode,
        "",
        worst.reason,
        tuple({id(rule): rule for one in decisions for rule in one.asks}.values()),
        tuple({id(rule): rule for one in decisions for rule in one.rates}.values()),
        limits,
        tuple(would for one in decisions for would in one.would),
    )


def _weight(one: Decision) -> tuple[int, int]:
    return (Effect.ALLOW, Effect.ASK, Effect.FORBID).index(one.effect), one.violation == "kill"


def _check_order(below: Sequence[PolicyFile], own: Sequence[PolicyFile]) -> None:
    if own and own[0].layer < below[-1].layer:
        raise EINVAL("policy.layers", f"{own[0].file} belongs above {below[-1].file}, which is loaded already")


def _check_ids(files: Sequence[PolicyFile]) -> None:
    """Of a layer with several files. What a person agreed to is bound to the layer and the id."""
    first: dict[str, Rule] = {}
    problems: list[Problem] = []
    for rule in (rule for file in files for rule in file.rules):
        known = first.setdefault(rule.name, rule)
        if known.where.file != rule.where.file:
            problems.append(Problem(rule.where, f"there is a rule {rule.id!r} already, at {known.where}"))
    if problems:
        refuse(problems)


def _check_modes(files: Sequence[PolicyFile]) -> None:
    """The built-in layer has no mode of its own. A file that is tried restricts nobody, so it may stand below any: what
    is above it holds all the same."""
    above: PolicyFile | None = None
    for file in (one for one in files[1:] if not one.tried):
        if above and STRICTNESS[file.mode] < STRICTNESS[above.mode]:
            what = f"mode {file.mode} is milder than {above.mode} of {above.file}: a lower layer may only be stricter"
            refuse([Problem(file.mode_where or Where(file.file, 1), what)])
        above = file


class Current:
    """The policy in force, and how it is renewed. `version` grows with every change: whoever waited looks again."""

    def __init__(self, load: Callable[[], Policy]) -> None:
        """A policy that does not load at the start is not survived: the kernel must not run without its rules."""
        self._load = load
        self.policy = load()
        self.version = 1
        self.alarm: EINVAL | None = None  # why the newest files are not in force

    def compile(self) -> Policy:
        """The newest files, read beside what is in force; in a thread, if there are many rules."""
        return self._load()

    def take(self, policy: Policy) -> None:
        """From here on it is in force."""
        self.policy, self.alarm = policy, None
        self.version += 1

    def reload(self) -> Policy:
        """The new policy; if it does not load, the old one stays in force and the reason is raised and kept."""
        try:
            policy = self.compile()
        except EINVAL as error:
            self.alarm = error
            raise
        self.take(policy)
        return policy
