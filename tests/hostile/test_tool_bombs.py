"""Small things that would cost the kernel long: pages, results, schemas, names and queries that somebody made for that.

The kernel has one thread, so each is held against the processor time that it may take. Every one of these took from ten
seconds to hours before it was bounded.
"""

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.abi.tools import ToolSpec
from agent_os.drivers.tools import Answer, http
from agent_os.drivers.tools.files import fits
from agent_os.kernel.tools.output import bound
from agent_os.kernel.tools.registry import Call, Deed, Registry
from agent_os.kernel.tools.schema import Schema

pytestmark = pytest.mark.hostile

MOST_SECONDS = 2.0  # of the processor; what is bounded takes a tenth of one


@contextmanager
def soon() -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < MOST_SECONDS


# Pages.


@pytest.mark.parametrize(
    "page",
    [
        "<" + "a" * 200_000,
        "<a " * 60_000,
        "<script" + " a" * 100_000,
        "<!" * 100_000,
        "<!--" * 50_000,
        "&#" + "1" * 200_000 + ";",
        "&#x" + "f" * 200_000 + ";",
        "&" + "a" * 200_000,
        "\n \n" * 60_000 + "x",
    ],
    ids=["tag", "tags", "script", "marks", "comments", "number", "hex", "name", "lines"],
)
def test_a_page_is_made_text_in_linear_time(page: str) -> None:
    with soon():
        http.readable(page)


def test_a_page_still_reads_as_it_did() -> None:
    page = "<p>a<b class='x'>b</b>&#65;&amp;&#x42;<br>c<script>no</script></p><!-- no --><td>d"
    assert http.readable(page) == "abA&B\nc\nd"
    assert http.readable(f"&#{'9' * 30};") == "\ufffd"


@pytest.mark.parametrize("name", ["punycode", "idna", "unicode_escape", "raw_unicode_escape", "utf-7", "undefined"])
def test_a_charset_that_no_page_is_in_is_not_used(name: str) -> None:
    body = b"a" * 60_000 + b"-" + b"a" * 60_000
    with soon():
        assert http.decoded(body, f"text/html; charset={name}") == body.decode()


@pytest.mark.parametrize("name", ["utf-8", "ISO-8859-1", "windows-1252", "shift_jis", "gb18030", "utf-16le", "koi8-r"])
def test_a_charset_of_pages_is_used(name: str) -> None:
    assert http.decoded("abc".encode(name), f'text/html; charset="{name}"') == "abc"


def test_an_answer_of_many_packed_members_is_unpacked_in_bounded_time() -> None:
    body = gzip.compress(b"") * 100_000
    with soon():
        assert http.unpacked(Answer(200, [("content-encoding", "gzip")], body))[0] == b""


# Results.


@pytest.mark.parametrize(
    "value",
    [["a"] * 1_000_000, [["a"]] * 30_000, {str(number): "b" * 10 for number in range(20_000)}, ["é\x01" * 9] * 15_000],
    ids=["list", "lists", "object", "escapes"],
)
def test_a_result_of_many_small_texts_is_cut_in_linear_time(value: Any) -> None:
    with soon():
        kept = bound(value, 65_536)
    assert kept.result.cut
    assert kept.blob


# Schemas and what is held against them.

_ROW = [1] * 1249
_MANY = 4000


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [[*_ROW, number] for number in range(70)]}}, [[*_ROW, -1]] * 500),
        ({"items": {"anyOf": [{"const": [*_ROW, number]} for number in range(60)]}}, [[*_ROW, -1]] * 400),
        ({"allOf": [{"uniqueItems": True}] * _MANY}, ["\x01" * 900_000]),
        ({"items": {"dependentRequired": {"a": ["a"] * 40_000}}}, [{"a": 1}] * 10_000),
        ({"allOf": [{"properties": {"q": True}}] * _MANY}, {str(number): 1 for number in range(100_000)}),
        ({"allOf": [{"additionalProperties": True}] * _MANY}, {str(number): 1 for number in range(10_000)}),
        ({"anyOf": [{"$ref": "#/$defs/large"}] * _MANY}, 3),
        ({"allOf": [{"required": ["a"] * 10} for _ in range(400)]}, {"a": 1}),
    ],
    ids=["enum", "const", "unique", "dependent", "properties", "additional", "told", "required"],
)
def test_no_schema_takes_long_to_hold_a_value_against(schema: dict[str, Any], value: Any) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": {"large": {"enum": [[1] * 20_000]}}}
    understood = Schema(whole)
    with soon():
        understood.fits({"x": value})


def test_what_is_the_same_is_still_found_among_choices() -> None:
    schema = Schema({"enum": [{"a": [1, 2.0, {"b": None}]}, [1, True], "x"]})
    assert all(map(schema.fits, ({"a": [1.0, 2, {"b": None}]}, [1, True], "x")))
    assert not any(map(schema.fits, ({"a": [1, 2]}, [True, 1], [1], {"b": 1}, "y")))


def _literal(number: int) -> str:
    return "".join(chr(0x100 + (number * 200 + place) % 50_000) for place in range(199))


def _classes(number: int) -> str:
    return "".join(f"[{chr(0x100 + (number * 200 + place) % 50_000)}b]" for place in range(50))


@pytest.mark.parametrize("pattern", [_literal, _classes])
def test_the_patterns_of_a_schema_are_made_ready_in_bounded_time(pattern: Callable[[int], str]) -> None:
    written = {"type": "object", "properties": {str(one): {"pattern": pattern(one)} for one in range(200)}}
    with soon():
        strangers = Schema(written, foreign=True)
        with pytest.raises(EINVAL, match="all patterns together"):
            Schema(written)
    assert len(strangers.unchecked) > 150


# Names and queries.


def _registry() -> Registry:
    async def run(call: Call) -> Any:
        return None

    registry = Registry(time.monotonic)
    for number in range(256):
        spec = ToolSpec(name=f"a.{'ab' * 21}{number:03}", description="a a", requires=("tool:call",))
        registry.register(spec, Deed(run), owner="its")
    return registry


@pytest.mark.parametrize("name", ["b." + "ba" * 22, "b." + "ba" * 500_000, "b." + "ba" * 60])
def test_a_name_that_nothing_has_is_refused_in_bounded_time(name: str) -> None:
    registry = _registry()
    with soon(), pytest.raises(ENOENT):
        registry.get(name, "its")


def test_a_query_of_half_a_million_words_is_refused() -> None:
    with soon(), pytest.raises(EINVAL, match="query"):
        _registry().list("a " * 500_000, agent="its")


@pytest.mark.parametrize("glob", ["*a" * 127 + "b", "*" + "?*" * 100 + "b", "*" + "[a-z]*[!b]*" * 20 + "b", "**/" * 80])
def test_a_glob_takes_no_long_time(glob: str) -> None:
    with soon():
        assert not fits("a" * 255, glob) or glob.endswith("/")
        fits("a/" * 32, glob)
