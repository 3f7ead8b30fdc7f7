"""Many lives: a fleet that is spawned, crashes, is stopped, killed and restarted in any order, under a kernel that dies
too, against a book kept by hand. The book has no counters: it reads its pages from the start each time."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agent_os.abi.errors import EBUSY
from agent_os.abi.states import ExitClass
from agent_os.kernel.supervisor.decide import InHand
from agent_os.kernel.supervisor.terms import Backoff, RestartPolicy, State, Strategy, Supervision, Terms
from kernel.supervisor.fleet import ABOVE, Fleet

STABLE, PERIOD = 30.0, 60.0
NEVER, ON_FAILURE, ALWAYS = RestartPolicy
CRASHES = (
    ExitClass.ERROR,
    ExitClass.SIGNAL,
    ExitClass.OOM,
    ExitClass.START_TIMEOUT,
    ExitClass.WATCHDOG,
    ExitClass.PROBE,
    ExitClass.TIMEOUT,
)


@dataclass
class Page:
    """One agent. `word`: runs, waits, or how it ended for good."""

    name: str
    above: str
    terms: Terms
    group: Supervision | None = None
    word: str = "waits"
    lives: int = 0
    since: float = 0.0
    not_before: float | None = 0.0  # None: until somebody starts it
    story: list[str] = field(default_factory=list[str])  # strike, pardon
    granted: list[float] = field(default_factory=list[float])  # restarts of its children
    away: bool = True  # its children wait for it

    def strikes(self) -> int:
        count = 0
        for word in self.story:
            count = 0 if word == "pardon" else count + 1
        return count


class Book:
    def __init__(self) -> None:
        self.now = 0.0
        self.pages: dict[str, Page] = {}

    def below(self, name: str) -> list[Page]:
        return [page for page in self.pages.values() if page.above == name]

    def runs(self) -> set[str]:
        return {page.name for page in self.pages.values() if page.word == "runs"}

    def over(self, page: Page, word: str) -> None:
        page.word = word
        if page.group and word in ("stopped", "completed", "failed", "quarantined"):
            self.send_away(page)

    def send_away(self, supervisor: Page) -> None:
        supervisor.away = True
        for child in self.below(supervisor.name):
            self.set_aside(child)

    def set_aside(self, page: Page) -> None:
        if page.word != "runs":
            return
        if page.group:
            self.send_away(page)
        page.word, page.not_before = ("stopped", None) if page.terms.policy is NEVER else ("waits", self.now)

    def done(self, page: Page) -> None:
        if page.terms.policy is ALWAYS:
            self.struck(page)
        else:
            page.story.append("pardon")
            self.over(page, "completed")

    def struck(self, page: Page) -> None:
        """Also a supervisor that is on its way back, for its children's sake: nobody gets stable by that."""
        if page.word == "runs" and self.now - page.since >= STABLE:
            page.story.append("pardon")
        page.story.append("strike")
        above = self.pages.get(page.above)
        limit = above.group.intensity if above and above.group else None
        if page.strikes() > page.terms.max_restarts:
            self.over(page, "failed")
        elif above and limit is not None and sum(self.now - at < PERIOD for at in above.granted) >= limit:
            page.word, page.not_before = "waits", self.now
            self.send_away(above)
            above.granted.clear()
            self.crashed(above)
        else:
            page.word, page.not_before = "waits", self.now + 0.1 * 2 ** (page.strikes() - 1)
            if above:
                above.granted.append(self.now)
                self.draw_in(page, above)

    def draw_in(self, page: Page, above: Page) -> None:
        """Siblings that go down with it."""
        group = self.below(above.name)
        assert above.group
        if above.group.strategy is Strategy.REST_FOR_ONE:
            group = group[group.index(page) :]
        if above.group.strategy is not Strategy.ONE_FOR_ONE:
            for sibling in group:
                if sibling is not page:
                    self.set_aside(sibling)

    def crashed(self, page: Page) -> None:
        if page.terms.policy is NEVER:
            self.over(page, "failed")
        else:
            self.struck(page)

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for page in self.pages.values():  # supervisors are written down before their children
            due = page.not_before is not None and page.not_before <= self.now
            above = self.pages.get(page.above)
            if page.word in ("waits", "blocked") and due and not (above and above.away):
                page.word, page.since, page.away = "runs", self.now, False
                page.lives += 1


