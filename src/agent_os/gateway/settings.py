"""What a gateway is told at its start. Nothing here is read from the environment: whoever starts it says all of it."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from agent_os.abi.errors import EINVAL

FIRST_PORT, LAST_PORT = 7700, 7719
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Limits:
    """What one caller may take. Load tests raise them."""

    body: int = 1 << 20  # bytes of a request
    memory_body: int = 16 << 20  # of a PUT to an agent's memory
    depth: int = 64  # of nested JSON
    headers: int = 32 << 10  # bytes of all of them
    rate: float = 50.0  # requests a second for each token
    burst: int = 200
    connections: int = 256  # to the kernel, one for each token
    idle_s: float = 60.0  # until one that nobody uses is closed
    websockets: int = 64  # for each token
    wait_s: float = 30.0  # for the kernel's answer
    lines: int = 512  # connections of everybody together
    ask_s: float = 10.0  # for a request to be there, from when it could be
    body_s: float = 60.0  # and for its body
    large_bodies: int = 4  # of each token, at once


@dataclass(frozen=True)
class Settings:
    """`names` are what a browser may call us by, with or without a port; loopback needs none."""

    socket: Path
    host: str = LOOPBACK
    port: int = FIRST_PORT
    names: tuple[str, ...] = ()
    cert: Path | None = None
    key: Path | None = None
    limits: Limits = Limits()
    static: Path = Path(__file__).parent / "static"

    @property
    def scheme(self) -> str:
        return "https" if self.cert else "http"

    @property
    def url(self) -> str:
        """Where people find it."""
        return f"{self.scheme}://{self.hosts[0]}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What the Host header may say. A foreign name that a rebinding DNS server made ours is none of them."""
        own = [] if is_any(self.host) else [_bracketed(self.host)]
        spoken = [*self.names, *own] if not is_loopback(self.host) else [*own, "localhost", *self.names]
        usual = {"http": 80, "https": 443}[self.scheme]
        told = [name if _has_port(name) else f"{name}:{self.port}" for name in spoken]
        bare = [name for name in spoken if not _has_port(name)] if self.port == usual else []
        return tuple(dict.fromkeys(name.lower() for name in told + bare))

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(f"{self.scheme}://{host}" for host in self.hosts)


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def require_safe(host: str, names: tuple[str, ...], cert: object, key: object) -> None:
    """EINVAL: tokens would cross a network in the clear, or nobody could name the server."""
    if bool(cert) != bool(key):
        raise EINVAL("gateway.tls", "TLS needs a certificate and its key", hint="--cert FILE --key FILE")
    if not is_loopback(host) and not cert:
        reason = f"{host} is not loopback: without TLS everybody on the way could read the tokens"
        raise EINVAL("gateway.plain", reason, hint="--cert FILE --key FILE, or leave --host out and use an SSH tunnel")
    if is_any(host) and not names:
        reason = f"{host} is every address of this machine: say by which name it will be called"
        raise EINVAL("gateway.nameless", reason, hint="--public-name agents.example.com")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _has_port(name: str) -> bool:
    return name.rpartition(":")[2].isdigit() and not name.endswith("]")
