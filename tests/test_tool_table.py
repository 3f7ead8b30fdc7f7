"""Every built-in tool has what it must have: a capability, schemas that bound it, an effect, limits, and tests that
abuse it, by name."""

import re
from pathlib import Path
from typing import Any, cast

import pytest

from agent_os import builtin_tools
from agent_os.abi.tools import LARGEST_OUTPUT, LONGEST_TIMEOUT_S
from agent_os.drivers.store.memory import MemoryStore
from agent_os.kernel.journal import Journal
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tools.registry import Tool

HERE = Path(__file__).parent
FILES, SHELL, HTTP = "drivers/tools/test_files.py", "drivers/tools/test_shell.py", "drivers/tools/test_http.py"
BROWSER, NATIVE, KILLED = "userland/test_browser.py", "kernel/tools/test_native.py", "faults/test_each_tool_killed.py"
LINKS = f"{FILES}::test_what_a_link_leads_to_is_what_is_judged"
OUTSIDE = f"{FILES}::test_what_is_not_there_is_not_a_file_or_lies_outside_is_refused"
HOSTS = f"{BROWSER}::test_a_page_cannot_leave_its_allowed_hosts"
HANGS = f"{BROWSER}::test_a_page_that_hangs_costs_its_call_and_no_more"
KEYS = f"{NATIVE}::test_a_key_of_memory_stays_in_memory"
STRANGERS = f"{NATIVE}::test_an_agent_lists_waits_for_and_signals_its_own_children_and_no_strangers"
ABUSED: dict[str, tuple[str, ...]] = {
    "file.read": (LINKS, OUTSIDE, f"{FILES}::test_what_is_no_text_comes_as_a_blob"),
    "file.write": (f"{FILES}::test_memory_is_not_written_as_a_file", OUTSIDE),
    "file.list": (f"{FILES}::test_a_hostile_glob_is_matched_soon",),
    "file.search": (
        f"{FILES}::test_an_expression_that_explodes_elsewhere_ends_here_and_others_go_on",
        f"{FILES}::test_binary_large_and_forbidden_files_are_passed_over",
    ),
    "file.edit": (
        f"{FILES}::test_overlapping_places_are_more_than_one",
        f"{FILES}::test_a_file_that_is_too_large_is_not_edited",
    ),
    "shell.execute": (
        f"{SHELL}::test_words_are_not_read_by_any_shell",
        f"{SHELL}::test_an_option_that_runs_another_program_stays_in_the_sandbox",
        f"{SHELL}::test_a_timeout_kills_all_and_brings_back_what_there_was",
        f"{SHELL}::test_whoever_writes_without_end_is_killed",
        f"{SHELL}::test_long_and_binary_output_is_kept_as_it_was",
        "kernel/tools/test_networked.py::test_a_run_reaches_what_its_agent_may_where_it_asks_for_that_and_nothing_else",
        "faults/test_tools_killed.py::"
        "test_a_run_that_was_cut_off_is_not_made_again_and_a_person_says_what_became_of_it",
    ),
    "python.execute": (
        f"{SHELL}::test_files_lie_below_its_folder",
        f"{SHELL}::test_a_program_without_end_is_killed",
        f"{SHELL}::test_it_is_fresh_has_no_input_and_no_network",
    ),
    "http.fetch": (
        f"{HTTP}::test_a_redirect_to_where_it_may_not_go_is_refused_and_nothing_is_resolved",
        f"{HTTP}::test_a_bomb_is_unpacked_only_so_far",
        f"{HTTP}::test_a_body_without_an_end_is_cut",
        f"{HTTP}::test_a_header_that_would_be_more_than_itself_is_refused",
        f"{HTTP}::test_credentials_stay_with_their_origin",
        "kernel/tools/test_terms.py::test_a_secret_goes_with_requests_of_its_holder_to_its_host_and_nowhere_else",
        f"{KILLED}::test_what_nobody_can_tell_waits_for_a_person_and_happened_once",
    ),
    "tool.output": ("drivers/tools/test_output.py::test_another_agents_output_is_not_there",),
    "browser.navigate": (HOSTS, f"{BROWSER}::test_only_addresses_of_the_web_are_navigated_to", HANGS),
    "browser.read": (f"{BROWSER}::test_long_pages_are_cut_and_said_to_be",),
    "browser.click": (f"{BROWSER}::test_what_would_wait_for_a_person_is_refused_and_told", HOSTS),
    "browser.type": (f"{BROWSER}::test_a_page_is_read_clicked_and_typed_into",),
    "browser.screenshot": (HANGS,),
    "browser.close": (f"{BROWSER}::test_a_lost_browser_is_replaced_and_nothing_is_left_at_the_end",),
    "agent.spawn": (
        f"{NATIVE}::test_what_is_no_child_is_refused_before_anything_starts",
        f"{NATIVE}::test_spawning_needs_the_right_to_spawn_beside_the_tool",
        f"{KILLED}::test_a_child_that_a_tool_spawned_is_there_once",
    ),
    "agent.wait": (STRANGERS,),
    "agent.signal": (STRANGERS, f"{NATIVE}::test_signals_that_are_the_kernels_own_cannot_be_sent"),
    "agent.list": (STRANGERS,),
    "memory.store": (KEYS, f"{NATIVE}::test_memory_of_another_place_needs_its_own_right"),
    "memory.retrieve": (KEYS, f"{NATIVE}::test_a_long_value_is_told_in_part_and_kept_whole"),
    "memory.search": (
        "kernel/tools/test_calling.py::test_memory_is_searched_by_words_and_only_what_the_agent_may_read",
    ),
    "memory.share": (KEYS,),
}
FREE = frozenset({"manifest", "input", "value"})  # their bound is that of a whole call


