"""What a receiver's manifest says about its messages: data only."""

from msgspec import Struct


class Terms(Struct, frozen=True):
    queue: int = 1000  # messages that wait; one more is told to come again
    deliveries: int = 5  # then it is a dead letter
    deaths: int = 3  # lives that ended with it in hand, then the same
    requests: int | None = None  # in hand at once; None: as many as it takes


USUAL = Terms()


def usual(agent: str) -> Terms:
    """Of whoever no manifest speaks of."""
    return USUAL
