"""A client of the event stream: a real WebSocket, with a ticket as a browser has one or with a token."""

import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from agent_os.abi.syscalls import Events
from agent_os.client.wire import connect as connect_kernel
from agent_os.gateway.cursors import Cursor, read
from agent_os.gateway.events import Event, after
from gateway.house import House

Said = dict[str, Any]
PROTOCOL = "agent-os.v1"


@asynccontextmanager
async def listening(
    house: House,
    cursor: str | None = None,
    *,
    token: str | None = None,
    ticket: str | None = None,
    buffer: int | None = None,
    **wish: Any,
) -> AsyncGenerator[ClientConnection]:
    """Whoever has asked for its choice. `buffer`: bytes that the system reads ahead for it."""
    offered = [PROTOCOL, *([f"ticket.{ticket}"] if ticket else [])]
    headers = {} if ticket else {"Authorization": f"Bearer {token or house.tokens['operator']}"}
    name, _, port = house.host.partition(":")
    line = socket.socket()
    if buffer:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    line.connect((name, int(port)))
    line.setblocking(False)
    async with connect(
        f"ws://{house.host}/api/v1/events",
        sock=line,
        subprotocols=offered,  # type: ignore[arg-type]
        additional_headers=headers,
        max_size=None,
        proxy=None,
        compression=None,
        max_queue=4 if buffer else 1024,
        ping_interval=None,
    ) as client:
        with suppress(ConnectionClosed):  # whoever may not come in is shown out before it says anything
            await client.send(json.dumps({"cursor": cursor, **wish}))
        yield client


async def heard(client: ClientConnection) -> Said:
    return json.loads(await client.recv())


async def entries(house: House, first: int, last: int, token: str | None = None) -> list[Said]:
    async with connect_kernel(house.socket, token=token) as kernel:
        stream = kernel.stream(Events(start=first, end=last, bodies=True))
        found = [one async for page in stream for one in page]
        await stream.result()
    return found


async def expected(house: House, start: str, last: str, token: str | None = None) -> list[Said]:
    """What the record says between two cursors, the first excluded."""
    begin, end = place(start), place(last)
    found = await entries(house, begin.seq + (not begin.part), end.seq, token)
    made: list[Event] = [event for one in found for event in after(begin, one, begin.log)]
    return [json.loads(one.text) for one in made if one.cursor.seq < end.seq or not end.part or one.cursor == end]


def place(text: str) -> Cursor:
    cursor = read(text)
    assert cursor is not None, text
    return cursor
