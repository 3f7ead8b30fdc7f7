"""`agentctl run --profile`: flags that are not typed, of the operator's own files or of those that ship."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.abi.errors import EACCES, EINVAL, ENOENT
from agent_os.cli import profile
from cli.desk import Desk
from cli.test_naming import completed

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")

SHIPPED = {"python", "node", "shell", "claude-code"}
MINE = """about = "mine"
mount = ["~/shown"]
env = ["COLOUR=red", "PASSED"]
net = ["one.example.com", "10.0.0.7:8443"]
cap = ["tool:mail:call"]
budget = ["tokens=10k"]
limit = ["pids=64"]
timeout = "5m"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's own folder of profiles, and a project around us."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    folder = tmp_path / "xdg/agent-os/profiles"
    folder.mkdir(parents=True)
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)


def test_those_that_ship_can_be_read_and_name_no_place_of_the_host_and_no_secret(own: Path) -> None:
    assert set(profile.names()) == SHIPPED
    for name in SHIPPED:
        found = profile.load(name)
        assert found.about
        assert (found.mount, found.secret, found.cap) == ((), (), ())
        assert all("=" in one for one in found.env)  # none passes on a variable of the operator's
    assert profile.load("shell").net == ()
    assert profile.load("claude-code").model == ("anthropic/*",)


def test_the_operators_own_counts_before_the_one_that_ships(own: Path) -> None:
    shipped = profile.load("python")
    write(own / "python.toml", 'about = "mine"\nnet = ["mirror.example.com"]\n')
    assert profile.load("python").net == ("mirror.example.com",) != shipped.net


def test_a_project_can_neither_define_a_profile_nor_take_the_place_of_one(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = profile.load("python")
    for folder in (".", "profiles", "agent-os/profiles", ".agents/profiles", ".config/agent-os/profiles"):
        for name in ("python", "evil"):
            write(Path(folder) / f"{name}.toml", 'net = ["evil.example.com"]\n')
    for name in ("evil", "./evil", "../project/evil", str(Path("evil").absolute()), "evil.toml"):
        with pytest.raises(ENOENT):
            profile.load(name)
    assert profile.load("python") == shipped
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")  # a relative one would be the project's
    monkeypatch.setenv("HOME", str(own.parent))
    assert profile.load("python") == shipped
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.cwd()))  # the control: these files are found where one looks
    assert profile.load("evil").net == ("evil.example.com",)


def test_a_name_that_nobody_knows_gets_the_nearest_and_all(own: Path) -> None:
    write(own / "mine.toml", MINE)
    with pytest.raises(ENOENT) as raised:
        profile.load("pyhton")
    assert "did you mean 'python'?" in raised.value.reason
    assert all(name in raised.value.hint for name in (*SHIPPED, "mine"))


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ('about = "x"\nnett = []\n', "profile.key", ":2: there is no key 'nett'; did you mean 'net'?"),
        ("min_isolation = 'S0'\n", "profile.key", ":1: there is no key 'min_isolation'"),
        ("commit = true\n", "profile.key", ":1: there is no key 'commit'"),
        ('net = "example.com"\n', "profile.value", ":1: net takes a list of texts"),
        ('net = [\n  "example.com",\n  7,\n]\n', "profile.value", ":3: net takes a list of texts, not 7"),
        ("timeout = 5\n", "profile.value", ":1: timeout takes a text"),
        ("[env]\nA = '1'\n", "profile.value", ":1: env takes a list of texts"),
        ("env = ['A B=1']\n", "profile.value", "NAME=VALUE"),
        ("env = ['A=\\u0007']\n".replace("'", '"'), "profile.value", ":1: env"),
        ("mount = ['data']\n", "profile.value", "begin with / or ~/"),
        ("mount = ['rw:../data']\n", "profile.value", "begin with / or ~/"),
        ("net = [\n", "profile.syntax", "is no TOML"),
        (f"about = '{'x' * 70_000}'\n", "config.syntax", "at most 65536 bytes"),
    ],
)
def test_what_is_not_understood_is_an_error_with_file_line_and_key(own: Path, text: str, code: str, says: str) -> None:
    write(own / "mine.toml", text)
    with pytest.raises(EINVAL) as raised:
        profile.load("mine")
    assert raised.value.code == code
    assert str(own / "mine.toml") in raised.value.reason
    assert says in raised.value.reason


@pytest.mark.parametrize(
    "net",
    "127.0.0.1:80 127.1:80 localhost:80 a.localhost LOCALHOST:1 [::1]:80 ::1 0.0.0.0 0:80 [::] 0x7f000001:80 "
    "2130706433:80 127.0.0.0/8 [::ffff:127.0.0.1]:80 ::ffff:127.0.0.1 017700000001".split(),
)
def test_no_profile_opens_a_port_of_this_machine(own: Path, net: str) -> None:
    """Only a person's flag can."""
    with pytest.raises(EINVAL, match="opened by hand"):
        profile.read(f'net = ["{net}"]\n', "x.toml")
    with pytest.raises(EINVAL, match="opened by hand"):
        profile.read("cap = ['http:127.0.0.1:get{loopback:127.0.0.1:80}']\n", "x.toml")


