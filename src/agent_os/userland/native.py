"""Runs a native agent inside its confinement: the first moment at which author code is imported.

Preloaded into the launcher with all that an agent needs, so that a spawn imports nothing; therefore nothing here, and
nothing that it imports, may start a thread, open a file or keep state at import time.
"""

import asyncio
import importlib.util
import os
import random
import re
import runpy
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from itertools import dropwhile
from typing import Any, cast

from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.userland.agent import Agent
from agent_os.userland.context import Context
from agent_os.userland.pipes import STAGE, as_stage
from agent_os.userland.session import CURRENT
from agent_os.userland.wire import DESCRIPTOR

AnyAgent = Agent[..., Any]
_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)?")
_TERMINATED = 128 + 15  # what a shell reports of a program that SIGTERM ended
_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_AROUND = (os.path.join(os.path.dirname(asyncio.__file__), ""), "<frozen ")  # what calls an author's code for us
_MOST_FAILURE = 500  # characters of a failure that the record keeps


def run(argv: list[str]) -> int:
    """Run one of these to its end and return its exit code:
    `FILE.py:NAME [INPUT…]`  an `@agent` function, with the kernel on descriptor 3; without NAME, the only one there
    `FILE.py [ARG…]` or `-c CODE [ARG…]`  a program, as `python` would run it
    """
    named = _NAMED.fullmatch(argv[0])
    if named and not os.path.exists(argv[0]):
        code = _guarded(lambda: _run_agent(named["file"], named["name"], argv[1:]))
    else:
        code = _guarded(lambda: _run_script(argv))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


def _guarded(work: Any) -> int:
    """As `python` ends: whatever comes out of the author's code becomes an exit code."""
    try:
        return work()
    except SystemExit as end:
        return _exit_code(end.code)
    except BaseException as problem:
        _print(problem)
        return 1


def _run_script(argv: list[str]) -> int:
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = list(argv)
        runpy.run_path(argv[0], run_name="__main__")
    return 0


def _run_agent(file: str, name: str | None, words: list[str]) -> int:
    """The kernel hears of every failure that comes after the connection, one in the author's file included."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(_live(file, name, words))


async def _live(file: str, name: str | None, words: list[str]) -> int:
    problem, program = None, None
    random.seed(0)  # for what the file does while it is loaded; the kernel's own seed comes with the connection
    try:
        program = load(file, name)
    except BaseException as raised:
        problem = raised
    hook, check = (program.hook, program.check) if program else (None, None)
    says_ready = program is not None and program.says_ready
    ctx = await Context.connect(_kernel(), hook=hook, check=check, says_ready=says_ready)
    if program is None or problem:
        return await _leave(ctx, problem)
    ctx.declared = program.extra
    try:
        CURRENT.set(ctx)
        if ctx.input == STAGE:
            result = await ctx.run(_kept(as_stage, ctx, program))
        else:
            arguments = program.bind(ctx.input, words)
            result = await ctx.run(_kept(program.function, ctx, **arguments))
    except BaseException as raised:
        return await _leave(ctx, raised)
    if isinstance(result, SystemExit):
        return await _leave(ctx, result)
    try:
        await ctx.leave(0, result)
        return 0
    except EINVAL as raised:
        return await _leave(ctx, raised)


async def _kept(program: Callable[..., Awaitable[Any]], /, *given: Any, **arguments: Any) -> Any:
    """A SystemExit as a result: raised, it would stop the event loop before the kernel heard of it. The program is
    called in here: whoever is ended before it began leaves nothing behind that Python would complain about."""
    try:
        return await program(*given, **arguments)
    except SystemExit as end:
        return end


async def _leave(ctx: Context, problem: BaseException | None) -> int:
    """Tell the kernel how it ended: the traceback goes to stderr, one sentence into the record."""
    result = None
    if isinstance(problem, asyncio.CancelledError) and ctx.ending:
        status, failure = _TERMINATED, f"ended by {ctx.ending.name}"
    elif isinstance(problem, SystemExit):
        status = _exit_code(problem.code)
        failure = str(problem.code) if isinstance(problem.code, str) else getattr(problem, "failure", None)
        result = getattr(problem, "result", None)
    else:
        _print(problem)
        status, failure = 1, _sentence(problem)
    try:
        await ctx.leave(status, result, failure=failure)
    except AgentOSError as gone:  # most likely what ended the program in the first place
        print(f"the kernel could not be told: {gone}", file=sys.stderr)
    return status


def load(file: str, name: str | None = None) -> AnyAgent:
    """The agent of that name in a file, or the only one. Runs the file, as an import does."""
    if not os.path.isfile(file):
        raise EINVAL("program.file", f"there is no file {file}")
    module_name = re.sub(r"\W", "_", os.path.basename(file).removesuffix(".py"))
    if module_name in sys.modules:  # its own name must not stand in for a module that it wants to import
        module_name = f"__agent_{module_name}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and type hints look their module up
    sys.dont_write_bytecode = True  # its directory is somebody's project
    sys.argv = [file]
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    spec.loader.exec_module(module)
    found = {key: cast(AnyAgent, value) for key, value in vars(module).items() if isinstance(value, Agent)}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is not None and name in found:
        return found[name]
    there = ", ".join(sorted(found)) or "none; put @agent above an async def"
    asked = f"no @agent {name!r}" if name else "not exactly one @agent"
    raise EINVAL("program.name", f"{os.path.basename(file)} has {asked}: it has {there}")


def _kernel() -> socket.socket:
    try:
        sock = socket.socket(fileno=DESCRIPTOR)
    except OSError as problem:
        reason = f"no kernel on descriptor {DESCRIPTOR}: {problem.strerror}"
        raise EINVAL("kernel.absent", reason, hint="agentctl run FILE.py:NAME starts an agent with one") from problem
    sock.set_inheritable(False)  # what the agent starts speaks for itself, not for the agent
    return sock


def _print(problem: BaseException | None) -> None:
    """As `python` does, but of the lines that led there only the author's: ours are not theirs to read."""
    if problem:
        told = traceback.TracebackException.from_exception(problem)
        _leave_ours_out(told)
        print("".join(told.format()), end="", file=sys.stderr)
        if isinstance(problem, AgentOSError) and (help := _help(problem)):
            print(f"  try: {help}", file=sys.stderr)


def _help(problem: AgentOSError) -> str:
    """What its author can do about a refusal: what the kernel says, or who gives what is missing."""
    if not problem.hint and isinstance(missing := problem.detail.get("missing"), str):
        return f"agentctl run --cap '{missing}', or capabilities in its manifest"
    return problem.hint


def _leave_ours_out(told: traceback.TracebackException | None) -> bool:
    """Whether it tells of anything but us."""
    if told is None or not told.stack:
        return told is not None
    others = [one for one in told.stack if not one.filename.startswith(_OURS)]
    theirs = list(dropwhile(lambda one: one.filename.startswith(_AROUND), others))
    told.stack = traceback.StackSummary.from_list(theirs) if theirs else None  # pyright: ignore[reportAttributeAccessIssue]
    for one in told.exceptions or ():
        _leave_ours_out(one)
    if not _leave_ours_out(told.__cause__):
        told.__cause__ = None
    if not _leave_ours_out(told.__context__):
        told.__context__ = None
    return bool(theirs)


def _sentence(problem: BaseException | None) -> str:
    text = "".join(traceback.format_exception_only(problem)).strip().splitlines()[-1] if problem else "no program"
    return text[:_MOST_FAILURE]


def _exit_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1
