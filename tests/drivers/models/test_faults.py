"""What an answer that is no reply means."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EIO, EMSGSIZE
from agent_os.drivers.models.faults import fault_inside, fault_of

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["error", "code", "type", "message"]), inner)
    ),
    max_leaves=8,
)


def error(**fields: object) -> bytes:
    return msgspec.json.encode({"error": fields})


def test_the_number_of_tokens_is_taken_from_fields_where_there_are_some() -> None:
    body = error(code=400, type="exceed_context_size_error", message="too big", n_prompt_tokens=5000, n_ctx=4096)
    fault = fault_of(400, body)
    assert isinstance(fault.error, EMSGSIZE)
    assert fault.error.detail == {"asked": 5000, "limit": 4096}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, error(type="insufficient_quota", code="insufficient_quota", message="You exceeded your current quota")),
        (400, error(type="invalid_request_error", message="Your credit balance is too low to access the API")),
        (402, b""),
    ],
)
def test_an_account_without_credit_is_not_tried_again(status: int, body: bytes) -> None:
    fault = fault_of(status, body)
    assert (type(fault.error), fault.error.code, fault.again) == (EIO, "auth", "no")
    assert "credit" in fault.error.hint


@pytest.mark.parametrize(
    "body",
    [
        error(message="plain words"),
        msgspec.json.encode({"error": "plain words"}),
        msgspec.json.encode({"message": "plain words"}),
        msgspec.json.encode({"detail": "plain words"}),
        b"plain words",
    ],
)
def test_its_own_words_are_found_in_every_shape(body: bytes) -> None:
    assert "plain words" in fault_of(400, body).error.reason


def test_a_page_for_people_is_not_quoted_and_long_words_are_cut() -> None:
    assert "html" not in fault_of(502, b"<html><body>Bad gateway</body></html>").error.reason
    reason = fault_of(400, error(message="a\x1b[31m" + "x" * 5000)).error.reason
    assert len(reason) < 600
    assert "\x1b" not in reason


@settings(deadline=None)
@given(st.integers(100, 599), st.binary(max_size=100) | ANY.map(msgspec.json.encode))
def test_every_answer_is_some_fault(status: int, body: bytes) -> None:
    fault = fault_of(status, body)
    assert fault.error.reason
    assert fault.again in ("no", "once", "yes")


@settings(deadline=None)
@given(ANY)
def test_every_error_in_a_stream_is_some_fault(error: object) -> None:
    assert fault_inside(error).error.reason
