"""One kernel with its gateway for the tests of a file, which leave it as they found it. Others make their own."""

from collections.abc import Iterator

import pytest

from gateway.house import House


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"), limits={"rate": 10_000, "burst": 10_000})
    yield house
    house.close()
