"""The gate's step 3: what the policy in force says of a call.

In: a call with the handles that it rests on. Out: `GO`, questions for a person left on its marks, or EPOLICY naming the
rule, its file and line; EAGAIN where only a rate is reached. What an agent's project adds to the common policy is read
once, when it starts, and weighed again whenever the common policy changes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from agent_os.abi.errors import EAGAIN, EPOLICY
from agent_os.abi.syscalls import BY_NAME
from agent_os.drivers.store import Put
from agent_os.kernel.authority.constraints import NO_FACTS, Facts, Rate
from agent_os.kernel.authority.flows import FlowRules
from agent_os.kernel.authority.handles import Bucket
from agent_os.kernel.authority.patterns import Pattern
from agent_os.kernel.authority.policy.layers import STRICTNESS, Current, Decision, Policy, Would, strictest
from agent_os.kernel.authority.policy.rules import Effect, Layer, Mode, PolicyFile, Rule
from agent_os.kernel.authority.questions import Question
from agent_os.kernel.calls import GO, SAID, Act, Door, Need
from agent_os.kernel.table import Agent, Party

KEPT = "policies"  # the bucket: agent → the files of its project, as its first life found them
_READ = BY_NAME["SYS_READ"].number
_MOST_KNOWN = 256  # policies whose tables are remembered
Together = Mapping[str, tuple[tuple[PolicyFile, ...], Policy]]  # by agent: its own files, and what they come to


class Tried(NamedTuple):
    """What a rule in shadow mode would have done, had it been enforced."""

    effect: str
    what: str  # kind:target:action
    rule: str
    where: str


class Policies:
    """The policy in force for each agent: the common one, and what its own project says on top of it."""

    def __init__(self, current: Current) -> None:
        self.current = current
        self._own: dict[str, tuple[PolicyFile, ...]] = {}
        self._put_together: dict[str, tuple[int, Policy]] = {}
        self._flow: dict[Policy, FlowRules] = {}
        self.told: Callable[[Agent, Tried], None] = lambda agent, tried: None  # what a rule in shadow would have said

    @property
    def version(self) -> int:
        return self.current.version

    def add(self, agent: str, files: Sequence[PolicyFile]) -> None:
        """EINVAL where they cannot stand below the common policy; then nothing of them is in force."""
        Policy(files, self.current.policy)
        self.keep(agent, files)

    def keep(self, agent: str, files: Sequence[PolicyFile]) -> None:
        """What was found good before: of a parent, or of an earlier life."""
        self._put_together.pop(agent, None)
        self._own[agent] = tuple(files)

    def forget(self, agent: str) -> list[Put]:
        self._put_together.pop(agent, None)
        return [Put(KEPT, agent, None)] if self._own.pop(agent, None) else []

    def own(self, agent: str) -> tuple[PolicyFile, ...]:
        """What its project says on top of the common policy."""
        return self._own.get(agent, ())

    @property
    def trying(self) -> list[str]:
        """Whose own rules are tried, and not enforced."""
        return [agent for agent, files in self._own.items() if any(file.tried for file in files)]

    def of(self, agent: str) -> Policy:
        own = self._own.get(agent)
        if not own:
            return self.current.policy
        known = self._put_together.get(agent)
        if known is None or known[0] != self.version:
            known = self._put_together[agent] = (self.version, below(own, self.current.policy))
        return known[1]

    def compiled(self, policy: Policy) -> Together:
        """What every agent's own files come to below a new common policy. Changes nothing: it may run in a thread."""
        return {agent: (own, below(own, policy)) for agent, own in list(self._own.items())}

    def take(self, policy: Policy, together: Together) -> None:
        """The swap: one pointer, and from here on every call is weighed by the new policy."""
        self.current.take(policy)
        known = {agent: one for agent, (own, one) in together.items() if self._own.get(agent) is own}
        self._put_together = {agent: (self.version, one) for agent, one in known.items()}

    def measures(self, agent: str, kind: str) -> bool:
        """Whether it matters how much a call of this kind moves."""
        return self.of(agent).measures(kind)

    def require_size(self, agent: Agent, needs: Sequence[Need], facts: Facts) -> None:
        """For data that comes bit by bit: so much of it is still within what rules allow one call."""
        policy = self.of(agent.id)
        if policy.measures(needs[0].kind):
            _require_size(policy, agent, needs, weigh(policy, agent, needs, facts), facts["size"])

    def flow(self, agent: Agent) -> FlowRules:
        """What the policy of an agent says of labels."""
        policy = self.of(agent.id)
        known = self._flow.get(policy)
        if known is None:
            if len(self._flow) >= _MOST_KNOWN:
                self._flow.clear()
            known = self._flow[policy] = FlowRules(policy.classes, policy.sources, policy.sinks)
        return known


