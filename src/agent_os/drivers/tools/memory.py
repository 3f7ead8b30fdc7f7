"""`memory.search`: what an agent keeps, found by the words in it.

Needs `Files`, below whose /mem the agent's memory lies: what of it is read is judged there, entry by entry, and joins
the label. What holds more of the words comes first, and among equals what holds them more often. Bounded as
`file.search` is; between entries others go on.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from agent_os.abi.errors import EINVAL, ENOENT, AgentOSError
from agent_os.abi.tools import ToolLabels, ToolSpec
from agent_os.drivers.tools import Files
from agent_os.drivers.tools.files import LARGEST_SEARCHED, MOST_FILES, MOST_SCANNED, below
from agent_os.drivers.tools.shapes import flag, one_of, record, rows, text, whole

SPACES = ("semantic", "episodic", "working")
MOST_FOUND = 100
MOST_WORDS = 32
_SHOWN = 300  # characters around what was found
_BEFORE = 80

SEARCH = ToolSpec(
    name="memory.search",
    description="Find what you keep in memory by the words in it or in its key. Read the whole of one by its key.",
    input_schema=record(
        "query",
        query=text("words, in any order", most=1000, minLength=1),
        space=one_of(*SPACES, about="semantic if not given"),
        limit=whole("entries; 10 if not given", least=1, most=MOST_FOUND),
    ),
    output_schema=record(
        "found more",
        found=rows(
            record(
                "key path words excerpt",
                key=text("for memory.retrieve, in the same space"),
                path=text(),
                words=whole("how many of yours it has"),
                excerpt=text(),
            )
        ),
        more=flag("there were more entries than could be told or looked at"),
    ),
    effect="pure",
    requires=("mem:{folder}:read",),
    labels=ToolLabels(source="memory"),
    sandbox="driver",
    concurrency=1000,
    tags=("memory",),
)


class _Hit(Struct, frozen=True):
    path: str
    words: int
    times: int
    excerpt: str

    @property
    def order(self) -> tuple[int, int, str]:
        return -self.words, -self.times, self.path


def names(params: Mapping[str, Any]) -> dict[str, str]:
    """For its capability: the folder that it looks through."""
    return {"folder": f"/mem/{params.get('space', 'semantic')}"}


async def search(params: Mapping[str, Any], files: Files) -> dict[str, Any]:
    words = list(dict.fromkeys(str(params["query"]).casefold().split()))[:MOST_WORDS]
    if not words:
        raise EINVAL("memory.query", "there is no word to look for", hint='query: "the build server"')
    folder, limit = names(params)["folder"], int(params.get("limit", 10))
    hits, more = await _hits(folder, words, files)
    hits.sort(key=lambda hit: hit.order)
    found = [_told(hit, folder) for hit in hits[:limit]]
    return {"found": found, "more": more or len(hits) > limit}


async def _hits(folder: str, words: list[str], files: Files) -> tuple[list[_Hit], bool]:
    """And whether there was more than is looked at."""
    hits, count, scanned = list[_Hit](), 0, 0
    try:
        async for one in below(folder, files):
            if count >= MOST_FILES or scanned >= MOST_SCANNED:
                return hits, True
            count += 1
            try:
                data = (await files.read(one.path, 0, LARGEST_SEARCHED)).data
            except AgentOSError:
                continue  # gone meanwhile, or not for this agent
            scanned += len(data) + 1
            if hit := _hit(one.path, one.path.removeprefix(f"{folder}/"), data.decode(errors="replace"), words):
                hits.append(hit)
            await asyncio.sleep(0)
    except ENOENT:
        pass  # nothing was ever kept there
    return hits, False


def _hit(path: str, key: str, value: str, words: list[str]) -> _Hit | None:
    name, body = key.casefold(), value.casefold()
    times = {word: name.count(word) + body.count(word) for word in words}
    held = [word for word in words if times[word]]
    if not held:
        return None
    at = max(0, min((body.find(word) for word in held if word in body), default=0) - _BEFORE)
    return _Hit(path, len(held), sum(times.values()), value[at : at + _SHOWN].strip())


def _told(hit: _Hit, folder: str) -> dict[str, Any]:
    key = hit.path.removeprefix(f"{folder}/")
    return {"key": key, "path": hit.path, "words": hit.words, "excerpt": hit.excerpt}
