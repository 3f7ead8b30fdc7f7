"""A binding says what it says, and nothing that could be read otherwise."""

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.bindings import bind, parse_target


@pytest.mark.parametrize(
    ("text", "host", "port", "covered"),
    [
        ("api.example.com", "api.example.com", 443, True),
        ("API.Example.COM.", "api.example.com", 443, True),
        ("api.example.com:8443", "api.example.com", 8443, True),
        ("api.example.com:8443", "api.example.com", 443, False),
        ("api.example.com", "api.example.com", 80, False),
        ("example.com", "api.example.com", 443, False),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evilexample.com", 443, False),
        ("127.0.0.1:8443", "127.0.0.1", 8443, True),
    ],
)
def test_a_host_is_covered(text: str, host: str, port: int, covered: bool) -> None:
    target = parse_target(text)
    assert target.covers(host, port) is covered
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        "", "*", "*.", "https://api.example.com", "api.example.com/v1", "user@api.example.com", "127.1", "0x7f.0.0.1",
        "api.example.com:0", "api.example.com:x", "api.example.com:80:90", "exa mple.com", "a\r\nb", "*.127.0.0.1",
        "api.*.com",
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(EINVAL) as refused:
        parse_target(text)
    assert refused.value.hint


def test_the_usual_binding_is_a_bearer_token() -> None:
    binding = bind("k", ["api.example.com"])
    assert (binding.place, binding.key, binding.fill(b"v")) == ("header", "authorization", b"Bearer v")
    assert binding.methods == ("GET", "HEAD", "POST")
    assert binding.covers_agent("anybody")
    assert bind("k", ["api.example.com"], header="X-Api-Key").fill(b"v") == b"v"
    assert bind("k", ["api.example.com"], header="X-Api-Key").key == "x-api-key"


def test_words_and_binding_are_the_same() -> None:
    binding = bind(
        "k", ["a.test:1", "*.b.test"], field="api_key", template="t-{}", methods=["put"], agents=["x", "y-*"]
    )
    assert bind(**binding.words()) == binding  # type: ignore[arg-type]


@pytest.mark.parametrize(("agent", "covered"), [("build", True), ("build-7", False), ("ci-1", True), ("xci-1", False)])
def test_agents_are_named_or_begin_so(agent: str, covered: bool) -> None:
    assert bind("k", ["a.test"], agents=["build", "ci-*"]).covers_agent(agent) is covered


@pytest.mark.parametrize(
    "words",
    [
        {"hosts": []},
        {"header": "host"},
        {"header": "Content-Length"},
        {"header": "transfer-encoding"},
        {"header": "cookie"},
        {"header": "proxy-authorization"},
        {"header": "x:y"},
        {"header": "a\r\nb"},
        {"header": "x", "field": "y"},
        {"field": "a b"},
        {"template": "Bearer"},
        {"template": "{}{}"},
        {"template": "Bearer {}\r\nX: y"},
        {"template": "Bärer {}"},
        {"methods": ["CONNECT"]},
        {"methods": ["GET /"]},
        {"agents": ["a b"]},
        {"agents": ["*x"]},
        {"name": "../x"},
        {"name": ""},
        {"name": "a/b"},
        {"name": "x" * 65},
    ],
)
def test_what_is_no_binding_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(EINVAL) as refused:
        bind(**{"name": "k", "hosts": ["a.test"], **words})  # type: ignore[arg-type]
    assert refused.value.hint


@pytest.mark.parametrize(
    "value", [b"two\nlines", b"with\0nul", b"\xff\xfe", b" leading", b"trailing ", b"a\r\nX-Evil: 1"]
)
def test_a_header_holds_no_value_that_would_break_it(value: bytes) -> None:
    with pytest.raises(EINVAL):
        bind("k", ["a.test"]).require_fit(value)


def test_a_field_holds_lines_but_no_bytes() -> None:
    field = bind("k", ["a.test"], field="key")
    field.require_fit(b"two\nlines")
    with pytest.raises(EINVAL):
        field.require_fit(b"\xff\xfe\xfd")
