"""The backend of kernel views: text that is rendered when it is read, so there is no copy to change.

A callable of the kernel gives name → text; names may contain "/". Whoever asks for a change gets EROFS, whatever the
capability.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from agent_os.abi.errors import EINVAL, ENOTDIR
from agent_os.kernel.authority.labels import UNLABELLED, Label
from agent_os.kernel.vfs.backend import (
    Change,
    Facts,
    Listener,
    Page,
    Snapshot,
    Source,
    Usage,
    absent,
    is_directory,
    page,
    read_only,
)

Render = Callable[[], Mapping[str, str]]
Labelled = Callable[[str], Label | None]  # by the path within the view


class ViewBackend:
    name = "view"
    kind: Literal["mem", "file"] = "mem"
    rights = "r"

    def __init__(self, render: Render, labelled: Labelled = lambda path: None) -> None:
        self._render, self._labelled = render, labelled

    def label(self, path: str, version: int | None = None) -> Label | None:
        return self._labelled(path)

    def stat(self, path: str) -> Facts | None:
        texts = self._render()
        if path in texts:
            return _facts(texts[path])
        return Facts("directory") if not path or any(name.startswith(path + "/") for name in texts) else None

    def read(self, path: str, version: int | None) -> "Rendered":
        if version:
            raise EINVAL("vfs.versions", "a view is rendered at each read and keeps no versions")
        text = self._render().get(path)
        if text is None:
            raise is_directory(path) if self.stat(path) else absent(path)
        return Rendered(text)

    def list(self, path: str, after: str, limit: int) -> Page:
        texts = self._render()
        if path in texts:
            raise ENOTDIR("vfs.file", f"{path!r} is an entry, not a directory")
        stem = f"{path}/" if path else ""
        names: dict[str, Facts] = {}
        for name, text in texts.items():
            if name.startswith(stem):
                first, slash, _ = name[len(stem) :].partition("/")
                names[first] = Facts("directory") if slash else _facts(text)
        if path and not names:
            raise absent(path)
        return page(names, after, limit)

    def write(
        self,
        path: str,
        source: Source,
        *,
        create: bool = False,
        if_version: int | None = None,
        label: Label = UNLABELLED,
    ) -> Change:
        raise read_only("a view of the kernel")

    def append(self, path: str, source: Source, *, if_version: int | None = None, label: Label = UNLABELLED) -> Change:
        raise read_only("a view of the kernel")

    def remove(self, path: str, *, if_version: int | None = None, label: Label = UNLABELLED) -> Change:
        raise read_only("a view of the kernel")

    def watch(self, listener: Listener) -> Callable[[], None]:
        return lambda: None

    def snapshot(self, name: str) -> Snapshot:
        return Snapshot()

    def usage(self) -> Usage:
        texts = self._render()
        return Usage(sum(len(text.encode()) for text in texts.values()), len(texts), None, None)


class Rendered:
    def __init__(self, text: str) -> None:
        self._raw = text.encode()
        self.facts = Facts("file", len(self._raw), text=True)

    def read(self, offset: int, length: int) -> bytes:
        return self._raw[offset : offset + length]

    def close(self) -> None:
        """Nothing is held."""


def _facts(text: str) -> Facts:
    return Facts("file", len(text.encode()), text=True)
