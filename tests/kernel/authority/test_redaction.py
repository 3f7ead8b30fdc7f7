"""No spelling of a value that is promised to be found gets through, at whatever borders the stream is cut."""

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.authority.redaction import Needles, Redactor


def _lines(text: bytes) -> list[bytes]:
    return [text[at : at + 8] for at in range(0, len(text), 8)]


VALUE = b'sk-Canary/9+7=?&z%_"x'
SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "hex": lambda value: value.hex().encode(),
    "upper hex": lambda value: value.hex().upper().encode(),
    "mixed hex": lambda value: b"".join(b"%x%X" % (byte >> 4, byte & 15) for byte in value),
    "base64": b64encode,
    "base64 after one byte": lambda value: b64encode(b"u" + value + b"!"),
    "base64 after two bytes": lambda value: b64encode(b"u:" + value + b"!?"),
    "url-safe base64": urlsafe_b64encode,
    "url-safe base64 after one byte": lambda value: urlsafe_b64encode(b":" + value),
    "base64 in lines": lambda value: b"\r\n".join(_lines(b64encode(b"Bearer " + value + b"!"))),
    "base64 in lines, in JSON": lambda value: b"\\n".join(_lines(b64encode(value))),
    "base64 in a URL": lambda value: quote(b64encode(value), safe="").encode(),
    "URL": lambda value: quote(value, safe="").encode(),
    "lower-case URL": lambda value: (
        quote(value, safe="").lower().encode() if value.islower() else quote(value).encode()
    ),
    "form": lambda value: quote_plus(value).encode(),
    "all of it in a URL": lambda value: b"".join(b"%%%02x" % byte for byte in value),
    "JSON": lambda value: json.dumps(value.decode("latin-1")).encode()[1:-1] if value.isascii() else value,
    "JSON with all escapes": lambda value: b"".join(b"\\u%04X" % byte for byte in value) if value.isascii() else value,
}


def traces(value: bytes, text: bytes) -> list[str]:
    """The spellings in which a piece of the value of at least eight bytes is still to be read."""
    return [
        name
        for name, spell in SPELLINGS.items()
        for at in range(len(value) - 7)
        if "base64" not in name and spell(value[at : at + 8]) in text
    ]


def fed(needles: Needles, pieces: Sequence[bytes]) -> tuple[bytes, int]:
    redactor = Redactor(needles)
    return b"".join([*map(redactor.feed, pieces), redactor.end()]), redactor.found


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_masked_and_nothing_else_changes(spelling: str) -> None:
    text = b'{"error": "bad key ' + (spelled := SPELLINGS[spelling](VALUE)) + b' given"}'
    masked = Needles([VALUE]).mask(text)
    assert len(masked) == len(text)
    assert masked.startswith(b'{"error": "bad key ')
    assert masked.endswith(b' given"}')
    # of base64 the first and the last character may belong to the neighbours as well
    assert masked.count(b"*") >= min(len(spelled), len(VALUE) * 8 // 6) - 1
    assert traces(VALUE, masked) == []


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_border_between_two_chunks_is_the_same(spelling: str) -> None:
    needles = Needles([VALUE, b"another-value-here"])
    text = b"before " + SPELLINGS[spelling](VALUE) + b" after"
    whole = needles.mask(text)
    for at in range(len(text) + 1):
        assert fed(needles, [text[:at], text[at:]])[0] == whole
    assert fed(needles, [text[at : at + 1] for at in range(len(text))])[0] == whole


_values = st.lists(st.binary(min_size=8, max_size=40), min_size=1, max_size=3)
_noise = st.binary(max_size=30)


@given(_values, st.lists(st.tuples(_noise, st.sampled_from(sorted(SPELLINGS))), max_size=5), st.data())
def test_a_stream_is_masked_as_the_whole_text_is(
    values: list[bytes], parts: list[tuple[bytes, str]], data: st.DataObject
) -> None:
    needles = Needles(values)
    text = b"".join(noise + SPELLINGS[name](values[at % len(values)]) for at, (noise, name) in enumerate(parts))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    out, _ = fed(needles, pieces)
    assert len(out) == len(text)
    for value in values:
        if len(set(value)) > 4:  # a value that repeats itself may overlap with itself, and a star is a byte
            assert value not in out
            assert value.hex().encode() not in out.lower()


@given(st.binary(min_size=8, max_size=64), st.binary(max_size=500))
def test_what_holds_no_value_passes_unchanged(value: bytes, text: bytes) -> None:
    needles = Needles([value])
    if not needles.spans(text):
        assert needles.mask(text) == text
        assert fed(needles, [text[:100], text[100:]]) == (text, 0)


def test_an_event_passes_whole_and_at_once() -> None:
    redactor = Redactor(Needles([VALUE]))
    event = b'data: {"delta": "ask sk"}\n\n'
    assert redactor.feed(event) == event
    assert redactor.feed(b"data: s") == b"data: "  # may be the beginning of one
    assert redactor.feed(b"o it is\n\n") == b"so it is\n\n"


def test_no_more_is_held_back_than_a_value_is_long() -> None:
    redactor, passed, most = Redactor(Needles([b"a" * 7 + b"b"])), 0, 0
    for sent in range(1, 3000):
        passed += len(redactor.feed(b"a"))
        most = max(most, sent - passed)
    assert most <= 8 * 6
    assert redactor.end() == b"a" * (2999 - passed)


def test_overlapping_values_are_all_masked() -> None:
    needles = Needles([b"abcdefghij", b"ghijklmnop"])
    assert needles.mask(b"-abcdefghijklmnop-") == b"-" + b"*" * 16 + b"-"
    assert fed(needles, [b"-abcdefghi", b"jklm", b"nop-"])[0] == b"-" + b"*" * 16 + b"-"


def test_without_values_everything_passes() -> None:
    assert not Needles([])
    assert fed(Needles([]), [b"x%", b"\\u00"]) == (b"x%\\u00", 0)


def test_a_text_with_odd_characters_is_masked_too() -> None:
    assert Needles([b"p\xc3\xa4ssword"]).mask_text("no: pässword \udcff!") == "no: ********* \udcff!"
    assert Needles(["pässword".encode()]).mask(json.dumps("pässword").encode()) == b'"' + b"*" * 13 + b'"'
