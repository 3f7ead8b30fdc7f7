"""How long to wait before the next life: doubled with every crash in a row, up to a cap, and spread out.

Goes in: the count of crashes in a row and a number drawn by the caller. Comes out: milliseconds. Draws nothing and
waits for nothing.
"""

from agent_os.kernel.supervisor.terms import Backoff

_MOST_DOUBLINGS = 40  # beyond any cap; keeps the numbers small
_LEAST_MS, _LEAST_CAP_MS = 1, 1000  # whatever a manifest says: each start is work that others wait for


def nominal(terms: Backoff, crashes: int) -> int:
    """Milliseconds after so many crashes in a row; none after none. A manifest may say less than others, but from the
    tenth crash or so on nobody starts more often than once a second."""
    if crashes < 1:
        return 0
    doublings = min(crashes - 1, _MOST_DOUBLINGS)
    least = min(_LEAST_CAP_MS, _LEAST_MS << doublings)
    return max(least, min(terms.cap_ms, terms.base_ms << doublings))


def waited(terms: Backoff, nominal_ms: int, chance: float) -> float:
    """What is really waited. Half is certain, half is `chance` (0 to 1): of 200 agents that crash together, at most 52
    then start within the same 100 ms. Spreading all of it would do better later but worse in the first second."""
    if terms.jitter == "none":
        return float(nominal_ms)
    return nominal_ms / 2 + chance * nominal_ms / 2
