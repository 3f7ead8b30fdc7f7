"""The server's half of a SOCKS5 handshake (RFC 1928): CONNECT only, no authentication.

In: the client's bytes, in whatever pieces they arrive. Out: what to send back, and where the client wants to go.
Strict: what is not exactly right is a `problem`, found at the first byte that shows it. The host is handed on as the
client wrote it; whether it is one is `canonical_host`'s to say, as for HTTP. Touches no socket, decides about no host.
"""

from enum import Enum
from ipaddress import IPv4Address, IPv6Address

SOCKS4, SOCKS5 = b"\x04", b"\x05"  # the first byte of a connection; no HTTP method begins with either

_CONNECT, _COMMANDS = 1, {2: "BIND", 3: "UDP ASSOCIATE"}
_IPV4, _NAME, _IPV6 = 1, 3, 4
_GENERAL, _DENIED, _UNREACHABLE, _REFUSED, _NO_COMMAND, _NO_ADDRESS_TYPE = 1, 2, 4, 5, 7, 8
_REPLIES = {
    "net.resolve": _UNREACHABLE,
    "net.dial": _REFUSED,
    "net.limit": _GENERAL,
    "net.broken": _GENERAL,
    "net.internal": _GENERAL,
}  # every other code is a refusal: not allowed by the rules
_NO_METHOD = SOCKS5 + b"\xff"
_SOCKS4_REJECTED = b"\x00\x5b" + bytes(6)


class _Stage(Enum):
    GREETING = 1  # version, count of methods, methods
    REQUEST = 2  # version, command, zero, address type, address, port
    ASKED = 3
    OVER = 4  # the last word is said, or there is none


class Handshake:
    """Feed it bytes and send what it returns, until there is a `problem` or `asked` is true."""

    def __init__(self) -> None:
        self._stage = _Stage.GREETING
        self._last_word = b""  # for a problem that has an answer of its own
        self.problem = ""
        self.host = ""  # as the client wrote it; an IPv6 address in brackets
        self.port = 0
        self.rest = b""  # not read yet; once asked: what the client said into the tunnel already

    @property
    def asked(self) -> bool:
        return self._stage is _Stage.ASKED

    def feed(self, data: bytes) -> bytes:
        self.rest += data
        answer = b""
        if self._stage is _Stage.GREETING:
            answer = self._read_greeting()
        if self._stage is _Stage.REQUEST:
            self._read_request()
        return answer

    def accept(self) -> bytes:
        self._stage = _Stage.OVER
        return _reply(0)

    def refuse(self, code: str) -> bytes:
        """The answer for a code of the records; empty where the protocol has none, or none any more."""
        asked = self._stage in (_Stage.REQUEST, _Stage.ASKED)
        word = _reply(_REPLIES.get(code, _DENIED)) if asked else self._last_word
        self._stage, self._last_word = _Stage.OVER, b""
        return word

    def _fail(self, problem: str, last_word: bytes = b"") -> bytes:
        self._stage, self.problem, self._last_word = _Stage.OVER, problem, last_word
        return b""

    def _read_greeting(self) -> bytes:
        data = self.rest
        if data[:1] == SOCKS4:
            return self._fail("SOCKS4 is not spoken here, SOCKS5 is", _SOCKS4_REJECTED)
        if data[:1] not in (b"", SOCKS5):
            return self._fail("not a SOCKS5 greeting")
        if len(data) < 2 or len(data) < 2 + data[1]:
            return b""
        methods, self.rest = data[2 : 2 + data[1]], data[2 + data[1] :]
        if 0 not in methods:
            return self._fail("the client insists on authentication, there is none here", _NO_METHOD)
        self._stage = _Stage.REQUEST
        return SOCKS5 + b"\x00"

    def _read_request(self) -> None:
        data = self.rest
        if data[:1] not in (b"", SOCKS5):
            self._fail("not a SOCKS5 request")
        elif len(data) > 1 and data[1] != _CONNECT:
            name = _COMMANDS.get(data[1], f"number {data[1]}")
            self._fail(f"the SOCKS5 command {name} is not served, only CONNECT", _reply(_NO_COMMAND))
        elif len(data) > 2 and data[2] != 0:
            self._fail("not a SOCKS5 request: its reserved byte is not zero")
        elif len(data) > 3 and data[3] not in (_IPV4, _NAME, _IPV6):
            self._fail(f"SOCKS5 knows no address type {data[3]}", _reply(_NO_ADDRESS_TYPE))
        elif len(data) > 4:
            self._read_target(data)

    def _read_target(self, data: bytes) -> None:
        kind, start = data[3], 5 if data[3] == _NAME else 4
        end = start + {_IPV4: 4, _NAME: data[4], _IPV6: 16}[kind]
        if len(data) < end + 2:
            return
        raw = data[start:end]
        if kind == _NAME:
            self.host = raw.decode("latin-1")  # every byte stays visible to `canonical_host`
        else:
            self.host = str(IPv4Address(raw)) if kind == _IPV4 else f"[{IPv6Address(raw)}]"
        self.port = int.from_bytes(data[end : end + 2])
        self.rest = data[end + 2 :]
        self._stage = _Stage.ASKED


def _reply(code: int) -> bytes:
    """Without the address that is bound on our side: that is nobody's business inside."""
    return SOCKS5 + bytes([code, 0, _IPV4]) + bytes(6)
