"""`python.execute`: a program in a fresh, isolated interpreter in a sandbox of its own.

Needs `Runs` and `Keep`, as `shell.execute`. The program and its files go in by its standard input, so that neither is
on a command line; then its input is empty. They lie below /work of that run, which is gone afterwards unless it is the
agent's own workspace.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from agent_os.abi.errors import EINVAL, EMSGSIZE
from agent_os.abi.tools import ToolSpec
from agent_os.drivers.tools import Keep, Runs
from agent_os.drivers.tools.shapes import flag, record, seconds, table, text
from agent_os.drivers.tools.shell import MOST_SECONDS, NETWORK, OUTPUT, named, runnable, told

INTERPRETER = "/usr/bin/python3"
LARGEST_CODE = 1 << 20
LARGEST_FILES = 8 << 20
MOST_FILES = 100
# -I: no variables, no user's packages, not the current folder. The name in tracebacks is that of the program itself.
_FLAGS = ("-I", "-B", "-X", "utf8")
BOOT = """
import json, os, sys
given = json.loads(sys.stdin.buffer.read())
for name, text in given["files"].items():
    if os.path.dirname(name): os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "w", encoding="utf-8", newline="") as file: file.write(text)
null = os.open(os.devnull, os.O_RDONLY); os.dup2(null, 0); os.close(null); sys.stdin = open(0)
sys.argv = ["program.py"]; sys.path.insert(0, os.getcwd())
import linecache
code = given["code"]
linecache.cache["program.py"] = (len(code), None, code.splitlines(True), "program.py")
main = type(sys)("__main__"); main.__builtins__ = __builtins__; sys.modules["__main__"] = main
try:
    exec(compile(code, "program.py", "exec"), main.__dict__)
except SystemExit:
    raise
except BaseException as problem:
    import traceback
    traceback.print_exception(problem.with_traceback(problem.__traceback__.tb_next))
    sys.exit(1)
"""

EXECUTE = ToolSpec(
    name="python.execute",
    description=(
        "Run a Python program in a fresh interpreter, in a sandbox without a network unless you ask for it. What it "
        "prints is the result. files are written beside it before it runs: names below the current folder, and texts."
    ),
    input_schema=record(
        "code",
        code=text("the program", most=LARGEST_CODE),
        files=table(text(most=LARGEST_FILES), "name: text", most=MOST_FILES),
        timeout_s=seconds("after this all of it is killed; 30 if not given", most=MOST_SECONDS),
        network=flag(NETWORK),
    ),
    output_schema=OUTPUT,
    effect="opaque",
    requires=("shell:{program}:execute",),
    sandbox="tool",
    concurrency=64,
    timeout_s=MOST_SECONDS,
    tags=("python", "run"),
)


def names(params: Mapping[str, Any], runs: Runs) -> dict[str, Any]:
    return named(runs.find(INTERPRETER))


async def execute(params: Mapping[str, Any], runs: Runs, keep: Keep) -> dict[str, Any]:
    files: dict[str, str] = params.get("files", {})
    for name in files:
        _require_below(name)
    if sum(len(one) for one in files.values()) > LARGEST_FILES:
        raise EMSGSIZE("python.files", f"the files have at most {LARGEST_FILES >> 20} MiB together")
    timeout = float(params.get("timeout_s", 30.0))
    stdin = msgspec.json.encode({"code": params["code"], "files": files})
    argv = [runnable(runs.find(INTERPRETER)), *_FLAGS, "-c", BOOT]
    ran = await runs.run(argv, stdin=stdin, timeout_s=timeout, network=bool(params.get("network")))
    return await told(ran, keep, timeout)


def _require_below(name: str) -> None:
    parts = name.split("/")
    if not name or name.startswith("/") or "\0" in name or len(name) > 255 or {"", ".", ".."} & set(parts):
        raise EINVAL("python.files", f"{name[:100]!r} is not a name below the current folder", hint="as data/input.csv")
