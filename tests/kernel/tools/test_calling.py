"""Tools on a kernel: one call from its name to its recorded outcome."""

from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUDGET, EEXIST, ENOENT, EPERM, ETYPE, AgentOSError
from agent_os.abi.syscalls import Exec, Register, Tools
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import Recorded, decode_any
from kernel.serving import Caller
from kernel.tools.workers import Worker, run


def test_files_are_read_written_searched_and_edited_by_tools(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        await worker.call("file.write", path="/work/a.txt", content="one\ntwo\n")
        assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"
        assert (await worker.call("file.read", path="/work/a.txt"))["text"] == "one\ntwo\n"
        assert (await worker.call("file.search", path="/work", pattern="two"))["matches"][0]["line"] == 2
        await worker.call("file.edit", path="/work/a.txt", old="two", new="three")
        assert (tmp_path / "a.txt").read_text() == "one\nthree\n"
        assert worker.kinds() == ["INTENT", "OUTCOME", "RESULT", "RESULT", "INTENT", "OUTCOME"]
        assert kernel.budgets.account(worker.agent.id).used("calls") == 4

    run(test)


def test_a_plan_is_in_the_intent_before_anything_happens(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        (tmp_path / "a").write_text("one")
        await worker.call("file.edit", path="/work/a", old="one", new="two")
        (intent,) = [
            kept for entry, kept in kernel.journal.scan(worker.agent.id) if (entry.op, entry.kind) == (5, Kind.INTENT)
        ]
        record = decode_any(Recorded.of(intent).request)
        assert record["plan"]
        assert record["digest"] == kernel.tools.find("file.edit").spec.digest
        with pytest.raises(AgentOSError):  # it is not there once: nothing is intended
            await worker.call("file.edit", path="/work/a", old="nothing", new="two")
        assert worker.kinds() == ["INTENT", "OUTCOME", "OUTCOME"]
        assert kernel.journal.open_intents() == []

    run(test)


@pytest.mark.parametrize(
    ("caps", "missing"),
    [((), "tool:file.read:call"), (("tool:*:call",), "file:/work/a:read"), (("file:/work/**:read",), "tool:file.read")],
)
def test_a_call_needs_the_tool_and_what_it_touches(tmp_path: Path, caps: tuple[str, ...], missing: str) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path, caps=caps)
        (tmp_path / "a").write_text("one")
        with pytest.raises(EPERM) as caught:
            await worker.call("file.read", path="/work/a")
        assert caught.value.detail["missing"].startswith(missing)

    run(test)


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path, caps=("tool:*:call", "file:/work/open/**:read"))
        (tmp_path / "open").mkdir()
        (tmp_path / "shut").mkdir()
        (tmp_path / "shut/secret").write_text("x")
        (tmp_path / "open/link").symlink_to("../shut/secret")
        with pytest.raises(AgentOSError):
            await worker.call("file.read", path="/work/open/link")
        found = await worker.call("file.search", path="/work/open", pattern="x")
        assert found["matches"] == []

    run(test)


