"""SpawnSpec: what crosses into the launcher is checked field by field."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.sandbox.spec import MAX_BYTES, Bind, Limits, SpawnSpec, SpecError, Workspace, decode, encode

SPEC = SpawnSpec(
    "one",
    "guest",
    argv=["true"],
    env={"A": "b"},
    binds=[Bind("bind0", "/data", rw=True)],
    workspace=Workspace("overlay", "/home/x/project"),
    limits=Limits(wall_s=1.5),
    exec_allow=["/usr/bin/true"],
)


def test_a_spec_survives_the_crossing() -> None:
    assert decode(encode(SPEC)) == SPEC


@given(st.lists(st.text(), min_size=1), st.dictionaries(st.text(), st.text()))
def test_any_argv_and_environment_survive_the_crossing(argv: list[str], env: dict[str, str]) -> None:
    spec = replace(SPEC, argv=argv, env=env)
    assert decode(encode(spec)) == spec


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"spawn_id": 7}, "spec.spawn_id must be str, not int"),
        ({"kind": "daemon"}, "spec.kind is 'daemon', not one of native, guest, tool"),
        ({"nett": "none"}, "spec has no field 'nett'"),
        ({"argv": "true"}, "spec.argv must be list"),
        ({"argv": ["a", 1]}, r"spec.argv\[1\] must be str, not int"),
        ({"argv": []}, "argv is empty"),
        ({"env": {"A": None}}, "spec.env.A must be str, not NoneType"),
        ({"limits": {"pids": "64"}}, "spec.limits.pids must be int, not str"),
        ({"limits": {"pids": True}}, "spec.limits.pids must be int, not bool"),
        ({"workspace": {"at": "work"}}, "'work' is not an absolute path"),
        ({"workspace": {"at": "/"}}, "workspace.at may not be /"),
        ({"binds": [{"fd": "b", "dst": "/a/../b"}]}, "is not an absolute path without '..'"),
        ({"masks": ["/a\0b"]}, "is not an absolute path"),
        ({"covers": [{"path": "/a/../b"}]}, "is not an absolute path without '..'"),
        ({"covers": [{"path": "/a", "how": "wipe"}]}, r"spec.covers\[0\].how is 'wipe'"),
        ({"uid": 0}, "uid 0 is outside"),
        ({"uid": 4096}, "uid 4096 is outside"),
        ({"min_level": "S9"}, "spec.min_level is 'S9'"),
        ({"workspace": []}, "spec.workspace must be an object, not list"),
    ],
)
def test_a_wrong_field_names_itself(change: dict[str, object], complaint: str) -> None:
    message = json.loads(encode(SPEC).partition(b"\n")[2]) | change
    with pytest.raises(SpecError, match=complaint):
        decode(b"one\n" + json.dumps(message).encode())


def test_a_missing_id_names_itself() -> None:
    with pytest.raises(SpecError, match="needs spawn_id"):
        decode(b'one\n{"argv": ["true"]}')


def test_an_oversized_request_is_refused_before_it_is_sent() -> None:
    with pytest.raises(SpecError, match=f"more than {MAX_BYTES}: shorten argv or env"):
        encode(replace(SPEC, argv=["x" * MAX_BYTES]))
