"""What the built-in tools are tested with: the kernel's own means, over a real folder, real processes, real sockets."""

import asyncio
import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_os.abi.errors import EPERM
from agent_os.drivers.store.memory import MemoryStore
from agent_os.kernel.calls import Need
from agent_os.kernel.tools.kept import Kept
from agent_os.kernel.tools.means import TreeFiles
from agent_os.kernel.vfs import Vfs


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


class Bodies(dict[str, bytes]):
    def kept(self) -> Kept:
        return Kept(self.__setitem__, self.get)


@dataclass
class Tree:
    files: TreeFiles
    place: Path
    touched: list[Need] = field(default_factory=list[Need])
    forbidden: set[str] = field(default_factory=set[str])
    bodies: Bodies = field(default_factory=Bodies)

    @property
    def keep(self) -> Kept:
        return self.bodies.kept()


@contextmanager
def tree(place: Path) -> Iterator[Tree]:
    """An agent whose /work is that folder."""
    vfs = Vfs(MemoryStore())
    root = vfs.root("default/a")
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        root.mount_directory("/work", fd)

        def confirm(needs: Sequence[Need], facts: Mapping[str, Any]) -> None:
            found.touched.extend(needs)
            for need in needs:
                if any(need.target == one or need.target.startswith(f"{one}/") for one in found.forbidden):
                    raise EPERM("cap.missing", f"{need.target} is not yours")

        found = Tree(TreeFiles(vfs, root, confirm), place)
        yield found
    finally:
        vfs.shutdown()
        os.close(fd)