def test_what_does_not_fit_its_schema_runs_nothing(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        with pytest.raises(ETYPE) as caught:
            await worker.call("file.write", path="/work/a", content=1)
        assert (caught.value.detail["pointer"], caught.value.detail["ran"]) == ("/content", False)
        with pytest.raises(ENOENT) as unknown:
            await worker.call("file.wrte", path="/work/a")
        assert "file.write" in unknown.value.hint
        assert list(tmp_path.iterdir()) == []

    run(test)


def test_what_a_tool_read_is_carried_by_its_agent_afterwards(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        label = kernel.authority.labels.of
        await worker.call("memory.store", key="note", value="mine")
        await worker.call("memory.retrieve", key="note")
        await worker.syscall(Tools())
        assert not label(worker.agent.id).untrusted
        (tmp_path / "a").write_text("one")
        await worker.call("file.read", path="/work/a")
        carried = label(worker.agent.id)
        assert carried.untrusted
        assert carried.sources == {"file:/work"}
        assert carried.classes == {"private"}
        await worker.call("file.write", path="/work/b", content="x")  # its own workspace: nobody is asked

    run(test)


def test_memory_is_searched_by_words_and_only_what_the_agent_may_read(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        assert await worker.call("memory.search", query="nothing yet") == {"found": [], "more": False}
        await worker.call("memory.store", key="build/server", value="The Build Server is called otter.")
        await worker.call("memory.store", key="notes", value="Build it twice: the build of the build tools fails.")
        found = (await worker.call("memory.search", query="server BUILD"))["found"]
        assert [(one["key"], one["words"]) for one in found] == [("build/server", 2), ("notes", 1)]
        assert "otter" in found[0]["excerpt"]
        part = await worker.call("memory.search", query="build", limit=1)
        assert (part["found"][0]["key"], part["more"]) == ("notes", True)
        assert (await worker.call("memory.search", query="submarine"))["found"] == []

        narrow = Worker(kernel, tmp_path, "narrow", caps=("tool:*:call", "mem:/mem/semantic/mine/**:read"))
        with pytest.raises(EPERM):
            await narrow.call("memory.search", query="build")
        other = Worker(kernel, tmp_path, "other")
        assert (await other.call("memory.search", query="build"))["found"] == [], "each has a memory of its own"

    run(test)


def test_a_long_result_is_kept_for_its_agent_and_no_other(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker, other = Worker(kernel, tmp_path), Worker(kernel, tmp_path, "other")
        (tmp_path / "large").write_bytes(b"\0\xff" * 40_000)
        result = await worker.whole("file.read", path="/work/large")
        blob = result["value"]["blob"]
        part = await worker.call("tool.output", blob=blob, offset=0, limit=10)
        assert part["size"] == 49152
        with pytest.raises(ENOENT):
            await other.call("tool.output", blob=blob, offset=0, limit=10)
        assert result["tool"] == "file.read@1.0.0"

    run(test)


def test_tool_calls_have_a_budget(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        worker.agent.holdings.grant(parse("tool:memory.store:call{count:1}"), "operator")
        for handle in [one for one in worker.agent.holdings if str(one.capability).startswith("tool:*")]:
            await kernel.authority.revoke([handle], "operator")
        await worker.call("memory.store", key="a", value="1")
        with pytest.raises(EBUDGET):
            await worker.call("memory.store", key="a", value="2")

    run(test)


def test_an_agent_adds_a_tool_for_itself_and_its_children_and_nobody_else(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker, stranger = Worker(kernel, tmp_path, caps=("shell:execute",)), Worker(kernel, tmp_path, "stranger")
        spec = {"name": "text.twice", "description": "Twice.", "input_schema": {"type": "object", "properties": {}}}
        told = await worker.syscall(Register(spec=spec, code="print(1)"))
        assert told["name"] == "text.twice"
        child = Caller(kernel, "child", worker)
        child.agent.holdings.grant(parse("shell:execute"), "operator")
        seen = [[one["name"] for one in (await who.syscall(Tools(query="twice")))["tools"]] for who in (worker, child)]
        assert seen == [["text.twice"], ["text.twice"]]
        assert (await stranger.syscall(Tools(query="twice")))["tools"] == []
        with pytest.raises(EEXIST):
            await worker.syscall(Register(spec=spec, code="print(2)"))
        for bad in ({"name": "file.twice"}, {"sandbox": "driver"}, {"secrets": ["key"]}):
            with pytest.raises(EPERM):
                await worker.syscall(Register(spec={**spec, "version": "2.0.0", **bad}, code="print(1)"))
        kernel.tools.buried(worker.agent.id)
        with pytest.raises(ENOENT):
            await child.syscall(Exec(tool="text.twice"))

    run(test)
