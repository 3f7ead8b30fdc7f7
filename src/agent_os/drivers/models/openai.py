"""OpenAI and every server that is compatible with it: llama.cpp, vLLM, LM Studio, your own.

In: an end point and which of the two dialects it speaks. Out: a provider. OpenAI itself is spoken to in Responses,
other hosts in Chat Completions, unless the operator says otherwise; a request with stop sequences or a seed always goes
as Chat Completions, which alone has them.
"""

import re
import time
from collections.abc import Callable
from typing import Literal

from agent_os.abi.models import ModelRequest
from agent_os.drivers.models import Feature, ModelInfo
from agent_os.drivers.models.chat import Chat, credentials
from agent_os.drivers.models.remote import Remote
from agent_os.drivers.models.responses import Responses
from agent_os.drivers.models.speaking import Blobs, Dialect
from agent_os.drivers.models.wire import Endpoint

BASE = "https://api.openai.com/v1"
Api = Literal["auto", "chat", "responses"]

_OFFICIAL = "api.openai.com"
_FEATURES: frozenset[Feature] = frozenset(("tools", "images", "structured", "seed", "stop"))
_WITHOUT_SCHEMAS = re.compile(r"^gpt-3\.5|^gpt-4(-\d{4}.*|-turbo.*|-32k.*)?$")
_CONTEXTS = (
    (re.compile(r"^gpt-5"), 400_000),
    (re.compile(r"^gpt-4\.1"), 1_047_576),
    (re.compile(r"^(o1|o3|o4)"), 200_000),
    (re.compile(r"^(gpt-4o|gpt-4-turbo|chatgpt-4o)"), 128_000),
    (re.compile(r"^gpt-4-32k"), 32_768),
    (re.compile(r"^gpt-4"), 8_192),
    (re.compile(r"^gpt-3\.5"), 16_385),
)


class OpenAI(Remote):
    name = "openai"
    paths = frozenset(("/v1/chat/completions", "/v1/responses", "/v1/embeddings"))
    below = "/v1"

    def __init__(
        self,
        endpoint: Endpoint | None = None,
        *,
        api: Api = "auto",
        blobs: Blobs = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(endpoint or Endpoint(BASE), blobs=blobs, now=now)
        self._official = self.endpoint.host == _OFFICIAL
        self.api: Literal["chat", "responses"] = ("responses" if self._official else "chat") if api == "auto" else api

    def info(self, model: str) -> ModelInfo:
        features = _FEATURES - {"structured"} if _WITHOUT_SCHEMAS.search(model) else _FEATURES
        context = next((size for named, size in _CONTEXTS if named.search(model)), None)
        return ModelInfo(model, context if self._official else None, features, local=self.endpoint.is_local)

    def dialect(self, request: ModelRequest) -> Dialect:
        native = "structured" in self.info(request.model).features
        if self.api == "responses" and not request.stop and request.seed is None:
            return Responses(native)
        # OpenAI's newer models refuse the older name, and compatible servers do not all know the newer one.
        return Chat(native, "max_completion_tokens" if self._official else "max_tokens")

    def credentials(self, key: str | None) -> dict[str, str]:
        return credentials(key)
