"""A desk with a kernel and an agent at work, for tests that look at these and change nothing. Others make their own."""

from collections.abc import Iterator

import pytest

from cli.desk import Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.up()
    desk.start("worker")
    yield desk
    desk.down()
