"""A POST with a key is done once, however often it is sent, and what is kept of it has an end."""

import asyncio
import json
from typing import Any

import pytest

from agent_os.abi.errors import EPERM
from agent_os.abi.syscalls import Grant, Status
from agent_os.gateway.idempotency import Idempotency, key_of


class Shop:
    """An app that counts what it does, and answers with the number."""

    def __init__(self, **bounds: Any) -> None:
        self.done, self.status, self.large, self.removed = 0, 200, 0, set[str]()
        self.keys = list[Any]()
        self.go = asyncio.Event()
        self.go.set()
        self.door = Idempotency(self.serve, self.check, **bounds)

    async def check(self, token: str) -> None:
        if token in self.removed:
            raise EPERM("token.gone", "it was removed")

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        await self.go.wait()
        self.done += 1
        self.keys.append(scope.get("state", {}).get("key"))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % self.done + b" " * self.large})

    async def post(
        self, key: str | None = "k", body: bytes = b"{}", token: str = "t", path: str = "/api/v1/goals"
    ) -> tuple[int, Any]:
        headers = [
            (b"authorization", f"Bearer {token}".encode()),
            *([(b"idempotency-key", key.encode())] if key else []),
        ]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        said = list[Any]()

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            said.append(message)

        await self.door(scope, receive, send)
        return said[0]["status"], json.loads(said[1]["body"])


def test_the_same_request_again_is_answered_and_not_done() -> None:
    async def test() -> None:
        shop = Shop()
        assert [await shop.post() for _ in range(3)] == [(200, 1)] * 3
        assert await shop.post(token="other") == (200, 2), "another's key is another key"
        assert await shop.post(key="new") == (200, 3)
        assert await shop.post(key=None) == (200, 4)
        assert shop.keys[3] is None
        assert shop.keys[0] == shop.keys[1] != shop.keys[2]

    asyncio.run(test())


def test_the_same_key_with_another_request_is_a_conflict() -> None:
    async def test() -> None:
        shop = Shop()
        await shop.post()
        for other in ({"body": b'{"a": 1}'}, {"path": "/api/v1/messages"}):
            status, problem = await shop.post(**other)  # type: ignore[arg-type]
            assert (status, problem["detail_code"]) == (409, "key.reused")
        status, problem = await shop.post(key="two words")
        assert (status, problem["field"]) == (400, "Idempotency-Key")
        assert shop.done == 1

    asyncio.run(test())


def test_two_at_once_are_done_once() -> None:
    async def test() -> None:
        shop = Shop()
        shop.go.clear()
        both = [asyncio.create_task(shop.post()) for _ in range(2)]
        await asyncio.sleep(0)
        shop.go.set()
        assert await asyncio.gather(*both) == [(200, 1)] * 2

    asyncio.run(test())


def test_what_went_wrong_may_be_tried_again() -> None:
    async def test() -> None:
        shop = Shop()
        shop.status = 503
        assert await shop.post() == (503, 1)
        shop.go.clear()
        lost = asyncio.create_task(shop.post())
        await asyncio.sleep(0)
        lost.cancel()
        await asyncio.wait([lost])
        shop.go.set()
        shop.status = 200
        assert await shop.post() == (200, 2)

    asyncio.run(test())


def test_a_token_that_ended_is_not_answered_from_what_is_kept() -> None:
    async def test() -> None:
        shop = Shop()
        await shop.post()
        shop.removed.add("t")
        assert (await shop.post())[0] == 401

    asyncio.run(test())


@pytest.mark.parametrize(("bounds", "large"), [({"keys": 3}, 0), ({"size": 3000}, 1000), ({"seconds": 0.0}, 0)])
def test_what_is_kept_has_an_end_by_number_size_and_time(bounds: dict[str, Any], large: int) -> None:
    async def test() -> None:
        shop = Shop(**bounds)
        shop.large = large
        for number in range(20):
            await shop.post(key=f"k{number}")
        assert len(shop.door._firsts) <= 5  # pyright: ignore[reportPrivateUsage]
        assert (await shop.post(key="k0"))[1] == 21, "the oldest is forgotten"

    asyncio.run(test())


def test_what_is_shown_once_is_not_kept() -> None:
    async def test() -> None:
        shop = Shop()
        assert [await shop.post(path="/api/v1/session/tickets") for _ in range(2)] == [(200, 1), (200, 2)]

    asyncio.run(test())


def test_each_change_has_a_key_of_its_own_and_a_look_none() -> None:
    first, second = Grant(agent="a", capability="x"), Grant(agent="b", capability="x")
    assert key_of("k", first) == key_of("k", Grant(agent="a", capability="x")) != key_of("k", second)
    assert key_of("k", Status()) is None
    assert key_of(None, first) is None
