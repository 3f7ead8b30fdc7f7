"""The text of a signed head: a C2SP signed note over a checkpoint, which other people's tools read as well.

    agent-os/<log id>           which log
    1042                        how many entries
    <root of the tree, base64>
    boot 3                      lines of our own, as the format allows
    wall 1763251200000000000
    policy <digest, hex, or ->
    key <SHA-256 of the public key, hex>

    — agent-os/<log id> <key hash and Ed25519 signature, base64>

Pure text: nothing is signed or checked here. Signing is the kernel's, checking the verifier's.
"""

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import NamedTuple

from msgspec import Struct

from agent_os.abi.entries import Head

_ED25519 = b"\x01"


class Signature(NamedTuple):
    name: str
    key_hash: bytes
    signature: bytes


class Note(Struct, frozen=True):
    head: Head
    text: bytes  # what is signed
    signatures: tuple[Signature, ...]


def origin(log_id: bytes) -> str:
    return f"agent-os/{log_id.hex()}"


def key_id(public: bytes) -> bytes:
    return sha256(public).digest()


def key_hash(name: str, public: bytes) -> bytes:
    return sha256(name.encode() + b"\n" + _ED25519 + public).digest()[:4]


def verifier_key(log_id: bytes, public: bytes) -> str:
    """A public key as the note format writes it: what an auditor keeps."""
    name = origin(log_id)
    return f"{name}+{key_hash(name, public).hex()}+{b64encode(_ED25519 + public).decode()}"


def parse_verifier_key(line: str) -> tuple[bytes, bytes]:
    """The log's id and the public key. ValueError if it is not one."""
    name, found, data = line.strip().split("+", 2)
    raw = b64decode(data, validate=True)
    if not name.startswith("agent-os/") or raw[:1] != _ED25519 or len(raw) != 33:
        raise ValueError("not an Ed25519 key of an Agent OS journal")
    if key_hash(name, raw[1:]).hex() != found:
        raise ValueError("the key does not fit its own hash")
    return bytes.fromhex(name.removeprefix("agent-os/")), raw[1:]


def head_text(head: Head) -> bytes:
    lines = [
        origin(head.log_id),
        str(head.size),
        b64encode(head.root).decode(),
        f"boot {head.boot}",
        f"wall {head.wall_ns}",
        f"policy {head.policy_digest.hex() or '-'}",
        f"key {head.key_id.hex()}",
    ]
    return ("\n".join(lines) + "\n").encode()


def signed_note(head: Head, public: bytes, signature: bytes) -> bytes:
    name = origin(head.log_id)
    line = f"— {name} {b64encode(key_hash(name, public) + signature).decode()}\n"
    return head_text(head) + b"\n" + line.encode()


def parse_note(note: bytes) -> Note:
    """ValueError if it is not exactly a head as `signed_note` writes it, with one or more signatures."""
    text, blank, rest = note.partition(b"\n\n")
    lines = text.decode().split("\n")
    if not blank or len(lines) != 7:
        raise ValueError("not a signed head")
    words = dict(line.split(" ", 1) for line in lines[3:])
    head = Head(
        log_id=bytes.fromhex(lines[0].removeprefix("agent-os/")),
        boot=int(words["boot"]),
        size=int(lines[1]),
        root=b64decode(lines[2], validate=True),
        wall_ns=int(words["wall"]),
        policy_digest=b"" if words["policy"] == "-" else bytes.fromhex(words["policy"]),
        key_id=bytes.fromhex(words["key"]),
    )
    if head_text(head) != text + b"\n":
        raise ValueError("a head in other words than ours")
    return Note(head, text + b"\n", tuple(_signature(line) for line in rest.decode().splitlines()))


def split_notes(notes: bytes) -> list[bytes]:
    """The notes of an anchor file, one after the other. A last one that was cut off is left out."""
    found: list[bytes] = []
    lines: list[bytes] = []
    for line in notes.splitlines(keepends=True):
        lines.append(line)
        if line.startswith("— ".encode()) and line.endswith(b"\n"):
            found.append(b"".join(lines))
            lines = []
    return found


def key_statement(log_id: bytes, seq: int, old: bytes, new: bytes) -> bytes:
    """What old and new key sign when one follows the other; `old` is empty for the first."""
    return b"agent-os journal key\n" + log_id + seq.to_bytes(8) + len(old).to_bytes(1) + old + new


def _signature(line: str) -> Signature:
    dash, name, data = line.split(" ")
    raw = b64decode(data, validate=True)
    if dash != "—" or len(raw) != 68 or b64encode(raw).decode() != data:  # one spelling only
        raise ValueError("not a signature line")
    return Signature(name, raw[:4], raw[4:])
