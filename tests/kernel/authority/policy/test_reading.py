"""A rule file is read whole or refused, and a refusal names file, line and the nearest name."""

import time

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.policy.loading import problems_of
from agent_os.kernel.authority.policy.reading import MOST_BYTES_BELOW, read
from agent_os.kernel.authority.policy.rules import Effect, Layer, Mode, PolicyFile, Rate

HEAD = 'version = 1\ndefault = "capability"\n'
RULE = HEAD + '[[rule]]\nid = "a"\neffect = "forbid"\nwhat = ["tool:x:call"]\n'
ASK = RULE.replace("forbid", "ask")


def good(text: str, layer: Layer = Layer.OPERATOR) -> PolicyFile:
    return read(text.encode(), "p.toml", layer)


def refused(text: str | bytes, layer: Layer = Layer.OPERATOR) -> list[str]:
    with pytest.raises(EINVAL) as caught:
        read(text if isinstance(text, bytes) else text.encode(), "p.toml", layer)
    assert caught.value.code == "policy.invalid"
    assert str(problems_of(caught.value)[0]) in caught.value.reason
    return [str(one) for one in problems_of(caught.value)]


def test_the_file_of_the_specification_is_read_but_for_its_condition() -> None:
    text = """version = 1
default = "capability"    # required
mode    = "strict"
allow_in_process = false

[[rule]]
id = "no-env"
effect = "forbid"
what = ["file:/work/**/.env:read"]
agents = ["*"]
reason = "Secrets live in the secret store."

[[rule]]
id = "big-payments"
effect = "ask"
what = ["tool:pay:call"]
approvers = ["user:anna"]
deadline = "15m"
scopes = ["once"]
rate = "100/hour"
"""
    file = good(text)
    env, pay = file.rules
    assert (file.default, file.mode, file.allow_in_process) == ("capability", Mode.STRICT, False)
    assert (env.id, env.effect, [str(one) for one in env.what]) == (
        "no-env",
        Effect.FORBID,
        ["file:/work/**/.env:read"],
    )
    assert (str(env.where), str(pay.where)) == ("p.toml:6", "p.toml:13")
    assert (pay.approvers, pay.deadline_s, pay.scopes, pay.rate) == (("user:anna",), 900.0, ("once",), Rate(100, 3600))
    assert (env.violation, env.approvers, env.deadline_s, env.rate) == ("", (), None, None)
    (problem,) = refused(text.replace("deadline", 'when = "context.args.amount > 100"\ndeadline'))
    assert problem.startswith("p.toml:18: a condition needs Cedar")


