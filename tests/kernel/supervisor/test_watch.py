"""One incarnation on the loop's clock: what is told of it, when, and how often."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_os.abi import frames
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import BY_NAME
from agent_os.kernel.calls import Asked
from agent_os.kernel.supervisor.health import Seen, Settings
from agent_os.kernel.supervisor.readiness import parse
from agent_os.kernel.supervisor.watch import Watch
from agent_os.kernel.supervisor.watched import Watched

FAST = Settings(check_interval_secs=0.02, timeout_secs=0.02, start_timeout_secs=0.1)
CALM = Settings(start_timeout_secs=30)


@dataclass
class Heard:
    """Whoever is told writes it down."""

    said: list[str] = field(default_factory=list[str])

    def ready(self, watch: Watch) -> None:
        self.said.append("ready")

    def back(self, watch: Watch) -> None:
        self.said.append("back")

    def unready(self, watch: Watch, why: str) -> None:
        self.said.append(f"unready: {why}")

    def repeats(self, watch: Watch, why: str) -> None:
        self.said.append("repeats")

    def abort(self, watch: Watch, why: str) -> None:
        self.said.append("abort")

    def strike(self, watch: Watch, exit_class: ExitClass, why: str) -> None:
        self.said.append(f"strike {exit_class}: {why}")


def watch(heard: Heard, watched: Watched, check: Any = None) -> Watch:
    return Watch(cast("Any", SimpleNamespace(id="default/a", name="a")), watched, heard, check)


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.005)


def call(one: Watch, name: str, pos: str | None = "0:1", replayed: bool = False, body: Any = None) -> list[Any]:
    """A call comes in; what its caller is answered, once somebody calls the answer."""
    got: list[Any] = []
    asked = Asked(BY_NAME[name].number, frames.encode_body(body), pos=pos)
    got.append(one.call(asked, lambda *said: got.append(said), replayed=replayed))
    return got


NOTIFY = Watched(CALM, parse("notify"))


@pytest.mark.parametrize(
    ("name", "pos", "explicit", "ready"),
    [
        ("SYS_NOW", "0:1", False, True),
        ("SYS_NOW", None, False, True),
        ("SYS_RANDOM", "r:1", False, False),
        ("SYS_RANDOM", "state@r:1", False, False),
        ("SYS_EXIT", "0:1", False, False),
        ("SYS_NOW", "0:1", True, False),
        ("SYS_READY", "0:1", True, True),
    ],
)
def test_which_call_says_that_it_came_up(name: str, pos: str | None, explicit: bool, ready: bool) -> None:
    async def body() -> None:
        heard = Heard()
        one = watch(heard, NOTIFY)
        one.explicit = explicit
        one.begin()
        call(one, name, pos)
        call(one, name, pos)
        assert heard.said == (["ready"] if ready else [])
        assert one.ready is ready
        one.end()

    run(body)


def test_in_its_record_it_is_not_ready_and_at_the_end_of_it_it_is() -> None:
    async def body() -> None:
        heard = Heard()
        one = watch(heard, NOTIFY)
        one.begin()
        call(one, "SYS_READY", replayed=True)
        assert heard.said == []
        one.live()
        assert heard.said == ["ready"]
        one.end()

    run(body)


def test_a_start_that_took_too_long_is_told_once_and_ready_comes_too_late() -> None:
    async def body() -> None:
        heard = Heard()
        one = watch(heard, Watched(FAST, parse("notify")))
        one.begin()
        await until(lambda: bool(heard.said))
        call(one, "SYS_READY")
        assert heard.said == ["strike start_timeout: it was not ready within 0.1 s"]
        assert not one.ready

    run(body)


def test_no_start_is_too_long_while_a_person_is_waited_for() -> None:
    async def body() -> None:
        heard = Heard()
        one = watch(heard, Watched(FAST, parse("notify")))
        one.begin()
        one.wait()
        one.hold()
        await asyncio.sleep(0.25)
        one.go_on()
        assert not one.waiting
        await asyncio.sleep(0.15)
        assert heard.said == []  # it is still suspended
        one.release()
        await until(lambda: bool(heard.said))

    run(body)


def test_a_line_that_comes_in_pieces_on_one_stream_is_one_and_on_two_is_none() -> None:
    async def body() -> None:
        heard = Heard()
        one = watch(heard, Watched(CALM, parse("log:^up now$")))
        one.begin()
        await one.hear(1, b"up ")
        await one.hear(2, b"now\nup ")
        assert heard.said == []
        await one.hear(2, b"now\n")
        assert heard.said == ["ready"]
        await one.hear(1, b"now\n")
        assert heard.said == ["ready"]
        one.end()

    run(body)


def test_what_answers_is_asked_at_once_and_then_at_its_interval() -> None:
    async def body() -> None:
        heard, answers = Heard(), iter([False, False, True, *[False] * 3, True])

        async def check() -> Seen:
            return Seen(next(answers, True), "shut")

        one = watch(heard, Watched(Settings(0.02, 1.0, 3, 1, 30), parse("port:80")), check)
        one.begin()
        await until(lambda: len(heard.said) == 3)
        assert heard.said == ["ready", "unready: shut", "back"]
        one.end()

    run(body)


def test_whether_it_is_well_says_nothing_about_whether_it_can_serve() -> None:
    async def body() -> None:
        heard = Heard()

        async def silent() -> Seen:
            await asyncio.sleep(600)
            return Seen(True)

        one = watch(heard, Watched(FAST, parse("immediate")))
        one.can_be_asked(silent)
        one.begin()
        await until(lambda: len(heard.said) == 2)
        assert heard.said == ["ready", "strike probe: no answer within 0.02 s"]

    run(body)


def test_a_call_that_is_not_answered_yet_keeps_the_watchdog_quiet() -> None:
    async def body() -> None:
        heard = Heard()
        one = watch(heard, Watched(CALM, parse("immediate"), watchdog_secs=0.1))
        one.begin()
        got = call(one, "SYS_SLEEP")
        await asyncio.sleep(0.3)
        assert heard.said == ["ready"]
        got[-1](frames.NIL, None)
        assert got[-1] == (frames.NIL, None)
        await until(lambda: heard.said == ["ready", "abort"])
        one.end()

    run(body)


def test_calls_put_the_watchdog_off() -> None:
    async def body() -> None:
        heard = Heard()
        one = watch(heard, Watched(CALM, parse("immediate"), watchdog_secs=0.2))
        one.begin()
        for _ in range(8):
            await asyncio.sleep(0.05)
            call(one, "SYS_NOW")[-1](frames.NIL, None)
        assert heard.said == ["ready"]
        one.end()

    run(body)


def test_equal_calls_are_counted_and_those_of_a_record_are_not() -> None:
    async def body() -> None:
        heard = Heard()
        one = watch(heard, Watched(CALM, parse("immediate"), max_repeats=2))
        one.begin()
        for _ in range(9):
            call(one, "SYS_EXEC", replayed=True, body={"tool": "t", "params": {"a": 1}})
        for _ in range(4):
            call(one, "SYS_EXEC", body={"tool": "t", "params": {"a": 1}})
        assert heard.said[:2] == ["ready", "repeats"]
        assert heard.said[2].startswith("strike probe: loop: it called t with the same arguments 4 times")
        call(one, "SYS_EXEC", body="no request at all")  # the gate says so, not we

    run(body)


def test_an_unkind_expression_leaves_most_of_the_time_to_others() -> None:
    async def body() -> None:
        one = watch(Heard(), Watched(CALM, parse("log:(.?){60}x")))
        one.begin()
        letters = ["".join(map(chr, range(first, first + 170))) for first in range(0x1000, 0x5000, 170)][:12]
        wall, own = time.monotonic(), time.process_time()
        for line in letters:
            await one.hear(1, f"{line}\n".encode())
        assert time.monotonic() - wall >= 2 * (time.process_time() - own)
        one.end()

    run(body)
