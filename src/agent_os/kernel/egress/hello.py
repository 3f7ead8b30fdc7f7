"""The server name in a TLS ClientHello, read by OpenSSL, not by us.

In: the first bytes a client sends into a tunnel, in whatever pieces they arrive. Out: whether they ask for the host
the tunnel was opened to, and if not, the problem and the alert to send back.
Never answers a handshake: OpenSSL is stopped at the name, before any key is made. Touches no socket.
"""

import contextlib
import ssl
import sys
from collections.abc import Generator

TLS_HANDSHAKE = 0x16  # the first byte of a TLS connection


class ClientHello:
    """Feed it bytes until it says True; then `problem` is empty if the name is the expected one."""

    def __init__(self, expected: str, *, name_required: bool) -> None:
        self._expected = expected
        self._name_required = name_required  # clients send no name for an IP address
        self._seen = False
        self.problem = ""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # We judge the name, not the strength: that is between the client and its server.
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
        context.sni_callback = self._judge
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    @property
    def alert(self) -> bytes:
        return self._outgoing.read()

    def feed(self, data: bytes) -> bool:
        self._incoming.write(data)
        try:
            with _undecodable_names_are_refused_quietly():
                self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            if not self._seen:
                self.problem = f"not a readable TLS ClientHello: {error.reason or 'malformed'}"
        self._tls.context.sni_callback = None  # it refers back to us: free everything now, not at the next collection
        return True

    def _judge(self, _tls: object, name: str | None, _context: object) -> int:
        self._seen = True
        if name is None:
            self.problem = f"TLS without a server name, expected {self._expected}" if self._name_required else ""
        elif name.lower().removesuffix(".") != self._expected:
            self.problem = f"TLS asks for {name}, but the tunnel was opened to {self._expected}"
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # always: the handshake ends here, in either case


@contextlib.contextmanager
def _undecodable_names_are_refused_quietly() -> Generator[None, None, None]:
    """Python's ssl reports a name that is not ASCII to `sys.unraisablehook` and then refuses it, as we want.

    Without this an agent could write tracebacks to the operator's terminal at will. No await happens inside.
    """
    previous = sys.unraisablehook

    def hook(report: "sys.UnraisableHookArgs") -> None:
        if not isinstance(report.exc_value, UnicodeDecodeError):
            previous(report)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous
