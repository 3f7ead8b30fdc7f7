"""What a broker must be able to do, whichever carries the messages.

Nothing here waits. An operation says what must be kept together with the caller's own record (`Change.puts`, in one
transaction), whom it concerns (`wake`), and what happened beside (`notes`). A back end that carries messages elsewhere
keeps an outbox in its puts, and carries what it finds there: nothing leaves before it is kept. So a crash before that
transaction leaves nothing, and one after it everything.

A consumer is whoever pulls: an agent, by its id, or one subscription that was made to stand alone. An error of the
AgentOSError family means that nothing has changed.
"""

from collections.abc import Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from agent_os.abi.errors import AgentOSError
from agent_os.drivers.store import Put
from agent_os.kernel.bus.message import ALL_LANES, Delivery, Letter, Message, Now, Outgoing, Reason

VISIBLE_S = 30.0  # a delivery is its receiver's for so long, and then somebody's again
MOST_PULLED_BYTES = 768 << 10  # of one pull, beyond its first message: an answer is one frame

T = TypeVar("T")


class Note(Struct):
    """Something that the record should tell beside the call in which it happened."""

    kind: Literal["dead", "gap", "forgotten"]
    agent: str  # whom it concerns
    facts: dict[str, Any]


class Change(Struct, Generic[T]):
    value: T
    puts: list[Put] = []
    wake: Sequence[str] = ()  # consumers for whom something is there now
    notes: list[Note] = []


def together(changes: Sequence[Change[Any]], value: T) -> Change[T]:
    """All of them, in order, as one."""
    return Change(
        value,
        [put for one in changes for put in one.puts],
        [name for one in changes for name in one.wake],
        [note for one in changes for note in one.notes],
    )


class Sent(Struct):
    id: str
    seq: int
    duplicate: bool = False  # the receiver has it, or had it; nothing was sent


class Start(Struct, frozen=True):
    """Where a new subscription begins."""

    kind: Literal["new", "first", "seq", "time"] = "new"
    value: int = 0  # the first sequence number wanted, or nanoseconds of the wall clock


NEW = Start()


class Subscribed(Struct):
    sub: str
    joined: bool = False  # the group was there, and goes on where it is
    waiting: int = 0  # events that it begins with


class Lag(Struct):
    """How far behind a consumer is."""

    waiting: int
    in_hand: int
    bytes: int
    oldest_ns: int | None = None
    lanes: tuple[int, ...] = (0,) * len(ALL_LANES)  # of those that wait, how many in each


class Broker(Protocol):
    def publish(self, batch: Sequence[Outgoing], now: Now, *, whole: bool = True) -> Change[list[Sent | AgentOSError]]:
        """Each is accepted or refused by itself, in order. Not `whole`: the first that is refused is the last."""
        ...

    def pull(
        self,
        consumer: str,
        n: int,
        now: Now,
        *,
        lanes: Sequence[int] = ALL_LANES,
        visible_s: float = VISIBLE_S,
    ) -> Change[list[Delivery]]:
        """What is there, up to `n`. It stays with the consumer until it is acknowledged or its time is over."""
        ...

    def ack(self, agent: str, ids: Sequence[str], now: Now) -> Change[int]:
        """Done with these. Gives how many it did not know: another time, or never. Saying so twice harms nobody."""
        ...

    def nack(self, agent: str, ids: Sequence[str], now: Now, *, delay_ms: int = 0, reason: str = "") -> Change[int]:
        """Not done; again later, before what came after it from the same sender in the same lane."""
        ...

    def extend(self, agent: str, ids: Sequence[str], now: Now, *, more_s: float = VISIBLE_S) -> Change[int]: ...

    def reject(
        self, agent: str, ids: Sequence[str], now: Now, *, reason: Reason = "rejected", detail: str = ""
    ) -> Change[int]:
        """Never again: a dead letter."""
        ...

    def subscribe(
        self,
        agent: str,
        pattern: str,
        now: Now,
        *,
        group: str = "",
        start: Start = NEW,
        alone: bool = False,
        credit: int = 0,
    ) -> Change[Subscribed]:
        """`alone`: it is a consumer by itself (`agent#sub`), and `pull(agent)` does not give its events. `credit`: it
        is, and so many of them may be in hand."""
        ...

    def grant(self, agent: str, sub: str, credit: int, now: Now) -> Change[None]:
        """So many from now on."""
        ...

    def credit(self, consumer: str) -> int:
        """How many more it takes now; 0 for one that pulls."""
        ...

    def load(self, sender: str, to: str, corr: str | None) -> tuple[int, int]:
        """Of one stream to an agent: the messages, and their bytes, that it has not acknowledged."""
        ...

    def unsubscribe(self, agent: str, sub: str, now: Now) -> Change[None]: ...

    def lag(self, consumer: str) -> Lag: ...

    def depth(self) -> list[int]:
        """How much waits or is in hand, by lane."""
        ...

    @property
    def buried(self) -> int:
        """Dead letters since this broker began."""
        ...

    def declare(self, pattern: str, now: Now, *, reliable: bool) -> Change[None]:
        """Publishers to these topics are refused rather than a subscriber losing anything, until it is taken back."""
        ...

    def declared(self) -> list[str]: ...

    def died(self, agent: str, now: Now, *, keeps: bool = False, blamed: bool = True) -> Change[int]:
        """A life of the agent ended, and it will have another. What it had in hand is somebody's again. `keeps`: the
        next life goes on with it in hand. `blamed`: it may be a message that kills. Gives how many are dead letters
        for that."""
        ...

    def in_hand(self, agent: str) -> list[tuple[str, int]]:
        """The ids of what it has, each with the lives that it has cost."""
        ...

    def held(self, agent: str, name: str) -> Message | None:
        """What went out to the agent under that id, and is not settled."""
        ...

    def gone(self, agent: str, now: Now) -> Change[None]:
        """It ended for good: what waits for it are dead letters, its subscriptions end."""
        ...

    def freeze(self, agent: str, now: Now) -> None:
        """It is stopped: the time of what it has in hand stands still."""
        ...

    def thaw(self, agent: str, now: Now) -> None: ...

    def bury(self, draft: Outgoing, receiver: str, reason: Reason, detail: str, now: Now) -> Change[Sent]:
        """A dead letter of what was never delivered to anybody and must not be lost."""
        ...

    def dead_letters(self, receiver: str | None = None) -> list[Letter]:
        """The oldest first."""
        ...

    def redeliver(self, name: str, now: Now) -> Change[Sent]:
        """A dead letter once more, as if it came just now, into its receiver's mailbox: behind what is there, and
        without regard to what was handled. EAGAIN: there is no room."""
        ...

    def drop_letter(self, name: str, now: Now) -> Change[None]: ...

    def tend(self, now: Now) -> Change[None]:
        """What time alone brings about: deliveries that are over, messages that expire, what is kept no longer."""
        ...

    @property
    def next_tend(self) -> float | None:
        """When `tend` has something to do, by the monotonic clock."""
        ...

    def close(self) -> None: ...
