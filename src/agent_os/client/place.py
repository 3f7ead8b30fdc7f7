"""Where a kernel is: its home directory and its control socket, as settings say. Makes nothing."""

import os
from pathlib import Path

from agent_os.abi.errors import EINVAL
from agent_os.client.config import setting

SOCKET = "kernel.sock"
_LONGEST = 1000  # bytes; far above what a socket's own address holds, which is why nobody names it by its whole path


def home() -> Path:
    """The one that was chosen, by `$AGENT_OS_HOME` or a configuration, else in the XDG state directory."""
    if chosen := setting("home").value:
        return Path(chosen)
    xdg = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(xdg) / "agent-os"


def agents() -> Path | None:
    """The folder whose manifests a kernel declares when it boots: as was chosen, else in the XDG configuration. A
    home that was chosen has none, unless it is named: nobody else's agents start there. It cannot be inside a home,
    which no agent ever sees."""
    chosen = setting("agents")
    if os.environ.get("AGENT_OS_HOME") and chosen.origin != "environment":
        return None
    if chosen.value:
        return Path(chosen.value)
    xdg = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(xdg) / "agent-os" / "agents"


def control_socket() -> Path:
    """As was chosen; beside a home that was chosen; else in `$XDG_RUNTIME_DIR`, which is emptied at logout."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if chosen := setting("socket").value:
        path = Path(chosen)
    elif setting("home").value or not runtime:
        path = home() / "run" / SOCKET
    else:
        path = Path(runtime).absolute() / "agent-os" / SOCKET
    if len(os.fsencode(path)) > _LONGEST or len(os.fsencode(path.name)) > 80:
        raise EINVAL("socket.path", f"the path of the control socket is too long: {path}", hint="AGENT_OS_SOCKET=PATH")
    return path
