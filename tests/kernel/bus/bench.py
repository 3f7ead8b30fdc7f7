"""A broker on a bench: its store is real, its clock is ours, and it can be pulled out of the wall."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agent_os.abi.errors import AgentOSError
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.bus.broker import Broker, Change, Note, Sent
from agent_os.kernel.bus.local import LocalBroker
from agent_os.kernel.bus.message import Delivery, Now, Outgoing

T = TypeVar("T")
HOUR = 3600.0
EPOCH_NS = 1_700_000_000 * 10**9


class Bench:
    """What a back end gives the conformance suite. `keep` commits what came with a change; `crash` forgets the rest."""

    broker: Broker

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.notes: list[Note] = []
        self.woken: list[str] = []
        self.deaf: set[tuple[str, str]] = set()  # who may not have events of which topic

    @property
    def now(self) -> Now:
        return Now(self.seconds, EPOCH_NS + int(self.seconds * 1e9))

    def keep(self, change: Change[T]) -> T:
        raise NotImplementedError

    def crash(self, *, away: float = 0.0) -> None:
        """Everything that was not kept is gone. `away`: seconds until it is there again."""
        raise NotImplementedError

    # What every test does.

    def sleep(self, seconds: float) -> None:
        """Time passes, and the broker tends to what that brings."""
        self.seconds += seconds
        self.keep(self.broker.tend(self.now))

    def send(self, to: str, payload: Any = None, *, sender: str = "a", **more: Any) -> Sent:
        draft = Outgoing(to, sender, payload=msgspec.Raw(msgspec.msgpack.encode(payload)), **more)
        (sent,) = self.keep(self.broker.publish([draft], self.now))
        if isinstance(sent, AgentOSError):
            raise sent
        return sent

    def publish(self, topic: str, payload: Any = None, **more: Any) -> Sent:
        return self.send(topic, payload, topic=True, **more)

    def pull(self, consumer: str = "b", n: int = 100, **more: Any) -> list[Delivery]:
        return self.keep(self.broker.pull(consumer, n, self.now, **more))

    def ack(self, *deliveries: Delivery, agent: str = "b") -> int:
        return self.keep(self.broker.ack(agent, [one.id for one in deliveries], self.now))

    def nack(self, *deliveries: Delivery, agent: str = "b", **more: Any) -> int:
        return self.keep(self.broker.nack(agent, [one.id for one in deliveries], self.now, **more))

    def subscribe(self, pattern: str, *, agent: str = "b", **more: Any) -> str:
        return self.keep(self.broker.subscribe(agent, pattern, self.now, **more)).sub

    def reasons(self, receiver: str | None = None) -> list[str]:
        return [letter.reason for letter in self.broker.dead_letters(receiver)]


def said(deliveries: list[Delivery]) -> list[Any]:
    return [msgspec.msgpack.decode(one.message.payload) for one in deliveries]


class LocalBench(Bench):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.store = SqliteStore(path, reserve=0)
        self.local = self.broker = self._made()

    def _made(self) -> LocalBroker:
        return LocalBroker(self.store, self.now, hears=lambda agent, topic: (agent, topic) not in self.deaf)

    def keep(self, change: Change[T]) -> T:
        self.store.append([], change.puts, [], sync=False)
        self.notes += change.notes
        self.woken += change.wake
        return change.value

    def crash(self, *, away: float = 0.0) -> None:
        self.store.close()
        self.seconds += away
        self.store = SqliteStore(self._path, reserve=0)
        self.local = self.broker = self._made()
