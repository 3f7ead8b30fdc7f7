"""Topics and filters: dotted names, and which of them a subscriber wants.

In: texts. Out: names that are checked, whether a filter takes a topic, and an index that finds the filters for a topic
at a cost that grows with the matches and not with the subscriptions. Pure text: it knows no agent and no message.

A topic is a row of tokens (`research.eu.done`). In a filter `*` is exactly one token and `>` the rest, one token or
more, at the end only. The language of capabilities differs a little (there a last `*` is everything below, and `+` one
token); `target` says what of it a filter needs, and whatever covers that text covers every topic of the filter.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from agent_os.kernel.authority.patterns import MOST_SEGMENTS, ONE_TOKEN, Flaw, first_control

MOST_BYTES = 255
MOST_TOKENS = min(32, MOST_SEGMENTS - 1)
ONE, REST = "*", ">"
_REMEMBERED = 4096  # topics whose matches are known; then all are forgotten

T = TypeVar("T", bound=Hashable)


@lru_cache(_REMEMBERED)
def check_topic(text: str) -> str:
    """The text, if something can be published there. EINVAL names the place and what to write instead."""
    try:
        for at, token in _tokens(text):
            if token in (ONE, REST):
                raise Flaw(at, f"{token!r} is for subscribers", "publish to one topic, by its full name")
    except Flaw as flaw:
        raise flaw.error(text, "bus.topic") from None
    return text


def check_filter(text: str) -> str:
    """The text, if it can be subscribed to."""
    try:
        for at, token in _tokens(text):
            if token == REST and at + 1 != len(text):
                raise Flaw(at, f"{REST!r} stands only at the end", f"end there: {text[: at + 1]!r}, or use {ONE!r}")
    except Flaw as flaw:
        raise flaw.error(text, "bus.topic") from None
    return text


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    if not text:
        raise Flaw(0, "there is no topic", "as in research.done")
    if len(text.encode(errors="surrogatepass")) > MOST_BYTES:
        raise Flaw(0, f"a topic has at most {MOST_BYTES} bytes", "put the rest into the payload")
    if (at := first_control(text)) >= 0:
        raise Flaw(at, "a control character stands for nothing here", "leave it out")
    tokens = text.split(".")
    if len(tokens) > MOST_TOKENS:
        raise Flaw(0, f"a topic has at most {MOST_TOKENS} tokens, this one has {len(tokens)}", "join some of them")
    at = 0
    for token in tokens:
        _check_token(token, at)
        yield at, token
        at += len(token) + 1


def _check_token(token: str, at: int) -> None:
    if not token:
        raise Flaw(at, "an empty token stands for nothing", "remove the dot, or name what is between")
    if token == ONE_TOKEN:
        raise Flaw(at, f"{token!r} is for capabilities", f"a subscriber's one token is {ONE!r}")
    for place, char in enumerate(token):
        if char in (ONE, REST) and len(token) > 1:
            raise Flaw(at + place, f"{char!r} is a whole token, never a part of one", f"as in research.{char}")
        if char.isspace() or char == "/":
            raise Flaw(at + place, f"{char!r} cannot be in a topic", "use '-' or '_'")


def matches(pattern: str, topic: str) -> bool:
    """Whether the filter takes the topic. Both are well formed."""
    wanted, given = pattern.split("."), topic.split(".")
    if wanted[-1] == REST:
        wanted.pop()
        if len(given) <= len(wanted):
            return False
    elif len(given) != len(wanted):
        return False
    return all(one in (ONE, token) for one, token in zip(wanted, given, strict=False))


def target(pattern: str) -> str:
    """What a capability must cover for all of a filter's topics, or for one topic: `ipc` targets of that text. Sound
    because `*` and `>` are tokens that no topic has: only a wildcard of the capability is as wide as `*`, and only its
    subtree is as wide as `>`, which is the last token."""
    return f"topic/{pattern}"


class _Node(Generic[T]):
    __slots__ = ("below", "here", "rest")

    def __init__(self) -> None:
        self.below: dict[str, _Node[T]] = {}
        self.here: dict[T, None] = {}
        self.rest: dict[T, None] = {}

    @property
    def empty(self) -> bool:
        return not (self.below or self.here or self.rest)


class Index(Generic[T]):
    """Many filters, each with what hangs on it: a tree of tokens."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._known: dict[str, Sequence[T]] = {}

    def add(self, pattern: str, value: T) -> None:
        self._known.clear()
        node = self._root
        for token in pattern.split("."):
            if token == REST:
                node.rest[value] = None
                return
            node = node.below.setdefault(token, _Node())
        node.here[value] = None

    def remove(self, pattern: str, value: T) -> None:
        self._known.clear()
        path: list[tuple[_Node[T], str]] = []
        node = self._root
        for token in pattern.split("."):
            if token == REST:
                break
            path.append((node, token))
            node = node.below[token]
        (node.rest if pattern.split(".")[-1] == REST else node.here).pop(value, None)
        while path and node.empty:
            node, token = path.pop()
            del node.below[token]

    def find(self, topic: str) -> Sequence[T]:
        """Whatever hangs on a filter that takes the topic; each as often as it was added."""
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[topic] = list(self._walk(topic.split(".")))
        return found

    def _walk(self, tokens: list[str]) -> Iterator[T]:
        nodes: list[_Node[T]] = [self._root]
        for token in tokens:
            after: list[_Node[Any]] = []
            for node in nodes:
                yield from node.rest
                after += [node.below[one] for one in (token, ONE) if one in node.below]
            nodes = after
        for node in nodes:
            yield from node.here
