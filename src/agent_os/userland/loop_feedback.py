"""What the model is told of a call: its result, or why there is none; and whether it goes round in circles.

Pure. In: what a call gave or raised. Out: a `Fed`, the text and what the loop has to make of it. The failure of a tool
is told to the model, a refusal is told as what it is (not allowed, a person said no, nobody answered), and a failure of
the machinery is told to nobody but the operator.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec

from agent_os.abi.errors import (
    EACCES,
    EAPPROVAL,
    EBUDGET,
    ECANCELED,
    EFENCED,
    EINTR,
    EISOLATION,
    ELABEL,
    ENOENT,
    ENONDET,
    EPERM,
    EPIPE,
    EPOLICY,
    EPROTO,
    ETYPE,
    EUNKNOWN,
    AgentOSError,
)
from agent_os.abi.models import ImageBlock, TextBlock, ToolCall, ToolResultBlock
from agent_os.abi.tools import ToolResult
from agent_os.userland.loop_terms import FINISH, Answer, State

# good: it ran. bad: it was not a call that any tool could take. budget, cancelled: the run ends by that.
Kind = Literal["good", "bad", "refused", "failed", "budget", "cancelled"]
TOLD, STOPPED = 3, 5  # times that the same call gave the same
MACHINERY = (EUNKNOWN, ENONDET, EFENCED, EISOLATION, EPROTO, EPIPE)
ABOVE = (EINTR, ECANCELED, *MACHINERY)  # ends more than the call in which it is raised
_REFUSED = (EPERM, EACCES, EPOLICY, ELABEL)
_APPROVAL = {
    "refused": "A person was asked and refused. Do not try it again.",
    "expired": "A person was asked and did not answer in time. That is no refusal; do without it for now.",
    "cancelled": "The question to a person was cancelled before there was an answer.",
    "waiting": "A person was asked and has not answered yet. The same call later takes up the answer.",
}
_PARTIAL = ("partial", "stdout", "stderr", "output", "text")  # where an error keeps what there was
_LONGEST_PARTIAL = 4000
_BLOB = re.compile(r"[0-9a-f]{64}")


class Fed(NamedTuple):
    kind: Kind
    content: list[TextBlock | ImageBlock]
    blob: str = ""  # the whole of it, at the kernel

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.content if isinstance(one, TextBlock))

    def block(self, call: ToolCall, more: str = "") -> ToolResultBlock:
        content = [*self.content, TextBlock(text=f"\n{more}")] if more else self.content
        return ToolResultBlock(id=call.id, content=content, error=self.kind != "good")


def told(kind: Kind, text: str) -> Fed:
    return Fed(kind, [TextBlock(text=text)])


def of_result(result: Any) -> Fed:
    """A tool's result, as the registry gives it or as a function of the program does."""
    shaped = _shaped(result)
    if (image := _image(shaped.value)) is not None:
        return Fed("good", [image])
    more = f"\n[{shaped.size} bytes in all; tool.output reads blob {shaped.blob}]" if shaped.cut else ""
    return Fed("good", [TextBlock(text=(shaped.text or as_text(shaped.value)) + more)], shaped.blob)


def of_answer(answer: Answer) -> Fed:
    if answer.state == "value":
        return told("good", as_text(answer.value))
    words = f"{_APPROVAL[answer.state]} {answer.reason}".strip()
    return told("cancelled" if answer.state == "cancelled" else "refused", words)


def of_error(error: AgentOSError) -> Fed:
    """Raises what the model cannot do anything about, and must not see dressed as its own failure."""
    if isinstance(error, MACHINERY):
        raise error
    if isinstance(error, EBUDGET):
        return told("budget", _sentence("Not run", error))
    if isinstance(error, EINTR | ECANCELED):
        return told("cancelled", _sentence("Not run", error))
    if is_malformed(error):
        return told("bad", _sentence("Not run", error))
    if isinstance(error, _REFUSED):
        return told("refused", _sentence("You are not allowed to do this", error))
    if isinstance(error, EAPPROVAL):
        words = _APPROVAL.get(str(error.detail.get("outcome", "")), "A person must agree first.")
        return told("refused", _sentence(words.rstrip("."), error))
    return told("failed", _sentence("It failed", error) + _partial(error))


