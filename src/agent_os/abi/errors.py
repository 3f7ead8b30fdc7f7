"""The one list of errors: every refusal or failure that crosses a ring or a front door.

Owns the names, numbers, severities and whether the same call may succeed later. A raised error carries a stable finer
word (`code`), a sentence a person or a model can act on (`reason`), optionally the next step (`hint`), and facts
(`detail`). Never a secret, never a path of the host that the reader could not know. Numbers are Linux's where Linux has
one, and never change.
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
    severity: FailureSeverity = FailureSeverity.MEDIUM
    retryable: bool = False

    def __init__(
        self,
        code: str,
        reason: str,
        *,
        hint: str = "",
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        **detail: object,
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.hint = hint
        self.retry_after_ms = retry_after_ms
        self.detail = detail
        if retryable is not None:
            self.retryable = retryable

    @property
    def name(self) -> str:
        return type(self).__name__

    def __str__(self) -> str:
        return f"{self.name} {self.code}: {self.reason}"


class EPERM(AgentOSError):
    """No such capability."""

    number = 1


class ENOENT(AgentOSError):
    number = 2
    severity = FailureSeverity.LOW


class ESRCH(AgentOSError):
    """No such agent, or it has ended."""

    number = 3
    severity = FailureSeverity.LOW


class EINTR(AgentOSError):
    """Interrupted before any effect."""

    number = 4
    severity = FailureSeverity.LOW
    retryable = True


class EIO(AgentOSError):
    """A driver failed; the outcome is known and recorded."""

    number = 5


class EBADF(AgentOSError):
    number = 9
    severity = FailureSeverity.LOW


class EAGAIN(AgentOSError):
    """Full or rate-limited; `retry_after_ms` is always set."""

    number = 11
    severity = FailureSeverity.LOW
    retryable = True


class EACCES(AgentOSError):
    """There is a capability, and it excludes this action."""

    number = 13


class EBUSY(AgentOSError):
    """The target's state does not allow it."""

    number = 16
    severity = FailureSeverity.LOW


class EEXIST(AgentOSError):
    number = 17
    severity = FailureSeverity.LOW


class ENOTDIR(AgentOSError):
    number = 20
    severity = FailureSeverity.LOW


class EISDIR(AgentOSError):
    number = 21
    severity = FailureSeverity.LOW


class EINVAL(AgentOSError):
    number = 22
    severity = FailureSeverity.LOW


class ENOSPC(AgentOSError):
    number = 28


class EROFS(AgentOSError):
    number = 30
    severity = FailureSeverity.LOW


class EPIPE(AgentOSError):
    """The peer is gone."""

    number = 32
    severity = FailureSeverity.LOW
    retryable = True


class EDEADLK(AgentOSError):
    """A circle of waiting requests."""

    number = 35
    severity = FailureSeverity.LOW


class ENOSYS(AgentOSError):
    number = 38
    severity = FailureSeverity.LOW


class EPROTO(AgentOSError):
    """Not what this wire speaks."""

    number = 71


class EMSGSIZE(AgentOSError):
    number = 90
    severity = FailureSeverity.LOW


class ETIMEDOUT(AgentOSError):
    """The deadline passed. Retryable only where no effect started."""

    number = 110
    severity = FailureSeverity.LOW


class EHOSTUNREACH(AgentOSError):
    """A driver, broker or store cannot be reached."""

    number = 113
    retryable = True


class EDQUOT(AgentOSError):
    """Over a quota; the reason names what is used and the limit."""

    number = 122


class ECANCELED(AgentOSError):
    number = 125
    severity = FailureSeverity.LOW


class EPOLICY(AgentOSError):
    """Forbidden by a rule; in strict mode SIGPOLICY follows."""

    number = 200
    severity = FailureSeverity.CRITICAL


class EBUDGET(AgentOSError):
    """The budget does not allow it."""

    number = 201


class EAPPROVAL(AgentOSError):
    """A person must agree first, or did not."""

    number = 202
    retryable = True


class ELABEL(AgentOSError):
    """What it carries may not go there."""

    number = 203


class ETRUST(AgentOSError):
    """Whoever is at the other end is not trusted with it."""

    number = 204
    severity = FailureSeverity.CRITICAL


class EUNKNOWN(AgentOSError):
    """An effect was begun and its outcome is unknown: parked for a person."""

    number = 205
    severity = FailureSeverity.HIGH


class ENONDET(AgentOSError):
    """A replayed program does something else than its record says."""

    number = 206
    severity = FailureSeverity.HIGH


class ECONFLICT(AgentOSError):
    """`if_version` lost; `detail["version"]` is the current one."""

    number = 207
    severity = FailureSeverity.LOW


class EFENCED(AgentOSError):
    """This node lost the agent's lease."""

    number = 208
    severity = FailureSeverity.HIGH


class EISOLATION(AgentOSError):
    """Isolation below the required minimum, or the sandbox could not be built."""

    number = 209
    severity = FailureSeverity.HIGH


class ETYPE(AgentOSError):
    """A payload does not fit its schema."""

    number = 210


class AgentKernelPanic(BaseException):
    """A violation by code in our own process, which cannot be killed for it. Not an Exception, so that nothing catches
    it by accident."""

    def __init__(self, reason: str, agent: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.agent = reason, agent


BY_NUMBER: dict[int, type[AgentOSError]] = {kind.number: kind for kind in AgentOSError.__subclasses__()}


# How each name leaves by a front door: the exit code of agentctl, and the status of the gateway. The whole table, also
# for names that no subsystem raises yet: a later one must not choose its own numbers.
OUTCOMES: dict[str, tuple[int, int]] = {
    "EIO": (1, 500),
    "EUNKNOWN": (1, 500),
    "ENONDET": (1, 500),
    "EINTR": (1, 500),
    "ECANCELED": (1, 500),
    "EINVAL": (2, 400),
    "EMSGSIZE": (2, 413),
    "ETYPE": (2, 422),
    "ENOSYS": (2, 400),
    "EPROTO": (2, 400),
    "EBADF": (2, 400),
    "ENOTDIR": (2, 400),
    "EISDIR": (2, 400),
    "ENOENT": (3, 404),
    "ESRCH": (3, 404),
    "EPERM": (4, 403),
    "EACCES": (4, 403),
    "EROFS": (4, 403),
    "EPOLICY": (5, 403),
    "ELABEL": (5, 403),
    "ETRUST": (5, 403),
    "EAPPROVAL": (6, 403),
    "EBUDGET": (7, 402),
    "EDQUOT": (7, 402),
    "ENOSPC": (7, 507),
    "EHOSTUNREACH": (8, 503),
    "EPIPE": (8, 503),
    "EFENCED": (8, 503),
    "ECONFLICT": (9, 409),
    "EEXIST": (9, 409),
    "EBUSY": (9, 409),
    "EDEADLK": (9, 409),
    "EISOLATION": (11, 503),
    "EAGAIN": (12, 429),
    "ETIMEDOUT": (124, 504),
}


def outcome(error: AgentOSError) -> tuple[int, int]:
    """Exit code and status of an error, or of the nearest class above it that has them."""
    return next((OUTCOMES[one.__name__] for one in type(error).__mro__ if one.__name__ in OUTCOMES), OUTCOMES["EIO"])
