"""Which providers and models there are: those that everybody knows, and what the operator has added.

In: an operator's words. Out: what a model's name stands for, kept in the store. A key is named here and never held: it
is a secret of the safe, bound to the provider's host. A name that an agent says is `provider/model`, or an alias that
the operator gave; no agent ever says an address.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.drivers.store import Put, Store
from agent_os.kernel.models.prices import own_rates

Dialect = Literal["anthropic", "openai", "ollama", "scripted"]
Api = Literal["auto", "chat", "responses"]

PROVIDERS, ALIASES, WEIGHTS = "model providers", "model aliases", "model weights"  # buckets
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+/-]{0,199}")
_LEAST_WEIGHT = 0.01
_BASES: dict[str, str] = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "ollama": "http://127.0.0.1:11434",
}


class Provider(Struct, frozen=True, kw_only=True):
    """One provider, as the operator says. The order in `keys` is that of a pool: each has a queue of its own."""

    name: str
    dialect: Dialect
    base: str = ""
    keys: tuple[str, ...] = ()  # names of secrets
    api: Api = "auto"
    local: bool | None = None  # None: by its address
    slots: int | None = None  # calls in flight; None: as usual
    limits: dict[str, tuple[float, float]] = {}  # by bucket: capacity, and how much comes back in a second
    prices: dict[str, dict[str, float]] = {}  # by model: dollars for a million tokens
    own: bool = True  # the operator added it

    @property
    def scheme(self) -> str:
        return urlsplit(self.base).scheme

    @property
    def host(self) -> str:
        return (urlsplit(self.base).hostname or "").lower()

    @property
    def port(self) -> int:
        return urlsplit(self.base).port or (443 if self.scheme == "https" else 80)

    @property
    def target(self) -> str:
        """As a binding writes it."""
        return self.host if self.port == 443 else f"{self.host}:{self.port}"

    def words(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


class Named(Struct, frozen=True):
    """What a name stands for."""

    provider: Provider
    model: str  # as the provider knows it

    @property
    def full(self) -> str:
        return f"{self.provider.name}/{self.model}"


def _known() -> dict[str, Provider]:
    remote = {
        name: Provider(name=name, dialect=name, base=_BASES[name], keys=(name,), own=False)
        for name in ("anthropic", "openai")
    }
    return {
        **remote,
        "ollama": Provider(name="ollama", dialect="ollama", base=_BASES["ollama"], own=False),
        "scripted": Provider(name="scripted", dialect="scripted", local=True, own=False),
    }


class Catalogue:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._providers = _known()
        self._aliases: dict[str, str] = {}
        self.weights: dict[str, float] = {}  # of tenants; 1 for those not named
        for name, kept in store.items(PROVIDERS):
            self._providers[name] = msgspec.msgpack.decode(kept, type=Provider)
        for name, kept in store.items(ALIASES):
            self._aliases[name] = kept.decode()
        for name, kept in store.items(WEIGHTS):
            self.weights[name] = msgspec.msgpack.decode(kept, type=float)

    def __iter__(self) -> Iterator[Provider]:
        return iter(sorted(self._providers.values(), key=lambda one: one.name))

    @property
    def aliases(self) -> Mapping[str, str]:
        return self._aliases

    def provider(self, name: str) -> Provider:
        if (found := self._providers.get(name)) is None:
            there = ", ".join(sorted(self._providers))
            raise ENOENT("model.provider", f"there is no provider {name!r}; there is {there}", hint=_ADD)
        return found

    def named(self, text: str) -> Named:
        """ENOENT `model` for what is neither `provider/name` nor an alias."""
        name = self._aliases.get(text, text)
        provider, slash, model = name.partition("/")
        if not slash or not _MODEL.fullmatch(model):
            known = ", ".join(sorted(self._aliases)) or "none yet"
            reason = f"{text!r} is no model: a model is provider/name, or an alias of the operator ({known})"
            raise ENOENT("model", reason, hint="agentctl model ls")
        return Named(self.provider(provider), model)

    # Changes: each is checked and gives what the store must hold; `apply` follows when that is on record.

    def added(self, provider: Provider) -> Provider:
        """As it will be kept. EINVAL says what is wrong."""
        if not _NAME.fullmatch(provider.name) or provider.name == "scripted":
            raise EINVAL("model.provider", f"{provider.name!r} cannot be the name of a provider", hint=_ADD)
        base = (provider.base or _BASES.get(provider.dialect, "")).rstrip("/")
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise EINVAL("model.base", f"{base!r} is no base URL", hint="https://api.example.com/v1")
        for model, given in provider.prices.items():
            own_rates(f"{provider.name}/{model}", given)
        made = msgspec.structs.replace(provider, base=base, own=True)
        if made.keys and made.scheme == "http" and made.host not in ("127.0.0.1", "localhost", "::1"):
            raise EINVAL("model.plain", f"a key does not travel to {made.host} unencrypted", hint="https://…")
        return made

    def removed(self, name: str) -> Provider | None:
        """What stands for the name then: what everybody knows, or nothing."""
        if not self.provider(name).own:
            raise EINVAL("model.known", f"{name} is always there; without a key it calls nobody")
        return _known().get(name)

    def keep(self, provider: Provider) -> list[Put]:
        self._providers[provider.name] = provider
        return [Put(PROVIDERS, provider.name, msgspec.msgpack.encode(provider))]

    def forget(self, name: str) -> list[Put]:
        known = _known().get(name)
        if known is None:
            self._providers.pop(name, None)
        else:
            self._providers[name] = known
        return [Put(PROVIDERS, name, None)]

    def alias(self, name: str, model: str | None) -> list[Put]:
        """`model` None: it stands for nothing any more."""
        if "/" in name or not _NAME.fullmatch(name):
            raise EINVAL("model.alias", f"{name!r} cannot be an alias", hint="agentctl model alias fast openai/NAME")
        if model is None:
            if self._aliases.pop(name, None) is None:
                raise ENOENT("model.alias", f"there is no alias {name!r}")
            return [Put(ALIASES, name, None)]
        if model in self._aliases:
            raise EINVAL("model.alias", f"{model!r} is an alias itself; name what it stands for")
        self._aliases[name] = self.named(model).full
        return [Put(ALIASES, name, self._aliases[name].encode())]

    def weigh(self, tenant: str, weight: float | None) -> list[Put]:
        """How much a tenant gets beside others; None: as much as anybody."""
        if not _NAME.fullmatch(tenant):
            raise EINVAL("model.share", f"{tenant!r} is no namespace", hint="agentctl model share NAMESPACE 2")
        if weight is None:
            self.weights.pop(tenant, None)
            return [Put(WEIGHTS, tenant, None)]
        if not _LEAST_WEIGHT <= weight <= 1 / _LEAST_WEIGHT:
            raise EINVAL("model.share", f"a share is between {_LEAST_WEIGHT} and {1 / _LEAST_WEIGHT:.0f}, not {weight}")
        self.weights[tenant] = weight
        return [Put(WEIGHTS, tenant, msgspec.msgpack.encode(weight))]


_ADD = "agentctl model add NAME --dialect openai --base https://HOST/v1 --key SECRET"
