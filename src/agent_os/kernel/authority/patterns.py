"""The pattern language of targets: what a capability or a rule names, and whether one pattern lies inside another.

In: a kind and a text. Out: a `Pattern` that matches normalised targets in linear time, without regular expressions, and
proves that it is a subset of another, or EINVAL with the position. Pure text: it looks at no file and resolves no name.

A target is a row of segments: of a path (`file`, `mem`), of a host and a path (`http`), of a topic (`ipc`), of names.
A segment is a literal, `*`, or one `*` between a fixed beginning and end. A last segment `*` or `**` is the subtree:
everything strictly below. Only rules, which are matched and never handed on, may have `**` once in the middle. Of a
topic a last token `+` is exactly one token.
"""

import unicodedata
from collections.abc import Collection, Sequence

from agent_os.abi.errors import EINVAL

MOST_BYTES = 4096
MOST_SEGMENTS = 64
KINDS = ("agent", "file", "http", "ipc", "llm", "mem", "secret", "shell", "tool")
ROOTED = frozenset({"file", "mem"})  # their targets are absolute paths
_SLASHED = ROOTED | {"shell"}
_URLISH = _SLASHED | {"http"}
_SINGLE = frozenset({"tool", "secret"})  # one name, whatever is in it
_STARS = ("*", "**")
ONE_TOKEN = "+"  # of a topic; no topic has a token of that name
_FILTER_REST = ">"  # the last token of a subscriber's filter that takes whatever is below
_ENCODED = str.maketrans({char: f"%{ord(char):02X}" for char in "%?&{}"})
_CONTROL = {"Cc", "Cs"}

Cut = tuple[str, str | None]  # how a segment begins and ends; no end: it is a literal
_WHOLE: Cut = ("", "")


