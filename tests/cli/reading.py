"""Shared by the tests of agentctl: what a process that runs beside the test says."""

from typing import IO


def lines_of(stream: IO[bytes] | None) -> IO[bytes]:
    """The pipe that a process was started with."""
    assert stream is not None
    return stream
