"""A manifest as an order that can be carried out: what an operator would have written behind `agentctl run`.

In: a `Spec`, and of the kernel's environment what planning looks at. Out: the map that `orders.Written` reads. What a
manifest may say and this kernel cannot do yet is refused here, in words, before anything is stored.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from agent_os.abi import frames
from agent_os.abi.errors import EACCES, EINVAL, ENOSYS
from agent_os.abi.models import MODEL_VARIABLE
from agent_os.abi.text import native, portable
from agent_os.drivers.store import Put, Store
from agent_os.kernel.authority.capability import ACTIONS, Capability
from agent_os.kernel.authority.patterns import compiled
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.supervisor import admission, watched
from agent_os.kernel.supervisor.specs import Spec
from agent_os.kernel.table import Agent, bare
from agent_os.kernel.tools.schema import LARGEST, Schema
from agent_os.manifest import granting
from agent_os.manifest.terms import terms

if TYPE_CHECKING:
    from agent_os.kernel import guest
    from agent_os.manifest.model import AgentManifest

_LOOKED_AT = re.compile(r"PATH|HOME|LANG|LANGUAGE|TZ|TERM|LC_[A-Z]+|VIRTUAL_ENV|CONDA_PREFIX|PYENV_VERSION")
_WORK = "/work"
_LOOP = Path(__file__).resolve().parents[2] / "userland/model_agent.py"
_ENDOWED = "endowed"  # bucket: what an agent was given, and by which manifest
_MICRO = 1_000_000
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
# Granted with the hosts and the doors they are for; to a supervisor, which may have none, to be handed on.
_APART = ("capabilities.network", "capabilities.secrets")
# The limit of a process → the key of [resources], and how many of its units one of the manifest's is.
_LIMITS = {
    "memory_mb": ("max_memory_mb", 1, 16),
    "pids": ("max_tasks", 1, 4),
    "nofile": ("max_open_files", 1, 16),
    "cpu_pct": ("cpu_quota", 100, 1),
    "cpu_s": ("max_cpu_secs", 1, 1),
    "disk_mb": ("max_disk_mb", 1, 1),
}


def order(spec: Spec, env: Mapping[str, str], parent: Agent | None = None) -> dict[str, Any]:
    """`parent`: its supervisor, if that is an agent; then what it asks for is part of what that one may hand on, or
    refused."""
    from agent_os.kernel import orders  # needs Linux

    manifest = spec.manifest
    mounts = _mounts(spec, env)
    words, caps = _granted(spec, parent, mounts)
    own = _OWN[spec.runtime](spec)
    place = _place(spec)
    return {
        **own,
        **place,
        "environment": _seen(env),
        "mounts": [*place["mounts"], *map(orders.named, mounts)],
        "net": list(manifest.capabilities.network) if manifest.capabilities.can_network else [],
        "secrets": list(manifest.capabilities.secrets),
        "caps": caps,
        "grant": [token_hex(8), _grant(parent)],
        **conditions(manifest),
        **words,
    }


def conditions(manifest: "AgentManifest") -> dict[str, Any]:
    """What it says of its process, wherever that is. Walls are never lower than the operator wants them."""
    from agent_os.kernel import orders  # needs Linux

    return {
        "budget": allowance(manifest),
        "env": [f"{name}={value}" for name, value in _variables(manifest).items()],
        "limit": list(_limits(manifest)),
        "min_isolation": max(orders.minimum_level(manifest.sandbox.min_level), orders.minimum_level()),
    }


def _variables(manifest: "AgentManifest") -> dict[str, str]:
    """Its environment. A python program, and whatever it spawns, finds its model there."""
    program = manifest.program
    named = program.model if program.entry else ""
    return {**({MODEL_VARIABLE: named} if named else {}), **program.env}


def require_possible(spec: Spec) -> None:
    """EINVAL or ENOSYS: what the manifest wants that there is not yet. Its key stands in the message."""
    manifest, life = spec.manifest, spec.manifest.lifecycle
    if spec.runtime == "model":
        _schema(spec)
    if not spec.runtime and manifest.role.word != "supervisor":
        raise EINVAL("manifest", "program: there is no program, so it cannot be started", hint="argv = […], or entry")
    if life.activation == "on_schedule":
        from agent_os.kernel.supervisor.schedule import Schedule  # time zones are data of the host

        Schedule(life.schedule, life.timezone)
    if life.hooks.on_start or life.hooks.on_stop:
        raise ENOSYS("hooks", "lifecycle.hooks: hooks are not supported yet", hint="leave them out")
    if manifest.budget.on_exhausted != "refuse":
        wish = manifest.budget.on_exhausted
        raise ENOSYS("budget", f"budget.on_exhausted: {wish} is not supported yet", hint='on_exhausted = "refuse"')
    for number, mount in enumerate(manifest.mounts):
        if mount.kind != "dir":
            raise ENOSYS("mounts", f"mounts.{number}.kind: {mount.kind} is not supported yet", hint='kind = "dir"')
    if spec.runtime == "python":
        file, _ = _entry(spec)
        if not os.path.isfile(file):
            raise EINVAL("manifest", f"program.entry: there is no file {file}", hint='entry = "FILE.py:NAME"')
    _inside(spec)
    _require_no_links(spec, os.environ)
    admission.require_nameable(manifest)
    watched.of(manifest)


def _python(spec: Spec) -> dict[str, Any]:
    file, function = _entry(spec)
    own: dict[str, Any] = {"argv": [], "file": portable(file), "function": function, "python": portable(sys.executable)}
    return {**own, "input": dict(inputs)} if (inputs := spec.manifest.program.inputs) else own


def _exec(spec: Spec) -> dict[str, Any]:
    return {"argv": list(map(portable, spec.manifest.program.argv))}


def _model(spec: Spec) -> dict[str, Any]:
    bound = {"terms": terms(spec.manifest, _schema(spec)), "inputs": dict(spec.manifest.program.inputs)}
    return {**loop(spec.manifest), "argv": [], "python": portable(sys.executable), "input": bound}


def loop(manifest: "AgentManifest") -> dict[str, Any]:
    """What runs a model: a program of ours, which has nothing that an author's has not."""
    return {"file": portable(str(_LOOP)), "function": "model_agent", "model": manifest.program.model}


