"""Orders as they come by the wire: what is understood, relative to whom, and what is refused at once."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EACCES, EINVAL, ENOENT, AgentOSError
from agent_os.kernel import orders, plan


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("state", "home/project/below", "home/data"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def understood(place: Path, **order: Any) -> plan.Order:
    base = {"argv": ["true"], "cwd": str(place / "home" / "project"), "environment": {"HOME": str(place / "home")}}
    written = orders.read({**base, **order})
    return orders.parse(written, orders.host_of(written, place / "state"))


def test_paths_are_relative_to_the_client_and_its_home(place: Path) -> None:
    order = understood(place, workspace="below", mounts=["~/data:/data", "../data:/again"])
    assert (order.mode, order.project) == ("overlay", place / "home" / "project" / "below")
    assert [(mount.source, mount.at) for mount in order.mounts] == [
        (place / "home" / "data", "/data"),
        (place / "home" / "data", "/again"),
    ]
    assert understood(place, workspace="~/data").project == place / "home" / "data"
    assert understood(place).project == place / "home" / "project"
    assert understood(place, workspace="tmpfs").project is None


def test_names_that_are_no_text_arrive_whole(place: Path) -> None:
    odd = place / "home" / os.fsdecode(b"od\xff")
    odd.mkdir()
    order = understood(place, argv=["echo", b"\xff"], cwd=os.fsencode(odd), env=[b"X=\xfe"])
    assert os.fsencode(order.argv[1]) == b"\xff"
    assert order.project == odd
    assert os.fsencode(order.env["X"]) == b"\xfe"


def test_of_the_clients_environment_only_what_it_sent_is_known(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_KERNEL", "secret")
    with pytest.raises(EINVAL, match="not set here"):
        understood(place, env=["OF_THE_KERNEL"])


@pytest.mark.parametrize(
    ("order", "kind", "words"),
    [
        ({"unknown": 1}, EINVAL, "unknown"),
        ({"argv": [1]}, EINVAL, "int where a name or a word belongs"),
        ({"argv": "true"}, EINVAL, "argv"),
        ({"cwd": "relative"}, EINVAL, "absolute"),
        ({"after": "burn"}, EINVAL, "burn"),
        ({"workspace": "nowhere"}, ENOENT, "does not exist"),
        ({"workspace": "bind:"}, EINVAL, "names no directory"),
        ({"workspace": "../../state"}, EINVAL, "state directory"),
        ({"workspace": "tmpfs", "snapshot": "x"}, EINVAL, "leaves no state"),
        ({"origin": "nobody"}, ENOENT, "no workspace nobody"),
        ({"min_isolation": "S9"}, EINVAL, "no isolation level"),
        ({"timeout": "soon"}, EINVAL, "soon"),
        ({"net": ["*"]}, EINVAL, r"\*"),
    ],
)
def test_what_cannot_be_is_told(place: Path, order: dict[str, Any], kind: type[AgentOSError], words: str) -> None:
    with pytest.raises(kind, match=words):
        understood(place, **order)


def test_an_order_that_was_pinned_is_refused_once_a_link_leads_elsewhere(place: Path) -> None:
    home = place / "home"
    base = {"argv": ["true"], "cwd": str(home / "project"), "workspace": "bind:below", "mounts": ["rw:../data:/data"]}
    pinned = orders.pinned(base, understood(place, **base))
    assert pinned["workspace"] == f"bind:{home}/project/below"
    assert pinned["mounts"] == [f"rw:{home}/data:/data"]
    again = orders.pinned(pinned, understood(place, **pinned))
    assert again == pinned
    orders.require_unmoved(pinned, again)
    (home / "data").rename(home / "away")
    (home / "data").symlink_to(home / "project")
    with pytest.raises(EACCES, match=f"{home}/data:/data leads to rw:{home}/project:/data now"):
        orders.require_unmoved(pinned, orders.pinned(pinned, understood(place, **pinned)))


def test_what_no_order_can_name_is_not_pinned(place: Path) -> None:
    (place / "home/a:b").mkdir()
    (place / "home/link").symlink_to("a:b")
    with pytest.raises(EINVAL, match="written with ':'"):
        orders.pinned({}, understood(place, mounts=["../link:/data"]))
