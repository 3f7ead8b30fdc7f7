"""The kernel's own part of the doctor: proxy, workspace, history, packages, disk.

The sandbox's part is `sandbox.probe`. Everything is tried for real; what a check makes, it removes.
"""

import asyncio
import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent_os.kernel import levels
from agent_os.kernel.egress import Connection, Egress
from agent_os.kernel.egress.addresses import parse_grant
from agent_os.kernel.journal import Journal
from agent_os.kernel.plan import Host, Order
from agent_os.kernel.process import start
from agent_os.kernel.records import Records
from agent_os.sandbox.probe import Check
from agent_os.sandbox.spawner import Launcher

_LOW_DISK_MB = 1024


async def workspace(host: Host, journal: Journal) -> Check:
    """Run a real guest over a scratch project, and see whether its writes stay apart."""
    with tempfile.TemporaryDirectory(prefix="agent-os-doctor-") as scratch:
        project, state = Path(scratch, "project").resolve(), Path(scratch, "state").resolve()
        project.mkdir()
        state.mkdir()
        (project / "kept").write_text("as it was")
        launcher = await Launcher.start()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            order = Order(("/bin/sh", "-c", "echo changed > kept; echo new > made"), project, project)
            guest = await start(order, (null, null, null), Host(state, host.home, host.env), launcher, Records(journal))
            outcome = await guest.finish()
        finally:
            os.close(null)
            await launcher.close()
        touched = (project / "kept").read_text() != "as it was" or (project / "made").exists()
        assert outcome.workspace
        mode = outcome.workspace.meta.mode
    if touched:
        return Check("workspace", "fail", "a guest's write reached the project", "report this: it is a hole")
    if [change.path for change in outcome.changes] != ["kept", "made"] or outcome.code:
        return Check("workspace", "fail", f"a guest over a scratch project ended {outcome.code} with {outcome.changes}")
    if mode == "copy":
        return Check("workspace", "warn", "no overlay here: projects are copied, which takes time and room")
    return Check("workspace", "ok", "overlay: a guest's writes stay apart from the project")


async def proxy() -> Check:
    """The proxy's rules, on loopback, with a resolver that counts: allowed, denied, metadata, malformed, no look-up."""
    asked: list[str] = []

    async def resolve(name: str, port: int) -> Sequence[str]:
        asked.append(name)
        return ["169.254.169.254"] if name == "metadata.test" else ["127.0.0.1"]

    seen: list[Connection] = []
    server = await asyncio.start_server(_hello, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    grants = [parse_grant(text) for text in (f"127.0.0.1:{port}", f"metadata.test:{port}")]
    egress = Egress("doctor", grants, seen.append, resolve=resolve)
    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()
    serving = asyncio.create_task(egress.serve(listener))
    try:
        answers = {
            "allow": await _get(place, f"http://127.0.0.1:{port}/"),
            "deny": await _get(place, f"http://denied.test:{port}/"),
            "metadata": await _get(place, f"http://metadata.test:{port}/"),
            "NUL host": await _get(place, f"http://127.0.0.1\0.test:{port}/"),
        }
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        server.close()
        await server.wait_closed()
    wrong = [name for name, status in answers.items() if (status == 200) != (name == "allow")]
    if "denied.test" in asked:
        wrong.append("a denied name was looked up")
    if wrong:
        return Check("proxy", "fail", f"wrong answer to: {', '.join(wrong)}", "report this: it is a hole")
    return Check("proxy", "ok", "allowed what was granted, refused the rest, looked up no denied name")


async def _hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def _get(place: tuple[str, int], url: str) -> int:
    """The status of one request through the proxy; 0 if it just hung up."""
    reader, writer = await asyncio.open_connection(*place)
    host = url.removeprefix("http://").rstrip("/")
    writer.write(f"GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    line = (await reader.readline()).split()
    writer.close()
    return int(line[1]) if len(line) > 1 else 0


def home(host: Host, level: str) -> list[Check]:
    return [_not_lower_than_before(host, level), _disk(host)]


def installation() -> list[Check]:
    return [_foreign_package(), _pth_files()]


def _not_lower_than_before(host: Host, level: str) -> Check:
    """A host that isolated better last time is an alert, whatever the minimum is."""
    before = levels.known(host.state)
    if before and levels.is_lower(level, before):
        return Check(
            "history", "fail", f"isolation fell from {before} to {level} since last time", "see isolation above"
        )
    levels.remember(host.state, level)
    return Check("history", "ok", f"no lower than last time ({before or level})")


def _foreign_package() -> Check:
    for name in ("agent-os-kernel", "agent_os_kernel"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        cause = f"{name} {version} installs a package of the same name over ours"
        return Check("package", "fail", cause, f"pip uninstall {name}, then install agent-os again")
    return Check("package", "ok", "no other package is called agent_os")


def _pth_files() -> Check:
    """Files that run code at every start of Python; two poisoned releases of a known library came that way."""
    known = (
        "__editable__",
        "_agent_os",
        "_editable_impl_agent_os",
        "distutils-precedence",
        "_virtualenv",
        "a1_coverage",
    )
    strange = [
        str(path)
        for folder in map(Path, sys.path)
        if folder.name == "site-packages"
        for path in folder.glob("*.pth")
        if not path.name.startswith(known) and "import " in path.read_text(errors="replace")
    ]
    if strange:
        return Check(
            "start-up code", "warn", f"runs at every start of Python: {', '.join(strange)}", "know why it is there"
        )
    return Check("start-up code", "ok", "no unexpected .pth file")


def _disk(host: Host) -> Check:
    free = shutil.disk_usage(host.state).free >> 20
    status = "ok" if free > _LOW_DISK_MB else "warn"
    return Check(
        "disk", status, f"{free:,} MiB free for workspaces", "" if status == "ok" else f"free some at {host.state}"
    )
