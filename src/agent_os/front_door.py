"""The gateway's process, started and watched: a part of the composition root.

It runs in a session of its own, with a few variables and no descriptor of ours but three pipes and the socket at which
it listens; it holds nothing that the kernel needs. That socket is made here and kept for as long as a gateway is
wanted: whoever got the port between two of them would be sent the tokens of all who come there. It is asked now and
then whether it lives, over its input, and one that does not answer is killed. When it dies it is started again, later
each time; when we end it ends, even if we are killed, since its input ends with us.
"""

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_os.abi import errors
from agent_os.abi.doors import Gateway
from agent_os.abi.errors import EBUSY, EIO

LOG = "logs/gateway.log"
_PASSED = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "TZ")  # beside OTEL_*, by which traces are asked for
_TO_START = 60.0  # seconds
_TO_END = 5.0
_LOOK_EVERY, _TO_ANSWER = 5.0, 20.0
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 30.0
_LATELY_S = 30.0
_WELL_S = 60.0  # one that lived so long did not die of how it was started
log = logging.getLogger("agent_os.front_door")


class FrontDoor:
    """One gateway, or none. `facts` is None until it listens."""

    def __init__(self, home: Path, control: Path, env: Mapping[str, str]) -> None:
        self._home, self._control = home, control
        self._env = {name: value for name, value in env.items() if name in _PASSED or name.startswith("OTEL_")}
        self._wanted: Gateway | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._url: str | None = None
        self._listener: socket.socket | None = None
        self._watching: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # two may ask for it at once

    def facts(self) -> dict[str, Any] | None:
        if self._process is None or self._url is None:
            return None
        return {"url": self._url, "pid": self._process.pid}

    async def start(self, wanted: Gateway) -> None:
        async with self._turn:
            if self._watching:
                return
            self._listener = _listening(wanted.host, wanted.port, wanted.last_port)
            try:
                await self._launch(wanted)
            except BaseException:
                self._listener.close()
                raise
            self._wanted = wanted
            self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        async with self._turn:
            if self._watching:
                self._watching.cancel()
                with suppress(asyncio.CancelledError):
                    await self._watching
                self._watching = self._wanted = None
            await self._end()
            if self._listener:
                self._listener.close()

    async def _launch(self, wanted: Gateway) -> None:
        """Returns when it listens. Cancelled, or told no, it leaves no process behind."""
        assert self._listener
        listener = self._listener.fileno()
        order = {
            "socket": str(self._control),
            "host": wanted.host,
            "listener": listener,
            "names": wanted.names,
            "cert": wanted.cert,
            "key": wanted.key,
            "limits": wanted.limits,
        }
        with open(self._home / LOG, "ab", opener=_private) as out:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "agent_os.gateway"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=out,
                env=self._env,
                pass_fds=(listener,),
                cwd="/",
                start_new_session=True,
            )
        try:
            answer = await self._answer(self._process, order)
        except BaseException:
            await self._end()
            raise
        if error := answer.get("error"):
            await self._end()
            raise getattr(errors, error["name"], EIO)(error["code"], error["reason"], hint=error["hint"])
        self._url = answer["url"]
        log.info("the gateway, process %d, listens at %s", self._process.pid, self._url)

    async def _answer(self, process: asyncio.subprocess.Process, order: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin
        assert process.stdout
        line = b""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_TO_START):
                process.stdin.write(json.dumps(order).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        if not line:
            reason = "the gateway ended, or was silent, before it listened"
            raise EIO("gateway.failed", reason, hint=f"{self._home / LOG} says why")
        return json.loads(line)

    async def _watch(self) -> None:
        """Whenever it has died, or hangs and was killed, another one."""
        wait = _FIRST_WAIT
        while True:
            assert self._process
            assert self._wanted
            began = time.monotonic()
            code = await _over(self._process)
            self._process = self._url = None
            wait = _FIRST_WAIT if time.monotonic() - began > _WELL_S else min(wait * 2, _LONGEST_WAIT)
            log.warning("the gateway ended with %s; another one in %.1f s", code, wait)
            while self._process is None:
                await asyncio.sleep(wait)
                try:
                    await self._launch(self._wanted)
                except (errors.AgentOSError, OSError) as problem:
                    wait = min(wait * 2, _LONGEST_WAIT)
                    log.warning("the gateway did not come back: %s; again in %.1f s", problem, wait)

    async def _end(self) -> None:
        process, self._process, self._url = self._process, None, None
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        try:
            async with asyncio.timeout(_TO_END):
                await process.wait()
        except TimeoutError:  # it hangs
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _over(process: asyncio.subprocess.Process) -> int:
    """With which code it ended. Cancelled, it lives on."""
    over = asyncio.ensure_future(process.wait())
    try:
        while not over.done():
            await asyncio.wait([over], timeout=_LOOK_EVERY)
            if not over.done() and not await _answers(process, over):
                log.warning("the gateway, process %d, is silent for %g s, and is killed", process.pid, _TO_ANSWER)
                with suppress(ProcessLookupError):
                    process.kill()
                await over
        return over.result()
    finally:
        over.cancel()


async def _answers(process: asyncio.subprocess.Process, over: "asyncio.Future[int]") -> bool:
    """Whether it says that it lives; one that is ending may do that in the same time."""
    assert process.stdin
    assert process.stdout
    try:
        async with asyncio.timeout(_TO_ANSWER):
            with suppress(ConnectionError):
                process.stdin.write(b"\n")
                await process.stdin.drain()
            if not await process.stdout.readline():
                await asyncio.wait([over])
    except TimeoutError:
        return False
    return True


class Doctor:
    """`agentctl doctor`, in a process of its own: it tries things, and must hold up nobody."""

    def __init__(self, home: Path, socket: Path) -> None:
        self._env = {**os.environ, "AGENT_OS_HOME": str(home), "AGENT_OS_SOCKET": str(socket)}
        self._found: dict[str, Any] | None = None
        self._until = 0.0
        self._turn = asyncio.Lock()

    async def examine(self) -> dict[str, Any]:
        async with self._turn:
            if self._found is None or time.monotonic() > self._until:
                self._found, self._until = await self._ask(), time.monotonic() + _LATELY_S
            return self._found

    async def _ask(self) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "agent_os.cli.main", "doctor", "-o", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._env,
            cwd="/",
            start_new_session=True,
        )
        try:
            said, _ = await process.communicate()
        except BaseException:  # whoever asked has gone
            with suppress(ProcessLookupError):
                process.kill()
            raise
        try:
            return json.loads(said)
        except ValueError:
            raise EIO("doctor.silent", "the doctor found nothing to say", hint="agentctl doctor") from None


def _listening(host: str, first: int, last: int) -> socket.socket:
    """On the first port, or the next that is free. With 0 the system chooses one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason: str | None = None
    for port in range(first, max(first, last) + 1) if first else (0,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
        except OSError as problem:
            listener.close()
            reason = problem.strerror
        else:
            return listener
    ports = f"port {first}" if first >= last else f"ports {first} to {last}"
    raise EBUSY("gateway.port", f"{host} has no free one of {ports}: {reason}", hint="agentctl up --port NUMBER")


def _private(path: str, flags: int) -> int:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
