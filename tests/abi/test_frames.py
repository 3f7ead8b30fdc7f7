"""The wire: frames survive it, grow only at their end, and nothing that comes in costs more than its own size."""

import time
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from agent_os.abi import frames
from agent_os.abi.errors import EMSGSIZE, EPROTO
from agent_os.abi.frames import LENGTH, MAX_FRAME, MAX_NESTING, Splitter

integers = st.integers(0, 2**32 - 1)
texts = st.text(max_size=50)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts | st.binary(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
bodies = values.map(frames.body)
perhaps = st.none() | integers
facts = st.tuples(
    integers, st.integers(1, 4), st.booleans(), texts, perhaps, st.dictionaries(texts, values, max_size=3)
)
from_agents = st.one_of(
    st.builds(frames.Hello, integers, integers, st.lists(texts, max_size=3), st.none() | texts),
    st.builds(frames.Call, integers, integers, bodies, perhaps, perhaps, st.none() | texts, st.none() | texts, perhaps),
    st.builds(frames.Chunk, integers, integers, bodies),
    st.builds(frames.End, integers, integers),
    st.builds(frames.Credit, integers, integers),
    st.builds(frames.Cancel, integers),
)
from_kernels = st.one_of(
    st.builds(frames.Welcome, integers, texts, integers, st.dictionaries(texts, integers, max_size=3)),
    st.builds(frames.Reply, integers, bodies),
    st.builds(lambda call, rest: frames.Error(call, *rest), integers, facts),
    st.builds(frames.Chunk, integers, integers, bodies),
    st.builds(lambda call, n, rest: frames.End(call, n, rest and list(rest)), integers, integers, st.none() | facts),
    st.builds(frames.Push, integers, texts, bodies),
    st.builds(frames.Bye, integers, texts),
)


def plain(frame: Any) -> Any:
    """A frame as values: bodies compare by what they say."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(frame))


def sent(frame: frames.Frame) -> bytes:
    """Its bytes without the length in front."""
    data = frames.encode(frame)
    assert int.from_bytes(data[:LENGTH], "little") == len(data) - LENGTH
    return data[LENGTH:]


def extended(data: bytes, *more: Any) -> bytes:
    return msgspec.msgpack.encode([*msgspec.msgpack.decode(data), *more])


@given(from_agents)
def test_what_an_agent_says_arrives(frame: frames.FromAgent) -> None:
    got = frames.decode_from_agent(sent(frame))
    assert type(got) is type(frame)
    assert plain(got) == plain(frame)


@given(from_kernels)
def test_what_the_kernel_says_arrives(frame: frames.FromKernel) -> None:
    got = frames.decode_from_kernel(sent(frame))
    assert type(got) is type(frame)
    assert plain(got) == plain(frame)


@given(from_agents, values, values)
def test_fields_that_a_later_release_adds_are_ignored(frame: frames.FromAgent, one: Any, two: Any) -> None:
    whole = msgspec.msgpack.encode([*plain(frame), *_defaults(frame), one, two])
    assert plain(frames.decode_from_agent(whole)) == plain(frame)


def _defaults(frame: frames.FromAgent) -> list[Any]:
    """The fields that an encoder left out would stand before those that are added. Ours leaves out none."""
    missing = len(msgspec.structs.fields(type(frame))) + 1 - len(plain(frame))
    assert missing == 0
    return []


def test_fields_that_an_earlier_release_did_not_have_take_their_defaults() -> None:
    call = frames.decode_from_agent(msgspec.msgpack.encode([2, 7, 28]))
    assert isinstance(call, frames.Call)
    assert (call.id, call.op, bytes(call.body), call.cap, call.key, call.pos) == (7, 28, b"\xc0", None, None, None)
    hello = frames.decode_from_agent(msgspec.msgpack.encode([0, 1, 1]))
    assert hello == frames.Hello(1, 1, [], None)


@given(st.integers(128, 2**32), st.lists(values, max_size=3))
@example(128, [])
@example(255, [])
@example(65536, [])
def test_kinds_from_128_on_are_ignored_by_whoever_does_not_know_them(kind: int, rest: list[Any]) -> None:
    data = msgspec.msgpack.encode([kind, *rest])
    assert frames.decode_from_agent(data) is None
    assert frames.decode_from_kernel(data) is None


@given(st.integers(12, 127), st.lists(values, max_size=3))
def test_reserved_kinds_are_refused(kind: int, rest: list[Any]) -> None:
    with pytest.raises(EPROTO):
        frames.decode_from_agent(msgspec.msgpack.encode([kind, *rest]))


@pytest.mark.parametrize("kind", [frames.Welcome(1, "a", 1, {}), frames.Push(1, "signal"), frames.Bye(1, "x")])
def test_an_agent_cannot_speak_as_the_kernel(kind: Any) -> None:
    with pytest.raises(EPROTO):
        frames.decode_from_agent(sent(kind))


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x91" * 100_000)
@example(b"\x81" * 3_000)
@example(b"\xdd\xff\xff\xff\xff\x02")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xdc\xff\xff\xcc\x80")
@example(b"\x95\x00\x01\x01\x91\xa1\x80\xc0")  # text that is no UTF-8
@example(b"\x90\xcd")  # a number that breaks off behind nothing
@example(b"\x91\xcd\x00\x01")  # a small number at length
def test_garbage_is_refused_or_ignored_and_nothing_else(data: bytes) -> None:
    assert understood(frames.decode_from_agent, data) in {"refused", "ignored", *FROM_AGENTS}
    assert understood(frames.decode_from_kernel, data) in {"refused", "ignored", *FROM_KERNELS}


FROM_AGENTS = {kind.__name__ for kind in get_args(frames.FromAgent)}
FROM_KERNELS = {kind.__name__ for kind in get_args(frames.FromKernel)}


def understood(decode: Callable[[bytes], Any], data: bytes) -> str:
    """How bytes were taken. Only EPROTO is a refusal, and only a kind from 128 on may be ignored."""
    try:
        found = decode(data)
    except EPROTO:
        return "refused"
    if found is None:
        assert (first_of(data) or 0) >= 128, "what we should know was ignored"
        return "ignored"
    said = msgspec.msgpack.encode(found)  # compared as bytes: a body inside may still be garbage
    assert msgspec.msgpack.encode(decode(said)) == said, "it was taken for something that it is not"
    return type(found).__name__


def first_of(data: bytes) -> int | None:
    """The first element of an array, however it is written and whatever follows."""
    head = {0xDC: 3, 0xDD: 5}.get(data[0], 1) if data else 0
    sizes = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
    if len(data) <= head or data[head] < 0x80:
        return data[head] if len(data) > head else None
    size = sizes.get(data[head])
    return int.from_bytes(data[head + 1 : head + 1 + size], "big") if size else None


@given(from_agents, st.data())
def test_a_damaged_frame_is_refused_or_another_frame_and_nothing_else(frame: frames.FromAgent, data: Any) -> None:
    raw = bytearray(sent(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for each in (bytes(raw), cut):
        assert understood(frames.decode_from_agent, each) in {"refused", "ignored", *FROM_AGENTS}


@given(st.lists(from_agents, max_size=6), st.data())
def test_a_splitter_gives_the_same_frames_however_the_bytes_arrive(sent_frames: list[Any], data: Any) -> None:
    whole = b"".join(map(frames.encode, sent_frames))
    splitter, found, at = Splitter(), list[bytes](), 0
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        found += splitter.feed(whole[at : at + size])
        at += size
    assert found == [sent(frame) for frame in sent_frames]
    assert not splitter.partial


def test_a_splitter_knows_that_a_frame_is_not_whole() -> None:
    splitter = Splitter()
    assert splitter.feed(b"\x05\x00\x00") == []
    assert splitter.partial
    assert splitter.feed(b"\x00abcd") == []
    assert splitter.feed(b"e") == [b"abcde"]
    assert not splitter.partial


@given(st.integers(MAX_FRAME + 1, 2**32 - 1))
def test_a_length_over_the_limit_is_refused_before_a_byte_of_it_is_kept(size: int) -> None:
    splitter = Splitter()
    with pytest.raises(EMSGSIZE):
        splitter.feed(size.to_bytes(LENGTH, "little"))


def test_a_frame_of_exactly_the_limit_passes() -> None:
    data = b"x" * MAX_FRAME
    assert Splitter().feed(MAX_FRAME.to_bytes(LENGTH, "little") + data) == [data]


def nested(depth: int, kind: type = list) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_values_may_be_nested_so_deep_and_no_deeper(kind: type) -> None:
    frames.nesting(nested(MAX_NESTING - 1, kind))
    with pytest.raises(EPROTO):
        frames.nesting(nested(MAX_NESTING + 1, kind))


def test_a_wide_value_is_not_a_deep_one() -> None:
    assert frames.nesting([[0] * 1000 for _ in range(1000)], 2) is None
    with pytest.raises(EPROTO):
        frames.nesting([[0] * 1000 for _ in range(1000)], 1)


def test_a_body_is_not_decoded_with_its_frame() -> None:
    call = frames.decode_from_agent(msgspec.msgpack.encode([2, 1, 1, Raw(b"\x91" * 500 + b"\xc0")]))
    assert isinstance(call, frames.Call)
    assert len(bytes(call.body)) == 501


def test_a_frame_in_many_pieces_costs_about_a_frame() -> None:
    """Whoever copied what is there with every piece had a megabyte in sixteens copied thirty thousand times."""
    data = b"x" * MAX_FRAME
    whole = MAX_FRAME.to_bytes(LENGTH, "little") + data + b"\x01\x00\x00\x00a" + b"\x05\x00"
    splitter, found = Splitter(), list[bytes]()
    began = time.process_time()
    for at in range(0, len(whole), 16):
        found += splitter.feed(whole[at : at + 16])
    assert time.process_time() - began < 1.0
    assert found == [data, b"a"]
    assert splitter.partial
    assert splitter.feed(b"\x00\x00hello") == [b"hello"]
    assert not splitter.partial


def test_a_body_in_parts_is_bounded() -> None:
    gathered = frames.Gathered()
    for _ in range(frames.MAX_BODY // frames.PART):
        gathered.take(frames.Part(1, bytes(frames.PART)))
    with pytest.raises(EMSGSIZE):
        gathered.take(frames.Part(1, b"x"))
