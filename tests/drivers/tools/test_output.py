"""`tool.output`: ranges of what results could not hold, each agent its own."""

from typing import Any

import pytest

from agent_os.abi.errors import ENOENT, ETYPE
from agent_os.drivers.tools import output
from agent_os.kernel.tools.registry import Deed, Registry
from agent_os.kernel.tools.schema import Schema
from drivers.tools.means import Bodies, run


def test_a_long_result_is_read_on_by_its_blob() -> None:
    bodies = Bodies()
    shown = run(bodies.kept().show(b"0123456789" * 10_000, 1000))
    assert "left out" in shown.text
    found = run(output.output({"blob": shown.blob, "offset": 5, "limit": 10}, bodies.kept()))
    Schema(output.OUTPUT.output_schema).require(found, "it", ran=True)
    assert found == {"text": "5678901234", "offset": 5, "size": 100_000, "more": True}
    end = run(output.output({"blob": shown.blob, "offset": 99_998}, bodies.kept()))
    assert (end["text"], end["more"]) == ("89", False)


def test_what_is_no_text_says_so() -> None:
    bodies = Bodies()
    blob = run(bodies.kept().show(b"a\xffb", 1000)).blob
    assert run(output.output({"blob": blob}, bodies.kept()))["replaced"] is True


def test_another_agents_output_is_not_there() -> None:
    mine, yours = Bodies(), Bodies()
    blob = run(mine.kept().show(b"x" * 5000, 1000)).blob
    with pytest.raises(ENOENT):
        run(output.output({"blob": blob}, yours.kept()))


def test_a_blob_is_named_by_its_digest_and_nothing_else() -> None:
    async def nothing(call: Any) -> None: ...

    there = Registry(lambda: 0.0)
    there.register(output.OUTPUT, Deed(nothing))
    for wrong in ("../../etc/passwd", "a" * 63, "A" * 64, ""):
        with pytest.raises(ETYPE):
            there.prepare("tool.output", {"blob": wrong})