any_terms = st.builds(
    Terms,
    policy=st.sampled_from(RestartPolicy),
    max_restarts=st.integers(0, 3),
    stable_secs=st.just(STABLE),
    max_deaths=st.just(2),
    backoff=st.just(Backoff(jitter="none")),
)
any_group = st.builds(Supervision, st.sampled_from(Strategy), st.integers(0, 3), st.just(PERIOD))


class Lives(RuleBasedStateMachine):
    steps: ClassVar[int] = 0
    reached: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.fleet, self.book = Fleet(), Book()
        self.number = 0

    @initialize(
        groups=st.lists(st.tuples(any_terms, any_group), min_size=2, max_size=2),
        terms=st.lists(any_terms, min_size=6, max_size=6),
    )
    def two_supervisors_with_three_children_each(
        self, groups: list[tuple[Terms, Supervision]], terms: list[Terms]
    ) -> None:
        for name, (own, group) in zip("st", groups, strict=True):
            self.admit(name, ABOVE, own, group)
        for number, own in enumerate(terms):
            self.admit(f"{'st'[number // 3]}{number}", "st"[number // 3], own)
        self.time_passes(0.0)

    def admit(self, name: str, above: str, terms: Terms, group: Supervision | None = None) -> None:
        self.fleet.spawn(name, above, terms, group)
        self.book.pages[name] = Page(name, above, terms, group)

    def pick(self, data: st.DataObject, *words: str) -> Page | None:
        pages = [page for page in self.book.pages.values() if not words or page.word in words]
        return data.draw(st.sampled_from(pages)) if pages else None

    @precondition(lambda self: self.number < 4)
    @rule(above=st.sampled_from(["s", "t", ABOVE]), terms=any_terms)
    def spawn(self, above: str, terms: Terms) -> None:
        self.number += 1
        self.admit(f"n{self.number}", above, terms)

    @rule(seconds=st.sampled_from([0.05, 0.1, 0.2, 0.4, 1.0, 29.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.pass_time(seconds)
        self.book.time_passes(seconds)

    @rule(data=st.data(), exit_class=st.sampled_from(CRASHES))
    def crash(self, data: st.DataObject, exit_class: ExitClass) -> None:
        if page := self.pick(data, "runs"):
            self.fleet.end(page.name, exit_class)
            self.book.crashed(page)

    @rule(data=st.data(), times=st.integers(2, 5))
    def crash_again_and_again(self, data: st.DataObject, times: int) -> None:
        """Of one supervisor's children now one, now another."""
        above = data.draw(st.sampled_from("st"))
        for _ in range(times):
            if names := [page.name for page in self.book.below(above) if page.word == "runs"]:
                page = self.book.pages[data.draw(st.sampled_from(names))]
                self.fleet.end(page.name, ExitClass.SIGNAL, -9)
                self.book.crashed(page)
            self.time_passes(2.0)

    @rule(data=st.data())
    def exit_normally(self, data: st.DataObject) -> None:
        if page := self.pick(data, "runs"):
            self.fleet.end(page.name, ExitClass.NORMAL, 0)
            self.book.done(page)

    @rule(data=st.data(), deaths=st.integers(1, 3))
    def crash_with_a_message_in_hand(self, data: st.DataObject, deaths: int) -> None:
        page = self.pick(data, "runs")
        if not page:
            return
        letters = len(self.fleet.dead_letters)
        self.fleet.end(page.name, ExitClass.ERROR, 1, in_hand=InHand("m", deaths))
        poison = deaths >= 2 and page.terms.policy is not NEVER
        assert len(self.fleet.dead_letters) - letters == poison
        if not poison:
            self.book.crashed(page)
            return
        if self.book.now - page.since >= STABLE:
            page.story.append("pardon")
        page.word, page.not_before = "waits", self.book.now + 0.1 * 2 ** (max(1, page.strikes()) - 1)
        if above := self.book.pages.get(page.above):
            self.book.draw_in(page, above)

    @rule(data=st.data(), seconds=st.sampled_from([0.3, 40.0]), budget=st.booleans())
    def run_into_a_wall(self, data: st.DataObject, seconds: float, budget: bool) -> None:
        page = self.pick(data, "runs")
        if not page:
            return
        until = self.book.now + seconds
        if budget:
            self.fleet.end(page.name, ExitClass.BUDGET, budget=until)
        else:
            self.fleet.end(page.name, ExitClass.ERROR, 1, provider=until)
        if not budget and page.terms.policy is NEVER:
            self.book.over(page, "failed")
            return
        if not budget and self.book.now - page.since >= STABLE:
            page.story.append("pardon")
        page.word, page.not_before = "blocked", until

    @rule(data=st.data())
    def violate(self, data: st.DataObject) -> None:
        if page := self.pick(data, "runs"):
            self.fleet.end(page.name, ExitClass.POLICY)
            self.book.over(page, "quarantined")

    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        page = self.pick(data)
        assert page
        self.fleet.stop(page.name)
        page.not_before = None
        if page.word in ("runs", "waits", "blocked"):
            self.book.over(page, "stopped")
        elif page.group:
            self.book.send_away(page)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """A stop with force: the same, whatever the agent was doing."""
        if page := self.pick(data, "runs"):
            self.fleet.stop(page.name)
            page.not_before = None
            self.book.over(page, "stopped")

    @rule(data=st.data())
    def restart_by_hand(self, data: st.DataObject) -> None:
        if page := self.pick(data, "runs"):
            self.fleet.restart(page.name)
            if page.group:
                self.book.send_away(page)
            page.word, page.not_before = "waits", self.book.now

    @rule(data=st.data())
    def start_by_hand(self, data: st.DataObject) -> None:
        page = self.pick(data)
        assert page
        if page.word == "quarantined":
            try:
                self.fleet.start(page.name)
            except EBUSY:
                return
            raise AssertionError("somebody was started out of quarantine")
        self.fleet.start(page.name)
        page.story.append("pardon")
        page.granted.clear()
        if page.word != "runs":
            page.word, page.not_before = "waits", self.book.now

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if page := self.pick(data, "quarantined"):
            self.fleet.release(page.name)
            page.word, page.not_before = "stopped", None

    @rule()
    def the_kernel_dies(self) -> None:
        self.fleet.crash_and_boot()
        for page in self.book.pages.values():
            page.away = True
            if page.word == "runs":
                page.word, page.not_before = "waits", self.book.now

    @invariant()
    def the_same_ones_run(self) -> None:
        type(self).steps += 1
        assert set(self.fleet.processes) - {ABOVE} == self.book.runs()

    @invariant()
    def everybody_is_what_the_book_says(self) -> None:
        for page in self.book.pages.values():
            record = self.fleet.records[page.name]
            words: dict[State, str] = {State.ACTIVE: "runs", State.PENDING: "waits", State.BACKOFF: "waits"}
            assert words.get(record.state, str(record.state)) == page.word, page.name
            assert record.incarnation == page.lives, page.name
            assert record.consecutive == page.strikes(), page.name
            type(self).reached.add(page.word)

    @invariant()
    def nobody_was_restarted_more_often_than_allowed(self) -> None:
        for page in self.book.pages.values():
            strikes = page.strikes()
            assert strikes <= page.terms.max_restarts or page.word in ("failed", "stopped", "quarantined", "blocked")

    @invariant()
    def one_life_at_a_time_and_none_of_the_same_number(self) -> None:
        assert all(self.fleet.records[one].state is State.ACTIVE for one in self.fleet.processes)


@pytest.mark.long
def test_any_order_of_events_leads_where_a_book_kept_by_hand_does() -> None:
    class Counted(Lives):
        steps: ClassVar[int] = 0
        reached: ClassVar[set[str]] = set()

    slow: Any = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    many = settings(max_examples=250, stateful_step_count=60, deadline=None, suppress_health_check=slow)
    run_state_machine_as_test(Counted, settings=many)  # pyright: ignore[reportUnknownMemberType]
    assert Counted.steps >= 10_000
    assert Counted.reached == {"runs", "waits", "blocked", "stopped", "completed", "failed", "quarantined"}


def running(strategy: Strategy = Strategy.ONE_FOR_ONE, intensity: int | None = 10, **terms: Any) -> Fleet:
    """Root, a supervisor with a, b and c, and another one with x."""
    fleet = Fleet()
    for name in "st":
        fleet.spawn(name, ABOVE, Terms(), Supervision(strategy, intensity))
    for name, above in zip("abcx", "ssst", strict=True):
        fleet.spawn(name, above, Terms(**terms))
    fleet.pass_time(0.0)
    return fleet


def lives(fleet: Fleet, names: str = "abcxst") -> dict[str, int]:
    return {name: fleet.records[name].incarnation for name in names if name in fleet.processes}


def test_one_for_one_leaves_siblings_alone() -> None:
    fleet = running()
    fleet.end("b", ExitClass.SIGNAL, -9)
    assert lives(fleet, "abc") == {"a": 1, "c": 1}
    fleet.pass_time(0.1)
    assert lives(fleet, "abc") == {"a": 1, "b": 2, "c": 1}


def test_rest_for_one_restarts_the_second_and_the_third_of_three() -> None:
    fleet = running(Strategy.REST_FOR_ONE)
    fleet.end("b", ExitClass.ERROR, 1)
    assert lives(fleet) == {"a": 1, "x": 1, "s": 1, "t": 1}
    fleet.pass_time(0.1)
    assert lives(fleet) == {"a": 1, "b": 2, "c": 2, "x": 1, "s": 1, "t": 1}
    assert fleet.records["c"].consecutive == 0


def test_one_for_all_restarts_all_siblings_and_nobody_of_another_supervisor() -> None:
    fleet = running(Strategy.ONE_FOR_ALL)
    fleet.end("b", ExitClass.ERROR, 1)
    fleet.pass_time(0.1)
    assert lives(fleet) == {"a": 2, "b": 2, "c": 2, "x": 1, "s": 1, "t": 1}


def test_passing_the_intensity_takes_the_supervisor_down_and_its_own_policy_brings_it_back() -> None:
    fleet = running(intensity=2)
    for name in "ab":
        fleet.end(name, ExitClass.ERROR, 1)
    fleet.pass_time(0.1)
    assert lives(fleet) == {"a": 2, "b": 2, "c": 1, "x": 1, "s": 1, "t": 1}
    fleet.end("c", ExitClass.ERROR, 1)
    assert lives(fleet) == {"x": 1, "t": 1}
    assert (fleet.records["s"].state, fleet.records["s"].consecutive) == (State.BACKOFF, 1)
    fleet.pass_time(0.1)
    assert lives(fleet) == {"a": 3, "b": 3, "c": 2, "x": 1, "s": 2, "t": 1}


def test_an_endless_crasher_gets_five_restarts_over_pids_and_over_kernels_that_die() -> None:
    fleet, started = running(intensity=None), 0
    for crash in range(40):
        fleet.pass_time(30.0)
        if crash % 3 == 1:
            fleet.crash_and_boot()
            fleet.pass_time(0.0)
        if "a" in fleet.processes:
            started += 1
            fleet.end("a", ExitClass.SIGNAL, -11)
    assert started == 1 + 5
    assert str(fleet.records["a"]) == "failed(max_restarts)"


def test_nothing_brings_back_who_is_in_quarantine() -> None:
    fleet = running(Strategy.ONE_FOR_ALL, policy=ALWAYS)
    fleet.end("a", ExitClass.POLICY)
    fleet.end("b", ExitClass.ERROR, 1)
    fleet.pass_time(1.0)
    fleet.crash_and_boot()
    fleet.restart("s")
    fleet.pass_time(100.0)
    assert set(lives(fleet)) == set("bcxst")
    fleet.release("a")
    fleet.pass_time(100.0)
    assert "a" not in fleet.processes
    fleet.start("a")
    fleet.pass_time(0.0)
    assert fleet.records["a"].incarnation == 2
