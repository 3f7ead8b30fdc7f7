"""Where a kernel is: its home directory and its control socket, from the environment alone. Makes and opens nothing."""

import os
from pathlib import Path

from agent_os.abi.errors import EINVAL

SOCKET = "kernel.sock"
_LONGEST = 1000  # bytes; far above what a socket's own address holds, which is why nobody names it by its whole path


def home() -> Path:
    """`$AGENT_OS_HOME`, else the XDG state directory."""
    chosen = os.environ.get("AGENT_OS_HOME")
    if chosen:
        return Path(chosen).absolute()
    xdg = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(xdg) / "agent-os"


def agents() -> Path | None:
    """The folder whose manifests a kernel declares when it boots: `$AGENT_OS_AGENTS`, else in the XDG configuration. A
    home that was chosen has none, unless it is named: nobody else's agents start there. It cannot be inside a home,
    which no agent ever sees."""
    if chosen := os.environ.get("AGENT_OS_AGENTS"):
        return Path(chosen).absolute()
    if os.environ.get("AGENT_OS_HOME"):
        return None
    xdg = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(xdg) / "agent-os" / "agents"


def control_socket() -> Path:
    """`$AGENT_OS_SOCKET`; beside a home that was chosen; else in `$XDG_RUNTIME_DIR`, which is emptied at logout."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if chosen := os.environ.get("AGENT_OS_SOCKET"):
        path = Path(chosen).absolute()
    elif os.environ.get("AGENT_OS_HOME") or not runtime:
        path = home() / "run" / SOCKET
    else:
        path = Path(runtime).absolute() / "agent-os" / SOCKET
    if len(os.fsencode(path)) > _LONGEST or len(os.fsencode(path.name)) > 80:
        raise EINVAL("socket.path", f"the path of the control socket is too long: {path}", hint="AGENT_OS_SOCKET=PATH")
    return path
