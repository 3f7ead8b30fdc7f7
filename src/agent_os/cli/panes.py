"""The parts of `agentctl top` around its table: the keys on offer, the line of the filter, a question, and pages.

In: texts, part of them written by agents; they are shown as text, never as markup. Out: widgets in the terminal's own
colours, which know nothing of agents. Needs Textual.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from agent_os.abi.errors import AgentOSError
from agent_os.cli.output import plain

Lines = Callable[[], Awaitable[Sequence[str]]]


class Keys(Widget):
    """What can be pressed, or clicked: as many lines as that takes."""

    DEFAULT_CSS = """
    Keys {
        padding: 0 1; height: auto; link-style: none; link-color: ansi_default; link-style-hover: underline;
        link-background-hover: ansi_default; link-color-hover: ansi_default;
    }
    """

    def __init__(self, keys: Sequence[tuple[str, str, str]], id: str | None = None) -> None:
        super().__init__(id=id)
        self._keys = keys  # key, word, action

    def render(self) -> Content:
        return Content.from_markup("\n".join(self._lines(self.size.width)))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def _lines(self, room: int) -> list[str]:
        lines, used = [""], 0
        for key, word, action in self._keys:
            wide = len(key) + 1 + len(word)
            if used + wide > room:
                lines.append("")
                used = 0
            lines[-1] += f"[@click={action}][b]{key}[/b] {word}[/]  "
            used += wide + 2
        return lines


class Question(ModalScreen[bool]):
    """Yes or no. Only `y` is yes."""

    DEFAULT_CSS = """
    Question { align: center middle; background: transparent; }
    Question Vertical { width: auto; max-width: 90%; height: auto; border: round ansi_red; padding: 1 2; }
    Question Label { max-width: 100%; padding: 0 0 1 0; }
    Question Keys { padding: 0; width: 20; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)"),
        Binding("n,escape,q", "answer(False)"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(Text(self._text))
            yield Keys([("y", "yes", "screen.answer(True)"), ("n", "no", "screen.answer(False)")])

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Page(Screen[None]):
    """A text that fills the terminal, made again every so often: what is known of one, or what waits for a person."""

    DEFAULT_CSS = """
    Page #title { padding: 0 1; text-style: bold; height: 1; }
    Page #text { padding: 0 1; width: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "app.pop_screen")]

    def __init__(self, title: str, text: Lines, every: float) -> None:
        super().__init__()
        self._title, self._text, self._every = title, text, every
        self._shown = Static("looking …", id="text")

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title), id="title")
        with VerticalScroll():
            yield self._shown
        yield Keys([("esc", "back", "app.pop_screen")])

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.run_worker(self._keep())

    async def _keep(self) -> None:
        while True:
            try:
                told = "\n".join(await self._text())
            except AgentOSError as error:
                told = error.reason
            self._shown.update(Text(plain(told, keep_newlines=True)))  # not asked for: somebody may just be leaving
            await asyncio.sleep(self._every)


class Filter(Input):
    """Words that an agent must have; the table follows each letter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit"),
        Binding("escape", "app.back"),
    ]
