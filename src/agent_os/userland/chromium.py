"""One running Chromium and the pipe it is driven by: the DevTools protocol on two descriptors, no port, no library.

Owns the process and its profile folder. In: commands. Out: their answers, and events to whoever listens. The flags
below are what it needs inside our sandbox, which stands in for Chromium's own; the reasons are in docs/tools.md.
"""

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from agent_os.abi.errors import EIO, ENOENT, EPIPE

NAMES = ("chromium-headless-shell", "headless_shell", "chrome-headless-shell")
_LARGEST = 64 << 20  # bytes of one message: a picture of a page, as base64
_LAST_WORDS = 1000  # bytes
_PATIENCE = 3.0  # seconds to end by itself
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>/usr/local/share/fonts</dir><cachedir>{cache}</cachedir></fontconfig>
"""
_FLAGS = (
    # our sandbox is around all of it, and inside there are no namespaces to make
    "--no-sandbox --no-zygote "
    # /dev/shm is small here, and there is no graphics card
    "--disable-dev-shm-usage --disable-gpu "
    # nothing goes out that the page did not ask for
    "--disable-background-networking --disable-component-update --disable-domain-reliability --disable-sync "
    "--disable-default-apps --disable-extensions --no-first-run --no-default-browser-check --no-pings "
    "--disable-client-side-phishing-detection --disable-breakpad --disable-crash-reporter --metrics-recording-only "
    "--disable-features=Translate,OptimizationHints,MediaRouter,AutofillServerCommunication,DnsOverHttps,"
    "CertificateTransparencyComponentUpdater,InterestFeedContentSuggestions,NetworkTimeServiceQuerying "
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp "
    # nobody is there to be asked, to listen or to look at a second window
    "--deny-permission-prompts --block-new-web-contents --mute-audio --hide-scrollbars --password-store=basic "
    "--disk-cache-size=33554432 --remote-debugging-pipe"
).split()


Listener = Callable[[str, str, dict[str, Any]], None]


def find(wanted: str = "") -> str:
    """The browser to run. The full `chromium` does not start inside: it insists on a socket with a name."""
    for name in (wanted, os.environ.get("AGENT_OS_CHROMIUM", ""), *NAMES):
        if name and (found := shutil.which(name)):
            return found
    hint = "make chromium; or set AGENT_OS_CHROMIUM to a chromium-headless-shell"
    raise ENOENT("browser.absent", f"no browser was found: {', '.join(NAMES)}", hint=hint)


class Chromium:
    """`start` returns when it answers. `lost` is called once, when it has ended without being asked to."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listener: Listener | None = None
        self._process: int = -1
        self._ended = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def start(self, program: str, profile: str, proxy: str, size: tuple[int, int]) -> str:
        """Its name and version."""
        os.makedirs(profile, 0o700, exist_ok=True)
        fonts = os.path.join(profile, "fonts.conf")
        with open(fonts, "w") as file:
            file.write(_FONTS.format(cache=os.path.join(profile, "fonts")))
        flags = [*_FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        if proxy:  # its own loopback is no way around it
            flags += [f"--proxy-server={proxy}", "--proxy-bypass-list=<-loopback>"]
        env = {name: os.environ[name] for name in ("PATH", "LANG", "TZ", "TMPDIR") if name in os.environ}
        env |= {"HOME": profile, "FONTCONFIG_FILE": fonts, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
        log = os.path.join(profile, "chromium.log")
        to_it, from_it = self._spawn([program, *flags], env, log)
        await self._connect(to_it, from_it)
        try:
            told = await self.ask("Browser.getVersion")
        except EPIPE as problem:
            with open(log, "rb") as file:
                said = file.read()[-_LAST_WORDS:].decode(errors="replace")
            raise EIO("browser.start", f"the browser ended while it started: {said}") from problem
        return str(told["product"])

    def _spawn(self, argv: list[str], env: Mapping[str, str], log: str) -> tuple[int, int]:
        """It reads commands on its descriptor 3, which is the kernel's with us, and writes on 4. What it prints are
        complaints about what a sandbox does not have: they are of use only if it does not start."""
        (its_in, our_out), (our_in, its_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 32) for fd in (its_in, its_out)]
        try:
            quiet = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
            aside = (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            both = (os.POSIX_SPAWN_DUP2, 1, 2)
            joined = [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in zip(high, (3, 4), strict=True)]
            self._process = os.posix_spawn(argv[0], argv, env, file_actions=[quiet, aside, both, *joined], setpgroup=0)
        except OSError as problem:
            os.close(our_in)
            os.close(our_out)
            raise ENOENT("browser.start", f"{argv[0]} cannot be started: {problem.strerror}") from problem
        finally:
            for fd in (its_in, its_out, *high):
                os.close(fd)
        self._watch(os.pidfd_open(self._process))
        return our_out, our_in

    def _watch(self, pidfd: int) -> None:
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, 0)
            self._ended.set()

        loop.add_reader(pidfd, ended)

    async def _connect(self, to_it: int, from_it: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LARGEST)
        protocol = asyncio.StreamReaderProtocol(reader)
        self._incoming, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(from_it, "rb", 0))
        self._outgoing, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(to_it, "wb", 0))
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._take(msgspec.json.decode(memoryview(await reader.readuntil(b"\0"))[:-1]))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, msgspec.MsgspecError, ConnectionError):
            pass  # it ended, or says what it should not: no more of it either way
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(EPIPE("browser.lost", "the browser ended"))
            self._waiting.clear()
            self._lost()

    def _take(self, message: dict[str, Any]) -> None:
        if "id" not in message:
            session, what = str(message.get("sessionId", "")), str(message.get("method", ""))
            if self._listener is not None:
                self._listener(session, what, cast("dict[str, Any]", message.get("params", {})))
            return
        answer = self._waiting.pop(message["id"], None)
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(EIO("browser.refused", str(message["error"].get("message", ""))[:500]))
        else:
            answer.set_result(message.get("result", {}))

    def listen(self, listener: Listener | None) -> None:
        """It, and no other, is told the session, the event and its facts, of all that happens."""
        self._listener = listener

    async def ask(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """EPIPE: the browser is gone. Cancelled: the command may have been done."""
        if self._reading is None or self._reading.done():
            raise EPIPE("browser.lost", "the browser ended")
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._outgoing.write(msgspec.json.encode(message) + b"\0")
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def end(self) -> None:
        """Asked to, then killed with all that it started."""
        if self._process < 0:
            return
        self._lost = lambda: None
        try:
            with contextlib.suppress(TimeoutError, EPIPE, EIO):
                async with asyncio.timeout(_PATIENCE):
                    await self.ask("Browser.close")
                    await self._ended.wait()
        finally:
            self.kill()
        await self._ended.wait()
        if self._reading is not None:
            self._incoming.close()
            self._outgoing.close()
            self._reading.cancel()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
