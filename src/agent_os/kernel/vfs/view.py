"""`AgentVFS`: the tree for programs that embed the kernel, as methods.

Given a context it is a thin view: every method is one call through that context's gate. Given only a name it is a tree
of its own in memory, without gate and record, for tools and tests.
"""

from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, Literal, Protocol, cast

from agent_os.abi.errors import ENOENT, ENOSYS
from agent_os.abi.syscalls import Body, List, Read, Remove, Stat, Write
from agent_os.drivers.store import Blob, Put
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.calls import Act
from agent_os.kernel.vfs.backend import Data
from agent_os.kernel.vfs.operations import Vfs
from agent_os.kernel.vfs.root import Root
from agent_os.kernel.vfs.streams import Stream


class Caller(Protocol):
    """What a context has: one request in, its result out, refusals raised."""

    async def syscall(self, request: Body, /) -> Any: ...


class AgentVFS:
    def __init__(self, context: Caller | str) -> None:
        self._context: Caller = Alone(context) if isinstance(context, str) else context

    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        version: int | None = None,
        text: bool = False,
    ) -> Data:
        """Text that was written as text, else bytes; `text` asks for text of a workspace file."""
        request = Read(path=path, offset=offset, length=length, version=version, text=text)
        result = await self._context.syscall(request)
        return _joined(result) if isinstance(result, Stream) else result["data"]

    async def write(
        self,
        path: str,
        data: Data,
        *,
        mode: Literal["replace", "create"] = "replace",
        if_version: int | None = None,
    ) -> int:
        """The new version."""
        result = await self._context.syscall(Write(path=path, data=data, mode=mode, if_version=if_version))
        return result["version"]

    async def append(self, path: str, data: Data, *, if_version: int | None = None) -> int:
        """Where it landed."""
        result = await self._context.syscall(Write(path=path, data=data, mode="append", if_version=if_version))
        return result["offset"]

    async def list(self, path: str = "/") -> Sequence[str]:
        """All names in a directory, by bytes."""
        return [entry["name"] for entry in await self._entries(path)]

    async def stat(self, path: str) -> dict[str, Any]:
        return await self._context.syscall(Stat(path=path))

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except ENOENT:
            return False
        return True

    async def remove(self, path: str, *, if_version: int | None = None) -> None:
        await self._context.syscall(Remove(path=path, if_version=if_version))

    async def mounts(self) -> Sequence[str]:
        """Where the tree is made of something else: memory, views, directories."""
        found: list[str] = []
        above = ["/"]
        while above:
            base = above.pop()
            for entry in await self._entries(base):
                path = f"{base.rstrip('/')}/{entry['name']}"
                (found if entry.get("mount") else above).append(path)
        return sorted(found)

    async def _entries(self, path: str) -> Sequence[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        more = True
        while more:
            after = entries[-1]["name"] if entries else ""
            result = await self._context.syscall(List(path=path, after=after))
            entries += result["entries"]
            more = result["more"]
        return entries


def _joined(stream: Stream) -> Data:
    parts = list(stream.chunks)
    return "".join(cast("list[str]", parts)) if stream.text else b"".join(cast("list[bytes]", parts))


class Alone:
    """A tree by itself: acts at once and remembers in memory."""

    def __init__(self, name: str) -> None:
        self._kept = Remembered()
        self._vfs = Vfs(self._kept, label=lambda agent: CLEAN)  # nobody else writes here
        self._root: Root = self._vfs.root(name if "/" in name else f"default/{name}")

    async def syscall(self, request: Body, /) -> Any:
        act = self._prepare(request)
        done = act.do()
        if isinstance(done, Awaitable):
            done = await done
        self._kept.keep(done.puts, done.blobs)
        if act.answered:
            act.answered()
        return done.value

    def _prepare(self, request: Body) -> Act:
        match request:
            case Read():
                return self._vfs.read(self._root, request)
            case Write():
                return self._vfs.write(self._root, request)
            case List():
                return self._vfs.list(self._root, request)
            case Stat():
                return self._vfs.stat(self._root, request)
            case Remove():
                return self._vfs.remove(self._root, request)
            case _:
                raise ENOSYS("vfs.alone", f"a tree by itself does not answer {type(request).__name__}")


class Remembered:
    """What a store would keep, for as long as the program runs."""

    def __init__(self) -> None:
        self._facts: dict[str, dict[str, bytes]] = {}
        self._blobs: dict[bytes, bytes] = {}

    def keep(self, puts: Sequence[Put], blobs: Sequence[Blob]) -> None:
        for bucket, key, value in puts:
            facts = self._facts.setdefault(bucket, {})
            if value is None:
                facts.pop(key, None)
            else:
                facts[key] = value
        self._blobs.update(blobs)

    def get(self, bucket: str, key: str) -> bytes | None:
        return self._facts.get(bucket, {}).get(key)

    def items(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        facts = self._facts.get(bucket, {})
        return iter([(key, facts[key]) for key in sorted(facts) if key.startswith(prefix)])

    def blob(self, digest: bytes) -> bytes | None:
        return self._blobs.get(digest)
