"""Traces from a real gateway to a real collector; and none, or none that arrives, without harm to anybody."""

import asyncio
from pathlib import Path

import pytest

from agent_os.client import otlp
from agent_os.client.spans import Exported
from agent_os.gateway.telemetry import MOST, Telemetry
from cli.desk import Desk, until
from collector import attributes, collecting
from gateway.house import House

pytestmark = pytest.mark.uid_free("HTTP answers are the same for every user")


def span(number: int) -> Exported:
    return Exported(1, number, None, "chat", 0, 1, {}, "")


@pytest.mark.integration
def test_what_agents_do_is_traced_and_what_they_say_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        told = Desk.__init__

        def begin(desk: Desk, top: Path) -> None:
            told(desk, top)
            desk.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.address

        monkeypatch.setattr(Desk, "__init__", begin)
        house = House(tmp_path)
        try:
            until(lambda: house.status()["clients"] >= 2)  # the follower, and who asks
            house.desk.good("init", "--template", "loop", "loop")
            house.desk.good("run", "loop/loop.agent.toml")
            until(lambda: bool(collector.named("invoke_agent loop")))
            (life,) = collector.named("invoke_agent loop")
            chats, tools = collector.named("chat scripted/loop"), collector.named("execute_tool file.")
            assert (len(chats), len(tools)) == (3, 2)
            assert {one.parent_span_id for one in (*chats, *tools)} == {life.span_id}
            assert attributes(chats[0])["gen_ai.usage.input_tokens"] > 0
            assert attributes(tools[0])["agent_os.capability"].startswith("c-")
            assert "gutter" not in str(collector.spans), "which is in the notes that a tool read"
        finally:
            house.desk.down()


def test_a_collector_that_takes_nothing_costs_spans_and_no_memory() -> None:
    class Deaf:
        def __init__(self) -> None:
            self.closed = False

        def send(self, spans: list[Exported]) -> bool:
            return False

        def close(self) -> None:
            self.closed = True

    async def main() -> None:
        telemetry = Telemetry(Deaf(), content=False)
        telemetry.take([span(number) for number in range(MOST + 10)])
        assert telemetry.lost == 10
        task = asyncio.create_task(telemetry.send())
        async with asyncio.timeout(60):
            while telemetry.lost < MOST + 10:
                await asyncio.sleep(0.01)
        task.cancel()
        assert telemetry.sent == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_only_the_standard_variables_switch_it_on(env: dict[str, str], wanted: bool) -> None:
    assert otlp.wanted(env) is wanted