def _schema(spec: Spec) -> dict[str, Any] | None:
    """Of its result. EINVAL: its file is not there, or says nothing that a result could be held to."""
    name = spec.manifest.program.output_schema
    if not name:
        return None
    path = os.path.normpath(os.path.join(spec.base, name))
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # no pipe
            written = msgspec.json.decode(file.read(LARGEST + 1))
        Schema(written)
    except (OSError, msgspec.DecodeError, EINVAL) as problem:
        reason = f"program.output_schema: {path}: {getattr(problem, 'strerror', None) or problem}"
        raise EINVAL("manifest", reason, hint="a file with a JSON Schema, beside the manifest") from None
    return written


def _entry(spec: Spec) -> tuple[str, str]:
    """`FILE.py:NAME`, or `package.module:NAME`."""
    module, _, function = spec.manifest.program.entry.partition(":")
    path = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
    return os.path.normpath(os.path.join(spec.base, path)), function


_OWN = {"": _exec, "python": _python, "exec": _exec, "model": _model}


def _place(spec: Spec) -> dict[str, Any]:
    """Where it works. In an empty workspace an author's program still sees the folder that it is in."""
    from agent_os.kernel import guest, orders  # needs Linux

    mode, base = spec.manifest.sandbox.workspace, portable(_unlinked(spec.base, "program", spec.base))
    if mode == "tmpfs":
        mounts = [orders.named(guest.Mount(Path(spec.base), spec.base, rw=False))] if spec.runtime == "python" else []
        return {"cwd": base, "workspace": "tmpfs", "mounts": mounts}
    return {"cwd": portable(_inside(spec)), "workspace": portable(f"{mode}:{spec.base}"), "mounts": []}


