"""uvicorn's WebSocket, with an end: a peer that does not read is still told why it is shown out, and then is gone.

uvicorn makes `send` wait while more than 64 KiB are unread, which bounds what a slow peer costs. But a close would wait
there as well, and a closed transport keeps its bytes for as long as the peer lives. Here the last word never waits, and
what is unread some seconds after it is dropped. Nor does a peer that sends pings and reads no answers, or a message in
endless empty pieces, fill our memory. The system's own buffer for the socket is kept small too: on loopback
it would grow to megabytes for each peer.
"""

import socket
from asyncio.transports import BaseTransport
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

MOST_HEARD = 64 << 10  # bytes of one message of a client's
MOST_PIECES = 64  # of one message
PING_S = 20.0
SEND_BUFFER = 128 << 10
_TO_LEAVE = 30.0  # seconds in which it can still read why


class Socket(WebSocketsSansIOProtocol):
    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        if opened := transport.get_extra_info("socket"):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.writable.set()
            self._end()
        await super().send(message)

    def handle_ping(self) -> None:
        """Answered if the peer reads; else it would have us keep whatever it sends."""
        answer = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(answer)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MOST_PIECES:
            self.frames.clear()
            self.transport.abort()
            return
        super().handle_cont(event)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._end()

    def _end(self) -> None:
        self.loop.call_later(_TO_LEAVE, self.transport.abort)


# For uvicorn.Config. Compression would cost memory for each client, and let a small message become a large one.
OPTIONS: dict[str, Any] = {
    "ws": Socket,
    "ws_max_size": MOST_HEARD,
    "ws_ping_interval": PING_S,
    "ws_ping_timeout": PING_S,
    "ws_per_message_deflate": False,
}
