"""Many who may not come in, and one who may: the crowd is sent away, and takes nobody's turn."""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.abi.doors import Tokens
from cli.desk import until
from gateway.house import House
from gateway.listening import heard, listening

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]
CROWD = 150
SLOWLY = {"rate": 0.5, "burst": 100}  # a turn comes back in 2 s, so that a test sees who has one


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, limits={**SLOWLY, "idle_s": 1})
    yield house
    house.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_pages_and_programs_without_a_token_keep_nobody_from_entering(house: House) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {}):
        said = {house.get("status", role=None, headers=headers).status_code for _ in range(CROWD)}
        assert said == ({403} if headers else {401, 429})
    assert house.post("session", {"code": house.code()}, role=None).status_code == 200


def test_strangers_tokens_keep_nobody_out_who_was_in(house: House) -> None:
    mine = bearer(house.session())
    assert house.get("status", role=None, headers=mine).status_code == 200
    ticket = house.post("session/tickets", {}, role=None, headers=mine).json()["ticket"]
    until(lambda: not house.status()["clients"] > 1)  # all that stood idle is closed
    strange = [house.get("status", role=None, headers=bearer(f"aos_{secrets.token_urlsafe(32)}")) for _ in range(CROWD)]
    assert {one.status_code for one in strange} == {401, 429}
    assert house.get("status", role=None, headers=mine).status_code == 200

    async def listen() -> None:
        async with listening(house, ticket=ticket) as client:
            assert (await heard(client))["type"] == "stream.live"

    asyncio.run(listen())


def test_a_token_that_was_good_is_a_strangers_once_it_is_not(house: House) -> None:
    assert house.get("status").status_code == 200
    mine = bearer(house.token("anna", "viewer"))
    assert house.get("status", role=None, headers=mine).status_code == 200
    house.ask(Tokens(do="remove", name="anna"))
    said = [house.get("status", role=None, headers=mine).status_code for _ in range(CROWD)]
    assert set(said) == {401, 429}
    assert house.get("status").status_code == 200
