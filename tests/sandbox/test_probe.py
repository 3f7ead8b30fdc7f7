"""The doctor's probe: its canary must find holes where there are some, and its explanations must fit."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agents
from agent_os.sandbox import canary, hierarchies, probe
from agent_os.sandbox.spawner import Launcher

SETTINGS = {
    "user/max_user_namespaces": "96343",
    "kernel/unprivileged_userns_clone": "",
    "kernel/apparmor_restrict_unprivileged_userns": "",
    "seccomp": "0",
    "uid": "1000",
}


@pytest.mark.parametrize(
    ("step", "changed", "cause", "fix"),
    [
        ("L3", {"user/max_user_namespaces": "0"}, "max_user_namespaces is 0", "number above 0"),
        ("L3", {"seccomp": "2"}, "inside a container", "seccomp profile"),
        ("L7", {"kernel/apparmor_restrict_unprivileged_userns": "1"}, "Ubuntu 24.04", "sudo agentctl"),
        ("L3", {"kernel/unprivileged_userns_clone": "0"}, "only root", "run as root"),
        ("L7", {}, "bears no rights", "unmasked /proc"),
        ("L3", {}, "refused", "administrator"),
        ("L6", {"uid": "0"}, "CAP_SYS_ADMIN", "on the host"),
        ("L1", {}, "not a known restriction", "report"),
    ],
)
def test_a_failure_is_told_apart(step: str, changed: dict[str, str], cause: str, fix: str) -> None:
    why, advice = probe.diagnose(step, 1, SETTINGS | changed)
    assert cause in why
    assert fix in advice


@pytest.mark.parametrize("name", ["apparmor_restrict_unprivileged_userns", "unprivileged_userns_clone"])
def test_no_advice_switches_a_protection_off(name: str) -> None:
    _, advice = probe.diagnose("L3", 1, SETTINGS | {f"kernel/{name}": "1" if "apparmor" in name else "0"})
    assert "sysctl" not in advice


@pytest.mark.integration
def test_this_host_passes_or_says_why() -> None:
    level, checks = asyncio.run(probe.examine())
    by_name = {check.name: check for check in checks}
    capped = set(hierarchies.CONTROLLERS) == hierarchies.detect().controllers
    assert level == ("S3" if capped else "S2")
    assert by_name["canary"].status == "ok"
    assert by_name["isolation"].cause.startswith(f"{level} of S4")
    assert by_name["limits"].status == ("ok" if capped else "warn")
    assert by_name["limits"].cause.startswith("S3, column v" if capped else "S2, not S3: column")
    assert bool(by_name["limits"].fix) != capped
    assert all(check.fix for check in checks if check.status == "fail")


@pytest.mark.integration
def test_the_canary_finds_holes_in_a_weakened_sandbox(tmp_path: Path) -> None:
    """Positive control: without seccomp, Landlock and the capability drop the same canary gets through."""
    private = {"secret_file": str(tmp_path), "in_home": str(Path.home() / ".profile")}
    facts = private | {"pid": str(os.getpid()), "variable": "CANARY"}

    async def body(launcher: Launcher) -> dict[str, bool]:
        spec = agents.spec_of("native", [canary.__file__, json.dumps(facts)], env={"CANARY": "1"}, min_level="S0")
        return json.loads((await agents.run(launcher, spec)).output)

    weak = agents.drive(body, without=("seccomp", "landlock", "capabilities"))
    through = {name for name, held in weak.items() if not held}
    assert through >= {
        "new user namespace",
        "open an internet socket",
        "open a Unix socket",
        "open a netlink socket",
        "trace",
        "use the keyring",
        "find the host's environment",
        "hold a capability",
    }
    # what the namespaces alone hold
    assert {
        "read a host file",
        "see into the home directory",
        "signal the kernel process",
        "write below /usr",
    } & through == set()


@pytest.mark.integration
def test_no_user_namespaces_is_a_failed_check_with_a_fix() -> None:
    """In a throw-away user namespace that may create no further ones."""
    script = (
        "import asyncio, json; from agent_os.sandbox import probe; level, checks = asyncio.run(probe.examine());"
        "print(json.dumps([level, [vars(c) for c in checks]]))"
    )
    limit = "echo 0 > /proc/sys/user/max_user_namespaces"
    source = str(Path(probe.__file__).parents[2])
    command = ["unshare", "-Ur", "sh", "-c", f'{limit}; exec "$@"', "sh", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": source})
    assert done.returncode == 0, done.stderr
    level, checks = json.loads(done.stdout)
    isolation = next(check for check in checks if check["name"] == "isolation")
    assert level == "S0"
    assert isolation["status"] == "fail"
    assert "max_user_namespaces is 0" in isolation["cause"]
