"""Egress: the only way out of an agent's network namespace. `proxy` is where to begin reading."""

from agent_os.kernel.egress.addresses import Grant, parse_grant
from agent_os.kernel.egress.attempt import Connection, Limits
from agent_os.kernel.egress.proxy import Egress, Resolver

__all__ = ["Connection", "Egress", "Grant", "Limits", "Resolver", "parse_grant"]
