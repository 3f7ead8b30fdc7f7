"""The drivers of models put together: for every provider that an operator knows, whatever speaks to it, and the prices.

A composition root like `daemon`, which decides nothing: the kernel knows the interface of drivers only. The drivers
themselves load what they need at their first call.
"""

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from agent_os.abi.errors import EINVAL, ENOENT, EPERM
from agent_os.abi.text import native
from agent_os.drivers.models import ModelProvider
from agent_os.kernel.models.catalogue import Provider
from agent_os.kernel.models.prices import Rates
from agent_os.kernel.table import bare

if TYPE_CHECKING:
    from agent_os.drivers.models.scripted import Step

_LARGEST = 4 << 20  # bytes of a script


class Drivers:
    """`blob`: bytes by their SHA-256, for images. `written_by`: who of the agents can write a file of the host."""

    def __init__(self, blob: Callable[[bytes], bytes | None], written_by: Callable[[str], str | None]) -> None:
        self._blob, self._written_by = blob, written_by
        self._tabled: Callable[[str, str], Rates | None] | None = None

    def provider(self, provider: Provider, project: str) -> ModelProvider:
        from agent_os.drivers.models.wire import Endpoint

        if provider.dialect == "scripted":
            from agent_os.drivers.models.scripted import Scripted

            return Scripted(Scripts(Path(native(project or ".")), self._written_by).load)
        endpoint = Endpoint(provider.base, local=provider.local)
        if provider.dialect == "anthropic":
            from agent_os.drivers.models.anthropic import Anthropic

            return Anthropic(endpoint, blobs=self._image)
        if provider.dialect == "ollama":
            from agent_os.drivers.models.ollama import Ollama

            return Ollama(endpoint, blobs=self._image)
        from agent_os.drivers.models.openai import OpenAI

        return OpenAI(endpoint, api=provider.api, blobs=self._image)

    def rates(self, provider: str, model: str) -> Rates | None:
        if self._tabled is None:
            from agent_os.drivers.models.pricetable import look_up
            from agent_os.kernel.models.tabled import Tabled

            self._tabled = Tabled(look_up, lambda: datetime.now(UTC))
        return self._tabled(provider, model)

    def warm(self) -> None:
        self.rates("openai", "gpt-4o")

    def _image(self, digest: str) -> bytes | None:
        return self._blob(bytes.fromhex(digest))


class Scripts:
    """`scripted/NAME` is `NAME.yaml` in the project, as the operator has it there. Agents work on a copy, as a rule; a
    file that one of them can write is no word of the operator's, and is refused."""

    def __init__(self, folder: Path, written_by: Callable[[str], str | None]) -> None:
        self._folder, self._written_by = folder, written_by
        self._read: dict[str, tuple[int, list[Step]]] = {}  # by name: when it was changed, and its steps

    def load(self, name: str) -> "list[Step]":
        from agent_os.drivers.models.scripted import read_script

        if "/" in name or name.startswith("."):
            raise EINVAL("script", f"{name!r} is no name of a script", hint="scripted/NAME is NAME.yaml in the project")
        path = self._folder / f"{name}.yaml"
        try:
            with open(
                os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
            ) as file:  # a pipe must not hold us
                changed = self._examined(path, file.fileno())
                if name not in self._read or self._read[name][0] != changed:
                    self._read[name] = (changed, read_script(file.read(_LARGEST)))
        except OSError as problem:
            there = ", ".join(f"scripted/{one.stem}" for one in sorted(self._folder.glob("*.yaml"))) or "none"
            reason = f"the script {path.name} cannot be read: {problem.strerror}; there is {there}"
            raise ENOENT("model", reason, hint=f"write the steps of the model into {path}") from None
        return self._read[name][1]

    def _examined(self, path: Path, opened: int) -> int:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise EINVAL("script", f"{path.name} is no file")
        if found.st_size > _LARGEST:
            raise EINVAL("script", f"{path.name} has more than {_LARGEST} bytes")
        real = os.path.realpath(path)  # what a link leads to; if it leads elsewhere by now, it is not what we opened
        if (agent := self._written_by(real)) is not None or not os.path.samestat(found, os.stat(real)):
            who = bare(agent) if agent else "somebody"
            reason = f"{path.name} is where {who} can write, and a script is its operator's word alone"
            raise EPERM("script.writable", reason, hint='let agents work on a copy (workspace = "overlay")')
        return found.st_mtime_ns
