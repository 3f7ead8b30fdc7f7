"""Shared by the hostile tests: the subreaper, and the battery's tables at the end of the run."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_orphan_can_hide() -> Iterator[None]:
    from hostile import harness

    with harness.subreaper():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report = sys.modules.get("hostile.report")
    for line in report.lines() if report else ():
        terminalreporter.write_line(line)
