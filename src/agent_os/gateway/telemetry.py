"""Traces to OpenTelemetry, where the standard variables ask for them: `invoke_agent` > `chat`, `execute_tool`.

In: the journal, followed as any client follows it. Out: spans, by OTLP over HTTP. A collector that is slow or not there
loses spans and is told of in the log; the journal is read on, nothing waits for it, and no call ever knows of it. What
was said is exported only where `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is true.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from agent_os import __version__
from agent_os.abi.errors import AgentOSError
from agent_os.abi.syscalls import Events, Status
from agent_os.client import conventions, otlp, wire
from agent_os.client.spans import Exported, Spans, exported, worth_exporting

MOST = 2048  # spans that wait
BATCH = 512
_AGAIN_S = 2.0  # before the kernel is asked again
_TOLD_S = 60.0  # between two words in the log
log = logging.getLogger("agent_os.telemetry")


class Sends(Protocol):
    def send(self, spans: list[Exported]) -> bool: ...

    def close(self) -> None: ...


@asynccontextmanager
async def following(socket: Path, env: Mapping[str, str] = os.environ) -> AsyncGenerator[None]:
    """Export for as long as this lasts, if somebody wants it."""
    if not otlp.wanted(env):
        yield
        return
    if not otlp.installed():
        log.warning("OTEL_* asks for traces, but OpenTelemetry is not installed: %s", otlp.INSTALL)
        yield
        return
    content = env.get(conventions.CONTENT_SWITCH, "").lower() == "true"
    telemetry = Telemetry(await asyncio.to_thread(otlp.Sender, __version__), content=content)
    tasks = [asyncio.create_task(telemetry.follow(socket)), asyncio.create_task(telemetry.send())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(telemetry.close)


class Telemetry:
    def __init__(self, sender: Sends, *, content: bool) -> None:
        self._sender, self._content = sender, content
        self._waiting: deque[Exported] = deque()
        self._more = asyncio.Event()
        self._told = 0.0
        self.sent = self.lost = 0

    async def follow(self, socket: Path) -> None:
        """The journal from now on, over every restart of the kernel. What it wrote meanwhile is read then."""
        spans, reached, known = Spans(), -1, ""
        while True:
            with suppress(AgentOSError, OSError):
                async with wire.connect(socket) as client:
                    status = await client.call(Status())
                    if status["log"] != known:
                        spans, reached, known = Spans(), int(status["entries"]), str(status["log"])
                    async for page in client.stream(Events(start=reached + 1, follow=True, bodies=True)):
                        for entry in page:
                            reached = int(entry["seq"])
                            over = [one for one in spans.ended(entry) if worth_exporting(one)]
                            self.take([exported(one, known, content=self._content) for one in over])
            await asyncio.sleep(_AGAIN_S)

    def take(self, spans: list[Exported]) -> None:
        """Never waits: what has no room is lost."""
        for one in spans:
            if len(self._waiting) < MOST:
                self._waiting.append(one)
            else:
                self.lost += 1
        if spans:
            self._more.set()

    async def send(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                if await asyncio.to_thread(self._sender.send, batch):
                    self.sent += len(batch)
                else:
                    self.lost += len(batch)
                    self._tell()

    def _tell(self) -> None:
        if time.monotonic() - self._told > _TOLD_S:
            self._told = time.monotonic()
            log.warning("the collector does not take spans; %d are lost by now", self.lost)

    def close(self) -> None:
        self._sender.close()
