"""The browser: one helper process per agent, sandboxed, that drives a real Chromium for the tools `browser.*`.

In: verbs over descriptor 3, one at a time. Out: where the page is, its text, what can be clicked, its picture; all of
it a stranger's word. A page that hangs or crashes costs its call and is replaced; the next call says so. What may be
reached is decided by the proxy that every request of every page goes through, and by nothing here.
"""

import asyncio
import base64
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from agent_os.abi.errors import EACCES, EBUSY, EINVAL, EIO, EMSGSIZE, ENOENT, EPIPE
from agent_os.abi.helpers import Click, Element, Navigate, Nothing, Op, OpenBrowser, Page, Part, Read, Screenshot, Type
from agent_os.userland import browser_scripts as scripts
from agent_os.userland import chromium
from agent_os.userland.answering import Answer, Kernel, Operation, run
from agent_os.userland.browser_tab import Tab

_LARGEST_TEXT = 8 << 20  # bytes of a page's text
_LONGEST_TYPED = 10_000  # characters
_LONGEST_URL = 8192
_ALIVE = 2.0  # seconds in which a page that is not hung answers
_START = 60.0
_ENTER: dict[str, Any] = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}


class Browser:
    """Starts with the first verb, and again if it was lost."""

    def __init__(self) -> None:
        self._settings = OpenBrowser()
        self._chromium: chromium.Chromium | None = None
        self._tab: Tab | None = None
        self._turn = asyncio.Lock()
        self._recovering: asyncio.Task[None] | None = None
        self._lost = ""  # what there is to say of a page that was replaced
        self._dead = ""  # the target of that page

    async def open(self, request: OpenBrowser) -> Answer:
        """How the browser is to be started. It starts when something is to be done."""
        if self._chromium is not None:
            raise EBUSY("browser.open", "the browser runs already: close it first")
        chromium.find(request.program)
        self._settings = request
        return Answer(Page())

    async def navigate(self, request: Navigate) -> Answer:
        url = address(request.url)
        return await self._verb(lambda tab: tab.go(url, request.seconds))

    async def read(self, request: Read) -> Answer:
        limit = min(request.limit, _LARGEST_TEXT)

        async def look(tab: Tab) -> Answer:
            given = (request.form, request.selector, limit, scripts.MOST_ELEMENTS)
            found: dict[str, Any] = await tab.evaluate(scripts.READ, *given) or {}
            if "text" not in found:
                raise ENOENT("browser.element", f"nothing on the page matches {request.selector!r}")
            return await self._seen(tab, True, **_read(found, request.form, limit))

        return await self._verb(look)

    async def click(self, request: Click) -> Answer:
        async def press(tab: Tab) -> bool:
            spot = await tab.evaluate(scripts.PLACE, request.ref, _selector(request))
            _refuse(spot)
            tab.watch()
            where: dict[str, Any] = {"x": spot["x"], "y": spot["y"]}
            await tab.ask("Input.dispatchMouseEvent", type="mouseMoved", **where)
            for what in ("mousePressed", "mouseReleased"):
                await tab.ask("Input.dispatchMouseEvent", type=what, button="left", clickCount=1, **where)
            return await tab.settle(request.seconds)

        return await self._verb(press)

    async def type(self, request: Type) -> Answer:
        if len(request.text) > _LONGEST_TYPED:
            raise EMSGSIZE("browser.text", f"{len(request.text)} characters are more than {_LONGEST_TYPED} at a time")

        async def write(tab: Tab) -> bool:
            spot = await tab.evaluate(scripts.FOCUS, request.ref, _selector(request), request.clear, request.text)
            _refuse(spot)
            tab.watch()
            if not spot.get("chosen"):
                await tab.ask("Input.insertText", text=request.text)
            if not request.submit:
                return True
            await tab.ask("Input.dispatchKeyEvent", type="keyDown", text="\r", **_ENTER)
            await tab.ask("Input.dispatchKeyEvent", type="keyUp", **_ENTER)
            return await tab.settle(request.seconds)

        return await self._verb(write)

    async def screenshot(self, request: Screenshot) -> Answer:
        async def picture(tab: Tab) -> Answer:
            size: dict[str, Any] = {}
            if request.full:
                area = await tab.evaluate(scripts.SIZE)
                size = {"clip": {"x": 0, "y": 0, "scale": 1, **area}, "captureBeyondViewport": True}
            form = request.media.removeprefix("image/")
            answer = await tab.ask("Page.captureScreenshot", format=form, **size)
            data = base64.b64decode(answer["data"])
            if len(data) > request.limit:
                raise EMSGSIZE("browser.picture", f"the picture has {len(data)} bytes, more than {request.limit}")
            return await self._seen(tab, True, parts=[Part("image", len(data), request.media)], data=data)

        return await self._verb(picture)

    async def close(self, _: Nothing) -> Answer:
        async with self._turn:
            await self.end()
        return Answer(Page())

    async def end(self) -> None:
        if self._recovering is not None:
            self._recovering.cancel()
        running, self._chromium, self._tab = self._chromium, None, None
        if running is not None:
            await running.end()

    async def _verb(self, do: "Callable[[Tab], Awaitable[bool | Answer]]") -> Answer:
        """One at a time. A call that is given up may have found a page that no longer answers."""
        async with self._turn:
            tab = await self._ready()
            try:
                done = await do(tab)
                return done if isinstance(done, Answer) else await self._seen(tab, done)
            except asyncio.CancelledError:
                self._recovering = asyncio.create_task(self._recover(tab))
                raise
            except EIO:
                if tab.gone.done():
                    self._forget(tab.gone.result())
                raise

    async def _ready(self) -> Tab:
        if self._recovering is not None:
            await asyncio.wait([self._recovering])
            self._recovering = None
        if self._tab is not None and self._tab.gone.done():
            self._forget(self._tab.gone.result())
        if self._chromium is None:
            self._dead = ""
            await self._start()
        assert self._chromium is not None
        if self._dead:
            with contextlib.suppress(EIO):  # it is closed already
                await self._chromium.ask("Target.closeTarget", targetId=self._dead)
            self._dead = ""
        if self._tab is None:
            self._tab = await Tab.open(self._chromium)
        return self._tab

    async def _start(self) -> None:
        settings = self._settings
        profile = settings.profile or os.path.join(os.path.expanduser("~"), ".browser")
        proxy = settings.proxy or os.environ.get("HTTP_PROXY", "")
        started = chromium.Chromium(self._ended)
        try:
            async with asyncio.timeout(_START):
                await started.start(chromium.find(settings.program), profile, proxy, (settings.width, settings.height))
        except BaseException:
            await started.end()
            raise
        self._chromium = started

    def _ended(self) -> None:
        """The browser is gone, without our doing."""
        self._chromium = None
        if self._tab is not None:
            self._tab.lose("the browser ended")

    def _forget(self, why: str) -> None:
        """The next verb begins with an empty page, and says so."""
        self._dead = self._tab.target if self._tab else ""
        self._tab, self._lost = None, f"the page before this one is lost: {why}"

    async def _recover(self, tab: Tab) -> None:
        """Whoever waits was told already. If the page does not answer it is closed, and if that does not help the
        browser is ended: what hangs goes on computing otherwise."""
        with contextlib.suppress(TimeoutError, EIO, EPIPE):
            async with asyncio.timeout(_ALIVE):
                await tab.ask("Page.stopLoading")
                await tab.evaluate("() => 1")
                return
        self._forget("it did not answer and was closed")
        running = tab.chromium
        with contextlib.suppress(TimeoutError, EIO, EPIPE):
            async with asyncio.timeout(_ALIVE):
                await running.ask("Target.closeTarget", targetId=tab.target)
                await asyncio.wait([tab.gone])
                return
        self._chromium = None
        await running.end()

    async def _seen(
        self,
        tab: Tab,
        complete: bool,
        parts: list[Part] | None = None,
        elements: list[Element] | None = None,
        more: int = 0,
        data: bytes = b"",
    ) -> Answer:
        url, title = await tab.place()
        notices = ([self._lost] if self._lost else []) + tab.noted()
        self._lost = ""
        return Answer(Page(url, title, tab.status, complete, parts or [], elements or [], more, notices), data)


