"""The program at the door that `models.py` measures: run on the host straight to the model, and inside a guest.

argv: JSON {port, path, rounds}. Standard library only, because a guest sees no other. Writes one JSON object to
`out.json`: milliseconds until the first byte and until the last of each answer, on one kept connection, and the hash of
all bodies.
"""

import hashlib
import json
import socket
import sys
import time

ask = json.loads(sys.argv[1])
WARM = 5
BODY = json.dumps(
    {
        "model": "bench/stub",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "What is two and two?"}],
    }
).encode()
REQUEST = (
    f"POST {ask['path']}/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{ask['port']}\r\n"
    f"Authorization: Bearer placeholder\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
).encode() + BODY


def unchunked(body):
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        found, body = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


sock = socket.create_connection(("127.0.0.1", ask["port"]))
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
first, whole, digest = [], [], hashlib.sha256()
for _ in range(WARM + ask["rounds"]):
    began = time.perf_counter()
    sock.sendall(REQUEST)
    data = sock.recv(65536)
    first.append((time.perf_counter() - began) * 1000)
    while not data.endswith(b"0\r\n\r\n"):
        more = sock.recv(65536)
        if not more:
            sys.exit(f"the connection ended after {data[:300]!r}")
        data += more
    whole.append((time.perf_counter() - began) * 1000)
    head, _, body = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        sys.exit(f"no reply: {data[:500]!r}")
    digest.update(unchunked(body))
told = {"first": first[WARM:], "whole": whole[WARM:], "digest": digest.hexdigest()}
with open("out.json", "w") as file:
    json.dump(told, file)
