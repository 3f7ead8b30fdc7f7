"""Where the official programs of MCP meet our server: a kernel with its gateway, and a door beside it that adds the
token which those programs cannot be told to send."""

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from gateway.house import House

OFFERING = Path(__file__).with_name("offering.py")


class Stand(House):
    """A house whose kernel has the tools of `offering.py`. Its limits are those of a suite in a hurry."""

    def __init__(self, top: Path, rules: str) -> None:
        self._kernel: subprocess.Popen[bytes] | None = None
        self._rules = rules
        super().__init__(top, limits={"rate": 10_000, "burst": 10_000})

    def open(self) -> None:
        home = self.desk.home
        (home / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "policy.toml").write_text(self._rules)
        heard, said = os.pipe()
        command = [sys.executable, str(OFFERING), "--home", str(home), "--socket", str(self.socket)]
        with (home / "logs" / "kernel.log").open("wb") as out:
            self._kernel = subprocess.Popen(
                [*command, "--ready-fd", str(said)], env=self.desk.env, stderr=out, pass_fds=[said]
            )
        os.close(said)
        with os.fdopen(heard, "rb") as news:
            assert b"ready" in news.read(), (home / "logs" / "kernel.log").read_text()
        super().open()

    def close(self) -> None:
        super().close()
        if self._kernel:
            self._kernel.wait(60)


class Porter:
    """A loopback proxy that adds the Authorization header of one client to whatever passes, and changes nothing else
    but its own name to that of the host behind it."""

    def __init__(self, house: House, token: str) -> None:
        self._to, self._token = house.host, token
        self._opened, self._enough = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._meetings: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> "Porter":
        self._thread.start()
        assert self._opened.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._enough.set)
        self._thread.join(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._met, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._opened.set()
        await self._enough.wait()
        server.close()
        for meeting in self._meetings:
            meeting.cancel()
        await asyncio.gather(*self._meetings, return_exceptions=True)

    def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        meeting = asyncio.create_task(self._meet(reader, writer))
        self._meetings.add(meeting)
        meeting.add_done_callback(self._meetings.discard)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request: its answer is the last on this connection, so the other side opens another."""
        writers = [writer]
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            host, _, port = self._to.partition(":")
            there, back = await asyncio.open_connection(host, int(port))
            writers.append(back)
            back.write(self._rewritten(head))
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(_carry(reader, back))
                await _carry(there, writer)
                asking.cancel()
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one of the two sides has gone
        finally:
            for one in writers:
                one.close()
                with suppress(OSError):
                    await one.wait_closed()

    def _rewritten(self, head: bytes) -> bytes:
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        sent = [line for line in lines if not line.lower().startswith("connection:")]
        mine = f"127.0.0.1:{self.port}"
        sent = [
            line.replace(mine, self._to) if line.lower().startswith(("host:", "origin:")) else line for line in sent
        ]
        return "\r\n".join([first, *sent, "Connection: close", f"Authorization: Bearer {self._token}", "", ""]).encode(
            "latin-1"
        )


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
