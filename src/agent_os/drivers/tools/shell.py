"""`shell.execute`: a command in a sandbox of its own.

Needs `Runs` (a one-shot run of kind `tool` with the agent's workspace) and `Keep`. An allow list is about the program
of `argv`, as the file that it really is; a command line is never searched for words, because nobody can tell what a
shell makes of them: it needs the right to run anything, and the sandbox bounds it. Options of an allowed program may
run others (`find -exec`, `git -c core.pager`): that too is the sandbox's, not the list's.
"""

import posixpath
from collections.abc import Mapping
from typing import Any

from agent_os.abi.errors import EINVAL, EIO, EMSGSIZE, ETIMEDOUT
from agent_os.abi.tools import LARGEST_OUTPUT, OUTPUT_LIMIT, ToolSpec
from agent_os.drivers.tools import Keep, Program, Ran, Runs
from agent_os.drivers.tools.shapes import flag, path, record, rows, seconds, text, whole

SHELL = "/bin/sh"
ANYTHING = "*"
MOST_WORDS = 1000
LONGEST = 100 << 10  # bytes of a command or of all words
LARGEST_INPUT = 1 << 20
MOST_SECONDS = 3600.0
NETWORK = "true: it can reach the hosts that you may reach, through your proxy"
_PARTIAL = 4 << 10  # bytes of each stream that a timeout brings back

OUTPUT = record(
    "exit stdout stderr duration_ms",
    exit=whole("its exit status; 128 and more: ended by a signal", least=0, most=255),
    stdout=text(),
    stderr=text(),
    stdout_size=whole("bytes of all of it"),
    stderr_size=whole("bytes of all of it"),
    stdout_blob=text("all of it, for tool.output"),
    stderr_blob=text("all of it, for tool.output"),
    duration_ms=whole(),
    out_of_memory=flag("it was killed for its memory limit"),
)

EXECUTE = ToolSpec(
    name="shell.execute",
    description=(
        "Run a program in a sandbox with your workspace at /work, and without a network unless you ask for it. Give "
        "argv, a list of words that no shell reads, or command, a line for /bin/sh. An exit status that is not 0 is a "
        "result, not an error."
    ),
    input_schema=record(
        argv=rows(text(most=LONGEST), "program and arguments", most=MOST_WORDS),
        command=text("a line for /bin/sh -c", most=LONGEST),
        cwd=path("where it runs; /work if not given"),
        stdin=text("what it reads", most=LARGEST_INPUT),
        timeout_s=seconds("after this all of it is killed; 30 if not given", most=MOST_SECONDS),
        network=flag(NETWORK),
    ),
    output_schema=OUTPUT,
    effect="opaque",
    requires=("shell:{program}:execute",),
    sandbox="tool",
    concurrency=64,
    timeout_s=MOST_SECONDS,
    tags=("shell", "run"),
)


def names(params: Mapping[str, Any], runs: Runs) -> dict[str, Any]:
    """For its capability: the program as the file that it is, or `*` for a line that a shell reads. `programs`: what an
    allow list may call it. A file of the workspace has no name but its path: `./cat` is not cat."""
    words = _words(params)
    if "command" in params:
        return {"program": ANYTHING, "programs": ()}
    return named(runs.find(words[0]))


def named(found: Program) -> dict[str, Any]:
    short = (posixpath.basename(found.path), posixpath.basename(found.real)) if found.system else ()
    return {"program": found.real, "programs": tuple(dict.fromkeys((found.path, found.real, *short)))}


def _words(params: Mapping[str, Any]) -> list[str]:
    if ("argv" in params) == ("command" in params):
        raise EINVAL("shell.command", "give either argv or command", hint='argv: ["ls", "-l"], or command: "ls -l"')
    words: list[str] = [SHELL, "-c", params["command"]] if "command" in params else params["argv"]
    if not words or not words[0]:
        raise EINVAL("shell.command", "argv is empty", hint='argv: ["ls", "-l"]')
    for word in words:
        if "\0" in word:
            raise EINVAL("shell.command", "a word of a command holds no NUL")
    if sum(len(word.encode(errors="surrogatepass")) for word in words) > LONGEST:
        raise EMSGSIZE("shell.command", f"a command has at most {LONGEST} bytes", hint="give data as stdin")
    return words


def runnable(found: Program) -> str:
    """By the name it was found by, as some programs are several by their names; in a folder that others can write to,
    a link could be another one by then."""
    return found.path if found.system else found.real


async def execute(params: Mapping[str, Any], runs: Runs, keep: Keep) -> dict[str, Any]:
    words = _words(params)
    if "argv" in params:  # what was decided on is what runs, whatever takes its name meanwhile
        words = [runnable(runs.find(words[0])), *words[1:]]
    timeout = float(params.get("timeout_s", 30.0))
    stdin = str(params.get("stdin", "")).encode()
    cwd, network = params.get("cwd", "/work"), bool(params.get("network"))
    ran = await runs.run(words, stdin=stdin, cwd=cwd, timeout_s=timeout, network=network)
    return await told(ran, keep, timeout)


async def told(ran: Ran, keep: Keep, timeout: float) -> dict[str, Any]:
    """A run as a result. ETIMEDOUT, EMSGSIZE: it was killed; what it had written by then is in the detail."""
    if ran.timed_out or ran.too_large:
        out, err = _beginning(ran.stdout), _beginning(ran.stderr)
        if ran.timed_out:
            reason = f"it ran for more than {timeout:g} s and was killed with all that it started"
            raise ETIMEDOUT("tool.timeout", reason, hint="raise timeout_s", stdout=out, stderr=err, ran=True)
        reason = f"it wrote more than {LARGEST_OUTPUT >> 20} MiB and was killed"
        raise EMSGSIZE("tool.output", reason, hint="write to a file below /work", stdout=out, stderr=err, ran=True)
    if ran.code < 0:
        raise EIO("tool.run", "how it ended is not known", ran=True)
    most = OUTPUT_LIMIT * 3 // 8  # of each: JSON makes texts longer
    stdout, stderr = await keep.show(ran.stdout, most), await keep.show(ran.stderr, most)
    result: dict[str, Any] = {"exit": ran.code, "stdout": stdout.text, "stderr": stderr.text}
    for name, one in (("stdout", stdout), ("stderr", stderr)):
        if one.blob:
            result |= {f"{name}_size": one.size, f"{name}_blob": one.blob}
    if ran.out_of_memory:
        result["out_of_memory"] = True
    return {**result, "duration_ms": round(ran.seconds * 1000)}


def _beginning(data: bytes) -> str:
    return data[:_PARTIAL].decode(errors="replace")
