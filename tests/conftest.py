"""Which tests run as which user, in which order, and what `scripts/test` hears of each. Fixtures belong next to their
tests.

A test that starts a process (a daemon, a sandbox, a guest, any program) says so: `integration` or `hostile`. Those run
as root and as an ordinary user, unless `uid_free` says why the user id makes no difference; all others run once. An
audit hook sees every start, so a test without its mark fails.
"""

import json
import os
import signal
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import forkserver

# Our own modules and the rewritten tests take three times as long to load without cached bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A kernel ends with its last agent, so that what it leaves behind can be counted. `test_idle` is about those that stay.
os.environ["AGENT_OS_IDLE_EXIT"] = "0"

# How long one example takes depends on who else uses the machine. The same examples each time: whoever changes a line
# is judged by that line. `make soak` looks for others.
settings.register_profile("patient", deadline=None, derandomize=not os.environ.get("AGENT_OS_SOAK"))
settings.register_profile("fast", settings.get_profile("patient"), max_examples=20)  # for `make test-fast`
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """What a test leaves ignored or blocked, programs of later tests inherit: they could not be interrupted."""
    before = _dispositions()
    yield
    assert _dispositions() == before


def _dispositions() -> list[Any]:
    heard = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    return [*heard, signal.pthread_sigmask(signal.SIG_BLOCK, ())]


# ---- how programs are started

# Here every program is started by its true command line: how it starts is a part of what is tested.
_EXEC = ("tests/hostile/", "tests/faults/", "tests/sandbox/", "tests/test_packaging.py", "tests/cli/test_verbs.py")
# Of the others one in twenty runs both ways, and in `make soak` all. AGENT_OS_TEST_EXEC=1 has nothing forked at all.
_SAMPLE = 1 if os.environ.get("AGENT_OS_SOAK") else 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    test = metafunc.definition
    name = test.nodeid
    forked = test.get_closest_marker("integration") and not test.get_closest_marker("true_start")
    if forked and not name.startswith((*_EXEC, "tests/kernel/")) and zlib.crc32(name.encode()) % _SAMPLE == 0:
        metafunc.fixturenames.append("_start")
        ways = [pytest.param("fork", id=pytest.HIDDEN_PARAM), pytest.param("exec", id="exec")]
        metafunc.parametrize("_start", ways, indirect=True)


@pytest.fixture
def _start(request: pytest.FixtureRequest) -> str:
    """How the programs of a test of the sample are started: `_is_forked` reads it."""
    return request.param


def _is_forked(item: pytest.Item) -> bool:
    if os.environ.get("AGENT_OS_TEST_EXEC") or item.nodeid.startswith(_EXEC) or item.get_closest_marker("true_start"):
        return False
    call = getattr(item, "callspec", None)
    return not call or call.params.get("_start") != "exec"


