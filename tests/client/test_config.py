"""Settings: what counts before what, and that a file which cannot be understood is never taken for an empty one."""

import os
import stat
from pathlib import Path

import pytest

from agent_os.abi.errors import EACCES, EINVAL
from agent_os.client import config, place

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file, not there yet; nothing in the environment; an empty project around us."""
    for key in config.KEYS.values():
        monkeypatch.delenv(key.variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(config, "_MACHINE", tmp_path / "etc.toml")
    (tmp_path / "project").mkdir()
    (tmp_path / "xdg" / "agent-os").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return config.user_file()


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def test_the_environment_counts_before_files_and_those_in_their_order(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def now() -> tuple[object, str]:
        found = config.setting("min_isolation", project=True)
        return found.value, found.origin

    assert now() == (None, "default")
    write(tmp_path / "etc.toml", 'min_isolation = "S1"\n')
    assert now() == ("S1", "machine")
    write(user, '# mine\nmin_isolation = "S2"\n')
    assert now() == ("S2", "user")
    assert config.setting("min_isolation").where == f"{user}:2"
    Path(config.PROJECT).write_text('min_isolation = "S3"\n')
    assert now() == ("S3", "project")
    assert config.setting("min_isolation").origin == "user"  # where nobody asked for the project's
    monkeypatch.setenv("AGENT_OS_MIN_ISOLATION", "s4")
    assert now() == ("S4", "environment")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("prot = 1\n", "config.key", "did you mean 'port'?"),
        ("[port]\n", "config.value", "takes a number"),
        ('port = "x"\n', "config.value", "takes a number"),
        ("port = true\n", "config.value", "takes a number"),
        ("port = 70000\n", "config.value", "0 to 65535"),
        ('min_isolation = "S9"\n', "config.value", "S0, S1"),
        ("min_isolation = 3\n", "config.value", "S0, S1"),
        ('home = "state"\n', "config.value", "begins with /"),
        ("home = [\n", "config.syntax", "no TOML"),
        ("\udcff", "config.syntax", "UTF-8"),
    ],
)
def test_what_cannot_be_understood_is_an_error_that_names_file_and_line(
    user: Path, text: str, code: str, says: str
) -> None:
    user.write_bytes(b"\n" + os.fsencode(text))
    user.chmod(0o600)
    with pytest.raises(EINVAL) as told:
        config.setting("log")  # whatever was asked for
    assert told.value.code == code
    assert says in told.value.reason
    assert str(user) in told.value.reason
    assert code == "config.syntax" or (f"{user}:2" in told.value.reason) or text.startswith("[")


def test_a_file_that_cannot_be_read_or_that_others_write_is_refused(user: Path) -> None:
    write(user, "port = 1\n")
    user.chmod(0o622)
    with pytest.raises(EACCES, match="others can write"):
        config.setting("port")
    user.unlink()
    user.mkdir()
    with pytest.raises(EACCES, match="cannot be read"):
        config.setting("port")


@pytest.mark.parametrize("key", [key for key, about in config.KEYS.items() if not about.strictest])
def test_a_project_chooses_neither_a_kernel_nor_anything_else_of_the_operator(user: Path, key: str) -> None:
    value = {"port": "7700", "idle_exit": "60", "log": '"debug"'}.get(key, '"/tmp/evil"')
    Path(config.PROJECT).write_text(f"{key} = {value}\n")
    with pytest.raises(EINVAL) as told:
        config.everything()
    assert told.value.code == "config.project"
    assert config.setting(key).value is None  # and without being asked it is not even looked at
    assert not str(place.home()).startswith("/tmp/evil")


def test_a_project_only_raises_the_wall(user: Path) -> None:
    Path(config.PROJECT).write_text('min_isolation = "S1"\n')
    with pytest.raises(EINVAL, match="less strict than S2 of the default"):
        config.setting("min_isolation", project=True)
    write(user, 'min_isolation = "S1"\n')
    assert config.setting("min_isolation", project=True).origin == "project"  # as strict as what is above it


def test_a_kernel_is_started_with_what_files_say_but_no_project(user: Path) -> None:
    write(user, 'min_isolation = "S1"\nlog = "debug"\n')
    Path(config.PROJECT).write_text('min_isolation = "S4"\n')
    wanted = config.for_kernel({"PATH": "/bin"})
    assert wanted == {"PATH": "/bin", "AGENT_OS_MIN_ISOLATION": "S1", "AGENT_OS_LOG": "debug"}


def test_where_a_kernel_is_can_be_said_in_a_file(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(user, 'home = "/srv/agents"\nagents = "/srv/manifests"\n')
    assert place.home() == Path("/srv/agents")
    assert place.control_socket() == Path("/srv/agents/run/kernel.sock")
    assert place.agents() == Path("/srv/manifests")
    monkeypatch.setenv("AGENT_OS_HOME", "elsewhere")
    assert place.home() == Path.cwd() / "elsewhere"
    assert place.agents() is None  # nobody else's agents start there


def test_a_changed_file_keeps_everything_else() -> None:
    text = '# mine\nport = 1  # old\nlog = "info"\n'
    assert config.changed(text, "port", "8000") == '# mine\nport = 8000\nlog = "info"\n'
    assert config.changed("", "home", '/a"b\\') == 'home = "/a\\"b\\\\"\n'
    assert config.parsed(config.changed("", "home", '/a"b\\'), "f", "user")["home"].value == '/a"b\\'


def test_a_file_of_ours_is_for_us_alone(user: Path) -> None:
    from agent_os.cli.main import main

    assert main(["config", "set", "port", "8000"]) == 0
    assert stat.S_IMODE(user.stat().st_mode) == 0o600
    assert main(["config", "set", "min_isolation", "s3"]) == 0
    assert user.read_text() == 'port = 8000\nmin_isolation = "S3"\n'
    assert main(["config", "set", "port", "99999"]) == 2
    assert main(["config", "set", "port", "7", "--dry-run"]) == 0
    assert config.setting("port").value == 8000


def test_what_holds_is_shown_with_where_it_comes_from(
    user: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_os.cli.main import main

    write(user, "\nport = 8000\n")
    monkeypatch.setenv("AGENT_OS_LOG", "debug")
    assert main(["config", "view", "--show-origin"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["port"] == ["port", "8000", f"{user}:2"]
    assert lines["log"] == ["log", "debug", "$AGENT_OS_LOG"]
    assert lines["min_isolation"] == ["min_isolation", "S2", "default"]
    assert main(["config", "view", "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == list(config.KEYS)
