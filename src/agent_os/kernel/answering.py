"""How a call ends: it is refused, or something came of it. Recorded first, then answered.

In: a call on its way, and its end: an error, or what its deed gave. Out: one entry in the journal with all that the
store must hold with it, and, when that is committed, one answer. Whatever cannot be told as it is, is told as an error:
nobody waits for ever. Also calls with a key, of which one acts and all others get its outcome. Decides nothing.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Raw

from agent_os.abi import frames
from agent_os.abi.entries import INLINE_BODY, Entry, Kind, Verdict
from agent_os.abi.errors import ECANCELED, EINVAL, EPIPE, EPOLICY, AgentOSError
from agent_os.drivers.store import Blob, Put, Store
from agent_os.kernel.authority.ruling import Policies
from agent_os.kernel.calls import Done, Way
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.passing import (
    CAPABILITY,
    NOTHING,
    POLICY,
    Passing,
    Steps,
    fault,
    held_for,
    is_violation,
    step_of,
    untold,
)
from agent_os.kernel.recorded import Recorded, body, digest, hashed
from agent_os.kernel.table import Agent
from agent_os.kernel.telling import bare, body_of, draft_of, sign
from agent_os.kernel.weighing import Weighing

Violated = Callable[[Agent, AgentOSError], None]
_KEY_NS = 24 * 3600 * 10**9


class Answering:
    def __init__(
        self, journal: Journal, store: Store, policies: Policies, steps: Steps, weighing: Weighing, violated: Violated
    ) -> None:
        """`violated` hears of a refusal for which its caller must not go on, when that is on disk."""
        self._journal, self._store, self._policies = journal, store, policies
        self._steps, self._weighing, self._violated = steps, weighing, violated
        self._keyed: dict[tuple[str, str], list[Passing]] = {}  # calls with a key under way: the first, and who waits

    # Refused.

    def refuse(self, passing: Passing, step: int, error: AgentOSError) -> None:
        try:
            self._steps.budget.release(passing)
            self._steps.approval.refused(passing, error)
            if passing.act.refused:
                passing.act.refused()
            draft = self.draft(passing, Kind.DECISION, body_of(passing, error), error.number)
            draft.rule = str(error.detail.get("rule", ""))
            self._put_refusal(passing, step, error, draft)
        except Exception as bug:  # refused it stays
            broken = self._journal.failed or fault(step, bug)
            try:
                self._put_refusal(passing, step, broken, bare(passing, Kind.DECISION, broken))
            except Exception:
                self.finish(passing, frames.NIL, broken)

    def _put_refusal(self, passing: Passing, step: int, error: AgentOSError, draft: Draft) -> None:
        draft.step, draft.verdict = step, Verdict.FORBID if isinstance(error, EPOLICY) else Verdict.REFUSE
        done = partial(self.finish, passing, frames.NIL, error)
        seq = self._journal.put(draft, sync=True, puts=held_for(passing, error), done=done)
        if isinstance(passing.caller, Agent) and passing.caller.outside:  # whom no replay tells the same again
            error.detail["decision"] = f"d-{seq}"

    # Done, or failed at it.

    def record(self, passing: Passing, done: Done | None, error: AgentOSError | None, *, undone: bool = False) -> None:
        """Write what became of it; the answer leaves when that is committed. `undone`: nothing did."""
        if passing.abandoned and done is None and isinstance(error, ECANCELED | EPIPE):
            self._never_was(passing, error)
            return
        try:
            self._put_outcome(passing, done, error, undone)
        except Exception as bug:  # whatever cannot be told, nobody waits for an answer for ever
            if self._journal.failed is None:
                self._put_untold(passing, done, untold(bug))
            elif passing.caller.operator and passing.act.way is Way.RESULT:  # who else could look, kill and stop now?
                self._committed(passing, frames.body(done.value) if done else frames.NIL, error)
            else:
                self.finish(passing, frames.NIL, self._journal.failed)

    def _put_outcome(self, passing: Passing, done: Done | None, error: AgentOSError | None, undone: bool) -> None:
        act, asked, steps, marks = passing.act, passing.asked, self._steps, passing.marks
        puts: Sequence[Put] = ()
        blobs: Sequence[Blob] = ()
        value = kept = frames.NIL
        if done is not None:
            puts, blobs = done.puts, done.blobs
            if done.value is not None:
                value = kept = frames.body(done.value)
            if done.kept is not None:
                kept = frames.body(done.kept)
            elif len(bytes(value)) > INLINE_BODY and passing.caller.operator and self._is_look(passing):
                kept = frames.body(hashed(bytes(value)))
        if passing.given_up and error is None and act.way is Way.EFFECT:
            error = ECANCELED(
                "cancelled", "given up, but it had begun and came to its end", outcome=done and done.value
            )
        said = body(asked.raw, kept, error, act.record)
        brought = () if undone else steps.labels.take_in(passing, done.label if done else None)
        cost = (
            steps.budget.forgo(passing)
            if undone
            else steps.budget.settle(passing, done.spent if done else passing.act.lost)
        )
        rows = () if passing.intent else steps.approval.rows(passing)
        if more := [*marks.puts, *rows]:
            puts = [*puts, *more]
        if brought or error:
            puts = [*puts, *brought, *held_for(passing, error)]
        if asked.key is not None:
            puts = [*puts, Put("keys", f"{passing.caller.id}\0{asked.key}", str(self._journal.next_seq).encode())]
        if act.way is Way.RESULT and not passing.intent:
            kind, sync = Kind.RESULT, bool(more)
        else:
            kind, sync = Kind.OUTCOME, True
        draft = self.draft(passing, kind, said, error.number if error else 0)
        draft.cost = cost
        committed = partial(self._committed, passing, value, error)
        self._journal.put(draft, sync=sync, puts=puts, blobs=blobs, done=committed)
        if done is not None and done.beside:
            for one in done.beside:
                self._journal.put(one, sync=sync)

    def _is_look(self, passing: Passing) -> bool:
        """Whoever looks at the kernel every second would fill the record with what it says of itself: of a long answer
        that changed nothing, its hash is kept. One with a key must be there to be given again."""
        act = passing.act
        return act.way is Way.RESULT and not act.announced and passing.asked.key is None

    def _put_untold(self, passing: Passing, done: Done | None, error: AgentOSError) -> None:
        """What became of it is nothing that can be written down. That it ended is, and all that the store must hold."""
        try:
            steps, draft = self._steps, bare(passing, Kind.OUTCOME, error)
            draft.cost = steps.budget.settle(passing, done.spent if done else passing.act.lost)
            puts = [*(done.puts if done else ()), *passing.marks.puts, *steps.labels.row(passing)]
            puts += () if passing.intent else steps.approval.rows(passing)
            blobs = done.blobs if done else ()
            over = partial(self._committed, passing, frames.NIL, error)
            self._journal.put(draft, sync=True, puts=puts, blobs=blobs, done=over)
        except Exception as bug:  # recovery finds its intent, if it had one
            self.finish(passing, frames.NIL, untold(bug))

    def _never_was(self, passing: Passing, error: AgentOSError) -> None:
        """Its caller is gone before anything was done: the next life asks for it again, so this has no place in the
        program. An intent that says otherwise is ended."""
        if not passing.intent:
            self._steps.budget.release(passing)
            self.finish(passing, frames.NIL, error)
            return
        draft = self.draft(passing, Kind.OUTCOME, body_of(passing, error), error.number)
        draft.pos = draft.key = None
        used, budget = passing.act.lost, self._steps.budget
        draft.cost = budget.settle(passing, used) if used else budget.forgo(passing)
        over = partial(self.finish, passing, frames.NIL, error)
        try:
            self._journal.put(draft, sync=True, puts=passing.marks.puts, done=over)
        except AgentOSError:
            over()

    def _committed(self, passing: Passing, value: Raw, error: AgentOSError | None) -> None:
        if passing.act.answered:
            passing.act.answered()
        self.finish(passing, value, error)

    def finish(self, passing: Passing, value: Raw, error: AgentOSError | None) -> None:
        """What it is answered with is on disk. Forbidden in strict mode, it was the last that its caller did."""
        passing.answer(value, error)
        if passing.keyed and passing.asked.key is not None:
            for other in self._keyed.pop((passing.caller.id, passing.asked.key))[1:]:
                self._hand_on(other, value, error)
        if error is not None and isinstance(passing.caller, Agent) and is_violation(error):
            self._violated(passing.caller, error)

    # The same key again: whoever is first acts, everybody gets that outcome.

    def known(self, passing: Passing, key: str) -> bool:
        """It is answered, now or with the first; else it is the first. EINVAL: the key is another call's."""
        asked, name = passing.asked, (passing.caller.id, key)
        if waiting := self._keyed.get(name):
            first = waiting[0].asked
            _require_same(key, (asked.op, asked.raw), (first.op, first.raw))
            waiting.append(passing)
            return True
        found = self._store.get("keys", f"{name[0]}\0{key}")
        entry, kept = self._journal.read(int(found)) if found else (None, None)
        first = getattr(passing.caller, "first_aseq", 0)  # what is older was another's, who had its name
        if entry is None or entry.aseq < first or (passing.caller.operator and _is_old(entry)):
            self._keyed[name] = [passing]
            passing.keyed = True
            return False
        recorded = Recorded.of(kept)
        _require_same(key, (asked.op, digest(asked.raw)), (entry.op, recorded.digest))
        self._repeat(passing, recorded.value, recorded.error)
        return True

    def _hand_on(self, passing: Passing, value: Raw, error: AgentOSError | None) -> None:
        """It waited for another call with its key. What it may not have any more it is not given."""
        try:
            if self._weighing.has_changed(passing):
                self._weighing.weigh(passing)
        except AgentOSError as refusal:
            self.refuse(passing, step_of(refusal, CAPABILITY), refusal)
        except Exception as bug:
            self.refuse(passing, POLICY, fault(POLICY, bug))
        else:
            self._repeat(passing, value, error)

    def _repeat(self, passing: Passing, value: Raw, error: AgentOSError | None) -> None:
        """Answer with an outcome that is recorded already; that it was given again is recorded as well."""
        passing.act = NOTHING
        said = body(passing.asked.raw, value, error)
        draft = self.draft(passing, Kind.RESULT, said, error.number if error else 0)
        try:
            self._journal.put(draft, sync=False, done=partial(passing.answer, value, error))
        except AgentOSError as broken:
            passing.answer(frames.NIL, broken)

    # An entry.

    def draft(self, passing: Passing, kind: Kind, body: bytes, code: int = 0) -> Draft:
        draft = draft_of(passing, kind, body, code)
        self.sign(passing, draft)
        return draft

    def sign(self, passing: Passing, draft: Draft) -> None:
        """Why it was decided as it was."""
        sign(passing, draft, self._policies)


def _is_old(entry: Entry) -> bool:
    """At a door a key is good for a day."""
    return time.time_ns() - entry.wall_ns > _KEY_NS


def _require_same(key: str, asked: tuple[int, bytes], known: tuple[int, bytes]) -> None:
    if asked != known:
        raise EINVAL("key.reused", f"the key {key!r} belongs to another call", hint="a new call needs a new key")
