"""What an agent's manifest promises to whoever asks it: by which door, in what time, the shape of request and answer.

In: a spec. Out: an `Interface`, whose schemas were read from the files beside the manifest when somebody first asked;
EINVAL where such a file says nothing that a value could be held to. ETYPE names the field that does not fit.
"""

import os
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from agent_os.abi.errors import EINVAL, ETYPE
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import bare
from agent_os.kernel.tools.schema import LARGEST, Schema

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.supervisor.specs import Spec

_KEPT = "interface"


class Interface(Struct, frozen=True):
    agent: str
    protocol: str  # ipc, rest or mcp
    seconds: float
    request: Schema | None
    response: Schema | None

    def take(self, payload: Raw) -> None:
        """ETYPE: nobody is asked with that."""
        if self.request:
            _hold(self.request, payload, f"the request to {bare(self.agent)}", "interface.request", tell=True)

    def give(self, payload: Raw) -> None:
        """ETYPE: it answered, and with something else than it promised. Nothing of the answer is in the error."""
        if self.response:
            _hold(self.response, payload, f"the answer of {bare(self.agent)}", "interface.response", tell=False)


def interface_of(kernel: "Kernel", agent_id: str) -> Interface | None:
    """None: it has no manifest, or is not declared."""
    spec = kernel.fleet.spec(agent_id)
    return of_spec(spec) if spec else None


def of_spec(spec: "Spec") -> Interface:
    found: Interface | None = vars(spec).get(_KEPT)
    if found is None:
        own: dict[str, Any] = spec.tree["interface"]
        request, response = (_read(spec, f"{word}_schema") for word in ("request", "response"))
        found = Interface(spec.id, str(own["protocol"]), float(own["timeout_secs"]), request, response)
        vars(spec)[_KEPT] = found
    return found


def require_protocol(kernel: "Kernel", agent_id: str, protocol: str) -> Interface:
    """EINVAL: its manifest does not offer this door."""
    found = interface_of(kernel, agent_id)
    if found is None or found.protocol != protocol:
        has = f"its interface.protocol is {found.protocol!r}" if found else "it has no manifest"
        reason = f"{bare(agent_id)} is not asked this way: {has}"
        raise EINVAL("interface.protocol", reason, hint=f'interface.protocol = "{protocol}" in its manifest')
    return found


def _read(spec: "Spec", key: str) -> Schema | None:
    name = spec.tree["interface"].get(key)
    if not name:
        return None
    path = os.path.normpath(os.path.join(spec.base, name))
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # no pipe
            return Schema(msgspec.json.decode(file.read(LARGEST + 1)))
    except (OSError, msgspec.DecodeError, EINVAL) as problem:
        reason = f"interface.{key}: {path}: {getattr(problem, 'strerror', None) or problem}"
        raise EINVAL("manifest", reason, hint="a file with a JSON Schema, beside the manifest") from None


def _hold(schema: Schema, payload: Raw, what: str, code: str, *, tell: bool) -> None:
    try:
        schema.require(decode_any(payload), what, ran=False, tell=tell)
    except ETYPE as misfit:
        detail: dict[str, Any] = {**misfit.detail, "field": misfit.detail.get("pointer")}
        raise ETYPE(code, misfit.reason, hint=misfit.hint, **detail) from None
