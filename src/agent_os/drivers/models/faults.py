"""What an answer that is no reply means, in our own codes.

In: a status of HTTP or an error object from inside a stream. Out: a `ModelFault` with a sentence a person can act on.
What the provider wrote is quoted short and printable; a key in it is masked by the wire before it comes here.
"""

import re
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from agent_os.abi.errors import EAGAIN, EHOSTUNREACH, EINVAL, EIO, EMSGSIZE, ENOENT
from agent_os.abi.models import Usage
from agent_os.drivers.models import KEPT, LimitSample, ModelFault
from agent_os.drivers.models.values import count, decoded, mapping

_QUOTED = 500  # characters of the provider's own words
_WAIT_MS = 1000  # where it asks to wait and does not say how long

# Statuses by the words that providers use inside a stream, where there is no status.
_BY_WORD = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "timeout_error": 408,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 402,
    "api_error": 500,
    "server_error": 500,
    "overloaded_error": 529,
    "context_length_exceeded": 413,
    "exceed_context_size_error": 413,
    "string_above_max_length": 413,
}
# A prompt that is too long is told as a plain 400 by most, with a word or a sentence.
_TOO_LONG = re.compile(
    r"prompt is too long|context[ _-]?(length|window|size)|maximum context|too many (input )?tokens|"
    r"input (length|is too long)|exceeds? the (available|model'?s) (context|limit)",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"credit balance is too low|insufficient_quota|exceeded your current quota", re.IGNORECASE)
_NUMBERS = re.compile(r"\d[\d,_]{2,11}")


def fault_of(
    status: int,
    body: bytes,
    *,
    retry_after_ms: int | None = None,
    samples: Sequence[LimitSample] = (),
    usage: Usage | None = None,
) -> ModelFault:
    """Of an answer with its status."""
    word, said = _words(body)
    if status == 200 and word in _BY_WORD:
        status = _BY_WORD[word]
    fault = _judged(status, word, said, body, retry_after_ms)
    fault.samples, fault.usage = samples, usage
    return fault


def fault_inside(error: object, usage: Usage | None = None) -> ModelFault:
    """Of an error object that came in the middle of a stream."""
    fields = mapping(error) or {"message": str(error)}
    words = [str(fields.get(name) or "") for name in ("code", "type")]
    status = next((_BY_WORD[word] for word in words if word in _BY_WORD), None)
    code = fields.get("code")
    if status is None and isinstance(code, int) and 400 <= code <= 599:
        status = code
    return fault_of(status or 500, msgspec.json.encode({"error": fields}), usage=usage)


def garbled(why: str, raw: bytes, *, status: int | None = 200, usage: Usage | None = None) -> ModelFault:
    error = EIO("garbled", f"the provider's answer cannot be read: {why}", hint="see the journal for its first bytes")
    return ModelFault(error, "once", status=status, raw=raw, usage=usage)


def lost(why: str, *, sent: bool, usage: Usage | None = None) -> ModelFault:
    """No answer, or one that broke off."""
    error = EHOSTUNREACH("provider", f"the provider cannot be reached: {why}")
    return ModelFault(error, "yes", sent=sent, breaks=True, usage=usage)


def _judged(status: int, word: str, said: str, body: bytes, retry_after_ms: int | None) -> ModelFault:
    quoted = f": {said}" if said else ""
    if 300 <= status < 400:
        hint = "set the provider's base URL to where it really is"
        error = EIO("redirect", f"the provider answered {status}; redirects are not followed", hint=hint)
        return ModelFault(error, status=status)
    if status == 402 or (status in (400, 403, 429) and _NO_CREDIT.search(f"{word} {said}")):
        hint = "the account behind the key has no credit: top it up, or set another key"
        return ModelFault(EIO("auth", f"the provider refused the key ({status}){quoted}", hint=hint), status=status)
    if status in (401, 403):
        hint = "give it a valid key: agentctl secrets rotate NAME < FILE"
        return ModelFault(EIO("auth", f"the provider refused the key ({status}){quoted}", hint=hint), status=status)
    if status == 404:
        hint = "agentctl model test PROVIDER lists its models; or its base URL lacks a part such as /v1"
        return ModelFault(ENOENT("model", f"the provider knows no such model{quoted}", hint=hint), status=status)
    if status == 413 or (status in (400, 422) and (_BY_WORD.get(word) == 413 or _TOO_LONG.search(said))):
        asked, limit = _both_numbers(said, body)
        error = EMSGSIZE("context", f"the prompt is too long for the model{quoted}", asked=asked, limit=limit)
        return ModelFault(error, status=status)
    if status in (408, 429):
        wait = _WAIT_MS if retry_after_ms is None else retry_after_ms
        error = EAGAIN("rate", f"the provider is limiting its calls ({status}){quoted}", retry_after_ms=wait)
        return ModelFault(error, "yes", status=status)
    if status >= 500:
        reason = f"the provider failed ({status}){quoted}"
        error = EHOSTUNREACH("provider", reason, retry_after_ms=retry_after_ms)
        return ModelFault(error, "yes", status=status, breaks=True, raw=body)
    if status >= 400:
        return ModelFault(EINVAL("request", f"the provider refused the request ({status}){quoted}"), status=status)
    return garbled(f"status {status} without a reply", body, status=status)


def _words(body: bytes) -> tuple[str, str]:
    """Its own word for the error and its own sentence, from any of the shapes in use."""
    whole = decoded(body)
    if whole is None:  # a page for people says nothing that a sentence could quote
        return "", "" if body.lstrip().startswith(b"<") else _printable(body[:KEPT].decode(errors="replace"))
    error = whole.get("error", whole)
    if not isinstance(error, dict):
        return "", _printable(str(error))
    fields = mapping(cast(object, error))
    named = [str(fields.get(name) or "") for name in ("code", "type")]
    word = next((word for word in named if word in _BY_WORD), named[0] or named[1])
    said = fields.get("message") or fields.get("detail") or ""
    return word, _printable(said if isinstance(said, str) else msgspec.json.encode(said).decode())


def _both_numbers(said: str, body: bytes) -> tuple[int | None, int | None]:
    """What was asked and what is allowed, from fields where there are some, else from the sentence: of the first two
    different numbers the larger was asked."""
    fields = mapping((decoded(body) or {}).get("error"))
    asked, limit = count(fields.get("n_prompt_tokens")), count(fields.get("n_ctx"))
    if asked is not None and limit is not None:
        return asked, limit
    numbers = list(dict.fromkeys(int(re.sub("[,_]", "", text)) for text in _NUMBERS.findall(said)))
    if len(numbers) < 2:
        return None, numbers[0] if numbers else None
    return max(numbers[:2]), min(numbers[:2])


def _printable(text: str) -> str:
    clean = "".join(char if char.isprintable() else " " for char in text[: _QUOTED + 1]).strip()
    return clean if len(clean) <= _QUOTED else clean[:_QUOTED] + "…"


def request_id(headers: Mapping[str, str]) -> str:
    """The provider's own number of the request, for asking its support."""
    return _printable(headers.get("request-id") or headers.get("x-request-id") or "")[:100]
