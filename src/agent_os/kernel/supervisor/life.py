"""One incarnation of an agent of a manifest, from the moment that it is to be: what is known of it beside its row.

In: the word that it has its process, and as what the fleet is ending it. Out: the gravest of these, and whether a start
that failed would fail again. Ends nobody and stores nothing: a life is gone with its kernel.
"""

import asyncio

from msgspec import Struct, field

from agent_os.abi.errors import EACCES, EINVAL, EISOLATION, ENOENT, ENOSYS, EPERM
from agent_os.abi.states import ExitClass
from agent_os.kernel.supervisor.exits import graver
from agent_os.kernel.table import Agent

PERMANENT = (EINVAL, ENOENT, EACCES, EPERM, ENOSYS, EISOLATION)  # of a start: it is declared so that it cannot be


class Life(Struct, eq=False):
    incarnation: int
    agent: Agent | None = None  # once it is there
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # it is, or never will be
    fate: ExitClass | None = None  # as what the fleet is ending it
    reason: str = ""
    grace: float | None = None  # other than its manifest's
    anew: bool = False  # the next one has another manifest
    refused: bool = False  # it cannot be started as it is declared
    asked_for: bool = False  # by an agent that spawns it, and waits for it to be
    stillborn: bool = False  # that agent hears why; nothing is decided about it
    deadline: asyncio.Event = field(default_factory=asyncio.Event)  # somebody is done waiting for it to end

    def doomed(self, fate: ExitClass, reason: str) -> None:
        gravest = graver(self.fate, fate)
        if gravest is not self.fate:
            self.fate, self.reason = gravest, reason


def is_permanent(problem: BaseException) -> bool:
    """Whether a start would fail again: not if somebody moved files under it, nor if its launcher ended."""
    return isinstance(problem, PERMANENT) and not problem.retryable
