"""Prompts to the user: requests for permission, and the agent's questions.

Invariants: a request for permission shows every character of what it is about, in a frame that nothing else on the
screen has. Keys answer a prompt only while it has the focus, and it never takes the focus from a user who is typing.
"""

from __future__ import annotations

import asyncio
import textwrap
from typing import Generic, TypeVar

from textual import events
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from etude.cli.screen.formatting import difference
from etude.cli.visible import exact
from etude.harness import Answer, RequestedAction
from etude.harness.permissions import always_rules

T = TypeVar("T")
_AROUND = 5
"""Lines of the screen that a prompt must leave for its frame, a line of conversation, the status and the footer."""
_LEAST = 4


class Prompt(Vertical, Generic[T]):
    """Base class of the widgets that ask the user something. `answer` completes when the user answers."""

    can_focus = True

    def __init__(self, title: str, body: Content, keys: Content, more: Content) -> None:
        """`body` says what is asked, `keys` names the keys that answer it. `more` names further keys, below `keys` or,
        on a small screen, at the end of the scrolling body."""
        super().__init__()
        self.border_title = title
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._body, self._keys, self._more = body, keys, more
        self._input = Input(compact=True, select_on_focus=False)

    def compose(self):  # type: ignore[no-untyped-def]
        with VerticalScroll(can_focus=False):
            yield Static(self._body, markup=False)
            yield Static(self._more, classes="more", markup=False)
        yield Static(self._keys, classes="keys", markup=False)
        yield Static(self._more, classes="more", markup=False)
        yield self._input

    def fit(self, width: int, height: int) -> None:
        """Fit the prompt to the screen's size: the text that names the keys stays visible, and the body scrolls."""
        left = height - _AROUND - _rows(self._keys, width - 4)
        roomy = left - _rows(self._more, width - 4) - 1
        self.set_class(roomy < _LEAST, "tight")
        self.query_one(VerticalScroll).styles.max_height = max(1, left) if roomy < _LEAST else min(height // 2, roomy)

    def where_focus_goes(self) -> Widget:
        return self

    def settle(self, answer: T) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def scroll(self, pages: float) -> None:
        area = self.query_one(VerticalScroll)
        area.scroll_relative(y=pages * max(1, area.size.height - 1), animate=False)


class Approval(Prompt[Answer]):
    def __init__(self, wish: RequestedAction) -> None:
        title = {"write": "Change", "execute": "Run" if wish.plain else "Type", "fetch": "Fetch"}[wish.kind]
        if wish.kind == "write":
            body = difference(wish.shown, strict=True)
        else:
            above = f"{exact(wish.shown)}\n" if wish.shown else ""
            body = Content.assemble((above, "dim"), (exact(wish.what), "bold"))
        super().__init__(f"{title}, on this machine?", body, *_keys(wish))
        self._wish = wish
        self._typing = ""
        """Purpose of the text input: "instead" (edit the command, then run it), "reason" (refuse and say why), or
        empty while the input is hidden."""

    def on_key(self, event: events.Key) -> None:
        if self._typing:
            if event.key == "escape":
                self._stop_typing()
                event.stop()
            return
        match event.character or event.key:
            case "y":
                self.settle(Answer(True))
            case "n":
                self.settle(Answer(False))
            case "a":
                self.settle(Answer(True, always=True))
            case "A":
                self.settle(Answer(True, always=True, remember=True))
            case "e" if self._wish.kind == "execute":
                self._type("instead", self._wish.what)
            case "r":
                self._type("reason", "")
            case _ if event.key in ("down", "pagedown", "space"):
                self.scroll(0.2 if event.key == "down" else 1)
            case _ if event.key in ("up", "pageup"):
                self.scroll(-0.2 if event.key == "up" else -1)
            case _:
                return
        event.stop()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        if self._typing == "reason":
            self.settle(Answer(False, reason=text))
        elif text:
            self.settle(Answer(True, instead="" if text == self._wish.what.strip() else text))

    def _type(self, what: str, text: str) -> None:
        if "\n" in text or exact(text) != text:
            # The input cannot show it in one line, and what the user does not see must not be run.
            self.notify("this command cannot be edited in one line: press r and say what to change", severity="warning")
            return
        self._typing = what
        self._input.value = text
        self._input.cursor_position = len(text)
        self._input.placeholder = "what the agent should do instead" if what == "reason" else ""
        self.border_subtitle = "Enter: run this" if what == "instead" else "Enter: no, with this"
        self.border_subtitle += ", Esc: back"
        self.add_class("typing")
        self._input.focus()

    def _stop_typing(self) -> None:
        self._typing = self.border_subtitle = ""
        self.remove_class("typing")
        self.focus()


class Question(Prompt[str]):
    """A question that the agent asks the user."""

    def __init__(self, question: str) -> None:
        super().__init__("The agent asks", Content(exact(question)), Content(""), Content(""))

    def on_mount(self) -> None:
        self.add_class("typing")
        self._input.placeholder = "your answer"

    def where_focus_goes(self) -> Widget:
        return self._input

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.settle(event.value)


def _keys(wish: RequestedAction) -> tuple[Content, Content]:
    rules = always_rules(wish)
    always = ", ".join("this very command" if r.pattern.startswith("=") else exact(str(r)) for r in rules)
    what = "any change in this folder" if wish.kind == "write" else always
    first = ["y", " yes   ", "n", " no   ", "r", " no, and say why"]
    first += ["   e", " edit it"] if wish.kind == "execute" else []
    more = ["a", f" always in this session: {what}", "\nA", " and in later ones in this folder"]
    return _marked(first), _marked(more)


def _marked(keys: list[str]) -> Content:
    """Highlight the keys. `keys` alternates between a key and the text that explains it."""
    return Content.assemble(*((text, "bold $warning" if place % 2 == 0 else "") for place, text in enumerate(keys)))


def _rows(text: Content, width: int) -> int:
    return sum(max(1, len(textwrap.wrap(line, max(1, width)))) for line in text.plain.split("\n"))
