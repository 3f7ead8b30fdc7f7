"""Regular expressions in linear time, for lines that an agent wrote and an expression that another one chose.

Python's own matcher takes exponential time for some expressions, and the kernel has one thread: whoever may start a
child could stop everybody. Here each character of a line is looked at once, for all ways of matching together. In: the
usual syntax without look-around, back references and word borders. Out: whether a line holds a match. Costs are counted
in steps, so that whoever matches can stop.
"""

import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from agent_os.abi.errors import EINVAL

_LONGEST = 256  # characters of an expression
_MOST_STATES = 200  # an unkind line costs each of them for each character
_MOST_REPEATS = 100
_DEEPEST = 20
_MOST_KEPT = 1000  # sets of states whose successors are remembered
_CLASSES = "dDwWsStnrfv"  # letters that mean one character after a backslash
_REPEAT = re.compile(r"\{(\d{1,3})(,?)(\d{0,3})\}")

Takes = Callable[[str], object]  # whether a character is taken


class _One(Struct, frozen=True):
    takes: Takes


class _Edge(Struct, frozen=True):
    end: bool  # of the line; else its beginning


class _Row(Struct, frozen=True):
    parts: "tuple[_Node, ...]"


class _Either(Struct, frozen=True):
    parts: "tuple[_Node, ...]"


class _Times(Struct, frozen=True):
    part: "_Node"
    least: int
    most: int | None


_Node = _One | _Edge | _Row | _Either | _Times


class _State(NamedTuple):
    """Either takes a character and goes on to the next state, or goes on at once to others, or is an edge."""

    takes: Takes | None
    then: tuple[int, ...] = ()
    edge: _Edge | None = None


