"""The built dashboard: `/` and `/assets/…`, read once at the start. What is not there then is never served, so no path
leads anywhere else. Asset names carry a hash of their content and are kept for ever; the page itself is asked for anew.
"""

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

from agent_os.abi.errors import ENOENT

_FOREVER = "public, max-age=31536000, immutable"
_PACKED = (".html", ".js", ".css", ".svg", ".json")


@dataclass(frozen=True)
class _File:
    data: bytes
    packed: bytes | None
    kind: str
    etag: str


def routes(place: Path) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    files = {str(path.relative_to(place)): _read(path) for path in sorted(place.rglob("*")) if path.is_file()}

    @router.get("/")
    async def page(request: Request) -> Response:
        return _served(files.get("index.html"), request, "no-cache")

    @router.get("/favicon.ico")
    async def icon(request: Request) -> Response:
        return _served(files.get("favicon.ico") or files.get("favicon.svg"), request, "no-cache")

    @router.get("/assets/{name:path}")
    async def asset(name: str, request: Request) -> Response:
        return _served(files.get(f"assets/{name}"), request, _FOREVER)

    return router


def _read(path: Path) -> _File:
    data = path.read_bytes()
    packed = gzip.compress(data, 9, mtime=0) if path.suffix in _PACKED else None
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if kind.startswith("text/") or kind.endswith("javascript"):
        kind += "; charset=utf-8"
    return _File(data, packed, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def _served(file: _File | None, request: Request, cache: str) -> Response:
    if file is None:
        raise ENOENT("asset.unknown", f"there is nothing at {request.url.path}", hint="the dashboard is at /")
    headers = {"Cache-Control": cache, "ETag": file.etag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.kind)
    return Response(file.data, headers=headers, media_type=file.kind)
