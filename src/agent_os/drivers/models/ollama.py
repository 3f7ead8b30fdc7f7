"""Ollama: the `openai` driver with a local address, its own list of models, and no price.

Ollama cuts a prompt that is longer than the context it has loaded without a word; whoever compares `usage.input` with
an estimate notices. How much it has loaded is the server's setting, so the context is not known here.

A model whose name ends in `cloud` is not on this machine: Ollama hands what it is told on to its maker's servers.
"""

import re
import time
from collections.abc import Callable

from msgspec.structs import replace

from agent_os.drivers.models import ModelInfo
from agent_os.drivers.models.openai import OpenAI
from agent_os.drivers.models.speaking import Blobs
from agent_os.drivers.models.wire import Endpoint, Wire

BASE = "http://127.0.0.1:11434"
_CLOUD = re.compile(r"[:-]cloud$", re.IGNORECASE)


class Ollama(OpenAI):
    name = "ollama"
    listing = "/api/tags"

    def __init__(
        self,
        endpoint: Endpoint | None = None,
        *,
        blobs: Blobs = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        root = endpoint or Endpoint(BASE)
        root = replace(root, base=root.base.rstrip("/").removesuffix("/v1"))
        super().__init__(replace(root, base=f"{root.base}/v1"), api="chat", blobs=blobs, now=now)
        self._root = Wire(root)

    def info(self, model: str) -> ModelInfo:
        here = not _CLOUD.search(model)
        found = super().info(model)
        return replace(found, context=None, free=here, local=found.local and here)

    async def models(self, key: str | None) -> list[str]:
        return await self.listed(self._root, key)

    async def close(self) -> None:
        await self._root.close()
        await super().close()
