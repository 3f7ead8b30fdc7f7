"""Rules and real agents: what a project says binds its runs, and what is forbidden is not there to read."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import ApplyRules, Work
from agent_os.abi.syscalls import Run as Start
from agent_os.client.wire import Client
from agent_os.gateway.routes_agents import Order
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from kernel.serving import chunks, serving, until

pytestmark = pytest.mark.integration
HEAD = 'version = 1\ndefault = "capability"\n'
NO_ENV = '[[rule]]\nid = "no-env"\neffect = "forbid"\nwhat = ["file:/work/**/.env:read"]\n'
LOOK = """
cat .env sub/.env /work/.env
ln .env hard; cat hard
mv sub moved; cat moved/.env sub/.env
cp -r . /tmp/copy; find /tmp/copy -name .env -exec cat {} +
python3 -c "print(open('.env').read())"
cat /proc/self/root/work/.env /proc/self/cwd/.env
cat plain
"""
READ = """
from agent_os import agent

@agent
async def reader(ctx):
    for path in PATHS:
        try:
            print("read", path, repr(await ctx.read(path)))
        except Exception as refused:
            print("refused", path, type(refused).__name__, refused)
    return "went on"
"""

BOSS = """
import os
from agent_os import agent

@agent
async def boss(ctx):
    child = await ctx.spawn({"name": "x", "program": {"entry": "boss.py:child"}})
    print("x", (await ctx.wait(child)).result, flush=True)

@agent
async def child(ctx):
    seen = open(".env", "rb").read() if os.access(".env", os.R_OK) else b""
    try:
        await ctx.read("/work/.env")
    except Exception as refused:
        return f"{seen} {type(refused).__name__} {await ctx.read('/work/plain')}"
