"""Shared by the hostile tests: what they need, the subreaper, and the battery's tables at the end of the run."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

_NAMESPACES = "import ctypes, os; l = ctypes.CDLL(None, use_errno=True); r = l.unshare(0x70020000)"
_NAMESPACES += "; print(os.strerror(ctypes.get_errno()) if r else 'yes')"


@pytest.fixture(scope="session", autouse=True)
def namespaces_are_there() -> None:
    """Without them there is nothing to test; whether the sandbox works is what the tests are for."""
    done = subprocess.run([sys.executable, "-c", _NAMESPACES], capture_output=True, text=True)
    if done.stdout.strip() != "yes":
        pytest.skip(f"namespaces: cannot be created here: {done.stdout.strip() or done.stderr.strip()}")


@pytest.fixture(scope="module", autouse=True)
def no_orphan_can_hide() -> Iterator[None]:
    from hostile import harness

    with harness.subreaper():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report = sys.modules.get("hostile.report")
    if report and report.KIND:
        for line in (*report.lines(), f"kept in {report.save(terminalreporter.config.rootpath)}"):
            terminalreporter.write_line(line)
