import pytest

from agent_os.abi.models import (
    ImageBlock,
    Message,
    ModelRequest,
    OpaqueBlock,
    TextBlock,
    ToolCall,
    ToolResultBlock,
    ToolSchema,
)
from agent_os.kernel.models.estimate import IMAGE_TOKENS, Estimates, raw_estimate


def asked(*blocks: object, **more: object) -> ModelRequest:
    message = Message(role="user", blocks=list(blocks))  # type: ignore[arg-type]
    return ModelRequest(model="p/m", messages=[message], **more)  # type: ignore[arg-type]


def test_three_bytes_are_a_token():
    assert raw_estimate(asked(TextBlock(text="a" * 3_000))) == pytest.approx(1_000, abs=10)
    assert raw_estimate(asked(TextBlock(text="ä" * 1_500))) == pytest.approx(1_000, abs=10)


def test_everything_that_is_sent_counts():
    empty = raw_estimate(asked())
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "x" * 300}}}
    for request in (
        asked(ToolCall(id="1", name="n", args={"text": "x" * 300})),
        asked(ToolCall(id="1", name="n", args_error="not JSON", raw="x" * 300)),
        asked(ToolResultBlock(id="1", content=[TextBlock(text="x" * 300)])),
        asked(OpaqueBlock(dialect="anthropic", data=b"x" * 300)),
        asked(tools=[ToolSchema(name="n", input_schema=schema)]),
        asked(output_schema=schema),
    ):
        assert raw_estimate(request) >= empty + 100


def test_an_image_counts_as_one_however_long_its_name():
    assert raw_estimate(asked(ImageBlock(blob="0" * 64))) >= IMAGE_TOKENS
    inside = ToolResultBlock(id="1", content=[ImageBlock(blob="0" * 64)])
    assert raw_estimate(asked(inside)) >= IMAGE_TOKENS


def test_text_that_is_no_text_is_still_measured():
    assert raw_estimate(asked(TextBlock(text="\ud800" * 300))) >= 300


def test_a_model_that_counts_differently_is_followed():
    estimates = Estimates()
    assert estimates.estimate("m", 900) == 900
    for _ in range(60):
        assert not estimates.reported("m", 900, 660)
    assert estimates.estimate("m", 900) == pytest.approx(660, abs=2)
    assert estimates.estimate("other", 900) == 900


def test_a_prompt_that_was_cut_off_in_silence_is_noticed_and_teaches_nothing():
    estimates = Estimates()
    assert estimates.reported("m", 9_000, 4_000)
    assert estimates.ratio("m") == 1.0


def test_one_odd_report_does_not_turn_everything_over():
    estimates = Estimates()
    for _ in range(50):
        estimates.reported("m", 1_000, 1_000)
    estimates.reported("m", 1_000, 1_000_000)
    assert estimates.ratio("m") <= 4.0
    assert not estimates.reported("m", 0, 5)
    assert not estimates.reported("m", 5, 0)


def test_ratios_are_kept_over_a_restart_and_give_way_to_new_ones():
    estimates = Estimates()
    for _ in range(60):
        estimates.reported("m", 9_000, 6_300)
    again = Estimates(estimates.packed())
    assert again.ratio("m") == pytest.approx(0.7, abs=0.01)
    for _ in range(60):
        again.reported("m", 9_000, 9_000)
    assert again.ratio("m") == pytest.approx(1.0, abs=0.05)
