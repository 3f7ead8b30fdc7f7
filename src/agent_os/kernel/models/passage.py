"""A guest's own request to a model, as the gateway sees it: the interface between the door (`kernel/egress`) and it.

    await gateway.pass_through(agent, passage, sink)

In: a `Passage`, which the door has read and judged: whatever would happen on the provider's side is among its
`server_tools`, a fact of the call for `llm:provider/model:call{server_tools:…}`. Out: the answer, byte for byte, into
the `sink`. An error of the family, raised before the sink has its head, is told to the guest in its own dialect; after
that the guest sees a connection that breaks off. Cancelled: the guest has gone away, as if the call were killed.

What leaves is sent by `provider.forward(target, headers, body, key, hide_usage=…)` (`drivers.models.Forwarding`), which
also reads along: `Forwarded.result` says what it came to.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct, field

from agent_os.kernel.table import Agent

LONGEST_WAIT_S = 300.0  # in the queue, for a guest: then EAGAIN `queue` with `retry_after_ms`, which is a 529
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
Dialect = Literal["anthropic", "openai"]
DIALECTS: Mapping[str, Dialect] = {
    MESSAGES: "anthropic",
    COUNT_TOKENS: "anthropic",
    CHAT: "openai",
    RESPONSES: "openai",
    EMBEDDINGS: "openai",
}


class Passage(Struct, frozen=True, kw_only=True):
    path: str  # one of the five above
    model: str  # provider/name, as `named` resolved it
    body: bytes  # as the guest sent it
    written: Callable[[str, int | None], bytes]
    """The body to send, by the provider's own name of the model, and the output that is allowed where that is less than
    was asked for. All other fields keep their own bytes; where nothing changes, so does the whole."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # those that go along: no credentials
    query: str = ""  # of the guest's request, with its question mark
    stream: bool = False
    max_output: int | None = None  # of all answers together; 0: it writes nothing; None: the guest did not say
    answers: int = 1  # that it asks for
    action: Literal["call", "embed"] = "call"
    server_tools: frozenset[str] = frozenset()  # what the provider would do outside our gate
    hide_usage: bool = False  # the body asks for usage where the guest did not: its event is taken out again

    def __repr__(self) -> str:
        return f"Passage({self.path!r}, {self.model!r})"

    @property
    def target(self) -> str:
        return self.path + self.query


class Sink(Protocol):
    """Where an answer goes. Both wait until the guest has taken it; EPIPE: it is gone."""

    async def head(self, status: int, headers: Mapping[str, str]) -> None: ...

    async def chunk(self, data: bytes) -> None: ...


class Through(Protocol):
    """The gateway, as a door sees it."""

    def named(self, agent: Agent, dialect: Dialect, name: str) -> str:
        """`provider/name` of a model that the agent means, by whatever name. ENOENT: there is none."""
        ...

    def models(self, agent: Agent) -> Sequence[str]:
        """`provider/name` of what it may call."""
        ...

    async def pass_through(self, agent: Agent, passage: Passage, sink: Sink) -> None: ...
