"""`agentctl top`, live: a table of everybody, the trace of the chosen one below it, and keys that act.

In: what the kernel tells over one connection, which is made again when it breaks; a kernel that goes, and one that
comes, are pictures like any other. Out: the whole terminal, in its own colours, so that it reads on light and dark
alike. Every text from outside is shown as text: never as markup, never as an escape. Needs Textual.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import DataTable, Input, RichLog, Static

from agent_os.abi.errors import EHOSTUNREACH, EPIPE, ESRCH, AgentOSError
from agent_os.abi.syscalls import Approvals, Body, Declared, Events, History, Inspect
from agent_os.cli.agents import ACTS, SAID
from agent_os.cli.approvals import listing
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.entries import refused
from agent_os.cli.glance import HEADINGS, ORDERS, Glance, agents, head, line, look, nobody, ordered
from agent_os.cli.history import lives
from agent_os.cli.inspection import described
from agent_os.cli.members import COLOURS, ROOT, SPARE, Row
from agent_os.cli.output import plain, width
from agent_os.cli.panes import Filter, Keys, Page, Question
from agent_os.cli.screen import cut, fitting
from agent_os.cli.trace import told
from agent_os.client.spans import Spans
from agent_os.client.start import session
from agent_os.client.wire import Client

# The table of `agentctl top`: a row for each agent, as many columns as have their place, and the chosen one in
# sight. In: rows in their order. Out: a widget that is drawn anew only as far as something differs; the cursor
# stays on whom it was on. Texts come from agents, and are shown as text. Needs Textual.

Cells = tuple[str, ...]
Column = tuple[int, int]  # which of HEADINGS, and how wide
_STATE = HEADINGS.index("STATE")


class Rows(DataTable[Text]):
    def __init__(self) -> None:
        super().__init__(cursor_type="row", cell_padding=1)
        self._order = ""
        self._shown: list[Row] = []
        self._drawn: list[Cells] = []
        self._fit: list[Column] = []

    @property
    def chosen(self) -> Row | None:
        return self._shown[self.cursor_row] if 0 <= self.cursor_row < len(self._shown) else None

    def show(self, found: Sequence[tuple[str, Row]], order: str) -> None:
        """These, each with what leads to it. What they are ordered by is marked."""
        chosen, self._order = self.chosen, order
        columns, drawn = self._fitted([line(lead, row) for lead, row in found])
        same = columns == self._fit and [row["id"] for _, row in found] == [row["id"] for row in self._shown]
        self._fit, self._shown = columns, [row for _, row in found]
        if same:
            self._change(drawn)
        else:
            self._draw(drawn, chosen["id"] if chosen else "")
        self._drawn = drawn

    def forget(self) -> None:
        """The next picture is drawn whole, also where nobody has changed."""
        self._fit = []

    def on_resize(self) -> None:
        """However low it becomes, the chosen one stays in sight."""
        self.move_cursor(row=self.cursor_row, animate=False)

    def _fitted(self, lines: Sequence[Cells]) -> tuple[list[Column], list[Cells]]:
        """The columns that have their place, each with its width, and the cells: the last, with the news, cut to what
        is left of the room."""
        headings = [self._heading(at) for at in range(len(HEADINGS))]
        room = self.scrollable_content_region.width or self.app.size.width
        *first, last = fitting(lines, headings, _spare(headings), room)
        widths = [max(width(plain(one[at])) for one in (headings, *lines)) for at in first]
        left = max(room - sum(widths) - 2 * len(first) - 2, len(HEADINGS[-1]))
        cells = [(*(one[at] for at in first), cut(plain(one[last]), left)) for one in lines]
        return list(zip([*first, last], [*widths, left], strict=True)), cells

    def _heading(self, at: int) -> str:
        return f"{HEADINGS[at]} ▾" if HEADINGS[at].lower() == self._order else HEADINGS[at]

    def _draw(self, drawn: Sequence[Cells], chosen: str) -> None:
        top = self.scroll_y
        with self.app.batch_update(), self.prevent(DataTable.RowHighlighted):
            self.clear(columns=True)
            for at, wide in self._fit:
                self.add_column(self._heading(at), key=HEADINGS[at], width=wide)
            for row, cells in zip(self._shown, drawn, strict=True):
                self.add_row(*self._texts(cells, row), key=row["id"])
            at = next((at for at, row in enumerate(self._shown) if row["id"] == chosen), 0)
            self.move_cursor(row=at, animate=False, scroll=False)
            self.scroll_to(y=top, animate=False, force=True)

    def _change(self, drawn: Sequence[Cells]) -> None:
        headings = [HEADINGS[at] for at, _ in self._fit]
        for row, cells, before in zip(self._shown, drawn, self._drawn, strict=True):
            if cells == before:
                continue
            for heading, text, cell, old in zip(headings, self._texts(cells, row), cells, before, strict=True):
                if cell != old:
                    self.update_cell(row["id"], heading, text)

    def _texts(self, cells: Cells, row: Row) -> list[Text]:
        colour = COLOURS.get(row["state"], "")
        styles = [colour if at == _STATE else "" for at, _ in self._fit]
        return [Text(plain(cell), style=style, no_wrap=True) for cell, style in zip(cells, styles, strict=True)]


def _spare(headings: Sequence[str]) -> list[str]:
    """What a narrow table does without; what it is ordered by comes last."""
    marked = [headings[HEADINGS.index(one)] for one in SPARE]
    return sorted(marked, key=lambda one: one not in HEADINGS)


_SOONEST = 0.2  # seconds between two looks, however much happens
_SETTLED = 0.15  # the cursor stands still: whoever passes by needs no trace
_TO_ACT = 60.0  # seconds the kernel has to answer
_TRACED, _KEPT = 100, 2000  # lines of a trace
_NEWS = frozenset({"spawn", "exit", "state", "signal", "approval"})  # entries that change the picture at once
_LOW = 16  # fewer lines have no room for a trace
KEYS = [
    *(("q", "quit", "app.quit"), ("s", "sort", "app.sort"), ("/", "filter", "app.filter"), ("t", "tree", "app.tree")),
    *(("d", "detail", "app.detail"), ("⏎", "trace", "app.trace"), ("p", "pause", "app.act('pause')")),
    *(("c", "resume", "app.act('resume')"), ("K", "kill", "app.act('kill')"), ("A", "approvals", "app.approvals")),
]
_OF_TABLE = frozenset({"sort", "filter", "tree", "detail", "trace", "act", "approvals", "back", "quit"})
_QUESTIONS = {
    "kill": "Kill {name} and everything it started?",
    "pause": "Pause {name}? None of its processes runs until it is resumed.",
    "resume": "Let {name} go on?",
}


class Board(App[None]):
    """`order` and `words` are how it starts; keys change both."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "agentctl top"
    CSS = """
    * {
        scrollbar-background: ansi_default; scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default; scrollbar-corner-color: ansi_default;
        scrollbar-color: ansi_blue; scrollbar-color-hover: ansi_blue; scrollbar-color-active: ansi_blue;
        scrollbar-size-vertical: 1;
    }
    #head { padding: 0 1; height: auto; }
    #none { padding: 1; height: 1fr; display: none; }
    DataTable { height: 1fr; scrollbar-size-horizontal: 0; }
    DataTable > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold; }
    DataTable > .datatable--header-hover { background: ansi_default; text-style: bold underline; }
    DataTable > .datatable--cursor, DataTable:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    DataTable > .datatable--hover { background: ansi_default; }
    #trace { height: 35%; border-top: solid ansi_blue; border-title-color: ansi_default; }
    RichLog { padding: 0 1; background: ansi_default; scrollbar-size-horizontal: 0; }
    Input { display: none; height: 1; border: none; padding: 0 1; }
    .empty #none { display: block; }
    .empty DataTable, .empty #trace { display: none; }
    .low #trace { display: none; }
    .tall #trace { display: block; height: 1fr; }
    .tall DataTable { height: 4; }
    Input > .input--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    .asking Input { display: block; }
    #asking { display: none; }
    .asking Keys { display: none; }
    .asking #asking { display: block; }
    Toast { background: ansi_default; color: ansi_default; border-left: outer ansi_green; }
    Toast.-error { border-left: outer ansi_red; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "leave", priority=True),
        Binding("s", "sort"),
        Binding("slash", "filter"),
        Binding("t", "tree"),
        Binding("d", "detail"),
        Binding("p", "act('pause')"),
        Binding("c", "act('resume')"),
        Binding("K", "act('kill')"),
        Binding("A", "approvals"),
        Binding("escape", "back"),
    ]

    def __init__(self, order: str = "state", words: str = "", every: float = 2.0) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self._every, self._words = every, words
        self._order, self._flat = order, "state" if order == "tree" else order
        self._client: Client | None = None
        self._seen = Glance(why="looking …")
        self._traced = ""
        self._watching: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None  # a bug of ours that ended it

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="none")
        yield Rows()
        with Vertical(id="trace"):
            log = RichLog(max_lines=_KEPT, wrap=False, min_width=1)
            log.can_focus = False
            yield log
        yield Filter(value=self._words, placeholder="words that an agent must have", compact=True)
        yield Keys([("⏎", "keep", "app.keep"), ("esc", "everybody", "app.back")], id="asking")
        yield Keys(KEYS)

    def on_mount(self) -> None:
        self._table.focus()
        self._watching = asyncio.create_task(self._watch())
        self._watching.add_done_callback(self._over)

    def _over(self, watching: "asyncio.Task[None]") -> None:
        if not watching.cancelled():  # it never ends by itself
            self.failure = watching.exception()
            self.exit()

    async def on_unmount(self) -> None:
        """The kernel is told that we leave: one that only we kept ends then."""
        if self._watching:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    # What the kernel tells.

    async def _watch(self) -> None:
        while True:
            try:
                async with session(start=False) as (client, _):
                    self._client = client
                    self._traced = ""
                    await self._look_on(client)
            except (EHOSTUNREACH, EPIPE):
                self._show(Glance())
            except AgentOSError as error:  # it is there, and in trouble: that is what there is to see
                self._show(Glance(why=error.reason))
            finally:
                self._client = None
            await asyncio.sleep(self._every)

    async def _look_on(self, client: Client) -> None:
        news = asyncio.Event()
        hearing = asyncio.create_task(_hear(client, news))
        try:
            while True:
                news.clear()
                self._show(await look(client))
                await asyncio.sleep(_SOONEST)
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(self._every - _SOONEST, 0)):
                        await news.wait()
        finally:
            hearing.cancel()

    async def _trace(self, agent: str) -> None:
        """Until another one is chosen, which cancels this."""
        await asyncio.sleep(_SETTLED)
        if not (logs := self._base.query(RichLog)):
            return  # it is just being left
        log, client, spans = logs.first(), self._client, Spans()
        log.clear()
        if client is None:
            return
        stream = client.stream(Events(agent=agent, last=_TRACED, follow=True, bodies=True))
        try:
            async for page in stream:
                for span in map(spans.add, page):
                    if not span.open:
                        log.write(Text(told(span), style="red" if refused(span.entry) else ""))
            await stream.result()
        except AgentOSError as error:
            log.write(Text(plain(error.reason)))
        finally:
            stream.cancel()

    async def _asked(self, request: Body) -> Any:
        """The answer; None of somebody who is not known there."""
        if self._client is None:
            raise EHOSTUNREACH("daemon.none", "no kernel is running")
        try:
            return await self._client.call(request, deadline=TO_LOOK)
        except ESRCH:
            return None

    # What is drawn.

    @property
    def _table(self) -> Rows:
        return self._base.query_one(Rows)

    @property
    def _base(self) -> Screen[Any]:
        """The one with the table, whatever is on top of it."""
        return self.screen_stack[0]

    def _show(self, seen: Glance) -> None:
        """The picture anew, as far as it differs."""
        if not (self.screen_stack and self._base.is_running):  # we are just leaving
            return
        self._seen = seen
        found = ordered(seen, self._order, self._words) if seen.facts else []
        self._table.show(found, self._order)
        self._say(seen, len(found))
        self._follow()

    def _say(self, seen: Glance, number: int) -> None:
        only = [f"only: {self._words}   {number} of {len(agents(seen))}"] if self._words else []
        self._update("#head", [*head(seen), *(only if seen.facts else [])])
        self._update("#none", [nobody(seen)] if seen.facts else [])
        self._base.set_class(not number, "empty")
        if number and self._base.focused is None:  # what is not displayed loses the keys
            self.call_after_refresh(self._table.focus)

    def _update(self, where: str, lines: Sequence[str]) -> None:
        room = self.size.width - 2
        text = "\n".join(cut(plain(line), room) for line in lines)
        self._base.query_one(where, Static).update(Text(text))

    def _follow(self) -> None:
        """Have the trace of the chosen one shown, if it is not."""
        row = self._table.chosen
        chosen = row["id"] if row else ""
        if chosen != self._traced and self._client:
            self._traced = chosen
            self._base.query_one("#trace").border_title = f"trace of {plain(row['name'] if row else '')}"
            self.run_worker(self._trace(chosen), group="trace", exclusive=True)

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """On a page or before a question, the keys of the table mean nothing."""
        return len(self.screen_stack) < 2 or action not in _OF_TABLE

    def action_leave(self) -> None:
        self.exit()

    def on_resize(self) -> None:
        self._base.set_class(self.size.height < _LOW, "low")
        self._again()

    def _again(self) -> None:
        """Draw all of it, also where nobody has changed."""
        self._table.forget()
        self.call_after_refresh(lambda: self._show(self._seen))

    def on_data_table_row_highlighted(self) -> None:
        self._follow()

    def on_data_table_row_selected(self) -> None:
        self.action_trace()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        if (order := str(event.column_key.value).lower()) in ORDERS:
            self._sort(order)

    def action_sort(self) -> None:
        orders = list(ORDERS)
        self._sort(self._flat if self._order == "tree" else orders[(orders.index(self._order) + 1) % len(orders)])

    def _sort(self, order: str) -> None:
        self._order = self._flat = order
        self._again()

    def action_tree(self) -> None:
        self._order = self._flat if self._order == "tree" else "tree"
        self._again()

    def action_filter(self) -> None:
        self._base.add_class("asking")
        self._base.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value
        self._show(self._seen)

    def on_input_submitted(self) -> None:
        self.action_keep()

    def action_keep(self) -> None:
        self._base.remove_class("asking")
        self._table.focus()

    def action_back(self) -> None:
        """Out of the filter without it, else out of the large trace."""
        if self._words or self._base.has_class("asking"):
            self._base.query_one(Input).value = ""
            self.action_keep()
        self._base.remove_class("tall")

    def action_trace(self) -> None:
        self._base.toggle_class("tall")

    def action_detail(self) -> None:
        if row := self._table.chosen:
            self.push_screen(Page(plain(row["name"]), lambda: self._details(row["id"], row["name"]), self._every))

    async def _details(self, agent: str, name: str) -> list[str]:
        declared = await self._asked(Declared(agents=[agent], manifests=True))
        facts = await self._asked(Inspect(agent=agent))
        if declared is None and facts is None:
            return [f"{name} is over, and nothing of it is left here: agentctl trace {name}"]
        past = (await self._asked(History(agent=agent, last=10))) if declared else None
        told = described(name, declared["agents"][0] if declared else None, facts)
        return [
            *told,
            *(["lives", *(f"  {one}" for one in lives(past["lives"]).splitlines())] if past and past["lives"] else []),
        ]

    def action_approvals(self) -> None:
        self.push_screen(Page("what waits for you", self._waiting, self._every))

    async def _waiting(self) -> list[str]:
        rows = (await self._asked(Approvals()))["approvals"]
        how = "all of one: agentctl approvals ID   then   agentctl approve ID   or   agentctl deny ID"
        return [*listing(rows).splitlines(), "", how] if rows else ["nothing waits for a decision"]

    def action_act(self, act: str) -> None:
        row = self._table.chosen
        if row is None or row["id"] == ROOT:
            return
        if not row.get("pid"):
            self._tell(f"{row['name']} has no process: it is {row['state']}", bad=True)
            return
        text = _QUESTIONS[act].format(name=plain(row["name"]))
        stays = f" Its manifest does not start it again: agentctl start {row['name']} does." if row["declared"] else ""
        self.push_screen(Question(text + (stays if act == "kill" else "")), lambda yes: self._answered(yes, act, row))

    def _answered(self, yes: bool | None, act: str, row: Row) -> None:
        if yes:
            self.run_worker(self._act(act, row))

    async def _act(self, act: str, row: Row) -> None:
        if self._client is None:
            return
        try:
            done = await self._client.call(ACTS[act](row["id"]), deadline=_TO_ACT)
        except AgentOSError as error:
            self._tell(f"{error.reason}  {error.hint}", bad=True)
        else:
            self._tell(SAID[act](row["name"], done), bad=bool(done.get("survivors")))

    def _tell(self, text: str, *, bad: bool = False) -> None:
        self.notify(plain(text), severity="error" if bad else "information", markup=False)


async def _hear(client: Client, news: asyncio.Event) -> None:
    """Something happened that the picture shows. Without this, it is seen at the next look."""
    stream = client.stream(Events(last=0, follow=True))
    try:
        with suppress(AgentOSError):  # the next look says it better
            async for page in stream:
                if any(entry["kind"] in _NEWS for entry in page):
                    news.set()
    finally:
        stream.cancel()
