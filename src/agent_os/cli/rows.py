"""The table of `agentctl top`: a row for each agent, as many columns as have their place, and the chosen one in sight.

In: rows in their order. Out: a widget that is drawn anew only as far as something differs; the cursor stays on whom it
was on. Texts come from agents, and are shown as text. Needs Textual.
"""

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable

from agent_os.cli.glance import HEADINGS, line
from agent_os.cli.members import COLOURS, SPARE, Row
from agent_os.cli.output import plain, width
from agent_os.cli.screen import cut, fitting

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