_way = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Programs are forked (see `forkserver`) unless a test is about how they start, or runs a second time."""
    forked, module = _is_forked(item), item.getparent(pytest.Module)
    if module and module.stash.setdefault(_way, forked) != forked:
        module.stash[_way] = forked
        item.session._setupstate.teardown_exact(module.parent)  # fixtures of the file: its kernels start the other way
    if not forked:
        return (yield)
    with forkserver.used():
        return (yield)


def pytest_unconfigure() -> None:
    forkserver.server.close()


# ---- who starts processes

_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"})
_started: list[str] = []  # by the test that runs now
_starters: set[tuple[str, str]] = set()  # fixtures: where they are defined, their names


def _note_start(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS:
        _started.append(f"{event} {arguments[1] if event == 'subprocess.Popen' else arguments[:1]}"[:200])


sys.addaudithook(_note_start)


def is_marked(item: pytest.Item, *names: str) -> bool:
    return any(item.get_closest_marker(name) for name in names)


def runs_twice(item: pytest.Item) -> bool:
    return is_marked(item, "both_uids") or (
        is_marked(item, "integration", "hostile") and not is_marked(item, "uid_free")
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _started.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    before = len(_started)
    value = yield
    if len(_started) > before:
        _starters.add((fixturedef.baseid, fixturedef.argname))
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    if not is_marked(item, "integration", "hostile"):
        names = getattr(item, "fixturenames", ())
        shared = [name for base, name in _starters if name in names and item.nodeid.startswith(base)]
        if _started or shared:
            what = _started[0] if _started else f"the fixture {shared[0]}"
            pytest.fail(f"starts a process ({what}): mark it `integration` or `hostile`", pytrace=False)
    return result


# ---- which tests, in which order


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--again", metavar="FILE", help="only what runs as a second user too, and the tests that FILE names"
    )
    parser.addoption("--queue", metavar="FD", type=int, help="take test files from this queue until it is empty")


RECORD = 200  # bytes. Several processes read the same open file, and so share its position: each takes the next record


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """With a queue, a file is imported when its turn comes: all of them in each process take longer than most tests."""
    return None if session.config.getoption("queue") is None else True


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    queue = session.config.getoption("queue")
    if queue is None:
        return None
    items, collected = _queued(session, queue), 0
    item = next(items, None)
    while item:
        following, collected = next(items, None), collected + 1
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
    session.testscollected = collected
    return True


def _queued(session: pytest.Session, queue: int) -> Iterator[pytest.Item]:
    option, top = session.config.option, session.config.rootpath
    chosen, (option.keyword, option.markexpr) = (option.keyword, option.markexpr), ("", "")  # of tests, not of files
    files = {str(file.path.relative_to(top)): file for file in session.perform_collect(genitems=False)}
    option.keyword, option.markexpr = chosen
    while name := os.read(queue, RECORD).decode().strip():
        items = [*session.genitems(files[name])]
        session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        yield from items


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not all(isinstance(item, pytest.Item) for item in items):
        return  # the files of a queue
    for item in items:
        for name in ("uid_free", "both_uids"):
            for mark in item.iter_markers(name):
                if len(mark.args) != 1 or len(str(mark.args[0]).split()) < 3:
                    raise pytest.UsageError(f"{item.nodeid}: {name} needs its reason: {name}('why')")
        if runs_twice(item):
            item.user_properties.append(("again", True))
    if again := config.getoption("again"):
        # The file names what root skipped, tests or whole files: some only an ordinary user can run.
        skipped = set(Path(again).read_text(encoding="utf-8").splitlines())
        chosen = [item for item in items if runs_twice(item) or {item.nodeid, item.nodeid.split("::")[0]} & skipped]
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen
    # Files that start processes come first: when a worker runs out of files, the others have only quick ones left.
    long = {item.path for item in items if is_marked(item, "integration")}
    files = {path: at for at, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (item.path not in long, files[item.path], not _is_forked(item)))


# ---- what scripts/test hears: a line for each test as it ends, so that a run that is cut off counts for what it did

_REPORT = os.environ.get("AGENT_OS_TEST_REPORT")
_WORST = ("passed", "skipped", "failed")
_phases: dict[str, list[pytest.TestReport]] = {}


def _write(line: dict[str, Any]) -> None:
    if _REPORT:
        with Path(_REPORT).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _record(report: pytest.TestReport | pytest.CollectReport, seconds: float = 0.0) -> None:
    line: dict[str, Any] = {"outcome": report.outcome, "test": report.nodeid, "seconds": round(seconds, 4)}
    if ("again", True) in map(tuple, getattr(report, "user_properties", ())):
        line["again"] = True
    if report.outcome == "skipped":
        # A skip's longrepr is (file, line, reason); an expected failure keeps its reason in `wasxfail`.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        line["reason"] = str(reason).removeprefix("Skipped: ")
    _write(line)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    phases = _phases.setdefault(report.nodeid, [])
    phases.append(report)
    if report.when == "teardown":
        del _phases[report.nodeid]
        decisive = max(phases, key=lambda phase: _WORST.index(phase.outcome))
        _record(decisive, sum(phase.duration for phase in phases))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        _record(report)


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus() -> Generator[None, Any, Any]:
    """No dots: scripts/test prints its own progress."""
    status = yield
    return (status[0], "", "") if _REPORT else status
