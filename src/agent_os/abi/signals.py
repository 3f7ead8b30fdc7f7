"""The signals of agents: numbers, who may mask them, and the order in which pending ones are delivered.

Numbers and maskability are a promise to users and never change. "Maskable" concerns agents signalling agents: what
the operator or the kernel itself sends always holds.
"""

from collections.abc import Iterable
from enum import IntEnum


class AgentSignal(IntEnum):
    SIGSTOP = 1  # the whole process tree stands still
    SIGCONT = 2  # and goes on
    SIGINT = 3  # a waiting call raises Interrupted; the agent lives
    SIGKILL = 4  # every descendant is dead when the call returns
    SIGTERM = 5  # asked to end, and made to after a grace
    SIGUSR1 = 6  # checkpoint
    SIGUSR2 = 7  # for the agent's own handler
    SIGPOLICY = 8  # a violation: SIGKILL and quarantine
    SIGTRUST = 9  # broken trust: the same
    SIGBUDGET = 10  # a budget is used up
    SIGCHLD = 13  # a child changed its state

    @property
    def maskable(self) -> bool:
        return self not in UNMASKABLE


UNMASKABLE = frozenset({AgentSignal.SIGKILL, AgentSignal.SIGPOLICY, AgentSignal.SIGTRUST})
KERNEL_ONLY = frozenset({AgentSignal.SIGPOLICY, AgentSignal.SIGTRUST})
_FIRST = (AgentSignal.SIGKILL, AgentSignal.SIGPOLICY, AgentSignal.SIGTRUST, AgentSignal.SIGSTOP)


def seen_by_agents(signal: AgentSignal) -> bool:
    """Whether a native agent is told of it. The others just happen to it."""
    return signal not in UNMASKABLE and signal not in (AgentSignal.SIGSTOP, AgentSignal.SIGCONT)


def in_order(pending: Iterable[AgentSignal]) -> list[AgentSignal]:
    """KILL, POLICY, TRUST, STOP, then by number."""
    return sorted(pending, key=lambda one: (_FIRST.index(one) if one in _FIRST else len(_FIRST), one))