def _inside(spec: Spec) -> str:
    """Its working directory, as the host calls it."""
    wanted, mode = os.path.normpath(spec.manifest.program.working_dir), spec.manifest.sandbox.workspace
    if wanted == _WORK:
        return spec.base
    if mode == "tmpfs" or not wanted.startswith(f"{_WORK}/"):
        reason = f"program.working_dir: {wanted} is not in a workspace that is there at its start"
        raise EINVAL("manifest", reason, hint=f'working_dir = "{_WORK}", or workspace = "overlay"')
    return os.path.join(spec.base, wanted.removeprefix(f"{_WORK}/"))


def _mounts(spec: Spec, env: Mapping[str, str]) -> "list[guest.Mount]":
    _require_no_links(spec, env)
    written = (f"{'rw:' if one.rights == 'rw' else ''}{one.source}:{one.path}" for one in spec.manifest.mounts)
    return [_mount(text, spec.base, env) for text in written]


def _require_no_links(spec: Spec, env: Mapping[str, str]) -> None:
    """EINVAL: where a mount leads is not what its manifest says. Whoever reads that must see it, and an agent that may
    write there must not choose it."""
    from agent_os.kernel import guest  # needs Linux

    home = Path(env.get("HOME") or Path.home())
    for number, one in enumerate(spec.manifest.mounts):
        _unlinked(os.path.join(spec.base, guest.expand(one.source, home)), f"mounts.{number}.source", one.source)


def _unlinked(path: str, key: str, said: str) -> str:
    real = os.path.realpath(path)
    if real != os.path.normpath(path):
        raise EINVAL("manifest", f"{key}: {said} is a link, to {real}", hint=f'write "{real}"')
    return path


def _mount(text: str, base: str, env: Mapping[str, str]) -> "guest.Mount":
    from agent_os.kernel import guest  # needs Linux

    home = env.get("HOME")
    return guest.parse_mount(text, cwd=Path(base), home=Path(home) if home else None)


def _granted(spec: Spec, parent: Agent | None, mounts: "Sequence[guest.Mount]") -> tuple[dict[str, Any], list[str]]:
    """What the order says of its manifest, and the capabilities that it is started with."""
    manifest = spec.manifest
    shows = list(_shows(spec, deep=parent is None)) if spec.children else []
    if parent:
        who = admission.above(parent)
        admitted = admission.admit(who, manifest)
        _require_shown(who, spec, mounts, parent.order)
        return admitted.words(), [*(one.canonical for one in admitted.capabilities), *shows]
    asked = [one.capability for one in granting.wanted(manifest) if spec.children or one.key not in _APART]
    return admission.declared(manifest), [*asked, *shows]


def _shows(spec: Spec, *, deep: bool) -> Iterator[str]:
    """What a supervisor can show its children: the folder that they were declared in, where their programs are, and
    what it mounts itself, with a program or without."""
    yield _shown(spec.base, _rights(spec), deep=deep).canonical
    for one in spec.manifest.mounts:
        yield _shown(one.path, one.rights, deep=deep).canonical


def _require_shown(who: admission.Above, spec: Spec, mounts: "Sequence[guest.Mount]", above: Mapping[str, Any]) -> None:
    """What it sees of the host is its supervisor's to show: all of it, or it is not started. That goes for what is seen
    and for the name under which it is, which is all that a capability knows."""
    if spec.children or spec.runtime == "python" or spec.manifest.sandbox.workspace != "tmpfs":
        hint = "declare it in the folder of its supervisor"
        if spec.manifest.sandbox.workspace == "bind":
            hint = f'{hint}, which has workspace = "bind" itself'
        admission.require_shown(who, "program", _shown(spec.base, _rights(spec)), hint, ceiling=False)
    held = [_mount(native(text), native(above["cwd"]), {}) for text in above.get("mounts", ()) if mounts]
    for number, (one, made) in enumerate(zip(spec.manifest.mounts, mounts, strict=True)):
        hint = "the same [[mounts]] for its supervisor, and filesystem_access in its ceiling"
        admission.require_shown(who, f"mounts.{number}", _shown(one.path, one.rights), hint)
        if not any(_is_part(made, whole) for whole in held):
            raise _not_shown(who, f"mounts.{number}", one.source, hint)


