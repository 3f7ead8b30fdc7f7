import msgspec

from agent_os.kernel.models.sizes import Sizes


def finish(sizes: Sizes, name: str, type: str, calls: int, prompt: int = 100, growth: int = 0) -> None:
    for number in range(calls):
        sizes.sent(name, type, prompt + number * growth)
        sizes.replied(type, 10)
    sizes.finished(name, type)


def test_what_is_left_is_what_others_of_the_type_went_on_to_make():
    sizes = Sizes()
    for number, calls in enumerate((4, 6, 8)):
        finish(sizes, f"p{number}", "t", calls)
    assert sizes.remaining("new", "t", 100) == 6 * 110
    for _ in range(5):
        sizes.sent("new", "t", 100)
    assert sizes.remaining("new", "t", 100) == 2 * 110  # those of six and eight calls had one and three left


def test_prompts_that_grow_make_what_is_left_larger():
    flat, growing = Sizes(), Sizes()
    for sizes, growth in ((flat, 0), (growing, 500)):
        for number in range(5):
            finish(sizes, f"p{number}", "t", 10, growth=growth)
    assert growing.remaining("new", "t", 100) > 3 * flat.remaining("new", "t", 100)


def test_a_larger_prompt_of_the_same_type_needs_more():
    sizes = Sizes()
    finish(sizes, "p", "t", 5)
    assert sizes.remaining("a", "t", 2_000) > sizes.remaining("b", "t", 1_000)


def test_one_that_made_a_little_more_than_any_is_nearly_done_and_one_that_made_much_more_is_not():
    sizes = Sizes()
    finish(sizes, "p", "t", 10)
    for _ in range(12):
        sizes.sent("long", "t", 100)
    assert sizes.remaining("long", "t", 100) == 110
    for _ in range(40):
        sizes.sent("long", "t", 100)
    assert sizes.remaining("long", "t", 100) > sizes.remaining("new", "t", 100)


def test_while_none_has_finished_the_most_advanced_is_thought_half_done():
    sizes = Sizes()
    for _ in range(5):
        sizes.sent("first", "t", 100)
    sizes.sent("second", "t", 100)
    first, second = sizes.remaining("first", "t", 100), sizes.remaining("second", "t", 100)
    assert first == 5 * (100 + 256)
    assert second == 9 * (100 + 256)


def test_a_program_that_was_killed_says_nothing_of_its_type():
    sizes = Sizes()
    for _ in range(9):
        sizes.sent("p", "t", 100)
    sizes.finished("p", "t", whole=False)
    assert sizes.calls("t") is None
    assert sizes.remaining("new", "t", 100) == 2 * (100 + 256)  # its nine calls are forgotten too


def test_a_call_that_was_refused_was_not_made():
    sizes = Sizes()
    sizes.sent("p", "t", 100)
    sizes.taken_back("p")
    sizes.finished("p", "t")
    assert sizes.calls("t") is None


def test_output_is_reserved_as_a_hundredth_exceeds_it_once_twenty_are_known():
    sizes = Sizes()
    for output in range(1, 20):
        sizes.replied("t", output)
    assert sizes.longest_output("t", 4096) == 4096
    for output in range(20, 201):
        sizes.replied("t", output)
    assert sizes.longest_output("t", 4096) == 218  # a tenth more than 199, for 200 are known
    assert sizes.longest_output("t", 50) == 50
    assert sizes.likely_output("t", 4096) == 100


def test_what_was_learned_is_kept_over_a_restart():
    sizes = Sizes()
    for number in range(30):
        finish(sizes, f"p{number}", "t", 3 + number % 4, growth=50)
    kept = msgspec.json.decode(msgspec.json.encode(sizes.packed()))
    again = Sizes.unpacked(kept)
    assert again.remaining("new", "t", 500) == sizes.remaining("new", "t", 500)
    assert again.longest_output("t", 4096) == sizes.longest_output("t", 4096)


def test_types_that_nobody_uses_any_more_are_forgotten():
    sizes = Sizes()
    for number in range(1_500):
        sizes.replied(f"t{number}", 5)
    assert len(sizes.packed()) == 1_000
    assert "t1499" in sizes.packed()
