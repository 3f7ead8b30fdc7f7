"""Reports every test's outcome to `scripts/test`, which adds up several runs. Fixtures belong next to their tests.

Lines are appended as they come, so that a run that is cut off still counts for what it did.
"""

import json
import os
import signal
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import forkserver

# How long one example takes depends on who else uses the machine. The same examples each time: whoever changes a line
# is judged by that line. `make soak` looks for others.
settings.register_profile("patient", deadline=None, derandomize=not os.environ.get("AGENT_OS_SOAK"))
settings.load_profile("patient")

_REPORT = None if "PYTEST_XDIST_WORKER" in os.environ else os.environ.get("AGENT_OS_TEST_REPORT")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """What a test leaves ignored or blocked, programs of later tests inherit: they could not be interrupted."""
    before = _dispositions()
    yield
    assert _dispositions() == before


def _dispositions() -> list[Any]:
    heard = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    return [*heard, signal.pthread_sigmask(signal.SIG_BLOCK, ())]


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes come first: when a worker runs out of files, the others have only quick ones left."""
    long = {item.path for item in items if item.get_closest_marker("integration")}
    files = {path: at for at, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (item.path not in long, files[item.path], not _is_forked(item)))


def _record(report: pytest.TestReport | pytest.CollectReport, outcome: str) -> None:
    if not _REPORT:
        return
    line: dict[str, Any] = {"outcome": outcome, "test": report.nodeid, "seconds": getattr(report, "duration", 0.0)}
    if outcome == "skipped":
        # A skip's longrepr is (file, line, reason); an expected failure keeps its reason in `wasxfail`.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        line["reason"] = str(reason).removeprefix("Skipped: ")
    with Path(_REPORT).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A test is its call; set-up and tear-down count only when they decide the outcome.
    if report.when == "call" or report.outcome != "passed":
        _record(report, report.outcome)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        _record(report, report.outcome)
