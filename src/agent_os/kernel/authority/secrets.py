"""The safe: secret values, encrypted on disk, their versions and their bindings.

In: values and bindings from the operator. Out: a value for one use that a binding covers, names and ages for lists, and
`needles`, by which redaction knows what nobody may see. There is no way to ask for a value by its name alone.

On disk is one file, replaced whole: the safe's key, wrapped by `keys`; of each secret its versions, AES-256-GCM under
that key with name and version as associated data; and the bindings, sealed likewise, so that nobody redirects a value
by editing a line. A new version serves from the moment that the file is there; the one before stays in redaction for a
day, for answers that are still on their way. So does a secret that was removed, but only in memory: on disk it is gone.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from cryptography.exceptions import InvalidTag
from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import EACCES, EEXIST, EINVAL, EIO, ENOENT, EPERM
from agent_os.kernel.authority import bindings, keys
from agent_os.kernel.authority.bindings import Binding, require_name
from agent_os.kernel.authority.redaction import Needles
from agent_os.lazy import lazy

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import aead
else:
    aead = lazy("cryptography.hazmat.primitives.ciphers.aead")

PLACE = "secrets/safe.json"
FORMAT = 1
REDACTED_S = 24 * 3600.0  # after it was replaced
SHORTEST, LONGEST = 8, 16 << 10  # bytes of a value; a shorter one could not be redacted without masking half of a text
_BINDINGS = b"agent-os bindings"


class Version(Struct):
    number: int
    nonce: bytes
    sealed: bytes
    made: float
    retired: float | None = None


class Kept(Struct):
    """What the file has."""

    format: int
    key: keys.Wrapped
    secrets: dict[str, list[Version]]  # the newest last
    nonce: bytes
    bindings: bytes  # sealed


class Shown(Struct, frozen=True):
    """A secret, as it may be shown."""

    name: str
    version: int
    made: float
    bindings: tuple[Binding, ...]


class Given(Struct, frozen=True):
    """A value for one use. Its repr tells nothing: exceptions and logs print reprs."""

    name: str
    version: int
    binding: Binding
    value: bytes

    def __repr__(self) -> str:
        return f"<secret {self.name} version {self.version}>"

    @property
    def filled(self) -> bytes:
        return self.binding.fill(self.value)


class _State(Struct, frozen=True):
    """All of an open safe; replaced whole, so that a reader on another thread sees one or the other."""

    wrapped: keys.Wrapped
    key: bytes
    secrets: Mapping[str, tuple[Version, ...]]
    bindings: tuple[Binding, ...]
    removed: tuple[tuple[str, Version], ...] = ()  # not on disk any more, and still in redaction


class Safe:
    def __init__(self, home: Path, source: keys.Source, now: Callable[[], float] = time.time) -> None:
        self._path, self._source, self._now = home / PLACE, source, now
        self._state: _State | None = None
        self._lock = threading.Lock()  # of whoever changes it
        self._needles: tuple[_State | None, float, Needles] | None = None
        self.uses: dict[str, int] = {}  # counted by whoever records them, ahead of what is on disk

    @classmethod
    def of_home(cls, home: Path, env: Mapping[str, str] | None = None) -> "Safe":
        return cls(home, keys.source(home, os.environ if env is None else env))

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def lock(self) -> None:
        """Forget the key and all it opened. Not a passphrase from a pipe, which cannot be read again."""
        if self._source.path.is_file():
            self._state = self._needles = None

    # Look.

    def listed(self) -> list[Shown]:
        state = self._opened()
        return [
            Shown(name, versions[-1].number, versions[-1].made, self._bound(state, name))
            for name, versions in sorted(state.secrets.items())
        ]

    def bindings_of(self, name: str) -> tuple[Binding, ...]:
        state = self._opened()
        self._require(state, name)
        return self._bound(state, name)

    def binding(self, name: str, agent: str, host: str, port: int) -> Binding:
        """What allows this agent to have this secret sent there; EPERM says what is missing."""
        found = self.bindings_of(name)
        target = host if port == bindings.HTTPS else f"{host}:{port}"
        if not found:
            raise EPERM(
                "secret.unbound", f"{name} is bound to no host", hint=f"agentctl secrets bind {name} --host {target}"
            )
        here = [one for one in found if one.covers_host(host, port)]
        if not here:
            bound = ", ".join(str(each) for one in found for each in one.hosts)
            reason = f"{name} is bound to {bound}, not to {target}"
            raise EPERM("secret.host", reason, hint=f"agentctl secrets bind {name} --host {target}")
        for one in here:
            if one.covers_agent(agent):
                return one
        reason = f"{name} is not bound for {agent}, only for {', '.join(word for one in here for word in one.agents)}"
        raise EPERM("secret.agent", reason, hint=f"agentctl secrets bind {name} --host {target} --agent {agent}")

    def use(self, name: str, agent: str, host: str, port: int, method: str) -> Given:
        """The newest value, for one request that a binding covers."""
        binding = self.binding(name, agent, host, port)
        if method not in binding.methods:
            reason = f"{name} is bound for {', '.join(binding.methods)}, not for {method}"
            raise EPERM("secret.method", reason, hint=f"agentctl secrets bind {name} --method {method} …")
        state = self._opened()
        newest = state.secrets[name][-1]
        return Given(name, newest.number, binding, self._unsealed(state, name, newest))

    def needles(self) -> Needles:
        """Every value that may still be on its way somewhere."""
        if self._state is None and not self.exists:
            return Needles(())
        state, now = self._opened(), self._now()
        if self._needles is None or self._needles[0] is not state or now >= self._needles[1]:
            kept = [(name, one) for name, versions in state.secrets.items() for one in versions]
            found = [(name, one) for name, one in (*kept, *state.removed) if _live((one,), now)]
            until = min((one.retired + REDACTED_S for _, one in found if one.retired is not None), default=float("inf"))
            self._needles = (state, until, Needles(self._unsealed(state, name, one) for name, one in found))
        return self._needles[2]

    # Change. Each returns when it is on disk.

    def add(self, name: str, value: bytes) -> Shown:
        require_name(name)
        self._require_value(name, value, ())
        with self._lock:
            state = self._opened(make=True)
            if name in state.secrets:
                raise EEXIST("secret.exists", f"there is a secret {name}", hint=f"agentctl secrets rotate {name}")
            self._keep(state, {**state.secrets, name: (self._sealed(state, name, 1, value),)}, state.bindings)
        return self._shown(name)

    def rotate(self, name: str, value: bytes) -> Shown:
        with self._lock:
            state = self._opened()
            versions = self._require(state, name)
            self._require_value(name, value, self._bound(state, name))
            if self._unsealed(state, name, versions[-1]) == value:
                raise EEXIST("secret.same", f"this is the value that {name} has", hint="rotate takes the new one")
            now = self._now()
            new = self._sealed(state, name, versions[-1].number + 1, value)
            self._keep(state, {**state.secrets, name: (*_retired(versions, now), new)}, state.bindings)
        return self._shown(name)

    def bind(self, binding: Binding) -> Shown:
        """Add a binding, or replace the one of the same place and hosts."""
        with self._lock:
            state = self._opened()
            newest = self._require(state, binding.name)[-1]
            binding.require_fit(self._unsealed(state, binding.name, newest))
            others = [one for one in state.bindings if (one.name, one.hosts) != (binding.name, binding.hosts)]
            self._require_one_each(binding, others)
            self._keep(state, state.secrets, (*others, binding))
        return self._shown(binding.name)

    def unbind(self, name: str) -> Shown:
        with self._lock:
            state = self._opened()
            self._require(state, name)
            self._keep(state, state.secrets, tuple(one for one in state.bindings if one.name != name))
        return self._shown(name)

    def remove(self, name: str) -> None:
        with self._lock:
            state = self._opened()
            versions, now = self._require(state, name), self._now()
            removed = [(each, one) for each, one in state.removed if _live((one,), now)]
            removed += [(name, one) for one in _retired(versions, now)]
            state = replace(state, removed=tuple(removed))
            self.uses.pop(name, None)
            left = {each: versions for each, versions in state.secrets.items() if each != name}
            self._keep(state, left, tuple(one for one in state.bindings if one.name != name))

    # Rules.

    def _require(self, state: _State, name: str) -> tuple[Version, ...]:
        if name not in state.secrets:
            near = get_close_matches(name, state.secrets, n=1)
            hint = f"did you mean {near[0]}?" if near else f"agentctl secrets ls lists them, secrets set {name} adds it"
            raise ENOENT("secret.unknown", f"there is no secret {name}", hint=hint)
        return state.secrets[name]

    def _require_value(self, name: str, value: bytes, bound: tuple[Binding, ...]) -> None:
        if len(value) < SHORTEST:
            reason = f"the value of {name} has less than {SHORTEST} bytes, and could not be redacted safely"
            raise EINVAL("secret.short", reason, hint="use a longer secret")
        if len(value) > LONGEST:
            raise EINVAL("secret.long", f"the value of {name} has more than {LONGEST} bytes")
        if len(set(value)) == 1:
            raise EINVAL("secret.value", f"the value of {name} is one character again and again")
        for binding in bound:
            binding.require_fit(value)

    def _require_one_each(self, binding: Binding, others: list[Binding]) -> None:
        """A host gets a secret in one place: which one counted would else depend on the order."""
        for other in others:
            shared = [host for host in binding.hosts if host in other.hosts]
            if other.name == binding.name and shared:
                reason = f"{binding.name} is bound to {shared[0]} already, together with other hosts"
                raise EEXIST("secret.bound", reason, hint=f"agentctl secrets bind {binding.name} --none, then anew")

    @staticmethod
    def _bound(state: _State, name: str) -> tuple[Binding, ...]:
        return tuple(one for one in state.bindings if one.name == name)

    def _shown(self, name: str) -> Shown:
        return next(one for one in self.listed() if one.name == name)

    # The file.

    @property
    def is_open(self) -> bool:
        """Its values are at hand: `open` would find nothing to do."""
        return self._state is not None

    def open(self) -> None:
        """Open it now, if there is one, so that a wrong key is told before anything depends on it."""
        if self.exists:
            self._opened()

    def _opened(self, *, make: bool = False) -> _State:
        if self._state is None:
            if self.exists:
                self._state = self._load()
            elif make:
                key = os.urandom(keys.KEY_BYTES)
                return _State(self._source.wrap(key), key, {}, ())
            else:
                return _State(_NOTHING, b"", {}, ())
        return self._state

    def _load(self) -> _State:
        try:
            data = self._path.read_bytes()
            kept = msgspec.json.decode(data, type=Kept)
        except OSError as problem:
            raise EACCES("secrets.unreadable", f"{self._path} cannot be read: {problem.strerror}") from None
        except msgspec.MsgspecError as problem:
            raise self._damaged(str(problem)) from None
        if kept.format != FORMAT:
            raise EIO("secrets.format", f"{self._path} has format {kept.format}; this release reads {FORMAT}")
        key = self._source.unwrap(kept.key, self._path)
        bound = self._open_bindings(key, kept)
        if not all(kept.secrets.values()):
            raise self._damaged("a secret without a version")
        state = _State(kept.key, key, {name: tuple(versions) for name, versions in kept.secrets.items()}, bound)
        for name, versions in state.secrets.items():
            for one in versions:
                self._unsealed(state, name, one)
        return state

    def _open_bindings(self, key: bytes, kept: Kept) -> tuple[Binding, ...]:
        try:
            words = aead.AESGCM(key).decrypt(kept.nonce, kept.bindings, _BINDINGS)
        except (InvalidTag, ValueError):
            raise self._damaged("its bindings were changed") from None
        told: list[dict[str, Any]] = msgspec.json.decode(words)
        return tuple(bindings.bind(**one) for one in told)

    def _keep(self, state: _State, secrets: Mapping[str, tuple[Version, ...]], bound: tuple[Binding, ...]) -> None:
        nonce = os.urandom(keys.NONCE_BYTES)
        words = msgspec.json.encode([one.words() for one in bound])
        sealed = aead.AESGCM(state.key).encrypt(nonce, words, _BINDINGS)
        kept = Kept(FORMAT, state.wrapped, {name: list(each) for name, each in secrets.items()}, nonce, sealed)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            keys.write_whole(self._path, msgspec.json.encode(kept))
        except OSError as problem:
            raise EIO("secrets.unwritable", f"{self._path} cannot be written: {problem.strerror}") from None
        self._state = replace(state, secrets=secrets, bindings=bound)  # from here on the new version serves

    def _sealed(self, state: _State, name: str, number: int, value: bytes) -> Version:
        nonce = os.urandom(keys.NONCE_BYTES)
        return Version(number, nonce, aead.AESGCM(state.key).encrypt(nonce, value, _about(name, number)), self._now())

    def _unsealed(self, state: _State, name: str, version: Version) -> bytes:
        try:
            return aead.AESGCM(state.key).decrypt(version.nonce, version.sealed, _about(name, version.number))
        except (InvalidTag, ValueError):
            raise self._damaged(f"version {version.number} of {name} was changed") from None

    def _damaged(self, how: str) -> EIO:
        hint = f"put a copy of it back, or move it away and set the secrets again: {self._path}"
        return EIO("secrets.damaged", f"{self._path} is damaged: {how}", hint=hint)


_NOTHING = keys.Wrapped("key file", b"", b"", b"")


def _about(name: str, number: int) -> bytes:
    return f"{name}\0{number}".encode()


def _retired(versions: tuple[Version, ...], now: float) -> tuple[Version, ...]:
    old = (msgspec.structs.replace(one, retired=now) if one.retired is None else one for one in versions)
    return _live(tuple(old), now)


def _live(versions: tuple[Version, ...], now: float) -> tuple[Version, ...]:
    """Without those that were replaced long ago."""
    return tuple(one for one in versions if one.retired is None or now < one.retired + REDACTED_S)
