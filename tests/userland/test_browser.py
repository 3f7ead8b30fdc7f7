"""The browser: a real Chromium in the real sandbox, on pages of the loopback, behind the real way out."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct

import helping
from agent_os.abi.errors import EACCES, EBUSY, EHOSTUNREACH, EINVAL, EIO, EMSGSIZE, ENOENT, EPIPE, ETIMEDOUT
from agent_os.abi.helpers import Click, Navigate, Nothing, Op, OpenBrowser, Page, Read, Screenshot, Type
from agent_os.kernel.helpers.link import Link
from agent_os.sandbox.spawner import Launcher
from agent_os.userland import chromium
from agent_os.userland.browser import address
from agents import drive
from kernel.egress.certificates import Authority
from userland.pages import Answer, Site, site

SECONDS = 240.0  # for machines that do much else
BLANK = "<!doctype html><title>Blank</title>"


def there_is_a_browser() -> bool:
    try:
        return bool(chromium.find())
    except ENOENT:
        return False


needs_browser = pytest.mark.skipif(not there_is_a_browser(), reason="no chromium-headless-shell found; make chromium")
integration = pytest.mark.integration


class Driver:
    """The verbs, as the kernel will ask for them."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def _do(self, op: Op, request: Struct, seconds: float, limit: int = 0) -> tuple[Page, list[bytes]]:
        answer = await self.link.ask(op, request, Page, seconds=seconds, limit=limit)
        return answer.value, answer.cut(answer.value.parts)

    async def go(self, url: str, load: float = 120, seconds: float = SECONDS) -> Page:
        return (await self._do(Op.NAVIGATE, Navigate(url, load), seconds))[0]

    async def read(self, form: Literal["text", "html"] = "text", selector: str = "") -> tuple[Page, str]:
        page, parts = await self._do(Op.READ, Read(form, selector), SECONDS, 1 << 20)
        return page, parts[0].decode()

    async def click(self, selector: str = "", ref: int = 0) -> Page:
        return (await self._do(Op.CLICK, Click(ref, selector, 60), SECONDS))[0]

    async def type(self, text: str, selector: str = "", ref: int = 0, **more: Any) -> Page:
        return (await self._do(Op.TYPE, Type(text, ref, selector, seconds=60, **more), SECONDS))[0]

    async def picture(self, **more: Any) -> bytes:
        return (await self._do(Op.SCREENSHOT, Screenshot(**more), SECONDS, 32 << 20))[1][0]

    async def until(self, what: str) -> str:
        """The page's text, once it holds this."""
        async with asyncio.timeout(SECONDS):
            while what not in (text := (await self.read())[1]):
                await asyncio.sleep(0.05)
        return text

    async def close(self) -> None:
        await self._do(Op.CLOSE, Nothing(), SECONDS)


@asynccontextmanager
async def browser(launcher: Launcher, own: Site, *more: str, tries: str = "") -> AsyncGenerator[Driver]:
    """One that may reach the site, and `more` of the loopback by name and port. What it tried to reach that neither we
    nor a page asked for would be seen at its end."""
    names = {one.partition(":")[0]: ["127.0.0.1"] for one in more}
    async with helping.boxed(launcher, "browser", [f"127.0.0.1:{own.port}", *more], names) as box:
        driver = Driver(box.link)
        yield driver
        await driver.close()
        assert {one.host for one in box.reached} <= {"127.0.0.1", tries, *names}


def on_pages(pages: dict[str, Answer], body: Any) -> None:
    async def run(launcher: Launcher) -> None:
        async with site(pages) as pages_of, browser(launcher, pages_of) as driver:
            await body(pages_of, driver)

    drive(run)


SHOP = """<!doctype html><title>Tea house</title><h1>Green tea</h1>
<form action=/found><label>Search <input name=q></label><input type=password name=p value=hidden-word>
<select name=size><option value=s>Small<option value=l>Large</select><input type=checkbox id=c>
<button>Go</button></form>
<a href=/second target=_blank>Second page</a> <button disabled id=off>Off</button>
<input type=file id=file> <div id=note contenteditable>old</div> <p id=count>0</p>
<button id=more onclick="document.getElementById('count').textContent = 'clicked ' + event.isTrusted">More</button>
<div style="position:relative"><a id=under href=/never>Under</a><b id=lid style="position:absolute;inset:0">x</b></div>
<script>refs = ['stolen']; document.querySelector = () => { throw 'broken'; };</script>"""


