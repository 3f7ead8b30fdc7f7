"""Agent OS: isolated agents behind a small trusted kernel.

Owns the public names, found on first use (PEP 562) so that `import agent_os` costs nothing and works on every
platform. Never imports a subsystem eagerly.
"""

TYPE_CHECKING = False  # what type checkers read as true; importing `typing` would be most of the cost of this file
if TYPE_CHECKING:
    from agent_os.abi.errors import AgentKernelPanic, AgentOSError, FailureSeverity
    from agent_os.abi.failures import AgentFailure
    from agent_os.abi.signals import AgentSignal
    from agent_os.kernel.vfs.view import AgentVFS
    from agent_os.space import AgentContext, AgentRuntime, CapabilityManager, KernelSpace
    from agent_os.userland.agent import agent
    from agent_os.userland.context import Context

__version__ = "0.1.0"

# Public name -> the module that owns it.
_HOMES = {
    "AgentContext": "agent_os.space",
    "AgentFailure": "agent_os.abi.failures",
    "AgentKernelPanic": "agent_os.abi.errors",
    "AgentOSError": "agent_os.abi.errors",
    "AgentRuntime": "agent_os.space",
    "AgentSignal": "agent_os.abi.signals",
    "AgentVFS": "agent_os.kernel.vfs.view",
    "CapabilityManager": "agent_os.space",
    "Context": "agent_os.userland.context",
    "FailureSeverity": "agent_os.abi.errors",
    "KernelSpace": "agent_os.space",
    "agent": "agent_os.userland.agent",
}

__all__ = [
    "AgentContext",
    "AgentFailure",
    "AgentKernelPanic",
    "AgentOSError",
    "AgentRuntime",
    "AgentSignal",
    "AgentVFS",
    "CapabilityManager",
    "Context",
    "FailureSeverity",
    "KernelSpace",
    "__version__",
    "agent",
]


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
