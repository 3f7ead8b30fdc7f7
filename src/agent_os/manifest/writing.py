"""A manifest as text: TOML as people write it, JSON as seed 4 has it. Reading either gives an equal value.

TOML leaves out what would be the same without it, unless asked for everything; JSON has all. Absent options are left
out of both, except the number of children in JSON, where `null` is the word for no limit.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from agent_os.manifest.agency import Agency
from agent_os.manifest.capabilities import SWITCHES, AgentCapabilities
from agent_os.manifest.model import AgentManifest
from agent_os.manifest.sections import Rows, Section, keys_of
from agent_os.manifest.settling import followed

Tree = dict[str, Any]


def section_json(section: Section) -> str:
    return json.dumps(seed(section), indent=2, ensure_ascii=False)


def seed(section: Section) -> Tree:
    """In seed 4's shape."""
    tree: Tree = {}
    for name, key in keys_of(type(section)).items():
        value = getattr(section, name)
        if isinstance(key.kind, Rows):
            tree[name] = [seed(row) for row in value]
        elif key.kind is None:
            tree[name] = seed(value)
        elif name == "max_children":
            tree[name] = value
        elif (written := key.kind.seed(value)) is not None:
            tree[name] = written
    return tree


def to_toml(manifest: AgentManifest, *, full: bool = False) -> str:
    tree = plain(manifest)
    del tree["capabilities"]["resource_limits"]  # the same numbers stand in [resources] and [budget]
    if not full:
        usual = AgentManifest(
            name=manifest.name, role=manifest.role, base_role=manifest.base_role, program=manifest.program
        )
        tree = _different(tree, plain(usual))
        # A switch counts against what it would follow, not against its default.
        can = {**tree.get("capabilities", {}), **_switches(manifest)}
        tree |= {"name": manifest.name, "role": str(manifest.role), "program": _program(manifest), "capabilities": can}
        tree = {key: value for key, value in tree.items() if value != {}}
    if full or agency(manifest) != "none":
        tree["agency"] = agency(manifest)
    return _emit(_ordered(tree))


def plain(section: Section) -> Tree:
    """All keys, in TOML's words."""
    tree: Tree = {}
    for name, key in keys_of(type(section)).items():
        value = getattr(section, name)
        if isinstance(key.kind, Rows):
            tree[name] = [plain(row) for row in value]
        elif key.kind is None:
            tree[name] = plain(value)
        elif (written := key.kind.write(value)) is not None:
            tree[name] = written
    if isinstance(section, AgentCapabilities):
        tree["ipc_peers"] = section.ipc_peers
    return tree


def agency(manifest: AgentManifest) -> str | Tree:
    """The word where there is one for it."""
    lasting = Agency(
        max_children=manifest.agency.max_children,
        allowed_roles=manifest.agency.allowed_roles,
        capability_ceiling=manifest.agency.capability_ceiling,
    )
    if lasting == Agency.none():
        return "none"
    if lasting == Agency.of_role(manifest.role, manifest.base_role):
        return "role"
    tree = plain(manifest.agency)
    if not manifest.agency.children:
        del tree["children"]
    return tree


def _program(manifest: AgentManifest) -> Tree:
    return _different(plain(manifest.program), plain(type(manifest.program)()))


def _switches(manifest: AgentManifest) -> Tree:
    can, usual = manifest.capabilities, followed(manifest)
    return {switch: getattr(can, switch) for switch in SWITCHES if getattr(can, switch) != usual[switch]}


def _different(tree: Tree, usual: Mapping[str, Any]) -> Tree:
    found: Tree = {}
    for key, value in tree.items():
        if key in SWITCHES:
            continue
        if isinstance(value, dict) and isinstance(usual.get(key), dict) and key not in ("env", "labels"):
            if part := _different(cast(Tree, value), usual[key]):
                found[key] = part
        elif key not in usual or usual[key] != value:
            found[key] = value
    return found


def _ordered(tree: Tree) -> Tree:
    """As the model has them, plain keys before tables, which TOML wants."""
    known = [key for key in keys_of(AgentManifest) if key in tree]
    tables = [key for key in known if isinstance(tree[key], dict) or _is_rows(tree[key])]
    return {key: tree[key] for key in [*(key for key in known if key not in tables), *tables]}


def _emit(tree: Tree) -> str:
    lines: list[str] = []
    _table(tree, (), lines)
    return "\n".join(lines).strip() + "\n"


def _table(tree: Tree, path: tuple[str, ...], lines: list[str]) -> None:
    tables = {key: cast(Tree, value) for key, value in tree.items() if isinstance(value, dict)}
    rows = {key: value for key, value in tree.items() if _is_rows(value)}
    keys = {key: value for key, value in tree.items() if key not in tables and key not in rows}
    if path and (keys or not tree):
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in keys.items()]
    for key, value in rows.items():
        for row in value:
            lines += ["", f"[[{'.'.join(map(_key, (*path, key)))}]]"]
            lines += [f"{_key(name)} = {_value(one)}" for name, one in row.items()]
    for key, value in tables.items():
        _table(value, (*path, key), lines)


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(cast(list[object], value)) and isinstance(value[0], dict)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "_").replace("_", "a").isalnum()
    return key if bare else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, cast(list[object], value)))}]"
    return repr(value)
