"""Who may hear what: whether an agent may have the events of a topic, at the moment when it would get one.

In: the name of an agent, a topic. Out: yes or no, by what it holds and the rules that are in force now; and when what a
subscription rests on expires. A filter may take more than a rule leaves open, and a subscription may last longer than
what it was made under: so whoever gives an event asks here first. Ends nothing itself.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from agent_os.abi.errors import EACCES, EPERM
from agent_os.kernel.authority.policy.rules import Effect
from agent_os.kernel.authority.ruling import weigh
from agent_os.kernel.bus.broker import Change
from agent_os.kernel.bus.message import Now
from agent_os.kernel.bus.topics import target
from agent_os.kernel.calls import Need
from agent_os.kernel.opened import is_held

if TYPE_CHECKING:
    from agent_os.kernel.bus.local import LocalBroker
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.supervisor.specs import Spec

# Before the names of operators and hosts that follow a topic, who are trusted. No agent's name has this letter in it.
LISTENERS = "listener:"


def subscribing(pattern: str) -> Need:
    return Need("ipc", "subscribe", target(pattern))


class Hearing:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._ends: dict[tuple[str, str], float] = {}  # agent, subscription: by the wall clock

    def hears(self, agent_id: str, topic: str) -> bool:
        if agent_id.startswith(LISTENERS):
            return True
        agent, need = self._kernel.table.row(agent_id), subscribing(topic)
        if agent:
            policy = self._kernel.authority.policies.of(agent_id)
            if not policy.silent and weigh(policy, agent, [need]).effect is Effect.FORBID:
                return False
        return self._holds(agent_id, need)

    def _holds(self, agent_id: str, need: Need) -> bool:
        return is_held(self._kernel.vfs.root(agent_id), self._kernel.authority.holdings(agent_id), need)

    def serves(self, spec: "Spec", topic: str) -> bool:
        """The same for a declared agent, which need not live."""
        from agent_os.manifest.may import topic_refusal

        if self._kernel.table.living(spec.id):
            return self.hears(spec.id, topic)
        return topic_refusal(spec.manifest, "subscribe", topic) is None

    # What expires, also while nothing happens.

    def until_expiry(self, agent_id: str, sub: str, pattern: str) -> None:
        with suppress(EPERM, EACCES):  # whoever took it away ends the subscription
            handle = self._kernel.authority.holdings(agent_id).find((subscribing(pattern),))
            if handle and handle.expiry is not None:
                self._ends[agent_id, sub] = handle.expiry / 1000

    def forget(self, agent_id: str, sub: str | None = None) -> None:
        """A subscription is over, or all of an agent."""
        for one in [one for one in self._ends if one[0] == agent_id and sub in (None, one[1])]:
            del self._ends[one]

    @property
    def next_end(self) -> float | None:
        """By the monotonic clock."""
        return time.monotonic() + min(self._ends.values()) - time.time() if self._ends else None

    def expired(self, broker: "LocalBroker", now: Now) -> list[Change[None]]:
        """End subscriptions whose time is over, unless something else allows them."""
        changes: list[Change[None]] = []
        for agent, sub in [one for one, at in self._ends.items() if at * 1e9 <= now.wall_ns]:
            del self._ends[agent, sub]
            for one in broker.subscriptions(agent):
                if one.name != sub:
                    continue
                self.until_expiry(agent, sub, one.pattern)  # before the look: what ends between the two ends here
                if not self._holds(agent, subscribing(one.pattern)):
                    self.forget(agent, sub)
                    changes.append(broker.unsubscribe(agent, sub, now))
        return changes
