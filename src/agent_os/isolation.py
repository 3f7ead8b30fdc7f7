"""What one agent gets on this host. A part of the composition root that loads no kernel: `agentctl up` tells it.

In: nothing. Out: the check, after one agent was started and ended; the level is kept in the home.
"""

from agent_os.client import place
from agent_os.client.start import prepared
from agent_os.kernel import levels
from agent_os.sandbox import probe


async def isolation() -> probe.Check:
    """What one agent gets on this host, and from now on is known to get."""
    found = await probe.isolation()
    levels.remember(prepared(place.home()), found.cause.partition(" ")[0])
    return found
