"""Which role may ask what: every operation is in the table, each is refused to whom it is not for, and a viewer sees
nothing that anybody said."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from agent_os.abi import doors, frames
from agent_os.abi import syscalls as abi
from agent_os.abi.doors import Role
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAPPROVAL, EMSGSIZE, EPERM, AgentOSError
from agent_os.abi.syscalls import BY_NAME, BY_NUMBER, TABLE
from agent_os.client.values import jsonable
from agent_os.client.wire import Client, connect
from agent_os.kernel import roles, viewing
from agent_os.kernel.kernel import LONGEST_LOOK, Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Actor
from kernel.serving import Caller, chunks, entries, serving, until

OPERATIONS = [one for one in TABLE if one.operator]
SECRET = "the-treasure-of-the-incas"
RANKS = ("viewer", "auditor", "operator")


def run(home: Path, work: Callable[[Kernel, Client, Client, Client], Awaitable[None]]) -> None:
    """With an operator, an auditor and a viewer."""

    async def main() -> None:
        async with serving(home) as (kernel, client):
            tokens = [
                (await client.call(doors.Tokens(do="add", name=f"the-{role}", role=role)))["token"]
                for role in ("auditor", "viewer")
            ]
            path = home / "run" / "kernel.sock"
            async with connect(path, token=tokens[0]) as auditor, connect(path, token=tokens[1]) as viewer:
                await work(kernel, client, auditor, viewer)

    asyncio.run(main())


def test_every_operation_is_in_the_table_and_nothing_else() -> None:
    assert set(roles.TABLE) == {one.name for one in OPERATIONS}, "say in kernel/roles.py who may ask it"


def test_what_viewers_may_ask_has_its_veil_and_nothing_else_has() -> None:
    for_viewers = {name for name, rule in roles.TABLE.items() if rule.role == "viewer"}
    assert set(viewing.TABLE) == for_viewers, "say in kernel/viewing.py what a viewer sees of it"


def test_whatever_changes_something_is_an_operators() -> None:
    """The class in the table of syscalls is another word about the same: what is not pure changes something, in some
    of its requests at the least."""
    harmless = {"OP_SESSION"}  # a session changes nothing that is governed
    for one in OPERATIONS:
        if one.effect != "p":
            assert roles.TABLE[one.name].changes or one.name in harmless, one.name


def _request(one: abi.Syscall) -> Any:
    """The plainest request there is of an operation; where it can both look and change, a change."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(one.request):
        kind = field.type
        if field.name == "do":
            words = [
                word for word in get_args(kind) if word not in ("list", "diff", "code", "enter", "ticket", "leave")
            ]
            fields["do"] = words[0] if words else get_args(kind)[0]
        elif field.name in ("adopt", "topic") and one.name in ("OP_LEAVE", "OP_TOPICS"):
            fields[field.name] = True if field.name == "adopt" else "news"
        elif field.required:
            fields[field.name] = _plain(kind)
    return one.request(**fields)


def _plain(kind: Any) -> Any:
    if get_origin(kind) in (dict, list):
        return get_origin(kind)()
    if words := get_args(kind):
        return words[0] if isinstance(words[0], str) else _plain(words[0])
    return {str: "nobody", int: 1}.get(kind, "anything")


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.name)
def test_an_operation_is_refused_to_whom_it_is_not_for_and_only_to_those(one: abi.Syscall) -> None:
    request = _request(one)
    needed = "operator" if roles.changes(one.number, request) else roles.TABLE[one.name].role
    for role in get_args(Role):
        actor = Actor("token:x", role=role, via="token")
        if RANKS.index(role) < RANKS.index(needed):
            with pytest.raises(EPERM, match=f"needs the role {needed}") as told:
                roles.require(actor, one.number, request)
            assert told.value.code == "role.low"
            assert needed in told.value.hint
        else:
            roles.require(actor, one.number, request)


