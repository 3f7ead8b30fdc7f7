"""The OpenAPI document, as the framework makes it, with our own shape for errors in place of its."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from agent_os.gateway.problems import Problem


def document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=(
                "What `agentctl` does, over HTTP. Rows are those of `agentctl … -o json`; errors are RFC 9457 with "
                "the kernel's code, reason and hint."
            ),
            routes=app.routes,
        )
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for what in (one for methods in made["paths"].values() for one in methods.values()):
            for parameter in what.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
        app.openapi_schema = made
    return app.openapi_schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """What is not sent is absent: an address or a header has no null."""
    kinds = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(kinds) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **kinds[0]}