def address(url: str) -> str:
    """EINVAL unless it is one that leads out through the proxy."""
    try:
        split = urlsplit(url)
        host = split.hostname
    except ValueError:
        split, host = urlsplit(""), None
    if split.scheme not in ("http", "https") or not host or len(url) > _LONGEST_URL:
        raise EINVAL("browser.url", f"{url[:200]!r} is no address of a page: http:// or https://")
    if split.username is not None or split.password is not None:
        raise EINVAL("browser.url", "an address with a user or a password in it", hint="use a secret and its binding")
    return url


def _read(found: dict[str, Any], form: str, limit: int) -> dict[str, Any]:
    text = str(found["text"]).encode("utf-8", "replace")
    part = Part("text", min(len(text), limit), "text/html" if form == "html" else "text/plain")
    if len(text) > limit or found["length"] > limit:
        part.whole = max(len(text), int(found["length"]))
    elements = msgspec.convert(found["elements"], list[Element])
    return {"parts": [part], "elements": elements, "more": int(found["more"]), "data": text[:limit]}


def _selector(request: Click | Type) -> str:
    if bool(request.ref) == bool(request.selector):
        raise EINVAL("browser.element", "say which element: by a `ref` that read gave, or by `selector`")
    return request.selector


def _refuse(spot: Any) -> None:
    """What the page said of an element that cannot be used."""
    match spot:
        case {"hidden": True}:
            raise EBUSY("browser.hidden", "the element is not visible")
        case {"disabled": True}:
            raise EBUSY("browser.disabled", "the element is disabled")
        case {"covered": str(by)}:
            raise EBUSY("browser.covered", f"the element is covered by {by[:80]}")
        case {"file": True}:
            raise EACCES("browser.upload", "files cannot be given to a page")
        case {"options": options}:
            raise EINVAL("browser.option", f"there is no such choice: {', '.join(map(str, options))}"[:1000])
        case {"unwritable": what}:
            raise EINVAL("browser.element", f"nothing can be typed into <{str(what)[:40]}>")
        case dict():
            pass
        case _:
            raise EIO("browser.script", "the page gave no answer")


async def _main(sock: socket.socket) -> None:
    browser = Browser()
    kernel = Kernel(
        sock,
        {
            Op.OPEN: Operation(OpenBrowser, browser.open),
            Op.NAVIGATE: Operation(Navigate, browser.navigate),
            Op.READ: Operation(Read, browser.read),
            Op.CLICK: Operation(Click, browser.click),
            Op.TYPE: Operation(Type, browser.type),
            Op.SCREENSHOT: Operation(Screenshot, browser.screenshot),
            Op.CLOSE: Operation(Nothing, browser.close),
        },
    )
    try:
        await kernel.serve()
    finally:
        await browser.end()


def main() -> int:
    return run(_main)
