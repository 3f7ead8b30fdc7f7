"""Rules and secrets. A change of rules names the version it replaces; a secret's value goes in and never comes out."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path
from pydantic import Field

from agent_os.abi.errors import ECONFLICT, EINVAL, ENOENT, ETYPE
from agent_os.abi.syscalls import ApplyRules, Explain, Rules, Secrets
from agent_os.gateway import problems
from agent_os.gateway.asking import Asker, Caller
from agent_os.gateway.listing import Pages, paged
from agent_os.gateway.models import Page, Row, Wanted, answers, any_of
from agent_os.gateway.naming import Agent, AgentFilter, Words
from agent_os.gateway.problems import Json

router = APIRouter(tags=["policy"])
Layer = Literal["organisation", "operator", "project"]
SecretName = Annotated[str, Path(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?$")]
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
BoundAgent = Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\*?)$")]


class Policy(Row):
    id: str
    digest: str
    rules: list[dict[str, Any]]


class NewRules(Wanted):
    text: Annotated[str, Field(max_length=1 << 19, description="The whole file, in TOML.")]


class Case(Wanted):
    agent: Agent
    capability: Annotated[str, Field(min_length=1, max_length=4096)]
    expect: Literal["allow", "ask", "refuse"]


class Cases(Wanted):
    cases: Annotated[list[Case], Field(min_length=1, max_length=100)]


class Tested(Row):
    passed: int
    failed: int
    cases: list[dict[str, Any]]


class SecretWish(Wanted):
    """A value, bindings, or both. Without hosts the bindings stay as they are."""

    model_config = any_of("value", "hosts")

    value: Annotated[str, Field(min_length=8, max_length=65_536)] = Field(default_factory=str)
    hosts: Annotated[Words, Field(min_length=1)] = Field(default_factory=list)
    header: Annotated[str, Field(max_length=64)] = ""
    field: Annotated[str, Field(max_length=64)] = ""
    template: Annotated[str, Field(max_length=200, description="With `{}` where the value goes.")] = ""
    methods: Annotated[list[Method], Field(max_length=7)] = []
    agents: Annotated[list[BoundAgent], Field(max_length=100)] = []


@router.get("/policies", responses=answers(Page), summary="The policy in force: its layers.")
async def policies(caller: Caller, pages: Pages) -> Json:
    found = await _in_force(caller)
    layers = [{"id": name, **_layer(found, name)} for name in ("operator", "organisation", "project")]
    more = {name: found[name] for name in ("digest", "mode", "version", "alarm", "labels")}
    return Json({**paged(layers, pages, lambda row: row["id"]), **more})


@router.get("/policies/{layer}", responses=answers(Policy), summary="The rules of one layer.")
async def policy(layer: Layer, caller: Caller, agent: AgentFilter = None) -> Json:
    found = await _in_force(caller, agent)
    answer = {"id": layer, "digest": found["digest"], "version": found["version"], **_layer(found, layer)}
    return Json(answer, headers={"ETag": _etag(found["digest"])})


@router.put("/policies/{layer}", responses=answers(Row), summary="Put new rules in force.")
async def apply(
    layer: Annotated[Literal["operator"], Path(description="The only one that an operator may change.")],
    body: NewRules,
    caller: Caller,
    if_match: Annotated[str, Header(pattern='^"?[0-9a-f]{8,128}"?$', description="`ETag` of the rules as read.")],
) -> Json:
    """What cannot be understood changes nothing; nor, with 428, what does not say which rules it replaces."""
    path = f"/api/v1/policies/{layer}"
    try:
        done = await caller.give(ApplyRules(digest=if_match.strip('"')), body.text.encode())
    except ECONFLICT as error:
        return problems.response(error, path, 412)
    return Json(done, headers={"ETag": _etag(done["digest"])})


@router.post("/policies/test", responses=answers(Tested), summary="Decide cases under the rules in force.")
async def test(body: Cases, caller: Caller) -> Json:
    """Nothing happens: each is asked as `agentctl can` asks it."""
    told = [await caller.ask(Explain(agent=one.agent, capability=one.capability)) for one in body.cases]
    done = [
        {
            **case.model_dump(),
            "verdict": one["verdict"],
            "because": one["because"],
            "passed": one["verdict"] == case.expect,
        }
        for case, one in zip(body.cases, told, strict=True)
    ]
    passed = sum(one["passed"] for one in done)
    return Json({"passed": passed, "failed": len(done) - passed, "cases": done})


async def _in_force(caller: Asker, agent: str | None = None) -> dict[str, Any]:
    chunks, found = await caller.collect(Rules(agent=agent))
    parts: dict[str, list[Any]] = {"rules": [], "labels": []}
    for what, entries in chunks:
        parts[what] += entries
    return {**found, **parts}


def _layer(found: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        "files": [file for file in found["files"] if file.get("layer", name) == name],
        "rules": [rule for rule in found["rules"] if rule["layer"] == name],
    }


def _etag(digest: str) -> str:
    return f'"{digest}"'


@router.get("/secrets", responses=answers(Page), summary="Names, bindings and uses; never a value.")
async def secrets(caller: Caller, pages: Pages) -> Json:
    return Json(paged((await caller.ask(Secrets(do="list")))["secrets"], pages, lambda row: row["name"]))


@router.put("/secrets/{name}", responses=answers(Row), summary="Keep a secret, give it a new value, or bind it.")
async def keep(name: SecretName, body: SecretWish, caller: Caller) -> Json:
    if not body.value and not body.hosts:
        raise ETYPE("request.field", "value: a value, or hosts to bind it to", hint="send one of them", field="value")
    known = {row["name"] for row in (await caller.ask(Secrets(do="list")))["secrets"]}
    answer: dict[str, Any] = {}
    if body.value:
        data = _bytes(body.value)
        answer = await caller.give(Secrets(do="rotate" if name in known else "set", name=name), data)
    elif name not in known:
        raise ENOENT("secret.unknown", f"there is no secret {name}", hint="send its value")
    if body.hosts:
        bound = Secrets(do="bind", name=name, hosts=body.hosts, header=body.header, field=body.field)
        bound.template, bound.methods, bound.agents = body.template, [*body.methods], body.agents
        answer = await caller.ask(bound)
    return Json(answer)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EINVAL("text.surrogate", "value: it has half a character in it", field="value") from None


@router.delete("/secrets/{name}", responses=answers(Row), summary="Forget it.")
async def remove(name: SecretName, caller: Caller) -> Json:
    return Json(await caller.ask(Secrets(do="remove", name=name)) or {})
