"""The interfaces that the built-in tools are written against: an agent's files, one-shot runs, one request to the web.

Each is what the kernel gives for one call: bound to the calling agent, behind the gate, recorded. A tool here is a
`ToolSpec` and a coroutine of parameters and one or two of these; it opens no file, starts no process and dials nobody.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

WriteMode = Literal["replace", "append", "create"]


class Data(Struct, frozen=True):
    """A file, or a part of one."""

    data: bytes
    size: int  # of all of it
    version: int  # what `if_version` of a write compares


class Entry(Struct, frozen=True):
    name: str
    kind: str  # file, directory, other
    size: int


class Listing(Struct, frozen=True):
    entries: Sequence[Entry]
    more: bool


class Files(Protocol):
    """One agent's tree: `kernel/vfs` by its root, whose paths hold no link that leads away from what was decided on."""

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> Data: ...

    async def write(self, path: str, data: bytes, mode: WriteMode = "replace", if_version: int | None = None) -> int:
        """The new version. Replacing is atomic. ECONFLICT: it has another version; 0 means: it must not be there."""
        ...

    async def list(self, path: str, after: str = "", limit: int = 256) -> Listing:
        """By name, those after a name."""
        ...


class Shown(Struct, frozen=True):
    """Bytes as an agent sees them."""

    text: str  # what is no UTF-8 is replaced; what is too long has a marker in place of its middle
    size: int
    blob: str  # where all of it is kept as it was; empty: the text is all of it


class Keep(Protocol):
    """Where output goes that is too long or no text: `kernel/tools/output` and the store's bodies, for one agent."""

    async def show(self, data: bytes, most: int) -> Shown: ...

    async def part(self, blob: str, offset: int, length: int) -> Data:
        """ENOENT: it was never kept for this agent."""
        ...


class Ran(Struct, frozen=True):
    code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    out_of_memory: bool = False
    too_large: bool = False  # killed for what it wrote
    seconds: float = 0.0


class Program(Struct, frozen=True):
    path: str  # where its name was found
    real: str  # the file that it is, links followed
    system: bool = True  # found where only the operator can write


class Runs(Protocol):
    """One-shot runs: `kernel/tools/oneshot.run_tool`, a sandbox of kind `tool` with the agent's workspace."""

    def find(self, program: str) -> Program:
        """What a name stands for in there: a path as it is, a bare name along a fixed PATH of system folders, never the
        workspace. ENOENT: nothing."""
        ...

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
        """`network`: it reaches what its agent may, and each connection is judged and recorded as that one's own."""
        ...


class Answer(Struct, frozen=True):
    status: int
    headers: Sequence[tuple[str, str]]  # names in lower case
    body: bytes  # as it came, encoded or not
    truncated: bool = False  # there was more than was asked for


class Web(Protocol):
    """One request, one answer: `kernel/egress` (the host's one spelling, the gate, only then resolved, every address
    judged, dialled, recorded; secrets put on by their binding and taken out of what comes back). Never follows."""

    async def request(
        self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes, most: int
    ) -> Answer: ...


class Matcher(Protocol):
    """An expression in linear time: `kernel/supervisor/regex.Regex`."""

    steps: int

    def found_in(self, line: str) -> bool: ...


Compile = Callable[[str], Matcher]
