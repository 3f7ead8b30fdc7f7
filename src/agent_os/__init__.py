"""Agent OS: isolated agents behind a small trusted kernel.

Owns the public names, found on first use (PEP 562) so that `import agent_os` costs nothing and works on every
platform. Never imports a subsystem eagerly.
"""

TYPE_CHECKING = False  # what type checkers read as true; importing `typing` would be most of the cost of this file
if TYPE_CHECKING:
    from agent_os.abi.errors import AgentOSError, FailureSeverity

__version__ = "0.1.0"

# Public name -> the module that owns it.
_HOMES = {
    "AgentOSError": "agent_os.abi.errors",
    "FailureSeverity": "agent_os.abi.errors",
}

__all__ = ["AgentOSError", "FailureSeverity", "__version__"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
