"""What an order makes of a manifest, and what it refuses in words."""

from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import orders
from agent_os.kernel.supervisor.keeping import Kept
from agent_os.kernel.supervisor.orders_of import as_given, endowed, order, require_possible
from agent_os.kernel.supervisor.specs import Spec
from agent_os.manifest.model import AgentManifest

ENV = {"PATH": "/usr/bin", "HOME": "/home/x", "API_TOKEN": "secret"}
HEAD = 'name = "a"\nrole = "worker"\n'


def spec(text: str, base: str = "/srv/project") -> Spec:
    return Spec.of(AgentManifest.from_toml(HEAD + text), base)


def ordered(text: str, base: str = "/srv/project") -> dict[str, Any]:
    made = order(spec(text, base), ENV)
    orders.read(made)  # it can be carried out
    return made


def test_a_command_works_in_the_folder_of_its_manifest_as_the_workspace_says() -> None:
    program = "[program]\nargv = ['tool', '-x']\nenv = { A = 'b' }\n"
    plain = ordered(program)
    assert (plain["argv"], plain["cwd"], plain["workspace"], plain["mounts"]) == (
        ["tool", "-x"],
        "/srv/project",
        "tmpfs",
        [],
    )
    assert plain["env"] == ["A=b"]
    assert plain["environment"] == {"PATH": "/usr/bin", "HOME": "/home/x"}, "nothing that could be a secret"
    over = ordered(program.replace("env", "working_dir = '/work/sub'\nenv") + "[sandbox]\nworkspace = 'overlay'\n")
    assert (over["cwd"], over["workspace"]) == ("/srv/project/sub", "overlay:/srv/project")
    assert ordered(program + "[sandbox]\nworkspace = 'bind'\nmin_level = 'S3'\n")["workspace"] == "bind:/srv/project"


def test_an_agent_of_ours_sees_the_folder_of_its_program_and_no_more() -> None:
    made = ordered("[program]\nentry = 'pack.mod:main'\n")
    assert (made["file"], made["function"]) == ("/srv/project/pack/mod.py", "main")
    assert made["mounts"] == ["/srv/project:/srv/project"]
    assert ordered("[program]\nentry = 'mod.py:main'\n")["file"] == "/srv/project/mod.py"


def test_a_program_finds_the_model_and_the_inputs_that_its_manifest_names() -> None:
    named = "runtime = 'python'\nmodel = 'p/m'\n[program.inputs]\nquestion = 'why?'\n"
    made = ordered(f"[program]\nentry = 'mod.py:main'\n{named}")
    assert (made["env"], made["input"]) == (["AGENT_OS_MODEL=p/m"], {"question": "why?"})
    assert "capability://llm/p/m?action=call" in made["caps"]
    plain = ordered("[program]\nentry = 'mod.py:main'\n")
    assert (plain["env"], plain.get("input")) == ([], None)
    model = ordered("[program]\nmodel = 'p/m'\n[program.inputs]\nquestion = 'why?'\n")
    assert (model["env"], model["input"]["inputs"]) == ([], {"question": "why?"})


def test_what_a_manifest_shows_is_what_it_names_and_not_where_a_link_leads(tmp_path: Path) -> None:
    """Neither whoever reads it nor a neighbour who may write there decides about that."""
    (tmp_path / "real").mkdir()
    mount = "[[mounts]]\npath = '/data'\nsource = 'real'\nrights = 'rw'\n[program]\nargv = ['x']\n"
    over = "[program]\nargv = ['x']\n[sandbox]\nworkspace = 'overlay'\n"
    assert ordered(mount, str(tmp_path))["mounts"] == [f"rw:{tmp_path}/real:/data"]
    (tmp_path / "link").symlink_to("real")
    for wrong in (spec(mount.replace("real", "link"), str(tmp_path)), spec(over, str(tmp_path / "link"))):
        with pytest.raises(EINVAL, match=f"link is a link, to {tmp_path}/real"):
            order(wrong, ENV)
    with pytest.raises(EINVAL, match=r"mounts.0.source: link is a link"):
        require_possible(spec(mount.replace("real", "link"), str(tmp_path)))


