"""Entries of the journal, page by page: the kernel sends as many as there are, and is stopped when a page is full."""

from typing import Any

from msgspec.structs import replace

from agent_os.abi.syscalls import Events
from agent_os.client.values import jsonable
from agent_os.gateway.asking import Asker
from agent_os.gateway.listing import Paging, next_cursor

_MOST = 8 << 20  # bytes of a page; a page may be short, and says that there is more


async def entries_page(caller: Asker, request: Events, pages: Paging[int]) -> dict[str, Any]:
    start = request.start if pages.after is None else max(request.start, pages.after + 1)
    found: list[Any] = []
    size = 0
    async with caller.stream(replace(request, start=start)) as stream:
        while len(found) <= pages.limit and size < _MOST:
            try:
                chunk, length = await stream.receive()
            except StopAsyncIteration:
                await stream.result()
                return _page(found, pages, whole=True)
            found += chunk
            size += length
            stream.give(length)
    return _page(found, pages, whole=False)


def _page(found: list[Any], pages: Paging[int], *, whole: bool) -> dict[str, Any]:
    items = found[: pages.limit]
    more = not whole or len(found) > len(items)
    return {"items": jsonable(items), "next": next_cursor(items[-1]["seq"]) if more and items else None}


def hexed(value: Any) -> Any:
    """Hashes and signatures, which are bytes and never text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): hexed(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [hexed(one) for one in value]
    return value