"""


class Run:
    """A kernel with a project, and agents run in it to their end."""

    def __init__(self, top: Path) -> None:
        self.home, self.project = top / "home", top / "project"
        (self.project / "sub").mkdir(parents=True)
        for name in (".env", "sub/.env"):
            (self.project / name).write_text("CANARY")
        (self.project / "plain").write_text("plain text")
        os.chmod(top, 0o755)
        self.kernel: Kernel
        self.client: Client

    def policy(self, text: str, *, project: bool = False) -> None:
        place = self.project / ".agents/policy.toml" if project else self.home / "policy.toml"
        place.parent.mkdir(mode=0o700, exist_ok=True)
        place.write_text(text)

    def __call__(self, body: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            async with serving(self.home) as (self.kernel, self.client):
                await body()

        asyncio.run(run())

    def order(self, **more: Any) -> dict[str, Any]:
        known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {"cwd": str(self.project), "environment": known, **more}

    async def shell(self, script: str, name: str = "guest", **more: Any) -> str:
        return await self.ran(self.order(argv=["sh", "-c", script], **more), name)

    async def reader(self, *paths: str, name: str = "reader", **more: Any) -> str:
        (self.project / "reader.py").write_text(READ.replace("PATHS", repr(paths)))
        file = str(self.project / "reader.py")
        return await self.ran(self.order(file=file, function="reader", python=sys.executable, **more), name)

    async def ran(self, order: dict[str, Any], name: str) -> str:
        """All that it wrote."""
        agent = await self.kernel.guests.start(order, name=name)
        await self.kernel.wait_for(agent)
        await until(lambda: not self.kernel.guests.busy)
        return (self.home / "logs" / f"{name}.log").read_text()

    def entries(self, agent: str, kind: Kind) -> list[tuple[Any, dict[str, Any]]]:
        found = ((entry, body) for entry, body in self.kernel.journal.scan() if entry.kind == kind)
        return [(entry, decode_any(body or b"\x80")) for entry, body in found if entry.agent == f"default/{agent}"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


# What is forbidden is not there.


@pytest.mark.parametrize("workspace", [None, "bind:."])
def test_a_forbidden_file_of_a_workspace_has_nothing_to_read_whatever_is_tried(run: Run, workspace: str | None) -> None:
    async def test() -> None:
        said = await run.shell(LOOK, workspace=workspace)
        assert "plain text" in said
        assert "CANARY" not in said
        masks = run.entries("guest", Kind.SPAWN)[0][1]["masks"]
        assert {f"{run.project}/.env", f"{run.project}/sub/.env"} <= set(masks)
        assert (run.project / ".env").read_text() == "CANARY"

    run.policy(HEAD + NO_ENV)
    run(test)


def test_what_is_forbidden_by_a_name_that_leads_through_a_link_has_nothing_to_read_either(run: Run) -> None:
    async def test() -> None:
        for name in ("config", "sub/config"):
            (run.project / name).symlink_to(run.project / "conf.d")
        (run.project / "conf.d").mkdir()
        for name in ("prod.key", "other"):
            (run.project / "conf.d" / name).write_text(f"CANARY of {name}")
        said = await run.shell("cat config/prod.key conf.d/prod.key sub/config/prod.key conf.d/other")
        assert said.count("CANARY") == 1
        assert "CANARY of other" in said

    run.policy(HEAD + NO_ENV.replace("/work/**/.env", "/work/config/prod.key"))
    run(test)


def test_without_the_rule_the_same_program_reads_it(run: Run) -> None:
    async def test() -> None:
        assert (await run.shell(LOOK)).count("CANARY") >= 6

    run(test)


def test_a_real_child_by_another_name_sees_nothing_that_is_forbidden_to_its_parent(run: Run) -> None:
    async def test() -> None:
        order = run.order(file=str(run.project / "boss.py"), function="boss", python=sys.executable)
        said = await run.ran({**order, "caps": ["agent:*:spawn"]}, "boss")
        assert said.splitlines() == ["x b'' EPOLICY b'plain text'"]
        assert f"{run.project}/.env" in run.entries("x", Kind.SPAWN)[0][1]["masks"]
        assert [entry.rule for entry, _ in run.entries("x", Kind.DECISION)] == ["no-env"]

    (run.project / "boss.py").write_text(BOSS)
    run.policy(f'{HEAD}mode = "enforce"\n{NO_ENV}agents = ["boss"]\n')
    run(test)


def test_mounts_are_covered_as_well_and_too_many_masks_refuse_the_run(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "in").mkdir(parents=True)
    (data / "in/.env").write_text("CANARY")

    async def test() -> None:
        said = await run.shell("cat /data/in/.env; echo end", mounts=[f"{data}:/data"])
        assert "CANARY" not in said
        for number in range(1001):
            (data / str(number)).mkdir()
            (data / str(number) / ".env").touch()
        with pytest.raises(EINVAL, match="more than 1,000 files"):
            await run.shell("true", "many", mounts=[f"{data}:/data"])
        assert not [one for one in run.kernel.table if one.name == "many"]

    run.policy(HEAD + NO_ENV.replace("/work/", "/data/"))
    run(test)


def test_a_new_file_of_that_name_is_forbidden_through_syscalls_and_not_committed(run: Run) -> None:
    write = "mkdir new; echo mine > new/.env; echo fine > new/plain"

    async def test() -> None:
        await run.shell(write)
        found = await chunks(run.client, Work(do="commit", name="guest"))
        lists = {what: [entry["path"] for entry in batch] for what, batch in found if what != "progress"}
        assert "new/.env" in lists["refused"]
        assert "new/plain" in lists["committed"]
        [why] = [one["refused"] for what, batch in found if what == "refused" for one in batch]
        assert "no-env" in why
        assert not (run.project / "new/.env").exists()
        (run.project / "fresh").mkdir()
        (run.project / "fresh/.env").write_text("CANARY")
        paths = ("/work/fresh/.env", f"{run.project}/fresh/.env", "/work/not/there/.env", f"{run.project}/plain")
        said = (await run.reader(*paths)).splitlines()
        assert [line.split()[:3] for line in said[:3]] == [["refused", path, "EPOLICY"] for path in paths[:3]]
        assert said[3] == f"read {run.project}/plain b'plain text'"
        reads = [entry for entry, _ in run.entries("reader", Kind.DECISION) if entry.step == 3]
        assert [entry.rule for entry in reads] == ["no-env"] * 3

    run.policy(f'{HEAD}mode = "enforce"\n{NO_ENV}')
    run(test)


def test_a_run_tells_which_changes_rules_ask_about_and_which_they_refuse(run: Run) -> None:
    async def test() -> None:
        order = run.order(argv=["sh", "-c", "touch asked .env new plain2"], name="guest")
        found = await chunks(run.client, Start(order=order))
        changes = {one["path"]: one for chunk in found if chunk[0] == "changes" for one in chunk[1]}
        assert {path for path, one in changes.items() if one["protected"]} == {"asked"}
        assert {path for path, one in changes.items() if one["refused"]} == {"new"}
        waiting = run.order(argv=["sh", "-c", "touch asked; cat"], name="other")
        stream = run.client.stream(Start(order=waiting))
        told = dict[str, Any]()
        async for what, entries in stream:
            told[what] = entries
            if what == "started":
                run.policy("broken", project=True)  # what was changed is told all the same
                await stream.send(["close", 0])
        assert [one["path"] for one in told["changes"]] == ["asked"]

    ask = '[[rule]]\nid = "a"\neffect = "ask"\nwhat = ["file:/work/asked:write"]\n'
    no = '[[rule]]\nid = "b"\neffect = "forbid"\nwhat = ["file:/work/new:write"]\n'
    run.policy(HEAD + ask + no)
    run(test)


# Modes, on a real agent.


@pytest.mark.parametrize("mode", ["strict", "enforce", "shadow"])
def test_each_mode_does_to_a_real_agent_what_it_says(run: Run, mode: str) -> None:
    rule = '[[rule]]\nid = "no-note"\neffect = "forbid"\nwhat = ["mem:/mem/working/note:read"]\n'

    async def test() -> None:
        said = await run.reader("/mem/working/note", "/work/plain")
        agent = run.kernel.table.find("reader")
        decided = [entry for entry, _ in run.entries("reader", Kind.DECISION) if entry.step == 3]
        results = [entry for entry, _ in run.entries("reader", Kind.RESULT) if entry.rule]
        if mode == "shadow":
            assert "ENOENT" in said  # it got as far as looking
            assert [(entry.rule, entry.mode) for entry in results] == [("would forbid: no-note", "shadow")]
            assert decided == []
        else:
            assert [(one.rule, one.mode, one.verdict) for one in decided] == [("no-note", mode, Verdict.FORBID)]
        assert ("read /work/plain" in said) == (mode != "strict")
        assert agent.quarantined == (mode == "strict")
        quarantine = run.kernel.store.get("quarantine", "default/reader")
        assert (quarantine is not None) == (mode == "strict")

    run.policy(f'{HEAD}mode = "{mode}"\n{rule}')
    run(test)


# What a project says.


def test_a_projects_rules_bind_its_runs_and_are_on_the_record(run: Run) -> None:
    async def test() -> None:
        assert "CANARY" not in await run.shell(LOOK)
        [(entry, body)] = run.entries("guest", Kind.POLICY_LOAD)
        assert [one["layer"] for one in body["files"]] == ["project"]
        assert entry.policy_digest not in (b"", run.kernel.authority.policies.current.policy.digest)
        assert run.kernel.store.get("policies", "default/guest") is None  # forgotten with the agent

    run.policy(HEAD + NO_ENV, project=True)
    run(test)


def test_a_run_whose_projects_rules_are_broken_is_refused_with_file_and_line(run: Run) -> None:
    async def test() -> None:
        with pytest.raises(EINVAL, match=rf"{run.project}/.agents/policy.toml:3: "):
            await run.shell("touch /work/ran")
        [(_, body)] = run.entries("guest", Kind.POLICY_ERROR)
        assert body["problems"][0]["line"] == 3
        assert run.entries("guest", Kind.SPAWN) == []
        run.policy(f"{HEAD}mode = 'enforce'\n", project=True)
        with pytest.raises(EINVAL, match="milder than strict"):
            await run.shell("true")

    run.policy(HEAD)
    run.policy(f'{HEAD}colour = "red"\n', project=True)
    run(test)


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_projects_rules_are_not_read_through_a_link(run: Run, tmp_path: Path, link: str) -> None:
    async def test() -> None:
        with pytest.raises(EINVAL, match="a link"):
            await run.shell("true")

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/policy.toml").write_text(HEAD)
    if link == "folder":
        (run.project / ".agents").symlink_to(tmp_path / "elsewhere")
    else:
        (run.project / ".agents").mkdir()
        (run.project / ".agents/policy.toml").symlink_to(tmp_path / "elsewhere/policy.toml")
    run(test)


def test_security_md_of_a_project_is_a_deny_list_and_a_bad_one_is_refused(run: Run) -> None:
    good = "---\nkernel:\n  version: '1.0'\n  mode: strict\npolicies:\n  - action: SYS_READ\n    effect: allow\n---\n"

    async def test() -> None:
        said = await run.reader("/work/plain", "/mem/semantic/x")
        assert "read /work/plain" in said
        (run.project / ".agents/security.md").write_text(good.replace("SYS_READ", "SYS_WRITE"))
        said = await run.reader("/work/plain", name="other")
        assert "EPOLICY" in said  # nothing allows it, and the agent goes on
        (run.project / ".agents/security.md").write_text(good.replace("strict", "permissive"))
        with pytest.raises(EINVAL, match=r"security.md:4: "):
            await run.reader("/work/plain", name="third")

    (run.project / ".agents").mkdir()
    (run.project / ".agents/security.md").write_text(good)
    run(test)


def test_an_agent_that_can_write_its_projects_rules_does_not_change_its_own(run: Run) -> None:
    """In a bind workspace it can; its next life is bound by what was read at its first."""

    async def test() -> None:
        order = run.order(argv=["sleep", "60"], workspace="bind:.")
        agent = await run.kernel.guests.start(order, name="guest")
        run.policy(HEAD, project=True)
        await run.kernel.governing.begin(agent, run.project, again=True)
        policy = run.kernel.authority.policies.of(agent.id)
        assert [rule.id for _, rule in policy.rules()] == ["no-env"]

    run.policy(HEAD + NO_ENV, project=True)
    run(test)


# Changes while agents run.


def test_an_agent_whose_program_was_taken_from_it_ends_and_the_record_says_why(run: Run) -> None:
    async def test() -> None:
        order = run.order(file=str(run.project / "sleeper.py"), function="sleeper", python=sys.executable)
        agent = await run.kernel.guests.start(order, name="sleeper")
        await until(lambda: agent.line is not None)
        [work] = [one for one in agent.holdings if str(one.capability).startswith("file:/work")]
        await run.kernel.authority.revoke([work], "local:0")
        await run.kernel.wait_for(agent)
        said = [body["reason"] for _, body in run.entries("sleeper", Kind.EXIT)]
        assert "was revoked, and it is mounted" in said[0]
        assert said[-1] == f"not started again: its program {run.project}/sleeper.py lies in what was revoked"

    text = "from agent_os import agent\n\n@agent\nasync def sleeper(ctx):\n    await ctx.sleep(3600)\n"
    (run.project / "sleeper.py").write_text(text)
    run(test)


def test_what_is_mounted_and_forbidden_now_ends_the_process(run: Run) -> None:
    async def test() -> None:
        kept = await run.kernel.guests.start(run.order(argv=["sleep", "60"], workspace="tmpfs"), name="kept")
        hit = await run.kernel.guests.start(run.order(argv=["sleep", "60"]), name="hit")
        stream = run.client.stream(ApplyRules())
        await stream.send((HEAD + NO_ENV).encode())
        stream.end()
        await stream.result()
        assert hit.exit is not None
        assert "a rule forbids now what it has mounted" in hit.exit.reason
        assert kept.exit is None

    run(test)


def test_a_project_file_that_became_too_mild_is_weighed_as_strictly_as_the_operators(run: Run) -> None:
    async def test() -> None:
        agent = await run.kernel.guests.start(run.order(argv=["sleep", "60"]), name="guest")
        await run.kernel.governing.apply(HEAD.encode(), "test")  # strict
        policy = run.kernel.authority.policies.of(agent.id)
        assert [(file.layer.name, str(file.mode)) for file in policy.files[1:]] == [
            ("OPERATOR", "strict"),
            ("PROJECT", "strict"),
        ]

    run.policy(f'{HEAD}mode = "enforce"\n')
    run.policy(f'{HEAD}mode = "enforce"\n', project=True)
    run(test)


# What a program reads and writes without asking, its label knows.


@pytest.mark.parametrize("after", ["commit", "keep"])
def test_the_class_of_what_was_committed_to_a_project_is_carried_by_whoever_runs_there_next(
    run: Run, tmp_path: Path, after: str
) -> None:
    (tmp_path / "crm").mkdir()
    (tmp_path / "crm/list").write_text("customers")

    async def test() -> None:
        said = await run.shell("cp /crm/list copy", mounts=[f"{tmp_path}/crm:/crm"], after=after)
        labels = run.kernel.authority.labels
        if after == "keep":
            assert "customer" not in (await classes("before")), said
            await chunks(run.client, Work(do="commit", name="guest"))
        assert (run.project / "copy").read_text() == "customers"
        assert "customer" in (await classes("after"))
        assert not [agent for agent, _ in labels if "guest" in agent], "it is over"

    async def classes(name: str) -> str:
        await run.shell("cat copy", name)
        return str(run.entries(name, Kind.EXIT)[0][0].label)

    run.policy(HEAD + CUSTOMERS)
    run(test)


def test_who_has_mounted_what_a_rule_calls_by_a_class_now_carries_that_class_now(run: Run) -> None:
    async def test() -> None:
        hit = await run.kernel.guests.start(run.order(argv=["sleep", "60"]), name="hit")
        assert "customer" not in run.kernel.authority.labels.of(hit.id).classes
        await run.kernel.governing.apply((HEAD + CUSTOMERS.replace("/crm/", "/work/sub/")).encode(), "local:0")
        assert "customer" in run.kernel.authority.labels.of(hit.id).classes
        assert "class:customer" in run.entries("hit", Kind.LABEL)[-1][0].label

    run(test)


CUSTOMERS = """
[[class]]
name = "customer"
readers = []

[[source]]
what = ["file:/crm/**:read"]
integrity = "untrusted"
classes = ["customer"]
"""


@pytest.mark.parametrize("more", [{"manifest": "{}"}, {"parent": "default/boss"}, {}], ids=["declared", "child", "own"])
def test_only_a_run_of_a_persons_own_can_try_its_rules(run: Run, more: dict[str, Any]) -> None:
    async def test() -> None:
        order = run.order(argv=["cat", ".env"], shadow=True, **more)
        if not more:  # the control
            assert await run.ran(order, "tries") == "CANARY"
            return
        with pytest.raises(EINVAL, match="a person's own"):
            await run.kernel.guests.start(order, name="tries")

    run.policy(HEAD + NO_ENV, project=True)
    run(test)


def test_nobody_tries_rules_over_http() -> None:
    Order.model_validate({"cwd": "/"})
    with pytest.raises(ValidationError, match="shadow"):
        Order.model_validate({"cwd": "/", "shadow": True})