@pytest.mark.parametrize(
    ("operator", "manifest", "least"), [("S4", "S1", "S4"), ("", "S1", "S2"), ("S1", "S1", "S1"), ("S1", "S3", "S3")]
)
def test_a_manifest_lowers_no_walls(operator: str, manifest: str, least: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_OS_MIN_ISOLATION", operator)
    made = ordered(f"[program]\nargv = ['x']\n[sandbox]\nmin_level = '{manifest}'\n")
    assert made["min_isolation"] == least


def test_limits_budget_hosts_and_roles_are_those_of_the_manifest() -> None:
    made = ordered(
        "[program]\nargv = ['x']\n[resources]\nmax_memory_mb = 100\nmax_tasks = 1\ncpu_quota = 1000\n"
        "[budget]\ntool_calls = 7\nusd = 0.5\n[capabilities]\nnetwork = ['api.example.org:443']\n"
    )
    limits = dict(one.split("=") for one in made["limit"])
    assert (limits["memory_mb"], limits["pids"]) == ("100", "4"), "never less than a process needs"
    assert int(limits["cpu_pct"]) % 100 == 0
    assert made["budget"] == {"calls": 7, "messages": 5000, "cost": 500_000}
    assert made["net"] == ["api.example.org:443"]
    assert made["caps"] == [], "a host is granted with the hosts"
    assert made["roles"] == ["worker"]
    off = ordered("[program]\nargv = ['x']\n[capabilities]\nnetwork = ['h:443']\ncan_network = false\n")
    assert off["net"] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "program: there is no program"),
        ("[program]\nmodel = 'p/m'\noutput_schema = 'none.json'\n", "program.output_schema: "),
        ("[program]\nentry = 'none.py:main'\n", "program.entry: there is no file"),
        ("[program]\nargv = ['x']\nworking_dir = '/etc'\n", "program.working_dir: /etc"),
        ("[program]\nargv = ['x']\n[lifecycle.hooks]\non_start = 'y'\n", "lifecycle.hooks: "),
        ("[program]\nargv = ['x']\n[budget]\non_exhausted = 'pause'\n", "budget.on_exhausted: pause"),
        ("[[mounts]]\npath = '/d'\nkind = 'store'\nsource = 's'\n[program]\nargv = ['x']\n", "mounts.0.kind: store"),
    ],
)
def test_what_there_is_not_yet_is_refused_and_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(AgentOSError) as caught:
        require_possible(spec(text, str(tmp_path)))
    assert caught.value.reason.startswith(said)


def test_what_there_is_passes(tmp_path: Path) -> None:
    (tmp_path / "m.py").touch()
    for text in ("[program]\nentry = 'm:main'\n", "[program]\nargv = ['x']\n", "[program]\nmodel = 'p/m'\n"):
        require_possible(spec(text, str(tmp_path)))
    require_possible(Spec.of(AgentManifest.from_toml('name = "b"\nrole = "supervisor"\n'), str(tmp_path)))


def test_the_next_kernel_knows_what_was_given_by_the_same_manifest_and_gives_nothing_anew() -> None:
    store = SqliteStore(None)
    made = spec("[program]\nargv = ['x']\nenv = { B = '1', A = '2' }\n[budget]\ntool_calls = 7\n")
    given = order(made, ENV)
    store.append([], [Kept(store).declare(made), endowed(made, given)], [], sync=False)
    again = Kept(store).specs["default/a"]
    assert again is not made
    assert as_given(store, again, ENV) == given
    changed = spec("[program]\nargv = ['x']\nenv = { B = '1', A = '2' }\n[budget]\ntool_calls = 8\n")
    assert as_given(store, changed, ENV) is None
