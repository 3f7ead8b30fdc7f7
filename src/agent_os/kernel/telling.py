"""What the journal is told of a call on its way through the gate: an entry, as a draft.

In: a call with what the steps left on it, and how it ended. Out: a draft that says who did what, why it was decided so,
and what was asked and answered. Where that cannot be written down, `bare` is what always can. Puts nothing: the gate
does, which also knows what the store must hold with it.
"""

from typing import Any

from msgspec import Raw

from agent_os.abi import frames
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import AgentOSError
from agent_os.abi.syscalls import BY_NAME
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.authority.ruling import Policies
from agent_os.kernel.journal import Draft
from agent_os.kernel.passing import NOTHING, Passing
from agent_os.kernel.recorded import body, digest

NOTHING_SAID = b"\xc0"
_LONGEST_TOLD = 1024  # bytes of a request
_ALLOW = int(Verdict.ALLOW)
_UNTOLD = frozenset({BY_NAME["OP_SECRETS"].number})  # not understood, it may hold a value where none belongs


def draft_of(passing: Passing, kind: Kind, body: bytes, code: int = 0) -> Draft:
    """Not signed yet."""
    caller, asked = passing.caller, passing.asked
    return Draft(
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


def sign(passing: Passing, draft: Draft, policies: Policies) -> None:
    """Why it was decided as it was."""
    handle, marks = passing.handle, passing.marks
    if handle:
        draft.handle, draft.capability_digest = handle.id, handle.digest
    if marks.label is not CLEAN:
        draft.label = marks.label.words()
    if decision := marks.decision:
        draft.rule, draft.mode = decision.told, str(decision.mode)
        draft.policy_digest = policies.of(passing.caller.id).digest
    if marks.approval:
        draft.rule = ",".join(filter(None, (draft.rule, f"approval:{marks.approval}")))


def body_of(passing: Passing, error: AgentOSError | None, value: Raw = frames.NIL) -> bytes:
    act, asked = passing.act, passing.asked
    if act.door:
        why = {"error": error.name, "code": error.code, "reason": error.reason} if error else {}
        more = {name: error.detail[name] for name in ("missing", "where") if error.detail.get(name)} if error else {}
        return frames.encode_body({**act.door.told, **why, **more})
    if act is NOTHING and asked.op in _UNTOLD and error:
        return body(NOTHING_SAID, value, type(error)(error.code, "it was refused; what it said is not kept"))
    said = act.record
    if said is None and len(asked.raw) > frames.MAX_FRAME:  # it came in parts: its digest is enough
        said = {"bytes": len(asked.raw)}
    return body(asked.raw, value, error, said)


def announcement(passing: Passing) -> Draft:
    """Who is about to change what. The answer's entry holds the whole request; a long one is told by its hash here."""
    caller, asked = passing.caller, passing.asked
    told: dict[str, Any] = {"event": "asked", "via": getattr(caller, "via", ""), "role": caller.role}
    told |= {"request": Raw(asked.raw)} if len(asked.raw) <= _LONGEST_TOLD else {"request_hash": digest(asked.raw)}
    return Draft(caller.id, Kind.CHANGE, caller.incarnation, asked.op, body=frames.encode_body(told))


def bare(passing: Passing, kind: Kind, error: AgentOSError) -> Draft:
    """An entry of a call that cannot be told of as it is: who, which one, and how it ended."""
    asked = passing.asked
    said = NOTHING_SAID if asked.op in _UNTOLD else asked.raw
    return draft_of(passing, kind, body(said, frames.NIL, error, {}), error.number)
