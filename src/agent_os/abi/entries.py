"""The journal entry: one shape for audit, recovery, replay and time travel.

An entry is a msgpack array in fixed order that grows only at the end. **The stored bytes are the hashed bytes**: they
are the leaf of the RFC 6962 tree, and nobody encodes one again to check it. The body (what was asked, what came back)
is in the entry by its hash only, so that a body can be erased and every proof still holds.
"""

from enum import IntEnum
from typing import Any

import msgspec
from msgspec import Struct

INLINE_BODY = 2048  # bytes; up to here a body lies beside its entry, larger ones are stored once by their hash


class Kind(IntEnum):
    BOOT = 1
    HALT = 2
    SPAWN = 3
    STATE = 4
    EXIT = 5
    INTENT = 6  # an effect is about to happen
    OUTCOME = 7  # it happened, or failed; `ref` names its intent, 0 where both are one transaction
    RESULT = 8  # of a pure call
    DECISION = 9  # a refusal
    SIGNAL = 10
    ACCEPT = 11
    DELIVER = 12  # something was pushed to the agent
    ACK = 13
    DEAD = 14
    CHECKPOINT = 15
    APPROVAL = 16
    BUDGET = 17
    GRANT = 18
    REVOKE = 19
    POLICY_LOAD = 20
    POLICY_ERROR = 21
    LABEL = 22
    SECRET_USE = 23
    TRUST = 24
    KEY = 25
    REDACT = 26
    CHANGE = 27  # mount, agency, limits
    PARK = 28  # an outcome is unknown
    RESOLVE = 29  # somebody said what it was
    HEAD = 30
    CONNECT = 31  # an egress connection, allowed or refused


class Verdict(IntEnum):
    NONE = 0
    ALLOW = 1
    ASK = 2
    FORBID = 3
    REFUSE = 4


class Entry(Struct, array_like=True, frozen=True):
    seq: int  # gap-free in this journal, from 1
    agent: str  # who acted: an agent's id, or a door's actor (local:1000)
    aseq: int  # gap-free per agent, from 1
    inc: int
    epoch: int
    wall_ns: int  # information only, never ordering
    kind: int
    op: int = 0
    effect: str = ""  # p, i, v, o
    ref: int = 0  # the intent that this outcome belongs to
    pos: str | None = None
    seen: int = 0  # deliveries sent to the agent before the call arrived
    key: str | None = None
    verdict: int = 0
    step: int = 0  # of the gate
    rule: str = ""
    handle: int = 0
    capability_digest: bytes = b""
    label: list[str] = []
    policy_digest: bytes = b""
    mode: str = ""  # strict, enforce, shadow
    isolation: str = ""  # S0…S4, or none
    cost: dict[str, Any] = {}
    body: bytes = b""  # SHA-256, or empty where there is none
    code: int = 0  # 0, or the error's number


class Head(Struct, array_like=True, frozen=True):
    """What is signed: this log, up to here, is this tree."""

    log_id: bytes
    boot: int
    size: int
    root: bytes
    wall_ns: int
    policy_digest: bytes
    key_id: bytes


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Entry).decode
