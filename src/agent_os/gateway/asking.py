"""A request's way to the kernel: its token, and questions under it.

In: the Authorization header. Out: an `Asker`, whose answers are JSON as agentctl shows it. A request without a token
ends here.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from agent_os.abi.errors import EINVAL, EMSGSIZE, EPERM
from agent_os.abi.syscalls import Body
from agent_os.client.values import jsonable
from agent_os.client.wire import Client, Stream
from agent_os.gateway.idempotency import key_of
from agent_os.gateway.pool import Pool
from agent_os.gateway.settings import Settings

_LONGEST_TOKEN = 512
_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="A token (`aos_…`) or a session (`aoss_…`).")


class Asker:
    """Asks the kernel as whoever holds the token."""

    def __init__(self, pool: Pool, token: str, settings: Settings, key: str | None = None) -> None:
        self._pool, self.token, self._settings, self._key = pool, token, settings, key

    @property
    def wait_s(self) -> float:
        """For the kernel's answer."""
        return self._settings.limits.wait_s

    async def ask(self, request: Body, *, deadline: float | None = None) -> Any:
        """The answer, as JSON can hold it. Of a request with an Idempotency-Key every change has a key as well."""
        limit = deadline or self.wait_s
        async with self._pool.using(self.token) as client:
            with sendable():
                key = key_of(self._key, request)
                return jsonable(await client.call(request, deadline=limit, key=key))

    async def collect(self, request: Body, most: int = 1 << 20) -> tuple[list[Any], Any]:
        """The chunks beside a call, and its answer. `most` is a limit on what is kept of them, in bytes."""
        chunks: list[Any] = []
        size = 0
        async with self.stream(request) as stream:
            while True:
                try:
                    chunk, length = await stream.receive()
                except StopAsyncIteration:
                    return chunks, jsonable(await stream.result())
                size += length
                if size > most:
                    raise EMSGSIZE("answer.size", f"the answer has more than {most} bytes", hint="ask for less of it")
                chunks.append(chunk)
                stream.give(length)

    async def give(self, request: Body, data: bytes, piece: int = 64 << 10) -> Any:
        """A call with bytes beside it, which no record of the call holds."""
        async with self.stream(request) as stream:
            for start in range(0, len(data), piece):
                await stream.send(data[start : start + piece])
            stream.end()
            return jsonable(await stream.result())

    @asynccontextmanager
    async def stream(self, request: Body) -> AsyncIterator[Stream]:
        """A call with chunks; cancelled when this ends, unless it has ended itself."""
        async with self._pool.using(self.token) as client:
            with sendable():
                stream = client.stream(request, deadline=self.wait_s)
            try:
                yield stream
            finally:
                stream.cancel()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with self._pool.using(self.token) as client:
            yield client


class sendable:
    """What JSON can hold and the kernel's wire cannot: numbers of more than 64 bits, halves of characters."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OverflowError):
            raise EINVAL("number.range", "a number has more than 64 bits", hint="send it as text") from None
        if isinstance(error, UnicodeEncodeError):
            hint = "send whole characters: a \\ud800 needs its second half"
            raise EINVAL("text.surrogate", "a text has half a character in it", hint=hint) from None


def pool_of(request: Request) -> Pool:
    return request.app.state.pool


def settings_of(request: Request) -> Settings:
    return request.app.state.settings


def token_of(credentials: HTTPAuthorizationCredentials | None) -> str:
    if credentials is None or not credentials.credentials:
        hint = "send Authorization: Bearer TOKEN; agentctl token add makes one, agentctl ui opens the dashboard"
        raise EPERM("token.missing", "this needs a token", hint=hint)
    if len(credentials.credentials) > _LONGEST_TOKEN or not credentials.credentials.startswith(("aos_", "aoss_")):
        raise EPERM("token.unknown", "this is no token of ours", hint="agentctl token add makes one")
    return credentials.credentials


def asker(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None
) -> Asker:
    key: str | None = getattr(request.state, "key", None)
    return Asker(pool_of(request), token_of(credentials), settings_of(request), key)


Caller = Annotated[Asker, Depends(asker)]
ThePool = Annotated[Pool, Depends(pool_of)]
TheSettings = Annotated[Settings, Depends(settings_of)]
