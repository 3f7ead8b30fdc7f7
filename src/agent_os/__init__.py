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
    from agent_os.manifest.agency import Agency
    from agent_os.manifest.capabilities import AgentCapabilities, IpcScope, ResourceLimits
    from agent_os.manifest.model import (
        AgentDependencies,
        AgentHealth,
        AgentInterface,
        AgentManifest,
        AgentResources,
    )
    from agent_os.manifest.problems import ManifestError
    from agent_os.manifest.roles import (
        AgentPriority,
        AgentRestartPolicy,
        AgentRole,
        InterfaceProtocol,
        ResponseMode,
    )
    from agent_os.message_bus import MessageBus
    from agent_os.space import AgentContext, AgentRuntime, CapabilityManager, KernelSpace, Scheduler
    from agent_os.tool_registry import ToolRegistry
    from agent_os.userland.agent import agent
    from agent_os.userland.context import Context
    from agent_os.userland.pipes import PipeError, Pipeline, PolicyCheckPipe, Stage
    from agent_os.userland.tools import tool

__version__ = "0.1.0"

# Public name -> the module that owns it.
_HOMES = {
    "Agency": "agent_os.manifest.agency",
    "AgentCapabilities": "agent_os.manifest.capabilities",
    "AgentContext": "agent_os.space",
    "AgentDependencies": "agent_os.manifest.model",
    "AgentFailure": "agent_os.abi.failures",
    "AgentHealth": "agent_os.manifest.model",
    "AgentInterface": "agent_os.manifest.model",
    "AgentKernelPanic": "agent_os.abi.errors",
    "AgentManifest": "agent_os.manifest.model",
    "AgentOSError": "agent_os.abi.errors",
    "AgentPriority": "agent_os.manifest.roles",
    "AgentResources": "agent_os.manifest.model",
    "AgentRestartPolicy": "agent_os.manifest.roles",
    "AgentRole": "agent_os.manifest.roles",
    "AgentRuntime": "agent_os.space",
    "AgentSignal": "agent_os.abi.signals",
    "AgentVFS": "agent_os.kernel.vfs.view",
    "CapabilityManager": "agent_os.space",
    "Context": "agent_os.userland.context",
    "FailureSeverity": "agent_os.abi.errors",
    "InterfaceProtocol": "agent_os.manifest.roles",
    "IpcScope": "agent_os.manifest.capabilities",
    "KernelSpace": "agent_os.space",
    "ManifestError": "agent_os.manifest.problems",
    "MessageBus": "agent_os.message_bus",
    "PipeError": "agent_os.userland.pipes",
    "Pipeline": "agent_os.userland.pipes",
    "PolicyCheckPipe": "agent_os.userland.pipes",
    "ResourceLimits": "agent_os.manifest.capabilities",
    "ResponseMode": "agent_os.manifest.roles",
    "Scheduler": "agent_os.space",
    "Stage": "agent_os.userland.pipes",
    "ToolRegistry": "agent_os.tool_registry",
    "agent": "agent_os.userland.agent",
    "tool": "agent_os.userland.tools",
}

__all__ = [
    "Agency",
    "AgentCapabilities",
    "AgentContext",
    "AgentDependencies",
    "AgentFailure",
    "AgentHealth",
    "AgentInterface",
    "AgentKernelPanic",
    "AgentManifest",
    "AgentOSError",
    "AgentPriority",
    "AgentResources",
    "AgentRestartPolicy",
    "AgentRole",
    "AgentRuntime",
    "AgentSignal",
    "AgentVFS",
    "CapabilityManager",
    "Context",
    "FailureSeverity",
    "InterfaceProtocol",
    "IpcScope",
    "KernelSpace",
    "ManifestError",
    "MessageBus",
    "PipeError",
    "Pipeline",
    "PolicyCheckPipe",
    "ResourceLimits",
    "ResponseMode",
    "Scheduler",
    "Stage",
    "ToolRegistry",
    "__version__",
    "agent",
    "tool",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import gc
    from importlib import import_module

    looking = gc.isenabled()
    gc.disable()  # of what is loaded nothing is garbage
    try:
        value = getattr(import_module(home), name)
    finally:
        if looking:
            gc.enable()
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