def below(own: Sequence[PolicyFile], common: Policy) -> Policy:
    """An agent's own files under a common policy that may have become stricter since they were read: then so have
    they. Whoever writes a project cannot hold up the operator's change."""
    raised = [
        file
        if file.tried or STRICTNESS[file.mode] >= STRICTNESS[common.mode] or len(common.files) == 1
        else replace(file, mode=common.mode)
        for file in own
    ]
    return Policy(raised, common)


def decide(
    policy: Policy, agent: Agent, needs: Sequence[Need], facts: Facts = NO_FACTS, *, folds: bool = False
) -> Decision:
    """The strictest of what holds for an agent and for all above it: it chose its own name, or they did."""
    roles = agent.order.get("roles", ())
    if not agent.above and len(roles) < 2:  # most, and this is asked of every call
        return policy.decide_all(agent.name, roles[0] if roles else "", needs, facts, folds=folds)
    return strictest([policy.decide_all(name, role, needs, facts, folds=folds) for name, role in agent.parties])


def forbidden(
    policy: Policy, parties: Sequence[Party], need: Need, facts: Facts = NO_FACTS, *, folds: bool = False
) -> Decision | None:
    """Only what a rule about one of these forbids in so many words."""
    each = (policy.forbidden(name, role, need, facts, folds=folds) for name, role in parties)
    found = [one for one in each if one]
    return strictest(found) if found else None


def weigh(policy: Policy, agent: Agent, needs: Sequence[Need], facts: Facts = NO_FACTS) -> Decision:
    """As `decide`, by every name that the files of a call have: a rule may have been written with any of them."""
    decision = decide(policy, agent, needs, facts)
    root = agent.root
    if root is None or decision.effect is Effect.FORBID:
        return decision
    found: list[Decision | None] = []
    for need in needs:
        if need.kind != "file":
            continue
        # Where case makes no difference, .ENV is .env to whoever forbids it.
        if policy.sees_case(need) and root.folds(need.target):
            found.append(decide(policy, agent, [need], facts, folds=True))
        # A workspace has a second name, and links give others.
        said: Sequence[str] = facts.get(SAID, ())
        for path in (*said, *map(root.host_name, (need.target, *said))):
            if path:
                other = Need("file", need.action, path)
                folds = policy.sees_case(other) and root.folds(need.target)
                found += (policy.restricted(name, role, other, facts, folds=folds) for name, role in agent.parties)
    more = [one for one in found if one]
    return strictest([decision, *more]) if more else decision


