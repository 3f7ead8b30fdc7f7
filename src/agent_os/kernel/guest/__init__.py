"""Guests: any unmodified command as an agent. What it needs to see, and the environment it gets."""

from agent_os.kernel.guest.environment import Mount, environment, expand, parse_duration, parse_env, parse_mount
from agent_os.kernel.guest.limits import parse_limits, unenforced
from agent_os.kernel.guest.program import INTERPRETERS, Program, resolve

__all__ = [
    "INTERPRETERS",
    "Mount",
    "Program",
    "environment",
    "expand",
    "parse_duration",
    "parse_env",
    "parse_limits",
    "parse_mount",
    "resolve",
    "unenforced",
]
