"""The policy in force: loaded at boot, renewed while agents run, never replaced by what cannot be understood."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Entry, Kind, Verdict
from agent_os.abi.errors import ECONFLICT, EINVAL, ENOENT, EPOLICY, EROFS
from agent_os.abi.syscalls import ApplyRules, List, Read, Rules, Status, Watch
from agent_os.client.wire import Client
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.boot import boot
from agent_os.kernel.journal import Journal
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.plan import Order
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.workspace.changes import Change
from kernel.serving import RESERVE, Caller, serving, until

HEAD = 'version = 1\ndefault = "capability"\n'
NOTE = "mem:/mem/working/note:read,write"
BROKEN = HEAD + 'colour = "red"\n'


def rule(effect: str = "forbid", what: str = NOTE, **more: str) -> str:
    keys = "".join(f"{key} = {value!r}\n" for key, value in more.items())
    return f'[[rule]]\nid = "the-rule"\neffect = "{effect}"\nwhat = ["{what}"]\n{keys}'


def written(home: Path, text: str) -> Path:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "policy.toml").write_text(text)
    return home


def told(kernel: Kernel, kind: Kind) -> list[tuple[Entry, dict[str, Any]]]:
    return [(entry, decode_any(body or b"\x80")) for entry, body in kernel.journal.scan() if entry.kind == kind]


@asynccontextmanager
async def booted(home: Path, organisation: Path) -> AsyncGenerator[Kernel]:
    home.mkdir(mode=0o700, exist_ok=True)
    store = SqliteStore(home / "journal.db", reserve=RESERVE)
    kernel = await boot(store=store, home=home, agents=False, organisation=organisation)
    try:
        yield kernel
    finally:
        await kernel.close()
        store.close()


def with_kernel(home: Path, body: Callable[[Kernel, Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(home) as (kernel, client):
            await body(kernel, client)

    asyncio.run(run())


async def sent(client: Client, text: str | None, *, back: bool = False) -> dict[str, Any]:
    stream = client.stream(ApplyRules(back=back))
    if text is not None:
        await stream.send(text.encode())
    stream.end()
    return await stream.result()


# Boot.


def test_the_policy_of_a_home_is_in_force_from_the_first_moment_and_on_the_record(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        policy = kernel.authority.policies.current.policy
        [(entry, body)] = told(kernel, Kind.POLICY_LOAD)
        assert (entry.policy_digest, body["by"], body["mode"]) == (policy.digest, "boot", "enforce")
        assert [(one["file"], one["layer"], one["rules"]) for one in body["files"]] == [
            (str(tmp_path / "home/policy.toml"), "operator", 1)
        ]
        assert kernel.journal.policy_digest == policy.digest
        with pytest.raises(EPOLICY) as refused:
            await Caller(kernel, "anna").write("/mem/working/note", "x")
        assert refused.value.detail["where"] == f"{tmp_path}/home/policy.toml:4"

    with_kernel(written(tmp_path / "home", f'{HEAD}mode = "enforce"\n{rule()}'), test)


def test_a_home_without_a_policy_has_an_empty_one_and_says_so(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        [(_, body)] = told(kernel, Kind.POLICY_LOAD)
        assert body["files"] == []
        await Caller(kernel, "anna").write("/mem/working/note", "x")

    with_kernel(tmp_path / "home", test)


def test_a_kernel_does_not_start_on_a_broken_policy_and_names_file_and_line(tmp_path: Path) -> None:
    home = written(tmp_path / "home", BROKEN)
    store = SqliteStore(home / "journal.db", reserve=RESERVE)
    with pytest.raises(EINVAL, match=rf"{home}/policy.toml:3: .*'colour'"):
        asyncio.run(boot(store=store, home=home))
    found = [(Kind(entry.kind), decode_any(body or b"\x80")) for entry, body in Journal.open(store, home=home).scan()]
    [error] = [body for kind, body in found if kind is Kind.POLICY_ERROR]
    assert error["problems"][0]["line"] == 3
    assert Kind.BOOT not in [kind for kind, _ in found]


def test_an_organisations_rules_stand_above_the_operators(tmp_path: Path) -> None:
    organisation = tmp_path / "organisation.toml"
    organisation.write_text(f'{HEAD}mode = "enforce"\n{rule()}')
    home = written(tmp_path / "home", f'{HEAD}mode = "enforce"\n{rule("allow")}')

    async def test() -> None:
        async with booted(home, organisation) as kernel:
            with pytest.raises(EPOLICY) as refused:
                await Caller(kernel, "anna").write("/mem/working/note", "x")
            assert refused.value.detail["layer"] == "organisation"
            with pytest.raises(EINVAL, match="milder than"):
                await kernel.governing.apply(f'{HEAD}mode = "shadow"\n'.encode(), "test")

    asyncio.run(test())


# Changes.


def test_of_changes_that_replace_the_same_rules_one_is_made_and_a_file_written_just_now_counts(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        home = tmp_path / "home"

        def in_force() -> str:
            return kernel.authority.policies.current.policy.digest.hex()

        def applied(name: str, replaces: str) -> Awaitable[Any]:
            return kernel.governing.apply((HEAD + rule().replace("the-rule", name)).encode(), "test", replaces)

        names = [f"by-{letter}" for letter in "abcdefgh"]
        ended = await asyncio.gather(*[applied(name, in_force()) for name in names], return_exceptions=True)
        assert [one.code for one in ended if isinstance(one, ECONFLICT)] == ["policy.changed"] * 7
        text = (home / "policy.toml").read_text()
        [winner] = [name for name, one in zip(names, ended, strict=True) if not isinstance(one, Exception)]
        assert [name for name in names if name in text] == [winner]
        assert len(told(kernel, Kind.POLICY_LOAD)) == 2  # with the one at boot
        read = in_force()
        written(home, HEAD + rule().replace("the-rule", "by-hand"))
        with pytest.raises(ECONFLICT):
            await applied("by-late", read)
        assert "by-hand" in (home / "policy.toml").read_text()
        await applied("by-late", in_force())
        assert "by-late" in (home / "policy.toml").read_text()

    with_kernel(tmp_path / "home", test)


@pytest.mark.long
def test_a_changed_file_is_noticed_and_a_broken_one_leaves_the_old_in_force(tmp_path: Path) -> None:
    home = tmp_path / "home"

    async def test(kernel: Kernel, client: Client) -> None:
        anna, current = Caller(kernel, "anna"), kernel.authority.policies.current
        await anna.write("/mem/working/note", "one")
        written(home, f'{HEAD}mode = "enforce"\n{rule()}')
        await until(lambda: current.version == 2)
        with pytest.raises(EPOLICY):
            await anna.write("/mem/working/note", "two")
        written(home, BROKEN)
        await until(lambda: current.alarm is not None)
        with pytest.raises(EPOLICY):
            await anna.write("/mem/working/note", "three")
        [(_, error)] = told(kernel, Kind.POLICY_ERROR)
        assert [(one["file"], one["line"]) for one in error["problems"]] == [(f"{home}/policy.toml", 3)]
        assert f"{home}/policy.toml:3" in (await client.call(Status()))["policy"]["alarm"]
        (home / "policy.toml").unlink()
        await until(lambda: current.version == 3)
        assert current.alarm is None
        await anna.write("/mem/working/note", "four")

    with_kernel(home, test)


def test_an_unchanged_text_is_no_new_policy(tmp_path: Path) -> None:
    home = written(tmp_path / "home", HEAD + rule())

    async def test(kernel: Kernel, client: Client) -> None:
        assert (await sent(client, HEAD + rule()))["changed"] is False
        assert (await sent(client, None))["version"] == 1
        assert len(told(kernel, Kind.POLICY_LOAD)) == 1

    with_kernel(home, test)


def test_applied_rules_are_in_force_with_the_answer_and_can_be_taken_back(tmp_path: Path) -> None:
    home = tmp_path / "home"

    async def test(kernel: Kernel, client: Client) -> None:
        anna = Caller(kernel, "anna")
        with pytest.raises(ENOENT):
            await sent(client, None, back=True)
        await sent(client, f'{HEAD}mode = "shadow"\n')
        answer = await sent(client, f'{HEAD}mode = "enforce"\n{rule()}')
        assert (answer["changed"], answer["version"], answer["mode"]) == (True, 3, "enforce")
        with pytest.raises(EPOLICY):
            await anna.write("/mem/working/note", "x")
        with pytest.raises(EINVAL) as refused:
            await sent(client, BROKEN)
        assert refused.value.detail["problems"][0]["line"] == 3
        assert (home / "policy.toml").read_text() == f'{HEAD}mode = "enforce"\n{rule()}'
        assert (await sent(client, None, back=True))["version"] == 4
        await anna.write("/mem/working/note", "y")
        await sent(client, None, back=True)
        with pytest.raises(EPOLICY):
            await anna.write("/mem/working/note", "z")
        loads = told(kernel, Kind.POLICY_LOAD)
        assert [body["by"].partition(":")[0] for _, body in loads] == ["boot", *["local"] * 4]
        assert len({entry.policy_digest for entry, _ in loads}) == 3

    with_kernel(home, test)


def test_after_a_broken_change_back_means_what_is_in_force(tmp_path: Path) -> None:
    good = f'{HEAD}mode = "enforce"\n{rule()}'
    home = written(tmp_path / "home", good)

    async def test(kernel: Kernel, client: Client) -> None:
        written(home, BROKEN)
        with pytest.raises(EINVAL):
            await sent(client, None)
        await sent(client, None, back=True)
        assert (home / "policy.toml").read_text() == good
        assert kernel.governing.alarm is None

    with_kernel(home, test)


def test_a_parked_call_is_decided_again_by_the_new_rules(tmp_path: Path) -> None:
    home = written(tmp_path / "home", f'{HEAD}mode = "enforce"\n{rule("ask")}')

    async def test(kernel: Kernel, client: Client) -> None:
        anna, bob = Caller(kernel, "anna"), Caller(kernel, "bob")
        calls = [asyncio.create_task(one.write("/mem/working/note", "x")) for one in (anna, bob)]
        await until(lambda: len(kernel.approvals.pending()) == 2)
        await sent(client, f'{HEAD}mode = "enforce"\n{rule(agents=["anna"])}')
        with pytest.raises(EPOLICY):
            await calls[0]
        assert (await calls[1])["version"] == 1
        assert kernel.approvals.pending() == []

    with_kernel(home, test)


def test_a_watch_that_is_forbidden_now_ends_and_others_go_on(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        anna = Caller(kernel, "anna")
        for path in ("/mem/working/note", "/mem/working/other"):
            await anna.write(path, "x")
            await anna.syscall(Watch(path=path))
        await sent(client, f'{HEAD}mode = "enforce"\n{rule()}')
        assert list(anna.agent.files.watches.all()) == ["/mem/working/other"]
        [(entry, body)] = [one for one in told(kernel, Kind.CHANGE) if not one[0].op]  # but for who asked for that
        assert (entry.agent, body["why"]) == ("default/anna", "a rule forbids it now")

    with_kernel(tmp_path / "home", test)


def test_a_child_is_bound_by_what_binds_its_parent_whatever_the_project_says_now(tmp_path: Path) -> None:
    rules = tmp_path / ".agents/policy.toml"
    rules.parent.mkdir()
    rules.write_text(HEAD + rule())

    async def test(kernel: Kernel, client: Client) -> None:
        parent = kernel.table.admit("parent", "native")
        await kernel.governing.begin(parent, tmp_path, again=False)
        rules.write_text(HEAD)  # as a parent with a bind workspace can
        child = kernel.table.admit("child", "native", parent=parent.id)
        await kernel.governing.begin(child, tmp_path, again=False)
        policies = kernel.authority.policies
        assert policies.own(child.id) == policies.own(parent.id) != ()
        assert kernel.store.get("policies", child.id) == kernel.store.get("policies", parent.id)
        assert policies.of("default/stranger") is policies.current.policy

    with_kernel(tmp_path / "home", test)


def test_what_is_forbidden_to_an_agent_is_hidden_from_its_child_and_never_committed_for_it(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "key").write_text("CANARY")
    home = written(tmp_path / "home", HEAD + rule(what="file:/work/key:read", agents=["boss"]))

    async def test(kernel: Kernel, client: Client) -> None:
        order = Order((), project, project)
        boss, stranger = kernel.table.admit("boss", "native"), kernel.table.admit("stranger", "native")
        child = kernel.table.admit("child", "native", parent=boss.id)
        covers = {one.name: kernel.governing.covers(one.id, order) for one in (boss, child, stranger)}
        hidden = {name: [one.path for one in found] for name, found in covers.items()}
        assert hidden == {"boss": [f"{project}/key"], "child": [f"{project}/key"], "stranger": []}
        judged = {name: kernel.governing.judge(name, project)(Change("key", "modify", "file")) for name in hidden}
        assert [name for name, change in judged.items() if change.refused] == ["boss", "child"]

    with_kernel(home, test)


@pytest.mark.parametrize(
    ("what", "change", "refused", "protected"),
    [
        ("file:/work/config/prod.key:write", Change("conf.d/prod.key", "modify", "file"), True, False),
        ("file:/work/config/prod.key:read", Change("conf.d/prod.key", "modify", "file"), True, False),
        ("file:/work/config/**:delete", Change("conf.d/prod.key", "delete", "file"), True, False),
        ("file:/work/config/**:write", Change("conf.d/new", "add", "file"), True, False),
        ("file:/work/config/prod.key:write", Change("conf.d/other", "modify", "file"), False, False),
        ("file:/work/prod.cfg:write", Change("conf.d/real", "modify", "file"), True, False),  # a link to a file
        ("file:/work/later/**:write", Change("not/yet/x", "add", "file"), True, False),  # to what is not there
        ("file:/work/other:write", Change("conf.d/guide", "modify", "file"), False, True),  # CLAUDE.md
        ("file:/work/caf\u00e9:write", Change("cafe\u0301", "add", "file"), True, False),
        ("file:/work/ci/run/**:write", Change("ci/run", "symlink", "symlink"), False, True),
        ("file:/work/ci/run/**:write", Change("ci", "symlink", "symlink"), False, True),
        ("file:/work/ci/run/**:write", Change("ci", "delete", "symlink"), False, False),
        ("file:/work/ci/run/**:write", Change("docs", "symlink", "symlink"), False, False),
        ("file:/work/**/.env:read", Change("docs", "symlink", "symlink"), False, False),
    ],
)
@pytest.mark.parametrize("effect", ["forbid", "ask"])
def test_what_is_written_to_a_project_is_judged_by_every_name_that_it_has_there(
    tmp_path: Path, what: str, change: Change, refused: bool, protected: bool, effect: str
) -> None:
    (tmp_path / "project/conf.d").mkdir(parents=True)
    links = {"config": "conf.d", "prod.cfg": "conf.d/real", "later": "not/yet", "CLAUDE.md": "conf.d/guide"}
    for name, target in links.items():
        (tmp_path / "project" / name).symlink_to(target)
    home = written(tmp_path / "home", HEAD + rule(effect, what))

    async def test(kernel: Kernel, client: Client) -> None:
        judged = kernel.governing.judge("anna", tmp_path / "project")(change)
        asks = effect == "ask" and refused and ":read" not in what  # who commits does not read
        assert (bool(judged.refused), judged.protected) == (refused and effect == "forbid", protected or asks)

    with_kernel(home, test)


def test_a_change_of_what_tools_read_through_a_link_is_protected_without_any_rule(tmp_path: Path) -> None:
    (tmp_path / "project/docs").mkdir(parents=True)
    (tmp_path / "project/CLAUDE.md").symlink_to("docs/guide")

    async def test(kernel: Kernel, client: Client) -> None:
        judge = kernel.governing.judge("anna", tmp_path / "project")
        judged = [judge(Change(path, "modify", "file")) for path in ("docs/guide", "docs/other")]
        assert [change.protected for change in judged] == [True, False]

    with_kernel(tmp_path / "home", test)


def test_what_a_child_has_open_ends_when_a_rule_about_its_parent_forbids_it(tmp_path: Path) -> None:
    async def test(kernel: Kernel, client: Client) -> None:
        child = Caller(kernel, "child", Caller(kernel, "boss"))
        await child.write("/mem/working/note", "x")
        await child.syscall(Watch(path="/mem/working/note"))
        await sent(client, f'{HEAD}mode = "enforce"\n{rule(agents=["boss"])}')
        assert list(child.agent.files.watches.all()) == []
        assert '"the-rule"' in (await child.syscall(Read(path="/policy/rules.json")))["data"]

    with_kernel(tmp_path / "home", test)


# Views, modes.


def test_an_agent_reads_the_rules_that_are_about_it_and_cannot_write_them(tmp_path: Path) -> None:
    more = rule("allow").replace("the-rule", "other") + 'agents = ["bob"]\n'
    home = written(tmp_path / "home", f'{HEAD}mode = "enforce"\n{rule()}{more}')

    async def test(kernel: Kernel, client: Client) -> None:
        anna = Caller(kernel, "anna")
        rules = (await anna.syscall(Read(path="/policy/rules.json")))["data"]
        assert '"the-rule"' in rules
        assert '"other"' not in rules
        assert (await anna.syscall(Read(path="/policy/mode")))["data"] == "enforce\n"
        names = [one["name"] for one in (await anna.syscall(List(path="/policy")))["entries"]]
        assert {"capabilities.json", "digest", "mode", "rules.json"} <= set(names)
        with pytest.raises(EROFS):
            await anna.write("/policy/rules.json", "[]")

    with_kernel(home, test)


def test_an_operator_sees_what_is_in_force_for_everybody_and_for_one(tmp_path: Path) -> None:
    home = written(tmp_path / "home", HEAD + rule(agents=["anna"]))

    async def test(kernel: Kernel, client: Client) -> None:
        Caller(kernel, "anna")
        Caller(kernel, "bob")
        found: dict[str, int] = {}
        for name in ("anna", "bob", "nobody"):
            stream = client.stream(Rules(agent=name))
            batches = [batch async for _, batch in stream]
            assert (await stream.result())["agent"] == name
            found[name] = sum(map(len, batches))
        assert found == {"anna": 1, "bob": 0, "nobody": 0}

    with_kernel(home, test)


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_the_record_of_a_call_names_rule_mode_and_policy(tmp_path: Path, mode: str) -> None:
    home = written(tmp_path / "home", f'{HEAD}mode = "{mode}"\n{rule()}')

    async def test(kernel: Kernel, client: Client) -> None:
        anna = Caller(kernel, "anna")
        try:
            await anna.write("/mem/working/note", "x")
        except EPOLICY:
            assert mode == "enforce"
        entry = [entry for entry, _ in kernel.journal.scan() if entry.agent == "default/anna"][-1]
        assert (entry.mode, entry.policy_digest) == (mode, kernel.authority.policies.current.policy.digest)
        if mode == "enforce":
            assert (entry.kind, entry.verdict, entry.step) == (Kind.DECISION, Verdict.FORBID, 3)
            assert entry.rule == "the-rule"
        else:
            assert (entry.kind, entry.verdict) == (Kind.OUTCOME, Verdict.ALLOW)
            assert entry.rule == "would forbid: the-rule"

    with_kernel(home, test)