class PolicyStep:
    def __init__(self, policies: Policies, steady: Callable[[], float] = time.monotonic) -> None:
        self._policies, self._steady = policies, steady
        self._buckets: dict[tuple[str, str, str], Bucket] = {}

    def check(self, passing: Any) -> object:
        caller = passing.caller
        if not isinstance(caller, Agent):
            return GO
        policy = self._policies.of(caller.id)
        if policy.silent or not passing.act.needs:
            return GO
        marks = passing.marks
        act = passing.act
        decision = marks.decision = weigh(policy, caller, act.needs, act.facts)
        if policy.shadows and not (marks.dry or marks.tried):
            marks.tried = self._tell_tried(policy, caller, act, decision)
        if decision.effect is Effect.FORBID:
            if act.door and act.door.hides and not self._forbids_all(policy, caller, act):
                raise _hidden(decision, act.door.hides)
            raise _forbidden(decision)
        if "max_size" in decision.limits:
            size = act.facts.get("size")
            if size is None and passing.asked.op == _READ and not marks.dry:  # the rule came while this waited
                raise EAGAIN("policy.size", "a rule says now how much one call may read; ask again", retry_after_ms=0)
            _require_size(policy, caller, act.needs, decision, size or 0)
        if decision.rates and not marks.dry:
            marks.rated = self._count(caller, decision.rates, marks.rated)
        if decision.asks:
            marks.questions += [_question(rule) for rule in decision.asks]
        if act.door and act.door.hides:
            marks.questions += [_question(rule) for rule in rules_within(policy, caller, act.door.hides)]
        if act.door and act.door.leads:
            self._check_leads(policy, caller, act.door, act.facts, marks)
        return GO

    def _tell_tried(self, policy: Policy, caller: Agent, act: Act, decision: Decision) -> bool:
        """Whoever tries rules out hears of each that would have refused or asked. Whether there was any."""
        would = {id(one.rule): one for one in decision.would}
        hidden = shadowed_within(policy, caller, act.door.hides) if act.door and act.door.hides else []
        would |= {id(rule): Would(rule.effect, rule, rule.layer) for rule in hidden}
        for one in would.values():
            concerned = (need for need in act.needs if one in weigh(policy, caller, [need], act.facts).would)
            self._policies.told(caller, tried_by(policy, one, next(concerned, act.needs[0])))
        return bool(would)

    def _check_leads(self, policy: Policy, caller: Agent, door: Door, facts: Facts, marks: Any) -> None:
        """Where a name leads has names of its own, and what rules say of those in so many words holds as well. Whoever
        did not write them has violated nothing."""
        found: dict[str, Rule] = {}
        for need in door.leads:
            host = need.target.partition("/")[0]
            hits = (hit for name, role in caller.parties for hit in policy.find(name, role, need, facts))
            within = rules_within(policy, caller, host) if door.hides else []
            for rule in (*(hit.rule for hit in hits if policy.files[hit.slot].mode is not Mode.SHADOW), *within):
                if rule.effect is Effect.FORBID:
                    reason = f"{rule.reason or f'the rule {rule.id!r} forbids it'}; it leads to {need.target}"
                    raise EPOLICY("policy.forbid", reason, rule=rule.id, where=str(rule.where), violation="refuse")
                found[f"{rule.where}"] = rule
        if not marks.dry:
            marks.rated = self._count(caller, list(found.values()), marks.rated)
        asked = {one.rule for one in marks.questions}
        questions = [_question(rule) for rule in found.values() if rule.effect is Effect.ASK]
        marks.questions += [one for one in questions if one.rule not in asked]

    def _forbids_all(self, policy: Policy, caller: Agent, act: Act) -> bool:
        each = (decide(policy, caller, [need], act.facts) for need in act.needs)
        return all(one.effect is Effect.FORBID for one in each)

    def _count(self, agent: Agent, rules: Sequence[Rule], counted: Sequence[object]) -> Sequence[object]:
        """All or none of the rates take this call; those that did before it waited, not again. Which did by now. What
        an agent does counts for everybody above it that the rule is about: no family is quicker than its head."""
        found: dict[object, Bucket] = {}
        for rule, party in ((rule, party) for rule in rules for party in agent.parties if rule.about([party])):
            key = (party[0], rule.where.file, rule.id)
            if rule.rate is None or key in counted:
                continue
            rate = Rate(rule.rate.count, int(rule.rate.seconds * 1000))
            bucket = self._buckets.get(key)
            if bucket is None or bucket.rate != rate:
                bucket = self._buckets[key] = Bucket(rate)
            if wait := bucket.wait_ms(self._steady()):
                reason = f"the rule {rule.id!r} ({rule.where}) allows {rule.rate}"
                raise EAGAIN("policy.rate", reason, retry_after_ms=wait, rule=rule.id)
            found[key] = bucket
        for bucket in found.values():
            bucket.take()
        return (*counted, *found)


