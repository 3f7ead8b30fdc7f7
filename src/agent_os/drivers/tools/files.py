"""`file.read`, `write`, `list`, `search` and `edit`: an agent's files, as a model asks for them.

Needs `Files` (the agent's tree in `kernel/vfs`: its paths, links and limits are decided there) and for reading `Keep`.
Searching needs a `Compile`, which matches in linear time; between pieces of the work it lets others go on. What is
decided on by a hash is written only over the version that had it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Literal

from msgspec import Struct, field

from agent_os.abi.errors import ECONFLICT, EINVAL, EISDIR, EMSGSIZE, ENOENT, ENOTDIR, AgentOSError
from agent_os.abi.tools import ToolLabels, ToolSpec, When
from agent_os.drivers.tools import Compile, Data, Files, Keep, WriteMode
from agent_os.drivers.tools.shapes import flag, one_of, path, record, rows, text, whole

LARGEST_EDITED = 8 << 20
LARGEST_WRITTEN = 8 << 20
MOST_READ = 1 << 20
MOST_LISTED = 1000
MOST_FOUND = 1000
MOST_FILES = 10_000  # that one search looks at
MOST_SCANNED = 64 << 20  # bytes of one search
MOST_STEPS = 20_000_000  # of an expression, in one search
LARGEST_SEARCHED = 4 << 20  # one file
LONGEST_LINE = 2000  # characters that an expression is held against
_SHOWN = 300  # characters of a line that was found
_SLICE = 20_000  # steps of an expression before others go on
_DEEPEST = 32
Verdict = Literal["done", "not_done", "unsure"]
_FROM_FILES = ToolLabels(source="file:{path}")
_HASH = text("SHA-256 of what is there, as file.read told it", most=64, pattern="^[0-9a-f]{64}$")

READ = ToolSpec(
    name="file.read",
    description="Read a file, or a range of its bytes. What is no text is told as a blob.",
    input_schema=record(
        "path",
        path=path("as /work/notes.md"),
        offset=whole("first byte; 0 if not given"),
        limit=whole("bytes; 48 KiB if not given", least=1, most=MOST_READ),
    ),
    output_schema=record(
        "text size more",
        text=text(),
        size=whole("bytes of the whole file"),
        more=flag("the file goes on"),
        hash=text("of the whole file, where all of it was read"),
        blob=text("what was read as it is, for tool.output, where it is no text"),
    ),
    effect="pure",
    requires=("file:{path}:read",),
    labels=_FROM_FILES,
    sandbox="driver",
    concurrency=1000,
    tags=("file",),
)
WRITE = ToolSpec(
    name="file.write",
    description="Write a file: replace it at once and whole, create it only if it is not there, or append to it.",
    input_schema=record(
        "path content",
        path=path("as /work/notes.md"),
        content=text("what is written", most=LARGEST_WRITTEN),
        mode=one_of("replace", "create", "append", about="replace if not given"),
        expect_hash=_HASH,
    ),
    output_schema=record("size hash", size=whole("bytes written"), hash=text("of what was written")),
    effect="opaque",
    milder=(When("mode", ("replace", "create"), "idempotent", default=True),),
    requires=("file:{path}:write",),
    sandbox="driver",
    concurrency=1000,
    tags=("file",),
)
LIST = ToolSpec(
    name="file.list",
    description="List a folder. With a glob, only what fits: *.py here, **/*.py also below.",
    input_schema=record(
        "path",
        path=path("a folder, as /work"),
        glob=text("as *.py or **/*.md", most=256, minLength=1),
        limit=whole("entries; 200 if not given", least=1, most=MOST_LISTED),
    ),
    output_schema=record(
        "entries more",
        entries=rows(record("path kind size", path=text(), kind=text(), size=whole())),
        more=flag("there are more"),
    ),
    effect="pure",
    requires=("file:{path}:read",),
    labels=_FROM_FILES,
    sandbox="driver",
    concurrency=1000,
    tags=("file",),
)
SEARCH = ToolSpec(
    name="file.search",
    description=(
        "Find lines in files below a folder: a plain text, or with regex an expression without look-around, back "
        "references and word borders. Binary files and those above 4 MiB are passed over."
    ),
    input_schema=record(
        "pattern path",
        pattern=text("what to find", most=256, minLength=1),
        path=path("a folder or file, as /work"),
        regex=flag("pattern is an expression"),
        glob=text("only files that fit, as **/*.py", most=256, minLength=1),
        limit=whole("lines; 100 if not given", least=1, most=MOST_FOUND),
    ),
    output_schema=record(
        "matches more files",
        matches=rows(record("path line text", path=text(), line=whole(least=1), text=text())),
        more=flag("there may be more"),
        files=whole("looked at"),
        why=text("why it stopped before the end"),
    ),
    effect="pure",
    requires=("file:{path}:read",),
    labels=_FROM_FILES,
    sandbox="driver",
    concurrency=1000,
    timeout_s=60.0,
    tags=("file", "search"),
)
EDIT = ToolSpec(
    name="file.edit",
    description="Replace one piece of a file: old must be there exactly once, with its spaces and line ends.",
    input_schema=record(
        "path old new",
        path=path("as /work/main.py"),
        old=text("what is there now", most=LARGEST_EDITED, minLength=1),
        new=text("what shall be there", most=LARGEST_EDITED),
        expect_hash=_HASH,
    ),
    output_schema=record("size hash", size=whole(), hash=text("of the file now")),
    effect="verifiable",
    requires=("file:{path}:read", "file:{path}:write"),
    labels=_FROM_FILES,
    sandbox="driver",
    concurrency=1000,
    tags=("file",),
)
SPECS = (READ, WRITE, LIST, SEARCH, EDIT)


async def read(params: Mapping[str, Any], files: Files, keep: Keep) -> dict[str, Any]:
    offset, limit = int(params.get("offset", 0)), int(params.get("limit", 48 << 10))
    found = await files.read(params["path"], offset, limit)
    end = offset + len(found.data)
    result: dict[str, Any] = {"text": "", "size": found.size, "more": end < found.size}
    if offset == 0 and end >= found.size:
        result["hash"] = hash_of(found.data)
    try:
        result["text"] = _whole_characters(found.data, result["more"], offset)
    except UnicodeDecodeError:
        result["blob"] = (await keep.show(found.data, 0)).blob
    return result


def _whole_characters(data: bytes, more: bool, offset: int) -> str:
    """A range may begin and end within a character; the torn ends are replaced, anything else in between is not."""
    begin = next((at for at in range(min(4, len(data))) if data[at] & 0xC0 != 0x80), 0) if offset else 0
    for end in range(len(data), max(len(data) - 4, begin) if more else len(data) - 1, -1):
        try:
            middle = data[begin:end].decode()
        except UnicodeDecodeError:
            if end == len(data) and not more:
                raise
            continue
        return "\ufffd" * bool(begin) + middle + "\ufffd" * (end < len(data))
    return data[begin:].decode()


async def write(params: Mapping[str, Any], files: Files) -> dict[str, Any]:
    data, mode = str(params["content"]).encode(), params.get("mode", "replace")
    version = await _expected(params, files)
    await files.write(params["path"], data, _mode(mode), version)
    return {"size": len(data), "hash": hash_of(data)}


def _mode(text: str) -> WriteMode:
    return "append" if text == "append" else "create" if text == "create" else "replace"


async def _expected(params: Mapping[str, Any], files: Files) -> int | None:
    """The version that has the hash which was expected. ECONFLICT: none has."""
    if "expect_hash" not in params:
        return None
    return _hashed(await _whole(params["path"], files), params).version


def _hashed(found: Data, params: Mapping[str, Any]) -> Data:
    now = hash_of(found.data)
    if params.get("expect_hash", now) != now:
        reason = f"{params['path']!r} has changed since it was read; nothing was written"
        raise ECONFLICT("file.hash", reason, hint="read it again", hash=now, ran=False)
    return found


async def _whole(name: str, files: Files) -> Data:
    found = await files.read(name, 0, LARGEST_EDITED + 1)
    if found.size > LARGEST_EDITED:
        raise EMSGSIZE("file.large", f"{name!r} has {found.size:,} bytes; at most {LARGEST_EDITED:,} are edited here")
    return found


# Editing: planned before it is recorded, so that a crash can be told from an edit that did not happen.


async def plan_edit(params: Mapping[str, Any], files: Files) -> dict[str, Any]:
    """What the record of the intent holds: the file before and after. EINVAL with the count, unless exactly one."""
    found, after = await _edited(params, files)
    return {"version": found.version, "before": hash_of(found.data), "after": hash_of(after)}


async def _edited(params: Mapping[str, Any], files: Files) -> tuple[Data, bytes]:
    found = _hashed(await _whole(params["path"], files), params)
    old, new = str(params["old"]).encode(), str(params["new"]).encode()
    count = _occurrences(found.data, old)
    if count != 1:
        hint = "read the file again" if not count else "give more of what is around it"
        reason = f"old is {count} times in {params['path']!r}, and must be there once"
        raise EINVAL("file.old", reason, hint=hint, count=count)
    return found, found.data.replace(old, new)


def _occurrences(data: bytes, old: bytes) -> int:
    """Overlapping ones, too: which of those would be meant is not clear either. Two are as bad as more."""
    count, at = 0, data.find(old)
    while at >= 0 and count < 1000:
        count, at = count + 1, data.find(old, at + 1)
    return count


async def edit(params: Mapping[str, Any], plan: Mapping[str, Any], files: Files) -> dict[str, Any]:
    found, after = await _edited(params, files)
    if hash_of(found.data) != plan["before"]:
        raise ECONFLICT("file.hash", f"{params['path']!r} was changed meanwhile; nothing was written", ran=False)
    await files.write(params["path"], after, "replace", found.version)
    return {"size": len(after), "hash": hash_of(after)}


async def verify_edit(params: Mapping[str, Any], plan: Mapping[str, Any], files: Files) -> tuple[Verdict, Any]:
    """After a crash."""
    try:
        found = await _whole(params["path"], files)
    except (ENOENT, EMSGSIZE):
        return "unsure", None
    now = hash_of(found.data)
    if now == plan["after"]:
        return "done", {"size": found.size, "hash": now}
    return ("not_done", None) if now == plan["before"] else ("unsure", None)


def hash_of(data: bytes) -> str:
    return sha256(data).hexdigest()


# Listing and searching.


class Found(Struct):
    path: str
    kind: str
    size: int


async def list_(params: Mapping[str, Any], files: Files) -> dict[str, Any]:
    glob, limit = str(params.get("glob", "")), int(params.get("limit", 200))
    entries: list[dict[str, Any]] = []
    async for one in _walk(params["path"], files, deep="/" in glob or "**" in glob):
        if not glob or fits(one.path[len(_base(params["path"])) :], glob):
            if len(entries) == limit:
                return {"entries": entries, "more": True}
            entries.append({"path": one.path, "kind": one.kind, "size": one.size})
    return {"entries": entries, "more": False}


async def _walk(top: str, files: Files, *, deep: bool) -> AsyncIterator[Found]:
    """By name, a folder before what is in it. No recursion: a tree may be made to be deep."""
    line: list[tuple[str, int]] = [(top, 0)]
    while line:
        folder, depth = line.pop()
        after, more, below = "", True, list[tuple[str, int]]()
        while more:
            try:
                page = await files.list(folder, after)
            except AgentOSError:
                if folder == top:
                    raise
                break  # gone meanwhile, or not for this agent
            for entry in page.entries:
                path = f"{_base(folder)}{entry.name}"
                yield Found(path, entry.kind, entry.size)
                if deep and entry.kind == "directory" and depth < _DEEPEST:
                    below.append((path, depth + 1))
            more = page.more and bool(page.entries)
            after = page.entries[-1].name if page.entries else after
        line += reversed(below)


def _base(folder: str) -> str:
    return folder.rstrip("/") + "/"


def fits(path: str, glob: str) -> bool:
    """`**` is any number of folders; everything else stays within one name. One pass over the names for each part."""
    parts, names = glob.split("/"), path.split("/")
    reached = {0}
    for name in names:
        reached = _skipped(reached, parts)
        reached = {
            at + (parts[at] != "**")
            for at in reached
            if at < len(parts) and (parts[at] == "**" or fnmatchcase(name, parts[at]))
        }
    return len(parts) in _skipped(reached, parts)


def _skipped(reached: set[int], parts: list[str]) -> set[int]:
    """With those behind a `**`, which may stand for nothing."""
    found = set(reached)
    for at in sorted(reached):
        while at < len(parts) and parts[at] == "**":
            at += 1
            found.add(at)
    return found


class _Search(Struct):
    limit: int
    matches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    files: int = 0
    scanned: int = 0
    why: str = ""

    def stop(self, steps: int) -> bool:
        """Whether enough was found, or done."""
        if len(self.matches) >= self.limit:
            self.why = f"{self.limit} lines were found"
        elif self.files >= MOST_FILES:
            self.why = f"{MOST_FILES:,} files were looked at"
        elif self.scanned >= MOST_SCANNED:
            self.why = f"{MOST_SCANNED >> 20} MiB were looked at"
        elif steps > MOST_STEPS:
            self.why = "the expression takes too long on these files; a plain text is found much faster"
        return bool(self.why)


async def search(params: Mapping[str, Any], files: Files, compiled: Compile) -> dict[str, Any]:
    pattern, glob = str(params["pattern"]), str(params.get("glob", ""))
    finder = _Expression(pattern, compiled) if params.get("regex") else _Plain(pattern)
    state = _Search(int(params.get("limit", 100)))
    async for one in below(params["path"], files):
        if state.stop(finder.steps):
            break
        if (glob and not fits(one.path[len(_base(params["path"])) :], glob)) or one.size > LARGEST_SEARCHED:
            continue
        try:
            data = (await files.read(one.path, 0, LARGEST_SEARCHED)).data
        except AgentOSError:
            continue  # gone meanwhile, or not for this agent
        state.files += 1
        state.scanned += len(data) + 1
        if b"\0" not in data[:8192]:
            await finder.find(data, one.path, state)
        await asyncio.sleep(0)
    state.stop(finder.steps)  # in its last file
    stopped = {"why": state.why} if state.why else {}
    return {"matches": state.matches, "more": bool(state.why), "files": state.files, **stopped}


async def below(top: str, files: Files) -> AsyncIterator[Found]:
    """All files of a folder and of what is in it; a file is below itself."""
    try:
        async for one in _walk(top, files, deep=True):
            if one.kind == "file":
                yield one
    except (ENOTDIR, EISDIR, ENOENT):
        found = await files.read(top, 0, 1)  # it is a file itself, or this says that there is nothing
        yield Found(top, "file", found.size)


class _Plain:
    steps = 0

    def __init__(self, text: str) -> None:
        self._text = text.encode()

    async def find(self, data: bytes, path: str, state: _Search) -> None:
        """Lines are counted only up to what is found, so that nothing is looked at twice."""
        line, counted, at = 1, 0, data.find(self._text)
        while at >= 0 and len(state.matches) < state.limit:
            line += data.count(b"\n", counted, at)
            counted = at
            begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            end = len(data) if end < 0 else end
            state.matches.append(_match(path, line, data[begin : min(end, begin + 4 * _SHOWN)]))
            at = data.find(self._text, max(end, at + len(self._text)))


class _Expression:
    def __init__(self, text: str, compiled: Compile) -> None:
        self._matcher = compiled(text)

    @property
    def steps(self) -> int:
        return self._matcher.steps

    async def find(self, data: bytes, path: str, state: _Search) -> None:
        pause = self.steps + _SLICE
        for number, raw in enumerate(data.split(b"\n"), 1):
            if self._matcher.found_in(raw[: 4 * LONGEST_LINE].decode(errors="replace")[:LONGEST_LINE]):
                state.matches.append(_match(path, number, raw[: 4 * _SHOWN]))
            if self.steps > pause:
                if state.stop(self.steps):
                    return
                await asyncio.sleep(0)
                pause = self.steps + _SLICE
            if len(state.matches) >= state.limit:
                return


def _match(path: str, line: int, raw: bytes) -> dict[str, Any]:
    return {"path": path, "line": line, "text": raw.decode(errors="replace").rstrip("\r")[:_SHOWN]}
