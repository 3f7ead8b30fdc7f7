"""The life of an agent, from adoption to its end: how it is taken through its record, told of things, and buried.

In: rows of the table whose process runs, and the word that it is gone. An agent that lives again is first settled with
what its earlier life left open, then replayed; its calls wait meanwhile. Nothing is reported dead before the operating
system says it is gone. Who ends for good takes its children along. What an agent is told of joins its label. Starts no
process: that is for the guests.
"""

import asyncio
import json
import logging
import socket
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, ESRCH, AgentOSError
from agent_os.abi.frames import Hello, Welcome
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.drivers.store import Put
from agent_os.kernel import rules
from agent_os.kernel.allowance import ENTRY
from agent_os.kernel.authority.labels import CLEAN, Label, joined, of_source, of_words
from agent_os.kernel.authority.policy.rules import Effect
from agent_os.kernel.authority.ruling import weigh
from agent_os.kernel.calls import Answer, Asked, Need
from agent_os.kernel.connection import Connection
from agent_os.kernel.journal import Draft
from agent_os.kernel.opened import is_held
from agent_os.kernel.recovery import unhurried
from agent_os.kernel.replay import MESSAGE, Delivery, Replay, deliveries
from agent_os.kernel.signals import gone
from agent_os.kernel.supervisor.watching import waiting
from agent_os.kernel.table import Agent, Caller, Ended, qualified, shown
from agent_os.kernel.vfs import Root

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel


# What an agent can read of the kernel: its rules, itself, its children, its checkpoints. Rendered at every read, so
# there is nothing that could be changed.


def mount_views(kernel: "Kernel", agent: Agent, root: Root) -> None:
    root.mount_view("/policy", lambda: _policy(kernel, agent))
    root.mount_view("/proc", lambda: _proc(kernel, agent), partial(_proc_label, kernel, agent))
    root.mount_view("/ipc", lambda: _ipc(kernel, agent), lambda path: kernel.signals.waiting(agent))
    root.mount_view(
        "/state/checkpoints", lambda: kernel.checkpoints.listing(agent), partial(kernel.checkpoints.label, agent)
    )


def _policy(kernel: "Kernel", agent: Agent) -> Mapping[str, str]:
    policy, account = kernel.authority.policies.of(agent.id), kernel.budgets.account(agent.id)
    held = [{"handle": one.id, "capability": str(one.capability), "origin": one.origin} for one in agent.holdings]
    return {
        "capabilities.json": _json(held),
        "rules.json": _json(list(rules.shown(policy, agent.parties))),
        "mode": f"{policy.mode}\n",
        "digest": f"{policy.digest.hex()}\n",
        "budget.json": _json({"limits": account.limits, "spent": account.spent, "held": account.held}),
    }


def _proc(kernel: "Kernel", agent: Agent) -> Mapping[str, str]:
    facts = {"self/status.json": _json(msgspec.to_builtins(shown(agent)))}
    facts["self/signals.json"] = _json({"mask": sorted(agent.mask), "pending": sorted(agent.pending)})
    for child in kernel.table.children(agent.id):
        facts[f"children/{child.name}.json"] = _json(msgspec.to_builtins(shown(child)))
    return facts


def _proc_label(kernel: "Kernel", agent: Agent, path: str) -> Label:
    """How a child fares is its own doing, and its reasons are its own words."""
    if path in ("", "self"):
        return CLEAN
    if path.startswith("self/"):
        return kernel.signals.waiting(agent)
    children = kernel.table.children(agent.id)
    return joined(kernel.lives.label(one) for one in children if path in ("children", f"children/{one.name}.json"))


def _ipc(kernel: "Kernel", agent: Agent) -> Mapping[str, str]:
    subs = [
        {"sub": one.name, "topic": one.pattern, "group": one.group.partition("/")[2]}
        for one in kernel.bus.broker.subscriptions(agent.id)
    ]
    return {"signals.json": _json({"pending": sorted(agent.pending)}), "subscriptions.json": _json(subs)}


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str) + "\n"


_TO_START, _TO_BE_HEARD = 30.0, 1.0  # seconds
_MOST_FAILURE = 500  # characters of what an agent says went wrong: people and other agents are told
log = logging.getLogger("agent_os.kernel")


