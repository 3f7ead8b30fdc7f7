"""An agent that minds its own business: asks its own small server through its proxy, and says how long that took.

argv: the proxy's port, and how many seconds to wait for an answer. Prints the server's port first; then, for every
number on stdin, makes as many requests and prints the seconds of each, null for no answer, as one JSON list. Standard
library only.
"""

import contextlib
import json
import os
import socket
import sys
import time

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"


def serve(server: socket.socket) -> None:
    while True:
        sock, _ = server.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(ANSWER)


def ask(proxy: int, patience: float, port: int) -> float | None:
    """Seconds to the answer; None if it does not come."""
    began = time.perf_counter()
    with contextlib.suppress(TimeoutError), socket.create_connection(("127.0.0.1", proxy), timeout=patience) as sock:
        place = b"127.0.0.1:%d" % port
        sock.sendall(b"GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (place, place))
        answer = b""
        while part := sock.recv(4096):
            answer += part
        assert answer.endswith(b"hi"), answer
        return time.perf_counter() - began
    return None


def main() -> None:
    proxy, patience = int(sys.argv[1]), float(sys.argv[2])
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    if (child := os.fork()) == 0:
        serve(server)
    try:
        print(port, flush=True)
        for line in sys.stdin:
            print(json.dumps([ask(proxy, patience, port) for _ in range(int(line))]), flush=True)
    finally:
        os.kill(child, 9)


if __name__ == "__main__":
    main()