@pytest.mark.parametrize(
    "net", "example.com *.example.com:8443 10.0.0.7 10.0.0.7:80 [2001:db8::1]:443 2001:db8::1".split()
)
def test_hosts_elsewhere_are_taken_as_they_are_written(net: str) -> None:
    assert profile.read(f'net = ["{net}"]\n', "x.toml").net == (net,)


def test_a_file_that_others_can_write_is_not_used(own: Path) -> None:
    write(own / "mine.toml", MINE)
    assert profile.load("mine").timeout == "5m"
    (own / "mine.toml").chmod(0o666)
    with pytest.raises(EACCES, match="others can write"):
        profile.load("mine")


def test_one_that_ships_is_used_however_it_was_installed(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a umask of 002, or by somebody else: so was the program."""
    write(own.parent / "shipped/python.toml", MINE)
    (own.parent / "shipped/python.toml").chmod(0o664)
    monkeypatch.setattr(profile, "_SHIPPED", own.parent / "shipped")
    assert profile.load("python").about == "mine"


# With a kernel.


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    (home := desk.project.parent / "person").mkdir()
    (home / "shown").mkdir()
    desk.env |= {"XDG_CONFIG_HOME": str(home / "xdg"), "HOME": str(home), "PASSED": "on"}
    write(home / "xdg/agent-os/profiles/mine.toml", MINE)
    desk.up()
    yield desk
    desk.down()


def ordered(desk: Desk, name: str, *flags: str) -> dict[str, object]:
    """The order that the kernel keeps of a run."""
    desk.good("run", "-d", "--name", name, *flags, "--", "sleep", "3600")
    try:
        found = desk.good("inspect", name, "-o", "json").json["order"]
    finally:
        desk.good("kill", name)
    return {key: value for key, value in found.items() if key != "name"}


@pytest.mark.integration
def test_a_profile_does_what_the_same_flags_typed_do_and_no_more(desk: Desk) -> None:
    shown = f"{desk.env['HOME']}/shown"
    typed = "--env COLOUR=red --env PASSED --net one.example.com --net 10.0.0.7:8443 --cap tool:mail:call "
    typed += "--budget tokens=10k --limit pids=64 --timeout 5m"
    by_hand = ordered(desk, "by-hand", "--mount", shown, *typed.split())
    assert ordered(desk, "by-profile", "--profile", "mine") == by_hand


@pytest.mark.integration
def test_what_is_typed_besides_is_added_or_counts_more(desk: Desk) -> None:
    more = "--env COLOUR=blue --net two.example.com --budget tokens=20k --limit pids=32 --timeout 1m"
    found = ordered(desk, "both", "--profile", "mine", *more.split())
    assert found["net"] == ["one.example.com", "10.0.0.7:8443", "two.example.com"]
    assert (found["budget"], found["timeout"]) == ({"tokens": 20_000}, "1m")
    ran = desk.good("run", "--profile", "mine", "--env", "COLOUR=blue", "--", "sh", "-c", "echo $COLOUR $PASSED")
    assert ran.out == "blue on\n"
    assert "profile  mine  --mount ~/shown --env COLOUR --env PASSED --net one.example.com" in ran.err
    assert "red" not in ran.err  # a value may be a secret
    assert "profile" not in desk.good("run", "-q", "--profile", "mine", "--", "true").err


@pytest.mark.integration
def test_a_profile_is_checked_against_policy_and_gives_nothing(desk: Desk) -> None:
    """The rule says no to a host that the profile names; without the rule the answer is yes."""
    rule = '[[rule]]\nid = "no-one"\neffect = "forbid"\nwhat = ["http:one.example.com/**:*"]\n'
    (desk.project / "rules.toml").write_text(f'version = 1\ndefault = "capability"\n{rule}')
    desk.good("run", "-d", "--name", "asker", "--profile", "mine", "--", "sleep", "3600")
    try:
        assert desk.good("can", "asker", "http:one.example.com:get").code == 0
        desk.good("policy", "apply", "rules.toml")
        assert desk.ask("can", "asker", "http:one.example.com:get").code == 5
    finally:
        desk.good("policy", "rollback")
        desk.good("kill", "asker")


@pytest.mark.integration
def test_run_says_which_there_are_completes_them_and_takes_none_beside_a_manifest(desk: Desk) -> None:
    unknown = desk.ask("run", "--profile", "shel", "--", "true")
    assert (unknown.code, "did you mean 'shell'?" in unknown.err) == (125, True)
    assert set(completed(desk, "agentctl run --profile ")) == {*SHIPPED, "mine"}
    assert completed(desk, "agentctl run --profile py") == ["python"]
    (desk.project / "x.agent.toml").write_text('name = "x"\n')
    beside = desk.ask("run", "--profile", "shell", "x.agent.toml")
    assert "--profile has no place beside it" in beside.err
