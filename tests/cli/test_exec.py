"""`agentctl exec`: a command in the sandbox of an agent that runs, as a user sees it."""

import hashlib
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.desk import AGENTCTL, SECONDS, Desk, until
from cli.reading import lines_of

pytestmark = pytest.mark.integration
STAYS = "echo mine > mine.txt; echo up; while :; do sleep 1; done"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("exec"))
    desk.up()
    desk.start("worker")
    box(desk, "box")
    yield desk
    desk.down()


def box(desk: Desk, name: str) -> None:
    """A guest that stays."""
    desk.good("run", "-qd", "--name", name, "--", "sh", "-c", STAYS)
    until(lambda: "up" in desk.ask("logs", name).out)


def start(desk: Desk, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
    pipe = subprocess.PIPE
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, **options}
    return subprocess.Popen([*AGENTCTL, "exec", *words], env=desk.env, cwd=desk.project, **streams)


def test_it_runs_among_the_agent_s_files_and_ends_with_its_own_code(desk: Desk) -> None:
    ran = desk.ask("exec", "box", "--", "sh", "-c", "cat mine.txt; echo wrong >&2; exit 7")
    assert (ran.code, ran.out, ran.err) == (7, "mine\n", "wrong\n")
    assert desk.ask("exec", "box", "--", "sh", "-c", "kill -9 $$").code == 128 + signal.SIGKILL
    assert desk.good("exec", "box", "--", "sh", "-c", "echo more > more.txt").out == ""
    assert "more.txt" in desk.good("diff", "box").out
    assert not (desk.project / "more.txt").exists()


def test_an_agent_of_an_author_s_has_a_sandbox_to_look_into_as_well(desk: Desk) -> None:
    """It has the agent's descriptor of the kernel neither open nor named."""
    told = "cat out.txt | tr -d '\\033'; echo; echo ${AGENT_OS_FD-none}; test -e /proc/self/fd/3 || echo none"
    assert desk.good("exec", "worker", "--", "sh", "-c", told).out == "[2Jdone\nnone\nnone\n"


def test_input_and_output_of_any_size_and_content_go_through(desk: Desk) -> None:
    data = os.urandom(10 << 20)
    with start(desk, "box", "--", "tee", "copy", stdin=subprocess.PIPE) as process:
        out, err = process.communicate(data, timeout=SECONDS)
    assert (process.returncode, err) == (0, b"")
    assert out == data
    digest = desk.good("exec", "box", "--", "sha256sum", "copy").out.split()[0]
    assert digest == hashlib.sha256(data).hexdigest()


def test_variables_and_a_time_limit_are_as_with_run(desk: Desk) -> None:
    told = 'echo "$MINE" "$LANG"'
    ran = desk.good("exec", "box", "--env", "MINE=a b", "--env", "LANG", "--", "sh", "-c", told)
    assert ran.out == f"a b {desk.env.get('LANG', '')}\n"
    late = desk.ask("exec", "--timeout", "0.3s", "box", "--", "sleep", "600")
    assert (late.code, late.out, late.err) == (124, "", "box  the command was killed by its --timeout\n")


