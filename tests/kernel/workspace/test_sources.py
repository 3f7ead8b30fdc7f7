"""kernel/sources: which directories are refused, and what is hidden in those that are not."""

import os
import pwd
from pathlib import Path

import pytest

from agent_os.abi.errors import EACCES, EINVAL, ENOENT
from agent_os.kernel.workspace.sources import check_source, hidden_places, masks

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    top = tmp_path / "home"
    for name in [
        ".ssh",
        ".aws",
        ".config/gh",
        ".docker",
        ".kube",
        ".mozilla/firefox",
        ".local/share/keyrings",
        "code/app",
    ]:
        (top / name).mkdir(parents=True)
    (top / ".netrc").write_text("secret")
    return top


@pytest.fixture
def state(home: Path) -> Path:
    top = home / ".local/state/agent-os"
    top.mkdir(parents=True)
    return top


def test_a_project_is_accepted_by_its_real_path(home: Path, state: Path) -> None:
    link = home / "link"
    link.symlink_to("code/app")
    assert check_source(link, state=state, home=home) == (home / "code/app").resolve()


def test_what_would_hand_over_too_much_is_refused(home: Path, state: Path) -> None:
    (home / "me").symlink_to(".")
    (state / "work/x").mkdir(parents=True)
    refused = [Path("/"), home, home / "me", home / "code/..", home.parent, home / ".local", state, state / "work/x"]
    for source in [*refused, home / ".ssh", Path("/proc"), Path("/proc/self"), Path("/sys"), Path("/dev/shm")]:
        with pytest.raises(EINVAL) as caught:
            check_source(source, state=state, home=home)
        assert caught.value.code == "workspace.refused", source
        assert str(home / "code") in caught.value.hint, source


def test_root_may_not_hand_over_another_home(home: Path, state: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: only root can reach other people's homes")
    with pytest.raises(EINVAL, match="home"):
        check_source(Path(pwd.getpwuid(0).pw_dir), state=state, home=home)


def test_what_cannot_be_a_source_says_why(home: Path, state: Path) -> None:
    with pytest.raises(ENOENT, match="does not exist"):
        check_source(home / "nothing", state=state, home=home)
    (home / "code/file").write_text("x")
    with pytest.raises(EINVAL, match="not a directory"):
        check_source(home / "code/file", state=state, home=home)
    if os.geteuid() != 0:
        (home / "code/app").chmod(0)
        with pytest.raises(EACCES) as caught:
            check_source(home / "code/app", state=state, home=home)
        assert caught.value.code == "workspace.unreadable"
        (home / "code/app").chmod(0o755)


def test_credentials_inside_a_source_are_masked_where_the_agent_would_see_them(home: Path, state: Path) -> None:
    found = masks(home, "/work", hidden_places(state=state, home=home))
    for name in [
        ".ssh",
        ".aws",
        ".config/gh",
        ".netrc",
        ".docker",
        ".kube",
        ".mozilla",
        ".local/share/keyrings",
        ".local/state/agent-os",
    ]:
        assert f"/work/{name}" in found
    assert "/work/.gnupg" not in found, "what does not exist needs no mask"
    assert "/work/code" not in found
    assert masks(home / "code", "/work", hidden_places(state=state, home=home)) == []


def test_a_linked_home_and_a_linked_credential_folder_are_found(tmp_path: Path, home: Path, state: Path) -> None:
    linked = tmp_path / "linked"
    linked.symlink_to(home)
    assert "/x/.ssh" in masks(home, "/x", hidden_places(state=state, home=linked))
    (home / ".gnupg").symlink_to("code/keys")
    (home / "code/keys").mkdir()
    assert masks(home / "code", "/x", hidden_places(state=state, home=linked)) == ["/x/keys"]


def test_a_mask_below_a_mask_is_left_out(home: Path) -> None:
    state = home / ".ssh/agent-os"
    state.mkdir()
    found = masks(home, "/x", hidden_places(state=state, home=home))
    assert "/x/.ssh" in found
    assert "/x/.ssh/agent-os" not in found


def test_other_users_credentials_are_masked_too(home: Path, state: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: /root is closed to others")
    root_home = Path(pwd.getpwuid(0).pw_dir)
    known = [name for name in (".ssh", ".npmrc", ".config/gcloud", ".gnupg", ".docker") if (root_home / name).exists()]
    if not known:
        pytest.skip("root has no credential folder on this machine")
    assert f"/x/{known[0]}" in masks(root_home, "/x", hidden_places(state=state, home=home))
