"""A model that says what a file says: for demos and tests, offline, the same every time.

In: the name of a script, and the request. Out: a reply that is marked as scripted. Nothing falls back to it. Scripts
are the operator's: a regular expression in one runs in the kernel's process.

A script is a YAML list of steps:

    - when: refund            # text in the last message, or a regular expression: /refund|money/
      text: I will look.
      tool_calls: [{name: file.read, args: {path: /work/order.txt}}]
    - text: Done.
      stop: end               # end, tool, length, …; by default what the reply itself says
      delay_ms: 200
      usage: {input: 1200, output: 40}
    - fault: rate             # or a list, one for each attempt before the step answers

Which step answers depends on the request alone, so that it is the same after a crash and for any number of agents: the
first step whose `when` fits the last message; else, of the steps without `when`, the one of this turn. The turn is told
by the ids of earlier calls, which survive a shortened history, or else by counting what the model said before.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from agent_os.abi.errors import ECANCELED, EINVAL, EIO, AgentOSError
from agent_os.abi.models import (
    Block,
    BlockDone,
    Finished,
    Message,
    ModelRequest,
    Started,
    Stop,
    TextBlock,
    TextDelta,
    ToolCall,
    ToolDelta,
    ToolResultBlock,
    Usage,
    text_of,
)
from agent_os.drivers.models import Cancel, LimitSample, LimitsSeen, ModelFault, ModelInfo, ProviderEvent
from agent_os.drivers.models.faults import fault_of, garbled, lost
from agent_os.drivers.models.values import tool_call
from agent_os.drivers.models.wire import Cancelled, Watch

FaultWord = Literal[
    "request", "auth", "model", "context", "rate", "overloaded", "provider", "lost", "garbled", "timeout", "cancelled"
]
_STATUS: Mapping[str, int] = {
    "request": 400,
    "auth": 401,
    "model": 404,
    "context": 413,
    "rate": 429,
    "overloaded": 529,
    "provider": 500,
}
_LARGEST = 4 << 20  # bytes of a script
_SEARCHED = 16 << 10  # characters of the last message
_CONTEXT = 200_000
_TURN = re.compile(r"turn(\d{1,6})_\d{1,4}")
_PIECE = 40  # characters of a delta


class Call(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    args: dict[str, Any] | str = {}  # a text: what a model writes that is no JSON


class Step(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    when: str | None = None
    text: str = ""
    tool_calls: list[Call] = []
    stop: Stop | None = None
    delay_ms: int = 0
    fault: FaultWord | list[FaultWord] | None = None
    retry_after_ms: int | None = None  # beside a fault
    usage: Usage | None = None


def read_script(source: str | bytes) -> list[Step]:
    """The steps of a script. EINVAL says where it is wrong."""
    import yaml

    if len(source) > _LARGEST:
        raise EINVAL("script", f"a script is at most {_LARGEST} bytes")
    try:
        steps = msgspec.convert(yaml.safe_load(source), list[Step])
    except yaml.YAMLError as error:
        raise EINVAL("script", f"the script is not YAML: {error}") from error
    except (msgspec.ValidationError, RecursionError) as error:
        raise EINVAL("script", f"the script is not a list of steps: {error}") from error
    for number, step in enumerate(steps, 1):
        if step.delay_ms < 0:
            raise EINVAL("script", f"step {number}: delay_ms is 0 or more")
        _pattern(step.when, number)
    return steps


class Scripted:
    """`load` gives the steps of the script that a model's name stands for. What it raises reaches the caller."""

    def __init__(
        self, load: Callable[[str], Sequence[Step]], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._load = load
        self._sleep = sleep
        self._attempts: dict[bytes, int] = {}  # of requests whose step begins with faults

    def info(self, model: str) -> ModelInfo:
        features = frozenset(("tools", "images", "structured", "seed", "stop"))
        return ModelInfo(model, _CONTEXT, cast(Any, features), local=True, free=True, scripted=True)

    async def stream(
        self, req: ModelRequest, key: str | None, cancel: Cancel | None = None
    ) -> AsyncGenerator[ProviderEvent, None]:
        turn = turn_of(req.messages)
        try:
            steps = self._load(req.model)
        except AgentOSError as error:
            raise ModelFault(error, sent=False) from error
        step = chosen(steps, req, turn)
        watch, said = Watch(cancel), 0
        try:
            if step.delay_ms:
                await watch.wait(self._sleep(step.delay_ms / 1000))
            fault = self._fault(step, req)
            if fault is not None and not step.text:
                raise fault
            yield LimitsSeen(())
            yield Started(model=req.model)
            blocks = _blocks(step, turn)
            for index, block in enumerate(blocks):
                for event in _told(index, block):
                    said += len(event.text) if isinstance(event, TextDelta) else 0
                    yield event
                    if cancel is not None and cancel.done:
                        raise Cancelled
                if fault is not None:
                    fault.usage = Usage(input=_tokens(req), output=said // 3, estimated=True)
                    raise fault
            yield Finished(
                stop=step.stop or ("tool" if step.tool_calls else "end"),
                usage=step.usage or Usage(input=_tokens(req), output=_size(blocks) // 3 + 1),
                model=req.model,
                scripted=True,
            )
        except Cancelled:
            usage = Usage(input=_tokens(req), output=-(-said // 3), estimated=True)
            yield Finished(stop="cancelled", usage=usage, model=req.model, scripted=True)
        finally:
            watch.close()

    def _fault(self, step: Step, req: ModelRequest) -> ModelFault | None:
        if step.fault is None:
            return None
        if isinstance(step.fault, str):
            return _made(step.fault, step.retry_after_ms)
        digest = hashlib.sha256(msgspec.msgpack.encode(req)).digest()
        attempt = self._attempts.get(digest, 0)
        if attempt >= len(step.fault):
            self._attempts.pop(digest, None)
            return None
        self._attempts[digest] = attempt + 1
        return _made(step.fault[attempt], step.retry_after_ms)

    def fault(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelFault:
        return fault_of(status, body)

    def limits(self, headers: Mapping[str, str]) -> list[LimitSample]:
        return []

    async def models(self, key: str | None) -> list[str]:
        return []

    async def close(self) -> None:
        return None


def turn_of(messages: Sequence[Message]) -> int:
    """Which turn this is, from 0."""
    spoken = [message for message in messages if message.role == "assistant"]
    ids = [block.id for message in spoken for block in message.blocks if isinstance(block, ToolCall)]
    numbered = [int(found[1]) + 1 for id in ids if (found := _TURN.fullmatch(id)) is not None]
    # What was said after the last numbered call counts on from it.
    after = 0
    for message in reversed(spoken):
        if any(isinstance(block, ToolCall) and _TURN.fullmatch(block.id) for block in message.blocks):
            break
        after += 1
    return max(numbered) + after if numbered else len(spoken)


def chosen(steps: Sequence[Step], request: ModelRequest, turn: int) -> Step:
    last = _last(request.messages)
    for number, step in enumerate(steps, 1):
        if step.when is not None and _pattern(step.when, number).search(last):
            return step
    in_order = [step for step in steps if step.when is None]
    if turn < len(in_order):
        return in_order[turn]
    reason = (
        f"script {request.model!r} has no step for turn {turn + 1}: it has {len(in_order)} steps without `when`, "
        f"and no `when` fits the last message {last[:80]!r}"
    )
    raise ModelFault(EINVAL("script", reason, turn=turn + 1, script=request.model), sent=False)


def _pattern(when: str | None, number: int) -> re.Pattern[str]:
    when = when or ""
    if len(when) < 3 or not (when.startswith("/") and when.endswith("/")):
        return re.compile(re.escape(when), re.IGNORECASE)
    try:
        return re.compile(when[1:-1], re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise EINVAL("script", f"step {number}: `when` is no regular expression: {error}") from error


def _last(messages: Sequence[Message]) -> str:
    """What the last message says, results of tools included."""
    blocks = messages[-1].blocks if messages else []
    results = [text_of(block.content) for block in blocks if isinstance(block, ToolResultBlock)]
    return "\n".join([text_of(blocks), *results])[:_SEARCHED]


def _blocks(step: Step, turn: int) -> list[Block]:
    made: list[Block] = [TextBlock(text=step.text)] if step.text else []
    for number, call in enumerate(step.tool_calls):
        args = call.args if isinstance(call.args, str) else msgspec.json.encode(call.args).decode()
        made.append(tool_call(f"turn{turn}_{number}", call.name, args))
    return made


def _told(index: int, block: Block) -> list[TextDelta | ToolDelta | BlockDone]:
    if isinstance(block, TextBlock):
        pieces = [block.text[at : at + _PIECE] for at in range(0, len(block.text), _PIECE)]
        return [*(TextDelta(index=index, text=piece) for piece in pieces), BlockDone(index=index, block=block)]
    if isinstance(block, ToolCall):
        args = block.raw or msgspec.json.encode(block.args).decode()
        delta = ToolDelta(index=index, id=block.id, name=block.name, args=args)
        return [delta, BlockDone(index=index, block=block)]
    return [BlockDone(index=index, block=block)]


def _made(word: FaultWord, retry_after_ms: int | None) -> ModelFault:
    body = msgspec.json.encode({"error": {"type": word, "message": "as the script says"}})
    match word:
        case "lost":
            return lost("as the script says", sent=True)
        case "garbled":
            return garbled("as the script says", b"{not json")
        case "timeout":
            return ModelFault(EIO("timeout", "the call took longer than its deadline, as the script says"))
        case "cancelled":
            return ModelFault(ECANCELED("cancelled", "the call was cancelled, as the script says"))
        case _:
            return fault_of(_STATUS[word], body, retry_after_ms=retry_after_ms)


def _tokens(request: ModelRequest) -> int:
    return len(msgspec.json.encode([request.messages, request.tools])) // 3 + 1


def _size(blocks: Sequence[Block]) -> int:
    return len(msgspec.json.encode(blocks))
