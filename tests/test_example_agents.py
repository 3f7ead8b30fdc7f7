"""The agents of seed 1 do their work: research, code, trading, each with the script that is printed beside it.

The model is the scripted driver, the tools and the market are real, the kernel is the loop's host in process; that they
run isolated and survive a kill is tested where the kernel runs them.
"""

import asyncio
import importlib.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from agent_os import AgentManifest, KernelSpace
from agent_os.abi.errors import EINVAL, EIO, ETYPE
from agent_os.abi.models import BlockDone, Finished, ModelReply, ModelRequest
from agent_os.drivers.models.scripted import Scripted, read_script
from agent_os.kernel.pipes.schemas import require_fit  # of typed pipes; stands for the registry's
from agent_os.manifest.checks import oddities
from agent_os.manifest.terms import terms
from agent_os.userland.loop import Loop, work
from agent_os.userland.loop_terms import FINISH, Answer, Outcome, Terms
from userland.loop_host import FakeHost

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MANIFESTS = sorted(path for name in ("code", "research", "trading") for path in (EXAMPLES / name).glob("*.agent.toml"))


class World(FakeHost):
    """A host whose model is a script, whose tools work in a folder, and which has what these programs use of a
    context."""

    def __init__(self, folder: Path, model: str = "", **more: Any) -> None:
        super().__init__(**more)
        self.folder, self.agent, self.usual_model = folder, "default/example", model
        self.functions = {
            "file.read": ("pure", self._read),
            "file.list": ("pure", self._list),
            "file.edit": ("verifiable", self._edit),
            "file.write": ("opaque", self._write),
            "shell.execute": ("opaque", self._shell),
        }
        self.schema: Any = None
        self.result_schema = lambda value: _misfit(self.schema, value)

    async def think(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        steps = read_script((self.folder / f"{request.model.partition('/')[2]}.yaml").read_text())
        blocks: list[Any] = []
        async for event in Scripted(lambda _: steps).stream(request, None):
            if isinstance(event, BlockDone):
                blocks.append(event.block)
            if isinstance(event, Finished):
                return ModelReply(blocks=blocks, stop=event.stop, usage=event.usage, scripted=True, cost_microusd=0)
        raise AssertionError("the script ended nothing")

    async def loop(self, goal: str, **more: Any) -> Outcome:
        from agent_os.userland.schemas import schema_of

        self.schema = None if more.get("output") is None else schema_of(more["output"])
        return await work(self, goal, model=self.usual_model, **more)

    async def call(self, tool: str, /, **params: Any) -> Any:
        return SimpleNamespace(**(await self.exec(tool, params, deadline=1)).value)

    def _at(self, path: str) -> Path:
        assert path.startswith("/work")
        return self.folder / path.removeprefix("/work").lstrip("/")

    def _read(self, path: str) -> Mapping[str, Any]:
        return {"text": self._at(path).read_text(), "more": False}

    def _list(self, path: str) -> Mapping[str, Any]:
        return {"entries": sorted(one.name for one in self._at(path).iterdir()), "more": False}

    def _write(self, path: str, content: str) -> Mapping[str, Any]:
        return {"size": self._at(path).write_text(content)}

    def _edit(self, path: str, old: str, new: str) -> Mapping[str, Any]:
        text = self._at(path).read_text()
        if text.count(old) != 1:
            raise EINVAL("edit.count", f"old is there {text.count(old)} times")
        return {"size": self._at(path).write_text(text.replace(old, new))}

    def _shell(self, argv: list[str], cwd: str) -> Mapping[str, Any]:
        argv = [sys.executable, "-B", *argv[1:]] if argv[0] == "python3" else argv
        ran = subprocess.run(argv, cwd=self._at(cwd), capture_output=True, text=True, timeout=60)
        return {"exit": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr}


def _misfit(schema: Any, value: Any) -> str:
    try:
        require_fit("result", schema, value)
    except ETYPE as error:
        return error.reason
    return ""


def program(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(EXAMPLES / request.param, tmp_path / request.param))


def terms_of(manifest: AgentManifest, folder: Path) -> Terms:
    """As the kernel hands them to a model agent."""
    named = manifest.program.output_schema
    schema = msgspec.json.decode((folder / named).read_bytes()) if named else None
    return msgspec.convert(terms(manifest, schema), Terms)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_manifest_is_sound_and_costs_something_at_most(path: Path) -> None:
    manifest = AgentManifest.load(path)
    assert list(oddities(manifest)) == []
    for name in [manifest.program.model, *manifest.capabilities.models]:
        assert not name or read_script((path.parent / f"{name.partition('/')[2]}.yaml").read_text())


@pytest.mark.integration
@pytest.mark.parametrize("folder", ["code"], indirect=True)
def test_the_code_agent_makes_a_failing_test_pass(folder: Path) -> None:
    project = folder / "project"
    before = (project / "test_basket.py").read_text()
    host = World(folder)
    assert host._shell(["python3", "-m", "unittest", "-q"], "/work/project")["exit"] == 1, (
        "it begins with a failing test"
    )
    host.effects.clear()
    bound = terms_of(AgentManifest.load(folder / "code.agent.toml"), folder)
    host.schema = bound.output_schema
    outcome = asyncio.run(Loop(host, bound).run())
    assert (outcome.stop, outcome.result["passes"]) == ("done", True)
    assert host._shell(["python3", "-m", "unittest", "-q"], "/work/project")["exit"] == 0
    assert (project / "test_basket.py").read_text() == before
    assert [name for name, _ in host.effects] == ["shell.execute", "file.edit", "shell.execute"]
    assert "FAILED (failures=1)" in host.told(1), "the model saw the tests fail"
    assert '"exit":0' in host.results(3)[-1].replace(" ", ""), "and pass"
    assert outcome.scripted


@pytest.mark.parametrize("folder", ["research"], indirect=True)
def test_the_research_agent_cites_what_it_opened_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = program(folder / "research.py", monkeypatch)
    pages = {path.name: path.read_text() for path in (folder / "library").iterdir()}
    reading, writing = (World(folder, one.extra["model"]) for one in (module.reader, module.planner))
    findings = asyncio.run(module.reader(reading, "How long does a heap of compost need?"))
    assert [one.source for one in findings.found] == ["/work/library/compost.md"] * 2
    report = asyncio.run(module.planner(writing, findings))
    assert report.sources == ["/work/library/compost.md"]
    assert "months" in report.answer
    assert {path.name: path.read_text() for path in (folder / "library").iterdir()} == pages
    assert "file.write" not in [tool.name for tool in reading.requests[0].tools], "the reader cannot write"
    assert "there is no tool 'file.write'" in reading.told()
    assert "IGNORE" in reading.told()
    assert "IGNORE" not in writing.told(), "the planner never sees a page"


class Exchange(World):
    """Requests to the market go to its book."""

    def __init__(self, folder: Path, book: Any, **more: Any) -> None:
        super().__init__(folder, **more)
        self.book, self.sent = book, list[Any]()

    async def request(self, to: str, payload: Any, *, key: str | None = None) -> Any:
        assert to == "market"
        self.sent.append(payload)
        asked = dict(payload)
        try:
            answer = self.book.quote() if asked.pop("do") == "quote" else self.book.order(**asked)
        except ValueError as problem:
            raise EIO("bus.reply", f"market says: {problem}") from None
        return SimpleNamespace(payload=answer)


@pytest.mark.parametrize("folder", ["trading"], indirect=True)
@pytest.mark.parametrize(
    ("answer", "bought"),
    [(Answer(state="refused", reason="too many"), False), (Answer(state="value", value=True), True)],
)
def test_the_trader_ends_its_day_and_asks_a_person_before_a_large_order(
    folder: Path, answer: Answer, bought: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    market, trader = program(folder / "market.py", monkeypatch), program(folder / "trader.py", monkeypatch)
    host = Exchange(folder, market.Book(50_000), model=trader.trader.extra["model"], answers=[answer])
    told = asyncio.run(trader.trader(host))
    assert told["stop"] == "done"
    assert host.asked == ["May I buy 500 pieces?"]
    assert told["held"] == (500 if bought else 0)
    assert told["orders"] == (4 if bought else 3)
    assert ("A person was asked" in host.told()) == (not bought)
    assert len({one["id"] for one in host.sent if one["do"] == "order"}) == told["orders"]


@pytest.mark.parametrize("folder", ["trading"], indirect=True)
def test_the_loss_limit_ends_the_trade(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    market = program(folder / "market.py", monkeypatch)
    book = market.Book(loss_limit=1000)
    sides = ["buy", "sell"] * 200

    def all_day() -> None:
        for number, side in enumerate(sides):
            book.order(str(number), side, 10)

    with pytest.raises(ValueError, match="loss limit"):
        all_day()
    booked = len(book.orders)
    assert 0 < booked < len(sides)
    assert book.order("0", "buy", 10)["again"], "what was booked stays so"


@pytest.mark.parametrize("folder", ["trading"], indirect=True)
def test_a_day_of_the_market_is_the_same_day_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    market = program(folder / "market.py", monkeypatch)
    assert [market.price(tick) for tick in range(50)] == [market.price(tick) for tick in range(50)]
    assert len({market.price(tick) for tick in range(50)}) > 20
    assert market.price(30, seed=1) != market.price(30, seed=2)


@pytest.mark.parametrize("folder", ["trading"], indirect=True)
def test_the_market_books_an_order_once_however_often_it_is_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = program(folder / "market.py", monkeypatch)

    async def main() -> tuple[Any, Any, Any]:
        async with KernelSpace() as kernel, asyncio.timeout(60):
            market = kernel.create_agent_context("market", caps=["ipc:agent/*:send"])
            other = kernel.create_agent_context("trader", caps=["ipc:agent/*:send"])
            serving = asyncio.ensure_future(module.market(market))
            try:
                order = {"do": "order", "id": "t:1", "side": "buy", "size": 3}
                first = (await other.request("market", order)).payload
                again = (await other.request("market", order)).payload
                with pytest.raises(EIO, match="cannot sell 5"):
                    await other.request("market", {**order, "id": "t:2", "side": "sell", "size": 5})
                return first, again, (await other.request("market", {"do": "quote"})).payload
            finally:
                serving.cancel()

    first, again, last = asyncio.run(main())
    assert (first["again"], again["again"], last["held"]) == (False, True, 3)


def test_the_schema_of_the_code_agents_result_is_held() -> None:
    schema = msgspec.json.decode((EXAMPLES / "code/result.schema.json").read_bytes())
    assert _misfit(schema, {"cause": "x", "changed": [], "passes": True}) == ""
    assert _misfit(schema, {"cause": "x"}) != ""
    assert FINISH == "agent.finish"
    assert (
        tomllib.loads((EXAMPLES / "code/code.agent.toml").read_text())["program"]["output_schema"]
        == "result.schema.json"
    )
