"""The lives of an agent, as its entries tell them: none is left out, none is counted twice."""

from typing import Any

import journals
from agent_os.abi.entries import Kind
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.supervisor.looking import lives_of

AGENT = "default/a"


def put(journal: Journal, kind: Kind, inc: int, **told: Any) -> None:
    journals.run(journal.record(Draft(AGENT, kind, inc, body=journals.encode(told))))


def lived(journal: Journal, inc: int, decision: dict[str, Any] | None = None, **ended: Any) -> None:
    put(journal, Kind.STATE, inc, event="begins")
    put(journal, Kind.SPAWN, inc, event="spawn", argv=["x"])
    put(journal, Kind.STATE, inc, event="spawned", level="S3")
    put(journal, Kind.STATE, inc, event="ready")
    put(journal, Kind.EXIT, inc, **ended, **({"decision": decision} if decision else {}))


def test_each_life_has_its_end_and_what_was_decided() -> None:
    with journals.opened(None) as journal:
        decided = {"act": "restart", "why": "error", "delay_ms": 100}
        lived(journal, 1, decided, **{"class": "error", "code": 3, "reason": "it fell"})
        put(journal, Kind.STATE, 2, event="begins")
        put(journal, Kind.SPAWN, 2, event="spawn")
        first, second = lives_of(journal, AGENT)
    assert (first["class"], first["code"], first["reason"], first["level"]) == ("error", 3, "it fell", "S3")
    assert (first["decision"], first["why"], first["delay_ms"]) == ("restart", "error", 100)
    assert first["began_ns"] <= first["ready_ns"] <= first["ended_ns"]
    assert (second["incarnation"], second["ended_ns"], second["ready_ns"]) == (2, None, None)


def test_tries_of_one_life_that_could_not_begin_are_rows_of_their_own() -> None:
    with journals.opened(None) as journal:
        for _ in range(3):
            put(journal, Kind.STATE, 1, event="begins")
            put(journal, Kind.EXIT, 1, **{"class": "error", "code": -1, "reason": "not started"})
        lived(journal, 1, **{"class": "normal", "code": 0, "reason": ""})
        lives = lives_of(journal, AGENT)
    assert [one["class"] for one in lives] == ["error"] * 3 + ["normal"]
    assert {one["incarnation"] for one in lives} == {1}


def test_an_agent_without_a_manifest_has_lives_as_well() -> None:
    with journals.opened(None) as journal:
        put(journal, Kind.SPAWN, 1, event="spawn")
        put(journal, Kind.EXIT, 1, **{"class": "normal", "code": 0, "reason": ""})
        lives = lives_of(journal, AGENT)
    assert [(one["class"], one["decision"]) for one in lives] == [("normal", None)]


def test_calls_and_bodies_that_are_no_maps_are_passed_over() -> None:
    with journals.opened(None) as journal:
        lived(journal, 1, **{"class": "normal", "code": 0, "reason": ""})
        journals.run(journal.record(journals.result(AGENT)))
        journals.run(journal.record(Draft(AGENT, Kind.STATE, 1, body=journals.encode([1]))))
        journals.run(journal.record(Draft(AGENT, Kind.STATE, 1, body=b"\xc1")))
        assert len(lives_of(journal, AGENT)) == 1
        assert lives_of(journal, "default/nobody") == []
