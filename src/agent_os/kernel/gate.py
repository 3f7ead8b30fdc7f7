"""The gate: one function, one order, every door.

A call goes in with its caller; exactly one answer comes out. In between: identify → capability → policy → labels →
budget → approval → record intent → act → record outcome. A step that raises, or says anything but a clean "go on", is a
refusal; a component that is missing refuses whatever would need it. What is answered has been recorded first, so a
reply leaves only when the journal says that its entry is committed.

Steps 1–5 never wait. After any wait the capability and the policy are looked at again, with nothing awaited between
that look and the deed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec import Raw, Struct

from agent_os.abi import frames
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EAPPROVAL, EBUDGET, ECANCELED, EINVAL, EIO, EPERM, EPIPE, ETIMEDOUT, AgentOSError
from agent_os.abi.syscalls import Effect
from agent_os.drivers.store import Blob, Put, Store
from agent_os.kernel.authority.capability import Handle
from agent_os.kernel.calls import Act, Asked, Done, Way
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.recorded import Recorded, body, digest
from agent_os.kernel.table import Agent, Caller

GO = object()
Answer = Callable[[Raw, AgentOSError | None], None]
_ALLOW = int(Verdict.ALLOW)
_IDENTIFY, _CAPABILITY, _KEY, _RECORD = 1, 2, 4, 7
log = logging.getLogger("agent_os.gate")


class Step(Protocol):
    """Policy, labels, budget or approval. Returns GO, or raises what it refuses with."""

    def check(self, passing: "Passing") -> object: ...


class NoPolicy:
    """No rules are loaded, so there is nothing that forbids; a capability was needed all the same."""

    def check(self, passing: "Passing") -> object:
        return GO


class NoLabels:
    """Nothing carries a label yet, so no sink can refuse one."""

    def check(self, passing: "Passing") -> object:
        return GO


class NoBudget:
    def check(self, passing: "Passing") -> object:
        if passing.act.cost:
            raise EBUDGET("budget.absent", "this call costs something, and nothing here keeps budgets yet")
        return GO


class NoApproval:
    def check(self, passing: "Passing") -> object:
        if passing.act.ask:
            raise EAPPROVAL("approval.absent", f"a person must be asked ({passing.act.ask}), and nobody can be yet")
        return GO


def _nothing() -> Done:
    return Done()


_NOTHING = Act(_nothing)


class Passing(Struct, eq=False):
    """One call on its way through."""

    caller: Caller
    asked: Asked
    answer: Answer
    act: Act
    handle: Handle | None = None
    intent: int = 0
    given_up: bool = False
    abandoned: bool = False
    keyed: bool = False
    task: asyncio.Task[None] | None = None


class Gate:
    def __init__(self, journal: Journal, store: Store, prepare: Callable[[Caller, Asked], Act]) -> None:
        self._journal, self._store, self._prepare = journal, store, prepare
        self.policy: Step = NoPolicy()
        self.labels: Step = NoLabels()
        self.budget: Step = NoBudget()
        self.approval: Step = NoApproval()
        self._keyed: dict[tuple[str, str], list[Passing]] = {}  # calls with a key under way: the first, and who waits

    def enter(self, caller: Caller, asked: Asked, answer: Answer) -> Passing:
        """Take one call through. `answer` is called once, later, from the loop: a value, or an error."""
        passing = Passing(caller, asked, answer, _NOTHING)
        step = _IDENTIFY
        try:
            passing.act = self._identify(caller, asked)
            step = _CAPABILITY
            self._check_capability(passing)
            step = 3
            if self.policy.check(passing) is not GO:
                raise _unclear()
            step = _KEY
            if self.labels.check(passing) is not GO:
                raise _unclear()
            if asked.key is not None and self._known(passing, asked.key):
                return passing
            step = 5
            if self.budget.check(passing) is not GO:
                raise _unclear()
            step = 6
            if self.approval.check(passing) is not GO:
                raise _unclear()
        except AgentOSError as error:
            self._refuse(passing, step, error)
        except Exception as bug:  # a step that breaks must not let anything through
            log.exception("gate step %d broke", step)
            self._refuse(passing, step, EIO("gate.fault", f"step {step} of the gate failed: {type(bug).__name__}"))
        else:
            self._begin(passing)
        return passing

    def dry(self, caller: Caller, asked: Asked) -> dict[str, Any]:
        """Steps 1–6 without consequence: what the call would meet."""
        passing = Passing(caller, asked, lambda body, error: None, _NOTHING)
        step = _IDENTIFY
        try:
            passing.act = self._identify(caller, asked)
            for check in self._steps():
                step += 1
                if check(passing) is not GO:
                    raise _unclear()
        except AgentOSError as error:
            missing = error.detail.get("missing", "")
            asks = step == 6
            verdict = "ask" if asks else "refuse"
            return {"verdict": verdict, "step": step, "code": error.name, "would_ask": asks, "missing": missing}
        return {"verdict": "allow", "step": 0, "code": "", "would_ask": False, "missing": ""}

    def cancel(self, passing: Passing) -> None:
        """The caller wants no more of it. An effect that has begun is awaited, and recorded as it really ended."""
        passing.given_up = True
        if passing.task and passing.act.can_stop:
            passing.task.cancel()

    def abandon(self, passing: Passing) -> None:
        """The caller is gone. An effect goes on to its end, which its next life is told; anything else never happened,
        and is asked for again."""
        passing.abandoned = True
        if passing.task and passing.act.way is not Way.EFFECT:
            passing.task.cancel()

    def _steps(self) -> Sequence[Callable[[Passing], object]]:
        return (self._check_capability, *(s.check for s in (self.policy, self.labels, self.budget, self.approval)))

    def _identify(self, caller: Caller, asked: Asked) -> Act:
        if caller.quarantined:
            raise EPERM("quarantined", "this agent is quarantined for a violation", hint="an operator can release it")
        return self._prepare(caller, asked)

    def _check_capability(self, passing: Passing) -> object:
        caller, needs = passing.caller, passing.act.needs
        if needs and isinstance(caller, Agent):
            if caller.root and caller.root.granted(needs[0]):  # what somebody shares is authority enough
                needs = [one for one in needs[1:] if not caller.root.granted(one)]
            passing.handle = caller.holdings.find(needs, passing.asked.cap)
        return GO

    def _begin(self, passing: Passing) -> None:
        """Everything was allowed. An effect waits until its intent is on disk; anything else is done at once."""
        if passing.act.way is not Way.EFFECT:
            self._do(passing)
            return
        draft = self._draft(passing, Kind.INTENT, _body(passing, frames.NIL, None))
        try:
            passing.intent = self._journal.put(draft, sync=True, done=lambda: self._go_ahead(passing))
        except AgentOSError as error:
            self._finish(passing, frames.NIL, error)

    def _go_ahead(self, passing: Passing) -> None:
        """The intent is on disk. The world may have changed while we waited."""
        if passing.handle and passing.handle.revoked:
            error = EPERM("cap.revoked", "the capability for this was revoked in the meantime")
            self._record(passing, None, error)
        else:
            self._do(passing)

    def _do(self, passing: Passing) -> None:
        try:
            done = passing.act.do()
        except AgentOSError as error:
            self._record(passing, None, error)
        except Exception as bug:
            self._record(passing, None, _internal(bug))
        else:
            if isinstance(done, Done):
                self._record(passing, done, None)
            else:
                self._start(passing, done)

    def _start(self, passing: Passing, deed: Awaitable[Done]) -> None:
        task = passing.task = asyncio.get_running_loop().create_task(self._wait_for(passing, deed))

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # before it began: then nothing in it has run, not even its `except`
                if isinstance(deed, Coroutine):
                    deed.close()
                self._record(passing, None, _given_up())

        task.add_done_callback(ended)

    async def _wait_for(self, passing: Passing, deed: Awaitable[Done]) -> None:
        """The deed of a call that takes time. Cancelled or too late, what it has done by then is undone or known to the
        handler; the record says how it ended."""
        deadline = passing.asked.deadline if passing.act.can_stop else None
        loop = asyncio.get_running_loop()
        done, error = None, None
        try:
            async with asyncio.timeout_at(deadline) if deadline is not None else _Endless():
                done = await deed
        except AgentOSError as problem:
            error = problem
        except TimeoutError:
            pure = passing.act.effect is Effect.PURE
            error = ETIMEDOUT("deadline", "the deadline of this call passed", retryable=pure)
        except asyncio.CancelledError:
            error = _given_up()
        except Exception as bug:
            error = _internal(bug)
        passing.task = None
        if not loop.is_closed():
            self._record(passing, done, error)

    def _record(self, passing: Passing, done: Done | None, error: AgentOSError | None) -> None:
        """Write what became of it; the answer leaves when that is committed."""
        act, asked = passing.act, passing.asked
        if passing.abandoned and done is None and isinstance(error, ECANCELED | EPIPE):
            self._finish(passing, frames.NIL, error)
            return
        puts: Sequence[Put] = ()
        blobs: Sequence[Blob] = ()
        value = kept = frames.NIL
        if done is not None:
            puts, blobs = done.puts, done.blobs
            if done.value is not None:
                value = kept = frames.body(done.value)
            if done.kept is not None:
                kept = frames.body(done.kept)
        if passing.given_up and error is None and act.way is Way.EFFECT:
            error = ECANCELED(
                "cancelled", "given up, but it had begun and came to its end", outcome=done and done.value
            )
        if act.way is Way.RESULT:
            kind, sync = Kind.RESULT, False
        else:
            kind, sync = Kind.OUTCOME, True
        draft = self._draft(passing, kind, body(asked.raw, kept, error, act.record), error.number if error else 0)
        if asked.key is not None:
            puts = [*puts, Put("keys", f"{passing.caller.id}\0{asked.key}", str(self._journal.next_seq).encode())]
        committed = partial(self._committed, passing, value, error)
        try:
            self._journal.put(draft, sync=sync, puts=puts, blobs=blobs, done=committed)
        except AgentOSError as broken:
            if passing.caller.operator and act.way is Way.RESULT:  # who else could look, kill and stop now?
                committed()
            else:
                self._finish(passing, frames.NIL, broken)

    def _committed(self, passing: Passing, value: Raw, error: AgentOSError | None) -> None:
        if passing.act.answered:
            passing.act.answered()
        self._finish(passing, value, error)

    def _refuse(self, passing: Passing, step: int, error: AgentOSError) -> None:
        draft = self._draft(passing, Kind.DECISION, _body(passing, frames.NIL, error), error.number)
        draft.step, draft.verdict = step, Verdict.REFUSE
        draft.rule = str(error.detail.get("rule", ""))
        try:
            self._journal.put(draft, sync=True, done=lambda: self._finish(passing, frames.NIL, error))
        except AgentOSError as broken:
            self._finish(passing, frames.NIL, broken)

    def _draft(self, passing: Passing, kind: Kind, body: bytes, code: int = 0) -> Draft:
        caller, asked, handle = passing.caller, passing.asked, passing.handle
        draft = Draft(
            caller.id,
            kind,
            caller.incarnation,
            asked.op,
            passing.act.effect,
            passing.intent,
            asked.pos,
            asked.seen,
            asked.key,
            _ALLOW,
            isolation=caller.isolation,
            body=body,
            code=code,
        )
        if handle:
            draft.handle, draft.capability_digest = handle.id, handle.digest
        return draft

    def _known(self, passing: Passing, key: str) -> bool:
        """The same key again: whoever is first acts, everybody gets that outcome."""
        asked, name = passing.asked, (passing.caller.id, key)
        if waiting := self._keyed.get(name):
            first = waiting[0].asked
            _require_same(key, (asked.op, asked.raw), (first.op, first.raw))
            waiting.append(passing)
            return True
        found = self._store.get("keys", f"{name[0]}\0{key}")
        entry, kept = self._journal.read(int(found)) if found else (None, None)
        first = getattr(passing.caller, "first_aseq", 0)  # what is older was another's, who had its name
        if entry is None or entry.aseq < first:
            self._keyed[name] = [passing]
            passing.keyed = True
            return False
        recorded = Recorded.of(kept)
        _require_same(key, (asked.op, digest(asked.raw)), (entry.op, recorded.digest))
        self._repeat(passing, recorded.value, recorded.error)
        return True

    def _repeat(self, passing: Passing, value: Raw, error: AgentOSError | None) -> None:
        """Answer with an outcome that is recorded already; that it was given again is recorded as well."""
        passing.act = _NOTHING
        said = body(passing.asked.raw, value, error)
        draft = self._draft(passing, Kind.RESULT, said, error.number if error else 0)
        try:
            self._journal.put(draft, sync=False, done=partial(passing.answer, value, error))
        except AgentOSError as broken:
            passing.answer(frames.NIL, broken)

    def _finish(self, passing: Passing, value: Raw, error: AgentOSError | None) -> None:
        passing.answer(value, error)
        if passing.keyed and passing.asked.key is not None:
            for other in self._keyed.pop((passing.caller.id, passing.asked.key))[1:]:
                self._repeat(other, value, error)


def _body(passing: Passing, value: Raw, error: AgentOSError | None) -> bytes:
    return body(passing.asked.raw, value, error, passing.act.record)


def _require_same(key: str, asked: tuple[int, bytes], known: tuple[int, bytes]) -> None:
    if asked != known:
        raise EINVAL("key.reused", f"the key {key!r} belongs to another call", hint="a new call needs a new key")


def _unclear() -> EIO:
    return EIO("gate.fault", "a step of the gate gave no clear answer")


def _given_up() -> ECANCELED:
    return ECANCELED("cancelled", "the caller gave this call up")


def _internal(bug: Exception) -> EIO:
    log.error("a call broke", exc_info=bug)
    return EIO("internal", f"the kernel failed at this call: {type(bug).__name__}: {bug}")


class _Endless:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...
