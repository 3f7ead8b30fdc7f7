"""What a name in a manifest means: an id, or a bare name of the same namespace, then of `system`.

In: a name, the namespace it is seen from, and who is there. Out: an id, or None. Reads no manifest.
"""

from collections.abc import Collection

SYSTEM = "system"  # the namespace that bare names reach from everywhere
# What the kernel itself answers to: always ready.
PARTS = frozenset(
    f"{SYSTEM}/{part}"
    for part in ("kernel-init", "message-bus", "memory-service", "tool-registry", "cron-service", "health-monitor")
)


def ids(name: str, namespace: str) -> tuple[str, ...]:
    """All that it may mean, what counts most first."""
    return (name,) if "/" in name else (f"{namespace}/{name}", f"{SYSTEM}/{name}")


def resolved(name: str, namespace: str, known: Collection[str]) -> str | None:
    """The id of one that is known, or of a part of the kernel; None where nobody has that name."""
    return next((one for one in ids(name, namespace) if one in known or one in PARTS), None)
