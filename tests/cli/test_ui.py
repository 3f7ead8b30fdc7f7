"""`agentctl ui`: an address that lets one browser in, once; and a plain word where there is no dashboard."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from cli.desk import Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]


@pytest.fixture
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    yield desk
    desk.down()


def test_without_a_dashboard_it_says_how_to_get_one(desk: Desk) -> None:
    desk.up()
    said = desk.ask("ui")
    assert (said.code, said.out, "agentctl up" in said.err) == (8, "", True)


def test_the_code_of_the_address_gives_one_session_of_that_role(desk: Desk) -> None:
    desk.good("up", "--detach", "--port", "0")
    url = desk.good("ui", "--role", "viewer").out.strip()
    base, _, code = url.partition("/#code=")
    body = json.dumps({"code": code}).encode()
    request = urllib.request.Request(
        f"{base}/api/v1/session", data=body, method="POST", headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        told = json.load(answer)
    assert told["role"] == "viewer"
    with pytest.raises(urllib.error.HTTPError) as again:
        urllib.request.urlopen(request, timeout=60)
    with again.value as refused:  # it is an answer too, with a socket
        assert refused.code in (401, 403)
