"""What the built-in tools work with, on what the kernel has: `drivers.tools.Files`, `Runs` and `Keep` for one agent.

In: the agent's tree, a launcher, a place for bodies. Out: the narrow interfaces. A tool's own call has passed the gate
for what its templates name; what it meets on its way (a link that leads elsewhere, a folder below) is judged when it is
touched, by `confirm`. For the web see `egress/fetching.py`.
"""

import inspect
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

from agent_os.abi.errors import ECONFLICT, EINVAL, EIO, EISOLATION, ENOENT, AgentOSError
from agent_os.abi.syscalls import List, Read, Write
from agent_os.abi.tools import LARGEST_OUTPUT
from agent_os.drivers.tools import Data, Entry, Listing, Program, Ran, WriteMode
from agent_os.kernel.authority.labels import Label, joined
from agent_os.kernel.calls import Act, Need
from agent_os.kernel.tools.oneshot import Beside, WayOut, run_tool
from agent_os.kernel.tools.output import text_of
from agent_os.kernel.vfs import Root, Vfs
from agent_os.kernel.vfs.operations import IN_ONE_FRAME
from agent_os.sandbox.spawner import Launcher, SandboxError
from agent_os.sandbox.spec import Limits

PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_numbers = count(1)
Confirm = Callable[[Sequence[Need], Mapping[str, Any]], None]  # raises what forbids it now
Carry = Callable[[Label], None]  # what was read joins that


def _unheard(label: Label) -> None: ...


class TreeFiles:
    """An agent's tree. What is written carries the label of whoever writes, as a call of its own would."""

    def __init__(self, vfs: Vfs, root: Root, confirm: Confirm, carry: Carry = _unheard) -> None:
        self._vfs, self._root, self._confirm, self._carry = vfs, root, confirm, carry

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> Data:
        """In pieces, so that others go on meanwhile. ECONFLICT: it was changed between two of them."""
        first = await self._piece(path, offset, length)
        size = first["size"]
        end = size if length is None else min(size, offset + length)
        parts = [_bytes(first["data"])]
        at = offset + len(parts[0])
        while at < end and parts[-1]:
            piece = await self._piece(path, at, end - at)
            if piece["version"] != first["version"]:
                raise ECONFLICT("file.changed", f"{path!r} was changed while it was read", hint="read it again")
            parts.append(_bytes(piece["data"]))
            at += len(parts[-1])
        return Data(b"".join(parts), size, first["version"])

    async def _piece(self, path: str, offset: int, length: int | None) -> dict[str, Any]:
        least = IN_ONE_FRAME if length is None else min(length, IN_ONE_FRAME)
        return await self._done(self._vfs.read(self._root, Read(path=path, offset=offset, length=least)))

    async def write(self, path: str, data: bytes, mode: WriteMode = "replace", if_version: int | None = None) -> int:
        """Files of real folders only: an entry of the store is changed in the very transaction of its own call."""
        place = self._root.find(path)
        if place is not None and place.backend.kind != "file":
            raise EINVAL("file.memory", f"{path!r} is memory, not a file", hint="use memory.store")
        text, plain = text_of(data)
        request = Write(path=path, data=text if plain else data, mode=mode, if_version=if_version)
        return (await self._done(self._vfs.write(self._root, request)))["version"]

    async def list(self, path: str, after: str = "", limit: int = 256) -> Listing:
        page = await self._done(self._vfs.list(self._root, List(path=path, after=after, max=limit)))
        entries = [Entry(one["name"], one["kind"], one["size"]) for one in page["entries"]]
        return Listing(entries, page["more"])

    async def _done(self, act: Act) -> Any:
        self._confirm(act.needs, act.facts)
        told = act.label  # before it is done: of something that is not there any more afterwards
        try:
            came = act.do()
            done = await came if inspect.isawaitable(came) else came
        except AgentOSError:
            self._carry(self._label(act, told() if told else None))
            raise
        self._carry(self._label(act, done.label if done.label is not None else told() if told else None))
        if act.answered:
            act.answered()
        return done.value

    def _label(self, act: Act, label: Label | None) -> Label:
        return label if label is not None else joined(map(self._root.source, act.needs))


def _bytes(data: Any) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(data)


class SandboxRuns:
    """One-shot runs: in the workspace of the agent `beside` which they run, or in an empty one. `confirm` is asked when
    all else was waited for. `way_out` makes the network of one that is to have it: its agent's own."""

    def __init__(
        self,
        launcher: Launcher | Callable[[], Awaitable[Launcher]],
        agent: str,
        *,
        limits: Limits | None = None,
        beside: Beside | None = None,
        confirm: Callable[[], None] = lambda: None,
        way_out: Callable[[], WayOut] | None = None,
    ) -> None:
        self._launcher, self._agent, self._limits = launcher, agent, limits or Limits()
        self._beside, self._confirm, self._way_out = beside, confirm, way_out

    def find(self, program: str) -> Program:
        """System folders are the host's own in there, and nobody in there can write to them."""
        if "/" not in program:
            places = (posixpath.join(folder, program) for folder in PATH)
            path = next((place for place in places if os.access(place, os.X_OK) and os.path.isfile(place)), "")
            if not path or program in (".", ".."):
                raise ENOENT("shell.program", f"there is no program {program[:100]!r}", hint="give its whole path")
            return Program(path, os.path.realpath(path))
        plain = posixpath.normpath(program)
        if not program.startswith("/") or plain != program.rstrip("/"):
            raise EINVAL("shell.program", f"{program[:100]!r} is not a plain path", hint="as /work/run.sh, without ..")
        if posixpath.dirname(plain) in PATH:
            return Program(plain, os.path.realpath(plain))
        return Program(plain, plain, system=False)

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        network: bool = False,
    ) -> Ran:
        """ENOENT: there is no such program in there. EISOLATION: no sandbox could be made, so nothing ran."""
        if network and self._way_out is None:
            raise EISOLATION("tool.network", "there is no way out for a run here", ran=False)
        limits = self._limits._replace(wall_s=timeout_s)
        name = f"{self._agent.replace('/', '-')[:40]}-tool-{next(_numbers)}"
        try:
            launcher = await self._launcher() if callable(self._launcher) else self._launcher
            self._confirm()
            ran = await run_tool(
                *(launcher, name, argv),
                stdin=stdin,
                env=env,
                limits=limits,
                output_bytes=LARGEST_OUTPUT,
                largest=LARGEST_OUTPUT,
                cwd=cwd,
                beside=self._beside,
                way_out=self._way_out() if network and self._way_out else None,
            )
        except SandboxError as error:
            if error.step == "cwd":
                reason = f"it cannot be run in {cwd[:200]!r}: {error}"
                raise ENOENT("shell.cwd", reason, hint="a folder that is there, as /work", ran=False) from None
            if error.step == "exec":
                raise ENOENT("shell.program", f"{argv[0][:100]!r} cannot be run there: {error}", ran=False) from None
            raise EISOLATION("tool.sandbox", f"no sandbox could be made: {error}", ran=False) from None
        if self._beside and self._beside.process.exited.done() and ran.code:
            raise EIO("tool.ended", "its agent ended, and it with that", ran=True)
        streams = ran.stdout.data, ran.stderr.data
        return Ran(ran.code, *streams, ran.timed_out, ran.out_of_memory, ran.too_large, ran.seconds)