def _require_size(policy: Policy, agent: Agent, needs: Sequence[Need], decision: Decision, size: int) -> None:
    most = decision.limits.get("max_size", size)
    if size <= most:
        return
    hits = (hit for need in needs for name, role in agent.parties for hit in policy.find(name, role, need))
    rule = next((hit.rule for hit in hits if hit.limits.get("max_size") == most), None)
    who, where = (f"the rule {rule.id!r}", str(rule.where)) if rule else ("a rule", "")
    reason = f"{who} allows {most:,} bytes in one call, and this has {size:,}"
    raise EPOLICY("policy.size", reason, rule=rule.id if rule else "", where=where, violation="refuse", limit=most)


def _hidden(decision: Decision, host: str) -> EPOLICY:
    """A rule is about some of what a tunnel could do. Nobody sees whether it does: refused, and no violation."""
    reason = f"{decision.reason}; that is a part of {host}, and a tunnel would hide it"
    rule = decision.rule.id if decision.rule else ""
    return EPOLICY("policy.tunnel", reason, rule=rule, where=str(decision.where or ""), violation="refuse")


def tried_by(policy: Policy, would: Would, need: Need) -> Tried:
    """For people, with where it stands; of a file that denies by default, the file."""
    rule = would.rule
    where = str(rule.where) if rule else next(one.file for one in policy.files if _denies(one, would.layer))
    what = f"{need.kind}:{need.target}:{need.action}"
    return Tried(str(would.effect), what, rule.id if rule else "default", where)


def _denies(file: PolicyFile, layer: Layer) -> bool:
    return file.layer is layer and file.default == "deny" and file.mode is Mode.SHADOW


def shadowed_within(policy: Policy, caller: Agent, host: str) -> list[Rule]:
    """Rules in shadow mode about paths of a host, which would have refused or asked about a tunnel to it."""
    return [rule for file, rule in _within(policy, caller, host) if file.mode is Mode.SHADOW]


def _within(policy: Policy, caller: Agent, host: str) -> Iterator[tuple[PolicyFile, Rule]]:
    """Rules that restrict a part of a host, and are about this agent."""
    whole = Pattern("http", (), subtree=True, host=host)
    for file, rule in policy.rules():
        parts = [one.target for one in rule.what if one.kind == "http" and not whole.within(one.target)]
        restricts = rule.effect is not Effect.ALLOW and any(one.matches_host(host) for one in parts)
        if restricts and rule.about(caller.parties):
            yield file, rule


def rules_within(policy: Policy, caller: Agent, host: str) -> list[Rule]:
    """Rules about paths of a host that a tunnel would hide: those that ask. One that forbids, forbids the tunnel."""
    found: list[Rule] = []
    for file, rule in _within(policy, caller, host):
        if file.mode is Mode.SHADOW:
            continue
        if rule.effect is Effect.FORBID:
            reason = f"the rule {rule.id!r} forbids a part of {host}, and a tunnel would hide it"
            raise EPOLICY("policy.tunnel", reason, rule=rule.id, where=str(rule.where), violation="refuse")
        found.append(rule)
    return found


def _question(rule: Rule) -> Question:
    reason = rule.reason or f"the rule {rule.id!r} ({rule.where}) asks"
    return Question(rule.name, reason, rule.approvers, rule.deadline_s, rule.scopes)


def _forbidden(decision: Decision) -> EPOLICY:
    rule, layer = decision.rule, decision.layer
    code = "policy.forbid" if rule else "policy.unmatched"
    return EPOLICY(
        code,
        decision.reason,
        rule=rule.id if rule else "",
        where=str(decision.where or ""),
        layer=layer.name.lower() if layer is not None else "",
        mode=str(decision.mode),
        violation=decision.violation,
    )
