"""What things are called in an address and in a request, and numbers as JSON has them."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BeforeValidator, Field

_NAME = r"[a-z0-9][a-z0-9_.-]{0,62}"
AGENT = rf"^({_NAME}/)?{_NAME}$"
AgentName = Annotated[
    str,
    Path(
        pattern=rf"^({_NAME}~)?{_NAME}$",
        description="Its name; with a namespace other than the default one `namespace~name`.",
    ),
]
AgentFilter = Annotated[str | None, Query(pattern=AGENT, description="Only of this agent.")]
ActorFilter = Annotated[str | None, Query(max_length=200, description="Only of this agent, or of this person.")]
Agent = Annotated[str, Field(pattern=AGENT, description="Its name, or `namespace/name`.")]
Word = Annotated[str, Field(max_length=4096)]
Words = Annotated[list[Word], Field(max_length=100)]
Reason = Annotated[str, Field(max_length=1000, description="Kept with the change.")]
# Every kind of space there is, in every dialect of patterns, and what controls terminals.
BLANK = r"\x00-\x20\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff"
Resource = Literal["cost", "tokens", "bytes", "count", "calls", "messages", "model_calls"]


def _whole(value: Any) -> Any:
    """To JSON 3.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Amount = Annotated[int, Field(ge=0, lt=10**15), WHOLE]


def meant(name: str) -> str:
    """What the kernel calls it."""
    return name.replace("~", "/")


def in_path(name: str) -> str:
    """What it is called in an address, where a slash would part it."""
    return name.replace("/", "~")
