"""What operators ask on the control socket: each operation understood, as an `Act` for the gate.

In: a caller that the door has recognised as the operator, and a request of the operator range. Looks, signals and
decisions about kept work; the doing is the table's, the signals', the guests' and the workspaces'.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import asdict

from agent_os import __version__
from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EBUSY, EINVAL, ENOENT, ESRCH, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.abi.text import portable
from agent_os.kernel import endowment, levels, outputs, rules, works
from agent_os.kernel.calls import Act, Asked, Done, Stream
from agent_os.kernel.guests import Guests
from agent_os.kernel.orders import minimum_level
from agent_os.kernel.passing import QUARANTINE
from agent_os.kernel.running import Follower, Run
from agent_os.kernel.settling import Settled
from agent_os.kernel.signals import known
from agent_os.kernel.table import Actor, Agent, as_file, bare, from_file, qualified, shown

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

__all__ = ["PREPARE", "Guests"]
_FOLLOW_S = 0.2
_PIECE = 64 << 10
_LONGEST_REASON = 200  # characters of a reason that a notice tells

Prepare = Callable[["Kernel", Any, Asked], Act]


def _waiting(work: Callable[["Kernel", Actor, Asked], Awaitable[Any]]) -> Prepare:
    """An operation that takes time."""

    def prepared(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
        async def do() -> Done:
            return Done(await work(kernel, caller, asked))

        return Act(do)

    return prepared


def _stream(asked: Asked) -> Stream:
    if asked.stream is None:
        raise EINVAL("stream", "there is no stream beside this call")
    return asked.stream


# Look.


def _status(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    def do() -> Done:
        states: dict[str, int] = {}
        for agent in kernel.table.alive():
            states[agent.state] = states.get(agent.state, 0) + 1
        return Done(
            {
                "version": __version__,
                "pid": os.getpid(),
                "home": portable(str(kernel.home)),
                "seconds": (time.time_ns() - kernel.started_ns) / 1e9,
                "agents": states,
                "quarantined": _quarantined(kernel),
                "declared": sum(not one.spawned for one in kernel.fleet.kept.specs.values()),
                "left_out": kernel.fleet.folder.left_out,
                "log": kernel.journal.log_id.hex(),
                "entries": kernel.store.size(),
                "refused_hour": kernel.journal.refused.count(time.monotonic()),
                "journal": str(kernel.journal.failed.reason) if kernel.journal.failed else "ok",
                "clients": kernel.clients,
                "gateway": kernel.front.facts() if kernel.front else None,
                "auto": kernel.idle_exit is not None,
                "idle_exit": kernel.idle_exit,
                "halting": kernel.halting,
                "policy": rules.summary(kernel),
                "isolation": {"minimum": minimum_level(), "found": kernel.home and levels.known(kernel.home)},
            }
        )

    return Act(do)


def _list(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    everybody = cast("abi.ListAgents", asked.request).all

    def do() -> Done:
        rows = [_row(one) for one in kernel.table if everybody or not one.exit]
        return Done({"agents": rows, "quarantined": _quarantined(kernel)})

    return Act(do)


def _quarantined(kernel: "Kernel") -> list[str]:
    """Who may not be started, by name."""
    return [bare(agent_id) for agent_id, _ in kernel.store.items(QUARANTINE)]


def _inspect(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    agent = kernel.table.find(cast("abi.Inspect", asked.request).agent)
    held = [{"handle": one.id, "capability": str(one.capability), "origin": one.origin} for one in agent.holdings]
    more = {"capabilities": held, "order": agent.order, **kernel.bonds.listing(agent.id)}
    more["goals"] = [one.shown() for one in kernel.scheduler.of(agent.id)]
    from agent_os.kernel import auditing

    return Act(lambda: Done({**_row(agent), **more, **auditing.story(kernel, agent.id)}))


def _row(agent: Agent) -> dict[str, Any]:
    """An agent as lists show it: what the table knows, and what its process is doing."""
    row: dict[str, Any] = {**msgspec.to_builtins(shown(agent)), "number": agent.pid, "kernel": os.getpid(), "pid": None}
    row["quarantined"] = agent.quarantined
    if isinstance(agent.running, Run) and not agent.exit:
        status = asdict(agent.running.guest.status())
        status["command"] = [portable(word) for word in status["command"]]
        status["project"] = status["project"] and portable(status["project"])
        row |= status | {"state": agent.state}
    return row


# Run.


async def _run(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    request = cast("abi.Run", asked.request)
    if kernel.halting:
        raise EBUSY("halting", "the kernel is stopping", hint="try again in a moment")
    if request.detach:
        agent = await kernel.guests.start(request.order)
        return _started(agent)
    stream = _stream(asked)
    follower = Follower(stream, caller)
    agent = await kernel.guests.start(request.order, follower=follower)
    try:
        await stream.send(["started", _started(agent)])
        settled = await kernel.guests.end_of(agent)
    except BaseException:
        await kernel.guests.abandon(agent)
        raise
    ended = kernel.table.find(agent.id).exit
    violation = ended.reason if ended and ended.exit_class is ExitClass.POLICY else ""
    more: dict[str, Any] = {"violation": violation, "expired": list(follower.expired.items())}
    more["shadow"] = bool(request.order.get("shadow"))
    more["would"] = [{**one._asdict(), "times": times} for one, times in follower.tried.items()]
    return {**await _told(stream, settled), "result": ended.result if ended else None, **more}


def _started(agent: Agent) -> dict[str, Any]:
    run = agent.running
    pid = run.guest.status().pid if isinstance(run, Run) else None
    return {"name": agent.name, "level": agent.isolation, "pid": pid}


async def _told(stream: Stream, settled: Settled) -> dict[str, Any]:
    """The outcome of a run. Lists that may be long go ahead of it, in chunks."""
    outcome = settled.outcome
    if settled.report:
        await works.send_report(stream, settled.report)
    await works.send(stream, "changes", map(works.entry, outcome.changes))
    limits = {name: getattr(outcome.limits, name) for name in ("memory_mb", "disk_mb", "tmp_mb")}
    return {
        "name": from_file(outcome.name),
        "code": outcome.code,
        "ending": outcome.ending,
        "level": outcome.level,
        "seconds": outcome.seconds,
        "limits": limits,
        "refusals": [[portable(one.what), one.times, one.allow] for one in outcome.refusals],
        "failures": [[portable(what), times] for what, times in outcome.failures],
        "notes": [portable(note) for note in outcome.notes],
        "workspace": works.about(outcome.workspace) if outcome.workspace else None,
        "kept": settled.kept,
        "committed": settled.report is not None,
        "note": portable(settled.note),
    }


# Act on agents.


async def _tell(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    request = cast("abi.Tell", asked.request)
    signal, agent = known(request.signal), alive(kernel, request.agent)
    run = agent.running if isinstance(agent.running, Run) else None
    mine = kernel.guests.owner(agent) is caller
    if run and mine and signal in (AgentSignal.SIGTERM, AgentSignal.SIGKILL):
        run.guest.interrupted()  # by whoever started it: the outcome says so
    if signal is AgentSignal.SIGKILL:
        return await _kill(kernel, caller, agent, run, request.reason, quiet=mine)
    await kernel.signals.send(caller, agent, signal)
    if signal in (AgentSignal.SIGSTOP, AgentSignal.SIGCONT):
        _say(kernel, caller, agent, "paused" if signal is AgentSignal.SIGSTOP else "resumed", request.reason)
    return {"processes": 0, "survivors": 0, "seconds": 0.0}


async def _kill(
    kernel: "Kernel", caller: Actor, agent: Agent, run: Run | None, why: str, *, quiet: bool
) -> dict[str, Any]:
    """Returns when nothing of it is left; counts what there was and what, against all rules, still is."""
    began = time.monotonic()
    found = run.guest.members() if run else []
    if not quiet:
        kernel.guests.notice(agent, f"killed by {caller.described}{_because(why)}")
    try:
        await kernel.signals.send(caller, agent, AgentSignal.SIGKILL)
    except AgentOSError:
        if run is None or agent.exit:
            raise
        await run.destroy()  # a disk too full for the record must not save it
    left = run.guest.survivors(found) if run else 0
    return {"processes": len(found), "survivors": left, "seconds": time.monotonic() - began}


async def _hold(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    request = cast("abi.Hold", asked.request)
    agent = alive(kernel, request.agent)
    was = agent.held or agent.stopped
    await kernel.signals.send(caller, agent, AgentSignal.SIGSTOP if request.hold else AgentSignal.SIGCONT)
    news = was != request.hold
    if news:
        _say(kernel, caller, agent, "paused" if request.hold else "resumed", request.reason)
    return {"was": news}


def _say(kernel: "Kernel", caller: Actor, agent: Agent, what: str, why: str) -> None:
    more = f"   go on: agentctl resume {agent.name}" if what == "paused" else ""
    kernel.guests.notice(agent, f"{what} by {caller.described}{_because(why)}{more}")


def _because(reason: str) -> str:
    return f": {reason[:_LONGEST_REASON]}" if reason else ""


def alive(kernel: "Kernel", name: str) -> Agent:
    """A running agent. One that has ended left something to look at, perhaps, and its error says so."""
    try:
        return kernel.table.find_alive(name)
    except ESRCH as error:
        try:
            works.find(kernel.guests.home, name)
        except AgentOSError:
            raise error from None
        raise ESRCH("agent.ended", f"{name} has ended", hint=f"agentctl diff {name} shows what it changed") from None


async def _wait(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    name = cast("abi.Await", asked.request).agent
    try:
        return await kernel.wait_for(kernel.table.find(name))
    except ESRCH:
        if before := kernel.recovery.how_it_ended(qualified(name)):  # in an earlier kernel
            return before
        raise


async def _snapshot(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    request = cast("abi.Snapshot", asked.request)
    agent = kernel.table.living(kernel.table.meant(request.agent))
    if agent and isinstance(agent.running, Run):
        try:
            kept = await agent.running.guest.snapshot(request.name, caller.described)
        except ESRCH:  # it has ended meanwhile, and its state is kept
            kept = await asyncio.to_thread(works.copy, kernel.guests.home, request.agent, request.name)
    else:
        kept = await asyncio.to_thread(works.copy, kernel.guests.home, request.agent, request.name)
    changes = await asyncio.to_thread(kept.diff)
    return {**works.about(kept), "of": request.agent, "counts": works.counts(changes)}


async def _work(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    request = cast("abi.Work", asked.request)
    if request.do == "commit" and not request.dry_run:
        found = await asyncio.to_thread(works.find, kernel.guests.home, request.name, request.directory)
        await endowment.commit(kernel.authority, found)
    return await works.do(kernel.guests.home, request, _stream(asked), kernel.governing.judge)


async def _logs(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    """What it wrote, and with `follow` what it writes until its end."""
    request, stream = cast("abi.Logs", asked.request), _stream(asked)
    wanted = kernel.table.meant(request.agent)
    skip = _of_earlier_lives(kernel, wanted) if request.newest else request.skip
    reader = outputs.Reader(kernel.guests.home, as_file(qualified(wanted)), request.last, skip, request.since_ns)
    try:
        while True:
            alive = kernel.table.living(wanted)
            while data := reader.read(_PIECE):
                await stream.send(data)
            if not (request.follow and alive):
                return None
            await asyncio.sleep(_FOLLOW_S)
    finally:
        reader.close()


def _of_earlier_lives(kernel: "Kernel", agent_id: str) -> int:
    """Bytes of its log. All there are, where the next life has written nothing yet."""
    row = kernel.table.row(agent_id)
    return row.running.output.begins if row and isinstance(row.running, Run) else sys.maxsize


# The kernel itself.


def _down(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    grace = cast("abi.Down", asked.request).grace_s

    def stop() -> None:
        if not kernel.halting:
            kernel.start(kernel.stop(grace))

    return Act(lambda: Done({"agents": len(kernel.table.alive())}), answered=stop)


def _leave(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    adopt = cast("abi.Leave", asked.request).adopt
    ending = False

    def do() -> Done:
        nonlocal ending
        if adopt:
            kernel.idle_exit = None
        caller.leaving = not adopt
        ending = kernel.idle_exit == 0 and kernel.is_unused
        return Done({"ending": ending})

    def answered() -> None:
        if ending and not kernel.halting:
            kernel.start(kernel.stop(0))

    return Act(do, answered=answered)


async def _release(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    request = cast("abi.Release", asked.request)
    agent_id = qualified(request.agent)
    if kernel.store.get(QUARANTINE, agent_id) is None:
        there = ", ".join(_quarantined(kernel))
        hint = f"in quarantine: {there}" if there else "nobody is in quarantine"
        raise ENOENT("quarantine.none", f"{request.agent} is not in quarantine", hint=hint)
    await kernel.release(agent_id, request.reason)
    return None


async def _panic(kernel: "Kernel", caller: Actor, asked: Asked) -> Any:
    request = cast("abi.Panic", asked.request)
    if request.agent is not None:
        await kernel.quarantine(kernel.table.find(request.agent), request.reason)
        return None
    await kernel.hold_all()
    kernel.start(kernel.stop(0))
    return None


_BY_TYPE: Mapping[type[abi.Body], Prepare] = {
    abi.Status: _status,
    abi.ListAgents: _list,
    abi.Inspect: _inspect,
    abi.Run: _waiting(_run),
    abi.Tell: _waiting(_tell),
    abi.Hold: _waiting(_hold),
    abi.Snapshot: _waiting(_snapshot),
    abi.Await: _waiting(_wait),
    abi.Down: _down,
    abi.Logs: _waiting(_logs),
    abi.Release: _waiting(_release),
    abi.Panic: _waiting(_panic),
    abi.Leave: _leave,
    abi.Work: _waiting(_work),
}
PREPARE: dict[int, Prepare] = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
