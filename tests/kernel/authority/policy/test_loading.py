"""Files of all layers are read together, or none is."""

import os
from pathlib import Path

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.loading import (
    Place,
    Text,
    common,
    contents,
    load,
    of_project,
    parse,
    problems_of,
    texts_of,
)
from agent_os.kernel.authority.policy.rules import Layer

GOOD = 'version = 1\ndefault = "capability"\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refused(*places: Place) -> list[str]:
    with pytest.raises(EINVAL) as caught:
        load(places)
    return [str(one) for one in problems_of(caught.value)]


def test_layers_are_put_in_order_whatever_order_they_come_in(tmp_path: Path) -> None:
    places = [
        Place(layer, write(tmp_path / f"{layer.name}.toml", GOOD), layer.name) for layer in reversed(Layer) if layer
    ]
    assert [file.file for file in load(places).files] == ["built-in", "ORGANISATION", "OPERATOR", "PROJECT", "MANIFEST"]


def test_a_project_s_markdown_lies_on_top_of_the_common_policy(tmp_path: Path) -> None:
    base = Policy()
    path = write(tmp_path / "security.md", "---\npolicies:\n  - action: pay\n---\n")
    policy = load([Place(Layer.PROJECT, path, ".agents/security.md")], {"pay": "o"}, base)
    assert str(policy.files[-1].rules[0].where) == ".agents/security.md:3"


def test_the_problems_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.toml", "x = 1\n"), write(tmp_path / "b.toml", GOOD + "mode = 1\n")
    told = refused(Place(Layer.OPERATOR, one, "a"), Place(Layer.PROJECT, other, "b"))
    assert {problem.split(":")[0] for problem in told} == {"a", "b"}


