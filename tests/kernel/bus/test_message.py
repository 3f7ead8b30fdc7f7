"""The message: its bounds, its form in the store, its time."""

import msgspec
import pytest

from agent_os.abi.errors import EINVAL, EMSGSIZE
from agent_os.kernel.bus.message import (
    HIGH,
    LARGEST,
    LOW,
    NORMAL,
    Now,
    Outgoing,
    check,
    decode,
    encode,
    lane,
    lane_of_priority,
    stamped,
)

SENT = 10**18


def draft(**more: object) -> Outgoing:
    return Outgoing("b", "a", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "expected"),
    [("critical", HIGH), ("urgent", HIGH), ("high", NORMAL), ("normal", NORMAL), ("low", LOW), ("background", LOW)],
)
def test_the_six_priorities_of_amb_are_three_lanes(word: str, expected: int) -> None:
    assert lane_of_priority(word) == expected


def test_lanes_have_names_and_others_are_refused() -> None:
    assert [lane(word) for word in ("high", "normal", "low")] == [HIGH, NORMAL, LOW]
    for wrong in (lane, lane_of_priority):
        with pytest.raises(EINVAL, match="urgently"):
            wrong("urgently")


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "letter"},
        {"lane": 3},
        {"lane": -1},
        {"ttl_ms": 0},
        {"ttl_ms": 1 << 32},
        {"deadline_ms": 0},
        {"key": "x" * 256},
        {"schema": "x" * 256},
        {"key": "a\0b"},
        {"corr": "\0"},
    ],
)
def test_what_is_out_of_bounds_names_its_field(wrong: dict[str, object]) -> None:
    with pytest.raises(EINVAL) as refused:
        check(draft(**wrong))
    assert next(iter(wrong)) in refused.value.code


def test_a_message_carries_so_much_and_not_a_byte_more() -> None:
    check(draft(payload=msgspec.Raw(b"x" * LARGEST)))
    with pytest.raises(EMSGSIZE, match=str(LARGEST + 1)):
        check(draft(payload=msgspec.Raw(b"x" * (LARGEST + 1))))


def test_its_form_in_the_store_gives_it_back() -> None:
    message = stamped(draft(payload=msgspec.Raw(b"\xa1x"), key="k", labels=["trusted"]), 7, "m-7", SENT)
    again = decode(encode(message))
    assert again == message
    assert msgspec.msgpack.decode(again.payload) == "x"


def test_a_payload_does_not_keep_the_buffer_alive_that_it_came_in() -> None:
    buffer = msgspec.msgpack.encode({"payload": 1, "rest": b"x" * 100_000})
    raw = msgspec.msgpack.decode(buffer, type=dict[str, msgspec.Raw])["payload"]
    message = stamped(draft(payload=raw), 1, "m-1", SENT)
    assert memoryview(raw).obj is not memoryview(message.payload).obj


def test_what_is_left_of_it_is_never_more_than_it_had() -> None:
    message = stamped(draft(ttl_ms=10_000, deadline_ms=4_000), 1, "m-1", SENT)
    for passed, left in ((0, 4), (1, 3), (5, -1), (-3600, 4)):
        assert message.left(Now(0.0, SENT + passed * 10**9)) == left
