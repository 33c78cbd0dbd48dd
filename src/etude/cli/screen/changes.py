"""Screens that open on top of the conversation: all changes, the folder's sessions, help."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from etude.cli.screen.entry import COMMANDS
from etude.cli.screen.formatting import counted, difference
from etude.cli.visible import visible
from etude.cli.wording import count

Choice = dict[str, bool]
"""The user's decision per file: keep (True) or take back (False). A file that is missing here stays undecided."""
_MARKS = {True: ("✓ keep     ", "$success"), False: ("✗ take back", "$error"), None: ("· undecided", "dim")}


class ChangesScreen(Screen[Choice | None]):
    """All changes of the agent, file by file. The result is the user's decision per file, or None if the user
    leaves."""

    BINDINGS = [
        Binding("a", "choose(True)", "keep"),
        Binding("r", "choose(False)", "take back"),
        Binding("A", "choose_all(True)", "keep all"),
        Binding("R", "choose_all(False)", "take all back"),
        Binding("enter", "decide", "do it", priority=True),
        Binding("space", "page(1)", "scroll"),
        Binding("b", "page(-1)", "up", show=False),
        Binding("escape,q", "leave", "back", priority=True),
    ]

    def __init__(self, changes: dict[str, str], here: bool) -> None:
        super().__init__()
        self._changes = changes
        self._paths = list(changes)
        self._choice: dict[str, bool | None] = dict.fromkeys(changes)
        self._here = here

    def compose(self) -> ComposeResult:
        of = "made in your folder" if self._here else "not in your folder yet"
        yield Static(f"{count(len(self._paths), 'file')} changed, {of}", id="title", markup=False)
        yield OptionList(*(Option(self._line(path)) for path in self._paths))
        with VerticalScroll(can_focus=False):
            yield Static(id="change", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#change", Static).update(difference(self._changes[self._paths[event.option_index]]))
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_choose(self, keep: bool) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            self._mark(options.highlighted, keep)
            options.action_cursor_down() if options.highlighted < len(self._paths) - 1 else None

    def action_choose_all(self, keep: bool) -> None:
        for place in range(len(self._paths)):
            self._mark(place, keep)

    def action_page(self, pages: int) -> None:
        area = self.query_one(VerticalScroll)
        area.scroll_relative(y=pages * max(1, area.size.height - 1), animate=False)

    def action_decide(self) -> None:
        self.dismiss({path: keep for path, keep in self._choice.items() if keep is not None})

    def action_leave(self) -> None:
        self.dismiss(None)

    def _mark(self, place: int, keep: bool) -> None:
        path = self._paths[place]
        self._choice[path] = None if self._choice[path] is keep else keep
        self.query_one(OptionList).replace_option_prompt_at_index(place, self._line(path))

    def _line(self, path: str) -> Content:
        mark, style = _MARKS[self._choice[path]]
        return Content.assemble((f"{mark}  ", style), visible(path), (f"  {counted(self._changes[path])}", "dim"))


class PickScreen(Screen[str | None]):
    """A list to pick from. Its result is the entry's name, or None if the user leaves."""

    BINDINGS = [Binding("escape,q", "leave", "back", priority=True)]

    def __init__(self, title: str, names: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title, self._names = title, names

    def compose(self) -> ComposeResult:
        yield Static(self._title, id="title", markup=False)
        lines = [Content.assemble((f"{name}  ", "dim"), visible(about)) for name, about in self._names]
        yield OptionList(*(Option(line) for line in lines))
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._names[event.option_index][0])

    def action_leave(self) -> None:
        self.dismiss(None)


KEYS = {
    "Enter": "send; while the agent works, queue until it is done",
    "Shift-Enter, Alt-Enter or Ctrl-J": "a new line",
    "Up, Down": "what you sent before",
    "Esc": "interrupt the agent; what it did stays",
    "Ctrl-C": "interrupt; once more leaves",
    "Ctrl-G": "everything changed, file by file: keep it, take it back",
    "Ctrl-O": "show outputs, thinking and long changes whole, or fold them",
    "Tab, then Enter": "the same for one of them",
    "PageUp, PageDown": "through the conversation",
}


class HelpScreen(Screen[None]):
    BINDINGS = [Binding("escape,q,f1", "leave", "back", priority=True)]

    def compose(self) -> ComposeResult:
        rows = [("Keys\n\n", "bold")]
        for name, about in KEYS.items():
            rows += [(f"  {name}\n", "$primary"), (f"      {about}\n", "")]
        rows.append(("\nCommands\n\n", "bold"))
        for name, about in COMMANDS.items():
            rows += [(f"  {name:10}", "$primary"), (f"{about}\n", "")]
        with VerticalScroll():
            yield Static(Content.assemble(*rows), markup=False)
        yield Footer(compact=True)

    def action_leave(self) -> None:
        self.dismiss(None)