def test_a_file_that_cannot_be_read_is_no_empty_policy(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    os.symlink(write(tmp_path / "real.toml", GOOD), tmp_path / "link.toml")
    assert refused(Place(Layer.OPERATOR, tmp_path / "none.toml", "n")) == [
        "n: cannot be read: No such file or directory"
    ]
    assert refused(Place(Layer.OPERATOR, tmp_path / "pipe.toml", "p")) == ["p: is not a regular file"]
    assert refused(Place(Layer.OPERATOR, tmp_path, "d"))[0].startswith("d: is not a regular file")
    assert "cannot be read" in refused(Place(Layer.PROJECT, tmp_path / "link.toml", "l"))[0]
    assert load([Place(Layer.OPERATOR, tmp_path / "link.toml")])


def test_markdown_is_a_project_s_format_only(tmp_path: Path) -> None:
    path = write(tmp_path / "security.md", "policies: []\n")
    assert refused(Place(Layer.OPERATOR, path)) == [
        f"{path}: this format is a project's; other layers are written in TOML"
    ]


def test_the_common_files_are_those_that_there_are(tmp_path: Path) -> None:
    above, home = tmp_path / "above.toml", tmp_path / "home"
    home.mkdir()
    assert common(home, above) == []
    write(home / "policy.toml", GOOD)
    assert [place.layer for place in common(home, above)] == [Layer.OPERATOR]
    write(above, GOOD)
    assert [place.layer for place in common(home, above)] == [Layer.ORGANISATION, Layer.OPERATOR]
    assert [place.layer for place in common(None, above)] == [Layer.ORGANISATION]
    (home / "policy.toml").unlink()
    (home / "policy.toml").symlink_to("nowhere")  # named, and not to be read: an error, not nothing
    assert "policy.toml: cannot be read" in refused(*common(home, above))[0]


def test_a_projects_files_are_read_beneath_it_and_keep_their_lines(tmp_path: Path) -> None:
    assert texts_of(tmp_path) == []
    (tmp_path / ".agents").mkdir()
    write(tmp_path / ".agents/policy.toml", f"{GOOD}colour = 1\n")
    write(tmp_path / ".agents/security.md", "---\nkernel:\n  mode: audit\n---\n")
    texts = texts_of(tmp_path)
    assert [text.name for text in texts] == [".agents/security.md", ".agents/policy.toml"]
    with pytest.raises(EINVAL) as caught:
        of_project(texts, "/p")
    places = [str(one.where) for one in problems_of(caught.value)]
    assert places == ["/p/.agents/security.md:3", "/p/.agents/policy.toml:3"]
    assert [file.layer for file in of_project([Text(".agents/policy.toml", GOOD.encode())], "/p")] == [Layer.PROJECT]


@pytest.mark.parametrize("strange", ["fifo", "directory", "link"])
def test_what_is_no_plain_file_of_a_project_is_refused(tmp_path: Path, strange: str) -> None:
    (tmp_path / ".agents").mkdir()
    place = tmp_path / ".agents/policy.toml"
    if strange == "fifo":
        os.mkfifo(place)
    elif strange == "directory":
        place.mkdir()
    else:
        place.symlink_to(write(tmp_path / "elsewhere.toml", GOOD))
    with pytest.raises(EINVAL, match=r"policy\.toml: it "):
        texts_of(tmp_path)


def test_a_rule_about_a_role_that_nobody_can_have_does_not_load(tmp_path: Path) -> None:
    rule = '[[rule]]\nid = "a"\neffect = "forbid"\nwhat = ["tool:x:call"]\nagents = ["anna", "role:worker"]\n'
    told = refused(Place(Layer.OPERATOR, write(tmp_path / "a.toml", GOOD + rule.replace("worker", "wroker")), "a"))
    assert told == ["a:7: 'role:wroker': there is no such role; did you mean 'worker'?"]
    crossing = '[[declassify]]\nfrom = "anna"\nto = "role:planner"\ntype = "report"\n'
    told = refused(Place(Layer.OPERATOR, write(tmp_path / "a.toml", GOOD + crossing), "a"))
    assert told[0].startswith("a:5: 'role:planner': there is no such role; there is root, supervisor")
    for role in ("worker", "custom(analytics)", "custom:analytics"):
        policy = load([Place(Layer.OPERATOR, write(tmp_path / "a.toml", GOOD + rule.replace("worker", role)))])
        ((_, loaded),) = [one for one in policy.rules() if one[1].id == "a"]
        known = "worker" if role == "worker" else "custom(analytics)"
        assert loaded.about([("somebody", known)])
        assert not loaded.about([("somebody", "service"), ("else", "")])


def test_two_files_of_a_layer_have_no_rule_of_the_same_id(tmp_path: Path) -> None:
    """What a person agreed to is bound to layer and id."""
    rule = '[[rule]]\nid = "security-1"\neffect = "ask"\nwhat = ["tool:pay:call"]\n'
    security = write(tmp_path / "security.md", "policies:\n  - action: pay\n    requires_approval: true\n")
    toml = write(tmp_path / "p.toml", GOOD + rule)
    places = [Place(Layer.PROJECT, security, "s.md"), Place(Layer.PROJECT, toml, "p.toml")]
    with pytest.raises(EINVAL, match=r"p.toml:3: there is a rule 'security-1' already, at s.md:2"):
        load(places, {"pay": "o"})
    policy = load([Place(Layer.OPERATOR, toml, "o.toml"), places[0]], {"pay": "o"})
    assert [rule.name for _, rule in policy.rules()] == ["operator:security-1", "project:security-1"]


@pytest.mark.parametrize(
    ("what", "agents", "why"),
    [
        ("mem:/semantic/x:read", "*", "nothing of an agent's memory lies there"),
        ("http:10.0.0.0/8:get", "*", "a rule cannot be about a network"),
        ("tool:pay:call{arg.amount:100..}", "*", "a range has two ends"),
        ("file:/x:read", "Boss", "no agent is called 'Boss'"),
        ("file:/x:read", "Role:worker", "no agent is called 'Role:worker'"),
    ],
)
def test_a_rule_about_what_there_is_not_is_refused(what: str, agents: str, why: str) -> None:
    rule = f'id = "a"\neffect = "forbid"\nwhat = ["{what}"]\nagents = ["{agents}"]\n'
    text = f'version = 1\ndefault = "capability"\n[[rule]]\n{rule}'
    with pytest.raises(EINVAL, match=why):
        parse(text.encode(), "p.toml", Layer.PROJECT)


def test_the_organisations_rules_that_cannot_be_looked_at_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (place,) = common(None, tmp_path / "loop" / "policy.toml")
    with pytest.raises(EINVAL, match="cannot be read"):
        contents(place)