class Regex:
    """EINVAL says what is wrong, and where."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            reason = f"the expression has {len(text)} characters of at most {_LONGEST}"
            raise EINVAL("regex", reason, hint="a part of the line is enough")
        self.text = text
        self._states: list[_State] = []
        self._emit(_Parser(text).whole())
        self._end = len(self._states)
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self.steps = 0  # taken so far

    def found_in(self, line: str, *, cut: bool = False) -> bool:
        """Anywhere in it. `cut`: the line goes on, so that its end is not here."""
        now = self._closed({0}, first=True)
        for char in line:
            if self._end in now:
                return True
            now = self._after(now, char)
        return self._end in self._closed(set(now), first=not line, last=not cut)

    def _after(self, now: frozenset[int], char: str) -> frozenset[int]:
        self.steps += 1
        known = self._known.get((now, char))
        if known is not None:
            return known
        self.steps += len(now)
        taken = {state + 1 for state in now if state < self._end and self._takes(state, char)}
        after = self._closed(taken | {0})  # a match may begin anywhere
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known[now, char] = after
        return after

    def _takes(self, state: int, char: str) -> bool:
        takes = self._states[state].takes
        return takes is not None and bool(takes(char))

    def _closed(self, states: set[int], *, first: bool = False, last: bool = False) -> frozenset[int]:
        """With all states that are reached without a character. Edges that do not hold here lead nowhere."""
        found, open_ = set(states), list(states)
        while open_:
            state = open_.pop()
            if state == self._end:
                continue
            self.steps += 1
            _, then, edge = self._states[state]
            if edge is not None:
                then = (state + 1,) if (last if edge.end else first) else ()
            fresh = [one for one in then if one not in found]
            found.update(fresh)
            open_ += fresh
        return frozenset(found)

    # States, from the parsed expression. Each node's states lie in a row and end where the next begin.

    def _emit(self, node: _Node) -> None:
        match node:
            case _One(takes):
                self._add(_State(takes))
            case _Edge():
                self._add(_State(None, edge=node))
            case _Row(parts):
                for part in parts:
                    self._emit(part)
            case _Either(parts):
                self._emit_either(parts)
            case _Times(part, least, most):
                self._emit_times(part, least, most)

    def _add(self, state: _State) -> int:
        if len(self._states) >= _MOST_STATES:
            raise EINVAL("regex", "the expression is too large", hint="fewer or smaller repetitions")
        self._states.append(state)
        return len(self._states) - 1

    def _emit_either(self, parts: tuple[_Node, ...]) -> None:
        fork = self._add(_State(None))
        starts: list[int] = []
        leaps: list[int] = []
        for part in parts:
            starts.append(len(self._states))
            self._emit(part)
            leaps.append(self._add(_State(None)))
        self._states[fork] = _State(None, tuple(starts))
        for leap in leaps:
            self._states[leap] = _State(None, (len(self._states),))

    def _emit_times(self, part: _Node, least: int, most: int | None) -> None:
        for _ in range(least):
            before = len(self._states)
            self._emit(part)
            if len(self._states) == before:  # nothing, which repeated is nothing: and nested would take for ever
                return
        if most is None:
            fork = self._add(_State(None))
            self._emit(part)
            self._add(_State(None, (fork,)))
            self._states[fork] = _State(None, (fork + 1, len(self._states)))
            return
        forks: list[int] = []
        for _ in range(most - least):
            forks.append(self._add(_State(None)))
            self._emit(part)
        for fork in forks:
            self._states[fork] = _State(None, (fork + 1, len(self._states)))


class _Parser:
    """Reads the expression; what one character may be is left to Python's own matcher."""

    def __init__(self, text: str) -> None:
        self._flags = re.IGNORECASE if text.startswith("(?i)") else 0
        self._text, self._at = text, 4 if self._flags else 0
        self._depth = 0

    def whole(self) -> _Node:
        node = self._either()
        if self._at < len(self._text):
            raise self._wrong("has a ) too many")
        return node

    def _either(self) -> _Node:
        parts = [self._row()]
        while self._took("|"):
            parts.append(self._row())
        return parts[0] if len(parts) == 1 else _Either(tuple(parts))

    def _row(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return _Row(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._took(sign):
                return self._once(_Times(node, least, most))
        if found := _REPEAT.match(self._text, self._at):
            least, comma, most = int(found[1]), found[2], found[3]
            upto = int(most) if most else None if comma else least
            if max(least, upto or 0) > _MOST_REPEATS or (upto is not None and upto < least) or (most and not comma):
                raise self._wrong(f"repeats more than {_MOST_REPEATS} times, or less than at least")
            self._at = found.end()
            return self._once(_Times(node, least, upto))
        return node

    def _once(self, node: _Times) -> _Times:
        """Whether as little or as much as possible is taken makes no difference to whether there is a match."""
        self._took("?")
        if self._at < len(self._text) and self._text[self._at] in "*+?":
            raise self._wrong("repeats a repetition")
        return node

    def _atom(self) -> _Node:
        char = self._text[self._at]
        match char:
            case "(":
                return self._group()
            case "[":
                return self._one(self._class())
            case "\\":
                return self._escaped()
            case "^" | "$":
                self._at += 1
                return _Edge(char == "$")
            case "*" | "+" | "?":
                raise self._wrong("repeats nothing")
            case _ if char == "." or self._flags:
                return self._one("." if char == "." else re.escape(char), len(char))
            case _:
                self._at += 1
                return _One(char.__eq__)

    def _group(self) -> _Node:
        self._at += 1
        if self._took("?") and not self._took(":"):
            raise self._wrong("has a group of a kind that is not supported", hint="only ( ) and (?: )")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong("is nested too deeply")
        node = self._either()
        self._depth -= 1
        if not self._took(")"):
            raise self._wrong("lacks a )")
        return node

    def _class(self) -> str:
        """A set of characters, as it stands there."""
        at = self._at + 1
        at += self._text.startswith("^", at)
        at += self._text.startswith("]", at)  # at the front it is an ordinary character
        while at < len(self._text) and self._text[at] != "]":
            at += 2 if self._text[at] == "\\" else 1
        if at >= len(self._text):
            raise self._wrong("lacks a ]")
        return self._text[self._at : at + 1]

    def _escaped(self) -> _Node:
        letter = self._text[self._at + 1 : self._at + 2]
        if not letter or (letter.isalnum() and letter not in _CLASSES):
            hint = "look-around, back references and word borders are not; [ ] is"
            raise self._wrong(f"has \\{letter}, which is not supported", hint=hint)
        return self._one("\\" + letter)

    def _one(self, atom: str, length: int | None = None) -> _One:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                takes = re.compile(atom, self._flags).fullmatch
        except (re.error, Warning) as error:
            raise self._wrong(f"has {atom}: {error}") from None
        self._at += len(atom) if length is None else length
        return _One(takes)

    def _took(self, char: str) -> bool:
        if not self._text.startswith(char, self._at):
            return False
        self._at += len(char)
        return True

    def _wrong(self, what: str, hint: str = "") -> EINVAL:
        reason = f"the expression {self._text!r} {what}, at character {self._at + 1}"
        return EINVAL("regex", reason, hint=hint, position=self._at)
