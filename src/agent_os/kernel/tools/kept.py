"""What results could not hold, for one agent: `drivers.tools.Keep`.

In: bytes of a result, and where bodies are put and found. Out: what of them is shown, and parts of what was kept. Whose
they are is decided by whoever puts and finds.
"""

from collections.abc import Callable
from hashlib import sha256

from agent_os.abi.errors import ENOENT
from agent_os.drivers.tools import Data, Shown
from agent_os.kernel.tools.output import cut, text_of


class Kept:
    """What results could not hold, of one agent: `put` keeps a body under its digest, `get` finds what it kept."""

    def __init__(self, put: Callable[[str, bytes], None], get: Callable[[str], bytes | None]) -> None:
        self._put, self._get = put, get

    async def show(self, data: bytes, most: int) -> Shown:
        text, plain = text_of(data)
        if plain and len(data) <= most:
            return Shown(text, len(data), "")
        blob = sha256(data).hexdigest()
        self._put(blob, data)
        return Shown(cut(text, most, len(data)) if most else "", len(data), blob)

    async def part(self, blob: str, offset: int, length: int) -> Data:
        kept = self._get(blob)
        if kept is None:
            raise ENOENT("tool.blob", f"there is no output {blob[:64]!r} of yours", hint="as a result named it")
        return Data(kept[offset : offset + length], len(kept), 0)