@needs_browser
@integration
def test_a_page_is_read_clicked_and_typed_into() -> None:
    async def body(shop: Site, driver: Driver) -> None:
        page = await driver.go(shop.url("/shop"))
        assert (page.url, page.title, page.status, page.complete) == (shop.url("/shop"), "Tea house", 200, True)
        page, text = await driver.read()
        assert text.startswith("Green tea")
        seen = {one.name: one for one in page.elements}
        assert (seen["Search"].kind, seen["Go"].kind, seen["Second page"].kind) == ("text", "button", "link")
        assert seen["Second page"].url == shop.url("/second")
        assert "hidden-word" not in repr(page)
        assert (await driver.read(selector="#count"))[1] == "0"
        assert '<p id="count">0</p>' in (await driver.read("html"))[1]
        with pytest.raises(ENOENT):
            await driver.read(selector="#nothing")
        with pytest.raises(EINVAL):
            await driver.read(selector="][")

        await driver.click(ref=seen["More"].ref)
        assert (await driver.read(selector="#count"))[1] == "clicked true"
        await driver.type("new", "#note")
        assert (await driver.read(selector="#note"))[1] == "new"
        with pytest.raises(EBUSY, match="covered by b#lid"):
            await driver.click("#under")
        for selector, kind in {"#off": EBUSY, "#file": EACCES, "#nothing": ENOENT}.items():
            with pytest.raises(kind):
                await driver.click(selector)
        with pytest.raises(EINVAL, match="Small, Large"):
            await driver.type("Huge", "select")
        await driver.type("Large", "select")
        with pytest.raises(EINVAL, match="nothing can be typed"):
            await driver.type("x", "#c")
        with pytest.raises(EINVAL, match="say which element"):
            await driver.click()
        await driver.click("#c")

        picture = await driver.picture()
        assert picture.startswith(b"\x89PNG")
        assert (await driver.picture(full=True, media="image/jpeg")).startswith(b"\xff\xd8")

        await driver.type("jasmine & co", ref=seen["Search"].ref, submit=True)
        assert await driver.until("found it")
        assert "/found?q=jasmine+%26+co&p=hidden-word&size=l" in shop.asked
        with pytest.raises(ENOENT):
            await driver.click(ref=seen["More"].ref)  # of a page that is no more
        await driver.go(shop.url("/shop"))
        page = await driver.click("a")
        assert await driver.until("the second")

    pages: dict[str, Answer] = {"/shop": SHOP, "/found": "found it", "/second": "the second"}
    on_pages(pages, body)


@needs_browser
@integration
def test_a_page_cannot_leave_its_allowed_hosts() -> None:
    """Positive control: the same page reaches the same server by the name that is granted."""
    reach = """<!doctype html><body><script>
      const to = new URLSearchParams(location.search).get("to"), done = [];
      const note = (what) => { done.push(what); document.title = done.length; };
      const image = new Image(); image.onload = image.onerror = () => note("image"); image.src = to + "/image";
      fetch(to + "/fetch", {mode: "no-cors"}).then(() => note("fetch"), () => note("fetch"));
      navigator.sendBeacon(to + "/beacon"); note("beacon");
      const frame = document.createElement("iframe"); frame.src = to + "/frame"; frame.onload = () => note("frame");
      document.body.append(frame);
      const sheet = document.createElement("link"); sheet.rel = "stylesheet"; sheet.href = to + "/sheet";
      sheet.onload = sheet.onerror = () => note("sheet"); document.head.append(sheet);
      const socket = new WebSocket(to.replace("http", "ws") + "/socket"); socket.onclose = () => note("socket");
    </script>"""

    async def reached(driver: Driver, own: Site, other: str) -> None:
        await driver.go(own.url("/reach?to=" + other))
        async with asyncio.timeout(SECONDS):
            while (await driver.read())[0].title != "6":
                await asyncio.sleep(0.05)

    async def run(launcher: Launcher) -> None:
        async with site({"/reach": reach}) as own, site({}) as outside:
            friend, refused = (outside.url("", host) for host in ("friend.example", "refused.example"))
            own.pages["/away"] = (302, {"Location": f"{refused}/redirect"}, "")
            grants = [f"friend.example:{outside.port}", f"127.0.0.1:{outside.port}"]
            async with browser(launcher, own, *grants, tries="refused.example") as driver:
                await reached(driver, own, refused)
                for url in (own.url("/away"), refused, "https://refused.example/"):
                    with pytest.raises(EACCES):
                        await driver.go(url)
                assert outside.asked == []
                await reached(driver, own, friend)
                assert set(outside.asked) >= {"/image", "/fetch", "/beacon", "/frame", "/sheet", "/socket"}

    drive(run)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "chrome://version",
        "about:blank",
        "javascript:alert(1)",
        "data:text/html,x",
        "view-source:http://a.example/",
        "ftp://a.example/",
        "http://",
        "http://user:word@a.example/",
        "http://[::1",
        "a.example",
        "http://a.example/" + "x" * 9000,
        "",
    ],
)
def test_only_addresses_of_the_web_are_navigated_to(url: str) -> None:
    with pytest.raises(EINVAL):
        address(url)
    assert address("https://a.example:8443/x?y#z")


@needs_browser
@integration
def test_a_certificate_that_nobody_vouches_for_is_not_accepted(tmp_path: Path) -> None:
    """The tunnel to the server is allowed and made; what comes through it is not believed."""
    tls = Authority.new(tmp_path).server("own.example")

    async def run(launcher: Launcher) -> None:
        async with site({"/": BLANK}, tls) as own, browser(launcher, own, f"own.example:{own.port}") as driver:
            with pytest.raises(EHOSTUNREACH, match="ERR_CERT_AUTHORITY_INVALID"):
                await driver.go(f"https://own.example:{own.port}/")
            assert own.asked == []

    drive(run)


