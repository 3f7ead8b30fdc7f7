"""Looks for a canary in everything that a run leaves or shows, in every spelling, without any help of our own code.

In: a value, and places. Out: where it was found and how it was spelled. `memory_of` reads the processes of a guest from
the host's side, page by page.
"""

import os
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, quote_plus

from agent_os.kernel.members import members

Place = tuple[str, bytes]
_PIECE = 4 << 20


def spellings(value: bytes) -> dict[str, bytes]:
    """Every form that must not be seen. Of base64 what does not depend on the neighbours."""
    found = {"raw": value, "hex": value.hex().encode(), "HEX": value.hex().upper().encode()}
    found |= {"URL": quote(value, safe="").encode(), "form": quote_plus(value).encode()}
    found["UTF-16"] = value.decode().encode("utf-16-le")
    for shift in range(3):
        padded = bytes(shift) + value
        begin, end = (0, 2, 3)[shift], len(padded) * 8 // 6
        found[f"base64+{shift}"] = b64encode(padded)[begin:end]
        found[f"url-safe base64+{shift}"] = urlsafe_b64encode(padded)[begin:end]
    return found


def sought(value: bytes, places: Iterable[Place]) -> list[str]:
    """`place: spelling` of each find."""
    forms = spellings(value)
    return sorted({f"{name}: {form}" for name, data in places for form, text in forms.items() if text in data})


def files_below(*tops: Path) -> Iterator[Place]:
    for top in tops:
        for path in sorted(top.rglob("*")):
            with suppress(OSError):  # sockets, and what is gone again
                if path.is_symlink():
                    yield f"link {path}", os.fsencode(os.readlink(path))
                elif path.is_file():
                    yield f"file {path}", path.read_bytes()
            yield f"name {path}", os.fsencode(path)


def processes_of(init: int) -> list[int]:
    return [one.pid for one in members(init)]


def words_of(pid: int) -> Iterator[Place]:
    """What anybody may ask /proc about a process."""
    for name in ("environ", "cmdline", "comm"):
        yield f"{name} of {pid}", Path("/proc", str(pid), name).read_bytes()


def memory_of(pid: int) -> Iterator[Place]:
    """All readable pages, in pieces that overlap. PermissionError where the host lets nobody look."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_, name = [*line.split(maxsplit=5), ""][:6]
            begin, end = (int(part, 16) for part in span.split("-"))
            if "r" not in rights or name.strip() in ("[vvar]", "[vsyscall]", "[vvar_vclock]"):
                continue
            for at in range(begin, end, _PIECE):
                with suppress(OSError):  # a page that is mapped and cannot be read, as of a shortened file
                    memory.seek(max(begin, at - 1024))
                    yield f"memory of {pid}", memory.read(min(_PIECE + 1024, end - max(begin, at - 1024)))
