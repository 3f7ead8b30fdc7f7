"""A module that is loaded when something of it is first used, for what most starts do not need.

    if TYPE_CHECKING:
        import h11
    else:
        h11 = lazy("h11")

The kernel loads all of these soon after it is ready (`daemon.process.load_the_rest`), so that an upgrade in place never
mixes versions.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

waiting: list[str] = []  # names of those that were not loaded when they were asked for


class _Later(ModuleType):
    """Not in `sys.modules`, as those of `importlib.util.LazyLoader` are: from there, a second thread may find one half
    loaded, and its packages are loaded at once."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # from now on it is found without us
        return value


def lazy(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    waiting.append(name)
    return _Later(name)


def load(name: str, *, without: str) -> None:
    """Imports a module as if another one, which it does not need, were not installed. For the beginning of a process of
    our own: meanwhile nobody else finds that other one."""
    if without not in sys.modules:
        sys.modules[without] = None  # pyright: ignore[reportArgumentType]
        import_module(name)
        del sys.modules[without]
