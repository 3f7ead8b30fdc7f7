"""The built-in tools put together: each spec with what carries it out, on what the kernel gives for one agent.

A composition root like `daemon`, which decides nothing: the kernel knows interfaces of drivers only. In: a registry
and whoever makes the means of an agent. Out: the tools, registered for all. The browser and MCP servers come with their
helpers, and are not here.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from agent_os.abi.errors import EISOLATION
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tools.registry import Call, Deed, Registry, Tool, Verified

if TYPE_CHECKING:
    from agent_os.abi.tools import ToolSpec
    from agent_os.drivers.tools import Compile, Files, Keep, Runs, Web
    from agent_os.kernel.tools.servers import Servers

Params = Mapping[str, Any]


class Means(Struct, frozen=True):
    """One agent's."""

    files: "Files"
    runs: "Runs"
    keep: "Keep"
    web: "Web"


class Working(Protocol):
    """The same for one call, made when it is used."""

    @property
    def files(self) -> "Files": ...

    @property
    def runs(self) -> "Runs": ...

    @property
    def keep(self) -> "Keep": ...

    @property
    def web(self) -> "Web": ...


Of = Callable[[Call], Working]
Work = Callable[[Call, Working], Awaitable[Any]]


def install(kernel: Kernel) -> None:
    """Into a kernel, before anything of before a crash is settled. The tools are made when somebody first looks: most
    kernels run programs that use none."""
    kernel.tools.registry.fill = partial(_fill, kernel)
    kernel.tools.make_servers = partial(_servers, kernel)
    if any(kernel.store.items("mcp")):  # else with the first that is added
        kernel.tools.servers = _servers(kernel)


def _fill(kernel: Kernel) -> None:
    from agent_os.kernel.supervisor.regex import Regex
    from agent_os.kernel.tools.means import SandboxRuns

    register(kernel.tools.registry, kernel.tools.means, Regex, SandboxRuns(_nothing, "kernel"))
    _browse(kernel)


def _servers(kernel: Kernel) -> "Servers":
    from agent_os.drivers.tools import mcp
    from agent_os.kernel.tools.servers import Servers

    return Servers(kernel, mcp)


def register(registry: Registry, of: Of, compiled: "Compile", runs: "Runs") -> list[Tool]:
    """`runs` finds programs, which are the same for every agent."""
    from agent_os.drivers.tools import files, http, memory, output, python, shell

    names = {"shell": partial(shell.names, runs=runs), "python": partial(python.names, runs=runs)}
    rows: list[tuple[ModuleType, ToolSpec, Work, Callable[[Params], Mapping[str, Any]] | None]] = [
        (files, files.READ, lambda call, use: files.read(call.params, use.files, use.keep), None),
        (files, files.WRITE, lambda call, use: files.write(call.params, use.files), None),
        (files, files.LIST, lambda call, use: files.list_(call.params, use.files), None),
        (files, files.SEARCH, lambda call, use: files.search(call.params, use.files, compiled), None),
        (shell, shell.EXECUTE, lambda call, use: shell.execute(call.params, use.runs, use.keep), names["shell"]),
        (python, python.EXECUTE, lambda call, use: python.execute(call.params, use.runs, use.keep), names["python"]),
        (http, http.FETCH, lambda call, use: http.fetch(call.params, use.web, use.keep), http.names),
        (memory, memory.SEARCH, lambda call, use: memory.search(call.params, use.files), memory.names),
        (output, output.OUTPUT, lambda call, use: output.output(call.params, use.keep), None),
    ]
    made = [
        registry.register(spec, Deed(_bound(work, of), names=named, digest=_digest(module)))
        for module, spec, work, named in rows
    ]
    return [*made, registry.register(files.EDIT, _editing(of))]


def _browse(kernel: Kernel) -> None:
    """The verbs of a browser, each asked of the one that its agent has."""
    from agent_os.drivers.tools import browser

    def add(spec: "ToolSpec", verb: Callable[..., Awaitable[Any]], *, keeps: bool = False) -> None:
        async def run(call: Call) -> Any:
            helper = await kernel.tools.browser(call.under.agent)
            call.under.confirm((), {})
            more = (call.under.keep,) if keeps else ()
            return await verb(call.params, helper, *more)

        kernel.tools.registry.register(spec, Deed(run, digest=_digest(browser)))

    add(browser.NAVIGATE, browser.navigate)
    add(browser.READ, browser.read, keeps=True)
    add(browser.CLICK, browser.click)
    add(browser.TYPE, browser.type_)
    add(browser.SCREENSHOT, browser.screenshot, keeps=True)
    add(browser.CLOSE, browser.close)


async def _nothing() -> Any:
    raise EISOLATION("tool.sandbox", "this only finds programs")


def _bound(work: Work, of: Of) -> Callable[[Call], Awaitable[Any]]:
    async def run(call: Call) -> Any:
        return await work(call, of(call))

    return run


def _editing(of: Of) -> Deed:
    from agent_os.drivers.tools import files

    async def run(call: Call) -> Any:
        return await files.edit(call.params, call.plan, of(call).files)

    async def plan(call: Call) -> dict[str, Any]:
        return await files.plan_edit(call.params, of(call).files)

    async def verify(call: Call) -> Verified:
        state, value = await files.verify_edit(call.params, call.plan, of(call).files)
        return Verified(state, value)

    return Deed(run, plan=plan, verify=verify, digest=_digest(files))


def _digest(module: ModuleType) -> bytes:
    assert module.__file__
    return sha256(Path(module.__file__).read_bytes()).digest()