@needs_browser
@integration
def test_what_would_wait_for_a_person_is_refused_and_told() -> None:
    async def body(own: Site, driver: Driver) -> None:
        page = await driver.go(own.url("/ask"))
        assert [one for one in page.notices if "are you there" in one]
        assert await driver.until("false null")
        with pytest.raises(EACCES, match="download"):
            await driver.go(own.url("/file"))
        await driver.go(own.url("/windows"))
        await driver.click("button")
        assert await driver.until("no window")
        page = await driver.go(own.url("/plain"))
        assert page.title == "Blank"  # a page that asks to stay is left
        await driver.go(own.url("/wiped"))
        await driver.click("button")
        assert (await driver.read())[1] == ""

    ask = "<body><script>alert('are you there'); document.body.append(confirm('x') + ' ' + prompt('y'))</script>"
    windows = """<body><button onclick="document.body.append(self.open('/plain') ? 'a window' : 'no window')">x</button>
      <script>addEventListener('beforeunload', (event) => event.preventDefault())</script>"""
    attached: Answer = (200, {"Content-Type": "application/zip", "Content-Disposition": "attachment"}, b"PK")
    wiped = "<button onclick='document.open()'>x</button>"
    on_pages({"/ask": ask, "/file": attached, "/windows": windows, "/wiped": wiped, "/plain": BLANK}, body)


@needs_browser
@integration
def test_a_page_that_hangs_costs_its_call_and_no_more() -> None:
    async def body(own: Site, driver: Driver) -> None:
        await driver.go(own.url("/plain"))
        for path in ("/silent", "/spin"):
            with pytest.raises(ETIMEDOUT):
                await driver.go(own.url(path), seconds=3)
            page = await driver.go(own.url("/plain"))
            assert page.title == "Blank"
        page = await driver.go(own.url("/halfway"), load=1)
        assert (page.title, page.complete) == ("Half", False)
        assert "the first half" in (await driver.read())[1]

    halfway = "<title>Half</title><p>the first half<img src=/silent>"
    spin = "<title>Spin</title><script>for (;;) {}</script>"
    on_pages({"/plain": BLANK, "/silent": None, "/spin": spin, "/halfway": halfway}, body)


@needs_browser
@integration
def test_long_pages_are_cut_and_said_to_be() -> None:
    async def body(own: Site, driver: Driver) -> None:
        await driver.go(own.url("/long"))
        answer = await driver.link.ask(Op.READ, Read(limit=1000), Page, seconds=SECONDS, limit=1000)
        assert (len(answer.data), answer.value.parts[0].whole) == (1000, 2_000_300)
        assert (len(answer.value.elements), answer.value.more) == (200, 100)
        request = Screenshot(full=True, limit=100)
        with pytest.raises(EMSGSIZE, match="picture has"):
            await driver.link.ask(Op.SCREENSHOT, request, Page, seconds=SECONDS, limit=100)

    on_pages({"/long": "x" * 2_000_000 + "<a href=/>a</a>" * 300}, body)


@needs_browser
@integration
def test_a_lost_browser_is_replaced_and_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    """Without walls, so that we can kill what we like; with `--type=renderer` the page, without it the browser."""

    def told(file: Path) -> str:
        try:
            return file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            return ""  # it ended meanwhile

    def lives(pid: int) -> bool:
        """Not one that has ended, and that its parent, maybe this process, did not ask about."""
        return told(Path(f"/proc/{pid}/stat")).rpartition(")")[2][1:2] not in ("", "Z", "X")

    def children(pid: int) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, told(task).split()):
                found += [(child, told(Path(f"/proc/{child}/cmdline"))), *children(child)]
        return found

    async def killed(pid: int, kind: str) -> None:
        """All of that kind; a page's process is called so only a moment after it began."""
        doomed: list[int] = []
        async with asyncio.timeout(SECONDS):
            while not doomed:
                await asyncio.sleep(0.05)
                named = [(child, words) for child, words in children(pid) if kind in words]
                doomed = [one for one, words in named if ("--type=" in words) == (kind == "--type=renderer")]
        for one in doomed:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    async def lost(driver: Driver) -> None:
        """The call that meets the death fails, if there is one; the first that works says what happened."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    page, _ = await driver.read()
                except (EIO, EPIPE):
                    continue
                if any("lost" in one for one in page.notices):
                    return
                await asyncio.sleep(0.05)

    async def run() -> None:
        async with (
            site({"/": BLANK}) as own,
            helping.plain("browser", {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}) as (link, process),
        ):
            driver = Driver(link)
            await link.ask(Op.OPEN, OpenBrowser(profile=str(tmp_path / "profile")), Page, seconds=SECONDS)
            await driver.go(own.url())
            for kind in ("--type=renderer", "--remote-debugging-pipe"):
                await killed(process.pid, kind)
                await lost(driver)
                assert (await driver.go(own.url())).title == "Blank"
            left = children(process.pid)
            assert left
        async with asyncio.timeout(SECONDS):
            while any(lives(pid) for pid, _ in left):
                await asyncio.sleep(0.05)

    asyncio.run(run())
