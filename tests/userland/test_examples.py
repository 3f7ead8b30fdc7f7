"""The examples for authors run as they are printed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_os.userland import native
from agent_os.userland.context import Context
from userland.fake_kernel import FakeKernel, played

FOLDER = Path(__file__).resolve().parents[2] / "examples/agents"
EXAMPLES = [
    ("hello.py:hello", {"text": "a b c"}, 3, {"/mem/working/text": "a b c"}),
    ("counter.py:counter", {"steps": 3, "pause": 0}, "1\n2\n3\n", {"/mem/working/lines": "1\n2\n3\n"}),
    ("collector.py:collector", {"rounds": 2, "width": 3}, 6, {"/mem/working/round-2": "[1, 1, 1]"}),
]


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading a program sets these, as for a process of its own."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for path in FOLDER.glob("*.py"):
        if path.stem not in before:
            sys.modules.pop(path.stem, None)


@pytest.mark.parametrize(("entry", "given", "result", "left"), EXAMPLES)
def test_an_example_runs(entry: str, given: Any, result: Any, left: dict[str, Any]) -> None:
    file, _, name = entry.partition(":")
    example = native.load(str(FOLDER / file), name)

    async def program(ctx: Context, kernel: FakeKernel) -> Any:
        return await example.function(ctx, **example.bind(given))

    got, kernel = played(program, hook=example.hook)
    assert got == result
    assert {path: kernel.entries[path][0] for path in left} == left


def test_every_example_is_run() -> None:
    assert {entry.partition(":")[0] for entry, *_ in EXAMPLES} == {path.name for path in FOLDER.glob("*.py")}
