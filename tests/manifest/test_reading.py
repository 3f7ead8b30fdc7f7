"""A manifest is read in every accepted spelling, and every mistake is told at once with file, line, key and hint."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os import Agency, AgentManifest, AgentRole, IpcScope, ManifestError, ResponseMode
from agent_os.manifest import reading
from agent_os.manifest.problems import Problem
from agent_os.manifest.reading import ALIASES, ELSEWHERE_CALLED, RESERVED

HEAD = 'name = "a"\nrole = "worker"\n'
SERVICE = 'name = "a"\nrole = "service"\n'


def problems(text: str, file: str = "a.agent.toml") -> list[Problem]:
    with pytest.raises(ManifestError) as caught:
        AgentManifest.from_toml(text, file)
    return caught.value.problems


def only(text: str) -> Problem:
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def test_every_problem_is_told_at_once_with_its_place() -> None:
    text = """name = "a b"
role = "service"
before = ["x"]
[health]
max_restart = 5
restart_policy = "on-failur"
success_threshold = 0
[resources]
max_memory_mb = -1
[supervision]
strategy = "pool"
children = ["c"]
[interface]
protocol = "grpc"
[[mounts]]
path = "/a"
source = "/b"
[[mounts]]
pth = "/x"
"""
    found = problems(text)
    assert [(one.line, one.key) for one in found] == [
        (1, "name"),
        (3, "before"),
        (5, "health.max_restart"),
        (6, "health.restart_policy"),
        (7, "health.success_threshold"),
        (9, "resources.max_memory_mb"),
        (11, "supervision.strategy"),
        (12, "supervision.children"),
        (14, "interface.protocol"),
        (18, "mounts.1.path"),
        (19, "mounts.1.pth"),
    ]
    assert {one.file for one in found} == {"a.agent.toml"}
    told = str(found[2])
    assert told == "a.agent.toml:5: health.max_restart: `max_restart` unknown, did you mean `max_restarts`?"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('command = ["sleep", "1"]', "say `argv` in [program]"),
        ('depends_on = ["db"]', "say `requires` in [dependencies]"),
        ('restart = "always"', "say `restart_policy` in [health]"),
    ],
)
def test_words_of_other_tools_are_answered_with_ours(line: str, hint: str) -> None:
    assert only(f"{HEAD}\n{line}\n").hint == hint


@pytest.mark.parametrize("key", ["name", "role"])
def test_a_missing_name_or_role_is_named(key: str) -> None:
    text = "\n".join(line for line in HEAD.splitlines() if not line.startswith(key))
    assert only(text).key == key
    assert "missing" in only(text).message


def test_a_key_in_the_wrong_table_is_told_where_it_belongs() -> None:
    assert only(f"{HEAD}max_restarts = 1\n").hint == "it belongs in [health]"
    assert only(f'{HEAD}[program]\ntools_deny = ["x"]\n').hint == "it belongs at the top"


@pytest.mark.parametrize("key", sorted(RESERVED))
@pytest.mark.parametrize("table", ["", "[lifecycle]\n", "[dependencies]\n", "[supervision]\n"])
def test_what_is_reserved_is_refused_and_never_ignored(key: str, table: str) -> None:
    found = only(f"{HEAD}{table}{key} = 1\n")
    assert found.key.endswith(key)
    assert found.message == f"`{key}` is not supported yet"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[supervision]\nstrategy = "pool"', "pool"),
        ('[interface]\nprotocol = "Grpc"', "grpc"),
        ('[program]\nruntime = "wasm"', "wasm"),
    ],
)
def test_a_value_of_later_is_refused_by_its_name(text: str, word: str) -> None:
    assert only(HEAD + text).message == f"`{word}` is not supported yet"


def test_an_instance_of_a_template_is_refused() -> None:
    assert "not supported yet" in only('name = "a@1"\nrole = "worker"').message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('name = ""\nrole = "worker"', "name"),
        ('name = "A"\nrole = "worker"', "name"),
        (f'name = "{"a" * 64}"\nrole = "worker"', "name"),
        ('name = "a"\nrole = "root"', "role"),
        ('name = "a"\nrole = "wroker"', "role"),
        (f"{HEAD}schema = 2", "schema"),
        (f"{HEAD}tools = 1", "tools"),
        (f'{HEAD}version = "1"', "version"),
        (f'{SERVICE}[agency]\nallowed_roles = ["supervisor"]', "agency.allowed_roles.0"),
        (f'{SERVICE}[agency]\nallowed_roles = ["worker", "root"]', "agency.allowed_roles.1"),
        (f"{HEAD}[agency]\nmax_children = 3", "agency.max_children"),
        (f'{HEAD}agency = "rolle"', "agency"),
        (f"{HEAD}agency = 3", "agency"),
        (f"{HEAD}[budget]\nusd = -0.5", "budget.usd"),
        (f'{HEAD}[health]\ntimeout_secs = "soon"', "health.timeout_secs"),
        (f"{HEAD}labels = {{ a = 1 }}", "labels.a"),
        (f"{HEAD}health = 3", "health"),
        (f"{HEAD}[mounts]\npath = 1", "mounts"),
        (f'{HEAD}[dependencies]\nrequires = ["b", "A B"]', "dependencies.requires.1"),
        (f'{HEAD}[dependencies]\nafter = ["a"]', "dependencies.after.0"),
        (f'{HEAD}[lifecycle]\nactivation = "on_schedule"', "lifecycle.activation"),
        (f'{HEAD}[lifecycle]\nschedule = "0 6 * * *"', "lifecycle.schedule"),
        (f'{HEAD}cron = "61 * * * *"', "cron"),
        (f'{HEAD}cron = "{"0," * 200}0 * * * *"', "cron"),
        (f'{HEAD}[lifecycle]\ntimezone = "Middle/Earth"', "lifecycle.timezone"),
        (f'{HEAD}[program]\nargv = ["x"]\nentry = "m:f"', "program"),
        (f'{HEAD}[program]\nruntime = "python"', "program.runtime"),
        (f'{HEAD}[capabilities]\nipc_scope = "all"\nipc_peers = ["b"]', "capabilities.ipc_peers"),
        (f"{HEAD}[health.backoff]\nbase_ms = 10\ncap_ms = 5", "health.backoff.cap_ms"),
        (f'{HEAD}[[mounts]]\npath = "/a"', "mounts.0.source"),
        (f'{HEAD}[[mounts]]\npath = "/a"\nsource = "rw:/colon"', "mounts.0.source"),
        (f'{HEAD}base_role = "root"', "base_role"),
    ],
)
def test_a_mistake_names_its_key(text: str, key: str) -> None:
    found = only(text)
    assert found.key == key
    assert 1 <= found.line <= text.count("\n") + 1
    assert found.message


def test_a_supervisor_with_children_needs_agency() -> None:
    text = 'name = "a"\nrole = "supervisor"\n[supervision]\nchildren = ["b"]\n'
    assert only(text).hint == 'agency = "role"'
    assert AgentManifest.from_toml(f'agency = "role"\n{text}').supervision.children == ["b"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('name = "a"\nrole = "worker"', '[agent]\nname = "a"\nrole = "worker"'),
        (f'{HEAD}tools = ["x"]', f'{HEAD}[capabilities]\ntools = ["x"]'),
        (f'{HEAD}topics_publish = ["x"]', f'{HEAD}[capabilities]\ntopicsPublish = ["x"]'),
        (f'{HEAD}filesystem_access = ["x"]', f'{HEAD}[capabilities]\nfilesystem_access = ["x"]'),
        (
            f"{HEAD}[health]\ncheck_interval_secs = 7\ntimeout_secs = 2",
            f'{HEAD}[health]\ncheck_interval = "7s"\ntimeout = 2',
        ),
        (f"{HEAD}[health]\nmax_restarts = 7", f"{HEAD}[health]\nmaxRestarts = 7"),
        (f'{HEAD}[health]\nrestart_policy = "on_failure"', f'{HEAD}[health]\nrestart_policy = "OnFailure"'),
        (f"{HEAD}[resources]\nmax_memory_mb = 2048", f'{HEAD}[resources]\nmax_memory_mb = "2GiB"'),
        (f'{HEAD}[program]\nmodel = "p/m"\ngoal = "g"', f'{HEAD}goal = "g"\n[model]\nname = "p/m"'),
        (
            f'{HEAD}[lifecycle]\nactivation = "on_schedule"\nschedule = "0 6 * * *"',
            f'{HEAD}cron = "0 6 * * *"',
        ),
        (
            f"{HEAD}[budget]\ntool_calls = 1\nmessages = 2\ntokens = 3\nusd = 4",
            f"{HEAD}[resources.budget]\nmax_tool_calls = 1\nmax_messages = 2\nmax_tokens = 3\nmax_cost_usd = 4",
        ),
        (f"{HEAD}[lifecycle]\ngrace_secs = 3", f"{HEAD}[lifecycle]\nstop_grace_s = 3"),
        (f'{HEAD}[health]\nwatchdog_secs = "off"', f"{HEAD}[health]\nwatchdog_secs = 0\nmax_repeat_calls = 0"),
        (f'{HEAD}[capabilities]\nipc_scope = "peers"\nipc_peers = ["b"]', f'{HEAD}[capabilities]\nipc_peers = ["b"]'),
        (
            f'{HEAD}[capabilities]\nipc_scope = "peers"\nipc_peers = ["b"]',
            f'{HEAD}[capabilities]\nipc_scope = {{ Restricted = ["b"] }}',
        ),
        (f'{HEAD}[capabilities]\nipc_scope = "parent"', f'{HEAD}[capabilities]\nipc_scope = "ParentOnly"'),
        (f'{HEAD}[interface]\nresponse_mode = "topic:e"', f'{HEAD}[interface]\nresponse_mode = {{ Topic = "e" }}'),
        ('name = "a"\nrole = "custom(x)"', 'name = "a"\nrole = "custom:x"'),
        ('name = "a"\nrole = "custom(x)"', 'name = "a"\n[role]\nCustom = "x"'),
        (
            f"{HEAD}[resources]\nmax_memory_mb = 64\nmax_cpu_secs = 1.5\n[budget]\ntool_calls = 3",
            f"{HEAD}[capabilities.resource_limits]\nmax_memory_bytes = 67108864\nmax_cpu_time_ms = 1500\n"
            "max_tool_calls = 3",
        ),
    ],
)
def test_spellings_that_mean_the_same_read_the_same(one: str, other: str) -> None:
    assert AgentManifest.from_toml(one) == AgentManifest.from_toml(other)


def test_every_alias_leads_to_a_key() -> None:
    keys = dict(reading._flat(AgentManifest, ()))  # pyright: ignore
    assert not {target for target in (*ALIASES.values(), *ELSEWHERE_CALLED.values()) if target not in keys}


def test_the_same_key_twice_may_say_the_same_and_nothing_else() -> None:
    twice = f"{HEAD}[health]\ntimeout = 7\ntimeout_secs = "
    assert AgentManifest.from_toml(f'{twice}"7s"').health.timeout_secs == 7
    found = only(f"{twice}8")
    assert "given twice with different values" in found.message
    assert found.key == "health.timeout_secs"


def test_of_two_limits_the_tighter_one_is_read() -> None:
    seed = "[capabilities.resource_limits]\nmax_memory_bytes = 268435456\n[resources]\nmax_memory_mb = 512\n"
    assert AgentManifest.from_toml(HEAD + seed).resources.max_memory_mb == 256
    seed = "[capabilities.resource_limits]\nmax_memory_bytes = 1073741824\n"
    assert AgentManifest.from_toml(HEAD + seed).resources.max_memory_mb == 1024


@pytest.mark.parametrize(("role", "children"), [("supervisor", 64), ("service", 16), ("custom(x)", 0)])
def test_a_table_of_agency_takes_the_roles_number_of_children(role: str, children: int) -> None:
    one = AgentManifest.from_toml(f'name = "a"\nrole = "{role}"\n[agency]\nchildren = [4, 5]\n').agency
    assert one == Agency(max_children=children)
    assert one.children == []


def test_no_agency_is_none_and_role_is_the_preset() -> None:
    assert AgentManifest.from_toml(SERVICE).agency == Agency.none()
    assert AgentManifest.from_toml(f'{SERVICE}agency = "none"').agency == Agency.none()
    assert AgentManifest.from_toml(f'{SERVICE}agency = "role"').agency == Agency.of_role(AgentRole.SERVICE)
    custom = 'name = "a"\nrole = "custom:x"\nbase_role = "service"\nagency = "role"'
    assert AgentManifest.from_toml(custom).agency.max_children == 16


def test_unlimited_children_are_a_word_in_toml_and_null_in_json() -> None:
    assert AgentManifest.from_toml(f'{SERVICE}[agency]\nmax_children = "unlimited"').agency.max_children is None
    text = '{"name": "a", "role": "Service", "agency": {"max_children": null}}'
    assert AgentManifest.from_json(text).agency.max_children is None
    assert AgentManifest.from_json(text.replace('"max_children": null', "")).agency.max_children == 16


def test_the_manifest_of_seed_4_is_read() -> None:
    one = AgentManifest.from_json(
        json.dumps(
            {
                "name": "memory-service",
                "version": "0.1.0",
                "description": "Persistent memory storage",
                "role": "Service",
                "capabilities": {
                    "can_spawn": True,
                    "can_ipc": True,
                    "can_exec_tools": True,
                    "can_network": False,
                    "ipc_scope": "All",
                    "resource_limits": {"max_memory_bytes": 1 << 28, "max_cpu_time_ms": 300000},
                },
                "agency": {"max_children": 10, "allowed_roles": ["Worker"], "children": [7]},
                "tools": ["memory_store", "memory_retrieve"],
                "topics_publish": ["memory.stored"],
                "topics_subscribe": ["memory.request"],
                "interface": {
                    "protocol": "Ipc",
                    "request_topic": "memory.request",
                    "response_mode": {"Topic": "events"},
                },
                "health": {"restart_policy": "Always"},
                "dependencies": {"requires": [], "after": ["kernel-init"]},
                "filesystem_access": ["data/memory/"],
                "labels": {"teamName": "x"},
            }
        )
    )
    assert one.agency.max_children == 10
    assert one.interface.response_mode == ResponseMode.topic("events")
    assert one.capabilities.ipc_scope == IpcScope.ALL
    assert one.labels == {"teamName": "x"}  # an author's own words keep their spelling


def test_problems_of_json_have_lines_too() -> None:
    text = '{\n  "name": "a",\n  "role": "Worker",\n  "health": {\n    "maxRestart": 5\n  }\n}'
    with pytest.raises(ManifestError) as caught:
        AgentManifest.from_json(text, "a.json")
    assert str(caught.value.problems[0]).startswith("a.json:5: health.maxRestart: `maxRestart` unknown, did you mean")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name = ", 1),
        (f"{HEAD}[health\n", 3),
        (f"{HEAD}{'a.' * 40}b = 1", 3),
        (f'{HEAD}name = "b"', 3),
    ],
)
def test_what_is_no_toml_is_told_with_its_line(text: str, line: int) -> None:
    assert only(text).line == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"name": \n"a" "b"}', 2),
        ("[1]", 1),
        ("", 1),
        ('{"name": "a",\n "name": "b", "role": "Worker"}', 2),
        ("[" * 100_000, 1),
        ('{"a":' * 50, 1),
    ],
)
def test_what_is_no_json_object_is_told_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ManifestError) as caught:
        AgentManifest.from_json(text)
    assert [one.line for one in caught.value.problems] == [line]


def test_a_manifest_has_a_size() -> None:
    assert "256 KiB" in only(f'{HEAD}description = "{"x" * (256 << 10)}"').message


def test_what_is_no_utf8_is_told_with_its_line() -> None:
    with pytest.raises(ManifestError, match=r"line 2: this is no UTF-8"):
        AgentManifest.from_toml(b'name = "a"\nrole = "\xff"')


def test_a_mapping_is_read_as_a_file_is() -> None:
    assert (
        AgentManifest.from_dict({"name": "a", "role": "Worker", "health": {"timeout": "7s"}}).health.timeout_secs == 7
    )
    with pytest.raises(ManifestError) as caught:
        AgentManifest.from_dict({"name": "a", "role": "worker", "helth": {}})
    assert (caught.value.problems[0].line, caught.value.problems[0].hint) == (0, "did you mean `health`?")


def test_files_are_loaded_and_a_misleading_name_is_odd(tmp_path: Path) -> None:
    toml, wrong, as_json = tmp_path / "a.agent.toml", tmp_path / "b.agent.toml", tmp_path / "a.json"
    toml.write_text(HEAD + '[program]\nargv = ["x"]')
    wrong.write_text(toml.read_text())
    as_json.write_text(AgentManifest.load(toml).to_json())
    assert AgentManifest.load(toml) == AgentManifest.load(str(as_json))
    assert reading.load(toml).warnings == []
    assert [one.key for one in reading.load(wrong).warnings] == ["name"]


def test_the_example_of_the_documentation_is_a_manifest() -> None:
    page = (Path(__file__).parents[2] / "docs" / "manifests.md").read_text(encoding="utf-8")
    read = reading.from_toml(page.partition("```toml\n")[2].partition("```")[0])
    assert read.manifest.name == "researcher"
    assert read.warnings == []


def test_drop_ins_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="No such file"):
        AgentManifest.load(tmp_path / "a.agent.toml")
    (tmp_path / "a.agent.toml").write_text(HEAD)
    (tmp_path / "a.agent.d").mkdir()
    with pytest.raises(ManifestError, match="not supported yet"):
        AgentManifest.load(tmp_path / "a.agent.toml")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[capabilities]\ncan_network = true", "capabilities.can_network"),
        ('tools = ["x"]\n[capabilities]\ncan_exec_tools = false', "capabilities.can_exec_tools"),
        ("[resources]\nmax_concurrent_requests = 4", "resources.max_concurrent_requests"),
        ('base_role = "service"', "base_role"),
        ('[program.env]\nAPI_KEY = "x"', "program.env.API_KEY"),
        ('tools = ["x"]\ntools_deny = ["x"]', "tools.0"),
        ('[interface]\nrequest_topic = "x"', "interface.request_topic"),
        ('[interface]\nresponse_mode = "topic:x"', "interface.response_mode"),
        ('[capabilities]\nmodels = ["p/m"]', "budget.usd"),
    ],
)
def test_what_is_odd_is_told_and_does_not_hinder(text: str, key: str) -> None:
    program = "" if "[program" in text else '\n[program]\nargv = ["x"]'
    found = reading.from_toml(f"{HEAD}{text}{program}", "a.agent.toml").warnings
    keys = [one.key for one in found if one.key != "program"]
    assert keys == [key]


@pytest.mark.parametrize(
    "value",
    [
        f"0x{'f' * 10000}",
        "9" * 10000,
        f"-0x{'f' * 9000}",
        f"1{'0' * 400}",
        "1e400",
        "nan",
        "1979-05-27",
        f'"{"9" * 400}s"',
    ],
)
@pytest.mark.parametrize(
    "key", ["schema", "budget.usd", "budget.tokens", "health.timeout", "health.success_exit_codes"]
)
def test_monstrous_numbers_are_refused_in_words(key: str, value: str) -> None:
    assert problems(f"{HEAD}{key} = {value}\n\n")[0].line in (0, 3)  # `tomllib` does not say where digits are too many


def test_a_flood_of_mistakes_is_told_without_delay() -> None:
    text = HEAD + "".join(f"max_restart{number} = 1\n" for number in range(8000))
    begun = time.process_time()
    found = problems(text)
    assert time.process_time() - begun < 5
    assert len(found) == 8000
    assert found[0].hint


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
_WORDS = sorted(
    {word for path in ALIASES for word in path} | {"name", "role", "health", "agency", "mounts", "ipcPeers"}
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=6), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(_WORDS), _TREES, max_size=8))
def test_any_tree_is_a_manifest_or_a_manifest_error(tree: dict[str, object]) -> None:
    with suppress(ManifestError):
        AgentManifest.from_dict({"name": "a", "role": "service", **tree})


def test_what_is_no_file_of_that_size_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A stranger's folder may hold a pipe, or a link to a device."""
    for name, make in (("pipe", os.mkfifo), ("zero", lambda file: os.symlink("/dev/zero", file)), ("dir", os.mkdir)):
        file = tmp_path / f"{name}.agent.toml"
        make(file)
        with pytest.raises(ManifestError, match=r"is no file|is a directory|Is a directory"):
            reading.load(file)
    with (tmp_path / "large.agent.toml").open("wb") as large:
        large.truncate(1 << 40)
    with pytest.raises(ManifestError, match="at most 256 KiB"):
        reading.load(tmp_path / "large.agent.toml")
