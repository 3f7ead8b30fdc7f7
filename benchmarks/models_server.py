"""A model on the loopback, as light as one can be: `/MS/v1/chat/completions` streams a reply after MS milliseconds.

Prints its port. `GET /` tells how many requests came, and when connections were lost whose answer was under way, by a
clock that all processes of a machine share.
"""

import asyncio
import json
import re
import time

import uvloop

_HEAD = re.compile(rb"(GET|POST) /(?:(\d+)/)?\S* ")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_TEXTS = ("The ", "answer ", "is ", "four.")


def _event(**fields: object) -> bytes:
    about = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
    return b"data: %s\n\n" % json.dumps({**about, **fields}).encode()


def _said(text: str, stop: str | None = None) -> bytes:
    delta = {"role": "assistant", "content": text} if text else {}
    return _event(choices=[{"index": 0, "delta": delta, "finish_reason": stop}])


def _answer() -> bytes:
    usage = {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16}
    events = [*map(_said, _TEXTS), _said("", "stop"), _event(choices=[], usage=usage), b"data: [DONE]\n\n"]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%s0\r\n\r\n" % chunks
    )


ANSWER = _answer()
requests = 0
lost: list[float] = []


class Stub(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # pyright: ignore[reportAttributeAccessIssue]
        self._buffer = b""
        self._due: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._due:
            self._due.cancel()
            lost.append(time.monotonic())

    def data_received(self, data: bytes) -> None:
        global requests
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if not end or len(rest) < size:
            return
        self._buffer = rest[size:]
        asked = _HEAD.match(head)
        if asked is None or asked[1] == b"GET":
            return self._tell()
        requests += 1
        wait = int(asked[2] or 0) / 1000
        if wait:
            self._due = asyncio.get_running_loop().call_later(wait, self._give)
        else:
            self._give()

    def _give(self) -> None:
        self._due = None
        self._transport.write(ANSWER)

    def _tell(self) -> None:
        body = json.dumps({"requests": requests, "lost": lost}).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