class Flaw(Exception):
    """What is wrong with a text, and where."""

    def __init__(self, position: int, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.position, self.why, self.hint = position, why, hint

    def error(self, text: str, code: str = "cap.pattern") -> EINVAL:
        shown = text if len(text) <= 100 else f"{text[:100]}…"
        reason = f"{shown!r}, at position {self.position}: {self.why}"
        return EINVAL(code, reason, hint=self.hint, position=self.position)


class Pattern:
    """Equal patterns have equal text. For an index: `segments` are the texts between separators without any `**`,
    `wild` says which of them hold a wildcard (a literal star is possible), `middle` is the place among them where a
    rule's `**` stands. Of `http` they are the path's; `host` is a name, `*.name` or `*`. `own`: no name at all, which
    for agents means one's own descendants; who that is the capability must be told, so nothing matches here."""

    __slots__ = ("_cuts", "_exact", "_fresh", "_prefix", "_text", "host", "kind", "middle", "own", "subtree")

    def __init__(
        self,
        kind: str,
        cuts: Sequence[Cut],
        *,
        subtree: bool = False,
        middle: int | None = None,
        host: str = "",
        own: bool = False,
    ) -> None:
        self.kind, self.subtree, self.middle, self.host, self.own = kind, subtree, middle, host, own
        self._cuts = tuple(cuts)
        self._text: str | None = None
        self._exact: str | None = None
        self._prefix: str | None = None
        self._fresh = True  # the two above are worked out when first needed: many are only proved and handed on

    @classmethod
    def parse(cls, kind: str, text: str, *, rule: bool = False) -> "Pattern":
        try:
            return compiled(kind, text, rule=rule)
        except Flaw as flaw:
            raise flaw.error(text) from None

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(begin if end is None else f"{begin}*{end}" for begin, end in self._cuts)

    @property
    def stem(self) -> str:
        """How every target begins that this matches or hangs from: a quick way to say no."""
        if self.exact is not None:
            return self.exact
        if self._prefix is not None:
            return self._prefix.rstrip("/.")
        return "" if self.kind not in ROOTED or self.own else self._rooted_stem()

    def _rooted_stem(self) -> str:
        stem = ""
        for begin, end in self._cuts if self.middle is None else self._cuts[: self.middle]:
            stem += f"/{begin}"
            if end is not None:
                break
        return stem

    @property
    def wild(self) -> tuple[bool, ...]:
        return tuple(end is not None for _, end in self._cuts)

    @property
    def exact(self) -> str | None:
        """The one target that it matches, if there is only one."""
        if self._fresh:
            self._take_shortcuts()
        return self._exact

    @property
    def prefix(self) -> str:
        """How all begins that it matches, where nothing else must be looked at; else empty."""
        if self._fresh:
            self._take_shortcuts()
        return self._prefix or ""

    @property
    def anything(self) -> bool:
        return self.subtree and not self._cuts and self.host in ("", "*")

    def matches(self, target: str) -> bool:
        if self._fresh:
            self._take_shortcuts()
        if self.kind == "http" and "/" not in target:
            target += "/"
        if self._exact is not None:
            return target == self._exact
        if self._prefix is not None:
            return target.startswith(self._prefix) and (len(target) > len(self._prefix) or self.kind == "http")
        return not self.own and self._walk(*split(self.kind, target))

    def matches_host(self, host: str) -> bool:
        """Of `http`: whether anything of that host is in it."""
        return _host_within(host, self.host)

    def is_base(self, target: str) -> bool:
        """Whether the target is what this subtree hangs from, which is not in it."""
        if not self.subtree or self.middle is not None:
            return False
        if self._fresh:
            self._take_shortcuts()
        if self._prefix is not None:
            return target == (self._prefix[:-1] or "/")
        parts = split(self.kind, target)[1]
        return len(parts) == len(self._cuts) and all(map(_fits, parts, self._cuts))

    def within(self, other: "Pattern") -> bool:
        """Proved: whatever this matches, the other matches. False where it cannot be proved."""
        if self.kind != other.kind:
            return False
        if self.own or other.own:
            return self.own and (other.own or other.anything)
        if self.host and not _host_within(self.host, other.host):
            return False
        return self._below(other) if other.middle is None else self._below_rule(other)

    def after(self, used: int, segment: str) -> list[int]:
        """For whoever follows a path: how many of its segments may be used up after one more of the path."""
        on = [used] if used == self.middle or (self.subtree and used == len(self._cuts)) else []
        if used < len(self._cuts) and _fits(segment, self._cuts[used]):
            on.append(used + 1)
        return on

    def reaches(self, folder: str) -> bool:
        """Whether it may match something strictly below that path."""
        used = {0}
        for segment in split(self.kind, folder)[1]:
            used = {after for before in used for after in self.after(before, segment)}
        return any(one < len(self._cuts) or self.subtree for one in used)

    def folded(self) -> "Pattern":
        """The same without regard to case, for targets that are case-folded too."""
        cuts = [(begin.casefold(), end if end is None else end.casefold()) for begin, end in self._cuts]
        return Pattern(self.kind, cuts, subtree=self.subtree, middle=self.middle, host=self.host, own=self.own)

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._print()
        return self._text

    def __repr__(self) -> str:
        return f"Pattern({self.kind!r}, {str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.kind == other.kind and str(self) == str(other)

    def __hash__(self) -> int:
        return hash((self.kind, str(self)))

    def _walk(self, host: str, parts: Sequence[str]) -> bool:
        if not _host_within(host, self.host):
            return False
        if self.kind == "ipc" and not self.subtree and parts[-1] == _FILTER_REST:
            return False  # only a subtree is as wide
        cuts, count, more = self._cuts, len(self._cuts), len(parts) - len(self._cuts)
        least = 1 if self.subtree and not (self.kind == "http" and not cuts) else 0
        if more < least:
            return False
        if self.middle is None:
            return (self.subtree or more == 0) and all(map(_fits, parts[:count], cuts))
        head, tail = cuts[: self.middle], cuts[self.middle :]
        if not all(map(_fits, parts[: self.middle], head)):
            return False
        starts = range(self.middle, self.middle + more) if self.subtree else (self.middle + more,)
        return any(all(map(_fits, parts[at : at + len(tail)], tail)) for at in starts)

    def _below(self, other: "Pattern") -> bool:
        """The other is a row of segments, with or without a subtree. A middle `**` of ours is a gap of any width: what
        stands before it, and how many segments there are at least, is all that is known."""
        known = self._cuts if self.middle is None else self._cuts[: self.middle]
        mine, theirs = len(self._cuts), len(other._cuts)
        if not other.subtree:
            return (
                not self.subtree
                and self.middle is None
                and mine == theirs
                and all(map(_cut_within, self._cuts, other._cuts))
            )
        below = mine > theirs or (mine == theirs and (self.subtree or (self.kind == "http" and not theirs)))
        return below and len(known) >= theirs and all(map(_cut_within, known[:theirs], other._cuts))

    def _below_rule(self, other: "Pattern") -> bool:
        """The other has a middle `**`: lay its end somewhere along ours."""
        if self == other:
            return True
        gap = other.middle or 0
        if self.middle is not None and self.middle < gap:
            return False
        head, tail = other._cuts[:gap], other._cuts[gap:]
        last = len(self._cuts) - len(tail)
        if last < gap or not all(map(_cut_within, self._cuts[:gap], head)):
            return False
        starts: Sequence[int] = range(gap, last + 1 if self.subtree else last)
        if not other.subtree:
            starts = () if self.subtree else (last,)
        after = self.middle or 0  # what is before our own gap is not next to what is after it
        return any(
            all(map(_cut_within, self._cuts[at : at + len(tail)], tail))
            for at in starts
            if self.middle is None or at >= after or at + len(tail) <= after
        )

    def _print(self) -> str:
        rows = [_print_cut(cut) for cut in self._cuts]
        if self.own or (self.kind == "shell" and self.anything):
            return ""
        if self.middle is not None:
            rows.insert(self.middle, "**")
        if self.subtree:
            rows.append("**")
        if self.kind in ROOTED or self.kind == "shell":
            return "/" + "/".join(rows)
        if self.kind == "http":
            return f"{self.host}/{'/'.join(rows)}"
        if self.anything:
            return "*"
        if self.kind == "ipc" and rows[0] == "topic":
            if rows[-1] == "*":
                rows[-1] = ONE_TOKEN
            return f"topic/{'.'.join(rows[1:])}"
        return "/".join(rows)

    def _take_shortcuts(self) -> None:
        """Where there is no wildcard but a subtree, comparing text is enough: all of it, or its beginning."""
        self._fresh = False
        if self.own or self.middle is not None or "*" in self.host or any(end is not None for _, end in self._cuts):
            return
        if self.anything and self.kind not in ROOTED:
            self._prefix = ""
            return
        texts = [begin for begin, _ in self._cuts]
        if self.kind == "ipc" and texts[0] == "topic":
            plain = f"topic/{'.'.join(texts[1:])}"
            base = f"{plain}." if len(texts) > 1 else plain
        else:
            lead = f"{self.host}/" if self.kind == "http" else "/" if self.kind in _SLASHED else ""
            plain = lead + "/".join(texts)
            base = f"{plain}/" if texts else plain
        if self.subtree:
            self._prefix = base
        else:
            self._exact = plain


def split(kind: str, target: str) -> tuple[str, list[str]]:
    """A target as patterns see it: its host (of `http`, else empty) and its segments."""
    host = ""
    if kind == "http":
        host, _, target = target.partition("/")
    elif kind in _SINGLE:
        return "", [target]
    elif kind in ROOTED or kind == "shell":
        target = target.removeprefix("/")
    elif kind == "ipc" and target.startswith("topic/"):
        return "", ["topic", *target[6:].split(".")]
    return host, target.split("/") if target else []


def compiled(kind: str, text: str, *, rule: bool = False, literal: Collection[int] = ()) -> Pattern:
    """`Pattern.parse` that raises a Flaw. `literal`: positions of stars that stand for themselves."""
    _check_text(text)
    if not text and (rule or kind == "shell"):
        return Pattern(kind, (), subtree=True, host="*" if kind == "http" else "")
    if not text and kind == "agent":
        return Pattern(kind, (), own=True)
    if not text:
        raise Flaw(0, f"{kind} needs a target", "name what it is about")
    if text in _STARS and not literal and kind not in ROOTED:
        return Pattern(kind, (), subtree=True, host="*" if kind == "http" else "")
    host, begin, separator = "", 0, "/"
    if kind in ROOTED or kind == "shell":
        if kind == "shell" and not rule:
            raise Flaw(0, "shell has no target but *", "name the programs: shell:execute{allowlist:ls|cat}")
        if not text.startswith("/"):
            raise Flaw(0, f"a {kind} target starts with '/'", "for everything write /**")
        begin = 1
    elif kind == "http":
        name, slash, _ = text.partition("/")
        host = _host(name)
        if not slash:
            return Pattern(kind, (), subtree=True, host=host)
        begin = len(name) + 1
    elif kind == "ipc":
        head, slash, _ = text.partition("/")
        if not slash or head not in ("agent", "topic"):
            raise Flaw(0, "an ipc target is agent/NAME or topic/T.U")
        begin, separator = len(head) + 1, "." if head == "topic" else "/"
    pieces = [text[begin:]] if kind in _SINGLE else text[begin:].split(separator)
    cuts, subtree, middle = _cuts(kind, pieces, begin, rule, literal, topic=separator == ".")
    if kind == "ipc":
        cuts = [(text[: begin - 1], None), *cuts]
        middle = middle if middle is None else middle + 1
    return Pattern(kind, cuts, subtree=subtree, middle=middle, host=host)


def first_control(text: str) -> int:
    """Where the first control character stands; -1: there is none."""
    if text.isprintable():
        return -1
    return next((at for at, char in enumerate(text) if unicodedata.category(char) in _CONTROL), -1)


def _check_text(text: str) -> None:
    if text.isascii() and text.isprintable() and len(text) <= MOST_BYTES:  # nearly always
        return
    if len(text.encode(errors="surrogatepass")) > MOST_BYTES:
        raise Flaw(0, f"a target has at most {MOST_BYTES} bytes")
    if (at := first_control(text)) >= 0:
        raise Flaw(at, f"a control character ({text[at]!r}) stands for nothing here")
    if not text.isascii() and unicodedata.normalize("NFC", text) != text:
        normal = unicodedata.normalize("NFC", text)
        at = next((at for at, (a, b) in enumerate(zip(text, normal, strict=False)) if a != b), len(normal))
        raise Flaw(at, "the name is not in NFC, so it would match nothing", f"write {normal!r}")


def _cuts(
    kind: str, pieces: Sequence[str], begin: int, rule: bool, literal: Collection[int], *, topic: bool = False
) -> tuple[list[Cut], bool, int | None]:
    """Segments, whether a subtree hangs below them, and where a rule's `**` stands among them."""
    if len(pieces) > MOST_SEGMENTS:
        raise Flaw(begin, f"a target has at most {MOST_SEGMENTS} segments")
    if pieces == [""] and kind in _URLISH:
        return [], False, None
    cuts: list[Cut] = []
    middle, last, at = None, len(pieces) - 1, begin
    for index, piece in enumerate(pieces):
        if piece in _STARS and at not in literal:
            if index == last:
                return cuts, True, middle
            if piece == "**":
                if not rule:
                    raise Flaw(at, "** stands only at the end", "in the middle * is exactly one segment")
                if middle is not None or (index == last - 1 and pieces[last] in _STARS):
                    raise Flaw(at, "** stands at most once in the middle, and not next to another")
                middle = len(cuts)
                at += len(piece) + 1
                continue
        if topic and piece == ONE_TOKEN:
            if index != last:
                raise Flaw(at, f"{ONE_TOKEN} stands only at the end", "in the middle * is exactly one token")
            piece = "*"
        cuts.append(_cut(kind, piece, at, literal, last=index == last))
        at += len(piece) + 1
    return cuts, False, middle


def _cut(kind: str, piece: str, at: int, literal: Collection[int], *, last: bool) -> Cut:
    if not piece and not (kind == "http" and last):
        raise Flaw(at, "an empty segment stands for nothing", "a subtree ends in /**")
    if piece in (".", "..") and kind in _URLISH:
        raise Flaw(at, f"{piece!r} is not resolved here", "name it from the root")
    if "*" not in piece:
        return piece, None
    stars = [place for place, char in enumerate(piece) if char == "*" and at + place not in literal]
    if not stars:
        return piece, None
    if len(stars) > 1:
        raise Flaw(at + stars[1], "a segment has at most one *")
    return piece[: stars[0]], piece[stars[0] + 1 :]


def _host(name: str) -> str:
    if name == "*":
        return name
    below = name.startswith("*.")
    rest = name[2:] if below else name
    if "*" in rest:
        raise Flaw(name.rindex("*"), "in a host * stands alone or first, as in *.example.com")
    from agent_os.kernel.egress.addresses import canonical_host  # here: the doors of egress import authority

    try:
        host = canonical_host(rest)
    except EINVAL as error:
        raise Flaw(2 if below else 0, error.reason, error.hint) from None
    if isinstance(host, str):
        return f"*.{host}" if below else host
    if below:
        raise Flaw(2, "nothing is below an address")
    return f"[{host}]" if host.version == 6 else str(host)


def _host_within(one: str, other: str) -> bool:
    if other == "*" or one == other:
        return True
    return other.startswith("*.") and one.endswith(other[1:]) and len(one) > len(other) - 1


def _fits(text: str, cut: Cut) -> bool:
    begin, end = cut
    if end is None:
        return text == begin
    return len(text) >= len(begin) + len(end) and text.startswith(begin) and text.endswith(end)


def _cut_within(one: Cut, other: Cut) -> bool:
    if other == _WHOLE:
        return True
    if one[1] is None:
        return _fits(one[0], other)
    return other[1] is not None and one[0].startswith(other[0]) and one[1].endswith(other[1])


def _print_cut(cut: Cut) -> str:
    begin, end = (part if part is None else part.translate(_ENCODED).replace("*", "%2A") for part in cut)
    return f"{begin}" if end is None else f"{begin}*{end}"
