"""A kernel with an outside client, for tests that end neither. Others make their own."""

from collections.abc import Iterator

import pytest

from mcp_server.door import CLIENT, Door

pytest.importorskip("mcp", reason="the extra mcp is not installed")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    door = Door(tmp_path_factory.mktemp("door"))
    door.up()
    door.register(CLIENT)
    yield door
    door.down()
