"""What a whole manifest must fulfil, beyond each value for itself; and what is odd about it without being wrong.

In: a complete `AgentManifest`. Out: `Found`, each with the key it is about. Knows no file and no other manifest:
whether a name that is required exists is a question for the fleet.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from agent_os.manifest.agency import MAY_SPAWN, Agency, base
from agent_os.manifest.problems import shown
from agent_os.manifest.roles import AgentRole
from agent_os.manifest.sections import Path
from agent_os.manifest.settling import followed, runtime, told_by

if TYPE_CHECKING:
    from agent_os.manifest.model import AgentManifest

_NEEDED = {"python": ("entry", '"module:function"'), "exec": ("argv", "a command"), "model": ("model", "a model")}
_SECRET = ("_KEY", "_TOKEN", "_SECRET", "PASSWORD", "_CREDENTIALS")
_LONGEST_CRON = 256  # characters: the library takes seconds to read what fills a manifest
_LISTS = {
    "can_spawn": "[agency]",
    "can_ipc": "ipc_scope, topics and services",
    "can_exec_tools": "tools",
    "can_network": "network",
}


class Found(NamedTuple):
    key: Path
    message: str
    hint: str = ""


def flaws(manifest: "AgentManifest") -> Iterator[Found]:
    yield from _roles(manifest)
    yield from _agency(manifest)
    yield from _program(manifest)
    yield from _mounts(manifest)
    yield from _schedule(manifest)
    yield from _dependencies(manifest)
    backoff = manifest.health.backoff
    if backoff.cap_ms < backoff.base_ms:
        yield Found(("health", "backoff", "cap_ms"), f"the longest wait is below the first, {backoff.base_ms}")


def _roles(manifest: "AgentManifest") -> Iterator[Found]:
    if manifest.role == AgentRole.ROOT:
        yield Found(("role",), "root is made by boot, once, and by no manifest", 'role = "supervisor"')
    if manifest.base_role == AgentRole.ROOT or manifest.base_role.is_custom:
        yield Found(("base_role",), f"{manifest.base_role} is no base for another role", 'base_role = "worker"')


def _agency(manifest: "AgentManifest") -> Iterator[Found]:
    role, agency = base(manifest.role, manifest.base_role), manifest.agency
    may = MAY_SPAWN.get(role.word, ())
    for number, wanted in enumerate(agency.allowed_roles):
        if wanted not in may and not (wanted.is_custom and may):
            allowed = ", ".join(map(str, may)) or "nothing"
            yield Found(("agency", "allowed_roles", number), f"a {role} may not spawn a {wanted}", f"it may {allowed}")
    if agency.max_children != 0 and not may:
        yield Found(("agency", "max_children"), f"a {role} has no children", 'role = "service"')
    if manifest.supervision.children and agency == Agency.none():
        hint = 'agency = "role"' if may else 'role = "supervisor"'
        yield Found(("supervision", "children"), "lists children, and has no agency to have any", hint)


def _program(manifest: "AgentManifest") -> Iterator[Found]:
    program = manifest.program
    told = [name for name, given in told_by(program).items() if given]
    if not program.runtime and len(told) > 1:
        keys = " and ".join(_NEEDED[name][0] for name in told)
        yield Found(
            ("program",), f"has {keys}, and runtime does not say which of them counts", f'runtime = "{told[0]}"'
        )
    elif program.runtime and program.runtime not in told:
        key, what = _NEEDED[program.runtime]
        yield Found(("program", "runtime"), f"{program.runtime} needs {what}", f"{key} = …")


def _mounts(manifest: "AgentManifest") -> Iterator[Found]:
    seen: set[str] = set()
    for number, mount in enumerate(manifest.mounts):
        if not mount.source:
            yield Found(("mounts", number, "source"), f"what is to be seen at {mount.path}?", 'source = "/srv/data"')
        if mount.path in seen:
            yield Found(("mounts", number, "path"), f"there is a mount at {mount.path} already")
        seen.add(mount.path)


def _schedule(manifest: "AgentManifest") -> Iterator[Found]:
    life = manifest.lifecycle
    if life.activation == "on_schedule" and not life.schedule:
        yield Found(("lifecycle", "activation"), "on_schedule needs a schedule", 'schedule = "0 6 * * *"')
    elif life.schedule and life.activation != "on_schedule":
        yield Found(("lifecycle", "schedule"), "says nothing without its activation", 'activation = "on_schedule"')
    if life.schedule and (why := _bad_cron(life.schedule)):
        yield Found(
            ("lifecycle", "schedule"), f"{shown(life.schedule)} is no cron expression: {why}", 'as in "0 6 * * *"'
        )
    if not _is_zone(life.timezone):
        yield Found(("lifecycle", "timezone"), f"there is no zone {life.timezone!r}", 'as in "UTC" or "Europe/Berlin"')


def _bad_cron(text: str) -> str:
    if len(text) > _LONGEST_CRON:
        return "it is too long"
    from cronsim import CronSim, CronSimError  # here: few manifests have a schedule

    try:
        CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        return str(error)
    return ""


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo

    if name == "UTC":
        return True
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; a path outside; a directory
        return False
    return True


def _dependencies(manifest: "AgentManifest") -> Iterator[Found]:
    itself = {manifest.name, manifest.id}
    for key in ("requires", "after", "wants", "binds_to"):
        for number, other in enumerate(getattr(manifest.dependencies, key)):
            if other in itself:
                yield Found(("dependencies", key, number), f"{other} cannot wait for itself")


def oddities(manifest: "AgentManifest") -> Iterator[Found]:
    """Warnings: it runs, and perhaps not as meant."""
    can = manifest.capabilities
    for switch, on in followed(manifest).items():
        if getattr(can, switch) and not on:
            yield Found(("capabilities", switch), f"is true and grants nothing: {_LISTS[switch]} is empty")
        if on and not getattr(can, switch):
            yield Found(("capabilities", switch), f"is false, so {_LISTS[switch]} grants nothing")
    kind = runtime(manifest.program)
    if not kind and manifest.role != AgentRole.SUPERVISOR:
        yield Found(("program",), "there is no program, so it cannot be started", 'argv = ["…"], entry or model')
    if manifest.budget.usd is None and (kind == "model" or can.models):
        yield Found(("budget", "usd"), "nothing here limits what models cost", "usd = 1.0")
    if "max_concurrent_requests" in manifest.resources.given and not manifest.interface.reentrant:
        hint = "interface.reentrant = true"
        yield Found(("resources", "max_concurrent_requests"), "counts only for reentrant agents", hint)
    if "base_role" in manifest.given and not manifest.role.is_custom:
        yield Found(("base_role",), "says something of custom roles only")
    for name in manifest.program.env:
        if name.upper().endswith(_SECRET):
            yield Found(("program", "env", name), "looks like a secret, which everybody can read here", "secrets = […]")
    for number, tool in enumerate(manifest.tools):
        if tool in manifest.tools_deny:
            yield Found(("tools", number), f"{tool} is denied as well, and that holds")
    yield from _of_models(manifest, kind)
    yield from _unheard(manifest)


def _of_models(manifest: "AgentManifest", kind: str) -> Iterator[Found]:
    program = manifest.program
    if kind == "model" and not program.goal and not manifest.skills:
        hint = 'goal = "…", or skills = […]'
        yield Found(("program", "goal"), "there is none, and no skills by which a submitted one would find it", hint)
    if kind and kind != "model":
        usual = type(program)()
        for key in ("goal", "instructions", "output_schema", "loop"):
            if getattr(program, key) != getattr(usual, key):
                yield Found(("program", key), f"says something of model agents only; this one is {kind}")
    if kind == "exec" and (program.inputs or program.model):
        key = "inputs" if program.inputs else "model"
        yield Found(("program", key), "says nothing to a command", "argv, env and capabilities.models do")


def _unheard(manifest: "AgentManifest") -> Iterator[Found]:
    interface = manifest.interface
    if interface.request_topic and interface.request_topic not in manifest.topics_subscribe:
        yield Found(("interface", "request_topic"), "is not among topics_subscribe, so it hears no request")
    if interface.response_mode.word == "topic" and interface.response_mode.topic_name not in manifest.topics_publish:
        yield Found(("interface", "response_mode"), "is not among topics_publish, so nobody hears an answer")
