"""One page of a running Chromium: what happens to it, and questions asked inside of it.

In: verbs of the DevTools protocol. Out: answers, or one of our errors if the page is gone. It dismisses what would wait
for a person, refuses downloads, and keeps a short list of what it did so.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from agent_os.abi.errors import EACCES, EHOSTUNREACH, EINVAL, EIO, ENOENT
from agent_os.userland.chromium import Chromium

_MOST_NOTICES = 20
_WORLD = "agent-os"
_BEGUN = 0.5  # seconds in which what was clicked shows whether it leads somewhere


class Tab:
    """Made by `open`. `gone` is done when the page can no longer be asked anything, with the reason."""

    def __init__(self, chromium: Chromium, target: str) -> None:
        self.chromium, self.target, self.session = chromium, target, ""
        self.notices: list[str] = []
        self.status = 0
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._responses: dict[str, tuple[int, bool]] = {}  # loader → status, and whether it was the proxy's refusal
        self._loaded: dict[str, asyncio.Event] = {}
        self._begun, self._still = asyncio.Event(), asyncio.Event()
        self._still.set()
        self._failed = ""
        self._doing: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, chromium: Chromium) -> "Tab":
        chromium.listen(None)  # to the page before, this one would be a new window
        target = (await chromium.ask("Target.createTarget", url="about:blank"))["targetId"]
        self = cls(chromium, target)
        chromium.listen(self._happened)
        attached = await chromium.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        await self.ask("Page.enable")
        await self.ask("Page.setLifecycleEventsEnabled", enabled=True)
        await self.ask("Network.enable", maxTotalBufferSize=1 << 20, maxResourceBufferSize=1 << 18)
        await self.ask("Page.setInterceptFileChooserDialog", enabled=True)
        await chromium.ask("Browser.setDownloadBehavior", behavior="deny", eventsEnabled=True)
        await chromium.ask("Target.setDiscoverTargets", discover=True)
        return self

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """EIO: the page is gone, and does not answer."""
        asked = asyncio.ensure_future(self.chromium.ask(method, self.session, **params))
        try:
            await asyncio.wait({asked, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise EIO("browser.page", self.gone.result())
            return asked.result()
        finally:
            asked.cancel()

    async def go(self, url: str, seconds: float) -> bool:
        """Whether it finished loading in that time. What answered and would not be loaded is an error."""
        self._failed = ""
        answer = await self.ask("Page.navigate", url=url)
        if answer.get("isDownload"):
            raise EACCES("browser.download", f"{url} is a download, and downloads are refused")
        if failed := str(answer.get("errorText", "")):
            raise network_error(url, failed)
        loader = str(answer.get("loaderId", ""))
        whole = not loader or await _within(self._event(loader), seconds)
        if not whole:
            await self.ask("Page.stopLoading")
        self.status, refused = self._responses.get(loader, (0, False))
        if refused:
            told = await self.evaluate("() => document.documentElement.innerText.slice(0, 500)")
            raise EACCES("browser.net", f"{url} may not be reached: {told}")
        return whole

    def watch(self) -> None:
        """From here on `settle` counts what begins."""
        self._begun.clear()

    async def settle(self, seconds: float) -> bool:
        """After a click: if it leads somewhere, wait for that. Whether it finished loading in that time."""
        if not await _within(self._begun, _BEGUN):
            return True
        if await _within(self._still, seconds):
            return True
        await self.ask("Page.stopLoading")
        return False

    async def evaluate(self, function: str, *arguments: Any) -> Any:
        """What a function of ours gives in the page, in a world that its scripts cannot reach."""
        world = await self.ask("Page.createIsolatedWorld", frameId=self.target, worldName=_WORLD)
        answer = await self.ask(
            "Runtime.callFunctionOn",
            functionDeclaration=function,
            executionContextId=world["executionContextId"],
            arguments=[{"value": one} for one in arguments],
            returnByValue=True,
            awaitPromise=True,
        )
        if problem := answer.get("exceptionDetails"):
            said = str(problem.get("exception", {}).get("description", problem.get("text", "")))[:300]
            if "ABSENT" in said:
                raise ENOENT("browser.element", "there is no such element on the page", hint="read the page again")
            if "valid selector" in said:
                raise EINVAL("browser.selector", said.splitlines()[0])
            raise EIO("browser.script", said)
        return answer.get("result", {}).get("value")

    async def place(self) -> tuple[str, str]:
        """Its address and title, which the browser knows even if the page no longer answers."""
        info = (await self.chromium.ask("Target.getTargetInfo", targetId=self.target))["targetInfo"]
        return str(info.get("url", ""))[:4096], str(info.get("title", ""))[:512]

    def noted(self) -> list[str]:
        """What happened since the last time somebody asked."""
        told, self.notices = self.notices, []
        return told

    def _note(self, what: str) -> None:
        if len(self.notices) < _MOST_NOTICES:
            self.notices.append(what[:300])

    def _event(self, loader: str) -> asyncio.Event:
        if len(self._loaded) > 64:  # of navigations long past
            self._loaded.clear()
            self._responses.clear()
        return self._loaded.setdefault(loader, asyncio.Event())

    def _happened(self, session: str, what: str, facts: dict[str, Any]) -> None:
        if session == self.session:
            self._happened_inside(what, facts)
        elif what == "Browser.downloadWillBegin":
            self._note(f"a download was refused: {facts.get('suggestedFilename', '')} from {facts.get('url', '')}")
        elif what == "Target.targetCreated":
            info = facts["targetInfo"]
            if info["type"] == "page" and info["targetId"] != self.target:
                if "openerId" in info:
                    self._note(f"a new window was refused: {info.get('url', '')}")
                self._do(self.chromium.ask("Target.closeTarget", targetId=info["targetId"]))
        elif what in ("Target.targetDestroyed", "Target.targetCrashed") and facts.get("targetId") == self.target:
            self.lose("the page crashed or was closed")

    def _happened_inside(self, what: str, facts: dict[str, Any]) -> None:
        ours = facts.get("frameId", facts.get("frame", {}).get("id", self.target)) == self.target
        match what:
            case "Page.javascriptDialogOpening":
                leaving = facts.get("type") == "beforeunload"
                self._note(f"a dialog was {'left' if leaving else 'dismissed'}: {facts.get('message', '')}")
                self._do(self.chromium.ask("Page.handleJavaScriptDialog", self.session, accept=leaving))
            case "Inspector.targetCrashed":
                self.lose("the page crashed")
            case "Page.lifecycleEvent" if ours and facts.get("name") == "load":
                self._event(str(facts.get("loaderId", ""))).set()
            case "Page.frameStartedLoading" | "Page.frameStartedNavigating" | "Page.frameRequestedNavigation" if ours:
                self._begun.set()
                self._still.clear()
            case "Page.frameStoppedLoading" if ours:
                self._still.set()
            case "Network.responseReceived" if ours and facts.get("type") == "Document":
                response = facts["response"]
                names = {str(name).lower() for name in response.get("headers", {})}
                self._responses[str(facts.get("loaderId", ""))] = (int(response["status"]), "x-agentos" in names)
                self.status = int(response["status"])
            case "Network.loadingFailed" if facts.get("type") == "Document" and not facts.get("canceled"):
                self._note(f"a page could not be loaded: {facts.get('errorText', '')}")
            case _:
                pass

    def lose(self, why: str) -> None:
        if not self.gone.done():
            self.gone.set_result(why)

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        async def quietly() -> None:
            try:
                await work
            except (EIO, ENOENT, EHOSTUNREACH):
                pass  # the page, the dialog or the window is gone already
            except Exception as problem:
                self._note(f"the browser did not do what it was asked: {problem}")

        task = asyncio.create_task(quietly())
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)


def network_error(url: str, told: str) -> EACCES | EHOSTUNREACH:
    if told in ("net::ERR_TUNNEL_CONNECTION_FAILED", "net::ERR_BLOCKED_BY_CLIENT"):
        hint = "the run's record says why, and which grant would open it"
        return EACCES("browser.net", f"{url} may not be reached: the way out refused the connection", hint=hint)
    return EHOSTUNREACH("browser.net", f"{url} cannot be loaded: {told}")


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
