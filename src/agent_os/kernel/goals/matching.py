"""Which agent a goal is for: the named one, else the ready agent of the tenant whose own words match best.

In: the goal's text and what agents declare of themselves (labels, skills), whether they are ready and how much they
have to do. Out: one agent and, in words, why it; or ENOENT with the choices. No model guesses. Looks nothing up.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from msgspec import Struct, field

from agent_os.abi.errors import ENOENT, ESRCH
from agent_os.kernel.goals.goal import MEMORY_MB, Goal
from agent_os.manifest.names import SYSTEM, ids

_WORD = re.compile(r"[^\W_]+")
_MOST_CHOICES = 20  # named in an error


class Candidate(Struct, frozen=True):
    id: str  # namespace/name; the namespace is the tenant
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    skills: Sequence[str] = ()
    ready: bool = True
    load: int = 0  # goals that wait for it or that it is at
    memory_mb: int = MEMORY_MB  # that it declares

    @property
    def tenant(self) -> str:
        return self.id.partition("/")[0]

    def words(self) -> frozenset[str]:
        return words(" ".join((*self.skills, *self.labels, *self.labels.values())))


class Choice(NamedTuple):
    candidate: Candidate
    picked_by: str  # for the queue entry


def words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


def pick(goal: Goal, candidates: Iterable[Candidate]) -> Choice:
    """ESRCH: nobody has the name that the goal gives. ENOENT: it gives none, and nobody matches."""
    known = list(candidates)
    if goal.agent is not None:
        return Choice(_named(goal.agent, goal.tenant, known), "named")
    wanted = words(goal.text)
    able = [one for one in known if one.tenant == goal.tenant and one.ready]
    scored = [(wanted & one.words(), one) for one in able]
    if not any(common for common, _ in scored):
        raise _nobody(goal.tenant, able)
    common, best = min(scored, key=lambda found: (-len(found[0]), found[1].load, found[1].id))
    return Choice(best, _why(common, best, scored))


def _why(common: frozenset[str], best: Candidate, scored: list[tuple[frozenset[str], Candidate]]) -> str:
    equals = sum(len(other) == len(common) for other, _ in scored)
    matches = f"matches {', '.join(sorted(common))}"
    return matches if equals == 1 else f"{matches}; least loaded of {equals} ({best.load})"


def _named(name: str, tenant: str, known: list[Candidate]) -> Candidate:
    """A bare name means the tenant's, then one of the system's. It need not be ready: then the goal waits for it."""
    by_id = {one.id: one for one in known}
    if found := next((by_id[one] for one in ids(name, tenant) if one in by_id), None):
        return found
    names = [one.id.removeprefix(f"{tenant}/") for one in known if one.tenant in (tenant, SYSTEM)]
    near = get_close_matches(name[:128], names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "agentctl ps lists who is running"
    raise ESRCH("agent.unknown", f"there is no agent {name[:128]!r}", hint=hint)


def _nobody(tenant: str, able: list[Candidate]) -> ENOENT:
    shown = sorted(able, key=lambda one: one.id)[:_MOST_CHOICES]
    choices = [f"{one.id.partition('/')[2]} ({', '.join(sorted(one.words())) or 'declares nothing'})" for one in shown]
    if not choices:
        return ENOENT("goal.agent", f"no agent of {tenant} is ready", hint="start one, or name the agent", choices=[])
    reason = f"no agent of {tenant} has a word of this goal among its labels and skills; there are {', '.join(choices)}"
    return ENOENT("goal.agent", reason, hint="name the agent", choices=[one.id for one in shown])
