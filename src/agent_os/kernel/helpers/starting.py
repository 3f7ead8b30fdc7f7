"""How a helper is started: its command, its limits, and the spec of its sandbox.

Pure. In: which helper, and what else it must see. Out: a `SpawnSpec` for the launcher; descriptor 3 is the socket of a
`Link`. A helper holds no secret and no grant of its own: its listener must be served by the egress of the agent that it
works for, and it must end with that agent.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from agent_os.sandbox.spec import PROXY_PORT, Bind, Level, Limits, SpawnSpec, Workspace

Which = Literal["mcp", "browser"]
# Our package is loaded by its place, as for agents (kernel/programs): the folder around it is not shown.
BOOT = """
import sys, importlib, importlib.util as util
place, module = sys.argv[1:3]
if util.find_spec("agent_os") is None:
    spec = util.spec_from_file_location("agent_os", f"{place}/__init__.py", submodule_search_locations=[place])
    sys.modules["agent_os"] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["agent_os"])
sys.exit(importlib.import_module(module).main())
"""
MODULES: Mapping[Which, str] = {"mcp": "agent_os.userland.mcp_client", "browser": "agent_os.userland.browser"}
# Chromium reserves terabytes of addresses and has a hundred threads; a page is held by the memory of all of it.
LIMITS: Mapping[Which, Limits] = {
    "mcp": Limits(memory_mb=512, as_mb=None, pids=128, fsize_mb=256, tmp_mb=256),
    "browser": Limits(memory_mb=2048, as_mb=None, pids=512, nofile=1000, fsize_mb=512, tmp_mb=1024),
}
_PACKAGE = Path(__file__).resolve().parent.parent.parent
_PATH = "/usr/local/bin:/usr/bin:/bin"


def command(which: Which, python: str = sys.executable) -> tuple[str, ...]:
    return (python, "-c", BOOT, str(_PACKAGE), MODULES[which])


def spec(
    which: Which,
    name: str,
    *,
    env: Mapping[str, str] | None = None,
    binds: Sequence[Bind] = (),
    limits: Limits | None = None,
    min_level: Level = "S2",
) -> SpawnSpec:
    """Its own empty workspace in memory; the way out is the proxy's port of its own loopback."""
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    own = {
        "PATH": _PATH,
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "AGENT_OS": "1",
        "AGENT_OS_FD": "3",
    }
    own |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}  # for loopback addresses as well: its own has nothing else
    return SpawnSpec(
        spawn_id=name,
        kind="native",
        isolation="exec",
        argv=list(command(which)),
        env=own | dict(env or {}),
        net="proxy",
        workspace=Workspace("tmpfs"),
        binds=list(binds),
        limits=limits or LIMITS[which],
        exec_memfd=True,  # JIT compilers of browsers and of servers need it
        min_level=min_level,
    )
