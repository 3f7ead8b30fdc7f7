"""`agentctl top`, live, driven by Textual's own pilot against a real kernel with real agents."""

import asyncio
import os
import pty
import struct
import subprocess
import termios
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from fcntl import ioctl
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog, Static

from agent_os.cli.board import KEYS, Board
from agent_os.cli.glance import Glance
from agent_os.cli.panes import Page, Question
from cli.desk import AGENTCTL, SECONDS, Desk, until
from cli.test_glance import glance
from cli.test_members import declared, process
from cli.test_top import fleet

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")

FLEET = {
    "team": 'role = "supervisor"\nagency = "role"\n[supervision]\nchildren = ["clock", "tally"]\n',
    "clock": 'role = "service"\n[program]\nargv = ["sleep", "1000"]\n',
    "tally": 'role = "worker"\n[program]\nargv = ["sleep", "1001"]\n',
    "flaky": 'role = "worker"\n[program]\nargv = ["sh", "-c", "exit 3"]\n[health]\nmax_restarts = 0\n',
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A kernel with a fleet: two under a supervisor, and one that failed."""
    desk = Desk(tmp_path_factory.mktemp("board"))
    for name, text in FLEET.items():
        (desk.project / f"{name}.agent.toml").write_text(f'name = "{name}"\n{text}')
    desk.up()
    desk.good("apply", "-f", ".", "--wait")
    desk.ask("wait", "flaky", "--for", "over")
    yield desk
    desk.down()


@pytest.fixture
def home(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The same, and everything in this process talks to it."""
    monkeypatch.setenv("AGENT_OS_HOME", str(desk.home))
    monkeypatch.delenv("AGENT_OS_SOCKET", raising=False)
    return desk


@asynccontextmanager
async def shown(size: tuple[int, int] = (100, 30), **options: str) -> AsyncGenerator[tuple[Board, Pilot[None]]]:
    board = Board(every=0.2, **options)
    Board.NOTIFICATION_TIMEOUT = SECONDS  # what it told can be read, however busy the machine
    async with board.run_test(size=size) as pilot:
        await seen(pilot, lambda: "kernel" in text(board))
        yield board, pilot


async def seen(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await pilot.pause(0.05)


def text(board: Board) -> str:
    return str(board.screen_stack[0].query_one("#head", Static).render())


def names(board: Board) -> list[str]:
    return [cells(board, at)[0] for at in range(table(board).row_count)]


def cells(board: Board, at: int) -> list[str]:
    return [str(cell) for cell in table(board).get_row_at(at)]


def table(board: Board) -> "DataTable[object]":
    return board.screen_stack[0].query_one(DataTable)


def trace(board: Board) -> str:
    return "\n".join(line.text for line in board.screen_stack[0].query_one(RichLog).lines)


async def choose(pilot: Pilot[None], board: Board, name: str) -> None:
    await seen(pilot, lambda: name in [one.strip("├└│ ") for one in names(board)])
    at = [one.strip("├└│ ") for one in names(board)].index(name)
    async with asyncio.timeout(SECONDS):
        while table(board).cursor_row != at:
            await pilot.press("down" if table(board).cursor_row < at else "up")


@pytest.mark.integration
def test_everybody_is_listed_with_whom_is_in_trouble_first_and_the_trace_of_the_chosen(home: Desk) -> None:
    async def run() -> None:
        async with shown() as (board, pilot):
            await seen(pilot, lambda: names(board) == ["flaky", "clock", "tally", "team"])
            assert "agents 4: 3 running, 1 failed" in text(board)
            await seen(pilot, lambda: "exit error, 3" in trace(board))
            await choose(pilot, board, "clock")
            await seen(pilot, lambda: "spawn" in trace(board) and "exit" not in trace(board))
            assert "sleep 1000" in trace(board)

    asyncio.run(run())


@pytest.mark.integration
def test_keys_sort_show_the_tree_and_filter(home: Desk) -> None:
    async def run() -> None:
        async with shown() as (board, pilot):
            await pilot.press("s")  # by memory, which nobody can foretell
            await seen(pilot, lambda: headings(board)[-3] == "MEMORY ▾")
            await pilot.press("s", "s", "s")
            await seen(pilot, lambda: names(board) == ["clock", "flaky", "tally", "team"])
            await pilot.press("t")
            tree = ["root", "├ flaky", "└ team", "  ├ clock", "  └ tally"]
            await seen(pilot, lambda: sorted(names(board)) == sorted(tree) or names(board)[0] == "root")
            assert {one.strip("├└│ ") for one in names(board)} == {"root", "flaky", "team", "clock", "tally"}
            await pilot.press("t", "slash", *"sleep")
            await seen(pilot, lambda: names(board) == ["clock", "tally"])
            assert "only: sleep   2 of 4" in text(board)
            await pilot.press("enter", "s")  # kept, and letters are keys again
            await seen(pilot, lambda: board.query_one(Input).display is False and names(board) == ["clock", "tally"])
            await pilot.press("escape")
            await seen(pilot, lambda: len(names(board)) == 4)
            await pilot.press("slash", *"nosuch")
            await seen(pilot, lambda: "none of 4 is like that" in str(board.query_one("#none", Static).render()))

    asyncio.run(run())


def headings(board: Board) -> list[str]:
    return [str(column.label) for column in table(board).ordered_columns]


@pytest.mark.integration
def test_pause_resume_and_kill_ask_first_and_only_y_is_yes(home: Desk) -> None:
    def state(name: str) -> str:
        found = home.good("ps", "--all", "--json").json["agents"]
        return next(row["state"] for row in found if row["name"] == name)

    async def run() -> None:
        async with shown() as (board, pilot):
            await choose(pilot, board, "tally")
            for key in ("n", "escape", "q"):
                await pilot.press("K")
                assert isinstance(board.screen, Question)
                await pilot.press(key)
                assert not isinstance(board.screen, Question)
            await pilot.press("p", "y")
            await seen(pilot, lambda: any("paused" in cells(board, at) for at in range(table(board).row_count)))
            assert state("tally") == "paused"
            await choose(pilot, board, "tally")
            await pilot.press("c", "y")
            await seen(pilot, lambda: not any("paused" in cells(board, at) for at in range(table(board).row_count)))
            assert state("tally") == "running"
            await choose(pilot, board, "tally")
            await pilot.press("K", "y")
            await seen(pilot, lambda: "tally" not in names(board))
            assert state("tally") == "stopped"
            await seen(pilot, lambda: any("killed  tally" in note.message for note in board._notifications))

    try:
        asyncio.run(run())
    finally:
        home.good("start", "tally")


@pytest.mark.integration
def test_one_without_a_process_is_not_asked_about(home: Desk) -> None:
    async def run() -> None:
        async with shown() as (board, pilot):
            await choose(pilot, board, "flaky")
            await pilot.press("K")
            assert not isinstance(board.screen, Question)
            assert any("flaky has no process: it is failed" in note.message for note in board._notifications)

    asyncio.run(run())


@pytest.mark.integration
def test_pages_tell_all_of_one_and_what_waits_and_their_keys_act_on_nobody(home: Desk) -> None:
    async def run() -> None:
        async with shown() as (board, pilot):
            await choose(pilot, board, "clock")
            await pilot.press("d")
            await seen(pilot, lambda: "default/clock" in page(board))
            assert 'argv = ["sleep", "1000"]' in page(board)
            assert "LIFE" in page(board)
            await pilot.press("K", "y")
            assert isinstance(board.screen, Page)
            await pilot.press("escape", "A")
            await seen(pilot, lambda: page(board) == "nothing waits for a decision")
            await pilot.press("q")
            await seen(pilot, lambda: len(board.screen_stack) == 1)
            assert board.is_running

    asyncio.run(run())


def page(board: Board) -> str:
    """What it says; nothing while another screen is still there."""
    return str(board.screen.query_one("#text", Static).render()) if isinstance(board.screen, Page) else ""


@pytest.mark.integration
def test_a_large_trace_leaves_the_chosen_one_in_sight(home: Desk) -> None:
    async def run() -> None:
        async with shown((80, 24)) as (board, pilot):
            await choose(pilot, board, "team")  # the last of four, where three have room
            await pilot.press("enter")
            await seen(pilot, lambda: table(board).size.height == 4 and table(board).scroll_y > 0)
            await pilot.press("enter")
            await seen(pilot, lambda: table(board).size.height > 5)

    asyncio.run(run())


@pytest.mark.integration
def test_a_spawn_is_seen_long_before_the_next_look_is_due(home: Desk) -> None:
    async def run() -> None:
        board = Board(every=3600)
        async with board.run_test(size=(100, 30)) as pilot:
            await seen(pilot, lambda: len(names(board)) == 4)
            command = ("run", "--detach", "--name", "late", "--", "sleep", "1000")
            await asyncio.to_thread(home.good, *command)
            await seen(pilot, lambda: "late" in names(board))
            await asyncio.to_thread(home.good, "kill", "late")
            await seen(pilot, lambda: "late" not in names(board))

    asyncio.run(run())


@pytest.mark.integration
def test_a_kernel_that_goes_and_one_that_comes_are_pictures_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Desk(tmp_path)
    monkeypatch.setenv("AGENT_OS_HOME", str(own.home))

    async def run() -> None:
        board = Board(every=0.2)
        async with board.run_test(size=(80, 24)) as pilot:
            await seen(pilot, lambda: text(board) == "no kernel is running: agentctl up starts one")
            await asyncio.to_thread(own.up)
            await seen(pilot, lambda: "no agent yet" in str(board.query_one("#none", Static).render()))
            await asyncio.to_thread(own.kill_kernel)
            await seen(pilot, lambda: "no kernel is running" in text(board))
            await asyncio.to_thread(own.up)
            await seen(pilot, lambda: "agents 0" in text(board))

    try:
        asyncio.run(run())
    finally:
        own.down()


@pytest.mark.integration
@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_on_a_real_terminal_it_draws_and_leaves_everything_as_it_was(home: Desk, key: bytes) -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    env = {**home.env, "TERM": "xterm-256color"}
    with subprocess.Popen([*AGENTCTL, "top"], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as top:
        drawn = _until(ours, b"flaky")
        os.write(ours, key)
        drawn += _until(ours, b"\x1b[?1049l")
        assert top.wait(SECONDS) == 0
    assert b"\x1b[?1049h" in drawn
    until(lambda: termios.tcgetattr(theirs) == before)
    for fd in (ours, theirs):
        os.close(fd)


def _until(terminal: int, word: bytes) -> bytes:
    seen = b""
    while word not in seen:
        seen += os.read(terminal, 65536)
    return seen


def of(picture: Glance, size: tuple[int, int], order: str = "state") -> list[str]:
    """The lines of a screen that shows this picture, without a kernel."""

    class Still(Board):
        async def _watch(self) -> None:
            self._show(picture)
            await asyncio.Event().wait()

    async def run() -> list[str]:
        board = Still(order)
        async with board.run_test(size=size) as pilot:
            await pilot.pause()
            await pilot.pause()
            return [
                "".join(segment.text for segment in strip).rstrip()
                for strip in board.screen._compositor.render_strips()
            ]

    return asyncio.run(run())


@pytest.mark.parametrize("size", [(60, 12), (60, 24), (80, 24), (140, 30), (200, 50)])
@pytest.mark.parametrize("count", [0, 5, 200])
def test_whatever_the_size_the_head_the_table_and_the_keys_are_there(size: tuple[int, int], count: int) -> None:
    rows = [declared(f"a{number:03}") for number in range(count)]
    lines = of(glance(rows, [process("a001", command=["x" * 300])] if count else []), size, "name")
    assert len(lines) == size[1]
    assert lines[0].startswith(" kernel 0.1.0")
    assert f"agents {count}: " in lines[1]
    assert ("no agent yet" in "\n".join(lines)) is (count == 0)
    assert any(line.startswith(" q quit") for line in lines[-3:])
    assert "A approvals" in lines[-1]
    assert any(line.startswith(" NAME ▾") and "NOW" in line for line in lines) is (count > 0)
    assert any(line.startswith(" a001") and "x…" in line for line in lines) is (count > 0)


def test_a_fleet_on_eighty_columns_letter_by_letter() -> None:
    assert of(fleet(), (80, 24), "tree")[:10] == [
        " kernel 0.1.0  pid 4121  up 2h  12,345 entries  load 0.50  isolation S1–S3",
        " agents 6: 4 running, 1 completed, 1 failed   42.0 MB in 3 processes",
        " NAME           ROLE        STATE      AGE  MEMORY   RESTARTS  NOW",
        " root           root        running    -    -        -         -",
        " ├ observatory  supervisor  running    -    -        0/5       -",
        " │ ├ clock      service     running    2s   1.0 kB   1/5       python3 clock.p…",
        " │ └ tally      worker      running    1h   42.0 MB  0/5       not ready: need…",
        " ├ flaky        worker      failed     -    -        2/2       max_restarts",
        " ├ nightly      worker      completed  -    -        0/5       waits for its t…",
        " └ plain        worker      running    2s   1.0 kB   -         sleep 9",
    ]


def test_what_an_agent_chose_is_text_and_neither_markup_nor_escape() -> None:
    lines = of(glance([], [process("a", command=["[red]x[/]", "\x1b[2J"])]), (140, 24))
    assert any("[red]x[/] \N{REPLACEMENT CHARACTER}[2J" in line for line in lines)


def test_every_key_that_is_offered_does_something() -> None:
    bound = {binding.action for binding in Board.BINDINGS if isinstance(binding, Binding)}
    bound.add("trace")  # Enter, which is the table's own
    assert {action.removeprefix("app.") for _, _, action in KEYS} == bound - {"leave", "back"}