def of_exception(problem: Exception) -> Fed:
    """What a function of the program raised."""
    return told("failed", f"It failed: {type(problem).__name__}: {problem}"[:_LONGEST_PARTIAL])


def is_malformed(error: AgentOSError) -> bool:
    """No tool of that name, or parameters that do not fit: nothing ran."""
    if isinstance(error, ETYPE):
        return not error.detail.get("ran")
    return isinstance(error, ENOENT) and error.code.startswith("tool.")


def unknown(name: str, names: Sequence[str]) -> Fed:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    # A model that knows a verb under another house finds it by its last word.
    last = re.split(r"[._-]", name)[-1]
    near += [one for one in names if last and one.split(".")[-1] == last and one not in near][: 3 - len(near)]
    hint = f"Near it: {', '.join(near)}." if near else f"There is {', '.join(names) or 'no tool'}."
    return told("bad", f"Not run: there is no tool {name!r} that you may call. {hint}")


def no_arguments(call: ToolCall) -> Fed:
    return told("bad", f"Not run: the arguments of {call.name} are no JSON object: {call.args_error}")


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "(nothing)"
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return repr(value)


def digest(call: ToolCall, fed: Fed) -> str:
    """Of a call and what came of it."""
    args = json.dumps(call.args, sort_keys=True, default=repr)
    return hashlib.sha256("\0".join((call.name, args, call.raw, fed.kind, fed.text)).encode()).hexdigest()[:16]


def circling(state: State, digests: Iterable[str]) -> int:
    """Counts a turn's calls, and says how often the most repeated of them was made with the same result while nothing
    new happened. A call that gave something new starts the count again: whoever edits and tests in turns gets on."""
    here = list(dict.fromkeys(digests))
    if any(one not in state.known for one in here):
        state.repeats = {}
    state.known += [one for one in here if one not in state.known]
    for one in here:
        state.repeats[one] = state.repeats.get(one, 0) + 1
    return max((state.repeats[one] for one in here), default=0)


def again(times: int) -> str:
    return f"[You have made this very call {times} times, and it gave the same each time. Do something else.]"


def nudge_finish(problem: str) -> str:
    return f"Your answer does not count yet: {problem}. Call {FINISH} with the result."


def _shaped(result: Any) -> ToolResult:
    if isinstance(result, ToolResult):
        return result
    if isinstance(result, Mapping) and "tool" in result and "digest" in result:
        return msgspec.convert(cast(object, result), ToolResult)
    return ToolResult(value=result)


def _image(value: Any) -> ImageBlock | None:
    """A picture that the kernel keeps, by its hash."""
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, Any]", value)
    blob, media = fields.get("blob"), fields.get("media_type")
    if isinstance(blob, str) and _BLOB.fullmatch(blob) and isinstance(media, str) and media.startswith("image/"):
        return ImageBlock(blob=blob, media_type=media)
    return None


def _sentence(what: str, error: AgentOSError) -> str:
    parts = [f"{what}: {error.name} {error.code}: {error.reason}"]
    if pointer := error.detail.get("pointer"):
        parts.append(f"At {pointer}.")
    if error.hint:
        parts.append(f"What would help: {error.hint}")
    if error.retry_after_ms:
        parts.append(f"It may work again in {error.retry_after_ms / 1000:g} s.")
    return "\n".join(parts)


def _partial(error: AgentOSError) -> str:
    found = [f"\n{key}:\n{as_text(error.detail[key])}" for key in _PARTIAL if error.detail.get(key)]
    whole = "".join(found)
    if len(whole) <= _LONGEST_PARTIAL:
        return whole
    half = _LONGEST_PARTIAL // 2
    return f"{whole[:half]}\n[… {len(whole) - 2 * half} characters left out …]\n{whole[-half:]}"
