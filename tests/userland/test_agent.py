"""A declaration says what a program needs, refuses what could not be run, and brings input to its types."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from agent_os import agent
from agent_os.abi.errors import EINVAL
from agent_os.userland.agent import Agent


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@agent
async def bare(ctx: Any) -> str:
    "Says hello."
    return "hello"


@agent(name="fetcher", caps=["mem:/mem/shared/**:read"], http=["api.example.com"], files=["ro:/data", "rw:out", "in"])
async def declared(ctx: Any, url: str, depth: int = 1, at: Point | None = None) -> str:
    return f"{url} {depth} {at}"


@agent(model="small", tools=["web.search"])
async def one_input(ctx: Any, order: dict[str, Any]) -> None: ...


def test_it_is_declared_bare_or_with_needs() -> None:
    assert (bare.name, bare.caps, bare.__doc__) == ("bare", [], "Says hello.")
    assert declared.name == "fetcher"
    assert declared.caps == [
        "mem:/mem/shared/**:read",
        "net:api.example.com:connect",
        "file:/data/**:read",
        "file:/work/out/**:read,write",
        "file:/work/in/**:read",
    ]
    assert (one_input.caps, one_input.extra) == (
        ["tool:web.search:call", "llm:small:call"],
        {"model": "small"},
    )
    assert declared.manifest()["program"] == {"runtime": "python", "entry": f"{__file__}:declared"}


def test_the_model_of_a_manifest_or_an_operator_takes_the_place_of_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asks(ctx: Any) -> None: ...

    own = agent(model="p/own")(asks)
    assert (own.caps, own.manifest()["program"]["model"]) == (["llm:p/own:call"], "p/own")
    monkeypatch.setenv("AGENT_OS_MODEL", "p/other")
    other = agent(model="p/own")(asks)
    assert (other.caps, other.manifest()["program"]["model"]) == (["llm:p/other:call"], "p/other")
    assert "model" not in agent(asks).manifest()["program"], "who wants no model is given none"


def test_a_program_can_still_be_called_by_hand() -> None:
    with pytest.raises(StopIteration, match="hello"):
        bare(None).send(None)


BOUND = [
    (declared, {"url": "u"}, [], {"url": "u"}),
    (declared, None, ["u"], {"url": "u"}),
    (declared, None, ["depth=3", "u"], {"url": "u", "depth": 3}),
    (declared, {"url": "u", "depth": "4"}, [], {"url": "u", "depth": 4}),
    (declared, {"url": "u", "at": {"x": 1}}, [], {"url": "u", "at": Point(1)}),
    (declared, None, ["a=b"], {"url": "a=b"}),
    (one_input, {"item": "tea", "count": 2}, [], {"order": {"item": "tea", "count": 2}}),
    (one_input, {"order": {}}, [], {"order": {}}),
    (bare, None, [], {}),
]


@pytest.mark.parametrize(("program", "given", "words", "expected"), BOUND)
def test_input_is_bound_by_name_and_type(program: Agent[..., Any], given: Any, words: list[str], expected: Any) -> None:
    assert program.bind(given, words) == expected


REFUSED = [
    (declared, None, [], "needs 'url'"),
    (declared, {"url": "u", "speed": 1}, [], "no parameter for 'speed'"),
    (declared, {"url": "u", "depth": "deep"}, [], "'depth' does not fit"),
    (declared, "u", [], "takes 3 inputs"),
    (bare, None, ["what"], "takes no input"),
    (declared, None, ["a", "1", "{}", "b"], "does not fit|that many"),
]


@pytest.mark.parametrize(("program", "given", "words", "reason"), REFUSED)
def test_input_that_does_not_fit_is_refused(
    program: Agent[..., Any], given: Any, words: list[str], reason: str
) -> None:
    with pytest.raises(EINVAL, match=reason):
        program.bind(given, words)


def test_a_mistake_shows_when_the_file_is_loaded() -> None:
    with pytest.raises(TypeError, match="async def"):

        @agent  # type: ignore[arg-type]
        def plain(ctx: Any) -> None: ...

    with pytest.raises(TypeError, match="the context"):

        @agent
        async def no_context() -> None: ...

    with pytest.raises(TypeError, match="'x' needs a type"):

        @agent
        async def untyped(ctx: Any, x) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(TypeError, match="must have a name"):

        @agent
        async def rest(ctx: Any, *args: str) -> None: ...


@pytest.mark.integration
def test_declaring_loads_no_event_loop() -> None:
    code = "import sys; from agent_os import agent; sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
