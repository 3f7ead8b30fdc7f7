"""`.agents/security.md` is enforced whole or refused whole, each key that cannot be with its line."""

import time

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.loading import problems_of
from agent_os.kernel.authority.policy.rules import Effect, Layer, Mode, Rate
from agent_os.kernel.authority.policy.security import read_security
from agent_os.kernel.calls import Need

TOOLS = {"database_query": "p", "send_email": "o", "mystery": None}
FULL = """kernel:
  version: "1.0"
  mode: strict
signals:
  - SIGSTOP
  - SIGKILL
  - SIGINT
policies:
  - action: database_query
    mode: read_only
  - action: send_email
    requires_approval: true
    rate_limit: "10/hour"
    constraints:
      arg.to: "*@example.com"
      timeout: 30s
  - action: SYS_WRITE
    effect: deny
    constraints:
      paths: ["/work/secrets/**", '/work/**/{odd}?.env']
  - action: SYS_READ
  - action: SYS_EXIT
    effect: allow
observability:
  metrics: true
  traces: no
  flight_recorder: true
"""


def imported(text: str):
    return read_security(text.encode(), "security.md", TOOLS)


def refused(text: str | bytes) -> list[str]:
    with pytest.raises(EINVAL) as caught:
        read_security(text if isinstance(text, bytes) else text.encode(), "security.md", TOOLS)
    return [str(one).removeprefix("security.md:") for one in problems_of(caught.value)]


def one(policy: str) -> str:
    return f"policies:\n  - action: {policy}\n"


def decide(text: str, kind: str, action: str, target: str, **facts: object):
    return Policy([imported(text)]).decide("a", "worker", Need(kind, action, target), facts)


def test_every_key_that_can_be_enforced_is() -> None:
    file = imported(FULL)
    assert (file.layer, file.default, file.mode, file.metrics, file.traces) == (
        Layer.PROJECT,
        "deny",
        Mode.STRICT,
        True,
        False,
    )
    assert file.signals == {"SIGSTOP", "SIGINT", "SIGKILL", "SIGPOLICY", "SIGTRUST"}
    assert [(rule.id, rule.effect, rule.where.line) for rule in file.rules] == [
        ("security-1", Effect.ALLOW, 9),
        ("security-2", Effect.ASK, 11),
        ("security-3", Effect.FORBID, 17),
        ("security-4", Effect.ALLOW, 21),
    ]
    asked = decide(FULL, "tool", "call", "send_email", args={"to": "anna@example.com"})
    assert (asked.effect, asked.limits, asked.rates[0].rate) == (Effect.ASK, {"timeout": 30_000}, Rate(10, 3600))
    assert decide(FULL, "tool", "call", "database_query").effect is Effect.ALLOW
    assert decide(FULL, "file", "read", "/work/x").effect is Effect.ALLOW
    for path in ("/work/secrets/x", "/work/a/{odd}?.env"):
        assert decide(FULL, "file", "write", path).violation == "kill"
    unlisted = decide(FULL, "tool", "call", "mystery")
    assert (unlisted.effect, unlisted.rule) == (Effect.FORBID, None)


def test_front_matter_counts_lines_from_the_top_of_the_file() -> None:
    text = "---\n" + FULL + "---\n# Security\n\n- action: not yaml: at all: [\n"
    assert [rule.where.line for rule in imported(text).rules] == [10, 12, 18, 22]
    assert refused("---\nkernel:\n  mode: audit\n---\ntext")[0].startswith("3: a project may only be stricter")


def test_everything_can_be_limited_to_reading() -> None:
    text = one('"*"\n    mode: read_only')
    for kind, action, target in (("file", "read", "/a"), ("http", "get", "x.com/"), ("tool", "call", "database_query")):
        assert decide(text, kind, action, target).effect is Effect.ALLOW
    for kind, action, target in (("file", "write", "/a"), ("http", "post", "x.com/"), ("tool", "call", "send_email")):
        assert decide(text, kind, action, target).effect is Effect.FORBID


def test_a_constraint_on_everything_covers_what_it_is_about_and_nothing_else() -> None:
    text = one('"*"\n    constraints: {hosts: [api.x.com], methods: [GET, post]}')
    assert decide(text, "http", "get", "api.x.com/v1").effect is Effect.ALLOW
    for kind, action, target in (("http", "put", "api.x.com/"), ("http", "get", "x.com/"), ("file", "read", "/a")):
        assert decide(text, kind, action, target).effect is Effect.FORBID


def test_a_limit_on_everything_leaves_out_what_cannot_be_held_to_it() -> None:
    text = one('"*"\n    constraints: {timeout: 5s}')
    assert decide(text, "tool", "call", "send_email").limits == {"timeout": 5000}
    assert decide(text, "file", "read", "/a").limits == {"timeout": 5000}
    for kind, action, target in (("http", "put", "x.com/"), ("file", "write", "/a"), ("agent", "spawn", "b")):
        assert decide(text, kind, action, target).effect is Effect.FORBID


