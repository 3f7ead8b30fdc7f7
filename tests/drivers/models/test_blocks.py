"""What all dialects do alike."""

import pytest

from agent_os.abi.models import Message, TextBlock
from agent_os.drivers.models.blocks import call_id, instructed, is_strict
from models.asking import request, user

CLOSED = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        ({"type": "string"}, True),
        ({"type": "array", "items": CLOSED}, True),
        ({"anyOf": [CLOSED, {"type": "null"}]}, True),
        ({**CLOSED, "properties": {"a": CLOSED}}, True),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        ({"type": "object"}, False),
        ({**CLOSED, "properties": {"a": {"type": "object"}}}, False),
        ({"type": "array", "items": {"type": "object"}}, False),
        ({"anyOf": [CLOSED, {"type": "object"}]}, False),
        ({"type": "string", "enum": [{"type": "object"}]}, True),
        (None, True),
    ],
)
def test_a_schema_is_strict_where_every_object_is(schema: object, strict: bool) -> None:
    assert is_strict(schema) is strict


def test_a_schema_in_words_is_the_last_word_of_the_system() -> None:
    system = Message(role="system", blocks=[TextBlock(text="s")])
    messages = instructed(request(system, user("a"), output_schema={"type": "integer"}))
    assert [message.role for message in messages] == ["system", "system", "user"]
    assert '{"type":"integer"}' in messages[1].blocks[0].text  # type: ignore[union-attr]


def test_an_id_is_one_that_every_provider_takes() -> None:
    assert call_id("a.b:c") == "a_b_c"
    assert call_id("") == "_"
    assert len(call_id("x" * 200)) == 64