REFUSED = {
    ("bxo", "--", "ls"): "there is no agent 'bxo'",
    ("box",): "no command was given: agentctl exec box -- ls",
    ("box", "--", ""): "no command was given",
    ("box", "--", "no-such-thing"): "there is no no-such-thing in the sandbox of box",
    ("-t", "box", "--", "sh"): "no terminal yet",
    ("box", "--timeout", "soon", "--", "ls"): "'soon' is no length of time",
    ("box", "--env", "NOT_SET_ANYWHERE", "--", "ls"): "NOT_SET_ANYWHERE is not set here",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_could_not_be_started_ends_with_125_and_says_why(desk: Desk, words: tuple[str, ...]) -> None:
    ran = desk.ask("exec", *words)
    assert (ran.code, ran.out) == (125, "")
    assert REFUSED[words] in ran.err
    assert ran.err.startswith("agentctl: ")


def test_a_near_name_is_suggested(desk: Desk) -> None:
    assert "did you mean box?" in desk.ask("exec", "bxo", "--", "ls").err


def test_one_that_has_ended_and_one_that_is_paused_are_told_apart(desk: Desk) -> None:
    box(desk, "brief")
    desk.good("pause", "brief")
    paused = desk.ask("exec", "brief", "--", "ls")
    assert (paused.code, "brief is paused" in paused.err, "agentctl resume brief" in paused.err) == (125, True, True)
    desk.good("resume", "brief")
    assert desk.good("exec", "brief", "--", "ls").out == "mine.txt\nworker.py\n"
    desk.good("kill", "brief")
    ended = desk.ask("exec", "brief", "--", "ls")
    assert (ended.code, "brief has ended" in ended.err, "agentctl diff brief" in ended.err) == (125, True, True)


def test_a_program_elsewhere_has_no_sandbox_of_ours(desk: Desk) -> None:
    desk.good("mcp", "register", "editor")
    ran = desk.ask("exec", "editor", "--", "ls")
    assert (ran.code, "has no process" in ran.err) == (125, True), ran.err


def test_without_a_kernel_nobody_runs(tmp_path: Path) -> None:
    ran = Desk(tmp_path).ask("exec", "box", "--", "ls")
    assert (ran.code, "no kernel is running" in ran.err) == (125, True)


def test_ctrl_c_asks_it_to_end_and_the_second_kills_it(desk: Desk) -> None:
    deaf = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done"
    with start(desk, "box", "--", "sh", "-c", deaf) as process:
        out = lines_of(process.stdout)
        assert out.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert out.readline() == b"asked\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SECONDS) == 130
        assert lines_of(process.stderr).read().endswith(b"box  the command was stopped by you\n")
    assert desk.good("exec", "box", "--", "echo", "alive").out == "alive\n"


def test_a_reader_that_goes_away_ends_it(desk: Desk) -> None:
    with start(desk, "box", "--", "yes") as process:
        out = lines_of(process.stdout)
        assert out.readline() == b"y\n"
        out.close()
        assert process.wait(timeout=SECONDS) == 128 + signal.SIGPIPE


def test_killed_itself_it_leaves_no_command_behind(desk: Desk) -> None:
    with start(desk, "box", "--", "sh", "-c", "echo $$; exec sleep 600") as process:
        pid = lines_of(process.stdout).readline().decode().strip()
        assert desk.ask("exec", "box", "--", "kill", "-0", pid).code == 0
        process.kill()
        process.wait(timeout=SECONDS)
    until(lambda: desk.ask("exec", "box", "--", "kill", "-0", pid).code != 0)


def test_killing_the_agent_ends_it_and_says_so(desk: Desk) -> None:
    box(desk, "doomed")
    with start(desk, "doomed", "--", "sh", "-c", "echo up; exec sleep 600") as process:
        assert lines_of(process.stdout).readline() == b"up\n"
        said = desk.good("kill", "doomed").out
        assert "nothing left" in said
        assert process.wait(timeout=SECONDS) == 128 + signal.SIGKILL
        assert lines_of(process.stderr).read() == b"doomed  it has ended, and the command with it\n"


def test_its_output_cannot_steer_a_terminal(desk: Desk) -> None:
    ours, theirs = pty.openpty()
    try:
        script = r"printf '\033[31mred\033[0m \033]0;title\007\033[2Jend\n'"
        with start(desk, "box", "--", "sh", "-c", script, stdout=theirs) as process:
            os.close(theirs)
            assert process.wait(timeout=SECONDS) == 0
        assert os.read(ours, 4096) == b"\x1b[31mred\x1b[0m end\r\n"
    finally:
        os.close(ours)


def test_who_ran_what_is_in_the_record_of_the_agent(desk: Desk) -> None:
    desk.ask("exec", "box", "--", "sh", "-c", "exit 4")
    told = desk.good("trace", "box").out
    assert "exec sh -c exit 4" in told
    assert "exec ended 4" in told
    said = desk.good("events", "--agent", "box", "--json").json["entries"]
    by = [one["body"]["by"] for one in said if (one.get("body") or {}).get("event") == "exec"]
    assert set(by) == {f"local:{os.getuid()}"}


def test_a_replay_of_an_author_s_agent_is_not_misled_by_it(desk: Desk) -> None:
    desk.good("exec", "worker", "--", "true")
    assert "all results match" in desk.good("replay", "worker").out


def test_a_kernel_that_is_killed_takes_it_along_and_the_record_goes_on(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.up()
    desk.start("worker")
    with start(desk, "worker", "--", "sh", "-c", "echo up; exec sleep 600") as process:
        assert lines_of(process.stdout).readline() == b"up\n"
        desk.kill_kernel()
        assert process.wait(timeout=SECONDS) == 128 + signal.SIGKILL
        assert lines_of(process.stderr).read() == b"killed: the kernel has ended, and every agent with it\n"
    desk.up()
    until(lambda: desk.ask("exec", "worker", "--", "true").code == 0)  # it lives again, from its record
    assert desk.good("audit", "verify").code == 0
    told = desk.good("trace", "worker").out
    assert "exec sh -c echo up; exec sleep 600" in told
    desk.down()
