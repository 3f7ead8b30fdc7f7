"""A web site for tests of the browser: real sockets on the loopback, pages by path, and what was asked of it."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

Answer = tuple[int, dict[str, str], str | bytes] | str | None  # None: never answers


class Site:
    def __init__(self, pages: Mapping[str, Answer]) -> None:
        self.pages = dict(pages)
        self.asked: list[str] = []
        self.port = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ")[1]
            self.asked.append(path)
            answer = self.pages.get(path.partition("?")[0], (404, {}, "nothing here"))
            if answer is None:
                await reader.read()
                return
            status, headers, body = answer if isinstance(answer, tuple) else (200, {}, answer)
            data = body if isinstance(body, bytes) else body.encode()
            fields = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(data))} | headers
            lines = [f"HTTP/1.1 {status} OK", *(f"{name}: {value}" for name, value in fields.items())]
            writer.write(("\r\n".join([*lines, "Connection: close", "", ""])).encode() + data)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it was only looked at
        finally:
            writer.close()


@asynccontextmanager
async def site(pages: Mapping[str, Answer], tls: ssl.SSLContext | None = None) -> AsyncGenerator[Site]:
    self = Site(pages)
    server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)  # pyright: ignore[reportPrivateUsage]
    self.port = server.sockets[0].getsockname()[1]
    try:
        yield self
    finally:
        server.close()
