"""The shapes that the OpenAPI document tells of. Requests are checked against theirs. Answers are the kernel's rows:
of those only what everybody may rely on is written down, and more may come."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent_os.gateway import problems

Responses = dict[int | str, dict[str, Any]]


class Wanted(BaseModel):
    """A request's body: strict, and a field that is not there is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


def one_of(*names: str) -> ConfigDict:
    """Just one of these fields."""
    return ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in names]})


def any_of(*names: str) -> ConfigDict:
    """At least one of these fields."""
    return ConfigDict(json_schema_extra={"anyOf": [{"required": [name]} for name in names]})


class Row(BaseModel):
    """Something of the kernel's; more fields may come."""

    model_config = ConfigDict(extra="allow")


class Page(Row):
    items: list[dict[str, Any]]
    next: str | None = Field(description="`?cursor=` of the next page; null: this is the last one")


def answers(
    model: type[BaseModel], status: int = 200, description: str = "So it is"
) -> dict[int | str, dict[str, Any]]:
    """What a route documents: this, and every problem there can be. Not validated on the way out: tests do that."""
    return {**problems.RESPONSES, status: {"model": model, "description": description}}


Role = Literal["operator", "auditor", "viewer"]


class Entered(Row):
    session: str
    name: str
    role: str
    boot: str


class Who(Row):
    name: str
    role: str
    boot: str
    version: str
    via: str


class Ticket(Row):
    ticket: str
    seconds: float


class StatusRow(Row):
    version: str
    pid: int
    seconds: float
    agents: dict[str, int]
    entries: int
    journal: str
    halting: bool


class AgentRow(Row):
    name: str
    state: str


class SnapshotRow(Row):
    cursor: str
    status: dict[str, Any]
    agents: list[dict[str, Any]]
    declared: list[dict[str, Any]]
    approvals: list[dict[str, Any]]
    budgets: list[dict[str, Any]]
    session: dict[str, Any]


class Nothing(Wanted):
    """`{}`"""
