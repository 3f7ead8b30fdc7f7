"""A hostile guest at its door to models: what it sends along, and how much of it."""

import asyncio
import json
from typing import Any

import pytest

from agent_os.kernel.egress import models
from agent_os.kernel.models.passage import MESSAGES
from kernel.egress.test_models import BODIES, desk, run
from models.provider import Raw, Say


@pytest.mark.parametrize(
    "header",
    [
        "api-key",
        "x-portkey-api-key",
        "cf-aig-authorization",
        "x-litellm-token",
        "helicone-target-url",
        "x-portkey-custom-host",
        "x-original-url",
        "x-http-method-override",
        "x-forwarded-host",
        "x-goog-api-key",
    ],
)
def test_a_key_by_another_name_and_a_way_elsewhere_are_not_passed_on(header: str) -> None:
    async def work() -> None:
        async with desk() as here:
            assert (await here.post(MESSAGES, BODIES[MESSAGES], f"{header}: stolen", "x-plain: passed")).status == 200
        assert "stolen" not in here.mock.seen[-1].headers.values()
        assert here.mock.seen[-1].headers["x-plain"] == "passed"

    run(work)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?beta=true", 200),
        ("?api-version=2024-10-21&beta=true", 200),
        ("?key=stolen", 400),
        ("?beta=true&api_key=x", 400),
    ],
)
def test_a_query_holds_no_key(query: str, status: int) -> None:
    async def work() -> None:
        async with desk() as here:
            assert (await here.post(MESSAGES + query, BODIES[MESSAGES])).status == status
        assert len(here.mock.seen) == (status == 200)

    run(work)


def test_an_agent_holds_only_so_much_of_the_kernels_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_MOST_HELD", 100_000)
    large: dict[str, Any] = {**BODIES[MESSAGES], "messages": [{"role": "user", "content": "x" * 70_000}]}

    async def work() -> None:
        async with desk(Say("late", first_s=60), Say("soon")) as here:
            first = asyncio.create_task(here.post(MESSAGES, large))
            while not here.mock.seen:
                await asyncio.sleep(0.01)
            refused = await here.post(MESSAGES, large)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            first.cancel()
            async with asyncio.timeout(30):
                while (await here.post(MESSAGES, large)).status != 200:  # what it held is free when it is gone
                    await asyncio.sleep(0.01)

    run(work)


def test_a_header_in_any_letters_passes_back() -> None:
    odd = "HTTP/1.1 200 OK\r\nX-Odd: \u2603\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

    async def work() -> None:
        async with desk(Raw(odd.encode())) as here:
            answer = await here.post(MESSAGES, BODIES[MESSAGES])
        assert (answer.status, json.loads(answer.body)) == (200, {})
        assert answer.headers["x-odd"] == "\u2603".encode().decode("latin-1")

    run(work)
