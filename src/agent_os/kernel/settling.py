"""How a run ended, and what becomes of its changes: kept, committed or thrown away, as was ordered.

In: the outcome of a process, and the order that it ran by. Out: the same for the table, and for whoever followed. What
cannot be done as ordered is kept, with the reason; nothing that an agent wrote is lost without somebody's word.
"""

from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.kernel import orders
from agent_os.kernel.process import Outcome
from agent_os.kernel.supervisor import exits
from agent_os.kernel.table import Ended
from agent_os.kernel.works import Judge
from agent_os.kernel.workspace import Workspace
from agent_os.kernel.workspace.landing import Report


class Settled(Struct, frozen=True):
    """How a run ended, and what became of its changes."""

    outcome: Outcome
    kept: bool  # there is something left to decide about
    report: Report | None = None  # of the commit that was ordered
    note: str = ""  # why something else happened than was ordered


def settle(outcome: Outcome, written: orders.Written, judge: Judge) -> Settled:
    """Do with the changes what was ordered. Never raises for a workspace's sake: what cannot be done is kept."""
    workspace = outcome.workspace
    if workspace is None:
        return Settled(outcome, kept=False)
    if outcome.unread:
        return Settled(outcome, kept=True, note=f"the state is kept as {outcome.name}, because {outcome.unread}")
    outcome = _marked(outcome, workspace, judge)
    try:
        if written.snapshot:
            return Settled(replace(outcome, workspace=workspace.keep_as(written.snapshot)), kept=True)
        if not outcome.changes or written.after == "discard":
            workspace.discard()
            return Settled(outcome, kept=False)
        if written.after == "commit" and not outcome.code:
            judged = judge(workspace.agent, workspace.project)
            report = workspace.commit(allow_protected=written.allow_protected, judge=judged)
            if report.complete:
                workspace.discard()
            return Settled(outcome, kept=False, report=report)
    except AgentOSError as error:
        return Settled(outcome, kept=True, note=f"the state is kept as {outcome.name}, because {error.reason}")
    ended = f"nothing was committed, because it ended {outcome.code}" if written.after == "commit" else ""
    return Settled(outcome, kept=True, note=ended)


def _marked(outcome: Outcome, workspace: Workspace, judge: Judge) -> Outcome:
    """With its changes as the rules see them. Rules that cannot be read keep nobody from hearing what was changed."""
    try:
        judged = judge(workspace.agent, workspace.project)
        return replace(outcome, changes=tuple(map(judged, outcome.changes)))
    except AgentOSError:
        return outcome


def ending(outcome: Outcome) -> Ended:
    match outcome.ending:
        case "exited":
            exit_class, code = exits.classify(exits.status_of(outcome.code))
            told = f"ended by signal {-code} of the host" if code < 0 else f"ended {code}"
            return Ended(exit_class, code, told if code else "")
        case "interrupted" | "killed":
            return Ended(ExitClass.REQUESTED, -1, outcome.ending)
        case "timeout":
            return Ended(ExitClass.TIMEOUT, -1, "its time was over")
        case "memory":
            return Ended(ExitClass.OOM, -1, "it used more memory than its limit")
        case "launcher":
            return Ended(ExitClass.LOST, -1, "the launcher ended")
        case "disk" | "tmp":
            return Ended(ExitClass.ERROR, -1, f"it outgrew its limit of {outcome.ending}")
