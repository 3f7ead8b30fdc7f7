"""Content by its hash: what was just written, what was just read, and the store's body store behind both.

A body that is not yet committed exists here only, and stays until it is; committed ones are remembered within a bound.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from agent_os.abi.errors import EIO
from agent_os.kernel.vfs.backend import Kept

REMEMBERED = 32 << 20  # bytes


class Bodies:
    def __init__(self, store: Kept) -> None:
        self._store = store
        self._pending: dict[bytes, bytes] = {}
        self._waiting: Counter[bytes] = Counter()  # one body may be on its way more than once
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._recent_bytes = 0

    def hold(self, digest: bytes, data: bytes) -> None:
        """Until `settle`: the store may not know it yet."""
        self._pending[digest] = data
        self._waiting[digest] += 1

    def settle(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._waiting[digest] -= 1
            if self._waiting[digest] == 0:
                del self._waiting[digest]
                self._remember(digest, self._pending.pop(digest))

    def get(self, digest: bytes) -> bytes:
        data = self._pending.get(digest) or self._recent.get(digest)
        if data is None:
            data = self._store.blob(digest)
            if data is None:
                raise EIO("vfs.body", f"content {digest.hex()[:16]}… of this entry is missing in the store")
            self._remember(digest, data)
        return data

    def forget(self, digests: Iterable[bytes]) -> None:
        """They are erased in the store."""
        for digest in digests:
            self._recent_bytes -= len(self._recent.pop(digest, b""))

    def _remember(self, digest: bytes, data: bytes) -> None:
        if digest in self._recent:
            self._recent.move_to_end(digest)
            return
        self._recent[digest] = data
        self._recent_bytes += len(data)
        while self._recent_bytes > REMEMBERED and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1])