class Lives:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel, self._table, self._journal = kernel, kernel.table, kernel.journal
        self._recovery, self._signals = kernel.recovery, kernel.signals
        self.replays: dict[str, Replay] = {}  # whose program is on its way through its record
        self._reading: dict[str, asyncio.Event] = {}  # whose record is being read

    async def adopt(self, agent: Agent, sock: socket.socket, workspace: int | None = None) -> None:
        """Give a started agent its files and, on its socket, our attention. What an earlier life of it left open is
        settled first; then its program is taken through its record. Until then its calls wait in the socket."""
        self.furnish(agent)
        if workspace is not None:
            agent.files.mount_directory("/work", workspace)
        try:
            await self._settled(agent)
        except BaseException:
            sock.close()
            raise
        line = await self._lived_through(agent)
        if agent.exit:
            sock.close()
            return

        def admit(connection: Connection, hello: Hello) -> Caller:
            agent.line = connection
            if "checkpoint" in hello.features:
                self._kernel.checkpoints.keep(agent)
            self._kernel.watching.greeted(agent, hello.features)
            # After its WELCOME.
            asyncio.get_running_loop().call_soon(replay.start if replay.total else partial(self._resume, agent))
            return agent

        def lost(connection: Connection, fault: AgentOSError | None) -> None:
            agent.line = None
            agent.silent.set()
            if fault and not agent.exit:
                self._kernel.start(
                    self.end(agent, Ended(ExitClass.ERROR, -1, f"it broke the rules of the wire: {fault}"))
                )

        replay = self._replay(agent, line)
        agent.detail = "replaying" if replay.total else ""
        if replay.total:
            self.replays[agent.id] = replay
        await asyncio.get_running_loop().create_unix_connection(
            lambda: Connection(self._kernel, admit, lost), sock=sock
        )

    async def _lived_through(self, agent: Agent) -> list[Delivery]:
        """Its record up to now. Whoever is taken through it is no cleaner than whoever lived it."""
        line: list[Delivery] = []
        start = self._kernel.checkpoints.newest_with_state(agent)
        carried = of_words(start.get("label", ())) if start else CLEAN
        last: list[str] = []
        with self._being_read(agent):
            async for found in unhurried(self._recovery.history(agent)):
                line += deliveries([found])
                if found[0].label and found[0].label != last:
                    last = found[0].label
                    carried = carried.join(of_words(last))
        await self._rejoin(agent, carried)
        return line

    async def _rejoin(self, agent: Agent, label: Label) -> None:
        """Mostly it carries that already: its label outlives its processes."""
        if puts := self._kernel.authority.labels.take_in(agent.id, label):
            told = frames.encode_body({"rejoined": label.words()})
            draft = Draft(agent.id, Kind.STATE, agent.incarnation, body=told, label=label.words())
            await self._journal.record(draft, puts=puts)

    @contextmanager
    def _being_read(self, agent: Agent) -> Generator[None]:
        """What comes for an agent meanwhile waits until it is known whether there is a replay."""
        read = self._reading[agent.id] = asyncio.Event()
        try:
            yield
        finally:
            del self._reading[agent.id]
            read.set()

    async def _settled(self, agent: Agent) -> None:
        """Returns when nothing is open of an earlier life. If what the agent did has an unknown outcome, a person is
        waited for."""
        if agent.incarnation == 1:
            return
        agent.detail = "replaying"
        with self._being_read(agent):
            await self._recovery.settle_before(agent)
        with waiting(agent):
            while self._recovery.parked(agent.id) and not agent.exit:
                agent.detail = "parked"
                await self._recovery.resolved.wait()
        agent.detail = ""

    def furnish(self, agent: Agent) -> None:
        """Its file tree, with the views on the kernel that belong to it."""
        root = agent.root = self._kernel.vfs.root(agent.id)
        for mount in root.mounts():
            if mount["path"] == "/work" or mount["backend"] == "view":  # of the life before
                root.unmount(mount["path"])
        mount_views(self._kernel, agent, root)
        flow = self._kernel.authority.policies.flow
        root.source = lambda need: of_source(need, flow(agent).sources)
        root.notify = lambda body, label: self._changed(agent, body, label)
        self._kernel.models.expect(agent)

    def _changed(self, agent: Agent, body: dict[str, Any], label: Label) -> None:
        """Something that it watches has changed. What has expired since tells nothing any more, nor does what a rule
        forbids to read: a watch may be of more than that."""
        if agent.files.hears(body, lambda need: self._may_hear(agent, need)):
            self.notice(agent, {"type": "watch", **body}, label)

    def _may_hear(self, agent: Agent, need: Need) -> bool:
        policy = self._kernel.authority.policies.of(agent.id)
        if not policy.silent and weigh(policy, agent, [need]).effect is Effect.FORBID:
            return False
        return is_held(agent.files, agent.holdings, need)

    def greet(self, caller: Caller, welcome: Welcome) -> None:
        """What an agent is told first: what it was started with, and where it goes on. An operator: what we are."""
        if not isinstance(caller, Agent):
            welcome.build, welcome.features = self._kernel.build, [frames.STAYS] * (self._kernel.idle_exit != 0)
        else:
            welcome.replaying = caller.id in self.replays
            welcome.input = frames.body(caller.order.get("input"))
            if start := self._kernel.checkpoints.newest_with_state(caller):
                welcome.checkpoint, welcome.state = start["name"], frames.body(start["state"])

    def _replay(self, agent: Agent, line: list[Delivery]) -> Replay:
        def live(held: list[tuple[Asked, Answer]]) -> None:
            agent.delivered = replay.total
            agent.detail = ""
            self.replays.pop(agent.id, None)
            if agent.line:
                agent.line.push("notice", {"type": "live"})
            if agent.watch:
                agent.watch.live()
            for asked, answer in held:
                self._kernel.enter(agent, asked, answer)
            for body, label in replay.later:
                self.notice(agent, body, label)
            self._resume(agent)

        def differs(error: AgentOSError) -> None:
            self.replays.pop(agent.id, None)
            self._kernel.start(self.end(agent, _nondeterministic(error)))

        def push(what: str, body: Any) -> None:
            if agent.line:
                agent.line.push(what, body)

        replay = Replay(line, live=live, push=push, differs=differs)
        return replay

    def _resume(self, agent: Agent) -> None:
        """It is where its record ends: what came meanwhile comes now."""
        self._kernel.bonds.resume(agent)
        self._kernel.bus.resume(agent.id)

    def notice(self, agent: Agent, body: dict[str, Any], label: Label) -> None:
        """Something happened that an agent should know. A native agent sees it again in a replay, so it is recorded.
        `label`: of whoever it tells of; the kernel's own facts and a person's word are clean."""
        if replay := self.replays.get(agent.id):
            replay.later.append((body, label))
            return
        if not agent.exit and agent.line:
            self._push(agent, "notice", body, frames.encode_body(body), label)

    def listens(self, agent: Agent) -> bool:
        """Whether something can be pushed to it now."""
        return agent.line is not None and not agent.exit and agent.id not in self.replays

    def deliver(self, agent: Agent, message: Any, label: Label, puts: Sequence[Put]) -> None:
        """The same for a message, to one that listens; `puts` say that it has it in hand."""
        self._push(agent, "message", message, frames.encode_body({MESSAGE: message}), label, puts)

    def _push(
        self, agent: Agent, what: str, body: Any, recorded: bytes, label: Label, puts: Sequence[Put] = ()
    ) -> None:
        def tell() -> None:
            agent.delivered += 1
            if agent.line:
                agent.line.push(what, body)

        draft = Draft(agent.id, Kind.DELIVER, agent.incarnation, body=recorded, label=label.words())
        agent.allowance.spend(ENTRY)  # one write may be watched a hundred times
        puts = [*puts, *self._kernel.authority.labels.take_in(agent.id, label)]
        self._journal.put(draft, sync=bool(puts), puts=puts, done=tell)

    async def until_live(self, agent: Agent) -> None:
        """What is new for an agent comes after its record."""
        while reading := self._reading.get(agent.id):
            await reading.wait()
        if replay := self.replays.get(agent.id):
            await replay.finished.wait()
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")

    # The end.

    def left_by_itself(self, agent: Agent) -> None:
        """It said that it ends. Its process has a moment to do so; then it is made to."""
        self._kernel.start(self._see_off(agent))

    async def _see_off(self, agent: Agent) -> None:
        if agent.kind == "context":
            await self.left(agent, _own_ending(agent, 0))
        elif agent.running:
            await asyncio.sleep(0)
            await agent.running.finish()

    async def end(self, agent: Agent, ended: Ended) -> int:
        """Make an agent end; how many processes that were. Returns when it is true."""
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")
        await self.until_started(agent)
        agent.fate = agent.fate or ended
        if agent.life is not Incarnation.STOPPING:
            agent.become(Incarnation.STOPPING)
        if agent.running is None:
            await self.left(agent, ended)
            return 0
        count = await gone(agent.running)
        await agent.gone.wait()
        return count

    async def until_started(self, agent: Agent) -> None:
        """A process that is still being made can be neither killed nor found to be gone."""
        try:
            async with asyncio.timeout(_TO_START):
                while agent.running is None and agent.life is Incarnation.STARTING and _has_process(agent):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise EBUSY("agent.starting", f"{agent.name} is still being started", hint="try again") from None
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")

    async def left(self, agent: Agent, ended: Ended) -> None:
        """The operating system says that an agent is gone: record it, tell who waits, perhaps start it again."""
        await self._hear_out(agent)
        if agent.exit:
            return
        ended = agent.fate or (_own_ending(agent, ended.code, ended.result) if agent.last_words else ended)
        if replay := self.replays.pop(agent.id, None):
            if ended.exit_class in (ExitClass.NORMAL, ExitClass.ERROR) and (short := replay.short()):
                ended = _nondeterministic(short)
            replay.stop()
        ended = replace(ended, label=self._kernel.authority.labels.of(agent.id))
        asked_to_end = self._signals.forget(agent)
        self._kernel.checkpoints.forget(agent)
        verdict = self._kernel.fleet.ended(agent, ended, asked=asked_to_end)
        ended = verdict.ended if verdict else ended
        # A crash is no way out of a SIGTERM.
        lasting = verdict.again if verdict else self._starts_again(agent, ended) and not asked_to_end
        farewell = self._kernel.bonds.farewell(agent, ended)  # before what it holds is taken back
        for_good = not lasting if verdict is None else verdict.forgotten is not None
        puts = [*(verdict.puts if verdict else ()), *(self.buried(agent.id) if for_good else ())]
        goals, goals_left = self._kernel.scheduler.left(agent, ended, again=lasting)
        mail, mail_left = self._kernel.bus.left(agent, ended, again=lasting)
        puts = [*puts, *goals, *mail]
        told = {"class": ended.exit_class, "code": ended.code, "reason": ended.reason, "result": ended.result}
        told |= verdict.told if verdict else {}
        if for_good:
            told["forgets"] = True  # its working memory went with it
        if ended.difference:
            told["difference"] = ended.difference
        if agent.parent and not lasting:  # its place is free
            facts = {"parent": agent.parent, "child": "removed", "pid": agent.pid}
            told["agency"] = {**facts, "count": self._table.family(agent.parent) - 1}
        draft = Draft(agent.id, Kind.EXIT, agent.incarnation, isolation=agent.isolation, body=frames.encode_body(told))
        draft.label = ended.label.words()
        agent.exit, agent.lasting = ended, lasting
        self._kernel.models.kill(agent.id)
        self._kernel.start(self._kernel.tools.left(agent.id))
        if not lasting:
            self._kernel.models.ended(agent, whole=ended.normal)
        agent.life = Incarnation.EXITED
        try:
            await self._journal.record(draft, sync=True, puts=puts)
        except AgentOSError:
            agent.gone.set()  # it is, whether that can be written or not
            raise
        self._tell_parent(agent, ended)
        farewell()
        goals_left()
        mail_left()
        if verdict and lasting:
            agent.next_life = self._kernel.start(self._kernel.fleet.next_life(agent))
        elif lasting:
            after = self._recovery.delay(agent)
            agent.next_life = self._kernel.start(self._recovery.begin(agent.id, agent.order, after=after))
        if not lasting or (verdict and verdict.finished):
            await self.end_children(agent)
        self._recovery.stir()
        agent.gone.set()
        if verdict:
            self._kernel.start(self._kernel.fleet.carry_out(agent.id, verdict))

    async def end_children(self, agent: Agent) -> None:
        """Whoever it started ends with it: nobody is left that answers for them. A crash that it survives is no end;
        if its next life begins anew, it is."""
        ended = Ended(ExitClass.REQUESTED, -1, f"its parent {agent.name} has ended")
        fleet = self._kernel.fleet
        children = [one for one in self._table.children(agent.id) if not one.exit and fleet.spec(one.id) is None]
        for problem in await asyncio.gather(*(self.end(one, ended) for one in children), return_exceptions=True):
            if isinstance(problem, BaseException) and not isinstance(problem, ESRCH):
                log.error("a child of %s was not ended: %s", agent.name, problem)
        await fleet.spawned.disown(agent.id, ended.reason)

    async def _hear_out(self, agent: Agent) -> None:
        """What it said before it was gone may still be in its socket."""
        if isinstance(line := agent.line, Connection):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TO_BE_HEARD):
                    await agent.silent.wait()
            line.transport.abort()

    def buried(self, agent_id: str) -> list[Put]:
        """What the store forgets with an agent that ended for good; the next of that name begins a life of its own."""
        self._recovery.forget(agent_id)
        life = Put("lives", agent_id, str(self._journal.aseq(agent_id) + 2).encode())
        return [
            Put("agents", agent_id, None),
            life,
            *self._signals.buried(agent_id),
            *self._kernel.vfs.end(agent_id),
            *self._kernel.authority.end(agent_id),
            *self._kernel.bus.buried(agent_id),
            *self._kernel.tools.buried(agent_id),
            *self._kernel.outside.buried(agent_id),
        ]

    def _starts_again(self, agent: Agent, ended: Ended) -> bool:
        """A native agent that was struck down from outside goes on where it was. More is the supervisor's business."""
        struck = ended.exit_class in (ExitClass.SIGNAL, ExitClass.LOST)
        lasting = agent.kind == "native" and agent.order.get("durable", True)
        return lasting and struck and not self._kernel.halting and self._recovery.may_try_again(agent)

    def _tell_parent(self, agent: Agent, ended: Ended) -> None:
        if parent := self._table.living(agent.parent):
            body = {"type": "child", "agent": agent.name, "state": agent.state, "reason": ended.reason}
            self.notice(parent, body, ended.label)

    def label(self, agent: Agent) -> Label:
        """What it carries, or carried when it ended."""
        ended = agent.exit
        return ended.label if ended and not agent.lasting else self._kernel.authority.labels.of(agent.id)

    async def wait_for(self, agent: Agent) -> dict[str, Any]:
        """How an agent ended, once it has; over restarts."""
        return (await self._end_of(agent))[0]

    async def _end_of(self, agent: Agent) -> tuple[dict[str, Any], Label]:
        while True:
            await agent.gone.wait()
            if agent.next_life:
                await asyncio.wait([agent.next_life])
            latest = self._table.row(agent.id) or agent
            if latest is agent and agent.exit:
                ended = agent.exit
                facts = {"status": ended.code, "result": ended.result, "reason": ended.reason}
                return {"agent": agent.name, "state": agent.state, **facts}, ended.label
            agent = latest

    async def wait_for_child(self, parent: Agent, name: str | None) -> tuple[dict[str, Any], Label]:
        """How a child ended, and what it carried: its result and its reason are its own words."""
        children = self._table.children(parent.id)
        if name is not None:
            named = qualified(name, namespace=parent.namespace)
            children = [one for one in children if one.id == named]
            own = self._kernel.store.get("parents", named) == parent.id.encode()
            if own and not children and (before := self._recovery.how_it_ended(named)):  # in an earlier kernel
                return before, self._carried_at_end(named)
        if not children:
            raise ESRCH("agent.child", f"you have no child {name!r}" if name else "you have no child")
        waiting = [asyncio.create_task(self._end_of(one)) for one in children]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in waiting:
                task.cancel()

    def _carried_at_end(self, agent_id: str) -> Label:
        """Of an agent that an earlier kernel ran."""
        ends = (entry.label for entry, _ in self._journal.scan(agent_id) if entry.kind == Kind.EXIT)
        return of_words(deque(ends, maxlen=1).pop())


def _has_process(agent: Agent) -> bool:
    return agent.kind != "context" and not agent.exit


def _nondeterministic(error: AgentOSError) -> Ended:
    return Ended(ExitClass.NONDETERMINISTIC, -1, error.reason, difference=error.detail)


def _own_ending(agent: Agent, code: int, result: Any = None) -> Ended:
    """How an agent ended that said so itself."""
    words = agent.last_words
    if words is None:
        return Ended(ExitClass.NORMAL if code == 0 else ExitClass.ERROR, code, result=result)
    kind = ExitClass.NORMAL if words.status == 0 else ExitClass.ERROR
    return Ended(kind, words.status, (words.failure or "")[:_MOST_FAILURE], words.result)
