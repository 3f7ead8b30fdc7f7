"""How many tokens a prompt has, before anybody has counted: bytes / 3, corrected by what the model turned out to count.

In: requests, and the input that providers report for them. Out: an estimate, offline and within microseconds. It is for
reserving, so it must be about right and never far too low; what is charged is what the provider reports.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from agent_os.abi.models import ImageBlock, Message, ModelRequest, OpaqueBlock, TextBlock, ToolCall, ToolResultBlock

BYTES_PER_TOKEN = 3
IMAGE_TOKENS = 1_600  # about what the large providers count for a full-sized one
OF_MESSAGE, OF_TOOL = 4, 12  # tokens that the format around each takes
_KEPT = 0.95  # of the sums behind a ratio at every report: it follows the last twenty or so
_LEAST, _MOST = 0.25, 4.0  # a model that counts otherwise is misread, not different


def raw_estimate(request: ModelRequest) -> int:
    """By size alone."""
    measured = [_message(message) for message in request.messages]
    bytes_, tokens = sum(pair[0] for pair in measured), sum(pair[1] for pair in measured)
    for tool in request.tools:
        bytes_ += len(tool.name) + _len(tool.description) + len(msgspec.json.encode(tool.input_schema))
        tokens += OF_TOOL
    if request.output_schema is not None:
        bytes_ += len(msgspec.json.encode(request.output_schema))
    return max(1, -(-bytes_ // BYTES_PER_TOKEN) + tokens)


def _message(message: Message) -> tuple[int, int]:
    """Its bytes, and tokens that no bytes stand for."""
    bytes_, tokens = 0, OF_MESSAGE
    for block in message.blocks:
        match block:
            case TextBlock():
                bytes_ += _len(block.text)
            case ImageBlock():
                tokens += IMAGE_TOKENS
            case ToolCall():
                args = _len(block.raw) if block.args_error else len(msgspec.json.encode(block.args))
                bytes_ += len(block.id) + len(block.name) + args
            case ToolResultBlock():
                bytes_ += len(block.id) + sum(_len(one.text) for one in block.content if isinstance(one, TextBlock))
                tokens += IMAGE_TOKENS * sum(isinstance(one, ImageBlock) for one in block.content)
            case OpaqueBlock():
                bytes_ += len(block.data)
    return bytes_, tokens


def _len(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


class _Sums(Struct):
    reported: float = 0.0
    raw: float = 0.0


class Estimates:
    """Ratios of reported to estimated, by model. Kept over restarts as a plain mapping."""

    def __init__(self, ratios: Mapping[str, float] | None = None) -> None:
        self._sums: dict[str, _Sums] = {}
        for model, ratio in (ratios or {}).items():
            self._sums[model] = _Sums(ratio * 1_000, 1_000)  # worth one small report: new ones soon outweigh it

    def ratio(self, model: str) -> float:
        known = self._sums.get(model)
        return min(_MOST, max(_LEAST, known.reported / known.raw)) if known and known.raw else 1.0

    def estimate(self, model: str, raw: int) -> int:
        return max(1, round(raw * self.ratio(model)))

    def reported(self, model: str, raw: int, reported: int) -> bool:
        """True: the provider saw less than half of what was sent, and has probably cut it off in silence. Such a report
        teaches nothing, or estimates would follow it."""
        if raw <= 0 or reported <= 0:
            return False
        if reported * 2 < self.estimate(model, raw):
            return True
        known = self._sums.setdefault(model, _Sums())
        known.reported = known.reported * _KEPT + reported
        known.raw = known.raw * _KEPT + raw
        return False

    def packed(self) -> dict[str, float]:
        return {model: self.ratio(model) for model in self._sums}