def test_a_limit_on_what_is_named_and_cannot_be_held_to_it_is_refused_at_its_line() -> None:
    text = one('"*"\n    constraints:\n      hosts: [api.x.com]\n      max_size: 1MB\n      timeout: 3s')
    assert [line.partition(" is held")[0] for line in refused(text)] == ["5: no http:delete", "6: no http:delete"]
    assert refused(one("SYS_WRITE\n    constraints:\n      timeout: 3s"))[0].startswith("4: no file:write is held")
    assert refused(one('"*"\n    constraints: {max_tokens: 5}'))[0].startswith("3: no llm:call is held to a 'tokens'")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: there is nothing in it"),
        ("# only a heading\n", "1: there is nothing in it"),
        ("just text\n", "1: there are no keys in it"),
        ("- a\n- b\n", "1: there are no keys in it"),
        ("kernel: [\n", "2: not YAML: "),
        ("kernel:\n\tmode: strict\n", "2: not YAML: "),
        (b"kernel:\n  mode: \xff\n", "2: this is no UTF-8"),
        ("a: 1\n---\nb: 2\n", "2: not YAML: "),
        ("kernel: &x\n  mode: strict\nsignals: *x\n", "3: not YAML: aliases"),
        ("kernel:\n  mode: strict\n  mode: strict\n", "3: 'mode' stands here twice"),
        ('kernel:\n  version: "2.0"\n', '2: kernel.version is "1.0"'),
        ("kernel:\n  mode: permissive\n", "2: a project may only be stricter than what the operator says"),
        ("kernel:\n  mode: audit\n", "2: a project may only be stricter"),
        ("kernel:\n  mode: lax\n", "2: there is no mode 'lax'"),
        ("kernel:\n  modus: strict\n", "2: kernel has no key 'modus' that can be enforced; did you mean 'mode'?"),
        ("policy: []\n", "1: the file has no key 'policy' that can be enforced; did you mean 'policies'?"),
        ("signals:\n  - SIGSTOP\n  - SIGHUP\n", "3: there is no signal 'SIGHUP'"),
        ("signals: SIGSTOP\n", "1: 'signals' is a list"),
        ("policies:\n  - effect: deny\n", "2: a policy needs an 'action'"),
        (one("send_emial"), "2: there is no syscall and no registered tool 'send_emial'; did you mean 'send_email'?"),
        (one("SYS_LIST"), "2: SYS_LIST needs the same authority as SYS_READ: name that"),
        (one("SYS_EXIT\n    effect: deny"), "2: SYS_EXIT needs no authority"),
        (one("send_email\n    effect: maybe"), "3: 'effect' is 'maybe', which is none of allow, deny"),
        (one("send_email\n    effect: deny\n    requires_approval: true"), "4: what is denied is not asked about"),
        (one("send_email\n    requires_approval: please"), "3: 'requires_approval' is true or false"),
        (one("send_email\n    mode: read_only"), "2: the tool 'send_email' does not only read"),
        (one("mystery\n    mode: read_write"), "2: the tool 'mystery' declares no class"),
        (one("SYS_WRITE\n    mode: read_only"), "2: SYS_WRITE does not only read"),
        (one("send_email\n    rate_limit: 10/year"), "3: '10/year' is no rate"),
        (one("send_email\n    effect: deny\n    rate_limit: 1/day"), "4: rate_limit says nothing on what is denied"),
        (one("send_email\n    constraints:\n      colour: red"), "4: constraints has no key 'colour'"),
        (one("send_email\n    constraints:\n      paths: [/a]"), "4: 'paths' of a tool cannot be known"),
        (one("SYS_READ\n    constraints:\n      hosts: [x.com]"), "4: 'hosts' says nothing of SYS_READ"),
        (one("SYS_READ\n    constraints:\n      paths: [work]\n      arg.x: 1"), "5: 'arg.x' is about one tool"),
        (
            one("send_email\n    effect: deny\n    constraints:\n      timeout: 3s"),
            "5: 'timeout' limits what is allowed",
        ),
        (one('"*"\n    effect: deny\n    mode: read_only'), "4: 'mode' limits what is allowed"),
        (one("send_email\n    constraints:\n      timeout: soon"), "4: "),
        (one('"*"\n    constraints:\n      methods: [GTE]'), "4: there is no method 'gte'"),
        ("observability:\n  flight_recorder: false\n", "2: the flight recorder is never off"),
        ("observability:\n  metrics: maybe\n", "2: 'metrics' is true or false"),
        ("observability:\n  logs: true\n", "2: observability has no key 'logs'"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_line(text: str | bytes, expected: str) -> None:
    assert any(problem.startswith(expected) for problem in refused(text)), refused(text)


def test_all_problems_are_listed_together() -> None:
    text = "kernel:\n  mode: audit\nrobots: 1\npolicies:\n  - action: nothing\n    when: never\n"
    assert [problem.split(":")[0] for problem in refused(text)] == ["2", "3", "5", "6"]


@pytest.mark.parametrize(
    "hostile", ["[" * 30_000, "[" * 499, "a: " * 5_000, "- " * 20_000, "? " * 20_000, "x" * 70_000]
)
def test_a_file_made_to_keep_the_reader_busy_is_refused_soon(hostile: str) -> None:
    began = time.process_time()
    assert refused(hostile)
    assert time.process_time() - began < 3
