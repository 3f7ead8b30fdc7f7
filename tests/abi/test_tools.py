"""What a tool declares, over the wire and back; which effect one call has."""

import msgspec
import pytest

from agent_os.abi.tools import ToolSpec, When


def test_a_spec_survives_the_wire() -> None:
    spec = ToolSpec(name="a.b", milder=(When("mode", ("x", 1), "pure", default=True),), tags=("t",))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=ToolSpec) == spec


def test_a_field_that_no_tool_has_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="grants"):
        msgspec.convert({"name": "a.b", "grants": ["file:/**:write"]}, ToolSpec)


@pytest.mark.parametrize(
    ("params", "effect"),
    [
        ({}, "idempotent"),
        ({"method": "GET"}, "idempotent"),
        ({"method": "POST"}, "opaque"),
        ({"method": "get"}, "opaque"),  # only what is written there
        ({"method": None}, "opaque"),
        ({"method": ["GET"]}, "opaque"),
    ],
)
def test_an_effect_is_milder_only_for_the_values_that_say_so(params: dict[str, object], effect: str) -> None:
    spec = ToolSpec(name="http.fetch", milder=(When("method", ("GET", "HEAD"), "idempotent", default=True),))
    assert spec.effect_of(params) == effect


def test_true_is_not_one() -> None:
    assert ToolSpec(name="a.b", milder=(When("n", (1,), "pure"),)).effect_of({"n": True}) == "opaque"
