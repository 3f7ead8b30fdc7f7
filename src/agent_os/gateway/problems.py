"""How an error leaves the gateway: RFC 9457, with the kernel's own code, reason and hint.

In: an `AgentOSError`, from the kernel or of our own making. Out: a response. What the framework finds wrong (a field, a
route, a method) is told the same way. A failure of ours gives a trace id, and never a stack.
"""

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from agent_os.abi import errors
from agent_os.abi.errors import EINVAL, EIO, ENOENT, ENOSYS, ETYPE, AgentOSError
from agent_os.client.values import jsonable
from agent_os.gateway.pool import UNKNOWN

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("agent_os.gateway")


class Problem(BaseModel):
    """What went wrong, why, and what to do next."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="`urn:agent-os:error:CODE`")
    title: str
    status: int
    detail: str
    instance: str
    code: str = Field(description="The error's name, as in the syscall reference")
    detail_code: str = Field(description="A stable finer word")
    severity: str
    reason: str
    rule: Any = None
    decision: Any = None
    hint: str | None = None
    retryable: bool = False
    retry_after: float | None = Field(default=None, description="Seconds")
    trace: Any = None


TITLES = {
    400: "The request cannot be understood",
    401: "Who are you?",
    402: "The budget does not allow it",
    403: "This is refused",
    404: "There is no such thing",
    405: "This cannot be done here",
    408: "The request did not come",
    409: "Something else came first",
    412: "It has changed meanwhile",
    413: "This is too large",
    415: "This is no JSON",
    421: "This server has another name",
    422: "The request does not fit",
    428: "Say which version you mean",
    429: "Too many requests",
    431: "The headers are too large",
    500: "Something failed",
    503: "This is not available now",
    504: "It took too long",
    507: "There is no space left",
}
# Every route can give each of these; the document says so once, in the same words.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": title, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for status, title in TITLES.items()
}


class Json(Response):
    """Strict JSON: what is no number is null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def status_of(error: AgentOSError) -> int:
    if error.name == "EPERM" and error.code.partition(".")[0] in UNKNOWN:
        return 401
    return errors.outcome(error)[1]


def shape(error: AgentOSError, path: str, status: int) -> dict[str, Any]:
    facts = jsonable(error.detail)
    after = None if error.retry_after_ms is None else error.retry_after_ms / 1000
    known = {
        "type": f"urn:agent-os:error:{error.name}",
        "title": TITLES.get(status, "Something failed"),
        "status": status,
        "detail": error.reason,
        "instance": path,
        "code": error.name,
        "detail_code": error.code,
        "severity": error.severity.name.lower(),
        "reason": error.reason,
        **{fact: facts.pop(fact, None) for fact in ("rule", "decision")},
        "hint": error.hint or None,
        "retryable": error.retryable,
        "retry_after": after,
        "trace": facts.pop("trace", None),
    }
    return {**{name: fact for name, fact in facts.items() if name not in known}, **known}


def response(error: AgentOSError, path: str, status: int = 0, headers: Mapping[str, str] | None = None) -> Json:
    status = status or status_of(error)
    more = dict(headers or {})
    if status == 401:
        more["WWW-Authenticate"] = "Bearer"
    if status == 429:
        more["Retry-After"] = str(max(1, -(-(error.retry_after_ms or 1000) // 1000)))
    return Json(shape(error, path, status), status, more, MEDIA_TYPE)


def internal(path: str, bug: Exception) -> Json:
    return response(failure(path, bug), path)


def failure(path: str, bug: BaseException) -> EIO:
    """A mistake of ours: whoever asked gets a word by which the log has the rest."""
    trace = secrets.token_hex(8)
    log.error("trace %s, at %s", trace, path, exc_info=bug)
    hint = f"the gateway's log has more under trace {trace}"
    return EIO("internal", "the gateway failed at this", hint=hint, trace=trace)


def install(app: FastAPI) -> None:
    app.add_exception_handler(AgentOSError, _ours)
    app.add_exception_handler(RequestValidationError, _unfit)
    app.add_exception_handler(HTTPException, _framework)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, AgentOSError)
    return response(error, request.url.path)


async def _unfit(request: Request, error: Exception) -> Response:
    """A field that is missing, unknown or of another kind: which one, and what it should be."""
    assert isinstance(error, RequestValidationError)
    found = [{"field": _field(one["loc"]), "reason": _reason(one)} for one in error.errors()][:20]
    if any(one["type"] == "json_invalid" for one in error.errors()):
        return response(EINVAL("json", "the body is no JSON", hint="send one JSON object"), request.url.path)
    first = found[0]
    if ("missing", ("header", "if-match")) in [(one["type"], one["loc"]) for one in error.errors()]:
        reason = "If-Match is missing: which version is this to replace?"
        missing = EINVAL("if.match", reason, hint=f"GET {request.url.path}: its ETag", field="if-match")
        return response(missing, request.url.path, 428)
    reason = f"{first['field']}: {first['reason']}"
    hint = f"put {first['field']} right; /openapi.json says what this route takes"
    return response(ETYPE("request.field", reason, hint=hint, field=first["field"], errors=found), request.url.path)


def _field(place: tuple[int | str, ...]) -> str:
    where, *rest = place or ("request",)
    names = ".".join(str(one) for one in rest)
    return {"body": names or "the body", "query": f"?{names}=", "path": f"{{{names}}}"}.get(str(where), names) or "?"


def _reason(one: Mapping[str, Any]) -> str:
    if one["type"] == "extra_forbidden":
        return "there is no such field"
    if one["type"] == "missing":
        return "it is missing"
    text = str(one["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


async def _framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        allowed = methods_of(request.app, path) or [(error.headers or {}).get("Allow", "GET")]
        problem = wrong_method(request.method, path, allowed)
        return response(problem, path, 405, {"Allow": ", ".join(allowed)})
    if error.status_code == 404:
        problem = ENOENT("route.unknown", f"there is nothing at {path}", hint="/openapi.json lists what there is")
        return response(problem, path)
    problem = EINVAL("request", str(error.detail), hint="/openapi.json says what this route takes")
    return response(problem, path, error.status_code, error.headers)


def methods_of(app: FastAPI, path: str) -> list[str]:
    """All that the route at this path takes, as the document says: of several the one with the fewest gaps."""
    found: dict[int, list[str]] = {}
    for template, methods in app.openapi()["paths"].items():
        pattern = re.sub(r"\\{path\\}", ".+", re.escape(template))
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", pattern), path):
            found[template.count("{")] = sorted(method.upper() for method in methods)
    return found[min(found)] if found else []


def wrong_method(method: str, path: str, allowed: Sequence[str]) -> ENOSYS:
    reason = f"{method} is not among the methods of {path}: {', '.join(allowed)}"
    return ENOSYS("method.unknown", reason, hint=f"use {' or '.join(allowed)}")