def _rights(spec: Spec) -> str:
    """To its folder."""
    return "rw" if spec.manifest.sandbox.workspace == "bind" else "r"


def _is_part(one: "guest.Mount", whole: "guest.Mount") -> bool:
    """It is seen just where it would be in that."""
    inside = os.path.relpath(one.at, whole.at)
    return Path(one.at).is_relative_to(whole.at) and str(one.source) == os.path.normpath(whole.source / inside)


def _not_shown(who: admission.Above, key: str, what: str, hint: str) -> EACCES:
    reason = f"{key}: {what} is not what {bare(who.id)} sees there"
    return EACCES("ceiling", reason, hint=hint, key=key, step=admission.CEILING)


def _shown(path: str, rights: str = "r", *, deep: bool = False) -> Capability:
    actions = ACTIONS["file"] if rights == "rw" else frozenset({"read"})
    stars = frozenset(at for at, char in enumerate(path) if char == "*")
    target = compiled("file", f"{path.rstrip('/')}/**", literal=stars)
    return Capability("file", target, actions, {"depth": admission.MOST_GENERATIONS} if deep else None)


def allowance(manifest: "AgentManifest") -> dict[str, int]:
    """What it may spend in each window, by resource of the ledger."""
    own = manifest.budget
    limits = {
        "calls": own.tool_calls,
        "messages": own.messages,
        "model_calls": own.model_calls,
        "tokens": own.tokens,
        "cost": None if own.usd is None else round(own.usd * _MICRO),
    }
    return {resource: limit for resource, limit in limits.items() if limit is not None}


def _limits(manifest: "AgentManifest") -> Iterator[str]:
    """A wish: never less than a process needs, nor more than this machine has."""
    for name, (key, units, least) in _LIMITS.items():
        wish: float | None = getattr(manifest.resources, key)
        if wish is not None:
            most = 100 * (os.cpu_count() or 1) if name == "cpu_pct" else wish * units
            yield f"{name}={max(least, round(min(wish * units, most)))}"


def as_given(store: Store, spec: Spec, env: Mapping[str, str], parent: Agent | None = None) -> dict[str, Any] | None:
    """The order by which an agent was started before, if its manifest is still the same: a restart asks nobody again,
    and what was taken from it since stays so. A supervisor that is another one, or was given something else since, has
    something else to hand on. What it finds of the kernel is today's."""
    data = store.get(_ENDOWED, spec.id)
    if data is None or (kept := decode_any(data))["spec"] != _digest(spec):
        return None
    if spec.spawned:  # it has its parent's
        return kept["order"]
    if kept["order"]["grant"][1] != _grant(parent):
        return None
    now = {**kept["order"], "environment": _seen(env)}
    return {**now, "python": portable(sys.executable)} if "file" in now else now


def is_changed(store: Store, spec: Spec) -> bool:
    """Whether it was started before by another manifest than this one."""
    data = store.get(_ENDOWED, spec.id)
    return data is not None and decode_any(data)["spec"] != _digest(spec)


def _grant(agent: Agent | None) -> str:
    """Root's has no name: it is everything, and for ever."""
    return agent.order["grant"][0] if agent else ""


def endowed(spec: Spec, order: Mapping[str, Any]) -> Put:
    return Put(_ENDOWED, spec.id, frames.encode_body({"spec": _digest(spec), "order": order}))


def disowned(agent_id: str) -> Put:
    return Put(_ENDOWED, agent_id, None)


def _digest(spec: Spec) -> bytes:
    """Of what it says: a store gives its keys back in another order."""
    return sha256(_encode([spec.tree, spec.base])).digest()


def _seen(env: Mapping[str, str]) -> dict[str, str | bytes]:
    return {name: portable(value) for name, value in env.items() if _LOOKED_AT.fullmatch(name)}
