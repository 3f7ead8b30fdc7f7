"""The server of the egress benchmark: `/` answers `hi`, `/big/N` answers N MiB. Prints its port."""

import socket
import threading

BLOCK = b"x" * (1 << 20)


def serve(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = b""
    with sock:
        while True:
            while b"\r\n\r\n" not in buffer:
                data = sock.recv(65536)
                if not data:
                    return
                buffer += data
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            try:
                answer(sock, head.split(b" ")[1])
            except (BrokenPipeError, ConnectionResetError):
                return  # the client had enough
            if b"connection: close" in head.lower():
                return


def answer(sock: socket.socket, path: bytes) -> None:
    if path.startswith(b"/big/"):
        blocks = int(path.removeprefix(b"/big/"))
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (blocks << 20))
        for _ in range(blocks):
            sock.sendall(BLOCK)
    else:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")


listener = socket.create_server(("127.0.0.1", 0), backlog=256)
print(listener.getsockname()[1], flush=True)
while True:
    accepted, _ = listener.accept()
    threading.Thread(target=serve, args=(accepted,), daemon=True).start()
