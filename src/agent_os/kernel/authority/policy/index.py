"""The compiled rules: which of them are about a call, found in time that does not grow with their number.

Owns the index. Goes in, once: rules, each with the place of its file. Then, per call: who, and what it needs. Comes
out: the rules that match, unweighed (`layers` does that). Hashed by kind and action, then a trie along the target, at
whose ends the rules lie by whom they are about; each knows its file. So one walk serves all layers, roles and names,
with the answer of a trie for each. Nothing is parsed or compiled per call.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.constraints import NO_FACTS, Facts
from agent_os.kernel.authority.patterns import ROOTED
from agent_os.kernel.authority.policy.conditions import Judge, judge_of, limits_of
from agent_os.kernel.authority.policy.rules import Effect, Rule, Subject
from agent_os.kernel.authority.policy.trie import Trie
from agent_os.kernel.calls import Need

_MOST_KNOWN = 4096  # agents whose tables are remembered


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
        if len(self._known) >= _MOST_KNOWN:
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