def test_refused_on_the_wire_and_nothing_happened(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        agent = Caller(kernel, "worker").agent
        for who, name in ((auditor, "auditor"), (viewer, "viewer")):
            for one in OPERATIONS:
                request = _request(one)
                if not roles.changes(one.number, request):
                    continue
                with pytest.raises(EPERM, match="needs the role operator"):
                    await who.call(request)
            (row,) = (await who.call(abi.ListAgents()))["agents"]  # the positive control: it may look
            assert row["name"] == "worker", name
        assert not kernel.halting
        assert not agent.exit
        assert not agent.held
        told = [entry for entry, _ in kernel.journal.scan() if entry.kind == Kind.DECISION]
        assert {entry.agent for entry in told} == {"token:the-auditor", "token:the-viewer"}

    run(tmp_path / "home", work)


def test_one_who_looks_cannot_fill_the_record_with_long_questions(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        long = abi.Declared(agents=["x" * LONGEST_LOOK])
        before = kernel.store.size()
        for who in (auditor, viewer):
            with pytest.raises(EMSGSIZE):
                await who.call(long)
        assert kernel.store.size() == before
        with pytest.raises(AgentOSError) as found:  # the operator is heard
            await client.call(long)
        assert not isinstance(found.value, EMSGSIZE)

    run(tmp_path / "home", work)


def test_those_who_look_leave_threads_to_those_who_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is long takes long, and agents are paused and started meanwhile: that needs threads as well."""
    go_on, began = threading.Event(), threading.Event()

    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        def long(*args: Any) -> Iterator[Any]:
            began.set()
            go_on.wait()
            return iter(())

        await Caller(kernel, "worker").write("/mem/working/note", "hello")
        monkeypatch.setattr(kernel.journal, "scan", long)
        history = doors.Memory(agent="worker", do="history", path="/mem/working/note")
        looks = [asyncio.create_task(viewer.call(one)) for one in [abi.Cost(), history] * 25]
        try:
            await until(began.is_set)
            await viewer.call(abi.Status())  # they were all heard
            assert await asyncio.wait_for(asyncio.to_thread(lambda: True), 30)
        finally:
            go_on.set()
        assert len(await asyncio.gather(*looks)) == 50, "and each has its turn"

    run(tmp_path / "home", work)


# What a viewer sees.


async def _everything(client: Client, agent: str) -> str:
    """All that can be asked about an agent by somebody who looks, in one text."""
    told: list[Any] = [
        await client.call(request)
        for request in (
            abi.Status(),
            abi.ListAgents(all=True),
            abi.Inspect(agent=agent),
            abi.Approvals(all=True),
            abi.Budgets(),
            abi.Cost(),
            abi.Capabilities(tree=True),
            abi.Declared(),
            abi.History(agent=agent),
            abi.Health(),
            abi.Queue(all=True),
            abi.Links(),
            abi.Bus(),
            abi.DeadLetters(),
            abi.Topics(),
            abi.ToolsOf(),
            doors.Whoami(),
        )
    ]
    told += await entries(client, abi.Events(bodies=True))
    return json.dumps(jsonable(told))


def test_a_viewer_gets_nothing_that_was_said_and_an_auditor_all_of_it(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        agent = Caller(kernel, "worker")
        agent.agent.order = {"argv": ["python", "-c", SECRET]}
        await agent.write("/mem/working/note", SECRET)
        asks = asyncio.create_task(agent.syscall(abi.Ask(question=f"{SECRET}?")))
        await until(lambda: bool(list(kernel.approvals.pending())))
        await client.call(abi.Submit(goal={"text": SECRET, "agent": "worker"}))
        seen, hidden = await _everything(auditor, "worker"), await _everything(viewer, "worker")
        assert SECRET in seen  # the positive control
        assert SECRET not in hidden
        assert "sha256" in hidden
        (question,) = (await viewer.call(abi.Approvals()))["approvals"]
        assert question["state"] == "pending"
        assert question["args"].keys() == {"size", "sha256"}
        (question,) = (await auditor.call(abi.Approvals()))["approvals"]
        assert question["args"]["question"] == f"{SECRET}?"
        await client.call(abi.Decide(approval=question["id"], outcome="deny", digest=question["digest"], reason=SECRET))
        with pytest.raises(EAPPROVAL):
            await asks
        assert SECRET not in await _everything(viewer, "worker")

    run(tmp_path / "home", work)


def test_a_viewer_follows_the_events_without_their_bodies(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        stream = viewer.stream(abi.Events(follow=True, bodies=True, agent="worker"))
        await Caller(kernel, "worker").write("/mem/working/note", SECRET)
        page = await asyncio.wait_for(anext(stream), 30)
        assert all(one["body"].keys() == {"size", "sha256"} for one in page if "body" in one)
        assert SECRET not in json.dumps(jsonable(page))
        (whole,) = await chunks(auditor, abi.Events(bodies=True, agent="worker"))
        assert SECRET in json.dumps(jsonable(whole))
        stream.cancel()

    run(tmp_path / "home", work)


def test_a_viewer_sees_that_there_is_a_memory_and_not_what_is_in_it(tmp_path: Path) -> None:
    large = SECRET * 40_000

    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        agent = Caller(kernel, "worker")
        await agent.write("/mem/working/note", SECRET)
        await agent.write("/mem/working/large", large)
        listed = await viewer.call(doors.Memory(agent="worker"))
        assert {one["path"] for one in listed["entries"]} == {"/mem/working/note", "/mem/working/large"}
        small = doors.Memory(agent="worker", do="read", path="/mem/working/note")
        assert (await auditor.call(small))["data"] == SECRET
        assert (await viewer.call(small))["data"] == viewing.hidden(SECRET)
        whole = doors.Memory(agent="worker", do="read", path="/mem/working/large")
        assert b"".join(await chunks(auditor, whole)).decode() == large
        assert all(one.keys() == {"size", "sha256"} for one in await chunks(viewer, whole))
        with pytest.raises(EPERM, match="needs the role auditor"):  # a search tells word by word what is there
            await viewer.call(doors.Memory(agent="worker", do="search", query="incas"))

    run(tmp_path / "home", work)


def test_the_same_key_gives_a_viewer_what_viewers_see(tmp_path: Path) -> None:
    """A session for looking, and the operator behind it, have one name; what the record holds is not given again as it
    is to whoever knows the key."""

    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        agent = Caller(kernel, "worker")
        agent.agent.order = {"argv": [SECRET]}
        code = (await client.call(doors.Session(do="code", role="viewer")))["code"]
        path = tmp_path / "home" / "run" / "kernel.sock"
        async with connect(path, token=f"code:{code}") as guest:
            session = (await guest.call(doors.Session(do="enter")))["session"]
        whole = await client.call(abi.Inspect(agent="worker"), key="k")
        assert SECRET in json.dumps(jsonable(whole))
        async with connect(path, token=session) as guest:
            assert (await guest.call(doors.Whoami()))["role"] == "viewer"
            assert SECRET not in json.dumps(jsonable(await guest.call(abi.Inspect(agent="worker"), key="k")))

    run(tmp_path / "home", work)


def test_a_viewer_sees_what_is_held_and_not_what_was_asked_about() -> None:
    """A standing answer repeats its question, a letter the words of whoever wrote it."""

    def seen(name: str, told: Any) -> str:
        return json.dumps(viewing.seen(abi.BY_NAME[name].number, told))

    held = {"capabilities": [{"capability": f"file:/{SECRET}:read"}], "standing": []}
    assert SECRET in seen("OP_CAPABILITIES", held)
    stands = {"capabilities": [], "standing": [{"handle": "q-1", "capability": f"http:a.example/{SECRET}:get"}]}
    assert SECRET not in seen("OP_CAPABILITIES", stands)
    assert SECRET not in seen("OP_DEAD", {"letters": [{"id": "l-1", "schema": SECRET}]})


def test_a_hash_is_of_what_is_hidden() -> None:
    from hashlib import sha256

    assert viewing.hidden("aß") == {"size": 3, "sha256": sha256("aß".encode()).hexdigest()}
    assert viewing.hidden(b"\x00") == {"size": 1, "sha256": sha256(b"\x00").hexdigest()}
    packed = frames.encode_body({"a": 1})
    assert viewing.hidden({"a": 1}) == {"size": len(packed), "sha256": sha256(packed).hexdigest()}
    assert viewing.hidden(None) is None
    row = viewing.seen(BY_NAME["OP_LIST"].number, {"agents": [{"command": ["python", "-c", "x"], "detail": "no way"}]})
    (row,) = row["agents"]
    assert row["command"][0] == "python"
    assert "hidden" in row["command"][1]
    assert "hidden" in row["detail"]


def test_what_no_veil_is_known_for_is_not_shown() -> None:
    with pytest.raises(AgentOSError):
        viewing.seen(BY_NAME["OP_LOGS"].number, {"data": SECRET})


# Who did it.


def test_a_change_is_on_the_record_with_its_actor_before_it_happens(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        token = (await client.call(doors.Tokens(do="add", name="anna", role="operator")))["token"]
        Caller(kernel, "worker")
        async with connect(tmp_path / "home" / "run" / "kernel.sock", token=token) as anna:
            await anna.call(abi.Grant(agent="worker", capability="tool:clock:call"))
        told = [(entry, body) for entry, body in kernel.journal.scan() if entry.seq > 1]
        (ahead,) = [(one, body) for one, body in told if one.kind == Kind.CHANGE and _is(one.op, "OP_GRANT")]
        said = decode_any(ahead[1] or b"")
        assert ahead[0].agent == "token:anna"
        assert said["via"] == "token"
        assert said["request"]["agent"] == "worker"
        (done,) = [one for one, _ in told if one.kind == Kind.GRANT and one.seq > ahead[0].seq]
        (answered,) = [one for one, _ in told if one.kind == Kind.RESULT and _is(one.op, "OP_GRANT")]
        assert ahead[0].seq < done.seq < answered.seq
        assert answered.agent == "token:anna"

    run(tmp_path / "home", work)


def _is(op: int, name: str) -> bool:
    return op in BY_NUMBER and BY_NUMBER[op].name == name


def test_an_approval_names_the_token_that_gave_it(tmp_path: Path) -> None:
    async def work(kernel: Kernel, client: Client, auditor: Client, viewer: Client) -> None:
        token = (await client.call(doors.Tokens(do="add", name="anna", role="operator")))["token"]
        asks = asyncio.create_task(Caller(kernel, "worker").syscall(abi.Ask(question="may I?")))
        await until(lambda: bool(list(kernel.approvals.pending())))
        async with connect(tmp_path / "home" / "run" / "kernel.sock", token=token) as anna:
            (question,) = (await anna.call(abi.Approvals()))["approvals"]
            await anna.call(
                abi.Decide(approval=question["id"], outcome="approve", digest=question["digest"], value="yes")
            )
        assert (await asks) == {"value": "yes", "by": "token:anna"}

    run(tmp_path / "home", work)