def test_the_tables_of_information_flow_are_read() -> None:
    file = good(
        HEAD
        + """[[class]]
name = "customer"
readers = ["http:crm.example.com:*"]
[[source]]
what = ["file:/work/docs/**:read"]
integrity = "trusted"
[[sink]]
what = ["http:*:post"]
integrity = "trusted"
classes = []
else = "ask"
[[declassify]]
from = "reader"
to = "role:planner"
type = "Verdict"
rate = "10/minute"
"""
    )
    (source,), (sink,), (pipe,) = file.sources, file.sinks, file.declassify
    assert file.classes[0].name == "customer"
    assert (source.integrity, str(source.where)) == ("trusted", "p.toml:6")
    assert (sink.integrity, sink.classes, sink.otherwise) == ("trusted", frozenset(), "ask")
    assert (pipe.sender.text, pipe.receiver.role, pipe.type, pipe.rate) == (
        "reader",
        "planner",
        "Verdict",
        Rate(10, 60),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version = 1\ndefault = ", "p.toml:2: not TOML: "),
        ("version = 1\n\ndefault == 2\n", "p.toml:3: not TOML: "),
        (b"version = 1\n# \xff\n", "p.toml:2: this is no UTF-8"),
        ('default = "deny"\n', "p.toml:1: the file needs the key 'version'"),
        ("version = 1\n", "p.toml:1: the file needs the key 'default'"),
        ('version = 2\ndefault = "deny"', "p.toml:1: version is 2; this program knows 1"),
        ('version = true\ndefault = "deny"', "p.toml:1: version is True"),
        ('version = 1\ndefault = "dney"', "p.toml:2: 'default' is 'dney', which is none of deny, capability; did you"),
        (HEAD + 'mode = "stict"', "p.toml:3: 'mode' is 'stict', which is none of shadow, enforce, strict; did you"),
        (HEAD + "allow_in_process = 1", "p.toml:3: 'allow_in_process' is true or false"),
        (HEAD + "[[rules]]", "p.toml:3: the file has no key 'rules'; did you mean 'rule'?"),
        (HEAD + "[rule]\nid = 'x'", "p.toml:3: 'rule' is a list of tables (write [[rule]])"),
        (RULE + 'efect = "x"', "p.toml:7: [[rule]] has no key 'efect'; did you mean 'effect'?"),
        (RULE + 'reason = """\n[[rule]]\nefect = 1\n"""\nbogus = 1', "p.toml:11: [[rule]] has no key 'bogus'"),
        (HEAD + "[[rule]]\nid = 'a'\neffect = 'forbid'", "p.toml:3: [[rule]] needs the key 'what'"),
        (RULE.replace("forbid", "deny"), "p.toml:5: 'effect' is 'deny', which is none of allow, ask, forbid"),
        (RULE + RULE.removeprefix(HEAD), "p.toml:8: there is a rule 'a' already, at p.toml:3"),
        (RULE.replace('"a"', "7"), "p.toml:4: 'id' is a text, not 7"),
        (RULE.replace('"a"', '""'), "p.toml:4: an id has 1 to 100 printable characters"),
        (RULE.replace('["tool:x:call"]', '"tool:x:call"'), "p.toml:6: 'what' is a list of texts"),
        (RULE.replace('"tool:x:call"', ""), "p.toml:6: 'what' is empty"),
        (RULE.replace('["tool', '[\n  "tool:y:call",\n  "tol'), "p.toml:8: 'tol:x:call', at position 0: there is"),
        (RULE.replace("x:call", "x:run"), "p.toml:6: 'tool:x:run', at position 7: tool has no action 'run'"),
        (RULE.replace("x:call", "x:call{nope:1}"), "tool has no constraint 'nope'"),
        (RULE.replace("x:call", "x:call{count:1}"), "'count' is kept by a capability, not by a rule"),
        (RULE.replace("x:call", "x:call{rate:1/s}"), "rate = "),
        (RULE.replace("x:call", "x:call{timeout:1s}"), "'timeout' limits what is let through; this forbids"),
        (RULE + "agents = []", "p.toml:7: 'agents' is empty"),
        (RULE + 'agents = ["role:"]', "p.toml:7: 'role:' names no role"),
        (RULE + 'agents = ["a**b"]', "p.toml:7: 'a**b', at position"),
        (RULE + 'approvers = ["user:anna"]', "p.toml:7: 'approvers' says nothing on a rule that forbids"),
        (ASK + 'approvers = ["anna"]', "p.toml:7: 'anna' names nobody (as in user:anna)"),
        (ASK + 'deadline = "soon"', "p.toml:7: 'soon' is no duration"),
        (ASK + 'deadline = "0s"', "p.toml:7: '0s' is no duration"),
        (ASK + 'scopes = ["onse"]', "p.toml:7: 'onse' is none of once, session, always; did you mean 'once'?"),
        (ASK + 'rate = "100"', "p.toml:7: '100' is no rate"),
        (ASK + 'rate = "0/hour"', "p.toml:7: '0/hour' is no rate"),
        (RULE + 'rate = "1/hour"', "p.toml:7: 'rate' says nothing on a rule that forbids"),
        (ASK + 'violation = "kill"', "p.toml:7: 'violation' says nothing on a rule that asks"),
        (RULE + 'violation = "klil"', "p.toml:7: 'violation' is 'klil', which is none of kill, refuse; did you mean"),
        (HEAD + '[[class]]\nname = "x"', "p.toml:3: [[class]] needs the key 'readers'"),
        (HEAD + '[[sink]]\nwhat = ["http:*:post"]', "p.toml:3: a sink says which"),
        (HEAD + '[[sink]]\nwhat = ["http:*:post"]\nclasses = []\nelse = "allow"', "p.toml:6: 'else' is 'allow'"),
        (HEAD + '[[declassify]]\nfrom = "a"\nto = "b"', "p.toml:3: [[declassify]] needs the key 'type'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_file_and_line(text: str | bytes, expected: str) -> None:
    assert any(expected in problem for problem in refused(text)), refused(text)


@pytest.mark.parametrize("layer", [Layer.PROJECT, Layer.MANIFEST])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + "allow_in_process = true", "p.toml:3: 'allow_in_process' is accepted in the operator's"),
        (HEAD + '[[source]]\nwhat = ["tool:*:call"]\nintegrity = "trusted"', "p.toml:3: 'source' is accepted in"),
        (HEAD + '\n[[declassify]]\nfrom = "a"\nto = "b"\ntype = "T"', "p.toml:4: 'declassify' is accepted in"),
    ],
)
def test_what_widens_does_not_load_from_a_project(layer: Layer, text: str, expected: str) -> None:
    good(text, Layer.ORGANISATION)
    good(text, Layer.OPERATOR)
    assert any(expected in problem for problem in refused(text, layer))


def test_every_problem_is_listed_in_the_order_of_the_lines() -> None:
    problems = refused(HEAD + '[[rule]]\nidd = "x"\neffect = "no"\nwhat = ["x"]\n[[rule]]\nwhen = "1"\n')
    assert [problem.split(":")[1] for problem in problems] == ["3", "4", "5", "6", "7", "7", "7", "8"]


@pytest.mark.parametrize(
    "hostile",
    ["x = " + "[" * 50_000, "x = " + "{a=" * 20_000, "x" + ".x" * 60_000 + " = 1", "[x" + ".x" * 60_000 + "]"],
)
def test_a_file_made_to_keep_the_reader_busy_is_refused_at_once(hostile: str) -> None:
    began = time.process_time()
    assert "p.toml:3: nothing here is nested deeper than 16" in refused(HEAD + hostile)
    assert time.process_time() - began < 2


def test_a_stranger_s_file_is_bounded() -> None:
    text = RULE + "#" * MOST_BYTES_BELOW
    good(text)
    assert "at most" in refused(text, Layer.PROJECT)[0]
