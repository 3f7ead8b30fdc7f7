"""A module that is loaded when something of it is first used, for what most starts do not need.

    if TYPE_CHECKING:
        import h11
    else:
        h11 = lazy("h11")

The kernel loads all of these soon after it is ready (`daemon.process.load_the_rest`), so that an upgrade in place never
mixes two versions. Not safe from two threads at once: use it for what only the loop's thread touches.
"""

import importlib.util
import sys
from types import ModuleType


def lazy(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def is_waiting(module: ModuleType) -> bool:
    """Whether it is lazy and nothing of it was used yet."""
    return type(module) is not ModuleType and type(module).__name__ == "_LazyModule"
