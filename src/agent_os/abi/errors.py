"""The one list of errors: every refusal or failure that crosses a ring or a front door.

Owns the names, numbers and severities. A raised error carries a stable finer word (`code`), a sentence a person or a
model can act on (`reason`), optionally the next step (`hint`), and facts (`detail`). Never a secret.
Only the names that something raises today are here; a later subsystem adds its own.
"""

from enum import IntEnum
from typing import ClassVar


class FailureSeverity(IntEnum):
    LOW = 1  # the caller corrects or repeats
    MEDIUM = 2  # a refusal, or a driver failed
    HIGH = 3  # a person is needed
    CRITICAL = 4  # a violation, or the record is in danger


class AgentOSError(Exception):
    """Base of the family. `retryable` means: no effect took place and the same call may succeed."""

    number: ClassVar[int] = 5
    severity: ClassVar[FailureSeverity] = FailureSeverity.MEDIUM
    retryable: ClassVar[bool] = False

    def __init__(self, code: str, reason: str, *, hint: str = "", **detail: object) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.hint = hint
        self.detail = detail

    @property
    def name(self) -> str:
        return type(self).__name__

    def __str__(self) -> str:
        return f"{self.name} {self.code}: {self.reason}"


class EPERM(AgentOSError):
    number = 1


class ENOENT(AgentOSError):
    number = 2
    severity = FailureSeverity.LOW


class ESRCH(AgentOSError):
    number = 3
    severity = FailureSeverity.LOW


class EIO(AgentOSError):
    number = 5


class EACCES(AgentOSError):
    number = 13


class EBUSY(AgentOSError):
    number = 16
    severity = FailureSeverity.LOW


class EEXIST(AgentOSError):
    number = 17
    severity = FailureSeverity.LOW


class EINVAL(AgentOSError):
    number = 22
    severity = FailureSeverity.LOW


class ENOSPC(AgentOSError):
    number = 28


class ETIMEDOUT(AgentOSError):
    number = 110


class ECONFLICT(AgentOSError):
    number = 207
    severity = FailureSeverity.LOW


class EISOLATION(AgentOSError):
    number = 209
    severity = FailureSeverity.HIGH
