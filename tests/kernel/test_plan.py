"""What a guest will see is decided before anything is made."""

from pathlib import Path

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel import plan
from agent_os.kernel.egress import parse_grant
from agent_os.kernel.guest import parse_mount
from agent_os.kernel.hiding import Covered
from agent_os.kernel.plan import Host, Order


@pytest.fixture
def host(tmp_path: Path) -> Host:
    state, home = tmp_path / "state", tmp_path / "home"
    state.mkdir()
    home.mkdir()
    return Host(state, home, {"PATH": "/usr/bin:/bin", "AWS_SECRET_ACCESS_KEY": "SECRET"})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "project"
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("python3", "agent.py", "--x"), "agent.py"),
        (("python3", "-u", "agent.py"), "agent.py"),
        (("node", "/srv/app/index.js"), "/srv/app/index.js"),
        (("python3", "-c", "pass"), "python3"),
        (("bash", "-lc", "make all"), "bash"),
        (("python3", "agent.py", "-c", "x"), "agent.py"),
        (("python3", "-m", "http.server"), "python3"),
        (("/usr/bin/make", "all"), "/usr/bin/make"),
        (("bash",), "bash"),
    ],
)
def test_a_run_is_called_after_what_it_runs(argv: tuple[str, ...], name: str) -> None:
    assert plan.title(argv) == name


def test_the_hosts_environment_does_not_pass(host: Host, project: Path) -> None:
    spec = plan.plan(Order(("sh",), project, project), "x", host).spec
    assert "SECRET" not in str(spec)
    assert spec.env["HOME"] == "/home/agent"


def test_a_guest_works_where_the_operator_stands(host: Host, project: Path) -> None:
    (project / "deep").mkdir()
    spec = plan.plan(Order(("sh",), project / "deep", project), "x", host).spec
    assert (spec.workspace.at, spec.cwd) == (str(project), str(project / "deep"))


def test_what_rules_cover_is_told(host: Host, project: Path) -> None:
    few = plan.plan(Order(("sh",), project, project, covers=(Covered(f"{project}/.env"),)), "x", host)
    many = plan.plan(
        Order(("sh",), project, project, covers=tuple(Covered(f"{project}/{n}") for n in range(9))), "x", host
    )
    assert "covered by rules, and empty to it: .env   " in few.notes[0]
    assert "0, 1, 2, 3, 4 and 4 more" in many.notes[0]


def test_credentials_inside_a_mount_are_masked(host: Host, project: Path) -> None:
    (host.home / ".ssh").mkdir()
    mount = parse_mount(f"{host.home}:/all", cwd=project)
    spec = plan.plan(Order(("sh",), project, project, mounts=(mount,)), "x", host).spec
    assert "/all/.ssh" in spec.masks


def test_the_home_itself_cannot_be_mounted(host: Host, project: Path) -> None:
    with pytest.raises(EINVAL) as caught:
        plan.check_mount(parse_mount(str(host.home), cwd=project), host)
    assert caught.value.code == "workspace.refused"


def test_a_single_file_can_be_mounted(host: Host, project: Path) -> None:
    (host.home / "notes.txt").write_text("x")
    mount = plan.check_mount(parse_mount(str(host.home / "notes.txt"), cwd=project), host)
    assert mount.source.name == "notes.txt"


def test_only_loopback_endpoints_get_a_door() -> None:
    texts = ("example.com", "127.0.0.1:8080", "localhost:9090", "10.0.0.0/8", "127.0.0.1:3128", "127.0.0.1:8080")
    assert [port for _, port in plan.loopback_doors([parse_grant(text) for text in texts])] == [8080, 9090]
