from agent_os.kernel.models.waits import Urgency, Waits

LOW, NORMAL, HIGH = Urgency(3), Urgency(2), Urgency(1, due=50.0)


def test_whoever_is_waited_for_is_as_urgent_as_who_waits():
    waits = Waits()
    assert waits.urgency("b", LOW) == LOW
    waits.begin("a", "b", HIGH)
    assert waits.urgency("b", LOW) == HIGH


def test_urgency_passes_through_others():
    waits = Waits()
    waits.begin("a", "b", HIGH)
    waits.begin("b", "c", LOW)
    assert waits.urgency("c", LOW) == HIGH
    assert waits.touched("a") == {"a", "b", "c"}


def test_the_better_class_and_the_earlier_deadline_may_come_from_different_waiters():
    waits = Waits()
    waits.begin("a", "c", Urgency(1, due=90.0))
    waits.begin("b", "c", Urgency(2, due=20.0))
    assert waits.urgency("c", LOW) == Urgency(1, 20.0)


def test_it_ends_with_the_wait_and_two_waits_end_twice():
    waits = Waits()
    waits.begin("a", "b", HIGH)
    waits.begin("a", "b", HIGH)
    waits.end("a", "b")
    assert waits.urgency("b", LOW) == HIGH
    waits.end("a", "b")
    assert waits.urgency("b", LOW) == LOW
    waits.end("a", "b")  # known to be over
    assert waits.touched("a") == {"a"}


def test_a_circle_is_no_trap():
    waits = Waits()
    waits.begin("a", "b", NORMAL)
    waits.begin("b", "c", HIGH)
    waits.begin("c", "a", LOW)
    for agent, own in (("a", NORMAL), ("b", HIGH), ("c", LOW)):
        assert waits.urgency(agent, own) == HIGH


def test_somebody_who_was_prioritised_takes_those_along_that_he_waits_for():
    waits = Waits()
    waits.begin("a", "b", LOW)
    waits.changed("a", HIGH)
    waits.changed("stranger", HIGH)
    assert waits.urgency("b", LOW) == HIGH
