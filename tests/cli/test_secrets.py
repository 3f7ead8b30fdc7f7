"""`agentctl secrets` as an operator types it."""

import json
import os
import pty
import subprocess
from collections.abc import Iterator

import pytest

from cli.desk import AGENTCTL, SECONDS, Desk, Said
from guests.canary import files_below, sought

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
VALUE = "sk-canary/0123456789+abcdef"


@pytest.fixture
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.up()
    yield desk
    desk.down()


def typed(desk: Desk, value: str, *words: str) -> Said:
    command = [*AGENTCTL, "secrets", *words]
    given = {"env": desk.env, "cwd": desk.project, "capture_output": True, "text": True, "timeout": SECONDS}
    ran = subprocess.run(command, input=value, check=False, **given)  # type: ignore[call-overload]
    return Said(ran.returncode, ran.stdout, ran.stderr)


def test_a_secret_is_kept_bound_listed_rotated_and_removed(desk: Desk) -> None:
    assert "no secrets" in desk.good("secrets", "ls").err
    assert typed(desk, f"{VALUE}\n", "set", "openai").out == "set  openai  version 1  bound to no host\n"
    bound = desk.good("secrets", "bind", "openai", "--host", "API.openai.com", "--agent", "triage-*")
    assert bound.out == "bound  openai  version 1  api.openai.com\n"
    assert typed(desk, "another-value-1234", "rotate", "openai").code == 0
    lines = [line.split() for line in desk.good("secrets", "ls").out.splitlines()]
    assert lines[0] == ["NAME", "HOSTS", "HEADER", "AGENTS", "USES", "LAST", "AGE", "VERSION"]
    assert lines[1][:6] == ["openai", "api.openai.com", "authorization", "triage-*", "0", "never"]
    assert lines[1][7] == "2"
    (row,) = desk.good("secrets", "ls", "-o", "json").json["secrets"]
    assert set(row) == {"name", "version", "age_s", "bindings", "uses", "last_s"}
    asked = desk.ask("secrets", "rm", "openai")
    assert (asked.code, "try: agentctl secrets rm openai --yes" in asked.err) == (2, True)
    assert "did you mean openai?" in desk.ask("run", "--secret", "opneai", "--", "true").err
    assert desk.good("secrets", "rm", "openai", "--yes").out == "removed  openai\n"
    gone = desk.ask("secrets", "rm", "openai")
    assert (gone.code, "agentctl secrets ls" in gone.err) == (3, True)


def test_what_is_not_bound_yet_is_told_without_inventing_a_host(desk: Desk) -> None:
    typed(desk, VALUE, "set", "key")
    assert "agentctl secrets bind key --host HOST" in desk.ask("run", "--secret", "key", "--", "true").err


def test_a_value_cannot_be_read_and_nothing_is_no_value(desk: Desk) -> None:
    assert "never comes out" in desk.ask("secrets", "get", "key").err
    for verb in ("set", "rotate"):
        said = typed(desk, "", verb, "key")
        assert (said.code, "standard input was empty" in said.err) == (2, True)


def test_a_value_is_never_printed(desk: Desk) -> None:
    said = [
        typed(desk, VALUE, "set", "key"),
        typed(desk, VALUE, "set", "key"),
        typed(desk, VALUE, "rotate", "key"),
        typed(desk, VALUE, "rotate", "other", "-o", "json"),
        typed(desk, "", "set", "more", VALUE),
        typed(desk, "", "rotate", "key", VALUE, VALUE),
        desk.ask("events", "-o", "json"),
        desk.ask("audit", "tail", "-o", "json"),
    ]
    assert [one.code for one in said] == [0, 9, 9, 3, 2, 2, 0, 0]
    places = [(str(at), (one.out + one.err).encode()) for at, one in enumerate(said)]
    assert sought(VALUE.encode(), [*places, *files_below(desk.home)]) == []
    assert "stdin" in said[4].err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("bind", "key"), "no host"),
        (("bind", "key", "--host", "https://api.test/v1"), "a URL"),
        (("bind", "key", "--host", "a.test", "--header", "x", "--field", "y"), "one place"),
        (("bind", "key", "--host", "a.test", "--template", "Bearer"), "{} once"),
        (("bind", "key", "--host", "a.test", "--method", "CONNECT"), "no method"),
        (("bind", "key", "--none", "--host", "a.test"), "--none stands alone"),
        (("set", "a/b"), "no name of a secret"),
        (("set", "tiny"), "less than 8 bytes"),
    ],
)
def test_what_is_wrong_is_said_with_a_right_form(desk: Desk, words: tuple[str, ...], why: str) -> None:
    typed(desk, VALUE, "set", "key")
    said = typed(desk, "tiny\n", *words)
    assert said.code == 2
    assert why in said.err
    assert "try: " in said.err


def test_at_a_terminal_the_value_is_asked_for_and_not_shown(desk: Desk) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*AGENTCTL, "secrets", "set", "key"],
        env=desk.env, cwd=desk.project, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"Value of key" not in shown:
        shown += os.read(ours, 1024)
    os.write(ours, f"{VALUE}\n".encode())
    try:
        while piece := os.read(ours, 1024):
            shown += piece
    except OSError:  # the other side was closed: how a terminal ends
        pass
    assert process.wait(SECONDS) == 0
    os.close(ours)
    assert b"version 1" in shown
    assert VALUE.encode() not in shown
    assert json.loads(desk.good("secrets", "ls", "--json").out)["secrets"][0]["name"] == "key"
