"""How READY is recognised: by the agent's own word, at once, by a line it writes, a command that succeeds or a port.

In: the `ready` key of a manifest, and for `log:` the output of the agent as it comes. Out: which way it is, and whether
the line was there. Runs no command and opens no connection.
"""

import shlex
from typing import Literal

from msgspec import Struct

from agent_os.abi.errors import EINVAL
from agent_os.kernel.supervisor.regex import Regex

LONGEST_LINE = 512  # characters of a line that are looked at
MOST_STEPS = 2_000_000  # of matching for one start: about a second
_HINT = "notify, immediate, log:<regex>, exec:<command> or port:<number>"


class Ready(Struct, frozen=True):
    """One way. `argv` for exec, `port` for port, `regex` for log."""

    way: Literal["notify", "immediate", "log", "exec", "port"]
    regex: str = ""
    argv: tuple[str, ...] = ()
    port: int = 0


def by_default(runtime: str) -> Ready:
    """A foreign program knows nothing of READY."""
    return Ready("immediate" if runtime == "exec" else "notify")


def parse(text: str) -> Ready:
    way, colon, rest = text.partition(":")
    match way:
        case "notify" | "immediate" if not colon:
            return Ready(way)
        case "log" if rest:
            return Ready(way, regex=Regex(rest).text)
        case "exec" if rest.strip():
            return Ready(way, argv=_words(rest))
        case "port" if rest.isascii() and rest.isdigit() and 0 < int(rest[:9]) < 1 << 16:
            return Ready(way, port=int(rest))
        case _:
            raise EINVAL("health.ready", f"{text[:128]!r} is no way to become ready", hint=f"one of {_HINT}")


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise EINVAL("health.ready", f"the command {command[:128]!r} cannot be read: {error}") from None


class LogWatch:
    """Waits for a line in an agent's output. Whole lines only, cut at a length; with the steps used up it sees nothing
    any more, and the start runs into its limit."""

    def __init__(self, regex: str) -> None:
        self._regex = Regex(regex)
        self._rest = b""
        self.seen = False

    @property
    def exhausted(self) -> bool:
        return self._regex.steps >= MOST_STEPS

    def feed(self, data: bytes) -> bool:
        """More of the output; whether the line has come by now."""
        if self.seen or self.exhausted:
            return self.seen
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: 4 * LONGEST_LINE]  # as many bytes as that many characters can take
        self.seen = any(self._matches(line) for line in lines)
        return self.seen

    def _matches(self, line: bytes) -> bool:
        if self.exhausted:
            return False
        text = line.rstrip(b"\r").decode(errors="replace")
        return self._regex.found_in(text[:LONGEST_LINE], cut=len(text) > LONGEST_LINE)
