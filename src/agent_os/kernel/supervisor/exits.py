"""How an incarnation ended: the class of it, its code, and what messages say.

Goes in: what the operating system told (a code, or minus a host signal) and what the kernel itself was doing to the
process. Comes out: class and code, once, for record, messages and decision alike. The class decides what follows; the
number is for people. Waits for no process and sends no signal.
"""

import signal
from collections.abc import Collection
from typing import Literal, NamedTuple

from msgspec import Struct

from agent_os.abi.errors import EINVAL
from agent_os.abi.failures import AgentFailure
from agent_os.abi.states import ExitClass

KILLED = -1  # the code of whoever the kernel killed
_OURS = {-signal.SIGTERM, -signal.SIGKILL, -signal.SIGABRT}  # what the kernel ends a process with
_SIGNALS = frozenset(map(int, signal.valid_signals()))
_NORMAL = {ExitClass.NORMAL, ExitClass.REQUESTED}
_DEADLINES = {ExitClass.START_TIMEOUT, ExitClass.WATCHDOG, ExitClass.PROBE, ExitClass.TIMEOUT}
_PUT_DOWN = {ExitClass.POLICY, ExitClass.BUDGET, ExitClass.LOST}
_GRAVEST = (ExitClass.POLICY, ExitClass.REQUESTED, ExitClass.NONDETERMINISTIC, ExitClass.BUDGET)
Word = Literal["normal", "crash", "killed", "timeout"]


class Classed(NamedTuple):
    exit_class: ExitClass
    code: int


def is_normal(exit_class: ExitClass) -> bool:
    return exit_class in _NORMAL


def classify(
    status: int, *, fate: ExitClass | None = None, success: Collection[int] = (), oom: bool = False
) -> Classed:
    """`status`: as returned, or −n for host signal n. `fate`: the class under which the kernel was ending it; whoever
    was to be stopped when the kernel itself died was asked to stop, not lost. `oom`: its memory limit struck."""
    if fate is not None:
        return Classed(fate, KILLED if status in _OURS else status)
    if oom:
        return Classed(ExitClass.OOM, KILLED)
    if status == 0 or status in success:
        return Classed(ExitClass.NORMAL, status)
    return Classed(ExitClass.SIGNAL if status < 0 else ExitClass.ERROR, status)


def status_of(code: int) -> int:
    """An exit code, or −n where it may stand for host signal n: like a shell, a guest's init reports that as 128 + n,
    and whoever returns such a number itself cannot be told apart."""
    return 128 - code if code - 128 in _SIGNALS else code


def graver(first: ExitClass | None, second: ExitClass) -> ExitClass:
    """The fate of one that is being ended for one reason when another comes up. A stop is no way out of quarantine, and
    no deadline makes an agent that was asked to stop come back. Else the first reason stands."""
    known = [one for one in _GRAVEST if one in (first, second)]
    return known[0] if known else first or second


class ExitReason(Struct, frozen=True, kw_only=True):
    """What messages say of an exit: one of four words, with the class and the failure beside it."""

    word: Word
    exit_class: ExitClass
    text: str = ""  # of a crash
    failure: AgentFailure | None = None

    def __str__(self) -> str:
        return f"crash({self.text})" if self.word == "crash" else self.word


def reason(classed: Classed, text: str = "", failure: AgentFailure | None = None) -> ExitReason:
    """Of an exit. A crash has a text even where nobody gave one."""
    word = _word(*classed)
    told = (text or _plainly(*classed)) if word == "crash" else ""
    return ExitReason(word=word, exit_class=classed.exit_class, text=told, failure=failure)


def read(text: str, exit_class: ExitClass) -> ExitReason:
    """A reason from its text, as `str` wrote it."""
    if text in ("normal", "killed", "timeout"):
        return ExitReason(word=text, exit_class=exit_class)
    if text.startswith("crash(") and text.endswith(")"):
        return ExitReason(word="crash", exit_class=exit_class, text=text[len("crash(") : -1])
    known = "normal, crash(text), killed or timeout"
    raise EINVAL("exit.reason", f"{text!r} is no reason of an exit", hint=f"one of {known}")


def _word(exit_class: ExitClass, code: int) -> Word:
    if exit_class in _DEADLINES:
        return "timeout"
    if exit_class in _PUT_DOWN or (exit_class is ExitClass.REQUESTED and code == KILLED):
        return "killed"
    return "normal" if is_normal(exit_class) else "crash"


def _plainly(exit_class: ExitClass, code: int) -> str:
    if exit_class is ExitClass.OOM:
        return "memory limit"
    if exit_class is ExitClass.NONDETERMINISTIC:
        return "differs from its record"
    return f"signal {-code}" if exit_class is ExitClass.SIGNAL else f"code {code}"
