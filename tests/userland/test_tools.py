"""Functions as tools: schemas from annotations, mistakes at import, parameters as they come over the wire."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest

from agent_os import agent, tool
from agent_os.abi.errors import EIO, ENOENT, ETYPE
from agent_os.kernel.tools.schema import Schema
from agent_os.kernel.tools.spec import checked
from agent_os.userland.tools import Function


class Tree(msgspec.Struct):
    name: str
    kids: "list[Tree]" = []


@dataclass
class Point:
    x: int
    y: int = 0


def run(function: Function[..., Any], context: Any = None, **params: Any) -> Any:
    return asyncio.run(function.run(params, context))


@tool(effect="pure")
async def word_count(text: str) -> int:
    "Number of words in a text."
    return len(text.split())


def test_the_example_of_the_guide() -> None:
    spec = word_count.spec
    assert (spec.name, spec.description, spec.effect) == ("word_count", "Number of words in a text.", "pure")
    assert spec.input_schema == {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    }
    assert spec.output_schema == {"type": "integer"}
    assert run(word_count, text="a b c") == 3
    assert asyncio.run(word_count("a b")) == 2  # as before
    assert repr(word_count) == "<tool word_count>"


def test_types_become_schemas_that_the_kernel_understands() -> None:
    @tool
    def plot(
        at: Point,
        tree: Tree,
        mode: Literal["dot", "line"] = "dot",
        size: Annotated[int, msgspec.Meta(ge=1, le=9, description="of the pen")] = 1,
        tags: list[str] | None = None,
    ) -> Point:
        """Draw it.

        At length.
        """
        return Point(at.x + size, at.y)

    schema, spec = Schema(plot.spec.input_schema), checked(plot.spec, program=True)
    assert spec.digest
    assert spec.description == "Draw it."
    good = {"at": {"x": 1}, "tree": {"name": "a", "kids": [{"name": "b"}]}, "size": 9, "tags": None}
    assert schema.fits(good)
    for wrong in (
        {"size": 10},
        {"mode": "x"},
        {"tree": {"name": "a", "kids": [{}]}},
        {"at": {"x": 1, "z": 2}},
        {"more": 1},
    ):
        assert not schema.fits(good | wrong)
    assert spec.input_schema["properties"]["size"]["description"] == "of the pen"
    result = run(plot, at={"x": 1}, tree={"name": "a"})
    assert result == {"x": 2, "y": 0}
    assert Schema(spec.output_schema).fits(result)


def test_a_mistake_shows_when_the_file_is_loaded() -> None:
    with pytest.raises(TypeError, match="the parameter 'b' needs a type: b: str"):

        @tool
        def one(a: int, b) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(TypeError, match="must have a name"):

        @tool
        def two(*words: str) -> None: ...

    with pytest.raises(TypeError, match="cannot be written as a schema"):

        @tool
        def three(a: object) -> None: ...

    with pytest.raises(TypeError, match="not known when the file is loaded"):

        @tool
        def four(a: "Nobody") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="first parameter"):

        @tool
        def five(a: int, ctx: Any) -> None: ...


def test_a_function_without_words_is_described_by_its_name() -> None:
    @tool
    def send_the_report(to: str): ...  # type: ignore[no-untyped-def]

    assert send_the_report.spec.description == "send the report"
    assert send_the_report.spec.output_schema is None


def test_the_context_is_no_parameter_and_comes_first() -> None:
    @tool
    async def note(ctx: Any, text: str) -> str:
        return f"{ctx}: {text}"

    assert "ctx" not in note.spec.input_schema["properties"]
    assert run(note, "the context", text="hello") == "the context: hello"


@pytest.mark.parametrize("params", [{}, {"text": 5}, {"text": "a", "more": 1}])
def test_parameters_that_do_not_fit_run_nothing(params: dict[str, Any]) -> None:
    with pytest.raises(ETYPE):
        run(word_count, **params)


def test_what_it_raises_is_told_and_errors_of_the_kernel_stay_what_they_are() -> None:
    @tool
    def fails(how: str) -> int:
        if how == "kernel":
            raise ENOENT("vfs.absent", "there is nothing")
        return int(how)

    with pytest.raises(EIO) as caught:
        run(fails, how="x")
    assert "ValueError" in caught.value.reason
    assert caught.value.detail["ran"] is True
    with pytest.raises(ENOENT):
        run(fails, how="kernel")


def test_an_agent_names_tools_of_others_and_has_its_own() -> None:
    @agent(tools=["http.fetch", word_count])
    async def digest(ctx: Any, url: str) -> None: ...

    assert digest.caps == ["tool:http.fetch:call"]  # its own need no right
    assert digest.tools == ("http.fetch", word_count)
