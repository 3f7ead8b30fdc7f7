"""A host process that a sandboxed program must not reach: same host uid, secrets wherever a process can have them.

argv: a JSON file, a marker, the secret itself. Started with the secret in its environment; keeps it in memory, in an
open file and in the user's keyring, and hands it to whoever connects to its sockets. Says on stdout where all that is.
Ends, and takes the key away, when its stdin ends.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys

KEYCTL, ADD_KEY = (250, 248) if os.uname().machine == "x86_64" else (219, 217)
USER_KEYRING = -4


def main() -> None:
    with open(sys.argv[1]) as file:
        config = json.load(file)
    secret = sys.argv[3].encode()
    sockets = [named(path, socket.SOCK_STREAM) for path in config["sockets"]]
    datagrams = [named(path, socket.SOCK_DGRAM) for path in config["datagrams"]]
    sockets.append(named("\0" + config["abstract"], socket.SOCK_STREAM))
    loopback, port = loopback_services()
    sockets += loopback
    become(config["uid"])

    held = os.open(config["secret_file"], os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc.restype = ctypes.c_void_p
    address = libc.malloc(64)
    ctypes.memmove(address, secret, len(secret))
    libc.syscall.restype = ctypes.c_long
    key = libc.syscall(ADD_KEY, b"user", config["key_name"].encode(), secret, len(secret), USER_KEYRING)

    def mark(number: int, frame: object) -> None:
        fd = os.open(config["signal_mark"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.write(fd, b"x")  # one for every signal
        os.close(fd)

    signal.signal(signal.SIGUSR1, mark)
    print(json.dumps({"pid": os.getpid(), "address": address, "fd": held, "port": port, "key": key}), flush=True)
    serve(sockets, datagrams, secret)
    if key > 0:
        libc.syscall(KEYCTL, 9, key, USER_KEYRING)  # unlink


def named(path: str, kind: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(path)
    if not path.startswith("\0"):
        os.chmod(path, 0o666)
    if kind == socket.SOCK_STREAM:
        sock.listen(16)
    return sock


def loopback_services() -> tuple[list[socket.socket], int]:
    four = socket.create_server(("127.0.0.1", 0))
    port = four.getsockname()[1]
    services = [four]
    with contextlib.suppress(OSError):  # a machine without IPv6
        services.append(socket.create_server(("::1", port), family=socket.AF_INET6))
    return services, port


def become(uid: int) -> None:
    if uid != os.geteuid():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # the change of uid made us undumpable: a peer that is easy to reach


def serve(sockets: list[socket.socket], datagrams: list[socket.socket], secret: bytes) -> None:
    while True:
        ready, _, _ = select.select([sys.stdin, *sockets, *datagrams], [], [])
        if sys.stdin in ready:
            return
        for sock in ready:
            if sock in datagrams:
                sock.recv(999)
                continue
            with contextlib.suppress(OSError):
                connection, _ = sock.accept()
                connection.sendall(secret)
                connection.close()


if __name__ == "__main__":
    main()
