"""Every key with its meaning and default, and what one manifest's keys give: for `agentctl manifest explain`.

In: the model alone, or a manifest as well. Out: rows of plain text. Says what is asked for; what holds in the end is
decided by the layers above, which only a running kernel knows.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from agent_os.manifest.granting import Wanted, wanted
from agent_os.manifest.model import AgentManifest
from agent_os.manifest.problems import Flaw, nearest
from agent_os.manifest.sections import Rows, Section, dotted, keys_of
from agent_os.manifest.writing import agency, plain

Names = tuple[str, ...]


class KeyRow(NamedTuple):
    key: str
    takes: str  # the values it accepts
    default: Any  # None: it must be given, or is absent
    about: str
    value: Any = None  # in the manifest that is explained


_AGENCY = KeyRow("agency", "role|none, or a table", "none", "whether it may have children, as its role usually may")


class Explained(NamedTuple):
    keys: list[KeyRow]  # those that differ from the default
    grants: list[Wanted]


def reference(prefix: str = "") -> list[KeyRow]:
    """All keys, or those at and below one. Flaw: there is no such key."""
    rows = [row for row in _rows(AgentManifest, ()) if not prefix or f"{row.key}.".startswith(f"{prefix}.")]
    if not rows:
        keys = [row.key for row in _rows(AgentManifest, ())]
        tables = {key.rpartition(".")[0] for key in keys} - {""}
        near = nearest(prefix, [*tables, *keys]) or _by_last_word(prefix, keys)
        raise Flaw(f"there is no key `{prefix}`", near)
    return rows


def explained(manifest: AgentManifest) -> Explained:
    """What it says, beyond what is so anyway, and what it asks for."""
    tree = plain(manifest)
    tree["agency"] = agency(manifest)
    values = dict(_leaves(tree, ()))
    rows = [row._replace(value=values.get(row.key)) for row in (_AGENCY, *reference()) if row.key in values]
    return Explained([row for row in rows if row.value != row.default], wanted(manifest))


def _by_last_word(word: str, keys: list[str]) -> str:
    last = {key.rpartition(".")[2]: key for key in keys}
    near = nearest(word.rpartition(".")[2], last)
    return f"did you mean `{last[near.split('`')[1]]}`?" if near else ""


def _rows(table: type[Section], at: Names) -> Iterator[KeyRow]:
    for key in keys_of(table).values():
        path = (*at, key.name)
        if path == ("capabilities", "resource_limits"):
            continue  # the same as [resources] and [budget]
        if isinstance(key.kind, Rows):
            yield from _rows(key.kind.table, path)
        elif key.kind:
            default = key.kind.write(key.default()) if key.default else None
            yield KeyRow(dotted(path), key.kind.says, default, key.kind.about)
        elif key.table:
            yield from _rows(key.table, path)
        if key.name == "ipc_scope":
            yield KeyRow(dotted((*at, "ipc_peers")), "list of ids", [], "with the scope peers")


def _leaves(tree: dict[str, Any], at: Names) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = (*at, key)
        if isinstance(value, dict) and key not in ("env", "labels"):
            yield from _leaves(value, path)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield dotted(path), value
