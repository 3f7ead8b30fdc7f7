"""The client of the egress benchmark: run on the host straight to the server, on the host through the proxy, and
inside a guest through the proxy. Standard library only, because a guest sees no other.

argv: JSON {server: [host, port], proxy: [host, port] or null, rounds, megabytes}. Prints one JSON object.
"""

import json
import socket
import sys
import time

ask = json.loads(sys.argv[1])
SERVER, PROXY = tuple(ask["server"]), ask["proxy"] and tuple(ask["proxy"])
HOST = f"{SERVER[0]}:{SERVER[1]}"
PREFIX = f"http://{HOST}" if PROXY else ""


def connect():
    sock = socket.create_connection(PROXY or SERVER)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def get(sock, path="/", prefix=PREFIX, close=False):
    end = "Connection: close\r\n" if close else ""
    sock.sendall(f"GET {prefix}{path} HTTP/1.1\r\nHost: {HOST}\r\n{end}\r\n".encode())


def read_small(sock):
    data = b""
    while not data.endswith(b"\r\n\r\nhi"):
        more = sock.recv(65536)
        if not more:
            sys.exit(f"the connection ended after {data[:300]!r}")
        data += more


def request(sock, prefix=PREFIX):
    get(sock, prefix=prefix)
    read_small(sock)


def new_connection():
    with connect() as sock:
        get(sock, close=True)
        read_small(sock)


def tunnel():
    """Through a proxy: CONNECT. Without one: the plain connection a tunnel is compared with."""
    sock = connect()
    if PROXY:
        sock.sendall(f"CONNECT {HOST} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(65536)
        if b" 200 " not in answer:
            sys.exit(f"no tunnel: {answer[:300]!r}")
    return sock


def times(work):
    samples = []
    for _ in range(ask["rounds"]):
        began = time.perf_counter()
        work()
        samples.append((time.perf_counter() - began) * 1000)
    return samples


def throughput(sock, prefix):
    """MiB/s of one large answer."""
    buffer, got, size = bytearray(1 << 20), 0, ask["megabytes"] << 20
    began = time.perf_counter()
    get(sock, f"/big/{ask['megabytes']}", prefix)
    while got < size:
        count = sock.recv_into(buffer)
        if not count:
            sys.exit("the connection ended in the middle of an answer")
        got += count
    sock.close()
    return got / (1 << 20) / (time.perf_counter() - began)


kept, through = connect(), tunnel()
result = {
    "request on a new connection": times(new_connection),
    "request on a kept connection": times(lambda: request(kept)),
    "connection set-up (CONNECT)": times(lambda: tunnel().close()),
    "request in a tunnel": times(lambda: request(through, "")),
    "throughput, plain HTTP": [throughput(connect(), PREFIX) for _ in range(3)],
    "throughput, tunnel": [throughput(tunnel(), "") for _ in range(3)],
}
print(json.dumps(result))
