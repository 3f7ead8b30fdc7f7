"""What the journal keeps of a call: an array of four, `[digest, request, value, error]`.

`request` is what was asked, or, where that holds something large, what stands for it; then `digest` is the SHA-256 of
the body as it was sent. A replayed call is compared by that digest, and answered with `value` or `error`.
"""

from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct

from agent_os.abi import frames
from agent_os.abi.errors import EIO, AgentOSError


class _Body(Struct, array_like=True):
    digest: bytes | None
    request: Raw
    value: Raw = frames.NIL
    error: list[Any] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode
decode_any = msgspec.msgpack.Decoder().decode


def digest(raw: bytes) -> bytes:
    return sha256(raw).digest()


def hashed(data: bytes) -> dict[str, Any]:
    """What stands for something that is not told."""
    return {"size": len(data), "sha256": digest(data).hex()}


def body(raw: bytes, value: Raw, error: AgentOSError | None, instead: object = None) -> bytes:
    """`instead` stands for the request where the journal should not keep the request itself."""
    if instead is None and error is None:
        # Most calls. Their parts are msgpack already, so the array is its head and they.
        return b"\x94\xc0" + raw + bytes(value) + b"\xc0"
    facts = list(frames.facts(error)) if error else None
    if instead is None:
        return _encode(_Body(None, Raw(raw), value, facts))
    return _encode(_Body(digest(raw), frames.body(instead), value, facts))


def settled(recorded: "Recorded", value: Raw, error: AgentOSError | None) -> bytes:
    """The body of an outcome that was found out later."""
    facts = list(frames.facts(error)) if error else None
    return _encode(_Body(recorded.digest, recorded.request, value, facts))


class Recorded(Struct, frozen=True):
    """A call read back from the journal."""

    digest: bytes
    request: Raw
    value: Raw
    error: AgentOSError | None

    @classmethod
    def of(cls, data: bytes | None) -> "Recorded":
        if data is None:
            raise EIO("journal.body", "the body of this entry was erased")
        found = _decode(data)
        error = frames.to_error(found.error) if found.error else None
        return cls(found.digest or digest(bytes(found.request)), found.request, found.value, error)
