"""What a person names for a run, as capabilities: `--net HOST` and `--secret NAME`; and a capability as a grant again.

The table of addresses asks for grants, the gate for capabilities. In: one. Out: the other. Pure.
"""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Any

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.capability import ACTIONS, Capability, of
from agent_os.kernel.authority.patterns import compiled
from agent_os.kernel.egress.addresses import DEFAULT_PORTS, Grant, endpoint
from agent_os.kernel.egress.asking import host_text
from agent_os.kernel.egress.routes import Route


def granted(net: Iterable[Grant], routes: Iterable[Route]) -> list[Capability]:
    """What an operator gives by naming hosts and secrets for a run."""
    return [*map(capability_of, net), *(of("secret", route.name, ("use",)) for route in routes)]


def named(net: Iterable[Grant], routes: Iterable[Route]) -> frozenset[str]:
    """Hosts that a person has named for a run, each by itself: about those they have been asked."""
    exact = (host_text(one.network.network_address) for one in net if one.network and one.network.num_addresses == 1)
    names = (one.name for one in net if one.name and not one.below)
    return frozenset((*names, *exact, *(route.host for route in routes)))


def capability_of(grant: Grant) -> Capability:
    """What an operator's `--net` gives: all methods, on its ports. A host that a door leads to is reached directly only
    where the very endpoint is named."""
    ports = frozenset(DEFAULT_PORTS if grant.port is None else (grant.port,))
    limits: dict[str, Any] = {"port": ports, "scheme": frozenset({"http", "https"})}
    if grant.port is not None and not grant.below:
        limits["tunnel"] = True
    network = grant.network
    if network is None:
        return _all(("*." if grant.below else "") + grant.name, limits)
    address = network.network_address
    if grant.is_loopback:
        del limits["port"], limits["scheme"]
        return _all(host_text(address), {"loopback": endpoint(address, grant.port), **limits})
    if network.num_addresses == 1:
        return _all(host_text(address), {"private": frozenset({str(network)}), **limits})
    if grant.opens_private:
        limits["private"] = frozenset({str(network)})
    return _all("*", {"network": frozenset({str(network)}), **limits})


def require_endpoint(capability: Capability) -> Capability:
    """As it is. EINVAL where it names the host's own loopback as a whole: that is opened port by port, so it would
    cover nothing."""
    host = capability.target.host if capability.kind == "http" else ""
    if "loopback" not in capability.constraints and is_loopback(host):
        port = min(capability.constraints.get("port", ()), default="PORT")
        reason = f"{capability} reaches nothing: the host's own loopback is opened port by port"
        raise EINVAL("cap.loopback", reason, hint=f"agentctl run --net {host}:{port}")
    return capability


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _all(host: str, limits: dict[str, Any]) -> Capability:
    return Capability("http", compiled("http", host), ACTIONS["http"], limits)


def grants_of(capability: Capability) -> list[Grant]:
    """As the table of addresses asks. What paths, methods and schemes it has, the gate looks at."""
    limits = capability.constraints
    if "loopback" in limits:
        host, _, port = str(limits["loopback"]).rpartition(":")
        return [Grant(network=ip_network(host.strip("[]")), port=int(port))]
    ports: frozenset[int] = limits.get("port", frozenset({443}))
    usual = ports == frozenset(DEFAULT_PORTS) and not limits.get("tunnel")
    return [one for port in ((None,) if usual else sorted(ports)) for one in _grants_at(capability, port)]


def _grants_at(capability: Capability, port: int | None) -> list[Grant]:
    host, limits = capability.target.host, capability.constraints
    near = [Grant(network=ip_network(one), port=port) for one in sorted(limits.get("private", ()))]
    if "network" in limits:
        return [Grant(network=ip_network(one), port=port) for one in sorted(limits["network"])] + near
    if host == "*":
        return [Grant(anything=True, port=port), *near]
    if host.startswith("*."):
        return [Grant(name=host[2:], below=True, port=port), *near]
    try:
        return [Grant(network=ip_network(ip_address(host.strip("[]"))), port=port), *near]
    except ValueError:
        return [Grant(name=host, port=port), *near]
