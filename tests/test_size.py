"""`scripts/size` finds what it counts, fails where a figure rose, and passes where one fell."""

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SIZE = Path(__file__).resolve().parent.parent / "scripts/size"
FILES = {
    "__init__.py": '"""The package."""\n',
    "kernel/__init__.py": "",
    "kernel/boot.py": '''"""Several lines

that are no code."""

from typing import TYPE_CHECKING

from agent_os.kernel import table

if TYPE_CHECKING:
    from agent_os.kernel.guest.starting import Guest

TEXT = """one

# no comment
"""


class Kernel:
    """A docstring."""

    # A comment.
    def boot(self) -> "Guest":
        from agent_os.kernel.bus import Unseen  # inside a function: no edge

        return table.find()  # 13 lines of code with the class below: all four of TEXT are


class Row: ...
''',
    "kernel/table.py": "import agent_os.kernel.boot\n\n\nclass Row: ...\n\n\nclass _Row: ...\n",
    "kernel/guest/starting.py": "from ..table import Row\n\n\nclass Guest(Row): ...\n",
    "kernel/bus.py": "from agent_os.kernel import table\n\nUnseen = table\n",
    "cli/string.py": "from agent_os.cli import run\n",
    "cli/run.py": "import os\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "src/agent_os" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(SIZE, tmp_path / "scripts/size")
    return tmp_path


def load(checkout: Path) -> Any:
    """The script, at work on that checkout."""
    loader = SourceFileLoader("size_of_a_checkout", str(checkout / "scripts/size"))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_it_finds_what_it_counts(checkout: Path) -> None:
    figures = load(checkout).measure(checkout)
    assert figures["kernel/*.py"] == {"files": 4, "code lines": 18, "header lines": 5}
    assert figures["kernel/guest"] == {"files": 1, "code lines": 2, "header lines": 1}
    assert figures["cli"] == {"files": 2, "code lines": 2, "header lines": 2}
    assert figures["top level"] == {"files": 1, "code lines": 0, "header lines": 0}
    assert figures["kernel, all rooms"] == {"files": 5, "code lines": 20, "header lines": 6}
    assert figures["src"] == {"files": 8, "code lines": 22, "header lines": 8}
    assert figures["shape"] == {
        "largest cycle of kernel modules": 3,  # boot, table, starting; one edge only below TYPE_CHECKING
        "largest cycle of src modules": 3,
        "public class names used more than once": 1,
        "files named by a gerund": 1,
        "files under 120 lines with one importer": 3,  # boot, starting, run
    }


def test_a_rise_fails_and_names_both_values_and_the_way_to_raise_it(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = load(checkout)
    assert size.main(["--static", "--write"]) == 0
    assert size.main(["--static"]) == 0
    with (checkout / "src/agent_os/cli/run.py").open("a") as file:
        file.write("\n\nRUNS = 1\n# A comment is free.\n")
    capsys.readouterr()
    assert size.main(["--static"]) == 1
    told = capsys.readouterr().out
    assert [line for line in told.splitlines() if line.startswith("ROSE")] == [
        "ROSE  cli, code lines: 2 -> 3",
        "ROSE  src, code lines: 22 -> 23",
    ]
    assert "scripts/size --write" in told
    assert size.main(["--static", "--write"]) == 0
    assert size.main(["--static"]) == 0


def test_a_fall_passes_and_asks_to_be_kept(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = load(checkout)
    size.main(["--static", "--write"])
    (checkout / "src/agent_os/cli/string.py").unlink()
    capsys.readouterr()
    assert size.main(["--static"]) == 0
    told = capsys.readouterr().out
    assert "fell  cli, files: 2 -> 1" in told
    assert "keep what fell: scripts/size --write" in told
    assert "ROSE" not in told


def test_a_new_room_is_a_rise(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = load(checkout)
    size.main(["--static", "--write"])
    (checkout / "src/agent_os/attic").mkdir()
    (checkout / "src/agent_os/attic/box.py").write_text("")
    assert size.main(["--static"]) == 1
    assert "ROSE  attic, files: 0 -> 1" in capsys.readouterr().out


def test_counts_of_calls_have_a_small_tolerance_and_nothing_else_has(checkout: Path) -> None:
    size = load(checkout)
    kept = {size.READ: {"calls": 100}, "cli": {"files": 100}}
    assert size.compare({size.READ: {"calls": 102}, "cli": {"files": 100}}, kept) == ([], [])
    rose, _ = size.compare({size.READ: {"calls": 103}, "cli": {"files": 101}}, kept)
    assert [line.partition(":")[0] for line in rose] == [f"{size.READ}, calls", "cli, files"]


def test_calls_that_were_not_counted_stay_as_they_were_kept(checkout: Path) -> None:
    size = load(checkout)
    kept = {size.READ: {"calls": 100}}
    size.KEPT.write_text(json.dumps(kept))
    size.main(["--static", "--write"])
    assert json.loads(size.KEPT.read_text())[size.READ] == {"calls": 100}


DAEMON = """
import asyncio
import sys
import threading

from agent_os import worker

print("ready", flush=True, file=sys.stderr)


def serve():
    for number in map(int, open(sys.argv[1])):
        if number < 0:
            return
        threading.Thread(target=worker.begin, args=(number,)).start()


thread = threading.Thread(target=serve)
thread.start()
thread.join()
"""
WORKER = """
import asyncio

from agent_os import helper


def begin(number):
    asyncio.run(main(number))


async def main(number):
    for _ in range(number):
        helper.count([one for one in range(3)])
    await pause()


async def pause():
    for _ in range(3):
        await asyncio.sleep(0.01)
"""
HELPER = """
def count(values):
    return sum(each(values))


def each(values):
    for value in values:
        yield value
"""


@pytest.mark.integration
def test_the_hook_counts_starts_of_functions_in_all_threads_and_nothing_of_others(checkout: Path) -> None:
    """A process in the place of the kernel whose calls can be counted by hand."""
    package = checkout / "src/agent_os"
    (package / "daemon").mkdir()
    for name, text in {"daemon/__main__": DAEMON, "worker": WORKER, "helper": HELPER}.items():
        (package / f"{name}.py").write_text(text)
    orders = checkout / "orders"
    os.mkfifo(orders)
    command = [sys.executable, "-P", checkout / "scripts/size", "--kernel", orders]
    env = os.environ | {"PYTHONPATH": str(checkout / "src")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as kernel, orders.open("w") as tell:
        assert kernel.stdin
        assert kernel.stdout
        found: list[dict[str, int]] = []
        for number in (1, 5):
            kernel.stdin.write("start\n")
            kernel.stdin.flush()
            assert kernel.stdout.readline() == "counting\n"
            print(number, file=tell, flush=True)
            kernel.stdin.write("stop\n")
            kernel.stdin.flush()
            found.append(json.loads(kernel.stdout.readline()))
        print(-1, file=tell, flush=True)
        kernel.stdin.close()
        assert kernel.wait(60) == 0
    # begin, main and pause; count and each for every round; and back from the helper to the worker's pause.
    assert found == [
        {"calls": 5, "functions": 5, "files entered": 2, "changes of file": 2},
        {"calls": 13, "functions": 5, "files entered": 2, "changes of file": 2},
    ]
