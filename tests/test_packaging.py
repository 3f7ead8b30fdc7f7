"""What is shipped and how it is locked: the lock, the wheel, the extras, and what start-up costs."""

import re
import subprocess
import sys
import time
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.uid_free("needs tools which the other user's copy lacks")

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = ["requirements.lock", "scripts/uv.lock.txt"]
SEED_EXTRAS = {"primitives", "control-plane", "atr", "emk", "scak", "mute-agent", "cmvk", "caas", "iatp", "amb", "all"}
EXTRAS = SEED_EXTRAS | {"mcp", "browser", "otel", "tui"}
HEAVY = "pydantic fastapi starlette rich textual mcp openai anthropic asyncpg nats opentelemetry".split()


def _locked(name: str = "requirements.lock") -> dict[str, str]:
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in pins}


def _declared() -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = PROJECT["dependency-groups"].values()
    return [*PROJECT["project"]["dependencies"], *(r for rs in [*extras, *groups] for r in rs)]


@pytest.mark.parametrize("requirement", _declared())
def test_the_lock_satisfies_the_project(requirement):
    wanted = Requirement(requirement)
    version = _locked().get(canonicalize_name(wanted.name))
    assert version is not None, f"{wanted.name} is not locked: run make lock"
    assert wanted.specifier.contains(version, prereleases=True), f"{wanted} is locked at {version}: run make lock"


def test_the_lock_holds_all_that_the_locked_packages_need():
    locked = _locked()
    for name in locked:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert canonicalize_name(need.name) in locked, f"{name} needs {need}"


def test_the_installed_packages_are_the_locked_ones():
    locked = _locked()
    installed = {canonicalize_name(dist.metadata["Name"]): dist.version for dist in metadata.distributions()}
    assert {name: installed[name] for name in locked if name in installed} == {
        name: version for name, version in locked.items() if name in installed
    }


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_versions_and_hashes_and_no_address(lock):
    pin = re.compile(r"[a-z0-9._-]+==[0-9a-z.!+]+( ; [A-Za-z_ =!'\"0-9.<>()]+)? \\")
    digest = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    for line in (ROOT / lock).read_text(encoding="utf-8").splitlines():
        assert pin.fullmatch(line) or digest.fullmatch(line), line


def test_the_bootstrap_lock_holds_uv_alone():
    assert set(_locked("scripts/uv.lock.txt")) == {"uv"}


def test_the_promised_extras_exist():
    assert set(PROJECT["project"]["optional-dependencies"]) == EXTRAS


def test_the_version_is_told_once():
    import agent_os

    assert PROJECT["project"]["version"] == agent_os.__version__


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, timeout=60)


@pytest.mark.integration
@pytest.mark.parametrize("words", [["-c", "import agent_os"], ["-m", "agent_os.cli.main", "--help"]])
def test_start_up_loads_nothing_heavy_and_no_room_behind_the_door(words):
    trace = _python("-X", "importtime", *words).stderr
    loaded = {line.rpartition("|")[2].strip() for line in trace.splitlines()}
    assert "agent_os" in loaded
    rooms = {f"agent_os.{room}" for room in ("kernel", "sandbox", "userland", "daemon")}
    assert not {name for name in loaded if name.split(".")[0] in HEAVY or name in rooms}


@pytest.mark.integration
def test_the_package_imports_on_another_platform():
    script = "import sys; sys.platform = 'darwin'; import agent_os, agent_os.cli.main; agent_os.AgentOSError"
    _python("-c", script)


def test_unknown_public_names_are_attribute_errors():
    import agent_os

    assert not hasattr(agent_os, "NoSuchName")
    assert set(agent_os.__all__) <= set(dir(agent_os))


def _best_seconds(commands: list[list[str]], rounds: int = 9) -> list[float]:
    """The quickest of several interleaved runs each: what the command costs when nothing disturbs it."""
    best = [float("inf")] * len(commands)
    for _ in range(rounds):
        for i, words in enumerate(commands):
            begun = time.perf_counter()
            _python(*words)
            best[i] = min(best[i], time.perf_counter() - begun)
    return best


@pytest.mark.integration
def test_start_up_stays_within_its_ratio_to_bare_python():
    bare, imported, helped, version = _best_seconds(
        [
            ["-c", "pass"],
            ["-c", "import agent_os"],
            ["-m", "agent_os.cli.main", "--help"],
            ["-m", "agent_os.cli.main", "version"],
        ]
    )
    assert imported / bare <= 5
    assert helped / bare <= 10
    assert version / bare <= 10


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("agent_os-*.whl"))


@pytest.mark.integration
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {
        "agent_os",
        f"agent_os-{PROJECT['project']['version']}.dist-info",
    }
    assert not [name for name in names if name.endswith((".pth", ".pyc"))]
    assert wheel.stat().st_size <= 2 * 1024 * 1024
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/agent_os").rglob("*.py")}
    assert sources <= set(names)
    assert {f"agent_os/cli/profiles/{name}.toml" for name in ("python", "node", "shell")} <= set(names)
    assert "agent_os/cli/demo/demo.agent.toml" in names


@pytest.mark.integration
def test_the_wheel_installs_with_all_extras_into_a_fresh_venv_and_agentctl_starts(wheel, tmp_path):
    fresh = tmp_path / "venv"
    venv.create(fresh, with_pip=False, symlinks=True)
    wanted = f"agent-os[{','.join(sorted(EXTRAS))}] @ {wheel.as_uri()}"
    done = subprocess.run([*_installer(fresh), wanted], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "does not have an extra" not in done.stderr
    assert "does not provide the extra" not in done.stderr
    helped = subprocess.run(
        [fresh / "bin/agentctl", "--help"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert helped.returncode == 0, helped.stderr
    assert "agentctl run -- python my_agent.py" in helped.stdout


def _installer(fresh: Path) -> list[str | Path]:
    """What set-up used: uv, or pip where there is no uv."""
    python = fresh / "bin/python"
    for uv in (Path(sys.prefix, "bin/uv"), ROOT / ".cache/uv/bin/uv"):
        if uv.exists():
            return [uv, "pip", "install", "--system-certs", "--python", python]
    return [sys.executable, "-m", "pip", "--python", python, "install"]
