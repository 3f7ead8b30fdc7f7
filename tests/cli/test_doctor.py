"""`agentctl doctor`: its list, and --fix, which does what was printed and nothing as root."""

import os
import stat
from pathlib import Path

import pytest

from cli.desk import Desk

pytestmark = pytest.mark.integration
NAMES = set(
    "isolation canary workspace proxy state socket token keys history disk journal anchor clock sqlite lock kernel port"
    " models package".split()
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_doctor_looks_at_everything_beside_a_running_kernel_and_mends_what_it_printed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.env["OPENAI_API_KEY"] = "sk-never-to-be-seen"
    desk.up()
    try:
        well = desk.ask("doctor", "-o", "json")
        assert "sk-never" not in well.out + well.err
        assert set(well.json) == {"api", "level", "minimum", "ok", "checks"}
        checks = {one["name"]: one for one in well.json["checks"]}
        assert len(checks) == len(well.json["checks"])  # a name is one check
        assert set(checks) >= NAMES
        assert all(set(one) == {"name", "status", "cause", "fix"} for one in checks.values())
        own = NAMES - {"isolation", "canary", "workspace", "proxy"}
        assert {name: checks[name]["status"] for name in own if checks[name]["status"] == "fail"} == {}
        assert "the same as agentctl" in checks["kernel"]["cause"]

        token, socket = desk.home / "operator.token", desk.home / "run/kernel.sock"
        token.chmod(0o644)
        socket.chmod(0o666)
        plain = desk.ask("doctor")
        assert plain.code == 1
        assert f"fix: chmod 600 {token}\n" in plain.out
        assert f"fix: chmod 600 {socket}\n" in plain.out
        assert (mode(token), mode(socket)) == (0o644, 0o666)  # looking changes nothing

        fixed = desk.ask("doctor", "--fix", "-o", "json")
        if os.geteuid() == 0:
            assert (fixed.code, fixed.error["detail_code"]) == (4, "doctor.root")
            assert (mode(token), mode(socket)) == (0o644, 0o666)
        else:
            assert sorted(fixed.json["fixed"]) == sorted([f"chmod 600 {token}", f"chmod 600 {socket}"])
            assert fixed.err == "".join(f"fix   {one}\n" for one in fixed.json["fixed"])
            assert (mode(token), mode(socket)) == (0o600, 0o600)
            after = {one["name"]: one["status"] for one in fixed.json["checks"]}
            assert (after["token"], after["socket"]) == ("ok", "ok")
    finally:
        desk.down()


def test_a_home_that_others_can_write_is_told_and_nothing_is_tried_in_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.home.mkdir()
    desk.home.chmod(0o777)
    said = desk.ask("doctor", "-o", "json")
    checks = {one["name"]: one for one in said.json["checks"]}
    assert said.code == 1
    assert checks["state"]["fix"] == f"chmod 700 {desk.home}"
    assert list(desk.home.iterdir()) == []
    assert "journal" not in checks
