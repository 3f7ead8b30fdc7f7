"""agentctl: the operator's front door. Imports abi and the composition root, never kernel or sandbox directly.

Owns how its process begins and ends; the verbs are in `main`.
"""

import gc
import os
import sys
from types import ModuleType

from agent_os import __version__

TYPE_CHECKING = False  # `typing` would be most of the cost of this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# Our modules are compiled once: with PYTHONDONTWRITEBYTECODE, each command would take three times as long.
sys.dont_write_bytecode = False


def entry(main: "Callable[[], int] | None" = None) -> "NoReturn":
    """The process `agentctl`. Nothing that is loaded is garbage, and taking the interpreter apart at the end would take
    as long as a quick command does."""
    gc.disable()
    if sys.argv[1:] == ["version"]:
        print(version_line())
        code = 0
    else:
        _spare()
        if main is None:
            from agent_os.cli.main import main
        code = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads any more
            continue
    os._exit(code)


class _Inspect(ModuleType):
    """What click has at each start of `inspect`; with anything else all of it is loaded, a tenth of a command."""

    def cleandoc(self, doc: str) -> str:
        return self.__getattr__("cleandoc")(doc) if "\n" in doc or "\t" in doc else doc.lstrip()

    def __getattr__(self, name: str) -> "Any":
        if sys.modules["inspect"] is self:
            del sys.modules["inspect"]
        import inspect

        return getattr(inspect, name)


def _spare() -> None:
    """Keeps libraries from loading what they hardly use. msgspec takes from `typing` what it does not find; asyncio has
    connections to the kernel only."""
    if "inspect" not in sys.modules:
        sys.modules["inspect"] = _Inspect("inspect")
    from agent_os.lazy import load

    load("msgspec", without="typing_extensions")
    if sys.argv[1:2] in (["run"], ["exec"]):
        load("asyncio", without="ssl")


def version_line() -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    return f"agentctl {__version__}  python {python}  {sys.platform} {os.uname().machine}"
