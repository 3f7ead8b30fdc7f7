"""How well a tool does, told from its last calls."""

import pytest

from agent_os.abi.errors import EAGAIN, EINVAL, EIO, EPERM, ETIMEDOUT, AgentOSError
from agent_os.kernel.tools.health import IN_A_ROW, Health


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def called(health: Health, error: AgentOSError | None = None) -> None:
    health.begin()
    health.end(5.0, 10, error)


BROKEN = EIO("tool.run", "it broke")


def test_half_of_its_last_calls_failing_degrades_it_and_success_heals_it() -> None:
    health = Health(8, Clock())
    for _ in range(5):
        called(health)
        called(health, BROKEN)
    assert health.state == "degraded"
    for _ in range(15):
        called(health)
    assert health.state == "ok"


def test_one_that_is_down_fails_fast_with_its_last_error_and_is_tried_again() -> None:
    clock = Clock()
    health = Health(8, clock)
    for _ in range(IN_A_ROW):
        called(health, ETIMEDOUT("tool.timeout", "no answer"))
    assert health.state == "down"
    with pytest.raises(EIO) as caught:
        health.begin()
    assert "no answer" in caught.value.reason
    assert health.metrics.calls == IN_A_ROW
    clock.now += 5.1
    health.begin()  # one is tried,
    with pytest.raises(EIO):
        health.begin()  # and no other beside it
    health.end(1.0, 0, None)
    assert health.state in ("ok", "degraded")
    called(health)


def test_what_one_agent_asked_for_in_vain_keeps_no_other_from_the_tool() -> None:
    health = Health(8, Clock())
    for _ in range(IN_A_ROW):
        health.begin("default/unlucky")
        health.end(1.0, 0, EIO("net.broken", "words of its own"), "default/unlucky")
    with pytest.raises(EIO):
        health.begin("default/unlucky")
    health.begin("default/other")
    health.end(1.0, 0, None, "default/other")
    assert health.state != "down"
    with pytest.raises(EIO):
        health.begin("default/unlucky")


def test_many_calls_of_some_leave_room_for_every_other() -> None:
    health = Health(2, Clock())
    for number in range(8):
        health.begin(f"hostile{number}")
        health.begin(f"hostile{number}")
        with pytest.raises(EAGAIN):
            health.begin(f"hostile{number}")
    health.begin("other")
    with pytest.raises(EAGAIN):
        health.begin("other")  # all together have enough under way
    for _ in range(2):
        health.end(1.0, 0, None, "hostile0")
    health.begin("other")


def test_the_wait_doubles_while_it_stays_down() -> None:
    clock = Clock()
    health = Health(8, clock)
    for _ in range(IN_A_ROW):
        called(health, BROKEN)
    clock.now += 5.1
    called(health, BROKEN)
    clock.now += 5.1
    with pytest.raises(EIO):
        health.begin()
    clock.now += 5.0
    called(health)


@pytest.mark.parametrize(
    "error", [EINVAL("a", "bad"), EPERM("cap.missing", "no"), EAGAIN("a", "full", retry_after_ms=1)]
)
def test_what_the_caller_did_wrong_is_not_the_tools(error: AgentOSError) -> None:
    health = Health(8, Clock())
    for _ in range(40):
        called(health, error)
    assert health.state == "ok"
    assert health.metrics.errors[error.name] == 40


def test_no_more_run_at_the_same_time_than_it_says() -> None:
    health = Health(2, Clock())
    health.begin()
    health.begin()
    with pytest.raises(EAGAIN) as caught:
        health.begin()
    assert caught.value.retry_after_ms
    health.end(1.0)
    health.begin()


def test_its_figures() -> None:
    health = Health(8, Clock())
    for ms in range(1, 101):
        health.begin()
        health.end(float(ms), 10)
    health.deny()
    told = health.metrics.told()
    assert (told["calls"], told["bytes"], told["denied"], told["in_flight"]) == (100, 1000, 1, 0)
    assert (told["p50_ms"], told["p95_ms"]) == (51.0, 96.0)
