"""The gate's last steps: record the intent, act, and follow what takes time until it has ended.

In: a call that was allowed. Out: its deed done, once at the most, and how that ended given to `answering.py`. A deed
that takes time has the gate's leave, by which it asks again after each of its waits; when its capability is revoked or
a rule forbids it now, it is cut off. Decides nothing itself.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import ETIMEDOUT, AgentOSError
from agent_os.abi.syscalls import Effect
from agent_os.kernel.answering import Answering
from agent_os.kernel.authority.labels import Label
from agent_os.kernel.calls import Done, Way
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.passing import (
    POLICY,
    RECORD,
    Passing,
    Steps,
    deadline,
    fault,
    given_up,
    internal,
    overtaken,
    revoked,
)
from agent_os.kernel.telling import announcement, body_of
from agent_os.kernel.weighing import Weighing


class Acting:
    def __init__(self, journal: Journal, steps: Steps, weighing: Weighing, answering: Answering) -> None:
        self._journal, self._steps, self.weighing, self._answering = journal, steps, weighing, answering
        self._under_way: set[UnderWay] = set()

    def begin(self, passing: Passing) -> None:
        """Everything was allowed. What acts outside or costs something waits until its intent is on disk; anything else
        is done at once."""
        budget = self._steps.budget
        if passing.act.door:
            self._answering.finish(passing, frames.NIL, None)
            return
        if passing.act.plan:
            self._start(passing, passing.act.plan())
        elif passing.act.way is not Way.EFFECT and not budget.needs_intent(passing):
            if passing.act.announced and passing.act.way is Way.RESULT and not self._journal.failed:
                self._announce(passing)
            else:  # without a journal an operator can still look, kill and stop
                self.do(passing)
        else:
            self._intend(passing)

    def _intend(self, passing: Passing) -> None:
        budget, marks = self._steps.budget, passing.marks
        try:
            draft = self._answering.draft(passing, Kind.INTENT, body_of(passing, None))
            draft.cost = budget.intent(passing)
            puts = [*marks.puts, *self._steps.approval.rows(passing)]
            marks.puts.clear()
            passing.intent = self._journal.put(
                draft, sync=True, puts=puts, blobs=passing.act.blobs, done=lambda: self._go_ahead(passing)
            )
            budget.began(passing)
        except Exception as bug:  # what cannot be written down does not happen
            if self._journal.failed:
                self._answering.finish(passing, frames.NIL, self._journal.failed)
            else:
                self._answering.refuse(passing, RECORD, fault(RECORD, bug))

    def _announce(self, passing: Passing) -> None:
        """An operator changes something, and the record says who and what before that happens."""
        first = passing.act.announced == "first"
        try:
            done = (lambda: self._announced(passing)) if first else None
            self._journal.put(announcement(passing), sync=True, done=done)
        except Exception as bug:
            if self._journal.failed is None:
                self._answering.refuse(passing, RECORD, fault(RECORD, bug))
                return
            first = False
        if not first:
            self.do(passing)

    def _announced(self, passing: Passing) -> None:
        if passing.given_up and passing.act.can_stop:
            self._answering.record(passing, None, given_up(), undone=True)
        else:
            self.do(passing)

    def _go_ahead(self, passing: Passing) -> None:
        """The intent is on disk. The world may have changed while we waited; who is refused now has done nothing, and
        pays nothing."""
        try:
            self.weighing.confirm(passing)
        except AgentOSError as error:
            self._answering.record(passing, None, error, undone=True)
        except Exception as bug:
            self._answering.record(passing, None, fault(POLICY, bug), undone=True)
        else:
            self.do(passing)

    def do(self, passing: Passing) -> None:
        try:
            done = passing.act.do()
        except AgentOSError as error:
            self._answering.record(passing, None, error)
        except Exception as bug:
            self._answering.record(passing, None, internal(bug))
        else:
            if isinstance(done, Done):
                self._answering.record(passing, done, None)
            else:
                self._start(passing, done)

    # What takes time.

    def _start(self, passing: Passing, deed: Awaitable[Done | None]) -> None:
        under_way = passing.act.leave = UnderWay(self, passing)
        self._under_way.add(under_way)
        passing.opens(under_way)
        task = passing.task = asyncio.get_running_loop().create_task(self._wait_for(under_way, deed))

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # before it began: then nothing in it has run, not even its `except`
                if isinstance(deed, Coroutine):
                    deed.close()
                self._end(under_way)
                self._answering.record(passing, None, passing.cut or given_up(), undone=True)

        task.add_done_callback(ended)

    async def _wait_for(self, under_way: "UnderWay", deed: Awaitable[Done | None]) -> None:
        """The deed of a call that takes time. Cancelled or too late, what it has done by then is undone or known to the
        handler; the record says how it ended."""
        passing, loop = under_way.passing, asyncio.get_running_loop()
        end = deadline(passing, loop.time()) if passing.act.can_stop else None
        done, error = None, None
        try:
            if end is None:
                done = await deed
            else:
                async with asyncio.timeout_at(end) as passing.limit:
                    done = await deed
        except AgentOSError as problem:
            error = problem
        except TimeoutError:
            pure = passing.act.effect is Effect.PURE
            error = ETIMEDOUT("deadline", "the deadline of this call passed", retryable=pure)
        except asyncio.CancelledError:
            error = passing.cut or given_up()
        except Exception as bug:
            error = internal(bug)
        passing.task = None
        self._end(under_way)
        if loop.is_closed():
            return
        if passing.act.plan:
            self._planned(passing, error)
        else:
            self._answering.record(passing, done, error)

    def _planned(self, passing: Passing, error: AgentOSError | None) -> None:
        """It has looked at the world; nothing has happened. What it saw is in the intent, which comes now."""
        passing.act.plan = None
        if error is None and passing.given_up:
            error = given_up()
        try:
            if error is None:
                self.weighing.confirm(passing)
        except AgentOSError as refusal:
            error = refusal
        if error is None:
            self._intend(passing)
        else:
            self._answering.record(passing, None, error, undone=True)

    def _end(self, under_way: "UnderWay") -> None:
        self._under_way.discard(under_way)
        under_way.passing.closes()
        under_way.passing.act.leave = None  # each knows the other: a circle is garbage

    async def bring(self, passing: Passing, label: Label | None) -> None:
        """Its caller carries that from here on. Cancelled: it is written all the same."""
        puts = self._steps.labels.take_in(passing, label)
        if puts:
            told = frames.encode_body({"reads": [need.target for need in passing.act.needs]})
            draft = Draft(passing.caller.id, Kind.LABEL, passing.caller.incarnation, passing.asked.op, body=told)
            self._answering.sign(passing, draft)
            await self._journal.record(draft, sync=True, puts=puts)

    def grow(self, passing: Passing, more: Mapping[str, int]) -> None:
        """It needs more than was reserved: all of that, or EBUDGET and nothing. What has an intent has that told."""
        self._steps.budget.grow(passing, more)
        if passing.marks.held and passing.intent:
            caller = passing.caller
            draft = Draft(caller.id, Kind.BUDGET, caller.incarnation, ref=passing.intent, cost={"held": dict(more)})
            self._journal.put(draft, sync=True, puts=self._steps.budget.rows(passing))

    async def cut_off(self, passing: Passing, why: AgentOSError) -> None:
        """What it rests on is not there any more. Ended, and its end recorded, when this returns; what cannot be
        stopped is waited for."""
        if task := passing.task:
            passing.cut = why
            if passing.act.can_stop:
                task.cancel()
            await asyncio.wait([task])

    async def cut_off_forbidden(self) -> None:
        """The policy has changed. What could not begin any more has ended when this returns."""
        forbidden = [(one.passing, self.weighing.forbids(one.passing)) for one in self._under_way]
        await asyncio.gather(*(self.cut_off(passing, why) for passing, why in forbidden if why))


class UnderWay:
    """A deed that takes time: to its handles something that they have opened, to itself the gate's leave."""

    lasting = False

    def __init__(self, acting: Acting, passing: Passing) -> None:
        self._acting, self.passing = acting, passing

    async def close(self) -> None:
        await self._acting.cut_off(self.passing, revoked())

    def confirm(self) -> None:
        passing, weighing = self.passing, self._acting.weighing
        if not weighing.has_changed(passing):
            return
        passing.closes()  # it may rest on other handles from now on
        try:
            weighing.look_again(passing)
        except AgentOSError as error:
            raise overtaken(error) from None
        finally:
            passing.opens(self)

    def commit(self) -> None:
        self.confirm()
        passing = self.passing
        passing.act.can_stop = False
        if passing.limit:
            passing.limit.reschedule(None)

    def grow(self, more: Mapping[str, int]) -> None:
        self._acting.grow(self.passing, more)

    async def bring(self, label: Label | None) -> None:
        await self._acting.bring(self.passing, label)