@pytest.fixture(scope="module")
def tools() -> dict[str, Tool]:
    store = MemoryStore()
    kernel = Kernel(store, Journal.open(store))
    builtin_tools.install(kernel)
    return {one.spec.name: one for one in kernel.tools.registry.all()}


def test_each_has_tests_that_abuse_it(tools: dict[str, Tool]) -> None:
    assert sorted(ABUSED) == sorted(tools)
    for named in {one for tests in ABUSED.values() for one in tests}:
        file, _, test = named.partition("::")
        assert re.search(rf"^def {test}\(", (HERE / file).read_text(), re.MULTILINE), f"{named} is not there"


def test_each_has_a_capability_schemas_and_limits(tools: dict[str, Tool]) -> None:
    for name, tool in tools.items():
        spec = tool.spec
        assert spec.requires, name
        assert spec.output_schema, name
        assert spec.description.strip(), name
        assert 0 < spec.timeout_s <= LONGEST_TIMEOUT_S, name
        assert spec.output_limit <= LARGEST_OUTPUT, name
        assert spec.input_schema["additionalProperties"] is False, name
        assert _unbounded(spec.input_schema["properties"], name) == []


def test_what_nobody_can_look_at_afterwards_is_opaque(tools: dict[str, Tool]) -> None:
    """A program that was started, a page that was clicked: nobody can tell what they did."""
    opaque = {name for name, tool in tools.items() if tool.spec.effect == "opaque"}
    assert {"shell.execute", "python.execute", "browser.click", "browser.type", "http.fetch", "file.write"} <= opaque
    assert {name for name, tool in tools.items() if tool.spec.milder} == {"http.fetch", "file.write"}


def _unbounded(fields: dict[str, Any], where: str) -> list[str]:
    """Texts and lists of any length, as a caller could send."""
    found: list[str] = []
    for name, shape in fields.items():
        at, kind = f"{where}.{name}", shape.get("type")
        if name in FREE and kind in (None, "object"):
            continue
        if kind == "string" and not {"maxLength", "enum"} & shape.keys():
            found.append(at)
        if kind == "array":
            found += [] if "maxItems" in shape else [at]
            found += _unbounded({"items": cast("Any", shape["items"])}, at)
        if kind == "object" and "maxProperties" not in shape:
            found.append(at)
    return found
