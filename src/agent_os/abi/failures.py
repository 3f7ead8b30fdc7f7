"""The failure record: what exits, episodes and dashboards keep of something that went wrong."""

from msgspec import Struct

from agent_os.abi.errors import AgentOSError, FailureSeverity


class AgentFailure(Struct, frozen=True):
    type: str  # EPERM, error, oom, …
    severity: FailureSeverity
    message: str
    trace: list[int] = []  # journal entries that tell the story

    @classmethod
    def of(cls, error: AgentOSError, trace: list[int] | None = None) -> "AgentFailure":
        return cls(error.name, error.severity, error.reason, trace or [])
